"""The policies of groups: the contract, and what each of them is for."""

from __future__ import annotations

import pytest

from activator.control_plane.groups.policy import Eviction, GroupPolicy, RevisionState, View, WaitsFor
from activator.control_plane.groups.turns import Affinity, Fifo
from activator.runtime.clock import NEVER
from bench.groups import Figures, run_trace
from tests.control_plane.groups.policy_contract import NOW_S, PolicyContract

PATIENCE_S = 30.0


class TestAffinity(PolicyContract):
    def make(self) -> GroupPolicy:
        return Affinity(PATIENCE_S)


class TestFifo(PolicyContract):
    def make(self) -> GroupPolicy:
        return Fifo()


def loaded(key: str, needs: int = 1, **more: float) -> RevisionState:
    """A member with one program that is ready."""
    member = RevisionState(key, (needs,), granted=1, started=1, ready=1, wanted=1, used_s=NOW_S - 1.0, start_s=2.0)
    return member._replace(**more)  # type: ignore[arg-type]


def waiting(key: str, needs: int = 1, since_s: float = NOW_S, **more: float) -> RevisionState:
    member = RevisionState(key, (needs,), wanted=1, since_s=since_s, start_s=2.0)
    return member._replace(**more)  # type: ignore[arg-type]


def view(*members: RevisionState, budget: int = 1) -> View:
    return View(NOW_S, (budget,), members)


def test_an_idle_program_gives_way_at_once() -> None:
    plan = Affinity(PATIENCE_S).plan(view(loaded("a"), waiting("b")))
    assert plan.grants == {"a": 0}
    assert plan.evictions == {"a": Eviction.DEMAND}
    assert (plan.waits["b"].reason, plan.waits["b"].keys) == (WaitsFor.LEAVING, ("a",))


def test_a_busy_one_keeps_its_turn_until_its_next_request_came_too_late() -> None:
    policy = Affinity(PATIENCE_S)
    busy = loaded("a", busy=True)
    assert policy.plan(view(busy, waiting("b", since_s=NOW_S - 29.0))).grants == {}
    over = policy.plan(view(busy, waiting("b", since_s=NOW_S - 31.0)))
    assert (over.grants, over.evictions) == ({"a": 0}, {"a": Eviction.OVERTAKEN})
    # Its own line is older than that: it is served first.
    lined = busy._replace(since_s=NOW_S - 20.0)
    assert policy.plan(view(lined, waiting("b", since_s=NOW_S - 31.0))).grants == {}


def test_in_fifo_a_busy_one_gives_way_to_what_came_earlier() -> None:
    busy = loaded("a", busy=True)
    assert Fifo().plan(view(busy, waiting("b", since_s=NOW_S - 0.1))).grants == {"a": 0}
    assert Fifo().plan(view(busy._replace(since_s=NOW_S - 1.0), waiting("b", since_s=NOW_S - 0.1))).grants == {}


def test_the_least_valuable_leaves_by_recency_and_cost() -> None:
    cheap_and_old = loaded("a", used_s=NOW_S - 100.0, start_s=1.0)
    dear_and_old = loaded("b", used_s=NOW_S - 100.0, start_s=60.0)
    cheap_and_new = loaded("c", used_s=NOW_S - 1.0, start_s=1.0)
    members = (dear_and_old, cheap_and_new, cheap_and_old, waiting("d"))
    assert Affinity(PATIENCE_S).plan(view(*members, budget=3)).grants == {"a": 0}


def test_no_more_leave_than_necessary() -> None:
    small = loaded("a", 4, used_s=NOW_S - 100.0)
    large = loaded("b", 20, used_s=NOW_S - 10.0)
    plan = Affinity(PATIENCE_S).plan(view(small, large, waiting("c", 16), budget=24))
    assert plan.grants == {"b": 0}  # without it, the small one need not go


def test_members_coexist_as_far_as_the_budget_carries() -> None:
    plan = Affinity(PATIENCE_S).plan(view(loaded("a", 10, busy=True), waiting("b", 10), waiting("c", 10), budget=24))
    assert plan.grants == {"b": 1}
    assert plan.waits["c"].reason is WaitsFor.TURN


def test_a_small_one_does_not_take_what_is_kept_for_a_large_one() -> None:
    leaving = RevisionState("a", (20,), leaving=1)
    plan = Affinity(PATIENCE_S).plan(
        view(leaving, waiting("b", 24, since_s=NOW_S - 2.0), waiting("c", 4, since_s=NOW_S - 1.0), budget=24)
    )
    assert plan.grants == {}
    assert plan.waits["b"].reason is WaitsFor.LEAVING


def test_a_program_that_can_sleep_is_stopped_where_what_it_keeps_is_needed() -> None:
    sleeper = loaded("a", 20)._replace(asleep=(4,))
    roomy = Affinity(PATIENCE_S).plan(view(sleeper, waiting("b", 16), budget=24))
    assert (roomy.grants, roomy.no_sleep) == ({"a": 0}, frozenset())
    tight = Affinity(PATIENCE_S).plan(view(sleeper, waiting("b", 22), budget=24))
    assert (tight.grants, tight.no_sleep) == ({"a": 0}, frozenset({"a"}))


def test_a_sleeping_one_goes_where_what_it_keeps_is_needed() -> None:
    sleeper = RevisionState("a", (20,), (4,), sleeping=1, used_s=NOW_S - 1.0, start_s=2.0)
    plan = Affinity(PATIENCE_S).plan(view(sleeper, waiting("b", 22), budget=24))
    assert (plan.stop_asleep, plan.grants) == ({"a": 1}, {})


