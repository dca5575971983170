/* Hand-over of one revision between its owners: a model for spin (docs/simulation.md, "The model").

Members with views by epoch, one revision with LIMIT slots, one client at each member that asks, waits, uses a slot, and may
leave. Links deliver in order, or end and lose what was under way. Members are killed at any moment; views drop who has
ended, and keep those who have left and may still use slots as unproven. Which member owns the revision in a view is free:
more than hashing can do.

What is looked at:
  - never more than LIMIT slots in use (`begin_use`);
  - everything ends, and then no request waits, no slot is counted that nobody uses, and one owner grants (`check_end`).
    Questions, faults and views are bounded, so each run ends: a request that is never granted shows there.

The state is in global arrays, each step is one d_step, and no process has a place of its own: a state is what members and
links have. `x[at(m, n)]`: what m has of n, or what is under way from m to n.

Left out: lending (slots that stay with a borrower), the order of the line, several revisions, early grants of pods that
are not known yet. `Register` and `Registered` are one message, since there is one revision.

Bounds (-DNAME=value): N members, of which JOINS are not there at first; LIMIT; EPOCHS views; ASKS of each client; CUTS of
links; KILLS of members.

Wrong on purpose, each found (test_model.py): -D and one of
  GRANT_AT_ONCE       a new owner grants before all have registered
  OLD_GRANTS          a member acts on a grant of an older epoch
  UNPROVEN_ENDED      the slots of a member that has left are given on, before it is known to have ended
  UNPROVEN_UNHEARD    a new owner does not wait for members that have left
  FORGETS_ON_UNLINK   the owner forgets what a member has when their link ends
  NO_FREEZE           a former owner goes on granting to itself after it has registered with the next one
  RETURNED_TWICE      a void grant is sent back as well, and the owner takes back whatever slot the member has
  IGNORES_SLOTS       the owner does not count the slots that are registered with it
  KEEPS_UNNAMED       the owner goes on counting slots that a registration does not name
  NO_SECOND_REGISTER  a member does not register again on the next link
  NAMES_ENDED         a member registers a slot whose request has ended while there was no link
  UNKNOWN_EPOCH       the owner hears who is in a later view than its own
*/

#ifndef N
#define N 3
#endif
#ifndef JOINS
#define JOINS 0
#endif
#ifndef LIMIT
#define LIMIT 1
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif
#ifndef ASKS
#define ASKS 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef KILLS
#define KILLS 0
#endif

#ifndef ROOM
#define ROOM 5 /* messages under way, one way of a link; more is an error of the model */
#endif
#define IDS 8  /* numbers of slots are 1 to 7: those that are written down nowhere are free */
#define FRESH (N - JOINS)

#define at(m, n) ((m) * N + (n))

/* kinds of messages, and how one is written: kind, epoch, slot, whether a request waits */
#define WANT 1
#define CANCEL 2
#define RETURNED 3
#define REGISTER 4
#define GRANTED 5
#define message(kind, epoch, slot, waits) ((kind) + ((epoch) << 3) + ((slot) << 6) + ((waits) << 9))
#define kind_of(text) ((text) & 7)
#define epoch_of(text) (((text) >> 3) & 7)
#define slot_of(text) (((text) >> 6) & 7)
#define waits_of(text) (((text) >> 9) & 1)

/* the client of a member */
#define NONE 0
#define WAITS 1
#define USES 2

/* views, by epoch: who decides on membership */
byte members[EPOCHS + 1];
byte unproven[EPOCHS + 1];
byte owner[EPOCHS + 1];
byte published = 1;
byte cuts = CUTS;
byte kills = KILLS;
byte joins = JOINS;

/* members */
bit alive[N];
byte epoch[N];
byte client[N];
byte asks[N];
byte slot[N];       /* that the client uses; an owner numbers its own when it hands over */
byte registered[N]; /* the epoch of its registration with the owner; 0: none */
bit owns[N];
bit complete[N];    /* it grants */
byte since[N];

