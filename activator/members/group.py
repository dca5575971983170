"""The agreement of the replicas of a group on views, as one replica takes part in it.

A small agreement in the manner of Viewstamped Replication's view change (Liskov and Cowling 2012), without a log: the
replicas agree only on who takes part. Nothing here waits or does I/O; the clock is injected. What this replica knows of
the others is in contacts.py.

Rules
  1. A replica is reachable if it sent a message within `silence_s`. The coordinator of a replica is the lowest seat
     that it reaches, its own included; it accepts views from its coordinator only.
  2. A view takes effect when all its replicas have accepted it, and they are a majority of the seats that may be in use
     (of two halves, the one with the lowest seat). So at most one part of a partitioned group continues.
  3. A view names each seat that it does not include as unproven, unless the seat is empty: the end of its holder is
     proven (the kernel of its machine or the cluster's API reports it, the replica has sent `Leave`, or the operator
     has declared it), and a connection to its address was refused lately. Silence and the end of a connection prove
     nothing, unless the operator allows that (`on_silence: prompt`).
  4. A replica that reaches no majority grants no slots (`on_partition: strict`), until it reaches one again and no
     reachable replica has accepted a later view.
  5. A refused connection proves that the address is vacant for `silence_s`. A replica that starts takes part when it
     has met the holder of every seat or found the seat vacant; at the latest after twice that time, when no other
     replica can still take its seat for vacant.
  6. A later life of a seat takes no part until the end of the former one is proven. Where both are on one machine, its
     kernel knows the former process, and the others ask the later life about it (`Suspected`); that the two are on one
     machine is only a claim of the later one.
  7. A replica that is informed of its own end stops granting, and must start again with another number, because others
     may have granted its slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from activator.data_plane.ownership.names import MemberName
from activator.members.contacts import Contact, Contacts, GroupRules
from activator.members.messages import (
    Accept,
    Commit,
    Ended,
    GroupMessage,
    GroupView,
    Heartbeat,
    Hello,
    Leave,
    LivesChanged,
    Propose,
    Replica,
    RevisionLives,
    Suspected,
)
from activator.members.numbers import follows_on, next_epoch, seat_of
from activator.members.readiness import Readiness
from activator.runtime.clock import Now

BEAT_INTERVAL_S: Final = 0.1
SUSPECT_INTERVAL_S: Final = 0.5  # interval of the queries to the machine of a silent replica about its process
HELLO_ALIVE_MAX: Final = 512  # replicas that may be alive, in one `Hello`
HELLO_ENDED_MAX: Final = 256  # replicas that have ended, in one `Hello`
NO_VIEW: Final = GroupView()


class Proposal:
    """A view that this replica has proposed, and the seats that have not accepted it yet."""

    def __init__(self, view: GroupView, waiting: set[int], at_s: float) -> None:
        self.view = view
        self.waiting = waiting
        self.at_s = at_s


class Group:
    """One replica's part in the agreement.

    It calls `send(seat, message)` for a seat with a link; `adopt(view)` when a view takes effect here; `grant(allowed)`
    when rule 4 stops or allows grants; `learn(lives)` with the revisions of another replica; `inquire(replica)` to have
    `ended` called if it is certain that this replica has ended; and `died()` as rule 7 requires.
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
        self.contacts = Contacts(number, rules, now)
        self.accepted = NO_VIEW
        self.effective = NO_VIEW
        self.may_grant = True
        self.has_died: bool = False  # rule 7 applies
        self._highest: int = 0  # the highest known epoch
        self._proposal: Proposal | None = None
        self._started_s = now()
        self._majority_s = now()  # when this replica last reached a majority
        self._takes_part = False
        self._beat_s: float = float("-inf")  # when heartbeats were last sent
        self._ticked_s = now()
        self._is_leaving = False
        self._send = send
        self._adopt = adopt
        self._grant = grant
        self._learn = learn
        self._inquire = inquire
        self._died = died
        self._now = now
        self._suspected_s: float = float("-inf")  # when silent replicas were last inquired about
        self._readiness = Readiness(self.contacts, rules, now)

    # --- state of this replica ---

    def set_roster(self, seats: set[int]) -> None:
        """Set the seats of the roster. The holder of a seat that is removed gave it up, or has provably ended."""
        self.contacts.set_roster(seats)
        self._propose_if_outdated()

    def set_data_planes(self, data_planes: tuple[MemberName, ...]) -> None:
        """Set the data planes of this replica. A data plane that is no longer named has ended."""
        self._announce_replica(replace(self.replica, data_planes=data_planes))

    def set_process(self, machine: str, process: int, started: int, pod: str) -> None:
        """Set the process and the pod by which others can prove that this replica has ended."""
        self._announce_replica(replace(self.replica, machine=machine, process=process, started=started, pod=pod))

    def set_writes(self, writes: bool) -> None:
        """Set whether this replica may write objects of the cluster, from the next view on."""
        if writes != self.replica.writes:
            self._announce_replica(replace(self.replica, writes=writes))

    def set_lives(self, lives: RevisionLives) -> None:
        """Set the lives of the revisions of this replica, and send the changes to the others."""
        added = lives.since(self.lives)
        self.lives = lives
        if added.present or added.dropped:
            for contact in self.contacts.linked():
                self._send(contact.seat, LivesChanged(added))

    def set_owned(self, owned: int, held: int) -> None:
        """Set how many revisions the data planes here own, and for how many they cannot grant slots yet."""
        self._readiness.own = (owned, held)

    def leave(self) -> None:
        """Announce the end of this replica. No request may be in flight here, now or later."""
        self._is_leaving = True
        for contact in self.contacts.linked():
            self._send(contact.seat, Leave())

    # --- events ---

    def linked(self, seat: int, number: int) -> None:
        """Register a link to this life of the seat. A former life stays unproven (rule 6)."""
        contact = self.contacts.by_seat.get(seat)
        if contact is None:
            return
        if contact.replica is not None and contact.replica.number != number:
            contact.forget_life()
        contact.is_linked = True
        contact.vacant_s = float("-inf")
        self._send(seat, self._hello())  # reachable once its own `Hello` has arrived

    def unlinked(self, seat: int) -> None:
        """Register that the link to this seat has ended; messages in transit are lost."""
        contact = self.contacts.by_seat.get(seat)
        if contact is not None:
            contact.is_linked = False
            if self.contacts.is_later_life(contact):
                contact.forget_life()  # it was in no view

    def refused(self, seat: int) -> None:
        """Register that a connection to the seat's address was refused; call it again while that is so (rule 5)."""
        contact = self.contacts.by_seat.get(seat)
        if contact is not None:
            contact.vacant_s = self._now()
            self._propose_if_outdated()

    def ended(self, number: int) -> None:
        """Register that the end of this replica is proven, and report it to the others."""
        if number in self.contacts.ended:
            return
        self._note_ended(number)
        for contact in self.contacts.linked():
            self._send(contact.seat, Ended(number))
        self._propose_if_outdated()

    def receive(self, seat: int, message: GroupMessage) -> None:
        """Process a message from the present link to this seat."""
        contact = self.contacts.by_seat.get(seat)
        if contact is None or not contact.is_linked:
            return
        self.contacts.note_message(contact)
        if isinstance(message, Heartbeat):
            contact.accepted_epoch = max(message.accepted, contact.accepted_epoch)
            contact.owned, contact.held = message.owned, message.held
            self._highest = max(self._highest, message.accepted)
            self._resend_view(contact, message)
        elif isinstance(message, Hello):
            self._record_hello(contact, message)
        elif isinstance(message, LivesChanged):
            self._learn(message.lives)
        elif isinstance(message, Propose):
            self.contacts.note_replicas(message.known)
            self._accept_if_due(contact, message.view)
        elif isinstance(message, Accept):
            self._record_and_commit(contact, message)
        elif isinstance(message, Commit):
            if message.epoch == self.accepted.epoch and self.coordinator() == seat:
                self._adopt_accepted()
        elif isinstance(message, Ended):
            self._note_ended(message.replica)
        elif isinstance(message, Suspected):
            if message.replica.number not in self.contacts.ended and message.replica.number != self.number:
                self._inquire(message.replica)
        elif contact.replica is not None:  # Leave
            self._note_ended(contact.replica.number)
        self._propose_if_outdated()

    def tick(self) -> None:
        """Send heartbeats, and re-evaluate what depends on time. To be called some ten times in `silence_s`."""
        now_s = self._now()
        paused_s = max(now_s - self._ticked_s - BEAT_INTERVAL_S, 0.0)  # this process did not run for so long
        self._ticked_s = now_s
        self.contacts.note_pause(paused_s)
        if now_s - self._beat_s >= BEAT_INTERVAL_S and not self._is_leaving:
            self._beat_s = now_s
            for contact in self.contacts.linked():
                self._send(contact.seat, Heartbeat(self.accepted.epoch, self.effective.epoch, *self._readiness.own))
        if self.rules.releases_silent and self.contacts.has_majority():
            self.contacts.release_silent()
        if not self._takes_part and self._may_take_part(now_s):
            self._takes_part = True
            self._send_hellos()
        if now_s - self._suspected_s >= SUSPECT_INTERVAL_S:
            self._suspected_s = now_s
            self._inquire_about_silent()
        self._allow_by_majority(now_s)
        self._readiness.update_times(self.accepted, self.effective, self.may_grant)
        self._propose_if_outdated()

    # --- queries ---

    def coordinator(self) -> int:
        """Return the seat whose replica proposes views: the lowest one that is reachable."""
        return min(self.contacts.reached())

    def may_write(self) -> bool:
        """Return True if this replica may write objects of the cluster.

        It must have had messages of a majority within `silence_s` by its own clock, and none of these replicas may be
        in another view: in a view without this replica, or in a later one that this replica has not accepted. A
        process that was stopped has no such messages until it has read what arrived. An accepted view must directly
        follow the effective one; otherwise others may have acted in a view between, without this replica.
        """
        if not self.effective.epoch:
            return False
        if self.rules.grants_alone:
            return True
        effective, accepted = self.effective.epoch, self.accepted.epoch
        if accepted != effective and not follows_on(effective, accepted):
            return False
        recent = self.contacts.recent()
        for one in recent:
            is_elsewhere = one.accepted_epoch > 0 and not one.is_in(self.effective)
            is_later = one.accepted_epoch > self.effective.epoch and one.accepted_epoch != self.accepted.epoch
            if is_elsewhere or is_later:
                return False
        # A life that has just begun knows of no view, and may take part in another one at any moment.
        return self.contacts.is_majority({self.seat, *[one.seat for one in recent if one.is_in(self.effective)]})

    def unproven(self) -> list[int]:
        """Return the replicas that are not in the view and not known to have ended. Revisions that they owned wait."""
        return self.contacts.unproven(self.effective)

    def describe(self) -> list[dict[str, object]]:
        """Return number, state and data planes of each seat, for the admin API."""
        planes = len(self.replica.data_planes)
        own: dict[str, object] = {"seat": self.seat, "state": "this one", "data_planes": planes}
        return sorted([own, *self.contacts.describe()], key=lambda one: str(one["seat"]).zfill(4))

    def waiting_for(self) -> str:
        """Return why no slots are granted here, in a few words; empty if they are."""
        if self.has_died:
            return "the other members have declared this replica ended: it must be started again"
        if self._is_later_life():
            return (
                "another replica had the seat of this one, and is not known to have ended: end it, and say so at "
                f"another member with `activator member-ended {self.seat}`"
            )
        return self._readiness.waiting_for(self.effective, self.may_grant)

    def declare_vacant(self, seat: int) -> bool:
        """Count a seat without a known holder as vacant, by the operator's word; return False if that changes nothing.

        This expires, as after a refused connection. Declare it at the coordinator: a message could arrive too late.
        """
        contact = self.contacts.by_seat.get(seat)
        if contact is None or contact.replica is not None or self.contacts.is_empty(contact):
            return False
        self.refused(seat)
        return True

    # --- internal ---

    def _announce_replica(self, replica: Replica) -> None:
        self.replica = replica
        self._send_hellos()
        self._propose_if_outdated()

    def _is_later_life(self) -> bool:
        """Return True if this replica itself is a later life (rule 6)."""
        return not self.effective.epoch and self.contacts.holder(self.seat) != 0

    def _inquire_about_silent(self) -> None:
        """Check whether silent replicas have ended: on this machine, and by members on theirs or on their seat."""
        for replica in self.contacts.known(self.contacts.silent()):
            self._inquire(replica)
            for contact in self.contacts.linked():
                other = contact.replica
                is_there = other is not None and bool(other.machine) and other.machine == replica.machine
                if contact.seat == seat_of(replica.number) or is_there:
                    self._send(contact.seat, Suspected(replica))

    def _may_take_part(self, now_s: float) -> bool:
        """Return True if this replica may take part from now on (rules 5 and 6)."""
        if self._is_later_life():
            return False
        if now_s - self._started_s > 2.0 * self.rules.silence_s:
            return True
        return self.contacts.are_all_known()

    def _hello(self) -> Hello:
        ended = tuple(self.contacts.ended)[-HELLO_ENDED_MAX:]
        known = self.contacts.alive()[-HELLO_ALIVE_MAX:]
        return Hello(self.replica, self.accepted, self._takes_part, ended, self.lives, known)

    def _send_hellos(self) -> None:
        for contact in self.contacts.linked():
            self._send(contact.seat, self._hello())

    def _note_ended(self, number: int) -> None:
        if number == self.number:
            self._die()
            return
        self.contacts.note_ended(number)

    def _die(self) -> None:
        """Stop granting, because the others have declared this replica ended (rule 7)."""
        if self.has_died:
            return
        self.has_died = True
        self._proposal = None
        self._allow(False)
        self._died()

    def _note_view(self, view: GroupView) -> None:
        self._highest = max(self._highest, view.epoch)
        self.contacts.note_alive(view.unproven)
        self.contacts.note_replicas(view.replicas)

    def _record_hello(self, contact: Contact, message: Hello) -> None:
        """Record the life of the sender, and the views, replicas and revisions that it reports."""
        for number in message.ended:
            self._note_ended(number)
        number = message.replica.number
        if number in self.contacts.ended:  # its own end is in our `Hello`
            return
        self._note_view(message.accepted)
        self.contacts.note_replicas(message.known)
        self.contacts.note_hello(contact, message.replica)
        contact.takes_part = message.takes_part
        contact.accepted_epoch = max(message.accepted.epoch, contact.accepted_epoch)
        self._learn(message.lives)
        if self.contacts.is_later_life(contact):
            self._inquire_about_silent()

    def _next_view(self) -> tuple[tuple[Replica, ...], tuple[int, ...]]:
        """Return the replicas that a view should have now, and the unproven ones."""
        replicas = [self.replica, *self.contacts.candidates()]
        replicas.sort(key=lambda one: one.number)
        numbers = {replica.number for replica in replicas}
        return tuple(replicas), tuple(sorted(self.contacts.may_act() - numbers))

    def _propose_if_outdated(self) -> None:
        """Propose a view, if this is the coordinator and the last view is outdated."""
        may_not_propose = self._is_leaving or not self._takes_part or self.has_died or self._is_later_life()
        if may_not_propose or self.coordinator() != self.seat:
            self._proposal = None
            return
        proposal = self._proposal
        if proposal is not None and self._now() - proposal.at_s > self.rules.silence_s:
            for seat in proposal.waiting:
                if seat in self.contacts.by_seat:
                    self.contacts.by_seat[seat].excluded_until_s = self._now() + self.rules.silence_s
            self._proposal = proposal = None
        replicas, unproven = self._next_view()
        seats = {seat_of(replica.number) for replica in replicas}
        if not self.rules.grants_alone and not self.contacts.is_majority(seats):
            return
        present = self.accepted if proposal is None else proposal.view
        is_current = (present.replicas, present.unproven) == (replicas, unproven)
        is_outdated = self._highest > present.epoch  # a replica has accepted a later view, and would not accept this
        if is_current and not is_outdated and (proposal is not None or present is self.effective):
            return
        self._propose(replicas, unproven)

    def _propose(self, replicas: tuple[Replica, ...], unproven: tuple[int, ...]) -> None:
        epoch = next_epoch(self._highest, self.number)
        view = GroupView(epoch, replicas, unproven)
        others = {seat_of(replica.number) for replica in replicas} - {self.seat}
        self._highest = epoch
        self.accepted = view
        self._proposal = Proposal(view, others, self._now())
        for seat in others:
            if self.contacts.by_seat[seat].is_linked:
                self._send(seat, self._proposal_message(view))
        self._commit_if_accepted()

    def _proposal_message(self, view: GroupView) -> Propose:
        """Return the proposal of a view. Replicas that outlive this one can then have the end of others proven."""
        return Propose(view, self.contacts.known(view.unproven)[-HELLO_ALIVE_MAX:])

    def _accept_if_due(self, contact: Contact, view: GroupView) -> None:
        """Accept a proposed view, if it comes from the coordinator and is no older than the last one."""
        self._note_view(view)
        if self.coordinator() != contact.seat or view.epoch < self.accepted.epoch or self.has_died:
            return
        if all(replica.number != self.number for replica in view.replicas):
            return
        self.accepted = view
        contact.accepted_epoch = view.epoch
        self._send(contact.seat, Accept(view.epoch, self.contacts.alive()))

    def _record_and_commit(self, contact: Contact, message: Accept) -> None:
        contact.accepted_epoch = max(contact.accepted_epoch, message.epoch)
        self.contacts.note_replicas(message.known)
        for replica in message.known:
            if replica.number in self.contacts.ended:  # the message about it was lost with a link
                self._send(contact.seat, Ended(replica.number))
        proposal = self._proposal
        if proposal is None or proposal.view.epoch != message.epoch:
            return
        if self.contacts.may_act() - {*proposal.view.unproven, *[one.number for one in proposal.view.replicas]}:
            return  # the sender has reported other replicas: the next proposal names them
        proposal.waiting.discard(contact.seat)
        self._commit_if_accepted()

    def _commit_if_accepted(self) -> None:
        proposal = self._proposal
        if proposal is None or proposal.waiting:
            return
        self._proposal = None
        for contact in self.contacts.linked():
            if contact.is_in(proposal.view):
                self._send(contact.seat, Commit(proposal.view.epoch))
        self._adopt_accepted()

    def _adopt_accepted(self) -> None:
        if self.accepted.epoch > self.effective.epoch:
            self.effective = self.accepted
            self._adopt(self.effective)
            if self.contacts.has_majority() and not self.has_died:
                self._majority_s = self._now()
                self._allow(True)

    def _resend_view(self, contact: Contact, beat: Heartbeat) -> None:
        """Send a view again that the contact has not received, because a link ended."""
        proposal = self._proposal
        if proposal is not None:
            if contact.seat in proposal.waiting and beat.accepted < proposal.view.epoch:
                self._send(contact.seat, self._proposal_message(proposal.view))
            return
        is_behind = beat.effective < self.effective.epoch and contact.is_in(self.effective)
        if is_behind and self.coordinator() == self.seat and self.accepted is self.effective:
            self._send(contact.seat, self._proposal_message(self.effective))
            self._send(contact.seat, Commit(self.effective.epoch))

    def _allow_by_majority(self, now_s: float) -> None:
        if self.rules.grants_alone or self.has_died:
            return
        if self.contacts.has_majority():
            self._majority_s = now_s
            latest = max([contact.accepted_epoch for contact in self.contacts.reachable()], default=0)
            if latest <= self.effective.epoch:
                self._allow(True)
        elif now_s - self._majority_s > self.rules.silence_s:
            self._allow(False)

    def _allow(self, allowed: bool) -> None:
        if allowed != self.may_grant:
            self.may_grant = allowed
            self._grant(allowed)
