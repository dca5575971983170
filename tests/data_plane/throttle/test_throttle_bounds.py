"""What bounds a line, who passes it, who is told what and when: the stories of one throttler."""

from __future__ import annotations

from typing import Any

import pytest

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead
from activator.config.specs import BalancingSpec, DisciplineSpec, QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.ownership.lending import NOTHING_YET
from activator.data_plane.refusals import REFUSALS_PER_TURN_MAX
from activator.data_plane.throttle.admission import make_classifier
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler, least_loaded
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import NOT_READY, READY, RECOVERING
from tests.data_plane.throttle.throttle_fakes import Heard, Request, asking, make
from tests.manual_clock import ManualClock

HEALTH = RuleSpec("/healthz", ("GET",), exempt=True)


def head(target: str = "/", method: str = "GET", **fields: str) -> RequestHead:
    pairs: Headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    return RequestHead(method.encode(), target.encode(), b"a", Fields.from_pairs(pairs), UNKNOWN_LENGTH, False)


class Asking(Request):
    """A request with a head."""

    def __init__(self, throttler: RevisionThrottler, asked: RequestHead, name: int = 0) -> None:
        super().__init__(throttler, name)
        self.asked = asked

    def request(self) -> RequestHead | None:
        return self.asked


class Room:
    """A throttler as a spec wants it."""

    def __init__(self, requests_max: int = 1_000_000, **spec: Any) -> None:
        self.clock = ManualClock()
        self.heard = Heard()
        self.table = TrackerTable(create("round-robin", Rng(1)), 4, 0.5)
        self.process = HeldBudget(requests_max=requests_max)
        self.throttler = RevisionThrottler(
            RevisionSpec(key="ns/rev", **spec),
            self.table,
            self.clock.now,
            self.clock.defer,
            self.heard,
            256,
            self.process,
        )

    def pod(self, name: str = "p1", limit: int = 1) -> None:
        assert self.table.add(name, f"10.0.0.{name[1:]}:80", limit, READY) is not None
        self.throttler.pump()

    def ask(self, target: str = "/", method: str = "GET", **fields: str) -> Asking:
        request = Asking(self.throttler, head(target, method, **fields))
        request.ask(self.clock.now())
        return request


# --- exempted requests ---


def test_an_exempted_request_passes_when_all_is_full() -> None:
    room = Room(queue=QueueSpec(depth=1, rules=(HEALTH,)))
    room.pod()
    working, waiting = room.ask(), room.ask()
    assert room.ask().ends == ["queue_full"]
    health = room.ask("/healthz?deep=1")
    assert health.ends == ["granted"]
    assert room.throttler.counters.exempted_total == 1
    assert room.table.in_flight == 2
    working.release()
    assert waiting.ends == [], "the pod still bears as much as it may"
    health.release()
    assert waiting.ends == ["granted"]


def test_an_exempted_request_goes_where_least_is_borne_for_its_limit() -> None:
    room = Room(queue=QueueSpec(rules=(HEALTH,)))
    room.pod("p1", 1)
    room.pod("p2", 4)
    for _ in range(5):
        room.ask()
    first, second = room.ask("/healthz"), room.ask("/healthz")
    assert [one.lease.identity for one in (first, second) if one.lease is not None] == ["p1", "p2"], (
        "1 of 1, then 4 of 4"
    )


def test_without_a_pod_that_could_take_it_an_exempted_request_waits_like_others() -> None:
    room = Room(queue=QueueSpec(depth=2, rules=(HEALTH,)))
    first, health = room.ask(), room.ask("/healthz")
    assert room.ask("/healthz").ends == ["queue_full"]
    room.pod("p1", 2)
    assert (first.ends, health.ends) == (["granted"], ["granted"])
    assert room.throttler.counters.exempted_total == 0


