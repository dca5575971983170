"""What every policy of a group has to keep: subclass `PolicyContract` and say how one is made."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from activator.control_plane.groups.policy import GroupPolicy, Plan, RevisionState, View, WaitsFor
from activator.runtime.clock import NEVER

NOW_S = 1000.0
VIEWS = 300  # random ones of each test


def views(rng: Random) -> list[View]:
    """Groups at random moments, none of which holds more than its budget."""
    return [_view(rng) for _ in range(VIEWS)]


def _view(rng: Random) -> View:
    exclusive = rng.random() < 0.3
    budget = () if exclusive else (rng.randint(1, 24), rng.randint(1, 64))
    members: list[RevisionState] = []
    left = list(budget)
    has_holder = False
    for name in "abcdef"[: rng.randint(1, 6)]:
        needs = tuple(rng.randint(0, one) for one in budget)
        asleep = tuple(rng.randint(0, one) for one in needs) if rng.random() < 0.4 else None
        started = leaving = sleeping = 0
        if (not exclusive or not has_holder) and all(a >= b for a, b in zip(left, needs)) and rng.random() < 0.7:
            started, leaving = (1, 0) if rng.random() < 0.7 else (0, 1)
            left = [a - b for a, b in zip(left, needs)]
            has_holder = True
        elif asleep is not None and all(a >= b for a, b in zip(left, asleep)):
            sleeping = 1
            left = [a - b for a, b in zip(left, asleep)]
        ready = started and rng.choice((0, 1))
        waits = rng.random() < 0.5
        members.append(
            RevisionState(
                name,
                needs,
                asleep,
                granted=started,
                started=started,
                ready=ready,
                leaving=leaving,
                sleeping=sleeping,
                wanted=rng.choice((1, 1, 3)) if waits or started else rng.choice((0, 1)),
                busy=bool(ready) and rng.random() < 0.5,
                since_s=NOW_S - rng.random() * 60.0 if waits else NEVER,
                used_s=NOW_S - rng.random() * 100.0,
                start_s=rng.random() * 10.0,
                may_start=rng.random() < 0.9,
            )
        )
    return View(NOW_S, budget, tuple(members), exclusive)


def used_after(view: View, plan: Plan) -> list[int]:
    """What is held when the plan has been carried out, and before anything that leaves has gone. What is stopped asleep
    cannot be woken any more: another program is started.
    """
    total = [0] * len(view.budget)
    for member in view.members:
        grant = max(plan.grants.get(member.key, member.granted), member.granted)
        woken = min(max(grant - member.granted, 0), member.sleeping - plan.stop_asleep.get(member.key, 0))
        for place, need in enumerate(member.needs):
            total[place] += (grant + member.leaving) * need
            if member.asleep is not None:
                total[place] += (member.sleeping - woken) * member.asleep[place]
    return total


def holders_after(view: View, plan: Plan) -> int:
    return sum(max(plan.grants.get(one.key, one.granted), one.granted) + one.leaving > 0 for one in view.members)


class PolicyContract:
    """The contract; `make` gives a policy."""

    def make(self) -> GroupPolicy:
        raise NotImplementedError

    @pytest.fixture(params=range(5))
    def moments(self, request: pytest.FixtureRequest) -> list[View]:
        return views(Random(request.param))

    def test_the_budget_is_kept_beside_what_has_not_gone(self, moments: list[View]) -> None:
        policy = self.make()
        granted = 0
        for view in moments:
            plan = policy.plan(view)
            granted += sum(plan.grants.get(one.key, 0) > one.granted for one in view.members)
            if view.exclusive:
                assert holders_after(view, plan) <= max(1, holders_after(view, plan._replace(grants={})))
            else:
                assert all(a <= b for a, b in zip(used_after(view, plan), view.budget)), (view, plan)
        assert granted > VIEWS // 10

    def test_what_is_stopped_asleep_for_one_claim_is_not_woken_for_another(self) -> None:
        def member(name: str, memory: int, asleep: int, since_s: float = NEVER, **more: Any) -> RevisionState:
            return RevisionState(name, (memory,), (asleep,), since_s=since_s, wanted=1, may_start=True, **more)

        view = View(
            NOW_S,
            (20,),
            (
                member("a", 14, 3, sleeping=1),
                member("b", 13, 7, granted=1, started=1, ready=1),
                member("c", 4, 4, NOW_S - 5.0, sleeping=1),
                member("d", 16, 9, NOW_S - 10.0),
            ),
            False,
        )
        plan = self.make().plan(view)
        assert plan.grants["b"] == 0
        assert used_after(view, plan)[0] <= 20, plan

    def test_equal_views_give_equal_plans(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            assert policy.plan(view) == policy.plan(view) == self.make().plan(view)

    def test_what_has_work_leaves_only_for_a_request_that_came_earlier(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            plan = policy.plan(view)
            oldest_s = min((one.since_s for one in view.members if one.granted == 0), default=NEVER)
            for member in view.members:
                left = plan.grants.get(member.key, member.granted)
                if member.busy and member.wanted > 0 and left == 0:
                    assert oldest_s < min(member.since_s, view.now_s)

    def test_a_load_that_has_begun_is_not_given_up(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            plan = policy.plan(view)
            for member in view.members:
                if member.started and not member.ready and member.wanted > 0:
                    assert plan.grants.get(member.key, 1) >= 1

    def test_what_nobody_needs_stays(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            calm = tuple(one._replace(since_s=NEVER, wanted=max(one.wanted, one.granted)) for one in view.members)
            plan = policy.plan(view._replace(members=calm))
            assert not plan.evictions
            assert all(plan.grants.get(one.key, one.granted) >= one.granted for one in calm)

    def test_pins_and_minima_stay(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            pinned = tuple(one._replace(floor=one.granted) for one in view.members)
            plan = policy.plan(view._replace(members=pinned))
            assert all(plan.grants.get(one.key, one.granted) >= one.granted for one in pinned)

    def test_each_that_waits_is_told_for_what(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            plan = policy.plan(view)
            for member in view.members:
                if member.since_s < NEVER and plan.grants.get(member.key, member.granted) == 0:
                    wait = plan.waits[member.key]
                    assert (wait.reason is WaitsFor.BACKOFF) == (not member.may_start)

    def test_the_first_claim_of_an_empty_group_is_served(self, moments: list[View]) -> None:
        policy = self.make()
        for view in moments:
            empty = tuple(
                one._replace(granted=0, started=0, ready=0, leaving=0, sleeping=0, busy=False, may_start=True)
                for one in view.members
            )
            waiting = [one for one in empty if one.since_s < NEVER]
            if waiting:
                first = min(waiting, key=lambda one: (one.since_s, one.key))
                assert policy.plan(view._replace(members=empty)).grants[first.key] >= 1
