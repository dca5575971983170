"""Requests whose body says which revision they mean: what is held, and what is left, in every order of events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.codec.message import RequestHead
from activator.config.specs import MatchSpec, QueueSpec, RevisionSpec, RoutingSpec
from activator.data_plane.phases import OVER, SCANNING, WAITING
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.model_guard import SCAN_BYTES_MAX
from activator.data_plane.proxy.selection import SCAN_TIMEOUT_S
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, Pool, World, at_pod, request_head

BODY = b'{"stream":true,"model":"gpt","messages":[]}'


class Routed:
    """Two revisions behind one host: `x` by its models, with an alias that is rewritten, and `rest` without a model."""

    def __init__(self, has_default: bool = True, held_bytes: int = 1_000_000, **spec: Any) -> None:
        self.world = World(
            held_bytes=held_bytes, held_body_bytes=SCAN_BYTES_MAX, routing=RoutingSpec(hosts=("unused.test",))
        )
        self.pools: dict[str, Pool] = {}
        self.throttlers: dict[str, RevisionThrottler] = {}
        match = MatchSpec(models=("x", "llama-*"))
        hosts = ("app.test",)
        x = RoutingSpec(hosts, match=match, aliases=("gpt",), rewrite_model="llama-3-8b-instruct")
        self.add("x", routing=x, **spec)
        if has_default:
            self.add("rest", routing=RoutingSpec(hosts, order=1, default=True))

    def add(self, name: str, limit: int = 4, **spec: Any) -> None:
        world = self.world
        table = TrackerTable(create("first-available", Rng(1)), 8, 0.5)
        made = RevisionSpec(key=f"ns/{name}", **spec)
        throttler = RevisionThrottler(made, table, world.clock.now, world.clock.defer, world.heard, 256, world.held)
        tracker = table.add("p", "10.0.0.1:80", limit, READY)
        assert tracker is not None
        self.pools[name] = Pool()
        tracker.attachment = self.pools[name]
        self.throttlers[name] = throttler
        world.router.set(throttler)

    def begin(self, head: RequestHead | None = None) -> tuple[ProxiedExchange, Client]:
        client = Client()
        exchange = self.world.proxy.open(head or request_head("POST", chunked=True), client)
        exchange.begin()
        return exchange, client

    def taken(self) -> tuple[str, bytes]:
        """Which revision's pod has a request, and its body as far as it came."""
        ((name, pool),) = ((name, pool) for name, pool in self.pools.items() if pool.pods)
        return name, pool.pods[0].body

    def check_idle(self) -> None:
        world = self.world
        assert world.held.held_bytes == 0
        assert all(one.held.held_bytes == 0 and not one.leases for one in self.throttlers.values())
        assert world.proxy.active == 0 and world.wheel.armed == 0 and not world.errors


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(BODY)), max_size=6), st.booleans(), st.booleans())
def test_a_body_in_any_pieces_reaches_the_pod_rewritten(cuts: list[int], chunked: bool, comes_first: bool) -> None:
    routed = Routed()
    head = request_head("POST", chunked=True) if chunked else request_head("POST", length=len(BODY))
    places = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[start:end] for start, end in pairwise(places)]
    client = Client()
    exchange = routed.world.proxy.open(head, client)
    first = pieces[: len(pieces) // 2] if comes_first else []
    for piece in first:
        exchange.request_body(piece)
    exchange.begin()
    for piece in pieces[len(first) :]:
        exchange.request_body(piece)
        routed.world.clock.turn()
    exchange.request_end([(b"Content-Digest", b"of what the client sent"), (b"X-Kept", b"1")])
    routed.world.clock.turn()
    name, body = routed.taken()
    pod = routed.pools["x"].pods[0]
    assert name == "x" and pod.head is not None and pod.ended
    assert pod.trailers == [(b"X-Kept", b"1")]
    assert body == BODY.replace(b'"gpt"', b'"llama-3-8b-instruct"')
    assert pod.head.content_length == (-1 if chunked else len(body))
    routed.world.answer(exchange)
    assert client.status == 200
    routed.check_idle()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"x"}', "x"),
        (b'{"model":"llama-7"}', "x"),
        (b'{"model":"other"}', "rest"),
        (b'{"a":1}', "rest"),
        (b"not JSON", "rest"),
        (b'{"model":"\xff"}', "rest"),
        (b'{"a":"' + b"y" * SCAN_BYTES_MAX + b'","model":"x"}', "rest"),
        (b'{"a":' + b"[" * 60_000 + b"]" * 60_000 + b',"model":"x"}', "rest"),
        (b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b',"model":"x"}', "x"),
    ],
)
def test_who_takes_it(body: bytes, name: str) -> None:
    routed = Routed()
    exchange, client = routed.begin()
    for start in range(0, len(body), 10_000):
        if not client.paused:
            exchange.request_body(body[start : start + 10_000])
            assert routed.world.held.held_bytes <= SCAN_BYTES_MAX + 10_000
        routed.world.clock.turn()
    exchange.request_end([])
    routed.world.clock.turn()
    assert routed.taken()[0] == name
    assert routed.taken()[1] == body, "and nothing of it is changed"
    routed.world.answer(exchange)
    routed.check_idle()


