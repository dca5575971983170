"""A table as one would write it with a dictionary and full scans, and the machine that runs it beside the real one."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.serving_table import DRAINED, LATE, RELEASED
from lb.sizing import first_slots, grown_slots, kept_slots
from lb.table import TrackerTable
from lb.testing import Oracle, candidates
from lb.tracker import DRAINING, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING, UNLIMITED, PodTracker
from tests.lb.lb_model_pods import Lease, ModelPod
from tests.lb.lb_oracles import ORACLES

STATES = (PENDING, READY, NOT_READY, RECOVERING, QUARANTINED)
states = st.sampled_from((*STATES, READY, READY, READY))
limits = st.sampled_from((0, 1, 1, 2, 3, UNLIMITED))
identities = st.sampled_from([f"pod-{number}" for number in range(7)])
addresses = st.sampled_from([f"10.0.0.{number}:8012" for number in range(4)])
indexes = st.integers(min_value=0, max_value=1_000)
weights = st.sampled_from((0, 1, 1, 2, 7, 1_000))
windows = st.sampled_from((0.0, 2.0, 5.0))
keys = st.sampled_from((0, 1, 2, 3, (1 << 62) - 1))
latencies = st.sampled_from((0.0, 0.001, 0.5, -0.5))


class TableMachine(RuleBasedStateMachine):
    """Everything the state worker and the request path may do, in any order."""

    policy_name = "round-robin"
    steps = 0  # rules run in this class so far, in all its examples
    grown = 0
    trims_seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[int, ModelPod] = {}  # by slot
        self.leases: list[Lease] = []
        self.length = 0
        self.slots = 0
        self.age = 0
        self.trims = 0
        self.late = 0
        self.full = 0
        self.now_s = 0.0
        self.window_s = 0.0
        self.warm_from_s: float | None = None
        self.arrivals = 0

    @initialize(
        max_scale=st.sampled_from((0, 1, 2, 3, 1 << 63)),
        threshold=st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0)),
        slots_max=st.sampled_from((3, 5, 70, 150)),
        seed=st.integers(min_value=0, max_value=1 << 40),
        window_s=windows,
    )
    def start(self, max_scale: int, threshold: float, slots_max: int, seed: int, window_s: float) -> None:
        self.max_scale, self.threshold, self.slots_max = max_scale, threshold, slots_max
        self.rng = Rng(seed)
        self.table = TrackerTable(create(self.policy_name, self.rng), max_scale, threshold, slots_max)
        self.oracle: Oracle = ORACLES[self.policy_name]()
        self.table.set_slow_start(window_s)
        self.window_s = window_s

    # The state worker.

    @rule(identity=identities, address=addresses, limit=limits, state=states)
    def add(self, identity: str, address: str, limit: int, state: int) -> None:
        for slot, other in sorted(self.pods.items()):
            if other.address == address and other.identity != identity and other.state != DRAINING:
                self._drain(slot, other)
        tracker = self.table.add(identity, address, limit, state)
        for slot, pod in self.pods.items():
            if (pod.identity, pod.address) == (identity, address):
                assert tracker is self.table.slots[slot]
                if pod.state == DRAINING:  # back again: the newest
                    self.age += 1
                    pod.age = self.age
                pod.limit = limit
                self._set_state(pod, state)
                return
        free = [slot for slot in range(self.slots_max) if slot not in self.pods]
        if not free:
            assert tracker is None
            self.full += 1
            return
        assert tracker is self.table.slots[free[0]]
        if self.slots == 0:
            self.slots = first_slots(self.max_scale, self.slots_max)
        if free[0] >= self.slots:
            self.slots = grown_slots(self.slots, self.max_scale, self.slots_max)
        self.length = max(self.length, free[0] + 1)
        self.age += 1
        self.pods[free[0]] = ModelPod(identity, address, PENDING, limit, self.age, self.pods)
        self._set_state(self.pods[free[0]], state)

    @rule(start=st.integers(0, 50), count=st.integers(2, 70))
    def add_many(self, start: int, count: int) -> None:
        for number in range(start, start + count):
            self.add(f"many-{number}", f"10.0.1.{number}:8012", 1, READY)
            self.oracle.observe(self.table)

    @rule(keep=st.integers(0, 9), highest_first=st.booleans())
    def free_many(self, keep: int, highest_first: bool) -> None:
        for slot in sorted(self.pods, reverse=highest_first)[keep:]:
            self.table.free(self.table.slots[slot])
            self._left(self.pods[slot], DRAINING)
            self._gone(slot)
            self.oracle.observe(self.table)

    @precondition(lambda self: self.pods)
    @rule(index=indexes, state=states)
    def set_state(self, index: int, state: int) -> None:
        slot, pod = self._one(index)
        if pod.state == DRAINING:
            return
        self.table.set_state(self.table.slots[slot], state)
        self._set_state(pod, state)

    @precondition(lambda self: self.pods)
    @rule(index=indexes, limit=limits)
    def set_limit(self, index: int, limit: int) -> None:
        slot, pod = self._one(index)
        self.table.set_limit(self.table.slots[slot], limit)
        pod.limit = limit

    @precondition(lambda self: self.pods)
    @rule(index=indexes)
    def drain(self, index: int) -> None:
        self._drain(*self._one(index))

    @precondition(lambda self: self.pods)
    @rule(index=indexes)
    def free(self, index: int) -> None:
        slot, pod = self._one(index)
        self.table.free(self.table.slots[slot])
        self._left(pod, DRAINING)
        self._gone(slot)

    @rule()
    def drop_slots(self) -> None:
        gives = not self.pods and self.slots > 0 and self.threshold < 1.0
        assert self.table.drop_slots() == gives
        if gives:
            self.slots = self.length = 0

    @rule(threshold=st.sampled_from((0.0, 0.4, 0.5, 1.0)))
    def set_threshold(self, threshold: float) -> None:
        self.table.set_threshold(threshold)
        self.threshold = threshold
        self._trim()

    @rule(max_scale=st.sampled_from((-1, 0, 1, 2, 3, 40, 1 << 63)))
    def set_max_scale(self, max_scale: int) -> None:
        self.table.set_max_scale(max_scale)
        self.max_scale = max_scale
        if self.slots:
            wanted = first_slots(max_scale, self.slots_max)
            kept = kept_slots(self.length, max_scale, self.slots_max)
            self.slots = wanted if wanted > self.slots else min(self.slots, kept)

    @rule(name=st.sampled_from(sorted(BUILT_IN)))
    def set_policy_and_back(self, name: str) -> None:
        self.table.set_policy(create(name, self.rng))
        self.table.check_invariants()
        self.table.set_policy(create(self.policy_name, self.rng))
        self.oracle = ORACLES[self.policy_name]()
        self.oracle.observe(self.table)

    @precondition(lambda self: self.pods)
    @rule(index=indexes, weight=weights)
    def set_weight(self, index: int, weight: int) -> None:
        slot, pod = self._one(index)
        tracker = self.table.slots[slot]
        if weight != pod.weight and tracker.has_room and not tracker.warming:
            self.oracle.stamp.pop(slot, None)  # the pod goes out of its place and comes back
        self.table.set_weight(tracker, weight)
        pod.weight = weight

    @precondition(lambda self: self.pods)
    @rule(index=indexes, is_far=st.booleans())
    def set_far(self, index: int, is_far: bool) -> None:
        slot, pod = self._one(index)
        if pod.is_far != is_far:
            self.oracle.stamp.pop(slot, None)
            was_routable = pod.is_routable()
            if is_far:
                self._left(pod, pod.state)
            pod.is_far = is_far
            if not is_far and was_routable:
                self._arrived(pod)
        self.table.set_far(self.table.slots[slot], is_far)
        self._observe_graduates()

    @rule(is_far=st.booleans())
    def all_change_zones(self, is_far: bool) -> None:
        for index in range(len(self.pods)):
            self.set_far(index, is_far)

    @precondition(lambda self: self.pods)
    @rule(index=indexes, count=st.sampled_from((0, 0, 1, 2, 3, 40)))
    def set_elsewhere(self, index: int, count: int) -> None:
        slot, pod = self._one(index)
        self.table.set_elsewhere(self.table.slots[slot], count)
        pod.elsewhere = count

    @rule(window_s=windows)
    def set_slow_start(self, window_s: float) -> None:
        self.table.set_slow_start(window_s)
        if self.window_s == 0.0:
            self.warm_from_s = -1e18
        self.window_s = window_s
        if window_s == 0.0:
            for pod in self.pods.values():
                pod.warming, pod.from_s = False, None
        self._observe_graduates()

    @rule(by_s=st.sampled_from((0.5, 1.0, 3.0)))
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s

    # The request path.

    @rule(times=st.integers(min_value=1, max_value=12), key=keys)
    def pick_and_reserve(self, times: int, key: int) -> None:
        self._advance()
        for _ in range(times):
            self.oracle.observe(self.table)
            allowed = self.oracle.allowed(self.table, key, self.now_s)
            tracker = self.table.pick(key, self.now_s)
            if tracker is None:
                assert not allowed
                return
            assert any(tracker is one for one in allowed), f"{tracker!r} is none of {allowed}"
            self.oracle.picked(tracker)
            self._reserve(tracker)

    @precondition(lambda self: self.pods)
    @rule(index=indexes, key=keys)
    def pick_another(self, index: int, key: int) -> None:
        """As a request does that the pod has just failed: any other with room, and this one if there is none."""
        self._advance()
        slot, _ = self._one(index)
        avoided = self.table.slots[slot]
        fit = candidates(self.table)
        tracker = self.table.pick_other(avoided, key, self.now_s)
        others = [one for one in fit if one is not avoided]
        assert (tracker in others) if others else (tracker in fit or (tracker is None and not fit))
        if tracker is None:
            return
        self.oracle.picked(tracker)
        if avoided in fit and others:
            self.oracle.stamp.pop(slot, None)  # it went out of its place and came back
            self.oracle.observe(self.table)
        self._reserve(tracker)
        self.pick_and_reserve(4, key)

    @precondition(lambda self: self.pods)
    @rule(index=indexes)
    def reserve_exempted(self, index: int) -> None:
        slot, pod = self._one(index)
        if pod.state != DRAINING:  # such a request goes to a ready pod (throttle/revision.py)
            self._reserve(self.table.slots[slot])

    @precondition(lambda self: self.leases)
    @rule(index=indexes, latency_s=latencies, times=st.integers(min_value=1, max_value=6))
    def release_some(self, index: int, latency_s: float, times: int) -> None:
        for _ in range(min(times, len(self.leases))):
            self._release(index, latency_s)
            self.oracle.observe(self.table)

    def _release(self, index: int, latency_s: float) -> None:
        lease = self.leases.pop(index % len(self.leases))
        self._end_trial(lease)
        answer = self.table.release(lease.tracker, lease.generation, latency_s)
        if all(pod is not lease.pod for pod in self.pods.values()):
            assert answer == LATE
            self.late += 1
            return
        lease.pod.in_flight -= 1
        last = lease.pod.state == DRAINING and lease.pod.in_flight == 0
        assert answer == (DRAINED if last else RELEASED)

    @precondition(lambda self: any(lease.trial for lease in self.leases))
    @rule(index=indexes)
    def end_trial(self, index: int) -> None:
        """Something was found out, or it took long; the request goes on."""
        trials = [lease for lease in self.leases if lease.trial]
        self._end_trial(trials[index % len(trials)])
        self.oracle.observe(self.table)

    def _end_trial(self, lease: Lease) -> None:
        if lease.trial:
            lease.trial = False
            self.table.end_trial(lease.tracker, lease.generation)
            lease.pod.trials -= 1

    @precondition(lambda self: self.pods)
    @rule(index=indexes)
    def suspect(self, index: int) -> None:
        slot, pod = self._one(index)
        self.table.suspect(self.table.slots[slot], 1.5)
        pod.suspect = True

    @rule()
    def drains_that_ended_are_freed(self) -> None:
        for slot, pod in sorted(self.pods.items()):
            if pod.state == DRAINING and pod.in_flight == 0:
                assert self.table.drain(self.table.slots[slot])
                self._gone(slot)

    # What must hold after every step.

    @invariant()
    def table_keeps_its_promises(self) -> None:
        if hasattr(self, "table"):
            type(self).steps += 1  # invariants are checked once after each rule
            self.table.check_invariants()
            self.table.check_room()
            for slot in range(self.table.length):
                self.table.check_slot(slot)
            self.oracle.observe(self.table)

    @invariant()
    def table_equals_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        table = self.table
        assert (table.length, table.capacity_slots, table.used) == (self.length, self.slots, len(self.pods))
        empty = [slot for slot in range(self.length) if slot not in self.pods]
        assert table.holes + table.trailing == len(empty)
        assert table.trailing == self.length - (max(self.pods, default=-1) + 1)
        assert table.fragmentation == (len(empty) / self.length if self.length else 0.0)
        assert (table.trims, table.late_releases, table.times_full) == (self.trims, self.late, self.full)
        assert table.in_flight == sum(pod.in_flight for pod in self.pods.values())
        assert table.room == sum(pod.has_room() for pod in self.pods.values())
        assert table.capacity == sum(pod.capacity() for pod in self.pods.values())
        for slot, pod in self.pods.items():
            tracker = table.slots[slot]
            assert (tracker.identity, tracker.address, tracker.state) == (pod.identity, pod.address, pod.state)
            assert (tracker.own_limit, tracker.in_flight, tracker.trials) == (pod.limit, pod.in_flight, pod.trials)
            assert tracker.limit == pod.left() or pod.state == DRAINING
            assert (tracker.suspect_until_s != 0.0) == pod.suspect or pod.state == DRAINING
            assert (tracker.weight, tracker.warming, tracker.elsewhere) == (pod.weight, pod.warming, pod.elsewhere)
            assert tracker.is_far == pod.is_far
            if pod.warming and pod.from_s is not None:
                assert table.warm_up.ramp(tracker, self.now_s) == self._ramp(pod)

    @invariant()
    def names_lead_to_the_newest(self) -> None:
        for number in range(4):
            address = f"10.0.0.{number}:8012"
            self._assert_newest(self._find(address), [p for p in self.pods.items() if p[1].address == address])
        for number in range(7):
            identity = f"pod-{number}"
            self._assert_newest(self._of(identity), [p for p in self.pods.items() if p[1].identity == identity])

    def teardown(self) -> None:
        if not hasattr(self, "table"):
            return
        type(self).grown += self.table.grown
        type(self).trims_seen += self.table.trims
        for slot in self.pods:
            self.table.free(self.table.slots[slot])
        assert self.table.drop_slots() == (self.slots > 0 and self.threshold < 1.0)
        self.table.check_invariants()
        assert (self.table.in_flight, self.table.room, self.table.used) == (0, 0, 0)
        for lease in self.leases:
            assert self.table.release(lease.tracker, lease.generation, 0.0) == LATE

    # Slow start, as one would write it.

    def _set_state(self, pod: ModelPod, state: int) -> None:
        was, pod.state, pod.suspect = pod.is_routable(), state, False
        if was and not pod.is_routable():
            self._left(pod, state, was)
        elif pod.is_routable() and not was:
            self._arrived(pod)

    def _arrived(self, pod: ModelPod) -> None:
        if self.window_s and not pod.is_far:
            self.arrivals += 1
            pod.arrived, pod.from_s = self.arrivals, None
            pod.warming = any(p is not pod and p.is_warm() for p in self.pods.values())
            if not pod.warming:
                self.warm_from_s = None

    def _left(self, pod: ModelPod, state: int, was_routable: bool | None = None) -> None:
        was = pod.is_routable() if was_routable is None else was_routable
        pod.state = state
        if not was or not self.window_s or pod.is_far:
            return
        was_warm = not pod.warming
        pod.warming, pod.from_s = False, None
        new_pods = [p for p in self.pods.values() if p.warming]
        if was_warm and new_pods and not any(p is not pod and p.is_warm() for p in self.pods.values()):
            oldest = min(new_pods, key=lambda p: p.arrived)
            self.warm_from_s = oldest.from_s
            oldest.warming = False

    def _advance(self) -> None:
        """What the first pick at a time does before it picks, so that the oracle sees it."""
        if not self.window_s:
            return
        self.table.warm_up.advance(self.table, self.now_s)
        if self.warm_from_s is None:
            self.warm_from_s = self.now_s
        for pod in self.pods.values():
            if pod.warming and pod.from_s is None:
                pod.from_s = self.now_s
            if pod.warming and pod.from_s is not None and pod.from_s + self.window_s <= self.now_s:
                pod.warming = False
        self._observe_graduates()

    def _observe_graduates(self) -> None:
        self.oracle.observe(self.table, {slot: pod.arrived for slot, pod in self.pods.items()})

    def _ramp(self, pod: ModelPod) -> float:
        assert pod.from_s is not None and self.warm_from_s is not None
        whole_s = min(self.window_s, self.now_s - self.warm_from_s)
        age_s = self.now_s - pod.from_s
        return 1.0 if age_s >= whole_s else max(age_s / whole_s, 0.1)

    # Parts of the rules.

    def _one(self, index: int) -> tuple[int, ModelPod]:
        return sorted(self.pods.items())[index % len(self.pods)]

    def _find(self, address: str) -> PodTracker | None:
        return self.table.find(address) if hasattr(self, "table") else None

    def _of(self, identity: str) -> PodTracker | None:
        return self.table.find_identity(identity) if hasattr(self, "table") else None

    def _assert_newest(self, found: PodTracker | None, holders: list[tuple[int, ModelPod]]) -> None:
        if not holders:
            assert found is None
        else:
            newest = max(holders, key=lambda holder: holder[1].age)
            assert found is self.table.slots[newest[0]]

    def _reserve(self, tracker: PodTracker) -> None:
        self.table.reserve(tracker)
        pod = self.pods[tracker.slot]
        pod.in_flight += 1
        lease = Lease(tracker, tracker.generation, pod)
        if tracker.state == RECOVERING:
            self.table.begin_trial(tracker)
            pod.trials += 1
            lease.trial = True
        self.leases.append(lease)

    def _drain(self, slot: int, pod: ModelPod) -> None:
        assert self.table.drain(self.table.slots[slot]) == (pod.in_flight == 0)
        self._left(pod, DRAINING)
        if pod.in_flight == 0:
            self._gone(slot)
        self.oracle.observe(self.table)

    def _gone(self, slot: int) -> None:
        del self.pods[slot]
        self._trim()

    def _trim(self) -> None:
        top = max(self.pods, default=-1) + 1
        if self.length > top and (self.length - len(self.pods)) / self.length > self.threshold:
            self.length = top
            self.trims += 1
            self.slots = min(self.slots, kept_slots(top, self.max_scale, self.slots_max))


def machine_for(policy_name: str) -> type[TableMachine]:
    return type(f"TableMachine_{policy_name}", (TableMachine,), {"policy_name": policy_name})
