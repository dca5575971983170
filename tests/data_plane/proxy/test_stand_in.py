"""What the activator answers in the place of a revision: quiet requests, the waiting page, fallbacks."""

from __future__ import annotations

from typing import Any

import pytest

from activator.config.specs import FallbackSpec, FiltersSpec, QueueSpec, QuietSpec, WaitingPageSpec
from activator.data_plane.filters.waiting_page import CLOSED_AFTER_S, MISSED_REFRESHES
from activator.data_plane.tables.apply import load_of
from activator.runtime.distribution import Distribution
from activator.runtime.reasons import Reason
from lb.tracker import QUARANTINED
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head, response_head

REFRESH_S = 2.0
CLOSED_S = MISSED_REFRESHES * REFRESH_S + CLOSED_AFTER_S
BROWSER: dict[str, Any] = {"Accept": "text/html,application/xhtml+xml", "Sec_Fetch_Mode": "navigate"}


def browsed(world: World) -> Client:
    return world.begin(request_head(**BROWSER))[1]


# --- requests that wake nothing ---


@pytest.mark.parametrize(
    ("rule", "fields", "is_quiet"),
    [
        (QuietSpec(path="/"), {}, True),
        (QuietSpec(path="/healthz"), {}, False),
        (QuietSpec(methods=("HEAD",)), {}, False),
        (QuietSpec(methods=("HEAD", "GET")), {}, True),
        (QuietSpec(user_agent="UptimeRobot/"), {"User_Agent": "uptimerobot/2.0"}, True),
        (QuietSpec(user_agent="UptimeRobot/"), {"User_Agent": "Mozilla (UptimeRobot/2.0)"}, False),
        (QuietSpec(user_agent="UptimeRobot/"), {}, False),
        (QuietSpec(path="/", methods=("POST",), user_agent="UptimeRobot/"), {"User_Agent": "UptimeRobot/2"}, False),
    ],
)
def test_all_that_a_rule_says_must_match(rule: QuietSpec, fields: dict[str, Any], is_quiet: bool) -> None:
    world = World(filters=FiltersSpec(no_wake=(rule,)))
    exchange, client = world.begin(request_head(**fields))
    assert client.silent() != is_quiet
    assert (world.heard.events == []) == is_quiet, "whether it wakes"
    exchange.client_gone()
    world.check_idle()


def test_a_quiet_request_is_told_that_nothing_runs() -> None:
    world = World(filters=FiltersSpec(no_wake=(QuietSpec(path="/"),)))
    _, client = world.begin()
    assert (client.status, client.reason, client.retry_after) == (503, "asleep", "")
    assert client.body == b"no pod of ns/app is ready, and this request starts none\n"
    world.check_idle()
    world = World(filters=FiltersSpec(no_wake=(QuietSpec(path="/", status=204),)))
    assert world.begin()[1].status == 204


def test_a_quiet_request_goes_to_a_pod_that_is_there_and_is_no_activity() -> None:
    world = World(filters=FiltersSpec(no_wake=(QuietSpec(user_agent="probe"),)))
    pool = world.pod(limit=3)
    quiet, told = world.begin(request_head(User_Agent="probe/1"))
    assert pool.pods[0].head is quiet.head
    load = load_of(world.throttler, world.clock.now())
    assert (load.in_flight, load.queued, load.requests_total, load.concurrency) == (0, 0, 0, 0)
    other, _ = world.begin()
    world.clock.pass_time(1.0)
    load = load_of(world.throttler, world.clock.now())
    assert (load.in_flight, load.requests_total, load.concurrency, load.request_seconds) == (1, 1, 1, 1.0)
    world.answer(quiet)
    world.answer(other)
    assert told.status == 200
    assert world.throttler.counters.requests_total == 2, "it is a request all the same"
    world.check_idle()
    assert world.throttler.counters.quiet == 0


def test_a_quiet_request_whose_client_leaves() -> None:
    world = World(filters=FiltersSpec(no_wake=(QuietSpec(path="/"),)))
    world.pod()
    quiet, _ = world.begin()
    quiet.client_gone()
    world.check_idle()
    assert world.throttler.counters.quiet == 0


