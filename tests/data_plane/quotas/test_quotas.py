"""Quotas hold exactly over several data planes, whatever happens to members and links."""

from __future__ import annotations

import pytest

from activator.config.specs import QuotaSpec
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.quotas.ledger import ADMITTED, CONCURRENCY, REQUESTS, TOKENS, UNKNOWN, Ledger
from activator.data_plane.quotas.messages import Level, QuotaLevel, QuotaLevelAck, QuotaMessage, QuotaState
from activator.data_plane.quotas.quota import AdmissionRequest, Quota
from activator.data_plane.quotas.quotas import ASK_MAX_S, Quotas
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
    for ticks in (0, 1):
        alone.quotas.set_users([])
        for _ in range(ticks):
            alone.quotas.tick()
        assert alone.quotas.find("alice") is None
        alone.set(QuotaSpec(requests=12, requests_period_s=100.0))
        assert alone.ask()[0] == REQUESTS, "who removes a user and adds it again resets nothing"


def test_a_request_outlives_its_quota() -> None:
    alone = Alone(QuotaSpec(concurrency=1))
    one = alone.quotas.ask(alone.quota, 0)
    alone.quotas.set_users([])
    alone.quotas.tick()
    alone.set(QuotaSpec(concurrency=1))
    assert alone.ask()[0] == CONCURRENCY
    alone.quotas.end(one, 0)
    assert alone.ask()[0] == ADMITTED


def limit_of(asked: AdmissionRequest) -> str | None:
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


def two_members(spec: QuotaSpec) -> tuple[World, Plane, Plane]:
    """Return a world, and its members: the owner of alice's quota, and the other one."""
    world = settled(2, {"alice": spec})
    owner = world.planes[quota_of(next(iter(world.planes.values()))).owner]
    return world, owner, next(plane for plane in world.planes.values() if plane is not owner)


def test_a_user_without_limits_at_one_member_gives_its_slots_back() -> None:
    world, owner, other = two_members(QuotaSpec(concurrency=2))
    for _ in range(2):
        world.ask(other, "alice", 0)
    world.run(0.1)
    world.ask(other, "alice", 0)  # on its way when the reload comes
    world.reload(other, {"alice"})
    for readds in (False, True):
        if readds:
            world.reload(other, set())
        if other.begun:
            world.end(other, 1.0)
        world.run(1.0)
        world.ask(owner, "alice", 0)
        world.run(0.1)
        assert len(owner.begun) == 1 + readds
    world.ask(owner, "alice", 0)
    assert len(owner.begun) == 2


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_owner_that_removes_a_user_and_adds_it_again_knows_its_slots(seconds: float) -> None:
    world, owner, other = two_members(QuotaSpec(concurrency=1))
    world.ask(other, "alice", 0)
    world.run(0.1)
    world.reload(owner, {"alice"})
    world.run(seconds)
    world.ask(other, "alice", 0)
    world.run(0.1)
    world.reload(owner, set())
    world.ask(owner, "alice", 0)
    world.run(0.2)
    assert len(other.begun) == 1 and not owner.begun and not other.asked
    world.end(other, 1.0)
    world.run(0.1)
    world.ask(owner, "alice", 0)
    world.run(0.1)
    assert len(owner.begun) == 1


def test_what_was_held_for_a_lost_link_becomes_free() -> None:
    ledger = Ledger(QuotaSpec(requests=4, requests_period_s=1.0), 1)
    ledger.begin(1, 50.0)
    for number in range(4):
        ledger.hold_reply(2, number, ledger.decide(0, 0, 50.0), 1.0, 0.0, 50.0)
    assert ledger.level(60.0).requests == 4.0, "as long as nobody knows of it"
    ledger.forget_undecided(2, 60.0)
    assert ledger.level(60.5).requests == 2.0 and not ledger.held


