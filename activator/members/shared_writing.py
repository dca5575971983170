"""The writing of several replicas into one cluster: the writer of each object, and the loads that it needs.

Rules
  1. Loads that are reported in one turn of the loop are sent together at its end, LOADS_MAX in a message: a first
     request wakes its target without waiting for a tick.
  2. A member that does not read gets no more loads while LOADS_BACKLOG_BYTES_MAX wait for it. Later reports replace
     those that were left out, because each revision with requests is reported every 0.1 s.
  3. Times are the receiver's: clocks of two replicas are never compared. Totals only grow, so the next report has what
     a report that was left out had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from activator.members.group import Group
from activator.members.messages import LOADS_MAX, GroupMessage, Loads, RevisionLoad
from activator.members.writer_gate import WriterGate
from activator.messages import Load
from activator.messages.writers import Writers
from activator.runtime.clock import Now

LOADS_BACKLOG_BYTES_MAX: Final = 256 * 1024  # waiting to be sent to one member

Send = Callable[[int, GroupMessage], None]


class Links(Protocol):
    """The links of the group."""

    def can_take_loads(self, seat: int) -> bool:
        """Return True if there is a link whose other end supports `Loads` and has not fallen behind."""

    def send(self, seat: int, message: GroupMessage) -> None:
        """Send a message to the holder of this seat, if there is a link."""


class SharedWriting:
    """The writing of one replica. The source that writes calls `join`; before, loads of others are discarded."""

    def __init__(self, group: Group, links: Links, now: Now) -> None:
        self._group = group
        self._links = links
        self._now = now
        self._gate = WriterGate(group.seat, group.rules.silence_s, now)
        self._outgoing: dict[int, dict[str, RevisionLoad]] = {}  # loads of this turn, by seat and revision
        self._loop = asyncio.get_running_loop()
        self._changed: Callable[[Writers], None] | None = None
        self._loaded: Callable[[int, Load], None] | None = None
        self.writers = Writers(group.seat, is_allowed=False)
        self._sent_total = 0  # loads sent
        self._received_total = 0
        self._left_out_total = 0  # loads for members that do not read, or have an older version

    # --- for the source that writes ---

    def join(self, changed: Callable[[Writers], None], loaded: Callable[[int, Load], None]) -> None:
        """Call `changed(writers)` now and at each change, and `loaded(seat, load)` for each load of another replica."""
        self._changed, self._loaded = changed, loaded
        changed(self.writers)

    def set_writes(self, writes: bool) -> None:
        """Set whether this replica may write: it has read the cluster, and does not drain."""
        self._group.set_writes(writes)

    def report(self, seat: int, load: Load) -> None:
        """Send a load of this replica to the owner of its revision."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(seat, {})[load.key] = RevisionLoad(
            load.key, load.in_flight, load.queued, load.requests_total, load.concurrency, load.request_seconds
        )

    def totals(self) -> dict[str, int]:
        """Return how many loads were sent, received, and left out."""
        return {"sent": self._sent_total, "received": self._received_total, "left_out": self._left_out_total}

    # --- for the membership ---

    def update(self) -> None:
        """Compute the writers again. To be called when the view may have changed, and often, because waits expire."""
        group = self._group
        writers = self._gate.present_writers(group.effective, group.accepted, group.may_write())
        if writers != self.writers:
            self.writers = writers
            if self._changed is not None:
                self._changed(writers)

    def receive(self, seat: int, message: Loads) -> None:
        """Pass the loads of another replica to the source that writes, with the present time."""
        now_s = self._now()
        for one in message.loads:
            self._received_total += 1
            if self._loaded is not None:
                load = Load(
                    one.key, one.in_flight, one.queued, one.requests_total, one.concurrency, one.request_seconds, now_s
                )
                self._loaded(seat, load)

    # --- internal ---

    def _flush(self) -> None:
        """Send the loads that were reported in this turn."""
        outgoing, self._outgoing = self._outgoing, {}
        for seat, loads in outgoing.items():
            if not self._links.can_take_loads(seat):
                self._left_out_total += len(loads)
                continue
            self._sent_total += len(loads)
            for part in _parts(loads.values()):
                self._links.send(seat, Loads(part))


def _parts(loads: Iterable[RevisionLoad]) -> Iterable[tuple[RevisionLoad, ...]]:
    """Return the loads in tuples of at most LOADS_MAX."""
    whole = tuple(loads)
    return [whole[begin : begin + LOADS_MAX] for begin in range(0, len(whole), LOADS_MAX)]
