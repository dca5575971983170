"""Grants, the line, refusals, hand-over: the stories of one throttler."""

from __future__ import annotations

import pytest

from activator.data_plane.throttle.leases import newest_of
from activator.runtime.reasons import Reason
from lb.tracker import QUARANTINED, READY, RECOVERING
from tests.data_plane.throttle.throttle_fakes import Request, asking, make


def test_a_slot_at_once_and_the_next_one_waits() -> None:
    throttler, table, heard, clock = make()
    table.add("pod", "10.0.0.1:80", 1, READY)
    first, second = asking(throttler, clock.now()), asking(throttler, clock.now())
    assert first.ends == ["granted"]
    assert second.ends == []
    assert heard.events == [("activated",), ("queue_formed",)]
    first.release()
    assert second.ends == ["granted"]
    second.release()
    assert table.in_flight == 0
    assert not throttler.leases


def test_the_line_is_served_in_order_of_arrival_and_newcomers_never_overtake() -> None:
    throttler, table, _, clock = make()
    table.add("pod", "10.0.0.1:80", 1, READY)
    holder = asking(throttler, clock.now())
    line = [asking(throttler, clock.now(), number) for number in range(5)]
    order = []
    current = holder
    for _ in range(5):
        current.release()
        current = next(request for request in line if request.lease is not None)
        order.append(current.name)
    assert order == [0, 1, 2, 3, 4]


def test_a_pod_that_becomes_ready_takes_as_many_as_it_has_room_for() -> None:
    throttler, table, _, clock = make()
    line = [asking(throttler, clock.now(), number) for number in range(5)]
    table.add("pod", "10.0.0.1:80", 3, READY)
    throttler.pump()
    assert [request.ends for request in line] == [["granted"]] * 3 + [[]] * 2


def test_depth_bounds_the_line() -> None:
    throttler, _, _, clock = make(depth=2)
    requests = [asking(throttler, clock.now()) for _ in range(3)]
    assert [request.ends for request in requests] == [[], [], ["queue_full"]]
    requests[0].leave()
    again = asking(throttler, clock.now())
    assert again.ends == []
    assert throttler.queue.waiters.length == 2


def test_leaving_from_the_middle_keeps_the_order() -> None:
    throttler, table, _, clock = make()
    line = [asking(throttler, clock.now(), number) for number in range(4)]
    line[1].leave()
    line[1].leave()
    table.add("pod", "10.0.0.1:80", 10, READY)
    throttler.pump()
    assert [request.ends for request in line] == [["granted"], ["left", "left"], ["granted"], ["granted"]]


def test_a_grant_that_fails_at_once_loops_and_does_not_recurse() -> None:
    throttler, table, _, clock = make(depth=10_000)
    table.add("pod", "10.0.0.1:80", 1, READY)

    class Failing(Request):
        def granted(self, lease) -> None:  # type: ignore[no-untyped-def]
            super().granted(lease)
            self.release()

    holder = asking(throttler, clock.now())
    line = [Failing(throttler) for _ in range(5_000)]
    for request in line:
        request.ask(clock.now())
    holder.release()
    while clock.turn():
        pass
    assert all(request.ends == ["granted"] for request in line)
    assert table.in_flight == 0


def test_one_turn_hands_over_a_bounded_number() -> None:
    throttler, table, _, clock = make(per_turn=10)
    line = [asking(throttler, clock.now()) for _ in range(25)]
    table.add("pod", "10.0.0.1:80", 100, READY)
    throttler.pump()
    assert sum(bool(request.ends) for request in line) == 10
    clock.turn()
    assert sum(bool(request.ends) for request in line) == 20
    clock.turn()
    assert sum(bool(request.ends) for request in line) == 25
    assert clock.turn() == 0


def test_a_request_that_is_tried_again_keeps_its_place() -> None:
    throttler, table, heard, clock = make()
    table.add("bad", "10.0.0.1:80", 1, READY)
    early = asking(throttler, clock.now(), 0)
    late = asking(throttler, clock.now(), 1)
    lease = early.lease
    assert lease is not None
    throttler.pod_failed(lease, Reason.CONNECT_FAILED)
    assert throttler.requeue(early, lease, Reason.CONNECT_FAILED) is None
    early.lease = None
    throttler.release(lease, 0.0, False)
    assert late.ends == [], "the only pod is suspected"
    assert ("refused", "bad", "True") in heard.events
    table.add("good", "10.0.0.2:80", 1, READY)
    throttler.pump()
    assert early.ends == ["granted", "granted"]
    assert late.ends == []
    assert [lease.identity for lease in throttler.leases] == ["good"]


def test_a_failed_revision_tells_everyone_and_recovers() -> None:
    throttler, table, _, clock = make()
    waiting = asking(throttler, clock.now())
    throttler.queue.fail("exited with code 3")
    assert waiting.ends == ["revision_failed"]
    newcomer = asking(throttler, clock.now())
    assert newcomer.ends == ["revision_failed"]
    throttler.recover()
    after = asking(throttler, clock.now())
    assert after.ends == []
    table.add("pod", "10.0.0.1:80", 1, READY)
    throttler.pump()
    assert after.ends == ["granted"]