def test_who_may_not_be_overfilled() -> None:
    room = Room()
    table = room.table
    assert least_loaded(table) is None
    table.add("p1", "10.0.0.1:80", 1, RECOVERING)
    table.add("p2", "10.0.0.2:80", 1, NOT_READY)
    table.add("p3", "10.0.0.3:80", 0, READY)
    suspected = table.add("p4", "10.0.0.4:80", 1, READY)
    assert suspected is not None
    table.suspect(suspected, 5.0)
    assert least_loaded(table) is None
    good = table.add("p5", "10.0.0.5:80", 1, READY)
    assert least_loaded(table) is good


@pytest.mark.parametrize(
    ("target", "method", "exempt"),
    [
        ("/healthz", "GET", True),
        ("/healthz/live?x=/..", "GET", True),
        ("/healthz", "POST", False),
        ("/", "GET", False),
        ("/healthz/../batch", "GET", False),
        ("/healthz/%2e%2E/batch", "GET", False),
        ("/healthz/..%2Fbatch", "GET", False),
        ("/healthz\\..\\batch", "GET", False),
    ],
)
def test_a_path_that_may_mean_another_is_not_exempted(target: str, method: str, exempt: bool) -> None:
    classifier = make_classifier(QueueSpec(rules=(HEALTH,)))
    assert classifier is not None
    assert classifier.is_exempt(head(target, method)) is exempt


def test_the_first_rule_that_matches_counts() -> None:
    rules = (RuleSpec("/healthz", charge=2), HEALTH, RuleSpec("/", charge=3))
    classifier = make_classifier(QueueSpec(rules=rules, discipline=DisciplineSpec("fair", key_header="X-Tenant")))
    assert classifier is not None
    assert not classifier.is_exempt(head("/healthz"))
    request = Asking(make()[0], head("/other", x_tenant="t"))
    assert classifier.classify(request, request.asked) == ""
    assert (request.share, request.charge) == (b"t", 3)


@pytest.mark.parametrize(
    ("said", "level"), [("5", 5), ("-3", 0), ("99", 7), ("high", 2), ("", 2), ("1.5", 2), (None, 2)]
)
def test_a_level_is_read_from_the_header_and_kept_within_bounds(said: str | None, level: int) -> None:
    classifier = make_classifier(QueueSpec(discipline=DisciplineSpec("priority", "X-Level", 5.0, 2)))
    assert classifier is not None
    request = Asking(make()[0], head() if said is None else head(x_level=said))
    assert classifier.classify(request, request.asked) == ""
    assert request.level == level


def test_level_and_key_have_a_header_each() -> None:
    shown = DisciplineSpec("priority-fair", "X-Level", 5.0, 2, key_header="X-Tenant")
    classifier = make_classifier(QueueSpec(discipline=shown, rules=(RuleSpec("/", charge=3),)))
    assert classifier is not None
    for fields, place in (({"x_level": "5", "x_tenant": "t"}, (5, b"t", 3)), ({}, (2, b"", 3))):
        request = Asking(make()[0], head(**fields))
        assert classifier.classify(request, request.asked) == ""
        assert (request.level, request.share, request.charge) == place


# --- bounds ---


def test_the_process_holds_only_so_many_requests() -> None:
    room = Room(requests_max=2)
    first, second = room.ask(), room.ask()
    assert room.ask().ends == ["held_requests_full"]
    first.leave()
    assert room.ask().ends == []
    assert room.process.held_requests == 2
    room.pod("p1", 5)
    assert second.ends == ["granted"]
    assert room.process.held_requests == 0


def test_an_overloaded_worker_refuses_who_would_wait_for_its_own_slots() -> None:
    room = Room()
    room.pod()
    working, waiting = room.ask(), room.ask()
    room.process.refuses = True
    assert room.ask().ends == ["overloaded"]
    remote = Waiter()  # waits at another worker, which has accepted it
    remote.is_remote = True
    assert room.throttler.try_acquire(remote, room.clock.now()) is None
    assert room.throttler.queue.enqueue(remote) is None
    room.throttler.queue.cancel(remote)
    assert waiting.ends == [], "what waits keeps its place"
    working.release()
    assert waiting.ends == ["granted"]
    waiting.release()
    assert room.ask().ends == ["granted"], "who need not wait is served"


