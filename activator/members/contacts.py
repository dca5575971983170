"""A replica's knowledge of the others: which are reachable, may be alive, hold a seat, or have ended.

`Group` (group.py) reports each event and queries the result; nothing here sends a message or calls back. The numbers of
rules refer to group.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from activator.members.messages import GroupView, Replica
from activator.members.numbers import seat_of, unmet
from activator.runtime.clock import Now

ENDED_MAX: Final = 10_000  # replicas whose end is remembered; beyond that, the oldest is forgotten


class GroupRules(msgspec.Struct, frozen=True):
    """The operator's settings of a group.

    `silence_s`: a replica that sends nothing for longer is unreachable. `release_s`: a replica that is silent for
    longer is declared ended, where `releases_silent` allows that. `grants_alone`: grant without a majority.
    """

    silence_s: float = 1.0
    release_s: float = 10.0
    releases_silent: bool = False
    grants_alone: bool = False


class Contact:
    """Another seat of the roster."""

    def __init__(self, seat: int, now_s: float) -> None:
        self.seat = seat
        self.replica: Replica | None = None  # the last life that has sent `Hello`, unless that has ended
        self.is_linked: bool = False
        self.takes_part: bool = False  # it may be in a view
        self.is_released: bool = False  # silent for longer than `release_s`, where the operator allows that
        self.silent_since_s: float = float("-inf")  # time of its last message, plus later pauses of this process
        self.message_s: float = float("-inf")  # time of its last message
        self.added_s = now_s  # when the roster got the seat
        self.vacant_s: float = float("-inf")  # when a connection to its address was last refused
        self.excluded_until_s: float = float("-inf")  # no view includes it before: it did not accept one in time
        self.accepted_epoch: int = 0  # epoch of the latest view that it reported as accepted
        self.owned: int = 0  # revisions that its data planes own, by its own report
        self.held: int = 0  # the part of `owned` whose slots it cannot grant yet

    def is_in(self, view: GroupView) -> bool:
        """Return True if the replica that has this seat is a member of the view."""
        return self.replica is not None and self.replica.number in {one.number for one in view.replicas}

    def forget_life(self) -> None:
        """Forget the life that has the seat."""
        self.replica = None
        self.takes_part = False
        self.accepted_epoch = 0


class Contacts:
    """The other seats of the roster, and the replicas of the group that may be alive or have ended."""

    def __init__(self, number: int, rules: GroupRules, now: Now) -> None:
        self.by_seat: dict[int, Contact] = {}
        self.identified: dict[int, Replica] = {}  # replicas that may be alive and whose processes are known
        self.ended: dict[int, None] = {}  # replicas whose end is proven; the oldest first
        self._number = number
        self._seat = seat_of(number)
        self._rules = rules
        self._now = now
        # Replicas that may be alive, with the time of their last message, in the order in which they became known: the
        # first one of a seat holds it.
        self._alive: dict[int, float] = {}
        self._released: set[int] = set()  # replicas of `_alive` that were silent for `release_s`, where that is allowed

    # --- events ---

    def set_roster(self, seats: set[int]) -> None:
        """Set the seats of the roster. The holder of a seat that is removed gave it up, or has provably ended."""
        for seat in list(self.by_seat):
            if seat not in seats:
                del self.by_seat[seat]
        for seat in seats:
            if seat != self._seat and seat not in self.by_seat:
                self.by_seat[seat] = Contact(seat, self._now())

    def note_message(self, contact: Contact) -> None:
        """Register that a message of this contact has arrived."""
        now_s = self._now()
        contact.silent_since_s = contact.message_s = now_s
        contact.is_released = False
        if contact.replica is not None and contact.replica.number in self._alive:
            self._alive[contact.replica.number] = now_s
            self._released.discard(contact.replica.number)

    def note_pause(self, seconds: float) -> None:
        """Extend all deadlines by a time in which this process did not run, and could not receive a message."""
        for contact in self.by_seat.values():
            contact.silent_since_s += seconds
        if seconds:
            self._alive = {number: since_s + seconds for number, since_s in self._alive.items()}

    def note_hello(self, contact: Contact, replica: Replica) -> None:
        """Register the life that is at the other end of the link to this seat."""
        if not self.holder(contact.seat):
            self.note_alive({replica.number})
        contact.replica = replica
        if replica.number in self._alive:
            self.identified[replica.number] = replica

    def note_alive(self, numbers: Iterable[int]) -> None:
        """Register that these replicas may be alive, unless their end is proven."""
        for number in sorted({*numbers} - self.ended.keys() - {self._number}):
            if number != unmet(seat_of(number)):
                self._alive.setdefault(number, self._now())

    def note_replicas(self, replicas: tuple[Replica, ...]) -> None:
        """Register that these replicas may be alive, with the processes that are given."""
        self.note_alive(replica.number for replica in replicas)
        for replica in replicas:
            if replica.number in self._alive and (replica.machine or replica.pod):
                self.identified.setdefault(replica.number, replica)

    def note_ended(self, number: int) -> None:
        """Register that the end of another replica is proven."""
        if number == unmet(seat_of(number)):
            return
        self.ended.pop(number, None)
        self.ended[number] = None
        self._alive.pop(number, None)
        self.identified.pop(number, None)
        self._released.discard(number)
        contact = self.by_seat.get(seat_of(number))
        if contact is not None and contact.replica is not None:
            if contact.replica.number == number:
                contact.forget_life()
            else:  # a later life that has waited for this
                self.note_alive({contact.replica.number})
                if contact.replica.number in self._alive:
                    self.identified[contact.replica.number] = contact.replica
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def release_silent(self) -> None:
        """Count replicas and seats that were silent for `release_s` as ended, until one of them sends a message."""
        now_s = self._now()
        for contact in self.by_seat.values():
            if now_s - max(contact.silent_since_s, contact.added_s) > self._rules.release_s:
                contact.is_released = True
        for number, since_s in self._alive.items():
            if now_s - since_s > self._rules.release_s:
                self._released.add(number)

    # --- one seat ---

    def replica_at(self, seat: int) -> int:
        """Return the number of the life that has the seat, as far as it is known; else 0."""
        contact = self.by_seat.get(seat)
        return 0 if contact is None or contact.replica is None else contact.replica.number

    def processes_of(self, seat: int) -> tuple[tuple[int, int], ...]:
        """Return PID and start time of each data plane of this seat that is a process of its own."""
        contact = self.by_seat.get(seat)
        if contact is None or contact.replica is None:
            return ()
        return tuple([(one.process, one.started) for one in contact.replica.data_planes if one.process])

    def is_taken(self, seat: int, number: int) -> bool:
        """Return True if another life of the seat than `number` is linked and reachable (rule 6).

        That life is alive, so `number` may not take its seat.
        """
        contact = self.by_seat.get(seat)
        if contact is None or contact.replica is None or not contact.is_linked:
            return False
        return contact.replica.number != number and self.reaches(contact)

    def reaches(self, contact: Contact) -> bool:
        """Return True if it sent a message within `silence_s` (rule 1) and no later life has taken its seat."""
        if contact.replica is None or self._now() - contact.silent_since_s > self._rules.silence_s:
            return False
        return not self.is_later_life(contact)

    def is_empty(self, contact: Contact) -> bool:
        """Return True if no replica has the seat (rule 5)."""
        if contact.replica is not None or self._now() - contact.vacant_s > self._rules.silence_s:
            return False
        return not self.holder(contact.seat)

    def holder(self, seat: int) -> int:
        """Return the life that has this seat: the first known one that may be alive; 0 if there is none."""
        return next((one for one in self._alive if seat_of(one) == seat and one not in self._released), 0)

    def is_later_life(self, contact: Contact) -> bool:
        """Return True if the linked life may not take part, because a former one of its seat may be alive (rule 6)."""
        return contact.replica is not None and self.holder(contact.seat) not in (0, contact.replica.number)

    # --- all seats ---

    def linked(self) -> list[Contact]:
        """Return the contacts that have a link."""
        return [contact for contact in self.by_seat.values() if contact.is_linked]

    def reachable(self) -> list[Contact]:
        """Return the contacts whose holders are reachable."""
        return [contact for contact in self.by_seat.values() if self.reaches(contact)]

    def reached(self) -> set[int]:
        """Return the reachable seats, the own one included."""
        return {self._seat, *[contact.seat for contact in self.reachable()]}

    def recent(self) -> list[Contact]:
        """Return the contacts whose last message is at most `silence_s` old, pauses of this process included."""
        silence_s = self._rules.silence_s
        return [one for one in self.by_seat.values() if one.replica and self._now() - one.message_s <= silence_s]

    def candidates(self) -> list[Replica]:
        """Return the other replicas that a proposed view would have: reachable, and ready to take part."""
        now_s = self._now()
        return [
            one.replica
            for one in self.reachable()
            if one.replica is not None and one.takes_part and one.excluded_until_s <= now_s
        ]

    def unreached(self) -> list[int]:
        """Return the seats of the roster whose holders are not reachable."""
        return [contact.seat for contact in self.by_seat.values() if not self.reaches(contact)]

    def silent(self) -> list[int]:
        """Return the replicas that are not reachable, and are not known to have ended."""
        reached = {self._number, *[one.replica.number for one in self.reachable() if one.replica]}
        return sorted(self._alive.keys() - reached)

    def alive(self) -> tuple[Replica, ...]:
        """Return the replicas that may be alive, with their processes where these are known."""
        return tuple([self.identified.get(number) or Replica(number) for number in self._alive])

    def known(self, numbers: Iterable[int]) -> tuple[Replica, ...]:
        """Return those of these replicas whose processes are known."""
        return tuple([self.identified[number] for number in numbers if number in self.identified])

    def may_act(self) -> set[int]:
        """Return the replicas that may use slots, as far as any reachable replica knows."""
        found = set(self._alive) - self._released
        for contact in self.by_seat.values():
            if contact.replica is None and not self.is_empty(contact):
                found.add(unmet(contact.seat))
        released = {unmet(contact.seat) for contact in self.by_seat.values() if contact.is_released}
        return found - released

    def unproven(self, view: GroupView) -> list[int]:
        """Return the replicas that are not in this view and are not known to have ended."""
        return sorted(self.may_act() - {one.number for one in view.replicas})

    def are_all_known(self) -> bool:
        """Return True if the holder of each seat has sent `Hello`, or the seat has none."""
        return all(contact.replica is not None or self.is_empty(contact) for contact in self.by_seat.values())

    def possible(self) -> set[int]:
        """Return the seats that may be in use, the own one included."""
        taken = [one.seat for one in self.by_seat.values() if not one.is_released and not self.is_empty(one)]
        return {self._seat, *taken}

    def is_majority(self, seats: set[int]) -> bool:
        """Return True if these are more than half of the possible seats, or half of them with the lowest one."""
        possible = self.possible()
        return 2 * len(seats) > len(possible) or (2 * len(seats) == len(possible) and min(possible) in seats)

    def has_majority(self) -> bool:
        """Return True if the reachable seats, with the own one, are a majority."""
        return self.is_majority(self.reached())

    def describe(self) -> list[dict[str, object]]:
        """Return number, state and data planes of each seat, for the admin API."""
        return [
            {
                "seat": contact.seat,
                "state": self._state_of(contact),
                "data_planes": 0 if contact.replica is None else len(contact.replica.data_planes),
            }
            for contact in self.by_seat.values()
        ]

    def _state_of(self, contact: Contact) -> str:
        if self.reaches(contact):
            return "reached"
        if contact.is_released:
            return "released"
        return "vacant" if self.is_empty(contact) else "silent"