/* what a member knows of another one */
bit linked[N * N];
byte begun[N * N];
byte heard[N * N];   /* the epoch in which the other has registered */
byte counted[N * N]; /* the slots that the other has, as bits */
byte lent_in[N * N]; /* the epoch that grants to it carry; 0: nothing is sent to it */
bit waits[N * N];

/* links */
bit up[N * N];
short under_way[N * N * ROOM];
byte length[N * N];

byte in_use; /* requests at the pod */

#ifdef UNKNOWN_EPOCH
#define is_of_known_epoch(m, text) (true)
#else
#define is_of_known_epoch(m, text) (epoch_of(text) <= epoch[m]) /* the others are heard when the view is here */
#endif

/* only within a step */
hidden byte i, j, k, used, id, other, was_owner;
hidden short said;
hidden byte taken;

inline send(m, n, text) {
    if
    :: up[at(m, n)] ->
        assert(length[at(m, n)] < ROOM);
        under_way[at(m, n) * ROOM + length[at(m, n)]] = text;
        length[at(m, n)]++
    :: else
    fi
}

/* The lowest number that no slot has. */
inline number() {
    id = 1;
    do
    :: taken = 0;
        for (i : 0 .. N * N - 1) {
            if :: counted[i] & (1 << id) -> taken = 1 :: else fi;
            for (j : 0 .. ROOM - 1) {
                if :: j < length[i] && slot_of(under_way[i * ROOM + j]) == id -> taken = 1 :: else fi
            }
        }
        for (i : 0 .. N - 1) {
            if :: slot[i] == id -> taken = 1 :: else fi
        }
        if
        :: taken -> id++; assert(id < IDS)
        :: else -> break
        fi
    od;
    i = 0; j = 0; taken = 0
}

inline begin_use(m, numbered) {
    client[m] = USES;
    slot[m] = numbered;
    in_use++;
    assert(in_use <= LIMIT)
}

/* Grant what is free: to its own client, then to the other members. */
inline pump(m) {
    if
    :: owns[m] && complete[m] ->
        used = (client[m] == USES);
        for (k : 0 .. N - 1) {
            for (id : 1 .. IDS - 1) {
                used = used + ((counted[at(m, k)] >> id) & 1)
            }
        }
        if :: used < LIMIT && client[m] == WAITS -> begin_use(m, 0); used++ :: else fi;
        for (k : 0 .. N - 1) {
            if
            :: used < LIMIT && waits[at(m, k)] ->
                number();
                waits[at(m, k)] = 0;
                counted[at(m, k)] = counted[at(m, k)] | (1 << id);
                send(m, k, message(GRANTED, lent_in[at(m, k)], id, 0));
                used++
            :: else
            fi
        }
        used = 0; k = 0; id = 0
    :: else
    fi
}

/* Begin to grant, where all have registered that may be there. */
inline complete_some(m) {
    if
    :: owns[m] && !complete[m] && (members[epoch[m]] & (1 << m)) ->
        complete[m] = 1;
#ifndef GRANT_AT_ONCE
        for (k : 0 .. N - 1) {
            if
#ifdef UNPROVEN_UNHEARD
            :: k != m && (members[epoch[m]] & (1 << k)) && heard[at(m, k)] < since[m] -> complete[m] = 0
#else
            :: k != m && ((members[epoch[m]] | unproven[epoch[m]]) & (1 << k)) && heard[at(m, k)] < since[m] ->
                complete[m] = 0
#endif
            :: else
            fi
        }
        k = 0;
#endif
        pump(m)
    :: else
    fi
}

/* To one member: with what there is of the revision, if that owns it. */
inline register_with(m, n) {
    if
    :: owner[epoch[m]] == n ->
        registered[m] = epoch[m];
        send(m, n, message(REGISTER, epoch[m], slot[m], (client[m] == WAITS)))
    :: else -> send(m, n, message(REGISTER, epoch[m], 0, 0))
    fi
}

