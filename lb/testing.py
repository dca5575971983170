"""The contract of every policy, as tests for the authors of policies.

pytest is needed only to run them:

    from lb.testing import PolicyContract
    from my_package import Mine

    class TestMine(PolicyContract):
        policy = Mine

Rules
  1. The module uses only the standard library and `lb`. All random choices come from seeded generators, so that
     failures are reproducible.
  2. Optional properties can be disabled by name: `reaches_all`, `has_fair_ties`, `knows_zones`. Additional properties
     can be enabled (`is_least_loaded`), or checked by an oracle.
  3. Each statistical test states how often a correct policy would fail it with another seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import ClassVar

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import DRAINING, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING, PodTracker

_HOLES = ((), (0,), (0, 1, 2), (4, 5), (8, 9), (0, 3, 9), tuple(range(9)), tuple(range(1, 10)))
_FAIR_PICKS = 10_000
_CHI_SQUARE_9 = 47.0  # exceeded by chance once in 10^6 with 9 degrees of freedom


def candidates(table: PodTable) -> list[PodTracker]:
    """Return every pod with room, by a scan with its own checks of state, suspicion and limit."""
    found = []
    for tracker in table.slots[: table.length]:
        if tracker.state not in {READY, RECOVERING} or tracker.suspect_until_s != 0.0:
            continue
        if tracker.state == RECOVERING and tracker.trials > 0:
            continue  # one trial at a time
        if tracker.in_flight < tracker.limit:
            found.append(tracker)
    return found


def contenders(table: PodTable) -> list[PodTracker]:
    """Return the pods that the next pick ranks: the near ones with room or, if there are none, the far ones."""
    found = candidates(table)
    return [tracker for tracker in found if not tracker.is_far] or found


class Oracle:
    """A reference model of a policy: it names the pods that the next pick may return, in this class any with room.

    It observes the table from outside: `observe` is called after every step, and `picked` after every pick. `stamp`
    has the time at which each pod last changed its place in the order.
    """

    def __init__(self) -> None:
        self.clock = 0
        self.stamp: dict[int, int] = {}  # by slot, for slots with room
        self.load: dict[int, int] = {}

    def observe(self, table: TrackerTable, order: dict[int, int] | None = None) -> None:
        """Record the table's state; `order` ranks the slots of pods that got room in the same step."""
        pods = [tracker for tracker in candidates(table) if not tracker.warming]
        if order is not None:
            pods.sort(key=lambda tracker: order.get(tracker.slot, 0))
        self.stamp = {t.slot: self.stamp[t.slot] for t in pods if t.slot in self.stamp}
        for tracker in pods:
            if tracker.slot not in self.stamp or self.moves_with_load(tracker):
                self.touch(tracker)
            self.load[tracker.slot] = tracker.in_flight + tracker.elsewhere

    def moves_with_load(self, tracker: PodTracker) -> bool:
        """Return True if the pod's change of load since the last step changes its place in the order."""
        return False

    def touch(self, tracker: PodTracker) -> None:
        """Stamp the pod as the last one that changed its place."""
        self.clock += 1
        self.stamp[tracker.slot] = self.clock

    def picked(self, tracker: PodTracker) -> None:
        pass

    def allowed(self, table: TrackerTable, key: int = 0, now_s: float = 0.0) -> list[PodTracker]:
        """Return the pods that the policy may pick, and the pods in slow start that the table may pick."""
        found = contenders(table)
        new_pods = [tracker for tracker in found if tracker.warming]
        others = [tracker for tracker in found if not tracker.warming]
        return self.among(others, table, key, now_s) + self.new_pods(new_pods, others)

    def new_pods(self, new_pods: list[PodTracker], others: list[PodTracker]) -> list[PodTracker]:
        """Return those of the pods in slow start that may be picked; `others` are the others with room."""
        return new_pods

    def among(self, found: list[PodTracker], table: TrackerTable, key: int, now_s: float) -> list[PodTracker]:
        """Return those of the pods in `found`, none in slow start, that the policy may pick."""
        return found


