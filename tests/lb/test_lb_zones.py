"""Far pods: they get what near pods have no room for, under every policy, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from lb.pod_table import PodTable
from lb.policy import Policy
from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.rooms import NO_ROOMS, RoomArray
from lb.serving_table import DRAINED
from lb.table import TrackerTable
from lb.testing import contenders, grant, release
from lb.tracker import NOT_READY, QUARANTINED, READY, RECOVERING, PodTracker
from tests.lb.lb_oracles import ScanningPolicy
from tests.lb.lb_tables import add, make_table

every_policy = pytest.mark.parametrize("name", [*BUILT_IN, "third-party"])


def made(name: str, near: int, far: int, limit: int = 2) -> TrackerTable:
    """Near pods in the first slots, far ones in the last."""
    rng = Rng(6)
    table = TrackerTable(ScanningPolicy(rng) if name == "third-party" else create(name, rng), near + far)
    for number in range(near + far):
        table.set_far(add(table, number, limit), number >= near)
    table.check_invariants()
    return table


def flags(table: TrackerTable, count: int) -> str:
    """Reserve for so many requests: n for each that is near, f for far, a dot for none."""
    found = ""
    for key in range(count):
        tracker = grant(table, key)
        found += "." if tracker is None else "f" if tracker.is_far else "n"
        table.check_invariants()
    return found


@every_policy
def test_requests_spill_over_when_the_near_pods_are_full(name: str) -> None:
    assert flags(made(name, 2, 2), 9) == "nnnnffff."


@every_policy
def test_a_release_brings_the_next_request_back(name: str) -> None:
    table = made(name, 2, 2, limit=1)
    assert flags(table, 3) == "nnf"
    release(table, table.slots[1])
    assert grant(table) is table.slots[1]
    assert flags(table, 2) == "f."


@every_policy
def test_all_near_and_all_far(name: str) -> None:
    assert flags(made(name, 4, 0), 9) == "nnnnnnnn."
    assert flags(made(name, 0, 4), 9) == "ffffffff."


def test_a_table_without_far_pods_has_no_second_structure() -> None:
    table = made("least-connections", 5, 0)
    for tracker in table.slots[:5]:
        table.set_far(tracker, False)
    assert table.far is NO_ROOMS
    table.set_far(table.slots[0], True)
    assert table.far is not NO_ROOMS
    for tracker in list(table.slots[:5]):
        table.free(tracker)
    assert table.drop_slots()
    assert table.far is NO_ROOMS


@every_policy
@pytest.mark.parametrize("state", [NOT_READY, QUARANTINED])
def test_far_pods_serve_while_no_near_pod_does(name: str, state: int) -> None:
    table = made(name, 2, 2, limit=9)
    for tracker in table.slots[:2]:
        table.set_state(tracker, state)
    assert flags(table, 2) == "ff"
    table.set_state(table.slots[0], RECOVERING)
    near = grant(table)
    assert near is table.slots[0]
    table.begin_trial(near)
    assert flags(table, 1) == "f"
    table.suspect(table.slots[2], 5.0)
    assert [grant(table), grant(table)] == [table.slots[3]] * 2


@every_policy
def test_a_zone_changes_with_requests_in_flight(name: str) -> None:
    table = made(name, 2, 2)
    flags(table, 3)
    for _ in range(50):
        for tracker in table.slots[:4]:
            table.set_far(tracker, not tracker.is_far)
            table.check_invariants()
    assert (table.in_flight, flags(table, 6)) == (3, "nffff.")
    for tracker in table.slots[:4]:
        release(table, tracker)
        table.set_far(tracker, not tracker.is_far)
        table.check_invariants()
    assert flags(table, 5) == "nnff."


def test_zones_flap_under_load() -> None:
    """1,500 steps with each policy: each request goes by the zones as they are at that moment."""
    for name in BUILT_IN:
        rng = Rng(3)
        table = made(name, 20, 20, limit=3)
        running: list[PodTracker] = []
        for step in range(1_500):
            one = table.slots[rng.below(40)]
            table.set_far(one, not one.is_far)
            for _ in range(rng.below(5)):
                fit = contenders(table)
                tracker = grant(table, int(rng.below(1_000)), step * 0.01)
                assert (tracker in fit) if fit else tracker is None
                if tracker is not None:
                    running.append(tracker)
            for _ in range(min(int(rng.below(4)), len(running))):
                release(table, running.pop(rng.below(len(running))), 0.01)
            if step % 50 == 0:
                table.check_invariants()
        table.check_invariants()


@every_policy
def test_a_pod_drains_far_and_returns_near(name: str) -> None:
    table = made(name, 1, 2, limit=1)
    assert flags(table, 2) == "nf"
    far = next(tracker for tracker in table.slots[1:3] if tracker.in_flight)
    assert not table.drain(far)
    table.check_invariants()
    assert table.add(far.identity, far.address, 2, READY) is far
    table.set_far(far, False)
    table.check_invariants()
    assert grant(table) is far
    assert not table.drain(far)
    generation = far.generation
    assert table.release(far, generation, 0.0) != DRAINED
    assert table.release(far, generation, 0.0) == DRAINED
    table.free(far)
    table.check_invariants()
    assert not add(table, 9).is_far


@every_policy
def test_the_policy_changes_while_both_are_filled(name: str) -> None:
    table = made(name, 30, 30)
    flags(table, 70)
    for other in BUILT_IN:
        table.set_policy(create(other, Rng(2)))
        table.check_invariants()
        assert table.far.size() == table.far_room == table.room
    for tracker in table.slots[:60]:
        table.set_far(tracker, False)
    table.set_policy(create("round-robin", Rng(2)))
    assert table.far is NO_ROOMS


@pytest.mark.parametrize("name", BUILT_IN)
def test_far_pods_in_the_last_slots_are_trimmed(name: str) -> None:
    table = TrackerTable(create(name, Rng(1)), trailing_fragmentation_threshold=0.2)
    for number in range(300):
        table.set_far(add_wide(table, number), number >= 3)
    slots = table.capacity_slots
    for tracker in reversed(table.slots[3:300]):
        table.free(tracker)
    assert table.capacity_slots < slots
    table.check_invariants()
    assert flags(table, 4) == "nnn."
    for number in range(300, 500):
        table.set_far(add_wide(table, number), True)
    table.check_invariants()
    assert flags(table, 201) == "f" * 200 + "."


def add_wide(table: TrackerTable, number: int) -> PodTracker:
    tracker = table.add(f"pod-{number}", f"10.{number // 65_000}.{number // 250 % 250}.{number % 250}:80", 1, READY)
    assert tracker is not None
    return tracker


@pytest.mark.parametrize("name", BUILT_IN)
def test_ten_thousand_far_pods(name: str) -> None:
    table = TrackerTable(create(name, Rng(1)), 10_010)
    for number in range(10_010):
        table.set_far(add_wide(table, number), number >= 10)
    for key in range(2_000):
        tracker = grant(table, key)
        assert tracker is not None
        assert tracker.is_far == (key >= 10)
    table.check_invariants()
    for tracker in table.slots[:10_010]:
        table.set_far(tracker, False)
    assert (table.far_room, table.room) == (0, 8_010)
    table.check_invariants()


def test_the_load_of_other_members_ranks_far_pods_too() -> None:
    table = made("least-connections", 1, 3, limit=5)
    for slot, count in ((1, 7), (2, 3), (3, 5)):
        table.set_elsewhere(table.slots[slot], count)
        table.check_invariants()
    for _ in range(5):
        grant(table)
    assert [grant(table), grant(table), grant(table)] == [table.slots[2]] * 2 + [table.slots[3]]


def test_weights_count_within_a_zone() -> None:
    """A near reserve comes before far pods, and a far reserve last."""
    table = made("weighted", 2, 2, limit=1)
    table.set_weight(table.slots[1], 0)
    table.set_weight(table.slots[3], 0)
    assert [grant(table) for _ in range(5)] == [*table.slots[:4], None]


def test_a_key_stays_in_its_zone() -> None:
    table = made("consistent-hash", 5, 5, limit=1)
    plain = made("consistent-hash", 5, 0, limit=1)
    for key in range(1, 200):
        one, other = table.pick(key, 0.0), plain.pick(key, 0.0)
        assert one is not None and other is not None
        assert one.slot == other.slot


@every_policy
def test_another_pod_for_a_retry_may_be_far(name: str) -> None:
    table = made(name, 1, 1)
    assert table.pick_other(table.slots[0], 0, 0.0) is table.slots[1]
    table.set_state(table.slots[1], NOT_READY)
    assert table.pick_other(table.slots[0], 0, 0.0) is table.slots[0]
    table.check_invariants()


# With slow start.


@every_policy
def test_new_pods_of_the_zone_come_before_far_ones(name: str) -> None:
    table = made(name, 1, 2)
    table.set_slow_start(30.0)
    new = add(table, 7)
    assert new.warming
    assert flags(table, 9) == "nnnnffff."


@every_policy
def test_far_pods_do_not_warm_and_do_not_count_among_the_others(name: str) -> None:
    table = made(name, 4, 50, limit=1_000_000)
    table.set_slow_start(30.0)
    for number in range(60, 70):
        far = add(table, number, 1_000_000)
        table.set_far(far, True)
        assert not far.warming
    new = add(table, 80, 1_000_000)
    table.pick(0, 100.0)
    table.check_invariants()
    draws = 20_000
    count = 0
    for _ in range(draws):
        tracker = grant(table, 0, 115.0)
        assert tracker is not None and not tracker.is_far
        count += tracker is new
        release(table, tracker)
    share = 0.5 / 5
    assert abs(count / draws - share) < 5 * math.sqrt(share * (1 - share) / draws), "one seed in 10^6"


def test_the_first_near_pod_of_a_table_with_far_pods_is_warm() -> None:
    table = made("round-robin", 0, 3)
    table.set_slow_start(30.0)
    assert not add(table, 7).warming
    assert add(table, 8).warming
    table.check_invariants()


def test_a_pod_that_becomes_near_is_new_there() -> None:
    table = made("round-robin", 2, 1)
    table.set_slow_start(30.0)
    one = table.slots[2]
    found = []
    for is_far in (False, True, False):
        table.set_far(one, is_far)
        found.append(one.warming)
        table.pick(0, 1.0)
        table.check_invariants()
    table.set_far(table.slots[0], True)
    found.append(one.warming)
    table.set_far(table.slots[1], True)  # the last one that was warm
    found.append(one.warming)
    assert found == [True, False, True, True, False]
    table.check_invariants()
    table.set_slow_start(0.0)
    table.check_invariants()


# Policies of other people.


class ZoneBlind(ScanningPolicy):
    """A scan from before there were zones: it must stay valid, and ignores them."""

    name = "zone-blind"

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        free = [pod for pod in table.slots[: table.length] if pod.has_room and not pod.warming]
        return max(free, key=lambda pod: pod.slot, default=None)


class OfArray(Policy):
    """One that picks from a structure, and sees each zone by itself."""

    name = "of-array"
    needs = RoomArray

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng)
        self.raises = False

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        structure = table.structure
        assert isinstance(structure, RoomArray)
        if self.raises and structure is table.far:
            raise ValueError("far")
        return self.of(structure)

    def of(self, structure: RoomArray) -> PodTracker | None:
        return structure.pods[0] if structure.count else None


class Never(OfArray):
    def of(self, structure: RoomArray) -> PodTracker | None:
        return None


class Stale(OfArray):
    """One that keeps a pod, whether it has room or not."""

    kept: PodTracker | None = None

    def of(self, structure: RoomArray) -> PodTracker | None:
        if self.kept is None and structure.count:
            self.kept = structure.pods[0]
        return self.kept if structure.count else None


def theirs(make: Callable[[Rng], Policy], near: int = 2, far: int = 2) -> TrackerTable:
    table = TrackerTable(make(Rng(1)))
    for number in range(near + far):
        table.set_far(add(table, number, 1), number >= near)
    return table


def test_a_scan_that_ignores_zones_stays_valid() -> None:
    table = theirs(ZoneBlind)
    assert flags(table, 5) == "ffnn."
    assert table.bad_picks == 0


def test_a_policy_with_a_structure_needs_no_change() -> None:
    table = theirs(OfArray)
    assert flags(table, 5) == "nnff."
    assert table.bad_picks == 0


@pytest.mark.parametrize("make", [Never, Stale])
def test_a_bad_pick_is_replaced_by_a_near_pod_first(make: Callable[[Rng], Policy]) -> None:
    table = theirs(make)
    table.set_far(table.slots[0], True)
    table.set_far(table.slots[3], False)
    found = ""
    for _ in range(4):
        tracker = table.pick(0, 0.0)
        assert tracker is not None and tracker.has_room
        table.reserve(tracker)
        found += "f" if tracker.is_far else "n"
        table.check_invariants()
    assert found == "nnff"
    assert table.bad_picks >= 3
    assert table.pick(0, 0.0) is None


def test_an_exception_in_the_second_pick_leaves_the_near_structure_in_place() -> None:
    table = theirs(OfArray, near=1, far=1)
    policy = table.policy
    assert isinstance(policy, OfArray)
    policy.raises = True
    grant(table)
    near = table.structure
    with pytest.raises(ValueError, match="far"):
        table.pick(0, 0.0)
    assert table.structure is near
    table.check_invariants()
    release(table, table.slots[0])
    assert table.pick(0, 0.0) is table.slots[0]


def test_an_empty_slot_has_no_zone() -> None:
    table = make_table()
    tracker = add(table, 1)
    table.free(tracker)
    with pytest.raises(AssertionError, match="no zone"):
        table.set_far(tracker, True)
