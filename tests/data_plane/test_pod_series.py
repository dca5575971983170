"""The series of each pod (`metrics.pods`): how many there are, and what becomes of one whose pod drains."""

from __future__ import annotations

from activator.data_plane import statistics
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Pool, World, request_head


def serve(world: World, pool: Pool, responses: int) -> None:
    for _ in range(responses):
        pool.figures.responded(200, 0.1)


def series(world: World, pods_max: int = 2) -> dict[str, int]:
    by_pod = statistics.revision(world.throttler, pods_max).by_pod
    return {address: figures[0] for address, figures in by_pod.items()}


def drain(world: World, name: str) -> None:
    world.begin(request_head())
    assert not world.table.drain(world.tracker(name)), "the pod has a request"


def test_pods_that_drain_do_not_count_towards_the_bound() -> None:
    world = World()
    for number in range(1, 4):
        serve(world, world.pod(f"p{number}"), number)
        if number == 2:
            assert series(world) == {"10.0.0.1:80": 1, "10.0.0.2:80": 2}
    assert series(world) == {}, "three pods in service are too many"
    drain(world, "p1")
    assert series(world) == {"10.0.0.1:80": 1, "10.0.0.2:80": 2, "10.0.0.3:80": 3}


def test_no_more_than_twice_the_bound_have_series() -> None:
    world = World()
    for number in range(1, 6):
        serve(world, world.pod(f"p{number}"), number)
        drain(world, f"p{number}")
    assert series(world) == {"10.0.0.1:80": 1, "10.0.0.2:80": 2}


def test_a_pod_that_takes_over_an_address_begins_with_its_own_count() -> None:
    """A sum that falls when the old pod has gone would count the new one's requests twice."""
    world = World()
    serve(world, world.pod("p1"), 100)
    drain(world, "p1")
    successor = world.table.add("other", "10.0.0.1:80", 1, READY)
    assert successor is not None
    pool = Pool()
    successor.attachment = pool
    serve(world, pool, 3)
    assert series(world) == {"10.0.0.1:80": 3}