inline is_linked(m, n) {
    if
    :: epoch[m] > 0 && (members[epoch[m]] & (1 << n)) -> register_with(m, n)
    :: else
    fi
}

inline is_unlinked(m, n) {
    linked[at(m, n)] = 0;
    begun[at(m, n)] = 0;
    heard[at(m, n)] = 0;
    lent_in[at(m, n)] = 0;
    waits[at(m, n)] = 0;
#ifdef FORGETS_ON_UNLINK
    counted[at(m, n)] = 0;
#endif
    if :: epoch[m] > 0 && owner[epoch[m]] == n -> registered[m] = 0 :: else fi;
    pump(m)
}

inline adopt(m) {
    was_owner = owns[m];
    epoch[m]++;
    registered[m] = 0;
    for (other : 0 .. N - 1) { /* who has ended */
        if
#ifdef UNPROVEN_ENDED
        :: !(members[epoch[m]] & (1 << other)) ->
#else
        :: !((members[epoch[m]] | unproven[epoch[m]]) & (1 << other)) ->
#endif
            counted[at(m, other)] = 0;
            waits[at(m, other)] = 0;
            lent_in[at(m, other)] = 0
        :: else
        fi
    }
    if
    :: owner[epoch[m]] == m && !was_owner ->
        owns[m] = 1; since[m] = epoch[m]; complete[m] = 0;
        slot[m] = 0
    :: owner[epoch[m]] != m && was_owner ->
        if :: client[m] == USES -> number(); slot[m] = id; id = 0 :: else fi;
#ifndef NO_FREEZE
        owns[m] = 0; complete[m] = 0; since[m] = 0;
#endif
        for (other : 0 .. N - 1) {
            counted[at(m, other)] = 0; waits[at(m, other)] = 0; lent_in[at(m, other)] = 0
        }
    :: else
    fi;
    for (other : 0 .. N - 1) {
        if
        :: other != m && linked[at(m, other)] && (members[epoch[m]] & (1 << other)) -> register_with(m, other)
        :: else
        fi
    }
    other = 0; was_owner = 0;
    complete_some(m);
    pump(m)
}

inline hear_register(m, n) {
    if
    :: epoch_of(said) >= begun[at(m, n)] ->
        begun[at(m, n)] = epoch_of(said);
        heard[at(m, n)] = epoch_of(said);
        if
        :: owns[m] && epoch_of(said) >= since[m] ->
#ifndef KEEPS_UNNAMED
            counted[at(m, n)] = 0;
#endif
#ifndef IGNORES_SLOTS
            if :: slot_of(said) -> counted[at(m, n)] = counted[at(m, n)] | (1 << slot_of(said)) :: else fi;
#endif
            lent_in[at(m, n)] = epoch_of(said);
            waits[at(m, n)] = waits_of(said)
        :: else
        fi;
        complete_some(m);
        pump(m)
    :: else
    fi
}

inline hear_want(m, n) {
    if
    :: epoch_of(said) >= begun[at(m, n)] ->
        begun[at(m, n)] = epoch_of(said);
        if
        :: owns[m] && epoch_of(said) >= since[m] ->
            if :: lent_in[at(m, n)] == 0 -> lent_in[at(m, n)] = epoch_of(said) :: else fi;
            waits[at(m, n)] = (kind_of(said) == WANT);
            pump(m)
        :: else
        fi
    :: else
    fi
}

inline hear_granted(m, n) {
    if
#ifdef OLD_GRANTS
    :: client[m] == WAITS -> begin_use(m, slot_of(said))
#else
    :: epoch_of(said) == epoch[m] && owner[epoch[m]] == n && client[m] == WAITS -> begin_use(m, slot_of(said))
    :: epoch_of(said) == epoch[m] && owner[epoch[m]] == n && client[m] != WAITS ->
        send(m, n, message(RETURNED, epoch[m], slot_of(said), 0))
#endif
#ifdef RETURNED_TWICE
    :: epoch_of(said) != epoch[m] -> send(m, n, message(RETURNED, epoch[m], slot_of(said), 0))
#endif
    :: else
    fi
}

