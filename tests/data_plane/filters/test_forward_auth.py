"""What an authoriser is asked, what follows from its answer, and how little of it is kept."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import msgspec
import pytest

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.config.specs import FilterSpec, FiltersSpec, ForwardAuthSpec, QuotaSpec, RateLimitSpec, UserSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.filters.forward_auth import (
    AUTH_REQUESTS_MAX,
    CACHED_BYTES_MAX,
    CACHED_MAX,
    POOL_IDLE_S,
    RESPONSE_BODY_BYTES_MAX,
    WAITING_MAX,
    AuthRequest,
    ForwardAuth,
)
from activator.data_plane.filters.keys import Keys
from activator.data_plane.headers.grpc import NO_STATUS
from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import GrpcStatus, Reason
from tests.data_plane.proxy.proxy_fakes import ATTEMPTS, Client, Pod, Pool, World, request_head

TIMEOUT_S = 2.0


class AuthoriserPool(Pool):
    """Connections to an authoriser, which are given at once or when the test says so."""

    def __init__(self, connects: bool = True) -> None:
        super().__init__(connects)
        self.closes = 0

    def close(self) -> None:
        self.closes += 1


class AuthWorld(World):
    """One revision with an authoriser that answers when the test says so."""

    def __init__(
        self,
        headers: tuple[str, ...] = (),
        cache_s: float = 0.0,
        connects: bool = True,
        rate_limit: RateLimitSpec | None = None,
    ) -> None:
        spec = ForwardAuthSpec("127.0.0.1", 9091, False, "auth.test:9091", "/verify?a=b", headers, cache_s, TIMEOUT_S)
        super().__init__(filters=FiltersSpec(rate_limit=rate_limit, forward_auth=spec))
        self.authoriser = self.pool = AuthoriserPool(connects)

    def ask(self, head: RequestHead | None = None, ip: str = "192.0.2.1") -> tuple[Exchange, Client, AuthRequest]:
        exchange, client = self.begin(head, ip)
        auth_request = ATTEMPTS[-1]
        assert isinstance(auth_request, AuthRequest) and auth_request.request is exchange
        return exchange, client, auth_request

    @property
    def filter_of_it(self) -> ForwardAuth:
        chain = self.throttler.filters
        assert isinstance(chain, FilterChain)
        (found,) = [one for one in chain.filters if isinstance(one, ForwardAuth)]
        return found

    def say(self, auth_request: AuthRequest, status: int, fields: Headers | None = None, body: bytes = b"") -> None:
        """A whole answer."""
        auth_request.response_head(
            ResponseHead(status, b"Word", Fields.from_pairs(fields or []), len(body), bool(body))
        )
        if body:
            auth_request.response_body(body)
        auth_request.response_end([])
        self.clock.turn()

    def asked(self) -> Fields:
        head = self.pool.pods[-1].head
        assert head is not None
        return head.headers

    def check_idle(self) -> None:
        self.clock.pass_time(POOL_IDLE_S + 0.1)
        assert self.filter_of_it._under_way == 0 and not self.filter_of_it._waiting
        assert self.throttler.counters.quiet == 0
        super().check_idle()


def got(pod: Pod) -> Fields:
    assert pod.head is not None
    return pod.head.headers


def field_of(fields: Fields, name: str) -> list[bytes]:
    return [value for known, value in fields.pairs() if known.lower() == name.encode()]


def test_what_the_authoriser_is_asked() -> None:
    world = AuthWorld()
    head = request_head(
        "POST",
        length=3,
        Authorization="Basic x",
        Cookie="a=b",
        Content_Type="text/plain",
        If_None_Match='"1"',
        Range="bytes=0-1",
        Connection="X-Hop",
        X_Hop="1",
        Expect="100-continue",
    )
    head.target = b"/v1/x?y=z"
    world.ask(head)
    sent = world.pool.pods[-1].head
    assert sent is not None
    assert (sent.method, sent.target, sent.authority) == (
        b"GET",
        b"/verify?a=b",
        b"auth.test:9091",
    )
    assert not sent.has_body and sent.content_length == -1 and not sent.upgrade
    pairs = sorted((name.lower(), value) for name, value in sent.headers.pairs())
    assert pairs == [
        (b"authorization", b"Basic x"),
        (b"cookie", b"a=b"),
        (b"host", b"auth.test:9091"),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x-forwarded-host", b"app.test"),
        (b"x-forwarded-method", b"POST"),
        (b"x-forwarded-proto", b"http"),
        (b"x-forwarded-uri", b"/v1/x?y=z"),
    ]


def test_what_the_listener_has_written_about_the_origin_is_kept() -> None:
    world = AuthWorld()
    head = request_head()
    head.headers = head.headers.with_line(b"X-Forwarded-Proto", b"https").with_line(b"X-Forwarded-Host", b"www.test")
    head.headers = head.headers.with_line(b"X-Forwarded-For", b"192.0.2.9, 10.0.0.1")
    head.headers = head.headers.with_line(b"X-Forwarded-Uri", b"/claimed").with_line(b"X-Forwarded-Method", b"TRACE")
    world.ask(head)
    assert field_of(world.asked(), "x-forwarded-proto") == [b"https"]
    assert field_of(world.asked(), "x-forwarded-host") == [b"www.test"]
    assert field_of(world.asked(), "x-forwarded-for") == [b"192.0.2.9, 10.0.0.1"]
    assert field_of(world.asked(), "x-forwarded-uri") == [b"/"]
    assert field_of(world.asked(), "x-forwarded-method") == [b"GET"]


def test_a_key_of_a_user_is_not_for_the_authoriser() -> None:
    world = AuthWorld()
    world.share(Keys([UserSpec("alice", hashlib.sha256(b"alices-secret-key").digest(), None)], {}))
    world.ask(request_head(Authorization="Bearer alices-secret-key", Cookie="a=b"))
    assert field_of(world.asked(), "authorization") == [] and field_of(world.asked(), "cookie") == [b"a=b"]
    world.begin(request_head(Authorization="Bearer nobodys-secret-key"))
    assert len(world.pool.pods) == 1, "who has no key is not asked about"


def test_until_the_decision_nothing_is_started_and_nothing_is_load() -> None:
    world = AuthWorld()
    exchange, client, auth_request = world.ask(request_head("POST", length=2))
    exchange.request_body(b"ab")
    exchange.request_end([])
    assert world.heard.events == [] and load_of(world.throttler, 0.0).requests_total == 0
    assert load_of(world.throttler, 0.0).concurrency == 0
    world.clock.pass_time(1.0)
    world.say(auth_request, 204)
    assert world.heard.events == [("activated",), ("queue_formed",)] and client.silent()
    load = load_of(world.throttler, world.clock.now_s)
    assert (load.requests_total, load.concurrency, load.queued) == (1, 1, 1)
    pool = world.pod()
    assert pool.pods[0].body == b"ab"
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize("status", [200, 204, 206, 299])
def test_its_fields_take_the_place_of_those_of_the_client(status: int) -> None:
    world = AuthWorld(("Remote-User", "Remote-Groups", "X-Empty"))
    pool = world.pod()
    head = request_head(Remote_User="root", remote_groups="wheel", Other="1", X_Empty="forged")
    head.headers = head.headers.with_line(b"Remote_User", b"root").with_line(b"REMOTE_groups", b"wheel")
    head.headers = head.headers.with_line(b"x_EMPTY", b"forged").with_line(b"Remote_Name", b"kept")
    exchange, client, auth_request = world.ask(head)
    fields = [(b"remote-user", b"alice"), (b"Remote-Groups", b"a"), (b"Remote-Groups", b"b"), (b"Set-Cookie", b"no")]
    world.say(auth_request, status, fields, b"" if status == 204 else b"welcome")
    found = got(pool.pods[0])
    assert field_of(found, "remote-user") == [b"alice"] and field_of(found, "remote-groups") == [b"a", b"b"]
    assert field_of(found, "other") == [b"1"] and field_of(found, "remote_name") == [b"kept"]
    assert b"root" not in found.block and b"wheel" not in found.block and b"forged" not in found.block
    assert field_of(found, "set-cookie") == []
    world.answer(exchange)
    assert client.status == 200 and "set-cookie" not in client.fields
    world.check_idle()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_trailer_of_the_client_cannot_bring_back_what_was_removed(is_late: bool) -> None:
    """Some servers merge trailers into the head, and those behind CGI or WSGI tell neither case nor `_` from `-`."""
    world = AuthWorld(("Remote-User",))
    pool = world.pod()
    exchange, _, auth_request = world.ask(request_head("POST", chunked=True))
    trailers = [(name, b"root") for name in (b"Remote-User", b"remote_user", b"REMOTE_USER", b"remote-user")]
    if is_late:
        world.say(auth_request, 200, [(b"Remote-User", b"alice")])
    exchange.request_end([*trailers, (b"Remote-Users", b"2"), (b"Content-Digest", b"x")])
    if not is_late:
        world.say(auth_request, 200, [(b"Remote-User", b"alice")])
    assert field_of(got(pool.pods[0]), "remote-user") == [b"alice"]
    assert pool.pods[0].trailers == [(b"Remote-Users", b"2"), (b"Content-Digest", b"x")]
    world.answer(exchange)
    world.check_idle()


@pytest.mark.parametrize(
    ("status", "fields", "body"),
    [
        (401, [(b"WWW-Authenticate", b"Basic"), (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")], b"log in"),
        (302, [(b"Location", b"https://auth.test/?rd=x"), (b"Activator-Reason", b"forged"), (b"Trailer", b"A")], b""),
        (403, [(b"Content-Type", b"text/html")], b"x" * RESPONSE_BODY_BYTES_MAX),
        (304, [(b"ETag", b"1")], b""),
        (500, [], b"broken"),
    ],
)
def test_another_answer_is_for_the_client(status: int, fields: Headers, body: bytes) -> None:
    world = AuthWorld()
    pool = world.pod()
    exchange, client, auth_request = world.ask()
    world.say(auth_request, status, fields, body)
    assert (client.status, client.body, client.reason) == (status, body, "auth_denied") and client.has_ended()
    assert [pair for pair in client.pairs if pair[0] != b"Activator-Reason"] == [
        pair for pair in fields if pair[0] not in {b"Activator-Reason", b"Trailer"}
    ]
    assert exchange.reason is Reason.AUTH_DENIED and exchange.status == status
    assert world.throttler.counters.failed_totals == {Reason.AUTH_DENIED: 1}
    assert pool.pods == [] and load_of(world.throttler, 0.0).requests_total == 0
    assert world.heard.events == []
    world.check_idle()


@pytest.mark.parametrize(("status", "code"), [(401, GrpcStatus.UNAUTHENTICATED), (403, GrpcStatus.PERMISSION_DENIED)])
def test_a_grpc_call_is_counted_under_the_status_that_its_client_derives(status: int, code: GrpcStatus) -> None:
    world = AuthWorld()
    head = request_head("POST", chunked=True, Content_Type="application/grpc", TE="trailers")
    head.takes_trailers = True
    exchange, client, auth_request = world.ask(head)
    assert exchange.grpc_status == NO_STATUS
    world.say(auth_request, status)
    assert client.status == status and exchange.grpc_status == code
    world.check_idle()


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        ("silence", "it did not answer in time"),
        ("no_connection", "it did not answer in time"),
        ("refused", "it accepts no connection"),
        ("tls", "the TLS handshake failed"),
        ("closed", "it closed the connection"),
        ("malformed", "its response is malformed"),
        ("status", "its response is malformed"),
        ("endless", "its response is longer than 64 KiB"),
        ("endless_success", "its response is longer than 64 KiB"),
        ("half", "it did not answer in time"),
    ],
)
def test_without_a_valid_answer_nobody_is_let_through(end: str, detail: str, caplog: pytest.LogCaptureFixture) -> None:
    world = AuthWorld(connects=end not in {"no_connection", "refused", "tls"})
    pool = world.pod()
    for turn in range(2):
        exchange, client, auth_request = world.ask()
        match end:
            case "refused" | "tls":
                world.pool.stop_waiting(auth_request)
                auth_request.connect_failed(Reason.CONNECT_FAILED if end == "refused" else Reason.TLS_FAILED)
            case "closed":
                auth_request.pod_failed(Reason.POD_CLOSED, "", False)
            case "malformed":
                auth_request.pod_failed(Reason.BAD_RESPONSE, "", False)
            case "status":
                world.say(auth_request, 600)
            case "endless" | "endless_success":
                status = 403 if end == "endless" else 200
                auth_request.response_head(ResponseHead(status, b"", Fields(b""), -1, True))
                for _ in range(RESPONSE_BODY_BYTES_MAX // 1024 + 1):
                    auth_request.response_body(b"x" * 1024)
                auth_request.response_body(b"more")
            case "half":
                auth_request.response_head(ResponseHead(200, b"", Fields(b""), 100, True))
                auth_request.response_body(b"x")
        if end in {"silence", "no_connection", "half"}:
            world.clock.pass_time(TIMEOUT_S - 0.1)
            assert client.silent()
            world.clock.pass_time(0.2)
        assert (client.status, client.reason, client.retry_after) == (503, "auth_unavailable", "1"), turn
        assert detail.encode() in client.body
        auth_request.response_end([])  # too late
        world.clock.turn()
        assert exchange.over and world.pool.asked == []
    assert pool.pods == [] and world.heard.events == []
    assert all(pod.aborted for pod in world.pool.pods) or end in {"closed", "malformed"}
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == [f"revision ns/app: the authoriser at auth.test:9091 failed: {detail}; requests get 503"]
    world.check_idle()


def test_a_connection_that_was_closed_while_idle_is_replaced_once() -> None:
    world = AuthWorld()
    world.pool.gives_reused = True
    _, client, auth_request = world.ask()
    auth_request.pod_failed(Reason.POD_CLOSED, "", True)
    assert world.pool.fresh == [False, True] and client.silent()
    auth_request.pod_failed(Reason.POD_CLOSED, "", True)
    assert client.reason == "auth_unavailable"
    world.check_idle()


def test_a_client_that_leaves_takes_its_question_along() -> None:
    world = AuthWorld()
    exchange, _, _ = world.ask()
    exchange.client_gone()
    assert world.pool.pods[0].aborted
    world.check_idle()
    waiting = AuthWorld(connects=False)
    exchange, _, _ = waiting.ask()
    exchange.client_gone()
    assert waiting.pool.asked == []
    waiting.check_idle()


def test_questions_have_a_bound_and_the_next_ones_wait_for_their_turn() -> None:
    world = AuthWorld()
    first = [world.ask() for _ in range(AUTH_REQUESTS_MAX)]
    assert len(world.pool.pods) == AUTH_REQUESTS_MAX
    later = [world.begin() for _ in range(WAITING_MAX)]
    assert len(world.pool.pods) == AUTH_REQUESTS_MAX
    _, client = world.begin()
    assert (client.status, client.reason) == (503, "auth_unavailable") and b"too many requests wait" in client.body
    later[0][0].client_gone()  # it would have been next
    world.say(first[0][2], 403)
    assert len(world.pool.pods) == AUTH_REQUESTS_MAX + 1
    auth_request = ATTEMPTS[-1]
    assert isinstance(auth_request, AuthRequest) and auth_request.request is later[1][0]
    # The time of the wait counts.
    world.clock.pass_time(TIMEOUT_S + 0.1)
    assert all(client.status == 503 for _, client, _ in first[1:])
    assert all(client.status == 503 for _, client in later[1:])
    world.check_idle()


def test_a_reload_does_not_change_the_end_of_a_question() -> None:
    world = AuthWorld()
    pool = world.pod()
    exchange, client, auth_request = world.ask()
    before = world.filter_of_it
    world.filter(world.throttler)
    assert world.filter_of_it is not before
    world.say(auth_request, 200)
    assert len(pool.pods) == 1
    world.answer(exchange)
    assert client.status == 200 and before._under_way == 0
    world.check_idle()


def test_an_unused_pool_is_closed() -> None:
    world = AuthWorld()
    _, _, auth_request = world.ask()
    world.clock.pass_time(1.0)
    world.say(auth_request, 403)
    world.clock.pass_time(POOL_IDLE_S - 1.0)
    _, _, auth_request = world.ask()
    world.say(auth_request, 403)
    world.clock.pass_time(POOL_IDLE_S - 0.5)
    assert world.pool.closes == 0
    world.clock.pass_time(1.0)
    assert world.pool.closes == 1
    world.check_idle()


def test_what_may_receive_the_body_comes_later() -> None:
    world = AuthWorld()
    catalogue = world.catalogue()
    quota = QuotaSpec(0, 0, 1.0, 1_000, 60.0, 10)
    catalogue.set_users((UserSpec("alice", hashlib.sha256(b"alices-secret-key").digest(), None, quota=quota),))
    spec = msgspec.structs.replace(
        world.spec.filters, allow=("0.0.0.0/0",), of_packages=(FilterSpec("tests.e2e.faulty_filters:TrustsText"),)
    )
    chain = catalogue.chain_of("ns/app", spec)
    assert chain is not None
    names = [type(one).__name__ for one in chain.filters]
    assert names == ["Keys", "Allow", "ForwardAuth", "QuotaLimits", "TrustsText"]
    world.throttler.filters = chain
    world.proxy.filters = catalogue.chain_before_routing()
    exchange, client, auth_request = world.ask(request_head("POST", length=5, X_Api_Key="alices-secret-key"))
    assert world.heard.events == [] and world.throttler.gathering == 0
    world.say(auth_request, 403)
    assert exchange.over and client.status == 403 and catalogue._quotas.usage()["alice"] == (0.0, 0.0)


# --- the cache ---


def cached(world: AuthWorld, head: RequestHead, ip: str = "192.0.2.1") -> bool:
    """Whether a request is decided without a auth_request; a auth_request is answered with 403."""
    before = len(world.pool.pods)
    exchange, client = world.begin(head, ip)
    if len(world.pool.pods) == before:
        assert client.silent()
        exchange.client_gone()
        return True
    auth_request = ATTEMPTS[-1]
    assert isinstance(auth_request, AuthRequest)
    world.say(auth_request, 403)
    return False


def let_through(world: AuthWorld, head: RequestHead, fields: Headers | None = None) -> None:
    exchange, _, auth_request = world.ask(head)
    world.say(auth_request, 200, fields)
    exchange.client_gone()


def test_a_decision_is_kept_for_requests_with_the_same_fields_only() -> None:
    world = AuthWorld(cache_s=10.0)
    fields: dict[str, Any] = {"Authorization": "Basic x", "Cookie": "a=b", "X_Custom": "1"}
    let_through(world, request_head(**fields, Traceparent="00-a", X_Request_Id="1"))
    assert cached(world, request_head(**fields, Traceparent="00-b", X_Request_Id="2"))
    for name in fields:
        assert not cached(world, request_head(**{**fields, name: "other"}))
    assert not cached(world, request_head(Authorization="Basic x"))
    assert not cached(world, request_head("DELETE", **fields))
    other = request_head(**fields)
    other.target = b"/admin"
    assert not cached(world, other)
    assert not cached(world, request_head(**fields), "192.0.2.2")
    assert cached(world, request_head(**fields))
    world.clock.pass_time(10.1)
    assert not cached(world, request_head(**fields))
    assert world.filter_of_it._cached == {}
    world.check_idle()


def test_a_cached_decision_has_its_fields_and_hides_those_of_the_client() -> None:
    world = AuthWorld(("Remote-User",), cache_s=10.0)
    let_through(world, request_head(Cookie="a=b", Remote_User="root"), [(b"Remote-User", b"alice")])
    pool = world.pod()
    exchange, _ = world.begin(request_head(Cookie="a=b", Remote_User="root"))
    assert field_of(got(pool.pods[0]), "remote-user") == [b"alice"]
    load = load_of(world.throttler, 0.0)
    assert (load.requests_total, world.throttler.counters.quiet) == (2, 0)
    world.answer(exchange)
    world.check_idle()


def test_what_is_kept_has_a_bound_and_no_secrets_of_clients() -> None:
    world = AuthWorld(("Remote-User",), cache_s=10.0)
    for number in range(CACHED_MAX + 10):
        let_through(world, request_head(Cookie=f"secret={number}"))
    kept = world.filter_of_it._cached
    assert len(kept) == CACHED_MAX
    assert cached(world, request_head(Cookie=f"secret={CACHED_MAX}"))
    assert not cached(world, request_head(Cookie="secret=0"))
    assert all(len(key) == 16 for key in kept) and len(world.filter_of_it._hash_key) == 32
    let_through(world, request_head(Cookie="long"), [(b"Remote-User", b"x" * CACHED_BYTES_MAX)])
    assert not cached(world, request_head(Cookie="long"))
    let_through(world, request_head(Cookie="no-store"), [(b"Cache-Control", b"private, No-Store")])
    assert not cached(world, request_head(Cookie="no-store"))
    assert not cached(world, request_head(Cookie="denied")) and not cached(world, request_head(Cookie="denied"))
    world.check_idle()


def test_without_the_setting_nothing_is_kept() -> None:
    world = AuthWorld()
    let_through(world, request_head())
    assert not cached(world, request_head()) and world.filter_of_it._cached == {}
    world.check_idle()


@pytest.mark.parametrize("cache_s", [0.0, 100.0])
def test_a_client_beyond_its_rate_causes_no_question_and_is_no_load(cache_s: float) -> None:
    world = AuthWorld(cache_s=cache_s, rate_limit=RateLimitSpec(1, 60.0, 1))
    denied, allowed = world.ask(), world.ask(ip="192.0.2.2")
    refused = [world.begin(request_head(Cookie=f"n={number}"), "192.0.2.1")[1] for number in range(WAITING_MAX + 10)]
    assert {(one.status, one.reason, one.retry_after) for one in refused} == {(429, "rate_limited", "60")}
    assert ATTEMPTS[-1] is allowed[2] and len(world.authoriser.pods) == 2
    assert world.throttler.counters.quiet == 2 and world.heard.events == []
    world.say(denied[2], 401)
    world.say(allowed[2], 200)
    assert denied[1].status == 401 and allowed[1].silent()
    assert world.heard.events == [("activated",), ("queue_formed",)]
    assert world.begin(request_head(), "192.0.2.2")[1].status == 429, "a cached decision does not lift the limit"
    load = load_of(world.throttler, world.clock.now())
    assert (load.requests_total, load.queued) == (1, 1)
    assert world.throttler.counters.failed_totals == {Reason.RATE_LIMITED: WAITING_MAX + 11, Reason.AUTH_DENIED: 1}
    world.pod()
    world.answer(allowed[0])
    world.check_idle()
