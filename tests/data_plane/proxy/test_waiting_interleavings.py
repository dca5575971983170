"""All that is done for those who wait, in any order of events: each request ends once, and holds nothing then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from activator.codec.message import Fields
from activator.config.specs import (
    AsyncSpec,
    BuffersSpec,
    FallbackSpec,
    FiltersSpec,
    ProgressSpec,
    QueueSpec,
    RevisionSpec,
    TimeoutsSpec,
    WaitingPageSpec,
)
from activator.data_plane.proxy.attempt import Attempt
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.status_exchange import StatusOpener
from activator.data_plane.stored_responses.links import StoredResponseLinks
from activator.data_plane.stored_responses.store import ResponseStore
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, Pool, World, at_pod, holder_of, request_head, response_head
from tests.data_plane.throttle.throttle_fakes import Heard

LATER = AsyncSpec(5.0, requests_max=2, answer_bytes_max=200, bytes_max=20_000, body_bytes_max=100)
FEATURES = FiltersSpec(
    respond_async=LATER, progress=ProgressSpec(0.5, 1.0), quiet_streams_s=2.0, waiting_page=WaitingPageSpec(1.0)
)
LIMITS: dict[str, Any] = {
    "queue": QueueSpec(depth=3, timeout_s=6.0),
    "timeouts": TimeoutsSpec(total_s=8.0),
    "buffers": BuffersSpec(request_bytes=50),
}
ACCEPTS = ("text/event-stream", "text/html", "*/*")


class Everything(World):
    """Two revisions with all of it; the second takes what the first fails."""

    def __init__(self, while_starting: bool) -> None:
        fallback = FallbackSpec(revision="ns/second", while_starting=while_starting)
        super().__init__(held_bytes=2000, filters=replace(FEATURES, fallback=fallback), **LIMITS)
        filters = replace(FEATURES, fallback=FallbackSpec("sorry", "text/plain"))
        spec = RevisionSpec(key="ns/second", filters=filters, **LIMITS)
        table = TrackerTable(create("first-available", Rng(1)), 8, 0.5)
        self.second = RevisionThrottler(spec, table, self.clock.now, self.clock.defer, Heard(), 256, self.held)
        self.router.set(self.second)
        names = iter(range(1, 1 << 20))
        self.store = ResponseStore(
            self.wheel, self.clock.now, self.clock.defer, 50_000, 3, lambda: f"{next(names):032x}"
        )
        self.store.revision_set("ns/app", True)
        self.proxy.answers = self.answers = self.store
        self.filter(self.throttler)
        self.filter(self.second)
        self.proxy.open_status = StatusOpener(self.proxy, self.store, StoredResponseLinks(self.store)).open
        self.exchanges: list[tuple[ProxiedExchange, Client]] = []
        self.pods_made = 0

    def place(self, throttler: RevisionThrottler, connects: bool) -> None:
        if throttler.queue.removed or self.pods_made >= 6:
            return
        self.pods_made += 1
        number = self.pods_made
        tracker = throttler.table.add(f"p{number}", f"10.0.0.{number}:80", 1, READY)
        assert tracker is not None
        tracker.attachment = Pool(connects)
        throttler.pump()

    def ask(self, method: str, accept: str, later: bool, body: int) -> None:
        fields = {"Accept": accept, **({"Prefer": "respond-async"} if later else {})}
        head = request_head(method, length=body or -1, **fields)  # type: ignore[arg-type]
        client = Client()
        exchange = self.proxy.open(head, client)
        self.exchanges.append((exchange, client))
        exchange.begin()
        if not body:
            exchange.request_end([])

    def running(self) -> list[ProxiedExchange]:
        """Those at a pod or on their way there, whoever waits for their answers."""
        found = []
        for throttler in (self.throttler, self.second):
            found += [holder_of(lease) for lease in throttler.leases if isinstance(lease.holder, Attempt)]
        return found

    def finish(self) -> None:
        """Everybody leaves, and all that is kept runs out."""
        for exchange, _ in self.exchanges:
            exchange.client_gone()
        self.store.close()
        self.store.cut()
        self.store.forget_all()
        for _ in range(4):
            self.clock.turn()
        self.clock.pass_time(400.0)
        for _ in range(4):
            self.clock.turn()
        assert not self.store.kept and self.store.bytes == 0 and self.store.pending == 0
        for throttler in (self.throttler, self.second):
            assert throttler.table.in_flight == 0 and not throttler.leases and throttler.queue.waiters.length == 0
            assert (
                throttler.held.held_bytes == 0
                and throttler.gathering == throttler.delivering == throttler.counters.quiet == 0
            )
            assert not throttler.counters.has_traffic() or throttler.counters.traffic.concurrency == 0
        assert self.held.held_bytes == self.held.held_requests == 0
        assert self.proxy.active == 0 and self.wheel.armed == 0 and not self.errors
        for exchange, client in self.exchanges:
            assert exchange.over
            assert not (client.ended and client.aborted)


BY_CLIENT = ("body", "end", "gone", "blocked", "drained")
BY_POD = ("connect", "refuse", "head", "answer", "rest", "break", "revoke")
METHODS = st.sampled_from(["GET", "POST", "PUT"])
STEP = st.one_of(
    st.tuples(st.just("ask"), METHODS, st.sampled_from(ACCEPTS), st.booleans(), st.sampled_from([0, 0, 8, 90])),
    st.tuples(st.just("place"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.1, 0.6, 1.1, 3.0])),
    st.tuples(st.just("turn")),
    st.tuples(st.sampled_from(BY_CLIENT), st.integers(0, 3)),
    st.tuples(st.sampled_from(BY_POD), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.sampled_from(["fail", "recover", "remove"]), st.integers(0, 1)),
    st.tuples(st.just("status"), st.integers(0, 3), st.sampled_from(["GET", "DELETE"])),
)
HEADS = ((200, b"text/event-stream"), (200, b"text/plain"), (500, b"text/plain"), (204, b""))


def run(world: Everything, step: tuple[Any, ...]) -> None:
    what, *how = step
    throttlers = (world.throttler, world.second)
    if what == "ask":
        world.ask(*how)
    elif what == "place":
        world.place(throttlers[how[0]], how[1])
    elif what == "time":
        world.clock.pass_time(how[0])
    elif what == "turn":
        world.clock.turn()
    elif what == "fail":
        throttlers[how[0]].queue.fail("no")
    elif what == "recover":
        throttlers[how[0]].recover()
    elif what == "remove":
        throttlers[how[0]].remove()
    elif what == "status":
        names = list(world.store.kept)
        if how[0] < len(names):
            head = request_head(how[1])
            head.target = b"/.activator/answers/" + names[how[0]].encode()
            asked = world.proxy.open_request(head, Client())
            asked.begin()
    elif what in BY_CLIENT:
        if how[0] < len(world.exchanges):
            by_client(what, *world.exchanges[how[0]])
    else:
        running = world.running()
        if how[0] < len(running):
            by_pod(world, what, running[how[0]], how[1])


def by_client(what: str, exchange: ProxiedExchange, client: Client) -> None:
    if what == "body" and exchange.head.has_body and not exchange.request_done and not client.ended:
        left = exchange.head.content_length - exchange.request_bytes
        if left > 0:
            exchange.request_body(b"b" * min(left, 45))
    elif what == "end" and exchange.request_bytes == exchange.head.content_length and not exchange.request_done:
        exchange.request_end([])
    elif what == "gone":
        exchange.client_gone()
    elif what == "blocked":
        exchange.client_blocked()
    elif what == "drained":
        exchange.client_drained()


def by_pod(world: Everything, what: str, exchange: ProxiedExchange, number: int) -> None:
    lease = exchange.lease
    pool = None if lease is None else lease.attachment
    if isinstance(pool, Pool) and any(asked[0] is exchange.attempt for asked in pool.asked):
        if what == "connect":
            pool.connect(at_pod(exchange))
        elif what == "refuse":
            pool.stop_waiting(at_pod(exchange))
            at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    elif exchange.pod is not None:
        begun = exchange.first_byte_s > 0.0
        actions: dict[str, Callable[[], object]] = {
            "head": lambda: None if begun else at_pod(exchange).response_head(head_of(number)),
            "answer": lambda: at_pod(exchange).response_body(b"a" * 50) if begun else None,
            "rest": lambda: at_pod(exchange).response_end([]) if begun else None,
            "break": lambda: at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False),
        }
        actions.get(what, lambda: None)()
    if what == "revoke" and lease is not None and not lease.released:
        exchange.revoked(Reason.POD_REMOVED, "")


def head_of(number: int) -> Any:
    status, kind = HEADS[number % len(HEADS)]
    head = response_head(status, -1)
    head.has_body = status != 204
    head.headers = Fields.from_pairs([(b"Content-Type", kind)])
    return head


@settings(deadline=None, max_examples=150)
@given(st.booleans(), st.lists(STEP, max_size=60))
def test_any_order_of_events(while_starting: bool, steps: list[tuple[Any, ...]]) -> None:
    world = Everything(while_starting)
    for step in steps:
        run(world, step)
        assert world.store.bytes == sum(answer.bytes for answer in world.store.kept.values())
        assert len(world.store.kept) <= 3
    world.finish()


@pytest.mark.deep
@settings(deadline=None, max_examples=5_000)
@given(st.booleans(), st.lists(STEP, min_size=30, max_size=200))
def test_many_orders_of_events(while_starting: bool, steps: list[tuple[Any, ...]]) -> None:
    world = Everything(while_starting)
    for step in steps:
        run(world, step)
    world.finish()
