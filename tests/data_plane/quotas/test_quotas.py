"""Quotas hold exactly over several data planes, whatever happens to members and links."""

from __future__ import annotations

import pytest

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.ledger import ADMITTED, CONCURRENCY, REQUESTS, TOKENS, UNKNOWN
from activator.data_plane.quotas.quotas import ASK_MAX_S, Asked, Quota, Quotas
from tests.data_plane.quotas.quota_world import Plane, Truth, World, user

DAY_S = 86_400.0
SPECS = {
    "few": QuotaSpec(requests=7, requests_period_s=DAY_S),
    "many": QuotaSpec(requests=200, requests_period_s=DAY_S),
    "quick": QuotaSpec(requests=100, requests_period_s=50.0),
    "tokens": QuotaSpec(tokens=5_000, tokens_period_s=DAY_S),
    "both": QuotaSpec(concurrency=3, requests=300, requests_period_s=100.0, tokens=20_000, tokens_period_s=100.0),
    "narrow": QuotaSpec(concurrency=2),
}
STORM = SPECS | {f"user {at}": QuotaSpec(requests=33, requests_period_s=DAY_S) for at in range(10)}


class Alone:
    """One data plane, with one user."""

    def __init__(self, spec: QuotaSpec) -> None:
        self.now_s = 50.0
        self.quotas = Quotas(lambda: self.now_s)
        self.set(spec)

    def set(self, spec: QuotaSpec) -> None:
        self.quotas.set_users([user("alice", spec)])
        found = self.quotas.find("alice")
        assert found is not None
        self.quota = found

    def ask(self, tokens: int = 0) -> tuple[str, float]:
        asked = self.quotas.ask(self.quota, tokens)
        assert asked.decision is not None
        return asked.decision.limit, round(asked.decision.wait_s, 6)


def test_requests_become_free_evenly() -> None:
    alone = Alone(QuotaSpec(requests=60, requests_period_s=60.0))
    assert [alone.ask() for _ in range(60)] == [(ADMITTED, 0.0)] * 60
    assert alone.ask() == (REQUESTS, 1.0)
    alone.now_s += 0.75
    assert alone.ask() == (REQUESTS, 0.25), "a refused request takes nothing"
    alone.now_s += 0.25
    assert alone.ask() == (ADMITTED, 0.0)
    assert alone.ask() == (REQUESTS, 1.0)
    alone.now_s += 3600.0
    assert [alone.ask()[0] for _ in range(61)].count(ADMITTED) == 60, "no more than the limit is saved up"
    assert alone.quotas.rejections() == {"alice": (0, 4, 0, 0)}


def test_tokens_are_reserved_and_settled() -> None:
    alone = Alone(QuotaSpec(tokens=1_000, tokens_period_s=1_000.0))
    one = alone.quotas.ask(alone.quota, 900)
    assert one.decision is not None and one.decision.limit == ADMITTED and one.decision.tokens_left == 100
    assert alone.ask(101) == (TOKENS, 1.0)
    alone.quotas.end(one, 300)
    assert alone.ask(700) == (ADMITTED, 0.0)
    other = alone.quotas.ask(alone.quota, 0)
    alone.quotas.end(other, 500)  # more than it had reserved: a debt
    assert alone.ask(1) == (TOKENS, 501.0)
    assert alone.ask(5_000) == (TOKENS, 1500.0), "as much as there can be, when all is free"


def test_requests_at_the_same_time() -> None:
    alone = Alone(QuotaSpec(concurrency=2))
    one = alone.quotas.ask(alone.quota, 0)
    assert alone.ask()[0] == ADMITTED
    assert alone.ask()[0] == CONCURRENCY
    alone.quotas.end(one, 0)
    alone.quotas.end(one, 0)  # a second end has no effect
    assert alone.ask()[0] == ADMITTED
    assert alone.ask()[0] == CONCURRENCY


def test_a_reload_changes_limits_and_keeps_what_is_used() -> None:
    alone = Alone(QuotaSpec(requests=10, requests_period_s=100.0))
    assert [alone.ask()[0] for _ in range(10)] == [ADMITTED] * 10
    alone.set(QuotaSpec(requests=12, requests_period_s=100.0))
    assert [alone.ask()[0] for _ in range(3)] == [ADMITTED, ADMITTED, REQUESTS]
    before = alone.quota
    alone.quotas.set_users([])
    assert alone.quotas.find("alice") is None
    alone.set(QuotaSpec(requests=12, requests_period_s=100.0))
    assert alone.quota is not before
    assert alone.ask()[0] == REQUESTS, "who removes a user and adds it again resets nothing"


