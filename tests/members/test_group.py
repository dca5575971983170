"""Agreement on views: storms, the scenarios that found something, and what the operator may allow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.members.contacts import GroupRules
from activator.members.messages import Accept
from activator.members.numbers import seat_of, unmet
from activator.members.readiness import HELD_S, STUCK_S
from tests.conftest import storms
from tests.members.group_world import GroupWorld, storm

FAST = GroupRules()
RELEASING = GroupRules(release_s=5.0, releases_silent=True)
ALONE = GroupRules(grants_alone=True)


@pytest.mark.parametrize("seed", storms([1016, *range(24)]))
def test_nobody_who_may_act_is_taken_for_ended(seed: int) -> None:
    """1016: a coordinator that was stopped proposed an epoch that the others had left behind, again and again."""
    assert storm(seed).events > 100


@pytest.mark.deep
@pytest.mark.parametrize("block", range(20))
def test_nobody_who_may_act_is_taken_for_ended_for_long(block: int) -> None:
    for seed in range(10_000 + 100 * block, 10_100 + 100 * block):
        storm(seed, acts=120)


@pytest.mark.parametrize("seed", storms(range(12)))
def test_it_calms_down_where_the_operator_lets_silent_members_go(seed: int) -> None:
    storm(seed, RELEASING)


def formed(seats: int, rules: GroupRules = FAST) -> GroupWorld:
    world = GroupWorld(1, seats, rules)
    for seat in range(seats):
        world.start(seat)
    world.run(5.0)
    world.check_calm()
    return world


def members(world: GroupWorld, seat: int) -> list[int]:
    return [seat_of(replica.number) for replica in world.processes[seat].view.replicas]


def unproven(world: GroupWorld, seat: int) -> list[int]:
    return list(world.processes[seat].view.unproven)


def test_one_alone_is_a_group() -> None:
    world = GroupWorld(1, 1, FAST)
    world.start(0)
    world.run(0.2)
    world.check_calm()


def test_one_of_three_is_no_group_while_the_others_cannot_be_asked() -> None:
    world = GroupWorld(1, 3, FAST)
    world.partition({(0, 1), (1, 0), (0, 2), (2, 0)})
    world.start(0)
    world.run(10.0)
    assert world.processes[0].view.epoch == 0
    assert "1 of 3" in world.processes[0].group.waiting_for()


def test_one_of_three_begins_where_nobody_else_is_there() -> None:
    world = GroupWorld(1, 3, FAST)
    world.start(2)
    world.run(1.0)
    assert members(world, 2) == [2]


def test_a_member_that_ends_leaves_the_view_when_that_is_proven() -> None:
    world = formed(3)
    world.gives_proof = False
    world.kill(0)
    world.run(3.0)
    dead = world.all[0].number
    assert unproven(world, 1) == [dead]
    world.processes[2].group.ended(dead)
    world.run(1.0)
    assert members(world, 1) == [1, 2]
    assert unproven(world, 1) == []


def test_that_a_member_drains_is_a_new_view_of_the_same_members() -> None:
    world = formed(3)
    before = world.processes[1].view
    group = world.processes[0].group
    group.set_data_planes(tuple([replace(one, drains=True) for one in group.replica.data_planes]))
    world.run(1.0)
    view = world.processes[1].view
    assert view.epoch > before.epoch and members(world, 1) == [0, 1, 2]
    assert [one.drains for replica in view.replicas for one in replica.data_planes] == [True, False, False]
    world.check_calm()


def test_a_member_that_stands_still_stays_unproven_and_comes_back() -> None:
    world = formed(3)
    world.stop(1, 20.0)
    world.run(10.0)
    assert unproven(world, 0) == [world.processes[1].number]
    world.run(15.0)
    world.check_calm()


def test_a_half_with_the_lowest_seat_goes_on_and_the_other_does_not() -> None:
    world = formed(4)
    world.partition({(one, other) for one in (0, 1) for other in (2, 3)})
    world.partition({(other, one) for one in (0, 1) for other in (2, 3)})
    world.run(5.0)
    assert members(world, 0) == [0, 1] and world.processes[0].may_grant
    assert members(world, 2) == [0, 1, 2, 3] and not world.processes[2].may_grant
    assert "no majority" in world.processes[2].group.waiting_for()
    world.heal()
    world.run(5.0)
    world.check_calm()


def test_two_that_do_not_reach_each_other_do_not_quarrel_over_the_third() -> None:
    """Seats 0 and 1 are cut off from each other; the third hears both, and follows the lower one."""
    world = formed(3)
    world.partition({(0, 1), (1, 0)})
    world.run(10.0)
    assert members(world, 0) == members(world, 2) == [0, 2]
    epoch = world.processes[2].view.epoch
    world.run(10.0)
    assert world.processes[2].view.epoch == epoch, "views do not change again and again"


def test_who_may_go_on_alone_does() -> None:
    world = formed(3, ALONE)
    world.partition({(2, 0), (0, 2), (2, 1), (1, 2)})
    world.run(5.0)
    assert members(world, 2) == [2] and world.processes[2].may_grant
    world.heal()
    world.run(5.0)
    world.check_calm()


def test_a_silent_one_is_let_go_where_that_is_allowed_and_taken_back() -> None:
    world = formed(3, RELEASING)
    world.stop(0, 30.0)
    world.run(3.0)
    assert len(unproven(world, 1)) == 1
    world.run(5.0)
    assert unproven(world, 1) == []
    assert members(world, 1) == [1, 2]
    world.run(30.0)
    world.check_calm()


def test_a_later_life_of_a_seat_takes_no_part_until_the_end_of_the_former_one_is_proven() -> None:
    """Its machine may be another one: a copied configuration file is no proof."""
    world = formed(3)
    world.gives_proof = False
    world.kill(1)
    former = world.all[1].number
    world.run(3.0)
    later = world.start(1)
    world.run(20.0)
    assert members(world, 0) == members(world, 2) == [0, 2]
    assert unproven(world, 0) == [former]
    assert later.view.epoch == 0 and "another replica had the seat" in later.group.waiting_for()
    world.processes[2].group.ended(former)  # as the operator says
    world.run(2.0)
    world.check_calm()


def test_the_kernel_of_its_machine_proves_the_end_of_a_former_life() -> None:
    world = formed(3)
    world.gives_proof = False
    world.kill(1)
    world.run(3.0)
    world.gives_proof = True  # for whoever is on its machine
    world.start(1)
    world.run(2.0)
    world.check_calm()


def test_the_machine_of_a_replica_is_asked_also_where_those_who_had_met_it_have_ended() -> None:
    """What is known of its process is handed on with its number."""
    world = formed(3)
    world.gives_proof = False
    world.kill(2)
    world.run(2.0)
    world.kill(1)
    world.run(2.0)
    world.gives_proof = True
    world.start(1)
    world.run(3.0)
    assert members(world, 0) == [0, 1]
    world.start(2)
    world.run(3.0)
    world.check_calm()


def test_links_that_end_while_their_members_live_prove_nothing() -> None:
    world = formed(3)
    for _ in range(40):
        world.end_link(frozenset({world.random.randrange(3), world.random.randrange(3)}))
        world.run(world.random.choice([0.05, 0.3, 2.0]))
    world.run(5.0)
    world.check_calm()
    assert all(not process.group.has_died for process in world.all)


def test_a_replica_that_learns_of_its_own_end_grants_no_more() -> None:
    world = formed(3)
    victim = world.processes[1]
    world.may_die = True
    world.processes[0].group.ended(victim.number)
    world.run(1.0)
    assert victim.group.has_died and not victim.may_grant
    assert "must be started again" in victim.group.waiting_for()
    world._die(victim)
    world.run(1.0)
    world.start(1)
    world.run(5.0)
    world.check_calm()


def test_a_second_replica_on_a_seat_whose_holder_is_reached_is_refused() -> None:
    world = formed(3)
    group = world.processes[0].group
    assert group.contacts.is_taken(1, world.processes[1].number + 1)
    assert not group.contacts.is_taken(1, world.processes[1].number)
    world.stop(1, 10.0)
    world.run(3.0)
    assert not group.contacts.is_taken(1, world.processes[1].number + 1), "it is not reached"


def test_members_that_do_not_agree_on_a_view_are_not_ready() -> None:
    """Whatever the reason: a group in which requests wait reports it."""
    world = formed(3)
    world.lost = (Accept,)
    group = world.processes[0].group
    group.set_data_planes(tuple([replace(one, drains=True) for one in group.replica.data_planes]))
    world.run(2.0)
    assert group.waiting_for() == ""
    world.run(STUCK_S)
    assert "no view that all reached members have accepted" in group.waiting_for()
    world.lost = ()
    world.run(5.0)
    assert group.waiting_for() == ""
    world.check_calm()


def test_clocks_that_drift_and_differ_end_nothing() -> None:
    """Each member measures silence by its own clock, and no time is ever sent."""
    world = GroupWorld(1, 3, FAST)
    world.clocks = {0: (0.7, -1e6), 1: (1.4, 1e9), 2: (1.0, 0.0)}
    for seat in range(3):
        world.start(seat)
    world.run(60.0)
    world.check_calm()
    epoch = world.processes[0].view.epoch
    world.clocks[1] = (1.0, 2e9)  # it is set
    world.run(30.0)
    world.check_calm()
    assert world.processes[0].view.epoch >> 32 <= (epoch >> 32) + 4
    assert not any(process.group.contacts.ended or process.group.has_died for process in world.all)


def test_a_goodbye_reaches_members_whose_link_is_lost_just_then() -> None:
    world = formed(3)
    world.gives_proof = False
    world.partition({(0, 2), (2, 0)})
    world.end_link(frozenset({0, 2}))
    world.run(0.01)
    world.leave(0)
    world.heal()
    world.run(5.0)
    world.leave(1)
    world.run(10.0)
    assert (members(world, 2), unproven(world, 2)) == ([2], [])
    assert world.processes[2].may_grant


def test_a_group_that_grants_no_slots_says_so_at_all_members() -> None:
    world = formed(3)
    for process in world.processes.values():
        process.group.set_owned(2, 2)
    world.run(HELD_S / 2.0)
    assert all(not process.group.waiting_for() for process in world.processes.values())
    world.run(HELD_S)
    assert all("no slots are granted" in process.group.waiting_for() for process in world.processes.values())
    world.processes[1].group.set_owned(3, 2)
    world.run(1.0)
    assert all(not process.group.waiting_for() for process in world.processes.values()), "one of them grants"


def test_the_operator_can_say_that_nobody_has_a_seat_that_was_never_met() -> None:
    world = GroupWorld(1, 3, FAST)
    world.partition({(0, 2), (2, 0), (1, 2), (2, 1)})
    world.start(0)
    world.start(1)
    world.run(5.0)
    assert unproven(world, 0) == [unmet(2)]
    assert not world.processes[0].group.declare_vacant(1), "that one is reached"
    assert world.processes[0].group.declare_vacant(2)
    world.run(0.5)
    assert (members(world, 0), unproven(world, 0)) == ([0, 1], [])
    world.heal()
    world.start(2)
    world.run(5.0)
    world.check_calm()
