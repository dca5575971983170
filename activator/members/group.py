"""The group as one replica sees it: whom it reaches, in which view they act, and who is proven to have ended.

A small agreement on views, in the manner of Viewstamped Replication's view change (Liskov and Cowling 2012), without a
log: what is agreed on is only who takes part. Nothing here waits or does I/O; the clock is handed in.

Rules
  1. Whoever has been heard within `silence_s` is reachable. A replica's coordinator is the lowest seat that it reaches,
     its own included; it accepts views of nobody else.
  2. A view takes effect when all its replicas have accepted it, and they are a majority of the seats that may be in use
     (of two halves, the one with the lowest seat): of a group that fell apart one part goes on at most.
  3. A seat that is not in a view is named by it as unproven, unless nobody has it: its holder is proven to have ended
     (the kernel of its machine or the cluster's API reports it, it has left, or the operator has said so), and nobody
     listens at its address just now. Nobody is taken for ended because it is silent or because a connection has ended,
     unless the operator allows that (`on_silence: prompt`).
  4. A replica that reaches no majority does not grant slots of what it owns (`on_partition: strict`), until it has a
     majority again and nobody whom it reaches is in a later view.
  5. That nobody listens at an address holds for `silence_s`. A replica that starts takes part when it has met every
     seat or found it vacant; or when twice that time is over, and no other one can hold the seat for vacant any more.
  6. A later life of a seat takes no part until the end of the former one is proven: nothing but its word says that it
     is on the same machine. If it is, its kernel knows of the former process, and the others ask it (`Suspected`).
  7. A replica that learns of its own end stops granting, and must start again with another number: others may have
     granted its slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from activator.members.messages import (
    Accept,
    Beat,
    Commit,
    DataPlaneName,
    Ended,
    GroupMessage,
    GroupView,
    Introduction,
    Leave,
    LivesChanged,
    Propose,
    Replica,
    RevisionLives,
    Suspected,
)
from activator.members.numbers import seat_of, short_number, unmet
from activator.runtime.clock import Now

BEAT_INTERVAL_S: Final = 0.1
SUSPECT_INTERVAL_S: Final = 0.5  # how often the machine of a silent replica is asked about its process
STUCK_S: Final = 5.0  # how long members may disagree on the view before this replica reports that it is not ready
ENDED_MAX: Final = 10_000  # replicas whose end is remembered
KNOWN_TOLD: Final = 512  # replicas that may live, those that a replica names when it introduces itself
ENDED_TOLD: Final = 256  # of them, those that a replica says when it introduces itself
EPOCH_SHIFT: Final = 32  # an epoch's low bits are its proposer: the seat, and some of its life
HELD_S: Final = 5.0  # a group that grants no slots for so long is not ready
NO_VIEW: Final = GroupView()


class GroupRules(msgspec.Struct, frozen=True):
    """What the operator decides. `release_s`: after which a silent replica is taken for ended, if that is allowed."""

    silence_s: float = 1.0
    release_s: float = 10.0
    releases_silent: bool = False
    grants_alone: bool = False


class Contact:
    """Another seat of the roster."""

    def __init__(self, seat: int, now_s: float) -> None:
        self.seat = seat
        self.replica: Replica | None = None  # the last life that it introduced, unless that has ended
        self.is_linked: bool = False
        self.takes_part: bool = False
        self.is_released: bool = False  # silent for so long that it is taken for ended, as the operator allows
        self.heard_s: float = float("-inf")  # later than it was, by the time that this process did not have
        self.spoken_s: float = float("-inf")  # when it was
        self.since_s = now_s  # since when the seat is known
        self.vacant_s: float = float("-inf")  # when nobody listened at its address
        self.deaf_until_s: float = float("-inf")  # it has not accepted a proposal
        self.accepted_epoch: int = 0  # of the latest view that it says to have accepted
        self.owned: int = 0  # revisions that it owns, by its own report
        self.held: int = 0  # of them, those for which it cannot grant slots yet


class Proposal:
    """A view that this replica has proposed, and who has not accepted it yet."""

    def __init__(self, view: GroupView, waiting: set[int], at_s: float) -> None:
        self.view = view
        self.waiting = waiting
        self.at_s = at_s


class Group:
    """`send(seat, message)` to a linked one; `adopt(view)`: it takes effect here; `grant(allowed)`: rule 4;
    `learn(lives)`: of revisions, as another replica has them; `inquire(replica)`: find out if this one has ended, and
    call `ended` if that is certain; `died()`: rule 7.
    """

    def __init__(
        self,
        number: int,
        rules: GroupRules,
        send: Callable[[int, GroupMessage], None],
        adopt: Callable[[GroupView], None],
        grant: Callable[[bool], None],
        learn: Callable[[RevisionLives], None],
        inquire: Callable[[Replica], None],
        died: Callable[[], None],
        now: Now,
    ) -> None:
        self.number = number
        self.seat = seat_of(number)
        self.rules = rules
        self.replica = Replica(number)
        self.lives = RevisionLives()
        self.contacts: dict[int, Contact] = {}
        self.accepted = NO_VIEW
        self.effective = NO_VIEW
        self.may_grant = True
        self.has_died: bool = False  # rule 7
        self._known: dict[int, float] = {}  # replicas that may live, by number: when they were last heard
        self._met: dict[int, Replica] = {}  # of them, those that have introduced themselves
        self._released: set[int] = set()  # of them, those that were silent for `release_s`, as the operator allows
        self._ended: dict[int, None] = {}
        self._highest: int = 0  # of all epochs that were heard of
        self._proposal: Proposal | None = None
        self._started_s = now()
        self._majority_s = now()  # when there was one
        self._takes_part = False
        self._beat_s: float = float("-inf")
        self._ticked_s = now()
        self._is_leaving = False
        self._send = send
        self._adopt = adopt
        self._grant = grant
        self._learn = learn
        self._inquire = inquire
        self._died = died
        self._now = now
        self._suspected_s: float = float("-inf")
        self._agreed_s = now()  # when all members that are reached were last in one view
        self._own = (0, 0)  # revisions that are owned here, and of them, those for which no slots can be granted yet
        self._granted_s = now()  # when one of the members that are reached could last grant slots

    # --- what there is ---

    def set_roster(self, seats: set[int]) -> None:
        """These are the seats; a seat that is gone had been given up by its holder, or its holder is proven gone."""
        for seat in list(self.contacts):
            if seat not in seats:
                del self.contacts[seat]
        for seat in seats:
            if seat != self.seat and seat not in self.contacts:
                self.contacts[seat] = Contact(seat, self._now())
        self._reconsider()

    def set_data_planes(self, data_planes: tuple[DataPlaneName, ...]) -> None:
        """Set those of this replica: what is not named any more has ended."""
        self._be(replace(self.replica, data_planes=data_planes))

    def set_process(self, machine: str, process: int, started: int, pod: str) -> None:
        """Set by what others can prove that this replica has ended."""
        self._be(replace(self.replica, machine=machine, process=process, started=started, pod=pod))

    def set_writes(self, writes: bool) -> None:
        """Whether objects of the cluster may be its own to write, from the next view on."""
        if writes != self.replica.writes:
            self._be(replace(self.replica, writes=writes))

    def set_lives(self, lives: RevisionLives) -> None:
        """Those of this replica."""
        news = RevisionLives(_new(lives.present, self.lives.present), _new(lives.dropped, self.lives.dropped))
        self.lives = lives
        if news.present or news.dropped:
            for contact in self._linked():
                self._send(contact.seat, LivesChanged(news))

    def set_owned(self, owned: int, held: int) -> None:
        """Set how many revisions the data planes here own, and for how many they cannot grant slots yet."""
        self._own = (owned, held)

    def leave(self) -> None:
        """Nothing is in flight here, and nothing will be."""
        self._is_leaving = True
        for contact in self._linked():
            self._send(contact.seat, Leave())

    # --- what happens ---

    def linked(self, seat: int, number: int) -> None:
        """Register a link to this life of the seat. A former life stays unproven (rule 6)."""
        contact = self.contacts.get(seat)
        if contact is None:
            return
        if contact.replica is not None and contact.replica.number != number:
            self._forget(contact)
        contact.is_linked = True
        contact.vacant_s = float("-inf")
        self._send(seat, self._introduction())  # it is reached when it has said in which view it is

    def unlinked(self, seat: int) -> None:
        """The link has ended, with all that was under way."""
        contact = self.contacts.get(seat)
        if contact is not None:
            contact.is_linked = False
            if self._is_later_life(contact):
                self._forget(contact)  # it has been in no view

    def is_vacant(self, seat: int) -> None:
        """Nobody listens at its address just now. To be said again and again while that is so."""
        contact = self.contacts.get(seat)
        if contact is not None:
            contact.vacant_s = self._now()
            self._reconsider()

    def ended(self, number: int) -> None:
        """It is proven here that this replica has ended."""
        if number in self._ended:
            return
        self._note_ended(number)
        for contact in self._linked():
            self._send(contact.seat, Ended(number))
        self._reconsider()

    def receive(self, seat: int, message: GroupMessage) -> None:
        """Over the present link."""
        contact = self.contacts.get(seat)
        if contact is None or not contact.is_linked:
            return
        contact.heard_s = contact.spoken_s = self._now()
        contact.is_released = False
        if contact.replica is not None and contact.replica.number in self._known:
            self._known[contact.replica.number] = self._now()
            self._released.discard(contact.replica.number)
        if isinstance(message, Beat):
            contact.accepted_epoch = max(message.accepted, contact.accepted_epoch)
            contact.owned, contact.held = message.owned, message.held
            self._highest = max(self._highest, message.accepted)
            self._repair(contact, message)
        elif isinstance(message, Introduction):
            self._meet(contact, message)
        elif isinstance(message, LivesChanged):
            self._learn(message.lives)
        elif isinstance(message, Propose):
            self._consider(contact, message.view)
        elif isinstance(message, Accept):
            self._accepted_by(contact, message)
        elif isinstance(message, Commit):
            if message.epoch == self.accepted.epoch and self._coordinator() == seat:
                self._take_effect()
        elif isinstance(message, Ended):
            self._note_ended(message.replica)
        elif isinstance(message, Suspected):
            if message.replica.number not in self._ended and message.replica.number != self.number:
                self._inquire(message.replica)
        elif contact.replica is not None:  # Leave
            self._note_ended(contact.replica.number)
        self._reconsider()

    def tick(self) -> None:
        """To be called often, some ten times in `silence_s`."""
        now_s = self._now()
        lost_s = max(now_s - self._ticked_s - BEAT_INTERVAL_S, 0.0)  # this process had no time, so it heard nobody
        self._ticked_s = now_s
        for contact in self.contacts.values():
            contact.heard_s += lost_s
        if lost_s:
            self._known = {number: heard_s + lost_s for number, heard_s in self._known.items()}
        if now_s - self._beat_s >= BEAT_INTERVAL_S and not self._is_leaving:
            self._beat_s = now_s
            for contact in self._linked():
                self._send(contact.seat, Beat(self.accepted.epoch, self.effective.epoch, *self._own))
        if self.rules.releases_silent:
            self._release_silent(now_s)
        if not self._takes_part and self._may_take_part(now_s):
            self._takes_part = True
            self._introduce_to_all()
        if now_s - self._suspected_s >= SUSPECT_INTERVAL_S:
            self._suspected_s = now_s
            self._suspect()
        self._judge_majority(now_s)
        self._judge_agreement(now_s)
        if self._may_somebody_grant():
            self._granted_s = now_s
        self._reconsider()

    # --- for those who ask ---

    def replica_at(self, seat: int) -> int:
        """The number of the life that has it, as far as it is known; else 0."""
        contact = self.contacts.get(seat)
        return 0 if contact is None or contact.replica is None else contact.replica.number

    def processes_of(self, seat: int) -> tuple[tuple[int, int], ...]:
        """Those of its data planes, and when each was started; without those that are not processes of their own."""
        contact = self.contacts.get(seat)
        if contact is None or contact.replica is None:
            return ()
        return tuple([(one.process, one.started) for one in contact.replica.data_planes if one.process])

    def planes_of(self, seat: int) -> int:
        """How many data planes it has."""
        contact = self.contacts.get(seat)
        return 0 if contact is None or contact.replica is None else len(contact.replica.data_planes)

    def may_write(self) -> bool:
        """It hears a majority, by its own clock, and nobody who is in another view: in a later one than that in effect
        here, unless this one has accepted it, or in one of another part of a group that fell apart. Whoever was stopped
        for a while hears nobody before it has read what it was sent. What it has accepted follows on that in effect:
        otherwise others may have acted in between, without this one.
        """
        if not self.effective.epoch:
            return False
        if self.rules.grants_alone:
            return True
        effective, accepted = self.effective.epoch, self.accepted.epoch
        if accepted != effective and not follows_on(effective, accepted):
            return False
        heard = [
            one for one in self.contacts.values() if one.replica and self._now() - one.spoken_s <= self.rules.silence_s
        ]
        for one in heard:
            is_elsewhere = one.accepted_epoch > 0 and not self._is_in(self.effective, one)
            is_later = one.accepted_epoch > self.effective.epoch and one.accepted_epoch != self.accepted.epoch
            if is_elsewhere or is_later:
                return False
        return self._is_majority({self.seat, *[one.seat for one in heard]})

    def is_coordinator(self) -> bool:
        return self._coordinator() == self.seat

    def unreached(self) -> list[int]:
        """Seats of the roster whose holder is not reached, whatever is known of it."""
        return [contact.seat for contact in self.contacts.values() if not self._reaches(contact)]

    def silent(self) -> list[int]:
        """Replicas that are not reached, and are not known to have ended."""
        reached = {
            self.number,
            *[one.replica.number for one in self.contacts.values() if one.replica and self._reaches(one)],
        }
        return sorted(self._known.keys() - reached)

    def is_taken(self, seat: int, number: int) -> bool:
        """True if another life of the seat is linked, reached, and no later life than this one.

        That other life is known to live, so this one may not take its seat.
        """
        contact = self.contacts.get(seat)
        if contact is None or contact.replica is None or not contact.is_linked:
            return False
        return contact.replica.number != number and self._reaches(contact)

    def unproven(self) -> list[int]:
        """Return the replicas that are in no view here and are not known to have ended: what they owned waits."""
        return sorted(self._may_act() - {one.number for one in self.effective.replicas})

    def describe(self) -> list[dict[str, object]]:
        """Each seat, as plain data."""
        shown: list[dict[str, object]] = [
            {"seat": self.seat, "state": "this one", "data_planes": len(self.replica.data_planes)}
        ]
        for contact in self.contacts.values():
            planes = 0 if contact.replica is None else len(contact.replica.data_planes)
            shown.append({"seat": contact.seat, "state": self._state_of(contact), "data_planes": planes})
        return sorted(shown, key=lambda one: str(one["seat"]).zfill(4))

    def waiting_for(self) -> str:
        """Why nothing is granted here, in a few words; empty: it is."""
        if self.has_died:
            return "others take this replica for ended: it must be started again"
        if self._is_late():
            return (
                "another replica had the seat of this one, and is not known to have ended: end it, and say so at "
                f"another member with `activator member-ended {self.seat}`"
            )
        if not self.effective.epoch:
            reached, possible = len(self._reached()), len(self._possible())
            return f"the group has no view yet: {reached} of {possible} members reached"
        if not self.may_grant:
            return "no majority of the group is reached"
        if self._now() - self._agreed_s > STUCK_S + self.rules.silence_s:
            apart = [one.seat for one in self._apart()]
            return f"no view that all reached members have accepted for {STUCK_S:g} s: seats {apart} are in another one"
        if self._now() - self._granted_s > HELD_S:
            seats = sorted({seat_of(number) for number in self.unproven()})
            return (
                f"no slots are granted: members at seats {seats} are not reached and not known to have ended; let them "
                f"be reached, or if it is certain that they have ended, say so at seat {self._coordinator()} with "
                "`activator member-ended SEAT`"
            )
        return ""

    def coordinator(self) -> int:
        """Return the seat whose replica proposes views."""
        return self._coordinator()

    def declare_vacant(self, seat: int) -> bool:
        """Take the operator's word that nobody has a seat whose holder was not met. False: its holder is reached.

        It holds as long as a refused connection does, since a replica may start there. So it is for the coordinator:
        a message could come too late.
        """
        contact = self.contacts.get(seat)
        if contact is None or contact.replica is not None or self._is_empty(contact):
            return False
        self.is_vacant(seat)
        return True

    # --- within ---

    def _may_somebody_grant(self) -> bool:
        """False if each revision of this replica, and of all that are reached, waits for a member that is not."""
        if not self.effective.epoch or not self.may_grant:
            return True  # `waiting_for` has these reasons
        known = [self._own, *[(one.owned, one.held) for one in self.contacts.values() if self._reaches(one)]]
        owned = sum(owned for owned, _ in known)
        return owned == 0 or sum(held for _, held in known) < owned

    def _be(self, replica: Replica) -> None:
        self.replica = replica
        self._introduce_to_all()
        self._reconsider()

    def _state_of(self, contact: Contact) -> str:
        if self._reaches(contact):
            return "reached"
        if contact.is_released:
            return "released"
        return "vacant" if self._is_empty(contact) else "silent"

    def _linked(self) -> list[Contact]:
        return [contact for contact in self.contacts.values() if contact.is_linked]

    def _reaches(self, contact: Contact) -> bool:
        if contact.replica is None or self._now() - contact.heard_s > self.rules.silence_s:
            return False
        return not self._is_later_life(contact)

    def _is_empty(self, contact: Contact) -> bool:
        """True if nobody has the seat."""
        if contact.replica is not None or self._now() - contact.vacant_s > self.rules.silence_s:
            return False
        return not self._holder(contact.seat)

    def _holder(self, seat: int) -> int:
        """Return the life that has this seat: the first one heard of that may live; 0 if there is none."""
        return next((one for one in self._known if seat_of(one) == seat and one not in self._released), 0)

    def _is_later_life(self, contact: Contact) -> bool:
        """True if the linked life may not take part, because a former one of its seat may live (rule 6)."""
        return contact.replica is not None and self._holder(contact.seat) not in (0, contact.replica.number)

    def _is_late(self) -> bool:
        """True if this replica itself is such a later life."""
        return not self.effective.epoch and self._holder(self.seat) != 0

    def _forget(self, contact: Contact) -> None:
        """Reset what is known of the life that a seat had."""
        contact.replica = None
        contact.takes_part = False
        contact.accepted_epoch = 0

    def _suspect(self) -> None:
        """Find out about silent replicas: by this machine, and by members on theirs or on their seat."""
        for number in self.silent():
            replica = self._met.get(number)
            if replica is None:
                continue
            self._inquire(replica)
            for contact in self._linked():
                other = contact.replica
                is_there = other is not None and bool(other.machine) and other.machine == replica.machine
                if contact.seat == seat_of(number) or is_there:
                    self._send(contact.seat, Suspected(replica))

    def _apart(self) -> list[Contact]:
        """Return the reached contacts that take part and are in another view than this replica."""
        return [
            one
            for one in self.contacts.values()
            if one.takes_part
            and self._reaches(one)
            and (one.accepted_epoch != self.effective.epoch or not self._is_in(self.effective, one))
        ]

    def _judge_agreement(self, now_s: float) -> None:
        if self.accepted.epoch == self.effective.epoch and not self._apart():
            self._agreed_s = now_s

    def _may_take_part(self, now_s: float) -> bool:
        if self._is_late():
            return False
        if now_s - self._started_s > 2.0 * self.rules.silence_s:
            return True
        return all(contact.replica is not None or self._is_empty(contact) for contact in self.contacts.values())

    def _coordinator(self) -> int:
        return min(self._reached())

    def _reached(self) -> set[int]:
        """These seats, with this one."""
        return {self.seat, *[contact.seat for contact in self.contacts.values() if self._reaches(contact)]}

    def _possible(self) -> set[int]:
        """Seats that may be in use."""
        taken = [one.seat for one in self.contacts.values() if not one.is_released and not self._is_empty(one)]
        return {self.seat, *taken}

    def _is_majority(self, seats: set[int]) -> bool:
        possible = self._possible()
        return 2 * len(seats) > len(possible) or (2 * len(seats) == len(possible) and min(possible) in seats)

    def _has_majority(self) -> bool:
        return self._is_majority(self._reached())

    def _introduction(self) -> Introduction:
        ended = tuple(self._ended)[-ENDED_TOLD:]
        known = self._replicas()[-KNOWN_TOLD:]
        return Introduction(self.replica, self.accepted, self._takes_part, ended, self.lives, known)

    def _introduce_to_all(self) -> None:
        for contact in self._linked():
            self._send(contact.seat, self._introduction())

    def _note_ended(self, number: int) -> None:
        if number == self.number:
            self._die()
            return
        if number == unmet(seat_of(number)):
            return
        self._ended.pop(number, None)
        self._ended[number] = None
        self._known.pop(number, None)
        self._met.pop(number, None)
        self._released.discard(number)
        contact = self.contacts.get(seat_of(number))
        if contact is not None and contact.replica is not None:
            if contact.replica.number == number:
                self._forget(contact)
            else:
                self._hear_of({contact.replica.number})  # a later life that has waited for this
                if contact.replica.number in self._known:
                    self._met[contact.replica.number] = contact.replica
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _die(self) -> None:
        if self.has_died:
            return
        self.has_died = True
        self._proposal = None
        self._allow(False)
        self._died()

    def _hear_of(self, numbers: set[int]) -> None:
        """Remember that these may live."""
        for number in sorted(numbers - self._ended.keys() - {self.number}):
            if number != unmet(seat_of(number)):
                self._known.setdefault(number, self._now())

    def _hear_of_view(self, view: GroupView) -> None:
        self._highest = max(self._highest, view.epoch)
        self._hear_of(set(view.unproven))
        self._hear_of_replicas(view.replicas)

    def _hear_of_replicas(self, replicas: tuple[Replica, ...]) -> None:
        self._hear_of({replica.number for replica in replicas})
        for replica in replicas:
            if replica.number in self._known and (replica.machine or replica.pod):
                self._met.setdefault(replica.number, replica)

    def _replicas(self) -> tuple[Replica, ...]:
        """Return those that may live, with what is known of their processes."""
        return tuple([self._met.get(number) or Replica(number) for number in self._known])

    def _meet(self, contact: Contact, message: Introduction) -> None:
        for number in message.ended:
            self._note_ended(number)
        number = message.replica.number
        if number in self._ended:  # its own end is in our introduction
            return
        self._hear_of_view(message.accepted)
        self._hear_of_replicas(message.known)
        if not self._holder(contact.seat):
            self._hear_of({number})
        contact.replica = message.replica
        contact.takes_part = message.takes_part
        contact.accepted_epoch = max(message.accepted.epoch, contact.accepted_epoch)
        if number in self._known:
            self._met[number] = message.replica
        self._learn(message.lives)
        if self._is_later_life(contact):
            self._suspect()

    def _may_act(self) -> set[int]:
        """All replicas that may have slots, as far as anybody knows who was reached."""
        found = set(self._known) - self._released
        for contact in self.contacts.values():
            if contact.replica is None and not self._is_empty(contact):
                found.add(unmet(contact.seat))
        released = {unmet(contact.seat) for contact in self.contacts.values() if contact.is_released}
        return found - released

    def _wanted(self) -> tuple[tuple[Replica, ...], tuple[int, ...]]:
        now_s = self._now()
        replicas = [self.replica]
        for contact in self.contacts.values():
            is_wanted = contact.takes_part and contact.deaf_until_s <= now_s
            if contact.replica is not None and is_wanted and self._reaches(contact):
                replicas.append(contact.replica)
        replicas.sort(key=lambda one: one.number)
        numbers = {replica.number for replica in replicas}
        return tuple(replicas), tuple(sorted(self._may_act() - numbers))

    def _reconsider(self) -> None:
        """Propose a view, if this is the coordinator and the last one does not fit any more."""
        cannot = self._is_leaving or not self._takes_part or self.has_died or self._is_late()
        if cannot or self._coordinator() != self.seat:
            self._proposal = None
            return
        proposal = self._proposal
        if proposal is not None and self._now() - proposal.at_s > self.rules.silence_s:
            for seat in proposal.waiting:
                if seat in self.contacts:
                    self.contacts[seat].deaf_until_s = self._now() + self.rules.silence_s
            self._proposal = proposal = None
        replicas, unproven = self._wanted()
        if not self.rules.grants_alone and not self._is_majority({seat_of(replica.number) for replica in replicas}):
            return
        present = self.accepted if proposal is None else proposal.view
        fits = (present.replicas, present.unproven) == (replicas, unproven)
        is_late = self._highest > present.epoch  # somebody has accepted a later one, and would not accept this
        if fits and not is_late and (proposal is not None or present is self.effective):
            return
        self._propose(replicas, unproven)

    def _propose(self, replicas: tuple[Replica, ...], unproven: tuple[int, ...]) -> None:
        epoch = ((self._highest >> EPOCH_SHIFT) + 1) << EPOCH_SHIFT | short_number(self.number)
        view = GroupView(epoch, replicas, unproven)
        others = {seat_of(replica.number) for replica in replicas} - {self.seat}
        self._highest = epoch
        self.accepted = view
        self._proposal = Proposal(view, others, self._now())
        for seat in others:
            if self.contacts[seat].is_linked:
                self._send(seat, Propose(view))
        self._commit_if_accepted()

    def _consider(self, contact: Contact, view: GroupView) -> None:
        """A proposal."""
        self._hear_of_view(view)
        if self._coordinator() != contact.seat or view.epoch < self.accepted.epoch or self.has_died:
            return
        if all(replica.number != self.number for replica in view.replicas):
            return
        self.accepted = view
        contact.accepted_epoch = view.epoch
        self._send(contact.seat, Accept(view.epoch, self._replicas()))

    def _accepted_by(self, contact: Contact, message: Accept) -> None:
        contact.accepted_epoch = max(contact.accepted_epoch, message.epoch)
        self._hear_of_replicas(message.known)
        for replica in message.known:
            if replica.number in self._ended:  # the message about it was lost with a link
                self._send(contact.seat, Ended(replica.number))
        proposal = self._proposal
        if proposal is None or proposal.view.epoch != message.epoch:
            return
        if self._may_act() - {*proposal.view.unproven, *[one.number for one in proposal.view.replicas]}:
            return  # it has told of others: another proposal names them
        proposal.waiting.discard(contact.seat)
        self._commit_if_accepted()

    def _commit_if_accepted(self) -> None:
        proposal = self._proposal
        if proposal is None or proposal.waiting:
            return
        self._proposal = None
        for contact in self._linked():
            if self._is_in(proposal.view, contact):
                self._send(contact.seat, Commit(proposal.view.epoch))
        self._take_effect()

    def _take_effect(self) -> None:
        if self.accepted.epoch > self.effective.epoch:
            self.effective = self.accepted
            self._adopt(self.effective)
            if self._has_majority() and not self.has_died:
                self._majority_s = self._now()
                self._allow(True)

    def _repair(self, contact: Contact, beat: Beat) -> None:
        """It has lost what it was sent with a link."""
        proposal = self._proposal
        if proposal is not None:
            if contact.seat in proposal.waiting and beat.accepted < proposal.view.epoch:
                self._send(contact.seat, Propose(proposal.view))
            return
        is_behind = beat.effective < self.effective.epoch and self._is_in(self.effective, contact)
        if is_behind and self._coordinator() == self.seat and self.accepted is self.effective:
            self._send(contact.seat, Propose(self.effective))
            self._send(contact.seat, Commit(self.effective.epoch))

    def _is_in(self, view: GroupView, contact: Contact) -> bool:
        return contact.replica is not None and contact.replica.number in {one.number for one in view.replicas}

    def _release_silent(self, now_s: float) -> None:
        """The operator allows it: who has been silent for so long is taken for ended, until it is heard again."""
        if not self._has_majority():
            return
        for contact in self.contacts.values():
            if now_s - max(contact.heard_s, contact.since_s) > self.rules.release_s:
                contact.is_released = True
        for number, heard_s in self._known.items():
            if now_s - heard_s > self.rules.release_s:
                self._released.add(number)

    def _judge_majority(self, now_s: float) -> None:
        if self.rules.grants_alone or self.has_died:
            return
        if self._has_majority():
            self._majority_s = now_s
            latest = max(
                [contact.accepted_epoch for contact in self.contacts.values() if self._reaches(contact)], default=0
            )
            if latest <= self.effective.epoch:
                self._allow(True)
        elif now_s - self._majority_s > self.rules.silence_s:
            self._allow(False)

    def _allow(self, allowed: bool) -> None:
        if allowed != self.may_grant:
            self.may_grant = allowed
            self._grant(allowed)


def _new(lives: dict[str, int], former: dict[str, int]) -> dict[str, int]:
    """What is in the one and not in the other."""
    return dict(lives.items() - former.items())


def follows_on(former: int, epoch: int) -> bool:
    """Nobody can have been in a view between these two."""
    return epoch >> EPOCH_SHIFT == (former >> EPOCH_SHIFT) + 1
