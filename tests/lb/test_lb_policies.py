"""The contract of every policy (lb/testing.py), and what each of the simple ones promises beside it."""

from __future__ import annotations

from collections import Counter

import pytest

from lb.pod_table import PodTable
from lb.policies.choice_of_two import ChoiceOfTwo
from lb.policies.consistent_hash import ConsistentHash
from lb.policies.ewma import Ewma
from lb.policies.first_available import FirstAvailable
from lb.policies.least_connections import LeastConnections
from lb.policies.random import RandomPick
from lb.policies.round_robin import RoundRobin
from lb.policies.weighted import Weighted
from lb.policy import Policy
from lb.registry import BUILT_IN, create
from lb.rng import Rng
from lb.serving_table import DRAINED
from lb.table import TrackerTable
from lb.testing import PolicyContract, candidates, grant, release
from lb.tracker import READY, PodTracker
from tests.lb.lb_oracles import ORACLES, ScanningPolicy


class TestRandom(PolicyContract):
    policy = RandomPick
    oracle = ORACLES["random"]


class TestChoiceOfTwo(PolicyContract):
    policy = ChoiceOfTwo
    oracle = ORACLES["choice-of-2"]


class TestRoundRobin(PolicyContract):
    policy = RoundRobin
    oracle = ORACLES["round-robin"]


class TestLeastConnections(PolicyContract):
    policy = LeastConnections
    oracle = ORACLES["least-connections"]
    is_least_loaded = True


class TestFirstAvailable(PolicyContract):
    policy = FirstAvailable
    oracle = ORACLES["first-available"]
    reaches_all = False
    has_fair_ties = False


class TestWeighted(PolicyContract):
    policy = Weighted
    oracle = ORACLES["weighted"]


class TestEwma(PolicyContract):
    policy = Ewma
    oracle = ORACLES["ewma"]


class TestConsistentHash(PolicyContract):
    policy = ConsistentHash
    oracle = ORACLES["consistent-hash"]


class TestThirdParty(PolicyContract):
    """A plain scan: least loaded, among equals the lowest slot."""

    policy = ScanningPolicy
    reaches_all = False
    has_fair_ties = False
    is_least_loaded = True


CONTRACTS = [TestRandom, TestChoiceOfTwo, TestRoundRobin, TestLeastConnections, TestFirstAvailable]
CONTRACTS += [TestWeighted, TestEwma, TestConsistentHash]


def test_every_built_in_policy_is_under_contract() -> None:
    assert {contract.policy.name for contract in CONTRACTS} == set(BUILT_IN) == set(ORACLES)


class Withholding(ScanningPolicy):
    """Breaks the contract: leaves slot 5 alone."""

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        tracker = super().pick(table, key, now_s)
        return None if tracker is not None and tracker.slot == 5 else tracker


class Overfilling(ScanningPolicy):
    """Breaks the contract: looks at no slot's state."""

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        return table.slots[0] if table.room else None


class Unfair(ScanningPolicy):
    """Two picks of three go to the lowest slot."""

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        found = candidates(table)
        return found[max(self.rng.below(3 * len(found)) - 2 * len(found), 0)] if found else None


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Withholding, "test_the_only_one_with_room_is_picked_at_once"),
        (Withholding, "test_pods_come_and_go"),
        (Overfilling, "test_never_an_empty_full_or_unfit_slot"),
        (Overfilling, "test_pods_come_and_go_with_slow_start"),
        (Unfair, "test_ties_are_fair"),
        (Overfilling, "test_every_idle_pod_is_reached"),
    ],
)
def test_the_contract_finds_who_breaks_it(broken: type[Policy], test: str) -> None:
    contract = type("Contract", (PolicyContract,), {"policy": broken})()
    with pytest.raises(AssertionError):
        getattr(contract, test)()


def make_table(name: str, pods: int, limit: int = 2, seed: int = 1) -> TrackerTable:
    table = TrackerTable(create(name, Rng(seed)), pods, trailing_fragmentation_threshold=1.0)
    for number in range(pods):
        assert table.add(f"pod-{number}", f"10.0.{number // 250}.{number % 250}:80", limit, READY) is not None
    return table