def test_limits_that_a_reload_adds_or_removes_while_replies_are_held() -> None:
    """What was reserved is committed, no less and no more, and usage outlasts the time without a limit."""
    ledger = Ledger(QuotaSpec(concurrency=9), 1)
    ledger.begin(1, 50.0)
    ledger.hold_reply(2, 1, ledger.decide(5, 0, 50.0), *ledger.amounts(5), 50.0)
    ledger.configure(QuotaSpec(requests=10, requests_period_s=DAY_S, tokens=100, tokens_period_s=DAY_S), 50.0)
    ledger.hold_reply(2, 2, ledger.decide(5, 0, 50.0), *ledger.amounts(5), 50.0)
    ledger.configure(QuotaSpec(tokens=100, tokens_period_s=DAY_S), 50.0)
    while ledger.next_acknowledged(frozenset(), 50.0) is not None:
        pass
    ledger.configure(QuotaSpec(requests=10, requests_period_s=DAY_S, tokens=100, tokens_period_s=DAY_S), 60.0)
    assert (ledger.level(60.0).requests, round(ledger.level(60.0).tokens, 1)) == (1.0, 5.0)
    assert ledger.taken() == (1.0, 5.0)
    assert [ledger.decide(0, 0, 60.0).limit for _ in range(10)].count(ADMITTED) == 9


def test_a_request_that_ends_while_its_reply_is_held_is_settled() -> None:
    ledger = Ledger(QuotaSpec(tokens=100, tokens_period_s=DAY_S), 1)
    ledger.begin(1, 50.0)
    ledger.hold_reply(1, 1, ledger.decide(60, 0, 50.0), *ledger.amounts(60), 50.0)
    ledger.adjust_tokens(1, 1, -60, 51.0)
    assert ledger.level(51.0).tokens == 0.0
    one = ledger.next_acknowledged(frozenset(), 52.0)
    assert one is not None and ledger.level(52.0).tokens == 0.0 and not ledger._drained_s


def test_the_last_owner_counts() -> None:
    spec = QuotaSpec(requests=160, requests_period_s=DAY_S)
    for levels, used in (
        ([], 0.0),
        ([Level(0, 160.0, 0.0)], 170.0),
        ([Level(0, 160.0, 0.0), Level(0, 7.0, 0.0, True)], 160.0),
        ([Level(2, 30.0, 0.0), Level(5, 20.0, 0.0), Level(5, 22.0, 0.0)], 32.0),
        ([Level(2, 30.0, 0.0, True), Level(5, 20.0, 0.0)], 30.0),
        ([Level(5, 30.0, 0.0, True), Level(5, 40.0, 0.0)], 30.0),
    ):
        ledger = Ledger(spec, 1)
        ledger.levels.extend(levels)
        ledger.begin(6, 50.0)
        assert ledger.level(50.0).requests == used, levels


def test_a_level_of_a_former_owner_is_not_noted() -> None:
    sent: list[QuotaMessage] = []
    quotas = Quotas(lambda: 50.0)
    quotas.join(1, lambda member, message: sent.append(message))
    quotas.linked(2)
    for since, noted in ((4, True), (3, False), (4, True), (5, True)):
        sent.clear()
        quotas.receive(2, QuotaLevel(0, "user alice", Level(since, 1.0, 0.0), 1.0, 0.0))
        assert (sent == [QuotaLevelAck(0, "user alice", 1.0, 0.0)]) is noted


def test_with_prompt_who_returns_counts_what_it_has_granted() -> None:
    """Others may have taken over from a member that was cut off; what they have granted is not counted then."""
    for place in range(8):
        quotas = Quotas(lambda: 1_000.0)
        quotas.join(1, lambda member, message: None)
        quotas.adopt(View(1, (MemberName(1, place),)))
        quotas.set_users([user("alice", QuotaSpec(requests=60, requests_period_s=DAY_S))])
        quota = quotas.find("alice")
        assert quota is not None
        quotas.ask(quota, 0)
        quotas.adopt(View(9, (MemberName(1, place), MemberName(2, place + 1)), follows=False, is_next=False))
        quotas.linked(2)
        call = 1 << 40
        quotas.receive(2, QuotaState(9, call, ()))  # it has just started
        if quota.ledger is None:
            continue
        assert quota.ledger.since == 9 and quota.ledger.level(1_000.0).requests == 1.0 + 60 // 16
        return
    raise AssertionError("it owns the quota in none of the views")


