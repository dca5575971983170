"""The application of the state worker's effects to slots, limits and routes of the data plane.

Rules
  1. Only this module calls methods that change the structure of a table.
  2. Each effect takes effect within one turn. After a batch, every affected revision grants its free slots once.
  3. A late effect, whose revision or pod has been removed, is ignored: the message about that is in transit.
  4. After an exception in one revision, the revision is distrusted; effects of others are still applied. Its waiters
     are rejected at once, no request may join the queue, and the state worker is notified. It sends a new table, built
     from the model (rebuild.py), in which requests in flight continue.
  5. A large table arrives in parts, and the old one is used until the last part. No other effect of the revision may
     arrive in between, unless the state worker has abandoned this table and builds another one.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from activator.codec.json_edit import ObjectEdit
from activator.config.specs import RevisionSpec
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.tables.drains import Drains
from activator.data_plane.tables.empty_tables import EmptyTables
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.tables.rebuild import Rebuild, highest_generation
from activator.data_plane.tables.suspicions import Suspicions
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.messages import (
    DispatchQueue,
    DropRevision,
    Effect,
    FailRevision,
    FreeSlot,
    Load,
    PlacePod,
    RebuildPods,
    RebuildRevision,
    ReclaimLeases,
    SetPod,
    SetRevision,
    WithdrawPod,
)
from activator.runtime.clock import Defer, Now, TimingWheel
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, FOREVER, READY, RECOVERING, PodTracker

GRANTS_PER_TURN_MAX: Final = 256  # handovers in one turn of the loop
DISPOSED_PER_TURN: Final = 1_000  # slots of an abandoned table, 0.1 ms
ENDED_PER_TURN_MAX: Final = 100  # removed revisions whose final figures are sent, some 20 us each


class RevisionTables:
    """The throttlers and tables of all revisions of one worker."""

    def __init__(
        self,
        now: Now,
        wheel: TimingWheel,
        defer: Defer,
        events: SlotEvents,
        hooks: TableHooks,
        held: HeldBudget,
    ) -> None:
        self._now = now
        self._defer = defer
        self._events = events
        self._hooks = hooks
        self._held = held
        self.throttlers: dict[str, RevisionThrottler] = {}
        self.dropped: dict[int, RevisionThrottler] = {}  # removed, with requests in progress; by incarnation
        self._incarnation: int = 0  # number of the newest throttler
        self._active: dict[str, RevisionThrottler] = {}  # revisions with activity since the last load report
        self._drains = Drains(wheel, now, defer, self._drain_expired)
        self._empty = EmptyTables(wheel, now)
        self.distrusted: dict[str, str] = {}  # revisions that cannot be trusted, with the cause
        self._suspicions = Suspicions(wheel, self.distrusted)
        self._rebuilds: dict[str, Rebuild] = {}  # new tables that are being built
        self._abandoned: deque[TrackerTable] = deque()  # tables whose slots are to be dropped
        self._disposing: bool = False  # the next turn continues with the abandoned tables
        self.applied: dict[str, int] = {}  # by revision: effects since the creation of its table
        self._changed: set[str] = set()  # revisions changed since the last audit
        self._restructured: set[str] = set()  # revisions to which effects were applied since the last audit
        self._generation: int = 0  # the highest generation of all dropped tables
        self.transitions: dict[tuple[int, int], int] = {}  # counts by (from, to) states of slots (lb.tracker)

    def apply(self, effects: list[Effect]) -> None:
        """Apply one batch in order."""
        touched: dict[str, RevisionThrottler] = {}
        for effect in effects:
            self._record_for_audit(effect)
            try:
                throttler = self._apply_one(effect)
            except Exception as error:
                self._hooks.failed(effect, error)
                self._abandon_rebuild(effect.key)  # the new table will be sent from the beginning
                self.distrust(effect.key, f"{type(error).__name__}: {error}")
                continue
            if throttler is not None:
                touched[throttler.key] = throttler
        for throttler in touched.values():
            try:
                throttler.pump()
            except Exception as error:
                self._hooks.failed(throttler.key, error)
                self.distrust(throttler.key, f"{type(error).__name__}: {error}")

    def distrust(self, key: str, cause: str, kind: str = "") -> None:
        """Stop trusting a revision: reject its waiters now, and request a new table from the model."""
        if key in self.distrusted:
            return
        throttler = self.throttlers.get(key)
        if throttler is not None:
            self.distrusted[key] = cause
            throttler.queue.fail(f"its table is being rebuilt after an internal error ({cause})")
        self._hooks.broken(key, cause, kind)

    def is_rebuilding(self, key: str) -> bool:
        """Return True if a new table of the revision is being built, so that there is nothing to audit."""
        return key in self._rebuilds

    def stalled(self) -> list[tuple[str, str]]:
        """Return distrusted revisions and causes, except those whose rebuild has progressed since the last call."""
        stalled = []
        for key, cause in self.distrusted.items():
            rebuild = self._rebuilds.get(key)
            if rebuild is not None and rebuild.progressed:
                rebuild.progressed = False
            else:
                stalled.append((key, cause))
        return stalled

    def pop_changed(self) -> set[str]:
        """Return the revisions to audit, which had requests or changes since the last call."""
        changed, self._changed = self._changed, set()
        changed.update(self._active)
        return changed

    def pop_restructured(self, key: str) -> bool:
        """Return True if effects have been applied to the revision since the last call."""
        if key in self._restructured:
            self._restructured.discard(key)
            return True
        return False

    def activated(self, key: str) -> None:
        """Record the first request of a revision after an idle period."""
        throttler = self.throttlers.get(key)
        if throttler is not None:
            self._active[key] = throttler
            self._changed.add(key)

    def loads(self) -> list[Load]:
        """Return the loads of all revisions with requests since the last call, and once more when they become idle."""
        loads = []
        now_s = self._now()
        for key, throttler in list(self._active.items()):
            load = load_of(throttler, now_s)
            loads.append(load)
            if load.in_flight == 0 and load.queued == 0 and load.concurrency == 0:
                throttler.active = False
                del self._active[key]
                self._changed.add(key)  # its last requests have not been audited
        return loads

    def all_loads(self) -> list[Load]:
        """Return the loads of all revisions with requests."""
        now_s = self._now()
        throttlers = self.throttlers.values()
        return [load_of(each, now_s) for each in throttlers if each.in_flight() or each.queue.waiting()]

    def suspected(self, key: str, identity: str) -> None:
        """Use a suspected pod again after SUSPECT_S, if no decision about it has arrived by then (suspicions.py)."""
        throttler = self.throttlers.get(key)
        tracker = None if throttler is None else throttler.table.find_identity(identity)
        if throttler is not None and tracker is not None and tracker.suspect_until_s > 0.0:
            self._suspicions.begin(throttler, tracker)

    def end_dropped(self) -> None:
        """Report the end of removed revisions without requests, at most ENDED_PER_TURN_MAX; called periodically."""
        ended = []
        for throttler in self.dropped.values():
            if not throttler.has_requests():
                ended.append(throttler)
                if len(ended) == ENDED_PER_TURN_MAX:
                    break
        for throttler in ended:
            del self.dropped[throttler.incarnation]
            self._hooks.revision_ended(throttler)

    # --- within ---

    def _record_for_audit(self, effect: Effect) -> None:
        key = effect.key
        self._changed.add(key)
        self._restructured.add(key)
        self.applied[key] = 0 if type(effect) is RebuildRevision else self.applied.get(key, 0) + 1
        if type(effect) is DropRevision and key not in self.throttlers:
            self._forget(key)  # the revision could not be created

    def _apply_one(self, effect: Effect) -> RevisionThrottler | None:
        """Apply an effect; return the throttler that may now have free slots for its queue, or None."""
        if type(effect) is RebuildRevision:
            return self._begin_rebuild(effect)
        if type(effect) is RebuildPods:
            return self._continue_rebuild(effect)
        self._abandon_rebuild(effect.key)
        if type(effect) is SetRevision:
            return self._create_or_reconfigure(effect.spec, effect.life)
        throttler = self.throttlers.get(effect.key)
        return None if throttler is None else self._apply_to_revision(throttler, effect)

    def _apply_to_revision(self, throttler: RevisionThrottler, effect: Effect) -> RevisionThrottler | None:
        if type(effect) is SetPod:
            return self._set_pod(throttler, effect)
        if type(effect) is PlacePod:
            return self._place_pod(throttler, effect)
        if type(effect) is WithdrawPod:
            self._withdraw_pod(throttler, effect)
        elif type(effect) is FreeSlot:
            self._free_slot(throttler, effect)
        elif type(effect) is DispatchQueue:
            return throttler
        elif type(effect) is ReclaimLeases:
            throttler.reclaim()
        elif type(effect) is FailRevision:
            if throttler.key in self.distrusted:
                return None  # it rejects requests until it is rebuilt; RebuildRevision then has the present cause
            if effect.cause:
                throttler.queue.fail(effect.cause, effect.retry_s)
            else:
                throttler.recover()
        elif type(effect) is DropRevision:
            self._drop_revision(throttler)
        return None

    def _create_or_reconfigure(self, spec: RevisionSpec, life: int) -> RevisionThrottler:
        throttler = self.throttlers.get(spec.key)
        if throttler is None:
            throttler = RevisionThrottler(
                spec, self._new_table(spec), self._now, self._defer, self._events, GRANTS_PER_TURN_MAX, self._held
            )
            self._incarnation += 1
            throttler.incarnation = self._incarnation
            throttler.common_name = f"{spec.key}#{life}"
            self.throttlers[spec.key] = throttler
        else:
            table, balancing, old = throttler.table, spec.balancing, throttler.spec.balancing
            throttler.reconfigure(spec)
            if balancing.policy != old.policy:
                table.set_policy(self._hooks.make_policy(balancing.policy))
            table.set_slow_start(balancing.slow_start_s)
            table.set_threshold(balancing.trailing_fragmentation_threshold)
            table.set_max_scale(balancing.max_scale)
        self._apply_settings_and_route(throttler)
        return throttler

    def _apply_settings_and_route(self, throttler: RevisionThrottler) -> None:
        """Apply the settings of a revision that requests use, and route its hosts."""
        throttler.affinity = Affinity(throttler.spec.balancing.hash_on) if throttler.table.policy.wants_key else None
        params = throttler.spec.params
        throttler.object_edit = ObjectEdit(params.strip, params.set) if params.strip or params.set else None
        self._hooks.revision_set(throttler)

    def _new_table(self, spec: RevisionSpec) -> TrackerTable:
        # The generations of a revision that returns continue: late messages about its former slots match no new one.
        balancing = spec.balancing
        table = TrackerTable(
            self._hooks.make_policy(balancing.policy),
            balancing.max_scale,
            balancing.trailing_fragmentation_threshold,
            first_generation=self._generation,
        )
        table.on_trim = partial(self._hooks.trimmed, spec.key)
        table.set_slow_start(balancing.slow_start_s)
        return table

    def _begin_rebuild(self, effect: RebuildRevision) -> RevisionThrottler | None:
        key = effect.key
        throttler = self.throttlers.get(key)
        if throttler is None:
            throttler = self._create_or_reconfigure(effect.spec, effect.life)
        self._abandon_rebuild(key)
        self._generation = max(self._generation, highest_generation(throttler.table))
        rebuild = Rebuild(throttler, self._new_table(effect.spec), effect.spec, effect.failure, effect.retry_s)
        self._rebuilds[key] = rebuild
        self._place_pods(rebuild, effect.pods)
        return self._finish_rebuild(rebuild) if effect.complete else None

    def _continue_rebuild(self, effect: RebuildPods) -> RevisionThrottler | None:
        rebuild = self._rebuilds.get(effect.key)
        if rebuild is None:
            return None  # the rebuild has been abandoned
        if effect.part != rebuild.parts:  # an effect is lost with the part, so the revision is rebuilt once more
            self._abandon_rebuild(effect.key)
            self._hooks.broken(effect.key, f"part {rebuild.parts} of its new table was lost", "")
            return None
        rebuild.parts += 1
        rebuild.progressed = True
        self._place_pods(rebuild, effect.pods)
        return self._finish_rebuild(rebuild) if effect.complete else None

    def _place_pods(self, rebuild: Rebuild, pods: tuple[PlacePod, ...]) -> None:
        rebuild.make_slots(len(pods))
        for pod in pods:
            tracker = rebuild.place(pod)
            if tracker is None:
                self._hooks.pod_unplaced(pod.key, pod.identity)
            elif tracker.attachment is None:
                self._hooks.pod_placed(tracker, rebuild.spec)
                rebuild.placed.append(tracker)

    def _finish_rebuild(self, rebuild: Rebuild) -> RevisionThrottler:
        throttler = rebuild.throttler
        removal = rebuild.finish()
        del self._rebuilds[throttler.key]
        for tracker in removal.draining:
            self._drains.cancel(tracker)
        throttler.reconfigure(rebuild.spec)
        self._apply_settings_and_route(throttler)
        for attachment in removal.attachments:
            self._hooks.pod_withdrawn(attachment)
        for identity in removal.gone:
            self._hooks.pod_drained(throttler.key, identity)
        for tracker in removal.leaving:
            self._drain(throttler, tracker, throttler.spec.drain_timeout_s)
        now_s = self._now()
        for tracker, until_s in removal.suspected:
            if until_s == FOREVER:  # a single-use pod
                throttler.table.suspect(tracker, FOREVER)
            elif until_s > now_s:  # otherwise it has expired while the revision was distrusted
                throttler.table.suspect(tracker, min(until_s, now_s + SUSPECT_S))
                self._suspicions.begin(throttler, tracker)
        self.distrusted.pop(throttler.key, None)
        throttler.queue.set_failure(rebuild.failure, rebuild.retry_s)
        self._abandoned.append(removal.table)
        if not self._disposing:
            self._dispose()
        return throttler

    def _abandon_rebuild(self, key: str) -> None:
        """Discard an incomplete table, and close the pools created for it; another one will be built."""
        rebuild = self._rebuilds.pop(key, None)
        if rebuild is not None:
            self._generation = max(self._generation, rebuild.table.generation)
            for tracker in rebuild.placed:
                if tracker.attachment is not None:
                    self._hooks.pod_withdrawn(tracker.attachment)

    def _dispose(self) -> None:
        """Drop slots of abandoned tables."""
        self._disposing = False
        table = self._abandoned.popleft()
        if table.dispose(DISPOSED_PER_TURN):
            self._abandoned.appendleft(table)
        if self._abandoned:
            self._defer(self._dispose)
            self._disposing = True

    def _drop_revision(self, throttler: RevisionThrottler) -> None:
        del self.throttlers[throttler.key]
        self._active.pop(throttler.key, None)
        self._forget(throttler.key)
        self._hooks.revision_dropped(throttler)
        # First: requests that wait for a connection to one of the pods are rejected, and must not rejoin the queue.
        throttler.remove()
        table = throttler.table
        for tracker in table.slots[: table.length]:
            if tracker.attachment is not None and tracker.state != DRAINING:
                self._drain(throttler, tracker, throttler.spec.drain_timeout_s)
        self._generation = max(self._generation, table.generation)
        self.dropped[throttler.incarnation] = throttler

    def _forget(self, key: str) -> None:
        """Forget all state kept under the name of a revision; the state worker restarts its counts, too."""
        self.applied.pop(key, None)
        self._restructured.discard(key)
        self.distrusted.pop(key, None)
        self._abandon_rebuild(key)

    def _place_pod(self, throttler: RevisionThrottler, effect: PlacePod) -> RevisionThrottler | None:
        table = throttler.table
        first = table.capacity == 0
        other = table.find(effect.address)
        if other is not None and other.identity != effect.identity and other.state != DRAINING:
            self._drain(throttler, other, throttler.spec.drain_timeout_s)  # an address belongs to the newest pod
        former = table.find_identity(effect.identity)
        before = EMPTY if former is None else former.state
        tracker = table.add(effect.identity, effect.address, effect.limit, effect.state)
        if tracker is None:
            self._hooks.pod_unplaced(effect.key, effect.identity)
            return None
        older = tracker.older_at_address
        while older is not None:
            if older.in_flight > 0 and older.attachment is not None:
                self._hooks.address_taken(older.attachment)
            older = older.older_at_address
        self._count_transition(before, effect.state)
        table.set_weight(tracker, effect.weight)
        table.set_far(tracker, effect.is_far)
        tracker.epoch = effect.epoch
        self._hooks.pod_placed(tracker, throttler.spec)
        throttler.queue.pod_placed(tracker)
        return self._pod_ready(throttler, effect, first)

    def _set_pod(self, throttler: RevisionThrottler, effect: SetPod) -> RevisionThrottler | None:
        tracker = throttler.table.find_identity(effect.identity)
        if tracker is None or tracker.state == DRAINING:
            return None
        first = throttler.table.capacity == 0
        throttler.table.set_weight(tracker, effect.weight)
        throttler.table.set_far(tracker, effect.is_far)
        throttler.table.set_limit(tracker, effect.limit)
        self._count_transition(tracker.state, effect.state)
        throttler.table.set_state(tracker, effect.state)
        tracker.epoch = effect.epoch
        return self._pod_ready(throttler, effect, first)

    def _pod_ready(self, throttler: RevisionThrottler, pod: PlacePod | SetPod, first: bool) -> RevisionThrottler | None:
        """Report a pod that may take requests to the queue, and return the throttler. `first`: no other pod may."""
        if pod.limit > 0 and pod.state in {READY, RECOVERING}:
            throttler.queue.pod_ready(first)
            return throttler
        return None

    def _withdraw_pod(self, throttler: RevisionThrottler, effect: WithdrawPod) -> None:
        table = throttler.table
        tracker = table.find_identity(effect.identity)
        if tracker is None:
            self._hooks.pod_drained(throttler.key, effect.identity)  # it has never had a slot here
            return
        if tracker.state == DRAINING:
            return
        self._drain(throttler, tracker, effect.drain_timeout_s)
        if table.capacity == 0 and table.placed == 0:
            throttler.queue.was_ready = False  # at zero again: the next request waits for a start

    def _drain(self, throttler: RevisionThrottler, tracker: PodTracker, timeout_s: float) -> None:
        """Drain a pod: free its slot now, or after its requests have ended or `timeout_s` has passed."""
        identity = tracker.identity
        attachment = tracker.attachment
        self._count_transition(tracker.state, DRAINING)
        freed = throttler.table.drain(tracker)
        if attachment is not None:
            self._hooks.pod_withdrawn(attachment)
        if freed:
            self._slot_freed(throttler, tracker, identity)
            return
        if throttler.queue.removed and tracker.in_flight == 0:
            return  # all its requests waited for a connection, and ended when the pool was closed
        self._drains.begin(throttler, tracker, timeout_s)

    def _count_transition(self, before: int, after: int) -> None:
        if before != after:
            self.transitions[before, after] = self.transitions.get((before, after), 0) + 1

    def _free_slot(self, throttler: RevisionThrottler, effect: FreeSlot) -> None:
        table = throttler.table
        if effect.slot >= len(table.slots):
            return
        tracker = table.slots[effect.slot]
        if tracker.generation == effect.generation and tracker.state == DRAINING:
            identity = tracker.identity
            table.free(tracker)
            self._slot_freed(throttler, tracker, identity)

    def _slot_freed(self, throttler: RevisionThrottler, tracker: PodTracker, identity: str) -> None:
        self._count_transition(DRAINING, EMPTY)
        throttler.verdicts.pod_left(tracker)
        self._empty.slot_freed(throttler)
        self._hooks.pod_drained(throttler.key, identity)

    def _drain_expired(self, throttler: RevisionThrottler, tracker: PodTracker) -> None:
        """Report a slot to be freed, whose drain timed out and whose requests have been ended."""
        if not throttler.queue.removed:  # the slots of a removed revision are dropped with its table
            self._hooks.drain_expired(throttler.key, tracker.slot, tracker.generation)


def load_of(throttler: RevisionThrottler, now_s: float) -> Load:
    """Return the current load of a revision."""
    request_seconds = 0.0
    concurrency = 0
    if throttler.counters.has_traffic():
        traffic = throttler.counters.traffic
        request_seconds = traffic.request_seconds_at(now_s)
        concurrency = traffic.concurrency
    oldest = throttler.queue.waiters.first() if throttler.queue.waiters.length != 0 else None
    return Load(
        throttler.key,
        max(throttler.in_flight() - throttler.counters.quiet, 0),
        throttler.queue.waiting() + throttler.gathering,
        throttler.counters.requests_total - throttler.counters.quiet_total,
        concurrency,
        request_seconds,
        now_s,
        0.0 if oldest is None else oldest.asked_s,
    )