inline hear_returned(m, n) {
#ifdef RETURNED_TWICE
    counted[at(m, n)] = counted[at(m, n)] & (counted[at(m, n)] - 1); /* one slot less, whichever */
#else
    counted[at(m, n)] = counted[at(m, n)] & (255 - (1 << slot_of(said)));
#endif
    pump(m)
}

inline hear(m, n) {
    said = under_way[at(n, m) * ROOM];
    for (k : 1 .. ROOM - 1) {
        under_way[at(n, m) * ROOM + k - 1] = under_way[at(n, m) * ROOM + k]
    }
    under_way[at(n, m) * ROOM + ROOM - 1] = 0;
    length[at(n, m)]--;
    k = 0;
    if
    :: kind_of(said) == REGISTER -> hear_register(m, n)
    :: kind_of(said) == WANT || kind_of(said) == CANCEL -> hear_want(m, n)
    :: kind_of(said) == GRANTED -> hear_granted(m, n)
    :: kind_of(said) == RETURNED -> hear_returned(m, n)
    fi;
    said = 0
}

inline cut(m, n) {
    up[at(m, n)] = 0;
    up[at(n, m)] = 0;
    length[at(m, n)] = 0;
    length[at(n, m)] = 0;
    for (k : 0 .. ROOM - 1) {
        under_way[at(m, n) * ROOM + k] = 0;
        under_way[at(n, m) * ROOM + k] = 0
    }
    k = 0
}

/* A member and its client. */
proctype Member(byte m) {
end:
    do
    :: d_step { /* the client asks; clients do not come to members that leave */
        alive[m] && epoch[m] > 0 && (members[epoch[m]] & (1 << m)) && client[m] == NONE && asks[m] > 0 ->
            asks[m]--;
            client[m] = WAITS;
            if
            :: owns[m] -> pump(m)
            :: !owns[m] && registered[m] -> send(m, owner[epoch[m]], message(WANT, epoch[m], 0, 1))
            :: else
            fi
        }
    :: d_step { /* it has its answer */
        alive[m] && client[m] == USES ->
            client[m] = NONE;
            in_use--;
            if
            :: owns[m] -> slot[m] = 0; pump(m)
            :: !owns[m] && registered[m] ->
                send(m, owner[epoch[m]], message(RETURNED, epoch[m], slot[m], 0));
                slot[m] = 0
#ifndef NAMES_ENDED
            :: else -> slot[m] = 0
#else
            :: else
#endif
            fi
        }
    :: d_step { /* it leaves the line */
        alive[m] && client[m] == WAITS ->
            client[m] = NONE;
            if
            :: !owns[m] && registered[m] -> send(m, owner[epoch[m]], message(CANCEL, epoch[m], 0, 0))
            :: else
            fi
        }
    :: d_step { alive[m] && epoch[m] < published -> adopt(m) }
    od
}

/* What m hears and notices of n. */
proctype Hearing(byte m; byte n) {
end:
    do
    :: d_step {
        alive[m] && linked[at(m, n)] && length[at(n, m)] > 0 && is_of_known_epoch(m, under_way[at(n, m) * ROOM]) ->
            hear(m, n)
        }
    :: d_step { alive[m] && linked[at(m, n)] && !up[at(m, n)] -> is_unlinked(m, n) }
    od
}

/* The link between two members. */
proctype Between(byte one; byte two) {
end:
    do
    :: d_step { cuts > 0 && up[at(one, two)] -> cuts--; cut(one, two) }
    :: d_step {
        alive[one] && alive[two] && !up[at(one, two)] && !linked[at(one, two)] && !linked[at(two, one)] ->
            up[at(one, two)] = 1; up[at(two, one)] = 1;
            linked[at(one, two)] = 1; linked[at(two, one)] = 1;
#ifndef NO_SECOND_REGISTER
            is_linked(one, two);
            is_linked(two, one)
#endif
        }
    od
}

