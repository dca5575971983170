"""Groups, members and throttlers together: storms, and the smallest stories of what they have found."""

from __future__ import annotations

import pytest

from activator.members.contacts import GroupRules
from tests.conftest import storms
from tests.members.whole_storm import ALONE, CLOSES, PROMPT, STRICT, storm
from tests.members.whole_world import WholeNode, WholeWorld, ask_somewhere

KEY = "ns/a"
ENDS = {"served", "left", "killed", "revision_removed", "no_route"}


@pytest.mark.parametrize("seed", storms(range(24)))
def test_limits_are_kept_and_nobody_is_lost_whatever_fails(seed: int) -> None:
    assert storm(seed, STRICT).ends.keys() <= ENDS


@pytest.mark.parametrize("seed", storms([138, 331, *range(100, 110)]))
def test_limits_are_exceeded_only_by_what_released_members_had(seed: int) -> None:
    assert storm(seed, PROMPT).ends.keys() <= ENDS


@pytest.mark.parametrize("seed", storms(range(200, 210)))
def test_limits_are_kept_where_parts_go_on_alone(seed: int) -> None:
    assert storm(seed, ALONE).ends.keys() <= ENDS


@pytest.mark.parametrize("seed", storms(range(300, 316)))
def test_limits_are_kept_where_somebody_on_the_way_closes_links_in_order(seed: int) -> None:
    assert storm(seed, STRICT, faults=CLOSES).ends.keys() <= ENDS


@pytest.mark.deep
@pytest.mark.parametrize("rules", [STRICT, PROMPT, ALONE])
def test_through_long_storms(rules: GroupRules) -> None:
    for seed in range(20_000, 20_400):
        storm(seed, rules, rounds=3)


def formed(seats: int, rules: GroupRules = STRICT) -> WholeWorld:
    world = WholeWorld(1, seats, {KEY: (1, 3)}, rules)
    world.run(6.0)
    world.check_view()
    return world


def owner_of(world: WholeWorld) -> WholeNode:
    (owner,) = [node for node in world.whole() if f"{KEY}#0" in node.member.owned]
    return owner


def cut_off(world: WholeWorld, seat: int) -> None:
    others = [other for other in range(world.seats) if other != seat]
    world.streams.cut |= {(seat, other) for other in others} | {(other, seat) for other in others}


def test_an_owner_that_was_released_counts_what_others_have_got_meanwhile() -> None:
    """It owned the revision before and after, and did not know of the view in between."""
    world = formed(3, PROMPT)
    owner = owner_of(world)
    cut_off(world, owner.seat)
    world.run(20.0)
    others = [node for node in world.whole() if node is not owner]
    asked = [world.ask(others[number % 2], KEY, 30.0) for number in range(3)]
    world.run(1.0)
    assert all(one.pod is not None for one in asked), "another one has granted them"
    late = world.ask(owner, KEY, 0.1)
    world.streams.slowest_s = 0.2
    world.streams.heal(0.0)
    world.run(5.0)
    assert owner_of(world) is owner
    assert late.pod is None and not late.end, "all pods are full"
    world.run(60.0)
    assert world.ends["served"] == 4


def test_a_member_that_is_not_proven_to_have_ended_keeps_its_slots() -> None:
    world = formed(3)
    owner = owner_of(world)
    other = next(node for node in world.whole() if node is not owner)
    asked = [world.ask(other, KEY, 1000.0) for _ in range(3)]
    world.run(0.5)
    assert all(one.pod is not None for one in asked)
    cut_off(world, other.seat)
    other.pause()
    world.run(30.0)
    waiting = world.ask(owner, KEY, 0.1)
    world.run(30.0)
    assert waiting.pod is None, "nobody says that the silent one has ended"
    world.kill_seat(other.seat, "none")
    world.streams.heal(0.0)
    world.start(other.seat)
    world.run(10.0)
    assert world.ends["served"] == 1, "its machine says that it has ended"


def test_whoever_starts_while_a_revision_is_gone_means_the_same_one_when_it_comes_back() -> None:
    world = formed(3)
    world.kill_seat(2, "end")
    world.run(1.0)
    for node in world.whole():
        node.drop_key(KEY)
    world.absent.add(KEY)
    world.start(2)
    world.run(5.0)
    world.absent.clear()
    for node in world.whole():
        node.set_key(KEY)
    world.run(1.0)
    assert world.common_name(KEY) == f"{KEY}#1"
    for _ in range(200):
        ask_somewhere(world, KEY)
        world.run(0.02)
    world.calm_down()
    world.check_calm()


@pytest.mark.parametrize("seed", storms(range(6)))
def test_what_a_former_owner_has_in_use_of_a_dropped_revision_counts_for_the_next_owner(seed: int) -> None:
    """The drop reaches the former owner first, which drains before the drop reaches the next one."""
    world = WholeWorld(seed, 2, {KEY: (1, 1)})
    world.run(6.0)
    owner = owner_of(world)
    (other,) = [node for node in world.whole() if node is not owner]
    first = world.ask(owner, KEY, 30.0)
    world.run(0.2)
    assert first.pod is not None
    owner.drop_key(KEY)
    waiting = world.ask(other, KEY, 1.0)
    world.leave_seat(owner.seat)
    world.run(3.0)
    assert owner_of(world) is other
    assert waiting.pod is None, "the pod has its one request already"
    world.run(40.0)
    assert waiting.end == "served"