# --- the waiting page ---


def test_a_browser_is_shown_a_page_that_wakes_the_revision_and_then_the_pod() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    client = browsed(world)
    assert (client.status, client.reason, client.ended) == (503, "starting", True)
    assert client.fields["refresh"] == "2" and client.retry_after == "2"
    assert client.fields["cache-control"] == "no-store" and client.fields["activator-queue-position"] == "1"
    assert b"<h1>Starting ns/app</h1>" in client.body
    assert world.heard.events == [("activated",), ("queue_formed",)]
    assert load_of(world.throttler, world.clock.now()).queued == 1, "a start is wanted as long as somebody looks"
    world.pod()
    world.check_idle()
    exchange, client = world.begin(request_head(**BROWSER))
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Accept": "application/json"},
        {"Accept": "text/html", "Sec_Fetch_Mode": "cors"},
        {"Accept": "text/html", "method": "POST", "length": 0},
        {"Accept": "text/html", "method": "HEAD"},
        {"Accept": "text/html", "Upgrade": "websocket", "Connection": "Upgrade"},
    ],
)
def test_all_others_wait(fields: dict[str, Any]) -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    exchange, client = world.begin(request_head(**fields))
    assert client.silent() and world.throttler.queue.waiters.length == 1
    exchange.client_gone()
    world.check_idle()


def test_a_browser_waits_for_a_pod_that_is_full() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    world.pod()
    first, _ = world.begin()
    exchange, client = world.begin(request_head(**BROWSER))
    assert client.silent()
    world.answer(first)
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_many_who_look_have_one_place_in_line() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)), queue=QueueSpec(depth=2))
    pages = [browsed(world) for _ in range(100)]
    assert {page.status for page in pages} == {503} and {page.reason for page in pages} == {"starting"}
    assert world.throttler.queue.waiters.length == 1
    world.clock.pass_time(CLOSED_S + 0.1)
    world.check_idle()


def test_who_goes_on_looking_goes_on_waiting() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    for _ in range(20):
        browsed(world)
        world.clock.pass_time(CLOSED_S - 0.1)
        assert world.throttler.queue.waiters.length == 1
    world.clock.pass_time(0.2)
    assert world.throttler.queue.waiters.length == 0, "the page was closed: nothing is wanted any more"
    world.check_idle()


def test_a_start_that_fails_is_told_at_the_next_look() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    browsed(world)
    world.throttler.queue.fail("exited with code 1")
    world.clock.turn()
    client = browsed(world)
    assert (client.status, client.reason) == (503, "revision_failed")
    assert b"exited with code 1" in client.body
    world.check_idle()


def test_a_page_of_ones_own_is_filled_in_and_escaped() -> None:
    template = "<p>$name: $waited of$expected, $waiting, $unknown, 5 $$</p>"
    world = World(key='ns/<a>&"', filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S, template)))
    assert browsed(world).body == b"<p>ns/&lt;a&gt;&amp;&quot;: 0 of, 1, $unknown, 5 $</p>"
    world.clock.pass_time(CLOSED_S + 0.1)
    world.check_idle()


def test_it_says_how_long_it_usually_takes() -> None:
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S)))
    browsed(world)
    world.clock.pass_time(7.0)
    world.pod()
    world.table.set_state(world.tracker("p1"), QUARANTINED)
    world.clock.pass_time(1.0)
    browsed(world)
    world.clock.pass_time(3.0)
    assert b"3 s so far of about 7 s" in browsed(world).body
    world.clock.pass_time(CLOSED_S + 0.1)
    assert world.throttler.queue.waiters.length == 0


