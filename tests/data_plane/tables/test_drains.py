"""Drains that take too long: bounded work in each turn, whatever the requests do that are ended."""

from __future__ import annotations

import pytest

from activator.config.specs import DRAIN_TIMEOUT_S, BalancingSpec, RevisionSpec
from activator.data_plane.tables.drains import REVOKED_PER_TURN_MAX
from activator.messages import PodGone, RevisionSet, SlotDrained
from activator.runtime.reasons import Reason
from tests.control_plane.state.state_fakes import KEY, Joined, seen
from tests.data_plane.throttle.throttle_fakes import Request


def with_requests(count: int, pods: int = 1, kind: type[Request] = Request) -> tuple[Joined, list[Request]]:
    joined = Joined()
    joined.do(RevisionSet(RevisionSpec(key=KEY, balancing=BalancingSpec(policy="round-robin", max_scale=pods))))
    joined.do(*(seen(f"p{number}") for number in range(1, pods + 1)))
    requests = [kind(joined.throttler()) for _ in range(count)]
    for request in requests:
        request.ask(joined.clock.now())
    return joined, requests


def ended(requests: list[Request]) -> int:
    return sum("revoked" in request.ends for request in requests)


@pytest.mark.parametrize("pods", [1, 30])
def test_a_bounded_number_of_requests_is_ended_in_each_turn(pods: int) -> None:
    count = 2 * REVOKED_PER_TURN_MAX + 10
    joined, requests = with_requests(count, pods)
    joined.do(*(PodGone(KEY, "list", f"p{number}") for number in range(1, pods + 1)))
    joined.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
    turns = [ended(requests)]
    while joined.clock.turn():
        turns.append(ended(requests))
    assert turns == [REVOKED_PER_TURN_MAX, 2 * REVOKED_PER_TURN_MAX, count, count]
    assert len(joined.hooks.expired) == pods, "each is reported when the last of its requests has ended, and once"
    joined.do(*(SlotDrained(*one, forced=True) for one in joined.hooks.expired))
    assert (joined.slots(), len(joined.throttler().leases)) == ({}, 0)


def test_a_pod_that_comes_back_keeps_what_has_not_been_ended_yet() -> None:
    count = 3 * REVOKED_PER_TURN_MAX
    joined, requests = with_requests(count)
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
    assert ended(requests) == REVOKED_PER_TURN_MAX
    joined.do(seen("p1"))
    while joined.clock.turn():
        pass
    assert ended(requests) == REVOKED_PER_TURN_MAX
    assert joined.hooks.expired == [] and joined.slots() == {"p1": "ready"}
    assert joined.throttler().table.in_flight == len(joined.throttler().leases) == 2 * REVOKED_PER_TURN_MAX


class Deaf(Request):
    """Does not give its slot back when it is told to."""

    def revoked(self, reason: Reason, detail: str) -> None:
        self.ends.append("revoked")


class Broken(Request):
    """Raises when it is told to give its slot back."""

    def revoked(self, reason: Reason, detail: str) -> None:
        self.ends.append("revoked")
        raise RuntimeError("injected")


@pytest.mark.parametrize("kind", [Deaf, Broken])
def test_a_request_that_keeps_its_slot_delays_no_other_and_its_release_is_late(kind: type[Request]) -> None:
    joined, requests = with_requests(4, kind=kind)
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
    assert ended(requests) == 4
    (expired,) = joined.hooks.expired
    joined.do(SlotDrained(*expired, forced=True))
    assert joined.slots() == {}
    assert joined.throttler().counters.errors_total == (4 if kind is Broken else 0)
    joined.do(seen("p2"))
    for request in requests:
        request.release()
    table = joined.throttler().table
    assert (table.in_flight, table.late_releases, len(joined.throttler().leases)) == (0, 4, 0)