@pytest.mark.parametrize("body", [b'{"a":1}', b"", b'{"a":"' + b"y" * SCAN_BYTES_MAX, b'{"model":1}'])
def test_without_a_default_it_is_a_bad_request(body: bytes) -> None:
    routed = Routed(has_default=False)
    exchange, client = routed.begin()
    exchange.request_body(body)
    exchange.request_end([])
    routed.world.clock.turn()
    assert (client.status, client.reason) == (400, "bad_request")
    assert b"`model`" in client.body
    routed.check_idle()


def test_a_model_that_nobody_serves_is_not_found() -> None:
    routed = Routed(has_default=False)
    exchange, client = routed.begin()
    exchange.request_body(b'{"model":"o\\u0007ther' + b"z" * 200 + b'"}')
    routed.world.clock.turn()
    assert (client.status, client.reason) == (404, "no_route")
    assert b'model "o\\x07therzzz' in client.body and len(client.body) < 250
    routed.check_idle()


@pytest.mark.parametrize("fields", [{"Content_Encoding": "gzip"}, {"Content_Type": "application/grpc"}])
@pytest.mark.parametrize("has_default", [True, False])
def test_what_cannot_be_read_is_not_waited_for(fields: dict[str, str], has_default: bool) -> None:
    routed = Routed(has_default)
    head = request_head("POST", chunked=True, X_Other="1", **fields)  # type: ignore[arg-type]
    exchange, client = routed.begin(head)
    assert exchange.phase != SCANNING
    if has_default:
        assert routed.taken()[0] == "rest"
        exchange.client_gone()
    else:
        assert client.status == 400
    routed.check_idle()


def test_a_request_without_a_body_has_no_model() -> None:
    routed = Routed(has_default=False)
    _, client = routed.begin(request_head("GET"))
    assert client.status == 404
    routed.check_idle()


def test_the_client_is_asked_for_its_body() -> None:
    routed = Routed()
    exchange, client = routed.begin()
    assert exchange.phase == SCANNING and client.asked_for_body
    exchange.client_gone()
    routed.check_idle()


def test_a_body_that_trickles_has_its_time() -> None:
    routed = Routed()
    exchange, client = routed.begin()
    for _ in range(10):
        exchange.request_body(b" ")
        routed.world.clock.pass_time(SCAN_TIMEOUT_S / 11)
        assert exchange.phase == SCANNING and client.silent()
    routed.world.clock.pass_time(SCAN_TIMEOUT_S / 5)
    assert (client.status, client.reason) == (408, "request_timeout")
    routed.check_idle()


@pytest.mark.parametrize("end", ["gone", "failed", "full"])
@pytest.mark.parametrize("sent", [b"", b'{"a":"', b'{"model":"x"'])
def test_all_is_given_back_when_it_ends_early(end: str, sent: bytes) -> None:
    routed = Routed(held_bytes=50)
    exchange, client = routed.begin()
    if sent:
        exchange.request_body(sent)
    if end == "gone":
        exchange.client_gone()
    elif end == "failed":
        exchange.request_failed(Reason.BAD_REQUEST, "a chunk is malformed")
        assert client.status == 400
    else:
        exchange.request_body(b"y" * 60)
        assert (client.status, client.reason) == (503, "held_bytes_full")
    assert exchange.phase == OVER
    routed.world.clock.turn()
    assert client.status == (0 if end == "gone" else client.status)
    routed.check_idle()


def test_a_longer_name_needs_room_as_well() -> None:
    routed = Routed(held_bytes=len(BODY) + 2)
    exchange, client = routed.begin()
    exchange.request_body(BODY)
    routed.world.clock.turn()
    assert (client.status, client.reason) == (503, "held_bytes_full")
    routed.check_idle()


