"""Judges the events of a group of members (activator/workers/trace.py), from the simulation or from a real run.

    python -m tests.simulation.checker FOLDER       of a run with OWNERSHIP_TRACE=FOLDER

It knows what members say to each other, and nothing of how they decide.

Rules that must hold
  1. Epochs of a member go up, and a view has the same members for all.
  2. Of a revision, one member at most grants in one epoch, and only between `Began` and `Ceased`.
  3. A member begins to grant when all others of its view, and all unproven ones, have registered in the view in which
     it began to own, or in a later one, over their present link.
  4. What is heard over a link is what was sent, in order.
  5. What a borrower says carries the epoch of its last registration over the link, which is its first word there.
  6. A member gives back, or registers, only slots that it was granted in the view that it is in, or that it has
     numbered itself; and each one that it has given back is gone.
  7. A pod has no more requests than its limit.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from heapq import merge
from pathlib import Path

from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    MemberMessage,
    Queued,
    Recall,
    Refused,
    Register,
    Registered,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    Want,
)
from activator.workers.trace import (
    SUFFIX,
    Adopted,
    Began,
    Ceased,
    Linked,
    Received,
    Sent,
)
from tests.simulation.trace_events import AnyEvent, Left, Used, events_of

_OF_BORROWERS = (Want, Cancel, Released, Returned, TrialOver, Suspected)
_OF_OWNERS = (Queued, Granted, Refused, Recall, Revoked)


class TraceError(AssertionError):
    """A rule does not hold."""


class _Member:
    def __init__(self) -> None:
        self.view = Adopted(0.0, 0, 0, (), ())
        self.linked: set[int] = set()
        self.links: dict[int, int] = {}  # by peer: how many there were, which each end counts alike
        self.said: dict[int, int] = {}  # by peer: the epoch of the last registration over the link
        self.heard: dict[int, int] = {}  # by peer: what it has registered
        self.grants: set[str] = set()
        self.slots: dict[str, set[int]] = {}  # by key: what it may use
        self.gone: set[int] = set()


class Checker:
    """`take` raises TraceError."""

    def __init__(self) -> None:
        self.events = 0
        self._members: dict[int, _Member] = {}
        self._views: dict[int, Adopted] = {}
        self._granting: dict[tuple[str, int], int] = {}
        self._under_way: dict[tuple[int, int, int], deque[MemberMessage]] = {}  # sender, receiver, and which link
        self._in_use: dict[str, int] = {}

    def take(self, event: AnyEvent) -> None:
        """The next one."""
        self.events += 1
        member = self._members.get(event.member)
        if member is None:
            member = self._members[event.member] = _Member()
        if isinstance(event, Sent):
            self._sent(event, member)
        elif isinstance(event, Received):
            self._heard(event, member)
        elif isinstance(event, Used):
            count = self._in_use[event.pod] = self._in_use.get(event.pod, 0) + 1
            _expect(count <= event.limit, event, f"{count} requests are at the pod")
        elif isinstance(event, Left):
            self._in_use[event.pod] -= 1
        elif isinstance(event, Adopted):
            self._adopted(event, member)
        elif isinstance(event, Began):
            self._began(event, member)
        elif isinstance(event, Ceased):
            member.grants.discard(event.key)
        elif isinstance(event, Linked):
            _expect(event.peer not in member.linked, event, "there is a link already")
            member.linked.add(event.peer)
            member.links[event.peer] = member.links.get(event.peer, 0) + 1
        else:
            member.linked.discard(event.peer)
            member.said.pop(event.peer, None)
            member.heard.pop(event.peer, None)

    def _adopted(self, event: Adopted, member: _Member) -> None:
        if event.epoch <= member.view.epoch:
            return  # it ignores that
        first = self._views.setdefault(event.epoch, event)
        is_same = (first.members, first.unproven) == (event.members, event.unproven)
        _expect(is_same, event, f"member {first.member} has another view of this epoch")
        member.view = event

    def _began(self, event: Began, member: _Member) -> None:
        view = member.view
        _expect(event.member in view.members, event, "it is not in its view")
        for other in {*view.members, *view.unproven} - {event.member}:
            registered = member.heard.get(other, 0)
            _expect(registered >= event.since, event, f"member {other} has registered in {registered}")
        member.grants.add(event.key)

    # --- what is said ---

    def _sent(self, event: Sent, member: _Member) -> None:
        message = event.message
        _expect(event.peer in member.linked, event, "there is no link")
        link = (event.member, event.peer, member.links[event.peer])
        self._under_way.setdefault(link, deque()).append(message)
        if isinstance(message, _OF_BORROWERS):
            said = member.said.get(event.peer, 0)
            _expect(message.epoch == said, event, f"its last registration over this link is of {said}")
        if isinstance(message, Register | Registered):
            _expect(message.epoch == member.view.epoch, event, f"it is in the view {member.view.epoch}")
        if isinstance(message, Register):
            self._named(event, message, member)
        elif isinstance(message, Registered):
            member.said[event.peer] = message.epoch
        elif isinstance(message, Granted):
            self._granted(event, message, member)
        elif isinstance(message, Released):
            self._given_back(event, message.key, message.slot, member)
        elif isinstance(message, Returned):
            for slot in message.slots:
                self._given_back(event, message.key, slot, member)

    def _granted(self, event: Sent, message: Granted, member: _Member) -> None:
        _expect(message.key in member.grants, event, "it has not begun to grant")
        granting = self._granting.setdefault((message.key, message.epoch), event.member)
        _expect(granting == event.member, event, f"member {granting} grants in this epoch")

    def _named(self, event: Sent, message: Register, member: _Member) -> None:
        slots = member.slots.setdefault(message.key, set())
        for held in message.slots:
            _expect(held.slot not in member.gone, event, f"slot {held.slot} was given back")
            is_own = held.slot >> 40 == event.member
            _expect(is_own or held.slot in slots, event, f"slot {held.slot} was not granted to it")
        member.slots[message.key] = {held.slot for held in message.slots}

    def _given_back(self, event: Sent, key: str, slot: int, member: _Member) -> None:
        _expect(slot not in member.gone, event, f"slot {slot} was given back before")
        _expect(slot in member.slots.get(key, ()), event, f"slot {slot} was not granted to it, or not registered")
        member.slots[key].discard(slot)
        member.gone.add(slot)

    def _heard(self, event: Received, member: _Member) -> None:
        message = event.message
        under_way = self._under_way.get((event.peer, event.member, member.links.get(event.peer, 0)), deque())
        _expect(bool(under_way) and under_way.popleft() == message, event, "that is not what was sent next")
        if isinstance(message, Registered):
            member.heard[event.peer] = max(message.epoch, member.heard.get(event.peer, 0))
        elif isinstance(message, Granted) and message.epoch == member.view.epoch:
            member.slots.setdefault(message.key, set()).add(message.slot)
        elif isinstance(message, Revoked):
            member.slots.get(message.key, set()).discard(message.slot)


def _expect(holds: bool, event: AnyEvent, what: str) -> None:
    if not holds:
        raise TraceError(f"{event}: {what}")


def check(events: Iterable[AnyEvent]) -> int:
    """How many there are. Raises TraceError."""
    checker = Checker()
    for event in events:
        checker.take(event)
    return checker.events


def read(folder: Path) -> Iterable[AnyEvent]:
    """Of all members, by time."""
    files = [list(events_of(path.read_bytes())) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return merge(*files, key=lambda event: event.at_s)


def main() -> int:
    print(f"{check(read(Path(sys.argv[1])))} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
