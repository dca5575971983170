"""What replicas share that write into one cluster: who writes for which object, and the loads that its owner needs.

Rules
  1. Loads that come in one turn of the loop go out together at its end, LOADS_MAX in a message: a first request wakes
     its target without waiting for a tick.
  2. A member that does not read is told nothing beyond LOADS_BACKLOG_BYTES_MAX: what is left out is said again, since
     what carries requests is reported every 0.1 s.
  3. Times are the receiver's: clocks of two replicas are never compared. A link has sums that only grow, so what a
     report that was left out had said stands in the next one.
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
    """Those of the group."""

    def can_take_loads(self, seat: int) -> bool:
        """There is a link whose other end knows what they are, and reads."""

    def say(self, seat: int, message: GroupMessage) -> None: ...


class SharedWriting:
    """Of one replica. Whoever writes joins with `changed(writers)` and `heard(seat, load)`; before, nothing is told."""

    def __init__(self, group: Group, links: Links, now: Now) -> None:
        self._group = group
        self._links = links
        self._now = now
        self._gate = WriterGate(group.seat, group.rules.silence_s, now)
        self._outgoing: dict[int, dict[str, RevisionLoad]] = {}
        self._loop = asyncio.get_running_loop()
        self._changed: Callable[[Writers], None] | None = None
        self._heard: Callable[[int, Load], None] | None = None
        self.writers = Writers(group.seat, is_allowed=False)
        self._sent_total = 0  # loads
        self._received_total = 0
        self._left_out_total = 0  # of members that do not read, or are of an older version

    # --- for whoever writes ---

    def join(self, changed: Callable[[Writers], None], heard: Callable[[int, Load], None]) -> None:
        """`changed` is called at once, and at each change."""
        self._changed, self._heard = changed, heard
        changed(self.writers)

    def set_writes(self, writes: bool) -> None:
        """Whether this replica is one that may write: it has read the cluster, and does not drain."""
        self._group.set_writes(writes)

    def tell(self, seat: int, load: Load) -> None:
        """A load of this replica, to the owner of its revision."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(seat, {})[load.key] = RevisionLoad(
            load.key, load.in_flight, load.queued, load.requests_total, load.concurrency, load.request_seconds
        )

    def totals(self) -> dict[str, int]:
        """Loads, by what became of them."""
        return {"sent": self._sent_total, "received": self._received_total, "left_out": self._left_out_total}

    # --- for the membership ---

    def look(self) -> None:
        """Views may have changed, or the time is over for which something waited."""
        group = self._group
        writers = self._gate.judge(group.effective, group.accepted, group.may_write())
        if writers != self.writers:
            self.writers = writers
            if self._changed is not None:
                self._changed(writers)

    def receive(self, seat: int, message: Loads) -> None:
        """From another replica."""
        now_s = self._now()
        for one in message.loads:
            self._received_total += 1
            if self._heard is not None:
                load = Load(
                    one.key, one.in_flight, one.queued, one.requests_total, one.concurrency, one.request_seconds, now_s
                )
                self._heard(seat, load)

    # --- within ---

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for seat, loads in outgoing.items():
            if not self._links.can_take_loads(seat):
                self._left_out_total += len(loads)
                continue
            self._sent_total += len(loads)
            for part in _parts(loads.values()):
                self._links.say(seat, Loads(part))


def _parts(loads: Iterable[RevisionLoad]) -> Iterable[tuple[RevisionLoad, ...]]:
    whole = tuple(loads)
    return [whole[begin : begin + LOADS_MAX] for begin in range(0, len(whole), LOADS_MAX)]