@pytest.mark.parametrize("knows", [True, False])
def test_what_is_noted_of_a_user_that_is_not_known_yet_is_passed_on(knows: bool) -> None:
    world = World({}, 5)
    first = world.add(0)
    world.add(1)
    world.link_some()
    world.run(0.1)
    world.specs = {f"new {at}": QuotaSpec(requests=16, requests_period_s=DAY_S) for at in range(12)}
    world.truths = {name: Truth(spec) for name, spec in world.specs.items()}
    first.quotas.set_users(world.users())  # the second one has not reloaded
    for name in world.specs:
        for _ in range(20):
            world.ask(first, name, 0)
    world.run(0.2)
    world.kill(first.name.number)
    specs = world.specs
    world.specs = specs if knows else {}
    third = world.add(2)
    world.link_some()
    world.run(0.1)
    world.specs = specs
    third.quotas.set_users(world.users())
    world.run(0.1)
    for name in world.specs:
        for _ in range(20):
            world.ask(third, name, 0)
    world.run(0.3)  # the truths would say so if there were more than 16


def test_a_user_that_the_owner_does_not_know_yet_is_asked_for_again() -> None:
    world, owner, other = two_members(QuotaSpec(requests=5, requests_period_s=DAY_S))
    world.reload(owner, {"alice"})
    world.run(0.5)
    for _ in range(8):
        world.ask(other, "alice", 0)
    world.run(1.0)
    assert not other.begun and len(other.asked) == 8
    world.reload(owner, set())
    world.run(1.0)
    assert len(other.begun) == 5 and not other.asked


def test_tokens_that_are_free_again_are_not_given_back() -> None:
    alone = Alone(QuotaSpec(tokens=1_000, tokens_period_s=1.0))
    reserved = []
    for _ in range(20):
        alone.now_s += 1.0
        reserved.append(alone.quotas.ask(alone.quota, 1_000))
    alone.now_s += 0.5
    for one in reserved[:-1]:
        assert one.decision is not None and one.decision.limit == ADMITTED
        alone.quotas.end(one, 0)
    assert alone.ask(501) == (TOKENS, 0.001)
    alone.quotas.end(reserved[-1], 0)
    assert alone.ask(1_000)[0] == ADMITTED, "half of it was left, and is given back"


def test_what_was_held_is_not_told_as_a_burst() -> None:
    """The other member notes nothing for a while; what it is waited for begins to become free only then."""
    world, owner, other = two_members(QuotaSpec(requests=10, requests_period_s=1.0))
    world.run(0.1)
    world.unlink(owner.name.number, other.name.number)
    for _ in range(40):
        for _ in range(3):
            world.ask(owner, "alice", 0)
        world.run(0.1)
    assert world.truths["alice"].admitted > 10, "not for ever"


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
        elif what < 0.945:
            world.reload(plane, set() if plane.without else {random.choice(list(STORM)) for _ in range(3)})
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
    assert sum(truth.admitted for truth in world.truths.values()) > 100 and world.refused > 20


@pytest.mark.deep
def test_a_million_requests_in_storms_exceed_no_limit() -> None:
    for seed in range(100, 300):
        storm(seed, 5_000)


@pytest.mark.parametrize("seed", range(70, 76))
def test_after_a_storm_everything_is_decided_and_settled(seed: int) -> None:
    world = storm(seed, 1_000)
    for number in list(world.apart):
        world.take_back(number)
    for plane in world.planes.values():
        world.reload(plane, set())
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