def test_an_overloaded_worker_lets_requests_wait_for_the_slots_of_another() -> None:
    room = Room()
    room.process.refuses = True
    room.throttler.sharing.source = NOTHING_YET
    assert room.ask().ends == []
    room.throttler.sharing.source = None
    assert room.ask().ends == ["overloaded"]


# --- time ---


@pytest.mark.parametrize(
    ("fields", "most_s", "limit_s"),
    [
        ({}, None, 60.0),
        ({"activator_queue_timeout": "5"}, None, 5.0),
        ({"activator_queue_timeout": "300ms"}, None, 0.3),
        ({"activator_queue_timeout": "10m"}, None, 60.0),
        ({"activator_queue_timeout": "10m"}, 120.0, 120.0),
        ({"activator_queue_timeout": "90s"}, 120.0, 90.0),
        ({"activator_deadline": "2.5"}, None, 2.5),
        ({"activator_deadline": "200"}, 120.0, 60.0),
        ({"activator_queue_timeout": "90s", "activator_deadline": "70s"}, 120.0, 70.0),
    ],
)
def test_a_request_may_say_how_long_it_waits(fields: dict[str, str], most_s: float | None, limit_s: float) -> None:
    room = Room(queue=QueueSpec(request_timeout=True, request_timeout_max_s=most_s, timeout_s=60.0))
    assert room.throttler.queue.wait_limit_s(room.ask(**fields)) == pytest.approx(limit_s)


def test_what_a_request_says_counts_only_where_it_is_allowed() -> None:
    room = Room(queue=QueueSpec(timeout_s=60.0))
    assert room.throttler.queue.wait_limit_s(room.ask(activator_queue_timeout="5")) == 60.0


def test_a_time_that_is_none_is_the_clients_mistake() -> None:
    room = Room(queue=QueueSpec(request_timeout=True))
    assert room.ask(activator_deadline="soon").ends == ["bad_request"]
    assert room.throttler.queue.refusal_detail() == (
        "Activator-Deadline: found 'soon', expected seconds or a duration such as 300ms, 5s or 2m"
    )
    assert room.process.held_requests == 0


# --- prediction ---


def served(room: Room, took_s: float) -> None:
    request = room.ask()
    lease = request.lease
    assert lease is not None
    request.lease = None
    room.clock.pass_time(took_s)
    room.throttler.release(lease, took_s, True)


PREDICTIVE: dict[str, Any] = {
    "container_concurrency": 1,
    "balancing": BalancingSpec(max_scale=2),
    "queue": QueueSpec(timeout_s=60.0, request_timeout=True, admission="predictive"),
}


def predictive(**spec: Any) -> Room:
    return Room(**{**PREDICTIVE, **spec})


def test_who_cannot_be_in_time_even_at_best_is_told_at_arrival() -> None:
    room = predictive()
    room.pod("p1")
    served(room, 4.0)
    room.ask()
    for _ in range(4):
        assert room.ask(activator_deadline="30s").ends == []
    # Two slots at most, four ahead, four seconds each at best: not before eight seconds have passed.
    assert room.ask(activator_deadline="7.9s").ends == ["deadline_too_short"]
    assert room.throttler.queue.refusal_detail() == "a slot in 8.0 s at best, required within 7.9 s"
    assert room.ask(activator_deadline="8s").ends == []


@pytest.mark.parametrize(
    "more",
    [
        {"balancing": BalancingSpec(max_scale=0)},
        {"queue": QueueSpec(request_timeout=True)},
        {"container_concurrency": 0},
    ],
)
def test_what_is_not_known_refuses_nobody(more: dict[str, Any]) -> None:
    room = predictive()
    room.throttler.reconfigure(RevisionSpec(key="ns/rev", **{**PREDICTIVE, **more}))
    room.pod("p1")
    served(room, 4.0)
    room.ask()
    for _ in range(10):
        assert room.ask(activator_deadline="1ms").ends == []


def test_a_quick_request_of_late_makes_everything_possible() -> None:
    room = predictive()
    room.pod("p1")
    served(room, 4.0)
    served(room, 0.001)
    room.ask()
    for _ in range(10):
        assert room.ask(activator_deadline="10ms").ends == []