def test_the_last_lines_of_the_program_only_where_that_was_asked_for() -> None:
    line = '</pre><script>alert("1")</script>'
    for asked in (True, False):
        world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S, output=asked)))
        world.throttler.queue.start_observers.output = ("loading", line)
        body = browsed(world).body
        assert (b"loading\n&lt;/pre&gt;&lt;script&gt;alert(&quot;1&quot;)" in body) == asked
        assert (b"<pre" in body) == asked and b"<script" not in body
    world = World(filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S, "[$output]", True)))
    assert browsed(world).body == b"[]", "nothing has been written yet"


def test_answers_of_our_own_are_no_durations_of_requests() -> None:
    world = World(
        filters=FiltersSpec(waiting_page=WaitingPageSpec(REFRESH_S), no_wake=(QuietSpec(user_agent="probe"),))
    )
    assert browsed(world).reason == "starting"
    shown, told = world.begin(request_head(User_Agent="probe"))
    assert told.reason == "asleep"
    traffic = world.throttler.counters.traffic
    assert Distribution.of(traffic.duration).buckets[-1][1] == 0
    shown.leave_exemplars("0" * 32, 1.0)
    world.pod()
    exchange, _ = world.begin()
    world.answer(exchange)
    assert Distribution.of(traffic.duration).buckets[-1][1] == 1
    world.check_idle()


def test_who_is_refused_for_the_line_is_told_how_long_it_is() -> None:
    world = World(queue=QueueSpec(depth=2))
    waiting = [world.begin()[0] for _ in range(2)]
    _, client = world.begin()
    assert (client.reason, client.fields["activator-queue-position"]) == ("queue_full", "2")
    world.throttler.queue.fail("no")
    world.clock.turn()
    assert "activator-queue-position" not in world.begin()[1].fields
    assert all(exchange.over for exchange in waiting)


# --- fallbacks ---


def test_a_file_in_the_place_of_a_refusal() -> None:
    world = World(queue=QueueSpec(depth=1), filters=FiltersSpec(fallback=FallbackSpec("<h1>Sorry</h1>", "text/html")))
    first, _ = world.begin()
    _, client = world.begin()
    assert (client.status, client.body, client.reason) == (503, b"<h1>Sorry</h1>", "queue_full")
    assert client.fields["content-type"] == "text/html" and client.retry_after == "1"
    assert world.throttler.counters.failed_totals == {Reason.QUEUE_FULL: 1}, "it is counted as what it is"
    first.client_gone()
    world.check_idle()


def test_a_redirect_for_those_who_can_follow_it() -> None:
    world = World(
        queue=QueueSpec(timeout_s=5.0),
        filters=FiltersSpec(fallback=FallbackSpec(redirect="https://status.example.com/")),
    )
    clients = [world.begin(request_head(method))[1] for method in ("GET", "HEAD")]
    _, posted = world.begin(request_head("POST", length=0))
    world.clock.pass_time(5.1)
    for client in clients:
        assert (client.status, client.fields["location"]) == (302, "https://status.example.com/")
    assert (posted.status, posted.reason) == (504, "queue_timeout")
    world.check_idle()


def test_an_answer_that_has_begun_is_cut_and_the_clients_own_mistakes_are_theirs() -> None:
    world = World(
        filters=FiltersSpec(fallback=FallbackSpec("sorry", "text/plain")), queue=QueueSpec(request_timeout=True)
    )
    pool = world.pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(200, 5))
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert client.aborted and client.status == 200
    assert pool.pods
    blocking, _ = world.begin()
    _, wrong = world.begin(request_head(Activator_Deadline="1 minute"))
    assert (wrong.status, wrong.reason) == (400, "bad_request")
    world.answer(blocking)
    world.check_idle()


def test_a_grpc_client_is_told_by_a_status() -> None:
    world = World(queue=QueueSpec(depth=1), filters=FiltersSpec(fallback=FallbackSpec("sorry", "text/html")))
    first, _ = world.begin()
    head = request_head("POST", length=0, Content_Type="application/grpc", TE="trailers")
    head.takes_trailers = True
    exchange, client = world.begin(head)
    assert (client.status, client.body, client.fields["grpc-status"]) == (200, b"", "14")
    assert exchange.grpc_status == 14
    first.client_gone()
    world.check_idle()
