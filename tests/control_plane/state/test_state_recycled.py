"""A slot that is given to another pod in the middle of a request: what is said of the request speaks of the old one.

The seed of this project read the slot when a request ended, and by then it could be another pod's.
"""

from __future__ import annotations

import pytest

from activator.data_plane.throttle.leases import Lease, newest_of
from activator.messages import PodGone, RevisionSet, SlotDrained
from activator.runtime.reasons import Reason
from lb.tracker import READY
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.data_plane.proxy.proxy_fakes import World, at_pod
from tests.telemetry.test_access_log import Logged


def recycle(world: World, lease: Lease) -> None:
    """As the state worker does it when a drain has taken too long."""
    table = world.table
    assert lease.tracker.identity == "p1"
    table.free(lease.tracker)
    again = table.add("p2", "10.0.0.2:80", 1, READY)
    assert again is lease.tracker, "the same slot"


def test_what_the_lease_says_and_what_its_release_takes() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    lease = request.lease
    assert lease is not None
    joined.do(PodGone(KEY, "list", "p1"))
    joined.do(SlotDrained(KEY, int(lease.tracker.slot), lease.generation, forced=True), seen("p2"))
    assert lease.tracker.identity == "p2"
    joined.throttler().pod_failed(lease, Reason.CONNECT_FAILED)
    joined.throttler().pod_failed(lease, Reason.POD_CLOSED)
    joined.do()
    request.release(succeeded=False)
    told = {event[1] for event in joined.heard.events if event[0] in {"refused", "served", "trial"}}
    assert told == set(), "nothing is said of p2, and of p1, which has gone, there is nothing left to say"
    assert joined.slots() == {"p2": "ready"}
    table = joined.throttler().table
    assert (table.in_flight, table.late_releases, table.room) == (0, 1, 1)


@pytest.mark.parametrize("end", ["answered", "closed", "refused", "gone", "revoked"])
def test_the_line_in_the_access_log_and_the_error_to_the_client(end: str) -> None:
    logged = Logged()
    world = logged.world
    world.pod(connects=end != "refused")
    exchange, client = world.begin()
    lease = exchange.last_lease
    assert lease is not None
    recycle(world, lease)
    if end == "answered":
        world.answer(exchange)
    elif end == "closed":
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    elif end == "refused":
        exchange.attempts = 2  # the last that there may be
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    elif end == "gone":
        exchange.client_gone()
    else:
        assert newest_of(lease.tracker) is None, "it is not at p2"
        world.throttler.revoke(lease, Reason.POD_REMOVED, "")
    assert exchange.over
    (entry,) = logged.entries()
    assert (entry["pod"], entry["address"]) == ("p1", "10.0.0.1:80")
    if end == "refused":
        assert b"10.0.0.1:80" in client.body
    assert b"10.0.0.2" not in client.body
    assert {event[1] for event in world.heard.events if event[0] in {"refused", "served", "trial"}} <= {"p1"}
    table = world.table
    assert (table.in_flight, table.late_releases, table.room) == (0, 1, 1), "p2 is as it came"
    assert [slot.identity for slot in table.slots[: table.length]] == ["p2"]
    table.check_invariants()