def test_a_start_that_never_was_quicker_refuses_whoever_wants_it_quicker() -> None:
    room = predictive()
    first = room.ask()
    room.clock.pass_time(20.0)
    room.pod("p1")
    first.release()
    tracker = room.table.find_identity("p1")
    assert tracker is not None
    room.table.drain(tracker)
    room.ask()
    room.clock.pass_time(5.0)
    assert room.ask(activator_deadline="14s").ends == ["deadline_too_short"]
    assert room.throttler.queue.retry_after_s() == 15
    assert room.ask(activator_deadline="16s").ends == []


# --- when to come again ---


def test_retry_after_is_honest_from_the_first_second_of_a_line() -> None:
    room = Room()
    room.pod("p1", 10)
    holders = [room.ask() for _ in range(10)]
    line = [room.ask() for _ in range(100)]
    for number in range(10):  # ten a second
        room.clock.pass_time(0.1)
        holders[number].release()
    assert len([one for one in line if one.lease is None]) == 90
    assert 9 <= room.throttler.queue.retry_after_s() <= 10


def test_a_pause_without_a_line_does_not_slow_the_estimate_down() -> None:
    room = Room()
    room.pod("p1", 1)
    current = room.ask()
    for _ in range(2):
        line = [room.ask() for _ in range(20)]
        for following in line:
            room.clock.pass_time(0.5)
            current.release()
            current = following
        room.clock.pass_time(300.0)
    line = [room.ask() for _ in range(20)]
    assert 9 <= room.throttler.queue.retry_after_s() <= 12


def test_retry_after_is_never_nought_and_never_absurd() -> None:
    room = Room()
    assert room.throttler.queue.retry_after_s() == 1
    room.ask()
    assert room.throttler.queue.retry_after_s() == 1
    room.clock.pass_time(30.0)
    assert room.throttler.queue.retry_after_s() == 30, "as long again as it has taken"
    room.clock.pass_time(3_000.0)
    assert room.throttler.queue.retry_after_s() == 120


# --- waiters that raise ---


class Clumsy(Request):
    def granted(self, lease: Lease) -> None:
        super().granted(lease)
        raise RuntimeError("granted")

    def refused(self, reason: Reason, detail: str) -> None:
        super().refused(reason, detail)
        raise RuntimeError("refused")


def test_a_waiter_that_raises_costs_nobody_else_anything() -> None:
    throttler, table, heard, clock = make()
    line = [Clumsy(throttler), Request(throttler), Clumsy(throttler), Request(throttler)]
    for request in line:
        request.ask(clock.now())
    table.add("pod", "10.0.0.1:80", 2, READY)
    throttler.pump()
    assert [request.ends for request in line] == [["granted", "internal"], ["granted"]] * 2
    assert len(throttler.leases) == table.in_flight == 2
    assert throttler.counters.errors_total == 4
    assert next(event for event in heard.events if event[0] == "failed")[1] == "RuntimeError('granted')"


def test_a_waiter_that_raises_when_refused_does_not_keep_the_others_from_hearing() -> None:
    throttler, _, _, clock = make()
    line = [Clumsy(throttler), Request(throttler)]
    for request in line:
        request.ask(clock.now())
    throttler.queue.fail("x")
    assert [request.ends for request in line] == [["revision_failed"]] * 2
    assert throttler.counters.errors_total == 1


def test_retry_after_names_the_next_attempt_to_start() -> None:
    throttler, _, _, clock = make(depth=10)
    waiting = asking(throttler, clock.now())
    throttler.queue.fail("exited", clock.now() + 6.3)
    assert waiting.ends == ["revision_failed"]
    assert throttler.queue.retry_after_s() == 7
    clock.now_s += 6.0
    assert throttler.queue.retry_after_s() == 1
    throttler.queue.fail("exited", clock.now() + 1000.0)
    assert throttler.queue.retry_after_s() == 120, "bounded"
    throttler.recover()
    assert throttler.queue.retry_after_s() == 1


# --- many at once ---


def many(throttler: RevisionThrottler, count: int) -> list[Request]:
    return [asking(throttler, 1000.0) for _ in range(count)]