inline living_members() {
    used = 0;
    for (k : 0 .. N - 1) {
        used = used | (alive[k] << k)
    }
    k = 0
}

/* Nothing happens any more. */
inline check_end() {
    used = 0;
    assert(in_use == 0);
    for (i : 0 .. N - 1) {
        assert(client[i] == NONE);
        for (j : 0 .. N - 1) {
            assert(counted[at(i, j)] == 0)
        }
        used = used + (alive[i] && owns[i] && complete[i])
    }
    assert(used == 1);
    i = 0; j = 0; used = 0
}

/* Kills, joins and views. Each view is without those that have ended. */
proctype Membership() {
    byte leaves = N;
    byte next = 0;
    do
    :: kills > 0 && published < EPOCHS ->
        atomic {
            select (next : 0 .. N - 1);
            d_step {
                living_members();
                if
                :: alive[next] && (members[published] & used & (255 - (1 << next))) ->
                    kills--;
                    alive[next] = 0;
                    if :: client[next] == USES -> in_use-- :: else fi;
                    client[next] = NONE; slot[next] = 0; asks[next] = 0;
                    for (i : 0 .. N - 1) {
                        counted[at(next, i)] = 0; waits[at(next, i)] = 0; lent_in[at(next, i)] = 0;
                        begun[at(next, i)] = 0; heard[at(next, i)] = 0; linked[at(next, i)] = 0;
                        if :: i != next -> cut(next, i) :: else fi
                    }
                    owns[next] = 0; complete[next] = 0; registered[next] = 0; since[next] = 0
                :: else
                fi;
                i = 0; used = 0; next = 0
            }
        }
    :: published < EPOCHS ->
        atomic {
            select (leaves : 0 .. N); /* N: nobody */
            select (next : 0 .. N - 1); /* the owner */
            d_step {
                living_members();
                published++;
                members[published] = members[published - 1] & used;
                unproven[published] = unproven[published - 1] & used;
                if
                :: joins > 0 ->
                    joins--;
                    other = FRESH + joins;
                    alive[other] = 1;
                    asks[other] = ASKS;
                    members[published] = members[published] | (1 << other);
                    other = 0
                :: else
                fi;
                if
                :: leaves < N && (members[published] & (1 << leaves)) && (members[published] & (255 - (1 << leaves))) ->
                    members[published] = members[published] & (255 - (1 << leaves));
                    unproven[published] = unproven[published] | (1 << leaves)
                :: else
                fi;
                do /* the next one that is a member */
                :: members[published] & (1 << next) -> break
                :: else -> next = (next + 1) % N
                od;
                owner[published] = next;
                leaves = N; next = 0; used = 0
            }
        }
    :: timeout -> d_step { check_end() }; break
    od
}

init {
    atomic {
        for (i : 0 .. FRESH - 1) {
            alive[i] = 1;
            epoch[i] = 1;
            registered[i] = 1;
            asks[i] = ASKS;
            members[1] = members[1] | (1 << i);
            for (j : 0 .. FRESH - 1) {
                if
                :: i != j ->
                    linked[at(i, j)] = 1; up[at(i, j)] = 1; begun[at(i, j)] = 1; heard[at(i, j)] = 1
                :: else
                fi
            }
        }
        owner[1] = 0; owns[0] = 1; since[0] = 1; complete[0] = 1; registered[0] = 0;
        for (i : 0 .. N - 1) {
            run Member(i);
            for (j : 0 .. N - 1) {
                if
                :: i != j -> run Hearing(i, j)
                :: else
                fi;
                if
                :: i < j -> run Between(i, j)
                :: else
                fi
            }
        }
        i = 0; j = 0;
        run Membership()
    }
}