def test_a_request_outlives_its_quota() -> None:
    alone = Alone(QuotaSpec(concurrency=1))
    one = alone.quotas.ask(alone.quota, 0)
    alone.quotas.set_users([])
    alone.set(QuotaSpec(concurrency=1))
    assert alone.ask()[0] == ADMITTED
    alone.quotas.end(one, 0)
    assert alone.ask()[0] == CONCURRENCY


def limit_of(asked: Asked) -> str | None:
    """Return the limit that refuses a request, "" if it is admitted, None as long as it is undecided."""
    return None if asked.decision is None else asked.decision.limit


def quota_of(plane: Plane, name: str = "alice") -> Quota:
    found = plane.quotas.find(name)
    assert found is not None
    return found


def settled(count: int, specs: dict[str, QuotaSpec] = SPECS, seed: int = 1) -> World:
    """Return members that have agreed on a view."""
    world = World(specs, seed)
    for place in range(count):
        world.add(place)
    world.link_some()
    world.run(0.2)
    return world


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_of_a_limit_can_be_used_at_any_member(count: int) -> None:
    world = settled(count)
    for name, at_least in (("few", 7), ("many", 200), ("narrow", 2)):
        for at in range(300):
            world.ask(list(world.planes.values())[at % count], name, 0)
            world.run(0.002)
        world.run(0.1)
        assert world.truths[name].admitted == at_least, name
    assert not any(plane.asked for plane in world.planes.values())


@pytest.mark.parametrize("name", ["few", "many", "tokens"])
def test_an_owner_that_dies_is_replaced_by_one_that_knows_what_it_granted(name: str) -> None:
    for seed in range(20):
        world = settled(3, seed=seed)
        while world.planes and world.truths[name].admitted < 5:
            for plane in list(world.planes.values()):
                world.ask(plane, name, 200)
            world.run(world.random.random() * 0.02)
        owner = quota_of(next(iter(world.planes.values())), name).owner
        undecided = sum(len(plane.asked) for plane in world.planes.values())  # the owner may have granted these, too
        world.kill(owner)
        before = world.truths[name].admitted
        for _ in range(250):
            for plane in world.planes.values():
                world.ask(plane, name, 200)
            world.run(0.004)
        world.run(1.0)
        after = world.truths[name].admitted
        spec = SPECS[name]
        limit = spec.requests or spec.tokens // 200
        assert after <= limit and after >= limit - limit // 16 - 1 - undecided, (before, after)


def test_what_nobody_knows_counts_as_used() -> None:
    world = World({"alice": QuotaSpec(requests=7, requests_period_s=DAY_S)}, 1)
    first = world.add(0)
    world.run(0.1)
    for _ in range(7):
        world.ask(first, "alice", 0)
    second = world.add(1)
    world.run(0.1)  # without a link
    world.kill(first.name.number)
    world.run(0.1)
    world.ask(second, "alice", 0)
    assert world.truths["alice"].admitted == 7 and world.refused == 1


def test_a_new_user_has_all_of_its_quota_whoever_has_ended_before() -> None:
    world = settled(3, {"alice": QuotaSpec(requests=7, requests_period_s=DAY_S)})
    world.kill(1)
    world.run(0.1)
    world.specs = {**world.specs, **{f"new {at}": QuotaSpec(requests=32, requests_period_s=DAY_S) for at in range(8)}}
    world.truths = {name: Truth(spec) for name, spec in world.specs.items()}
    for plane in world.planes.values():
        plane.quotas.set_users(world.users())
    world.run(0.1)
    for at in range(8):
        for _ in range(40):
            world.ask(world.planes[2 + at % 2], f"new {at}", 0)
        world.run(0.2)
        assert world.truths[f"new {at}"].admitted == 32


def test_a_call_between_a_decision_and_its_reply() -> None:
    world = settled(2, {"alice": QuotaSpec(concurrency=1)})
    owner = world.planes[quota_of(next(iter(world.planes.values()))).owner]
    other = next(plane for plane in world.planes.values() if plane is not owner)
    world.ask(other, "alice", 0)
    world.run(0.05)
    assert len(other.begun) == 1
    world.end(other, 1.0)
    world.run(0.05)
    world.ask(other, "alice", 0)
    ledger = quota_of(owner).ledger
    assert ledger is not None
    while not ledger.open.get(other.name.number):
        assert not other.begun
        world.specs = {**world.specs, f"new {world.now_s}": QuotaSpec(concurrency=1)}
        owner.quotas.set_users(world.users())  # calls, if it owns the new one
        world.run(0.001, 0.001)
    for _ in range(50):
        world.run(0.001, 0.001)
        world.ask(owner, "alice", 0)
    assert len(other.begun) == 1 and not owner.begun