def test_its_wait_for_a_slot_begins_when_its_revision_is_known() -> None:
    routed = Routed(queue=QueueSpec(timeout_s=5.0))
    routed.throttlers["x"].table.set_limit(routed.throttlers["x"].table.slots[0], 1)
    first, _ = routed.begin(request_head("POST", length=13))
    first.request_body(b'{"model":"x"}')
    routed.world.clock.turn()
    exchange, client = routed.begin()
    routed.world.clock.pass_time(20.0)
    exchange.request_body(BODY)
    routed.world.clock.turn()
    assert exchange.phase == WAITING
    routed.world.clock.pass_time(4.0)
    assert client.silent()
    routed.world.clock.pass_time(2.0)
    assert (client.status, client.reason) == (504, "queue_timeout")
    first.client_gone()
    routed.check_idle()


def test_rules_that_change_while_the_body_comes_are_those_that_count() -> None:
    routed = Routed()
    exchange, _ = routed.begin()
    exchange.request_body(b'{"model":')
    routed.world.router.drop("ns/x")
    routed.throttlers["x"].remove()
    exchange.request_body(b'"x"}')
    routed.world.clock.turn()
    assert routed.taken()[0] == "rest"
    exchange.client_gone()
    routed.world.router.drop("ns/rest")
    other, client = routed.begin()
    assert other.over and client.status == 404
    routed.check_idle()


def test_the_last_revision_goes_while_the_body_comes() -> None:
    routed = Routed(has_default=False)
    exchange, client = routed.begin()
    routed.world.router.drop("ns/x")
    exchange.request_body(BODY)
    routed.world.clock.turn()
    assert client.status == 404
    routed.check_idle()


def test_a_client_that_takes_nothing_meanwhile_pauses_its_pod_later() -> None:
    """The answers before this one fill its connection."""
    routed = Routed()
    exchange, _ = routed.begin()
    exchange.client_blocked()
    exchange.request_body(BODY)
    exchange.request_end([])
    routed.world.clock.turn()
    at_pod(exchange).response_head(_ok())
    assert routed.pools["x"].pods[0].is_paused()
    exchange.client_drained()
    assert not routed.pools["x"].pods[0].is_paused()
    exchange.client_gone()
    routed.check_idle()


def test_it_is_sent_again_as_it_was_rewritten() -> None:
    routed = Routed()
    routed.pools["x"].gives_reused = True
    exchange, _ = routed.begin(request_head("PUT", length=len(BODY)))
    exchange.request_body(BODY)
    exchange.request_end([])
    routed.world.clock.turn()
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    first, second = routed.pools["x"].pods
    assert first.body == second.body == BODY.replace(b'"gpt"', b'"llama-3-8b-instruct"')
    routed.world.answer(exchange)
    routed.check_idle()


def test_digests_of_a_body_that_is_rewritten_are_left_out() -> None:
    for body, kept in ((BODY, False), (BODY.replace(b"gpt", b"x"), True)):
        routed = Routed()
        exchange, _ = routed.begin(request_head("POST", length=len(body), Content_Digest="sha-256=:x:", Accept="a"))
        exchange.request_body(body)
        routed.world.clock.turn()
        head = routed.pools["x"].pods[0].head
        assert head is not None
        assert (head.headers.get(b"content-digest") is not None) is kept
        assert head.headers.get(b"accept") == b"a"
        exchange.client_gone()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_the_list_of_models(method: str) -> None:
    routed = Routed()
    head = request_head(method, length=0 if method == "POST" else -1)
    head.target = b"/v1/models?x=y"
    _, client = routed.begin(head)
    if method == "POST":
        assert routed.taken()[0] == "rest"
        return
    assert client.status == 200 and client.ended
    names = [] if method == "HEAD" else [one["id"] for one in json.loads(client.body)["data"]]
    assert names == ([] if method == "HEAD" else ["x", "gpt"])
    assert routed.world.proxy.unrouted_total == 0
    routed.check_idle()


def test_internal_fields_reach_pods_only_where_revision_headers_are_trusted() -> None:
    for trusted in (False, True):
        world = World()
        world.router.trusts_revision_headers = trusted
        pool = world.pod()
        world.begin(request_head(K_Original_Host="h", Knative_Serving_Revision="r", Activator_X="y"))
        head = pool.pods[0].head
        assert head is not None
        for name in (b"k-original-host", b"knative-serving-revision", b"activator-x"):
            assert (head.headers.get(name) is not None) is trusted


def _ok() -> Any:
    from tests.data_plane.proxy.proxy_fakes import response_head

    return response_head()