def test_the_spare_program_of_a_busy_revision_makes_room_for_a_first_one() -> None:
    many = loaded("a", 8, granted=3, started=3, ready=3, wanted=3, busy=True)
    plan = Affinity(PATIENCE_S).plan(view(many, waiting("b", 8), budget=24))
    assert (plan.grants, plan.evictions) == ({"a": 2}, {"a": Eviction.SPARE})


def test_a_lowered_budget_drains_what_is_worth_least() -> None:
    busy, idle = loaded("a", 10, busy=True), loaded("b", 10)
    plan = Affinity(PATIENCE_S).plan(view(busy, idle, budget=10))
    assert (plan.grants, plan.evictions) == ({"b": 0}, {"b": Eviction.BUDGET})


def test_what_cannot_start_now_does_not_keep_others_waiting() -> None:
    broken = waiting("a", since_s=NOW_S - 50.0, granted=1, may_start=False)
    plan = Affinity(PATIENCE_S).plan(view(broken, waiting("b")))
    assert plan.grants["a"] == 0
    after = Affinity(PATIENCE_S).plan(view(broken._replace(granted=0), waiting("b")))
    assert after.grants == {"b": 1}
    assert after.waits["a"].reason is WaitsFor.BACKOFF


def test_what_only_a_schedule_wants_evicts_nobody() -> None:
    kept = RevisionState("a", (1,), wanted=1, kept=1)
    assert Affinity(PATIENCE_S).plan(view(kept, loaded("b"))).grants == {}
    assert Affinity(PATIENCE_S).plan(view(kept, RevisionState("b", (1,)))).grants == {"a": 1}


def test_a_free_budget_loads_nothing_without_a_request() -> None:
    """The load of the last minutes calls for a program of one that was evicted, and for a second one of another."""
    evicted, idle = RevisionState("a", (1,), wanted=1), loaded("b", wanted=2)
    assert Affinity(PATIENCE_S).plan(view(evicted, budget=4)).grants == {}
    assert Affinity(PATIENCE_S).plan(view(evicted, idle, budget=4)).grants == {}
    assert Affinity(PATIENCE_S).plan(view(evicted, idle._replace(busy=True), budget=4)).grants == {"b": 2}
    asked = evicted._replace(since_s=NOW_S)
    assert Affinity(PATIENCE_S).plan(view(asked, idle, budget=4)).grants == {"a": 1}


@pytest.mark.parametrize("policy", [Affinity(PATIENCE_S), Fifo()])
def test_an_exclusive_revision_has_no_copy_beyond_its_scale_beside_one_that_leaves(policy: GroupPolicy) -> None:
    stopping = waiting("a", leaving=1, most=1)._replace(needs=())
    plan = policy.plan(View(NOW_S, (), (stopping,), exclusive=True))
    assert (plan.grants, plan.waits["a"].reason) == ({}, WaitsFor.LEAVING)
    roomy = policy.plan(View(NOW_S, (), (stopping._replace(most=2),), exclusive=True))
    assert roomy.grants == {"a": 1}
    gone = policy.plan(View(NOW_S, (), (stopping._replace(leaving=0),), exclusive=True))
    assert gone.grants == {"a": 1}


@pytest.mark.parametrize("policy", [Affinity(PATIENCE_S), Fifo()])
def test_a_revision_with_room_in_the_budget_has_no_copy_beyond_its_scale(policy: GroupPolicy) -> None:
    """The budget would hold both: the one that leaves, and another one."""
    stopping = waiting("a", leaving=1, most=1)
    plan = policy.plan(view(stopping, budget=8))
    assert (plan.grants, plan.waits["a"].reason) == ({}, WaitsFor.LEAVING)
    assert policy.plan(view(stopping._replace(most=2), budget=8)).grants == {"a": 1}
    assert policy.plan(view(stopping._replace(leaving=0), budget=8)).grants == {"a": 1}


def test_nobody_waits_without_a_request() -> None:
    assert waiting("a", since_s=NEVER).since_s == NEVER
    assert Affinity(PATIENCE_S).plan(view(loaded("b", busy=True), waiting("a", since_s=NEVER))).waits == {}


# --- the trace -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_s", [0.1, 0.25, 0.5])
def test_the_trace_costs_half_of_the_swaps_and_half_of_the_wait(every_s: float) -> None:
    """10 times A B A A C A C B with one program at a time, which takes 2 s to load."""
    fifo, affinity = run_trace("fifo", every_s, PATIENCE_S), run_trace("affinity", every_s, PATIENCE_S)
    assert affinity.swaps * 2 <= fifo.swaps
    assert affinity.mean_wait_s * 2.0 <= fifo.mean_wait_s
    assert affinity.worst_wait_s <= PATIENCE_S
    assert isinstance(affinity, Figures)


def test_a_tight_bound_is_kept() -> None:
    """No request is overtaken by one that came more than 3 s after it, or while a program was loaded."""
    bound_s, load_s = 3.0, 2.0
    found = [run_trace("affinity", every_s, bound_s) for every_s in (0.1, 0.25, 0.5)]
    assert max(one.passed_over_s for one in found) <= bound_s + load_s
    assert max(one.passed_over_s for one in found) > load_s  # it is a bound that counts