def test_round_robin_is_round_robin_when_pods_fill_and_empty() -> None:
    """Three pods of concurrency 1, two outstanding: over a swap-removed array this went 0, 1, 2, 1, 0, 1, 2, 1."""
    table = make_table("round-robin", 3, limit=1)
    running = [grant(table), grant(table)]
    picked = []
    for _ in range(9):
        tracker = grant(table)
        assert tracker is not None
        picked.append(int(tracker.slot))
        running.append(tracker)
        oldest = running.pop(0)
        assert oldest is not None
        release(table, oldest)
    assert picked == [2, 0, 1] * 3


@pytest.mark.parametrize("name", ["least-connections", "round-robin"])
def test_ties_go_round_exactly(name: str) -> None:
    table = make_table(name, 7)
    count: Counter[int] = Counter()
    for _ in range(700):
        tracker = grant(table)
        assert tracker is not None
        count[tracker.slot] += 1
        release(table, tracker)
    assert set(count.values()) == {100}


@pytest.mark.parametrize(("name", "pods"), [("random", 10), ("choice-of-2", 10), ("choice-of-2", 2)])
def test_ties_are_fair_by_chance(name: str, pods: int) -> None:
    """Chi-square of 10,000 idle picks. The seed is fixed; another would exceed the bound once in 10^6."""
    bound = {2: 23.9, 10: 47.0}[pods]  # the 1 - 10^-6 quantiles for 1 and 9 degrees of freedom
    table = make_table(name, pods)
    count: Counter[int] = Counter()
    for _ in range(10_000):
        tracker = grant(table)
        assert tracker is not None
        count[tracker.slot] += 1
        release(table, tracker)
    mean = 10_000 / pods
    assert sum((count[slot] - mean) ** 2 / mean for slot in range(pods)) < bound


def test_two_choices_beat_one() -> None:
    """As many balls as bins, 1,000: the fullest holds about log n / log log n with one choice, log log n with two."""

    def fullest(name: str) -> int:
        table = make_table(name, 1_000, limit=1_000)
        for _ in range(1_000):
            grant(table)
        return max(int(tracker.in_flight) for tracker in table.slots[:1_000])

    assert fullest("choice-of-2") <= 4 < fullest("random")


def test_choice_of_two_never_takes_the_fuller_of_two() -> None:
    table = make_table("choice-of-2", 2, limit=100)
    table.reserve(table.slots[0])
    for _ in range(50):
        assert table.pick(0, 0.0) is table.slots[1]


@pytest.mark.parametrize("name", ["least-connections", "choice-of-2"])
def test_what_others_have_at_a_pod_counts_for_the_pick_alone(name: str) -> None:
    table = make_table(name, 2, limit=10)
    table.reserve(table.slots[0])
    table.set_elsewhere(table.slots[1], 5)
    for expected in range(2, 6):
        assert grant(table) is table.slots[0]
        assert table.slots[0].in_flight == expected
    table.set_elsewhere(table.slots[1], 4)
    assert grant(table) is table.slots[1]
    assert (table.in_flight, table.capacity, table.room) == (6, 20, 2)
    assert not table.drain(table.slots[1])
    assert table.release(table.slots[1], table.slots[1].generation, 0.0) == DRAINED
    table.check_invariants()


def test_of_a_full_pod_and_of_one_that_leaves_others_may_say_what_they_like() -> None:
    table = make_table("least-connections", 2, limit=1)
    assert grant(table) is table.slots[0]
    table.set_elsewhere(table.slots[0], 7)
    assert grant(table) is table.slots[1] and grant(table) is None
    release(table, table.slots[0])
    assert grant(table) is table.slots[0], "the only one that has room"
    table.free(table.slots[0])
    assert table.slots[0].is_vacant()
    table.check_invariants()


def test_first_available_packs() -> None:
    table = make_table("first-available", 40, limit=2)
    running = [grant(table) for _ in range(80)]
    assert [tracker.slot for tracker in running if tracker] == [slot for slot in range(40) for _ in range(2)]
    for slot in (39, 33, 2, 17):
        release(table, table.slots[slot])
    assert [tracker.slot for tracker in [grant(table) for _ in range(4)] if tracker] == [2, 17, 33, 39]