def test_a_failed_revision_tells_a_bounded_number_in_each_turn() -> None:
    throttler, _, _, clock = make(depth=10_000)
    line = many(throttler, 10_000)
    throttler.queue.fail("exited")
    newcomer = asking(throttler, clock.now())
    assert newcomer.ends == ["revision_failed"], "a newcomer hears at once"
    assert throttler.queue.waiters.length == 0
    told = [REFUSALS_PER_TURN_MAX]
    while clock.turn():
        told.append(sum(bool(request.ends) for request in line))
    assert max(after - before for before, after in zip([0, *told], told)) <= REFUSALS_PER_TURN_MAX
    assert all(request.ends == ["revision_failed"] for request in line)


def test_a_turn_ends_early_when_telling_is_slow() -> None:
    throttler, _, _, clock = make(depth=1_000)

    class Slow(Request):
        def refused(self, reason: Reason, detail: str) -> None:
            super().refused(reason, detail)
            clock.now_s += 0.001

    line = [Slow(throttler) for _ in range(200)]
    for request in line:
        request.ask(clock.now())
    throttler.queue.fail("exited")
    assert sum(bool(request.ends) for request in line) <= 16
    while clock.turn():
        pass
    assert all(request.ends == ["revision_failed"] for request in line)


def test_who_leaves_before_being_told_is_not_told() -> None:
    throttler, _, _, clock = make(depth=10_000)
    line = many(throttler, 1_000)
    throttler.queue.fail("exited")
    line[-1].leave()
    throttler.recover()
    while clock.turn():
        pass
    assert line[-1].ends == ["left"]
    assert line[-2].ends == ["revision_failed"]


def test_ten_thousand_may_run_out_of_time_together() -> None:
    throttler, table, _, clock = make(depth=10_000)
    line = many(throttler, 10_000)
    for request in line:
        throttler.queue.overdue(request)
    assert sum(bool(request.ends) for request in line) == REFUSALS_PER_TURN_MAX
    table.add("pod", "10.0.0.1:80", 10, READY)
    throttler.pump()
    while clock.turn():
        pass
    assert all(request.ends == ["queue_timeout"] for request in line), "nobody whose time is up is granted a slot"


# --- reconfiguration ---


def test_another_discipline_takes_everybody_over() -> None:
    room = Room()
    requests = [room.ask(x_priority=str(level), x_tenant=tenant) for level, tenant in [(0, "a"), (5, "a"), (3, "b")]]
    spec = room.throttler.spec
    priority = RevisionSpec(key=spec.key, queue=QueueSpec(discipline=DisciplineSpec("priority", "X-Priority", 10.0)))
    room.throttler.reconfigure(priority)
    assert room.throttler.queue.waiters.by_arrival() == requests
    assert room.throttler.queue.waiters.first() is requests[1]
    room.throttler.reconfigure(
        RevisionSpec(key=spec.key, queue=QueueSpec(discipline=DisciplineSpec("fair", key_header="X-Tenant")))
    )
    first, second, third = requests
    room.pod("p1", 1)
    assert first.ends == ["granted"]
    first.release()
    assert third.ends == ["granted"], "the other tenant's turn"
    room.throttler.reconfigure(RevisionSpec(key=spec.key))
    third.release()
    assert second.ends == ["granted"]
    assert room.process.held_requests == 0


def test_a_smaller_depth_sends_nobody_away() -> None:
    room = Room()
    line = [room.ask() for _ in range(5)]
    room.throttler.reconfigure(RevisionSpec(key="ns/rev", queue=QueueSpec(depth=2)))
    assert room.ask().ends == ["queue_full"]
    room.pod("p1", 5)
    assert all(one.ends == ["granted"] for one in line)


def test_a_waiter_that_was_never_sorted_has_no_limits_of_its_own() -> None:
    throttler = make()[0]
    request = Request(throttler)
    assert (request.own_timeout_s, request.own_deadline_s) == (NEVER, NEVER)
    assert throttler.queue.wait_limit_s(request) == throttler.queue.queue_timeout_s()