def test_a_removed_revision_tells_the_line_and_lets_running_requests_end() -> None:
    throttler, table, heard, clock = make()
    tracker = table.add("pod", "10.0.0.1:80", 1, READY)
    assert tracker is not None
    running, waiting = asking(throttler, clock.now()), asking(throttler, clock.now())
    table.drain(tracker)
    throttler.remove()
    assert waiting.ends == ["revision_removed"]
    running.release()
    assert table.in_flight == 0
    assert heard.events[-1] == ("departed", "pod")


def test_the_last_release_of_a_draining_pod_is_told_once() -> None:
    throttler, table, heard, clock = make()
    tracker = table.add("pod", "10.0.0.1:80", 2, READY)
    assert tracker is not None
    first, second = asking(throttler, clock.now()), asking(throttler, clock.now())
    table.drain(tracker)
    first.release()
    assert not [event for event in heard.events if event[0] == "drained"]
    second.release()
    assert [event for event in heard.events if event[0] == "drained"] == [
        ("drained", str(tracker.slot), str(tracker.generation))
    ]


def test_a_release_after_the_slot_went_to_another_pod_is_harmless() -> None:
    throttler, table, _, clock = make()
    tracker = table.add("old", "10.0.0.1:80", 1, READY)
    assert tracker is not None
    request = asking(throttler, clock.now())
    table.free(tracker)
    new = table.add("new", "10.0.0.1:80", 1, READY)
    assert new is not None
    other = asking(throttler, clock.now())
    assert other.lease is not None
    request.release()
    assert new.in_flight == 1
    assert table.late_releases == 1


def test_a_trial_is_reported_with_its_outcome() -> None:
    throttler, table, heard, clock = make()
    table.add("pod", "10.0.0.1:80", 1, RECOVERING)
    request = asking(throttler, clock.now())
    assert request.lease is not None
    throttler.pod_failed(request.lease, Reason.FIRST_BYTE_TIMEOUT)
    request.release(succeeded=False)
    assert heard.events[-1] == ("trial", "pod", "False")
    request = asking(throttler, clock.now())
    assert request.lease is not None
    throttler.trial_answered(request.lease)
    assert heard.events[-1] == ("trial", "pod", "True")
    told = len(heard.events)
    request.release()
    assert len(heard.events) == told and heard.events[-1] == ("trial", "pod", "True"), "once"


def test_revoking_ends_exactly_the_requests_of_one_pod() -> None:
    throttler, table, _, clock = make()
    table.add("one", "10.0.0.1:80", 2, READY)
    table.add("two", "10.0.0.2:80", 2, READY)
    requests = [asking(throttler, clock.now()) for _ in range(4)]
    one = table.find_identity("one")
    assert one is not None
    while (lease := newest_of(one)) is not None:
        throttler.revoke(lease, Reason.POD_REMOVED, "")
    revoked = [request for request in requests if "revoked" in request.ends]
    assert len(revoked) == 2
    assert table.in_flight == len(throttler.leases) == 2
    assert {lease.identity for lease in throttler.leases} == {"two"}


def test_retry_after_follows_the_rate_at_which_slots_come_free() -> None:
    throttler, table, _, clock = make()
    table.add("pod", "10.0.0.1:80", 1, READY)
    holder = asking(throttler, clock.now())
    line = [asking(throttler, clock.now()) for _ in range(60)]
    current = holder
    for _ in range(40):  # two a second
        clock.pass_time(0.5)
        current.release()
        current = next(request for request in line if request.lease is not None)
    # 20 are left at about 2/s: ten seconds, give or take the warming up of the estimate
    assert 9 <= throttler.queue.retry_after_s() <= 16


def test_queue_timeout_outlasts_the_startup_timeout_until_a_pod_was_ready() -> None:
    throttler, _, _, _ = make()
    assert throttler.queue.queue_timeout_s() > throttler.spec.queue.startup_timeout_s
    throttler.queue.was_ready = True
    assert throttler.queue.queue_timeout_s() == 60.0


def test_quarantined_pods_keep_their_ledger() -> None:
    throttler, table, _, clock = make()
    tracker = table.add("pod", "10.0.0.1:80", 2, READY)
    assert tracker is not None
    request = asking(throttler, clock.now())
    table.set_state(tracker, QUARANTINED)
    assert tracker.in_flight == 1
    request.release()
    table.set_state(tracker, READY)
    assert tracker.in_flight == 0


@pytest.mark.parametrize("per_turn", [1, 4, 5, 256])
def test_a_bounded_turn_skips_no_pod(per_turn: int) -> None:
    """The pick that comes after the last grant of a turn was thrown away: round-robin had gone on to the next pod."""
    throttler, table, _, clock = make(per_turn=per_turn)
    line = [asking(throttler, clock.now(), number) for number in range(18)]
    for pod in range(3):
        table.add(f"p{pod}", f"10.0.0.{pod}:80", 10, READY)
    throttler.pump()
    while clock.turn():
        pass
    picked = [request.lease.identity for request in line if request.lease is not None]
    assert picked == ["p0", "p1", "p2"] * 6