class PolicyContract:
    """The tests of one policy: derive a class whose name begins with Test, and set `policy`."""

    policy: ClassVar[type[Policy]]
    oracle: ClassVar[type[Oracle]] = Oracle
    reaches_all: ClassVar[bool] = True  # all idle pods get requests; False for a policy that fills few pods
    has_fair_ties: ClassVar[bool] = True  # equal idle pods get equally many requests
    is_least_loaded: ClassVar[bool] = False
    knows_zones: ClassVar[bool] = True  # picks far pods only when no near pod has room; False for a scan that does not

    # Fixtures.

    def make_policy(self, seed: int) -> Policy:
        """Return a new policy; override this if the class is not constructed as `cls(rng)`."""
        return self.policy(Rng(seed))

    def make_table(self, pods: int, limit: int = 2, seed: int = 1) -> TrackerTable:
        table = TrackerTable(self.make_policy(seed), pods, trailing_fragmentation_threshold=1.0)
        for number in range(pods):
            self.add(table, number, limit)
        return table

    def add(self, table: TrackerTable, number: int, limit: int = 2) -> PodTracker:
        address = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}:8012"
        tracker = table.add(f"pod-{number}", address, limit, READY)
        assert tracker is not None, "the table is full"
        return tracker

    def keys(self) -> Iterator[int]:
        """Yield keys of requests: only 0, or also others if the policy wants keys."""
        if not self.policy.wants_key:
            while True:
                yield 0
        number = 0
        while True:
            yield number % 3 and number * 0x9E3779B97F4A7C15 % (1 << 62)
            number += 1

    # The contract.

    def test_nobody_with_room_is_nobody_picked(self) -> None:
        keys = self.keys()
        for table in (self.make_table(0), self.make_table(4, limit=0)):
            for _ in range(5):
                assert picked(table, next(keys), 1.0) is None, "a pod was picked although none has room"

    def test_the_only_one_with_room_is_picked_at_once(self) -> None:
        keys = self.keys()
        for only in (0, 5, 9):
            table = self.make_table(10, limit=1)
            for tracker in table.slots[:10]:
                if tracker.slot != only:
                    table.reserve(tracker)
            for _ in range(20):
                assert grant(table, next(keys)) is table.slots[only], f"only slot {only} had room"
                assert picked(table, next(keys), 1.0) is None, "no pod had room"
                release(table, table.slots[only])

    def test_never_an_empty_full_or_unfit_slot(self) -> None:
        """Place every request that fits, with holes at the start, in the middle and at the end."""
        keys = self.keys()
        unfit = {3: PENDING, 4: NOT_READY, 5: QUARANTINED, 6: RECOVERING}
        for holes in _HOLES:
            table = self.make_table(10)
            for slot, state in unfit.items():
                table.set_state(table.slots[slot], state)
            for slot in holes:
                table.free(table.slots[slot])
            if 7 not in holes:
                table.reserve(table.slots[7])
                table.drain(table.slots[7])
                assert table.slots[7].state == DRAINING
            placed = 0
            while table.room:
                fit = candidates(table)
                tracker = grant(table, next(keys))
                assert tracker is not None, f"no pod was picked, although {fit} have room"
                assert tracker in fit, f"{tracker!r} was picked, but only {fit} have room"
                placed += 1
            assert picked(table, next(keys), 1.0) is None, "no pod had room"
            assert placed == 2 * len([slot for slot in (0, 1, 2, 6, 8, 9) if slot not in holes])

    def test_every_idle_pod_is_reached(self) -> None:
        """Pick each of 20 idle pods within 2,000 picks; a pod with half of its share fails this once in 10^20."""
        if not self.reaches_all:
            return
        keys = self.keys()
        table = self.make_table(20)
        seen = set()
        for _ in range(2_000):
            tracker = grant(table, next(keys))
            assert tracker is not None
            seen.add(int(tracker.slot))
            release(table, tracker)
        assert len(seen) == 20, f"never picked: {sorted(set(range(20)) - seen)}"

    def test_equal_to_the_oracle_under_load(self) -> None:
        """Compare all picks with the oracle while the load rises to capacity and falls repeatedly."""
        keys = self.keys()
        table = self.make_table(100, limit=3)
        oracle = self.oracle()
        rng = Rng(5)
        running: list[PodTracker] = []
        for step in range(1_500):
            running_max = 300 if (step // 300) % 2 == 0 else 40
            oracle.observe(table)
            if len(running) < running_max:
                key = next(keys)
                tracker = self.pick_as_allowed(table, oracle, key, step * 0.01)
                if tracker is not None:
                    running.append(tracker)
            if running and (len(running) >= running_max or rng.below(3) == 0):
                release(table, running.pop(rng.below(len(running))), 0.001 * float(rng.below(50)))
        table.check_invariants()

    def test_pods_come_and_go(self) -> None:
        """Change the table at random between picks, and check its invariants after each step."""
        for seed in range(8):
            self.churn(seed, slow_start_s=0.0)

    def test_pods_come_and_go_with_slow_start(self) -> None:
        """Check that pods come and go with slow start, which may skip a new pod only while another one has room."""
        for seed in range(8):
            self.churn(seed, slow_start_s=3.0)

    def test_far_pods_get_what_near_pods_have_no_room_for(self) -> None:
        """Fill ten pods, of which some are far; a release of a near pod brings the next request back to it."""
        if not self.knows_zones:
            return
        keys = self.keys()
        for far in ((), (0, 1, 2), (3, 8), (9,), tuple(range(10))):
            table = self.make_table(10)
            for slot in far:
                table.set_far(table.slots[slot], True)
            for count in range(20):
                fit = contenders(table)
                tracker = grant(table, next(keys))
                assert tracker in fit, f"request {count} is at {tracker!r}, the pods to choose from were {fit}"
                table.check_invariants()
            assert picked(table, next(keys), 1.0) is None, "no pod had room"
            for near in [tracker for tracker in table.slots[:10] if not tracker.is_far]:
                release(table, near)
                assert grant(table, next(keys)) is near, f"the near pod {near!r} alone had room"

    def test_the_policy_may_be_changed_live(self) -> None:
        keys = self.keys()
        table = self.make_table(30)
        for far in table.slots[:10]:
            table.set_far(far, True)
        running = [grant(table, next(keys)) for _ in range(45)]
        table.set_policy(self.make_policy(2))
        table.check_invariants()
        for tracker in running:
            assert tracker is not None
            release(table, tracker, 0.01)
        table.check_invariants()
        for _ in range(60):
            assert grant(table, next(keys)) is not None, "there was room"
        assert table.room == 0
        assert picked(table, next(keys), 1.0) is None, "no pod had room"

    def test_same_seed_same_picks(self) -> None:
        assert self.picks(11) == self.picks(11), "the policy makes choices that do not come from its generator"

    def test_ties_are_fair(self) -> None:
        """Test 10,000 picks among 10 idle pods by chi-square; a fair policy fails once in 10^6 seeds."""
        if not self.has_fair_ties:
            return
        table = self.make_table(10)
        count: Counter[int] = Counter()
        for _ in range(_FAIR_PICKS):
            tracker = grant(table, 0)
            assert tracker is not None
            count[int(tracker.slot)] += 1
            release(table, tracker)
        mean = _FAIR_PICKS / 10
        chi_square = sum((count[slot] - mean) ** 2 / mean for slot in range(10))
        assert chi_square < _CHI_SQUARE_9, f"the picks by slot are {sorted(count.items())}"

    def test_least_is_least_over_all_orders(self) -> None:
        if not self.is_least_loaded:
            return
        for loads in permutations((0, 1, 2, 3)):
            table = self.make_table(4, limit=9)
            for slot, load in enumerate(loads):
                for _ in range(load):
                    table.reserve(table.slots[slot])
            first = grant(table, 0)
            assert first is table.slots[loads.index(0)], f"loads {loads}: {first!r} was picked"
            for _ in range(5):
                grant(table, 0)
            found = sorted(int(tracker.in_flight) for tracker in table.slots[:4])
            assert found == [3, 3, 3, 3], f"loads {loads} and six requests became {found}"

    # Parts of the tests.

    def picks(self, seed: int) -> list[int]:
        keys = self.keys()
        table = self.make_table(30, limit=2, seed=seed)
        found = []
        for _ in range(50):
            tracker = grant(table, next(keys))
            assert tracker is not None
            found.append(int(tracker.slot))
        return found

    def pick_as_allowed(self, table: TrackerTable, oracle: Oracle, key: int, now_s: float) -> PodTracker | None:
        """Pick and reserve, and compare the pick with the oracle's."""
        allowed = oracle.allowed(table, key, now_s)
        tracker = picked(table, key, now_s)
        if tracker is None:
            assert not allowed, f"no pod was picked, the oracle allows {allowed}"
            return None
        assert any(tracker is one for one in allowed), f"{tracker!r} was picked, the oracle allows {allowed}"
        oracle.picked(tracker)
        table.reserve(tracker)
        oracle.observe(table)
        return tracker

    def churn(self, seed: int, slow_start_s: float) -> None:
        """Compare picks and check the invariants while the table changes at random."""
        rng = Rng(seed)
        keys = self.keys()
        table = TrackerTable(self.make_policy(seed), trailing_fragmentation_threshold=0.3)
        table.set_slow_start(slow_start_s)
        running: list[tuple[PodTracker, int]] = []
        for step in range(150):
            self.disturb(table, rng, step)
            for _ in range(rng.below(4)):
                fit = contenders(table) if self.knows_zones else candidates(table)
                tracker = picked(table, next(keys), step * 0.1)
                if not fit:
                    assert tracker is None, f"{tracker!r} was picked although none has room"
                    break
                assert tracker in fit, f"{tracker!r} was picked, but only {fit} have room"
                assert tracker is not None
                table.reserve(tracker)
                running.append((tracker, int(tracker.generation)))
            if running and rng.below(2):
                tracker, generation = running.pop(rng.below(len(running)))
                table.release(tracker, generation, 0.001 * float(rng.below(100)))
            table.check_invariants()
        for tracker in table.slots[: table.length]:
            if tracker.identity:
                table.free(tracker)
        table.drop_slots()
        table.check_invariants()

    def disturb(self, table: TrackerTable, rng: Rng, step: int) -> None:
        """Make one random change, as the state worker or the failure of a pod does."""
        pods = [tracker for tracker in table.slots[: table.length] if tracker.identity and tracker.state != DRAINING]
        change = rng.below(9)
        if change < 3 or not pods:
            self.add(table, int(rng.below(40)), int(rng.below(4)))
            return
        tracker = pods[rng.below(len(pods))]
        if change == 3:
            table.drain(tracker)
        elif change == 4:
            table.free(tracker)
        elif change == 5:
            table.set_state(tracker, (PENDING, READY, NOT_READY, RECOVERING, QUARANTINED)[rng.below(5)])
        elif change == 6:
            table.set_limit(tracker, int(rng.below(5)))
        elif change == 7:
            table.set_far(tracker, rng.below(2) == 0)
        elif rng.below(2):
            table.set_weight(tracker, int(rng.below(10)))
        else:
            table.suspect(tracker, step + 1.0)


def picked(table: TrackerTable, key: int, now_s: float) -> PodTracker | None:
    """Return the policy's pick. Raises AssertionError if the table had to replace it."""
    before = table.bad_picks
    tracker = table.pick(key, now_s)
    assert table.bad_picks == before, f"the policy picked a pod without room, or none; the table took {tracker!r}"
    return tracker


def grant(table: TrackerTable, key: int = 0, now_s: float = 1.0) -> PodTracker | None:
    """Pick a pod for a request and reserve it. Return None if no pod has room."""
    tracker = picked(table, key, now_s)
    if tracker is not None:
        table.reserve(tracker)
    return tracker


def release(table: TrackerTable, tracker: PodTracker, latency_s: float = 0.0) -> None:
    table.release(tracker, tracker.generation, latency_s)
