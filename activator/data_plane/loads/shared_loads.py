"""The loads of several data planes put together: policies see the requests of all of them at the pods of a revision
without a limit, each as of its last report. (A revision with a limit has an owner, which counts all by itself.)

Rules
  1. What is in flight in a table stays what is in flight here. What others have is `elsewhere` of its slots, which
     policies add to it and nothing else reads (lb/table.py).
  2. Every SHARED_LOADS_INTERVAL_S, while a revision has requests, the pods whose load has changed since they were told
     are told to all other data planes; where nothing has changed, nothing. A report looks at SLOTS_PER_REPORT_MAX slots
     and goes on from there in the next one. With more than PEERS_AT_FULL_RATE others it comes less often, so that
     nobody is sent more reports in a second than that many would send.
  3. A link that begins is told all that the others were told; what came over one that ends is void at once. So whatever
     is lost, the sum of what others have said is right after the next reports.
  4. What is told is kept by identity, so that a pod that leaves is told to have none, whatever becomes of its slot. A
     slot that is freed forgets what others have there, and a pod that comes finds what they had said of it before.
  5. A revision that gets a limit, or is dropped, is taken back in one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.data_plane.loads.messages import PodLoad, PodLoads
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline, Now, TimingWheel
from lb.tracker import DRAINING, EMPTY, PodTracker

SHARED_LOADS_INTERVAL_S: Final = 0.05  # between two reports of a data plane
SLOTS_PER_REPORT_MAX: Final = 1_000  # looked at for one report, up to 0.3 ms
PEERS_AT_FULL_RATE: Final = 7  # other data planes up to which the interval holds


class OwnLoads:
    """What others have been told of one revision."""

    def __init__(self, throttler: RevisionThrottler) -> None:
        self.throttler = throttler
        self.told: dict[str, int] = {}  # pods by identity, without those that have nothing in flight
        self.slot: int = 0  # where the next report goes on
        self.is_watched: bool = False
        self._met: int = 0  # pods with requests, in the slots before

    def changes(self, slots_max: int) -> tuple[list[PodLoad], int]:
        """The pods whose load has changed, and how many slots have been looked at. `slot` is 0 after the last."""
        found: list[PodLoad] = []
        table = self.throttler.table
        begin = self.slot
        end = min(begin + slots_max, table.length)
        for tracker in table.slots[begin:end]:
            if tracker.state == EMPTY or tracker.state == DRAINING:
                continue
            count = int(tracker.in_flight)
            if count > 0:
                self._met += 1
            self._compare(tracker.identity, count, found)
        self.slot = end
        if end >= table.length:
            if self._met != len(self.told):
                for identity in list(self.told):
                    held = table.find_identity(identity)
                    if held is None or held.state == DRAINING:
                        self._compare(identity, 0, found)
            self.slot = self._met = 0
        return found, max(end - begin, 1)

    def take_back(self) -> bool:
        """Nothing is told any more; whether anything was."""
        had = len(self.told) > 0
        self.told.clear()
        self.slot = self._met = 0
        return had

    def _compare(self, identity: str, count: int, found: list[PodLoad]) -> None:
        if self.told.get(identity, 0) == count:
            return
        found.append(PodLoad(identity, count))
        if count > 0:
            self.told[identity] = count
        else:
            del self.told[identity]


class SharedLoads(Deadline):
    """Of one data plane. `send(peer, message)` puts a message on the link to another one."""

    def __init__(self, wheel: TimingWheel, now: Now, send: Callable[[int, PodLoads], None]) -> None:
        super().__init__()
        self._wheel = wheel
        self._now = now
        self._send = send
        self._own: dict[str, OwnLoads] = {}  # by the revision's common name
        self._watched: dict[str, OwnLoads] = {}  # to be looked at, the next one first
        self._heard: dict[int, dict[str, dict[str, int]]] = {}  # by peer, revision and pod
        self._elsewhere: dict[str, dict[str, int]] = {}  # the sums over all peers

    # --- what happens here ---

    def revision_set(self, throttler: RevisionThrottler) -> None:
        """It is here, has other settings, or another table."""
        name = throttler.common_name
        own = self._own.get(name)
        if own is None or own.throttler is not throttler:
            own = self._own[name] = OwnLoads(throttler)
        if not _is_shared(throttler):
            self._take_back(name, own)
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
            self._take_back(throttler.common_name, own)

    def activated(self, throttler: RevisionThrottler) -> None:
        """Its first request after a silence has come."""
        own = self._own.get(throttler.common_name)
        if own is not None and _is_shared(throttler):
            self._watch(throttler.common_name, own)

    def pod_placed(self, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        """It has a slot; of a table that is not in use yet, `revision_set` will say more."""
        if throttler.table.find_identity(tracker.identity) is tracker:
            throttler.table.set_elsewhere(tracker, self._elsewhere_of(throttler).get(tracker.identity, 0))

    def expired(self, now_s: float) -> None:
        """It is time for a report."""
        slots_left = SLOTS_PER_REPORT_MAX
        for name in list(self._watched):
            if slots_left <= 0:
                break
            own = self._watched.pop(name)
            found, looked = own.changes(slots_left)
            slots_left -= looked
            if found:
                self._tell(PodLoads(name, False, tuple(found)))
            if own.throttler.active or own.told or own.slot != 0:
                self._watched[name] = own  # behind the others
            else:
                own.is_watched = False
        self._arm()

    # --- the others ---

    def linked(self, peer: int) -> None:
        """Nothing has come over the link yet."""
        self._heard[peer] = {}
        for name, own in self._own.items():
            if own.told:
                self._send(peer, PodLoads(name, False, tuple([PodLoad(*one) for one in own.told.items()])))
            if own.throttler.active and _is_shared(own.throttler):
                self._watch(name, own)
        self._arm()

    def unlinked(self, peer: int) -> None:
        """What it had, it has no more, as far as anybody knows."""
        heard = self._heard.pop(peer, None)
        if heard is None:
            return
        for name, pods in heard.items():
            for identity, count in pods.items():
                self._add(name, identity, -count)
        if not self._heard:  # nobody knows what was told
            for own in self._own.values():
                own.take_back()

    def receive(self, peer: int, message: PodLoads) -> None:
        """From this peer, over the present link."""
        heard = self._heard.get(peer)
        if heard is None:
            return
        name = message.key
        pods = heard.setdefault(name, {})
        if message.anew:
            for identity, count in pods.items():
                self._add(name, identity, -count)
            pods.clear()
        for identity, said in message.pods:
            count = max(said, 0)
            change = count - pods.get(identity, 0)
            if count > 0:
                pods[identity] = count
            else:
                pods.pop(identity, None)
            if change != 0:
                self._add(name, identity, change)
        if not pods:
            del heard[name]

    # --- within ---

    def _watch(self, name: str, own: OwnLoads) -> None:
        if self._heard and not own.is_watched:
            own.is_watched = True
            self._watched[name] = own
            self._arm()

    def _arm(self) -> None:
        """For the next report, where there is something to look at and somebody to tell."""
        if not self._heard:
            for own in self._watched.values():
                own.is_watched = False
            self._watched.clear()
        if self._watched and self.wheel_next is None:
            rate = max(len(self._heard) / PEERS_AT_FULL_RATE, 1.0)
            self._wheel.arm(self, self._now() + SHARED_LOADS_INTERVAL_S * rate)

    def _tell(self, message: PodLoads) -> None:
        for peer in self._heard:
            self._send(peer, message)

    def _take_back(self, name: str, own: OwnLoads) -> None:
        own.is_watched = False
        self._watched.pop(name, None)
        if own.take_back():
            self._tell(PodLoads(name, True, ()))

    def _elsewhere_of(self, throttler: RevisionThrottler) -> dict[str, int]:
        return self._elsewhere.get(throttler.common_name, {}) if _is_shared(throttler) else {}

    def _add(self, name: str, identity: str, change: int) -> None:
        """To what others have at the pod."""
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
    """Whether every data plane picks for it by itself."""
    return throttler.spec.container_concurrency <= 0 and not throttler.queue.removed
