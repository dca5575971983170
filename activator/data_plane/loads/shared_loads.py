"""Shared loads: policies see the requests of all data planes at the pods of a revision without a limit.

Each count is as of its last report. (The owner of a revision with a limit counts all its requests itself.)

Rules
  1. The requests in flight in a table are those of this data plane. The sum of the others is `elsewhere` of its slots,
     which only policies read and add (lb/table.py).
  2. Every SHARED_LOADS_INTERVAL_S, while a revision has requests, the changed loads of its pods are reported to all
     other data planes; without changes nothing is sent. A report covers SLOTS_PER_REPORT_MAX slots, and the next one
     continues from there. With more than PEERS_AT_FULL_RATE peers the interval is longer, so that no data plane
     receives more reports per second than from that many peers.
  3. A new link begins with everything reported so far; reports over an ended link are void at once. After any loss the
     sums are therefore correct after the next reports.
  4. Reported loads are recorded by identity, so that 0 is reported for a removed pod, whatever happens to its slot. A
     freed slot loses its `elsewhere`, and a new pod gets the loads reported about it before.
  5. If a revision gets a limit or is removed, its reports are withdrawn by one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.data_plane.loads.messages import PodLoad, PodLoads
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, Now, TimingWheel
from lb.tracker import DRAINING, EMPTY, PodTracker

SHARED_LOADS_INTERVAL_S: Final = 0.05  # interval of a data plane's reports
SLOTS_PER_REPORT_MAX: Final = 1_000  # slots inspected per report, in up to 0.3 ms
PEERS_AT_FULL_RATE: Final = 7  # number of peers above which the interval grows


class OwnLoads:
    """The loads of one revision that were reported to other data planes."""

    def __init__(self, throttler: RevisionThrottler) -> None:
        self.throttler = throttler
        self.reported: dict[str, int] = {}  # by pod identity, without zeros
        self.slot: int = 0  # index at which the next report continues
        self.is_watched: bool = False  # its pods are inspected at the next reports
        self._busy_pods: int = 0  # pods with requests in the slots before `slot`

    def changes(self, slots_max: int) -> tuple[list[PodLoad], int]:
        """Inspect up to `slots_max` slots from `slot` on; return the changed loads, and the number of these slots.

        The changed loads count as reported from then on. `slot` is 0 after the end of the table.
        """
        changed: list[PodLoad] = []
        table = self.throttler.table
        begin = self.slot
        end = min(begin + slots_max, table.length)
        for tracker in table.slots[begin:end]:
            if tracker.state == EMPTY or tracker.state == DRAINING:
                continue
            count = int(tracker.in_flight)
            if count > 0:
                self._busy_pods += 1
            self._append_if_changed(tracker.identity, count, changed)
        self.slot = end
        if end >= table.length:
            if self._busy_pods != len(self.reported):
                for identity in list(self.reported):
                    found = table.find_identity(identity)
                    if found is None or found.state == DRAINING:
                        self._append_if_changed(identity, 0, changed)
            self.slot = self._busy_pods = 0
        return changed, max(end - begin, 1)

    def clear_reported(self) -> bool:
        """Clear the reported loads; return True if there were any."""
        had = len(self.reported) > 0
        self.reported.clear()
        self.slot = self._busy_pods = 0
        return had

    def _append_if_changed(self, identity: str, count: int, changed: list[PodLoad]) -> None:
        """Append the load of a pod to `changed`, and record it as reported, if it differs from the last report."""
        if self.reported.get(identity, 0) == count:
            return
        changed.append(PodLoad(identity, count))
        if count > 0:
            self.reported[identity] = count
        else:
            del self.reported[identity]


class SharedLoads(Deadline):
    """The load reports of one data plane. `send(peer, message)` puts a message on the link to a peer."""

    def __init__(self, wheel: TimingWheel, now: Now, send: Callable[[int, PodLoads], None]) -> None:
        super().__init__()
        self._wheel = wheel
        self._now = now
        self._send = send
        self._own: dict[str, OwnLoads] = {}  # by the revision's common name
        self._watched: dict[str, OwnLoads] = {}  # to be inspected, the next one first
        self._received: dict[int, dict[str, dict[str, int]]] = {}  # by peer, revision and pod
        self._elsewhere: dict[str, dict[str, int]] = {}  # sums over all peers

    # --- this data plane ---

    def revision_set(self, throttler: RevisionThrottler) -> None:
        """Report or withdraw the loads of a revision that is new or has new settings, and set those in its table."""
        name = throttler.common_name
        own = self._own.get(name)
        if own is None or own.throttler is not throttler:
            own = self._own[name] = OwnLoads(throttler)
        if not _is_shared(throttler):
            self._withdraw(name, own)
        elif throttler.active:
            self._watch(name, own)
        elsewhere = self._elsewhere_of(throttler)
        table = throttler.table
        for tracker in table.slots[: table.length]:
            if tracker.state != EMPTY:
                table.set_elsewhere(tracker, elsewhere.get(tracker.identity, 0))

    def revision_dropped(self, throttler: RevisionThrottler) -> None:
        own = self._own.pop(throttler.common_name, None)
        if own is not None:
            self._withdraw(throttler.common_name, own)

    def activated(self, throttler: RevisionThrottler) -> None:
        """Handle the first request after an idle period."""
        own = self._own.get(throttler.common_name)
        if own is not None and _is_shared(throttler):
            self._watch(throttler.common_name, own)

    def pod_placed(self, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        """Handle a pod that has been placed in a slot; in a table not in use yet, `revision_set` does this."""
        if throttler.table.find_identity(tracker.identity) is tracker:
            throttler.table.set_elsewhere(tracker, self._elsewhere_of(throttler).get(tracker.identity, 0))

    def expired(self, now_s: float) -> None:
        """Send the next report."""
        slots_left = SLOTS_PER_REPORT_MAX
        for name in list(self._watched):
            if slots_left <= 0:
                break
            own = self._watched.pop(name)
            changed, inspected = own.changes(slots_left)
            slots_left -= inspected
            if changed:
                self._broadcast(PodLoads(name, False, tuple(changed)))
            if own.throttler.active or own.reported or own.slot != 0:
                self._watched[name] = own  # behind the other revisions
            else:
                own.is_watched = False
        self._arm()

    # --- peers ---

    def linked(self, peer: int) -> None:
        """Send the loads reported so far over a new link to a peer, before any message."""
        self._received[peer] = {}
        for name, own in self._own.items():
            if own.reported:
                self._send(peer, PodLoads(name, False, tuple([PodLoad(*load) for load in own.reported.items()])))
            if own.throttler.active and _is_shared(own.throttler):
                self._watch(name, own)
        self._arm()

    def unlinked(self, peer: int) -> None:
        """Remove the loads of a peer whose link has ended."""
        received = self._received.pop(peer, None)
        if received is None:
            return
        for name, pods in received.items():
            for identity, count in pods.items():
                self._add_elsewhere(name, identity, -count)
        if not self._received:  # no peer knows earlier reports
            for own in self._own.values():
                own.clear_reported()

    def receive(self, peer: int, message: PodLoads) -> None:
        """Handle a message of a peer over its present link."""
        received = self._received.get(peer)
        if received is None:
            return
        name = message.key
        pods = received.setdefault(name, {})
        if message.anew:
            for identity, count in pods.items():
                self._add_elsewhere(name, identity, -count)
            pods.clear()
        for identity, in_flight in message.pods:
            count = max(in_flight, 0)
            change = count - pods.get(identity, 0)
            if count > 0:
                pods[identity] = count
            else:
                pods.pop(identity, None)
            if change != 0:
                self._add_elsewhere(name, identity, change)
        if not pods:
            del received[name]

    # --- within ---

    def _watch(self, name: str, own: OwnLoads) -> None:
        """Inspect the pods of a revision at the next reports, if there are peers."""
        if self._received and not own.is_watched:
            own.is_watched = True
            self._watched[name] = own
            self._arm()

    def _arm(self) -> None:
        """Set the timer for the next report, if there are peers and revisions to report."""
        if not self._received:
            for own in self._watched.values():
                own.is_watched = False
            self._watched.clear()
        if self._watched and self.wheel_next is None:
            slowdown = max(len(self._received) / PEERS_AT_FULL_RATE, 1.0)
            self._wheel.arm(self, self._now() + SHARED_LOADS_INTERVAL_S * slowdown)

    def _broadcast(self, message: PodLoads) -> None:
        for peer in self._received:
            self._send(peer, message)

    def _withdraw(self, name: str, own: OwnLoads) -> None:
        """Make all earlier reports about a revision void at the peers."""
        own.is_watched = False
        self._watched.pop(name, None)
        if own.clear_reported():
            self._broadcast(PodLoads(name, True, ()))

    def _elsewhere_of(self, throttler: RevisionThrottler) -> dict[str, int]:
        return self._elsewhere.get(throttler.common_name, {}) if _is_shared(throttler) else {}

    def _add_elsewhere(self, name: str, identity: str, change: int) -> None:
        """Add `change` to the load of other data planes at a pod."""
        pods = self._elsewhere.get(name)
        if pods is None:
            pods = self._elsewhere[name] = {}
        count = pods.get(identity, 0) + change
        if count > 0:
            pods[identity] = count
        else:
            pods.pop(identity, None)
            if not pods:
                del self._elsewhere[name]
        own = self._own.get(name)
        if own is None or not _is_shared(own.throttler):
            return
        table = own.throttler.table
        tracker = table.find_identity(identity)
        if tracker is not None:
            table.set_elsewhere(tracker, max(count, 0))


def _is_shared(throttler: RevisionThrottler) -> bool:
    """Return True if each data plane picks pods for this revision independently."""
    return throttler.spec.container_concurrency <= 0 and not throttler.queue.removed