def test_an_unreachable_owner_costs_its_user_a_bounded_wait() -> None:
    world = settled(2, {"alice": QuotaSpec(requests=10, requests_period_s=DAY_S)})
    owner = quota_of(next(iter(world.planes.values()))).owner
    other = next(number for number in world.planes if number != owner)
    world.unlink(owner, other)
    asked = world.planes[other].quotas.ask(quota_of(world.planes[other]), 0)
    world.run(ASK_MAX_S - 0.3)
    assert limit_of(asked) is None
    world.run(0.6)
    assert limit_of(asked) == UNKNOWN
    world.link_some()
    asked = world.planes[other].quotas.ask(quota_of(world.planes[other]), 0)
    world.run(0.2)
    assert limit_of(asked) == ADMITTED


def test_a_member_that_learns_of_a_user_first() -> None:
    """A reload reaches the members one after the other; a question that comes too early is repeated."""
    world = settled(2, {})
    world.specs = {"alice": QuotaSpec(requests=10, requests_period_s=DAY_S)}
    first, second = world.planes.values()
    for one, other in ((first, second), (second, first)):
        one.quotas.set_users(world.users())
        asked = one.quotas.ask(quota_of(one), 0)
        world.run(0.3)
        other.quotas.set_users(world.users())
        world.run(1.0)
        assert limit_of(asked) == ADMITTED
        for plane in (first, second):
            plane.quotas.set_users([])


def test_what_took_more_tokens_than_reserved_is_counted_over_a_lost_link() -> None:
    spec = QuotaSpec(tokens=1_000, tokens_period_s=DAY_S)
    for seed in range(30):
        world = settled(2, {"alice": spec}, seed)
        owner = quota_of(next(iter(world.planes.values()))).owner
        other = next(number for number in world.planes if number != owner)
        world.ask(world.planes[other], "alice", 100)
        world.run(0.2)
        world.end(world.planes[other], 5.0)
        world.run(world.random.random() * 0.03)
        world.unlink(owner, other)
        world.link_some()
        world.run(0.2)
        ledger = quota_of(world.planes[owner]).ledger
        assert ledger is not None and round(ledger.level(world.now_s).tokens) == 500
        assert not quota_of(world.planes[other]).settling


def storm(seed: int, requests: int) -> World:
    """Requests at random members, while members end, join, stand apart and lose links."""
    world = settled(5, STORM, seed)
    random = world.random
    for _ in range(requests):
        plane = random.choice(list(world.planes.values()))
        what = random.random()
        if what < 0.55:
            world.ask(plane, random.choice(list(STORM)), random.randrange(400))
        elif what < 0.90:
            world.end(plane, random.random())
        elif what < 0.94:
            world.leave(plane)
        elif what < 0.96:
            one, other = random.sample(list(world.planes), 2) if len(world.planes) > 1 else (0, 0)
            world.unlink(one, other)
        elif what < 0.98:
            world.link_some()
        elif what < 0.985 and len(world.planes) > 2:
            world.kill(plane.name.number)
        elif what < 0.992 and len(world.planes) < 6:
            world.add(random.randrange(8))
        elif what < 0.994 and not world.apart and len(world.planes) > 2:
            world.set_apart(plane.name.number)
        elif world.apart:
            world.take_back(next(iter(world.apart)))
        world.run(random.random() * random.random() * 0.02)
    return world


@pytest.mark.parametrize("seed", range(16))
def test_no_storm_exceeds_a_limit(seed: int) -> None:
    world = storm(seed, 1_500)
    assert world.truths["many"].admitted > 20 and world.refused > 20


@pytest.mark.deep
def test_a_million_requests_in_storms_exceed_no_limit() -> None:
    for seed in range(100, 300):
        storm(seed, 5_000)


@pytest.mark.parametrize("seed", range(70, 76))
def test_after_a_storm_everything_is_decided_and_settled(seed: int) -> None:
    world = storm(seed, 1_000)
    for number in list(world.apart):
        world.take_back(number)
    world.link_some()
    world.run(ASK_MAX_S + 1.0)
    for plane in list(world.planes.values()):
        while plane.begun:
            world.end(plane, 1.0)
    world.run(0.2)
    for plane in world.planes.values():
        assert not plane.asked
        for name, spec in STORM.items():
            quota = quota_of(plane, name)
            assert not quota.asking and not quota.settling and not quota.open
            if quota.ledger is not None:
                assert not quota.ledger.held and not quota.ledger.waiting and quota.ledger.since
                assert not any(quota.ledger.open.values()), "slots of requests that have ended"
                assert quota.ledger.open.keys() <= world.planes.keys(), "a member that has ended"
                requests, tokens = world.truths[name].used(world.now_s)
                level = quota.ledger.level(world.now_s)
                assert level.requests >= requests - 0.1 or not spec.requests
                assert level.tokens >= tokens - 5.0 or not spec.tokens
