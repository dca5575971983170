"""Loads that data planes share: what policies see is what the others have, whatever comes and goes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from activator.data_plane.loads.messages import PodLoad, PodLoads
from activator.data_plane.loads.shared_loads import PEERS_AT_FULL_RATE, SHARED_LOADS_INTERVAL_S, SLOTS_PER_REPORT_MAX
from tests.data_plane.loads.shared_loads_world import NEXT_REPORT_S, LoadsWorld, Plane

KEYS = ("default/a", "default/b")


def with_pods(planes: int, pods: int, limit: int = 0) -> LoadsWorld:
    world = LoadsWorld(planes)
    world.apply(lambda plane: plane.set_revision("default/a", 1, limit))
    for number in range(pods):
        world.apply(lambda plane, name=f"pod{number}": plane.place("default/a", name))  # type: ignore[misc]
    world.settle()
    return world


def elsewhere(plane: Plane, key: str = "default/a") -> dict[str, int]:
    table = plane.throttlers[key].table
    return {tracker.identity: int(tracker.elsewhere) for tracker in table.slots[: table.length] if tracker.elsewhere}


def test_each_picks_by_what_all_of_them_have() -> None:
    """With one request after the other, no pod has two while another has none, wherever they come to."""
    world = with_pods(3, 9)
    for number in range(9):
        world.planes[1 + number % 3].ask("default/a")
        world.settle()
    world.check()
    for number in range(9):
        assert sum(plane.in_flight("default/a#1", f"pod{number}") for plane in world.planes.values()) == 1


def test_nothing_is_said_while_nothing_changes() -> None:
    world = with_pods(2, 3)
    assert world.said == 0
    world.planes[1].ask("default/a")
    world.settle()
    assert world.said == 1
    world.clock.pass_time(10.0)
    assert world.said == 1, "the request is still there, and that is known"
    world.planes[1].end(0)
    world.planes[1].report_to_control()
    world.settle()
    assert world.said == 2
    assert elsewhere(world.planes[2]) == {}
    assert world.planes[1].wheel.armed == 0, "nobody is looked at any more"
    world.check()


def test_what_happens_within_an_interval_is_one_report() -> None:
    world = with_pods(2, 3)
    for _ in range(50):
        world.planes[1].ask("default/a")
        world.clock.pass_time(SHARED_LOADS_INTERVAL_S / 1000.0)
    world.settle()
    world.check()
    assert world.said <= 3


def test_what_a_dead_one_had_is_out_at_once() -> None:
    world = with_pods(3, 2)
    for _ in range(4):
        world.planes[1].ask("default/a")
    world.settle()
    assert elsewhere(world.planes[2]) == {"pod0": 2, "pod1": 2}
    world.kill(1)
    assert elsewhere(world.planes[2]) == elsewhere(world.planes[3]) == {}
    new = world.start()
    world.settle()
    assert elsewhere(new) == {}
    world.check()


def test_one_that_comes_is_told_what_there_is() -> None:
    world = with_pods(1, 2)
    for _ in range(4):
        world.planes[1].ask("default/a")
    world.settle()
    assert world.said == 0, "there is nobody to tell"
    new = world.start()
    world.settle()
    assert elsewhere(new) == {"pod0": 2, "pod1": 2}
    again = world.start()
    world.deliver(1, 3)
    assert elsewhere(again) == {"pod0": 2, "pod1": 2}, "at once: it was told to others before"


def test_a_pod_that_leaves_takes_its_entry_along_and_another_one_begins_anew() -> None:
    world = with_pods(2, 2)
    one, other = world.planes[1], world.planes[2]
    for _ in range(4):
        one.ask("default/a")
    world.settle()
    world.apply(lambda plane: plane.withdraw("default/a", "pod0"))
    world.settle()
    assert elsewhere(other) == {"pod1": 2}
    world.apply(lambda plane: plane.place("default/a", "pod2"))
    world.settle()
    assert elsewhere(other) == {"pod1": 2}, "it has the slot of the other, and nothing of its load"
    world.check()


def test_a_pod_that_comes_late_has_what_was_said_of_it_before() -> None:
    world = with_pods(2, 1)
    one, other = world.planes[1], world.planes[2]
    one.place("default/a", "pod1")
    one.ask("default/a")
    one.ask("default/a")
    world.settle()
    assert elsewhere(other) == {"pod0": 1}
    other.place("default/a", "pod1")
    assert elsewhere(other) == {"pod0": 1, "pod1": 1}
    world.check()


def test_a_revision_with_a_limit_is_its_owners() -> None:
    world = with_pods(2, 1)
    world.planes[1].ask("default/a")
    world.settle()
    world.apply(lambda plane: plane.set_revision("default/a", 1, 5))
    world.settle()
    assert elsewhere(world.planes[2]) == {}
    world.check()
    said = world.said
    world.planes[1].ask("default/a")
    world.settle()
    assert world.said == said
    world.apply(lambda plane: plane.set_revision("default/a", 1, 0))
    world.settle()
    assert elsewhere(world.planes[2]) == {"pod0": 2}
    world.check()


def test_what_was_said_before_a_limit_does_not_come_back_after_it() -> None:
    world = with_pods(2, 2)
    world.planes[1].ask("default/a")
    world.settle()
    world.apply(lambda plane: plane.set_revision("default/a", 1, 5))
    world.settle()
    world.planes[1].end(0)
    world.apply(lambda plane: plane.set_revision("default/a", 1, 0))
    world.settle()
    assert elsewhere(world.planes[2]) == {}
    world.check()


def test_a_revision_that_is_dropped_is_taken_back() -> None:
    world = with_pods(2, 2)
    world.planes[1].ask("default/a")
    world.settle()
    world.planes[1].drop_revision("default/a")
    assert world.deliver(1, 2)
    assert elsewhere(world.planes[2]) == {}


def test_large_tables_are_looked_at_in_parts() -> None:
    pods = SLOTS_PER_REPORT_MAX + 500
    world = with_pods(2, pods)
    for _ in range(pods):
        world.planes[1].ask("default/a")
    world.clock.pass_time(NEXT_REPORT_S)
    assert len(world.wires[1, 2]) == 1
    world.deliver(1, 2)
    assert len(elsewhere(world.planes[2])) == SLOTS_PER_REPORT_MAX
    world.settle()
    assert len(elsewhere(world.planes[2])) == pods
    world.check()


def test_many_revisions_have_their_turns() -> None:
    world = LoadsWorld(2)
    keys = [f"default/{number}" for number in range(1_500)]
    for key in keys:
        for plane in world.planes.values():
            plane.set_revision(key, 1, 0)
            plane.place(key, "pod")
        world.planes[1].ask(key)
    world.clock.pass_time(NEXT_REPORT_S)
    assert len(world.wires[1, 2]) == SLOTS_PER_REPORT_MAX
    world.settle()
    world.check()


def test_with_many_others_reports_come_less_often() -> None:
    planes = 2 * PEERS_AT_FULL_RATE + 1
    world = with_pods(planes, 1)
    for _ in range(100):
        world.planes[1].ask("default/a")
        world.clock.pass_time(SHARED_LOADS_INTERVAL_S / 5.0)
    assert 5 * (planes - 1) <= world.said <= 11 * (planes - 1)


def test_what_makes_no_sense_harms_nobody() -> None:
    world = with_pods(2, 1)
    loads = world.planes[1].loads
    loads.receive(2, PodLoads("default/a#1", False, (PodLoad("pod0", -5), PodLoad("nobody", 3))))
    loads.receive(2, PodLoads("default/nothing#1", True, ()))
    loads.receive(9, PodLoads("default/a#1", False, (PodLoad("pod0", 5),)))
    loads.unlinked(9)
    assert elsewhere(world.planes[1]) == {}
    world.check()


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_after_any_life_everybody_knows_the_truth(seed: int) -> None:
    """Requests, pods, limits and revisions that come and go, each heard of by each in its own time; planes that die and
    are replaced, and links that end.
    """
    chance = random.Random(seed)
    world = LoadsWorld(3)
    lives = dict.fromkeys(KEYS, 1)
    there: dict[str, set[str]] = {key: set() for key in KEYS}
    for key in KEYS:
        world.apply(lambda plane, key=key: plane.set_revision(key, 1, 0))  # type: ignore[misc]
    for _ in range(chance.choice((50, 400))):
        _something_happens(chance, world, lives, there)
    world.settle()
    world.check()
    for plane in world.planes.values():
        while plane.requests:
            plane.end(0)
        plane.report_to_control()
    world.settle()
    said = world.said
    world.clock.pass_time(5.0)
    assert world.said == said
    assert all(plane.wheel.armed == 0 for plane in world.planes.values())
    assert all(elsewhere(plane, key) == {} for plane in world.planes.values() for key in KEYS)


def _something_happens(
    chance: random.Random, world: LoadsWorld, lives: dict[str, int], there: dict[str, set[str]]
) -> None:
    plane = chance.choice(list(world.planes.values()))
    key = chance.choice(KEYS)
    what = chance.random()
    if what < 0.3:
        plane.ask(key)
    elif what < 0.45:
        if plane.requests:
            plane.end(chance.randrange(100))
    elif what < 0.6:
        if plane.effects:
            plane.effects.popleft()(plane)
    elif what < 0.75:
        if world.wires:
            world.deliver(*chance.choice(list(world.wires)))
    elif what < 0.82:
        world.clock.pass_time(chance.choice((0.01, NEXT_REPORT_S)))
        plane.report_to_control()
    elif what < 0.92:
        _pod_comes_or_goes(chance, world, key, there[key])
    elif what < 0.94:
        limit = chance.choice((0, 0, 3))
        world.apply(lambda plane: plane.set_revision(key, lives[key], limit))
    elif what < 0.95:
        lives[key] += 1
        there[key].clear()
        life = lives[key]
        world.apply(lambda plane: plane.drop_revision(key))
        world.apply(lambda plane: plane.set_revision(key, life, 0))
    elif what < 0.97:
        one, other = chance.sample(list(world.planes), 2)
        world.unlink(one, other)
        world.link(one, other)
    else:
        world.kill(plane.number)
        world.start()


def _pod_comes_or_goes(chance: random.Random, world: LoadsWorld, key: str, there: set[str]) -> None:
    identity = f"pod{chance.randrange(4)}"
    if identity in there:
        there.discard(identity)
        world.apply(lambda plane: plane.withdraw(key, identity))
    else:
        there.add(identity)
        world.apply(lambda plane: plane.place(key, identity))
