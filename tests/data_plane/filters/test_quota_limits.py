"""The quotas of users as clients meet them: what is refused, how, and what a request takes in the end."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from activator.codec.message import Fields, RequestHead
from activator.codec.token_bounds import response_bound
from activator.config.model.keys import Key, KeyLimits
from activator.config.model.kinds import Secret
from activator.config.specs import FiltersSpec, RecordSpec
from activator.config.user_keys import users_of
from activator.data_plane.filters.keys import Keys
from activator.data_plane.filters.quota_limits import QuotaLimits
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.plane import MEMBER_TICK_S
from activator.data_plane.quotas.ledger import LIMITS
from activator.data_plane.quotas.messages import Decision, QuotaDecision, QuotaMessage, QuotaQuery, QuotaRequest
from activator.data_plane.quotas.quota import key_of
from activator.data_plane.quotas.quotas import ASK_MAX_S, Quotas
from activator.runtime.reasons import Reason
from activator.telemetry.metrics.program_families import USER_LIMITS
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head, response_head
from tests.data_plane.proxy.test_answers_later import SPEC, Later
from tests.data_plane.proxy.test_fallback_revision import Two

ALICE = "alice's-key-0"
FIGURES = {
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
}


def limited(world: World, **limits: Any) -> Quotas:
    users = users_of([Key("alice", Secret(ALICE), limits=KeyLimits(**limits)), Key("free", Secret("free's-key"))])
    quotas = Quotas(world.clock.now)
    quotas.set_users(users)
    world.share(Keys(users, {}), QuotaLimits(quotas, world.clock.now))
    return quotas


def shared(spec: dict[str, Any] | None = None, **limits: Any) -> tuple[World, Quotas]:
    world = World(**{"key": "default/app", **(spec or {})})
    return world, limited(world, **limits)


def ask(key: str = ALICE, method: str = "GET", length: int = 0, target: str = "/") -> RequestHead:
    head = request_head(method, length=length, X_Api_Key=key)
    head.target = target.encode()
    return head


def tokens_left(quotas: Quotas) -> int:
    quota = quotas.find("alice")
    assert quota is not None and quota.ledger is not None
    return quota.ledger.tokens.remaining(quotas._now())


def figures(client: Client) -> dict[str, str]:
    return {name: value for name, value in client.fields.items() if name.startswith("x-ratelimit")}


def test_a_request_beyond_the_limit_is_refused_and_takes_nothing() -> None:
    world, _ = shared(requests="2/min")
    world.pod(limit=5)
    for left in (1, 0):
        exchange, client = world.begin(ask())
        world.answer(exchange)
        assert client.status == 200
        assert figures(client) == {
            "x-ratelimit-limit-requests": "2",
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{60 - 30 * left}.000s",
        }
    before = world.throttler.counters.granted_total
    _, client = world.begin(ask())
    assert (client.status, client.reason) == (429, "quota_exceeded")
    assert client.body == b"the user has reached a limit: 2 requests per minute\n"
    assert client.fields["retry-after"] == "30" and figures(client)["x-ratelimit-remaining-requests"] == "0"
    _, client = world.begin(request_head(X_Api_Key=ALICE, Prefer="if-available"))
    assert (client.status, client.reason, client.fields["retry-after"]) == (412, "quota_exceeded", "30")
    assert world.throttler.counters.granted_total == before
    exchange, client = world.begin(ask("free's-key"))
    world.answer(exchange)
    assert client.status == 200 and not figures(client), "another user has no limits"
    world.clock.pass_time(30.0)
    exchange, client = world.begin(ask())
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_pods_own_figures_are_replaced() -> None:
    world, _ = shared(requests="2/min")
    world.pod()
    exchange, client = world.begin(ask())
    head = response_head(200, 0)
    head.headers = Fields.from_pairs([(name.title().encode(), b"pod") for name in FIGURES] + [(b"X-Other", b"stays")])
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_end([])
    assert set(figures(client).values()) == {"2", "1", "30.000s"} and client.fields["x-other"] == "stays"


def test_requests_of_openai_get_its_errors() -> None:
    world, _ = shared(concurrency=1)
    world.pod(limit=5)
    first, _ = world.begin(ask(target="/v1/chat"))
    _, client = world.begin(ask(target="/v1/chat"))
    error = json.loads(client.body)["error"]
    assert (client.status, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert error["message"] == "the user has reached a limit: 1 at the same time"
    assert client.fields["retry-after"] == "1"
    world.answer(first)
    again, client = world.begin(ask(target="/v1/chat"))
    world.answer(again)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize("end", ["answered", "client", "pod", "queue"])
def test_every_end_gives_the_slot_back(end: str) -> None:
    world, quotas = shared(concurrency=1)
    if end != "queue":
        world.pod()
    exchange, _ = world.begin(ask())
    match end:
        case "answered":
            world.answer(exchange)
        case "client" | "queue":
            exchange.client_gone()
        case "pod":
            at_pod(exchange).response_head(response_head(200, 10))
            at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    quota = quotas.find("alice")
    assert quota is not None and not quota.open and not quota.asking


def body_of(**members: Any) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


def send(world: World, body: bytes) -> tuple[Any, Client]:
    client = Client()
    exchange = world.proxy.open(ask(method="POST", length=len(body)), client)
    exchange.begin()
    exchange.request_body(body)
    exchange.request_end([])
    world.clock.turn()
    return exchange, client


def reply(exchange: Any, status: int, body: bytes, kind: str = "application/json") -> None:
    head = response_head(status, len(body))
    head.headers = Fields.from_pairs([(b"Content-Type", kind.encode())])
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(body)
    at_pod(exchange).response_end([])


@pytest.mark.parametrize("record", [None, RecordSpec()])
def test_tokens_are_reserved_by_the_request_and_settled_by_the_response(record: RecordSpec | None) -> None:
    spec = {"filters": FiltersSpec(record=record), "held_bytes": 10_000, "held_body_bytes": 5_000}
    world, quotas = shared(spec, tokens="1000/day", response_tokens=300)
    world.pod(limit=5)
    body = body_of(max_tokens=100)
    exchange, client = send(world, body)
    assert tokens_left(quotas) == 1000 - 100 - len(body) // 4
    reply(exchange, 200, body_of(usage={"prompt_tokens": 7, "completion_tokens": 20}))
    assert tokens_left(quotas) == 973 and client.fields["x-ratelimit-limit-tokens"] == "1000"
    exchange, _ = send(world, body_of())
    assert tokens_left(quotas) == 973 - 300 - len(body_of()) // 4
    reply(exchange, 500, b"{}")
    assert tokens_left(quotas) == 973, "a failure took nothing"
    exchange, _ = send(world, body_of(max_tokens=50))
    reply(exchange, 200, b"text", "text/plain")
    assert tokens_left(quotas) == 973 - 50 - len(body_of(max_tokens=50)) // 4, "without a report, what was reserved"
    world.check_idle()


def test_a_request_that_reserves_more_than_there_is_waits_for_all_of_it() -> None:
    world, quotas = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="1000/day")
    world.pod(limit=5)
    exchange, client = send(world, body_of(max_tokens=10**9))
    assert tokens_left(quotas) == 0
    reply(exchange, 200, body_of(usage={"prompt_tokens": 0, "completion_tokens": 1500}))
    _, client = send(world, body_of(max_tokens=1))
    assert client.status == 429 and b"1000 tokens per day" in client.body
    assert int(client.fields["retry-after"]) > 43_200, "what was taken beyond the limit has to become free, too"


@pytest.mark.parametrize(
    ("ends", "reports", "taken"), [(True, False, 50), (False, False, 50), (False, True, 50), (True, True, 11)]
)
def test_a_stream_without_a_report_counts_its_events(ends: bool, reports: bool, taken: int) -> None:
    """A client that leaves before the last event of a stream pays for what it got, not for what is reported first."""
    world, quotas = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="1000/day")
    world.pod(limit=5)
    body = body_of(max_tokens=400)
    exchange, _ = send(world, body)
    head = response_head(200, -1)
    head.headers = Fields.from_pairs([(b"Content-Type", b"text/event-stream")])
    at_pod(exchange).response_head(head)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}
    for at in range(50):
        event = start if at == 0 and reports else {"type": "content_block_delta"}
        at_pod(exchange).response_body(b"data: " + json.dumps(event).encode() + b"\n\n")
    if ends:
        at_pod(exchange).response_end([])
    else:
        exchange.client_gone()
    assert tokens_left(quotas) == 1000 - taken - (0 if taken == 11 else len(body) // 4)


def test_a_response_that_is_cut_counts_as_reserved() -> None:
    world, quotas = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="1000/day")
    world.pod(limit=5)
    body = body_of(max_tokens=400)
    exchange, _ = send(world, body)
    at_pod(exchange).response_head(response_head(200, 10_000))
    at_pod(exchange).response_body(b"{")
    exchange.client_gone()
    assert tokens_left(quotas) == 1000 - 400 - len(body) // 4


def test_an_exhausted_user_starts_nothing_with_a_late_body() -> None:
    world, _ = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="100/day", requests="1/day")
    world.pod()
    exchange, _ = send(world, body_of())
    world.answer(exchange)
    activated = world.throttler.counters.granted_total
    client = Client()
    world.proxy.open(ask(method="POST", length=50), client).begin()
    assert client.status == 429 and world.throttler.gathering == 0
    assert world.throttler.counters.granted_total == activated


def test_a_body_of_unknown_size_is_counted_at_its_end() -> None:
    world, quotas = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="1000/day", response_tokens=100)
    world.pod(limit=5)
    head = request_head("POST", chunked=True, X_Api_Key=ALICE)
    client = Client()
    exchange = world.proxy.open(head, client)
    exchange.begin()
    assert tokens_left(quotas) == 900, "it is not gathered"
    exchange.request_body(b"x" * 800)
    exchange.request_end([])
    reply(exchange, 200, b"text", "text/plain")
    assert tokens_left(quotas) == 700


@pytest.mark.parametrize("is_whole", [True, False])
def test_json_of_unknown_size_is_read(is_whole: bool) -> None:
    """Chunked, or in frames of HTTP/2; without a report it counts as reserved, and its prompt by its size."""
    world, quotas = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="9000/day", response_tokens=100)
    world.pod(limit=5)
    head = request_head("POST", chunked=True, X_Api_Key=ALICE, Content_Type="application/json; charset=utf-8")
    exchange = world.proxy.open(head, Client())
    exchange.begin()
    assert tokens_left(quotas) == 9000, "it is gathered"
    body = body_of(max_tokens=800) + b" " * (100 if is_whole else 5_000)
    exchange.request_body(body)
    if is_whole:
        exchange.request_end([])
    world.clock.turn()
    assert tokens_left(quotas) == (9000 - 800 - len(body) // 4 if is_whole else 9000 - 100)
    if not is_whole:
        exchange.request_end([])
    reply(exchange, 200, b"text", "text/plain")
    assert tokens_left(quotas) == 9000 - (800 if is_whole else 100) - len(body) // 4


def test_a_refusal_says_how_much_was_asked_for() -> None:
    world, _ = shared({"held_bytes": 10_000, "held_body_bytes": 5_000}, tokens="1000/day")
    world.pod(limit=5)
    exchange, _ = send(world, body_of(max_tokens=5))
    _, client = send(world, body_of(max_tokens=1_000_000))
    assert client.status == 429 and int(client.fields["retry-after"]) > 1
    words = rb"1000 tokens per day, of which 9\d\d are left; this request reserves 1000 \(its prompt and `max_tokens`\)"
    assert re.search(words, client.body)
    exchange.client_gone()


def test_grpc_is_not_gathered() -> None:
    world, _ = shared(tokens="1000/day")
    pool = world.pod()
    head = request_head("POST", chunked=True, X_Api_Key=ALICE, TE="trailers", Content_Type="application/grpc")
    exchange = world.proxy.open(head, Client())
    exchange.begin()
    assert pool.pods[0].head is not None


def test_a_fallback_after_a_reload_of_users_counts_once() -> None:
    two = Two()
    quotas = limited(two, requests="10/min", concurrency=1)
    two.filter(two.second)
    two.second_pod()
    pools = [two.pod(f"p{number}", connects=False) for number in (1, 2, 3)]
    exchange, client = two.begin(ask())
    users = users_of([Key("alice", Secret(ALICE), limits=KeyLimits(requests="10/min", concurrency=1))])
    quotas.set_users(users)
    two.share(Keys(users, {}), QuotaLimits(quotas, two.clock.now))
    two.filter(two.second)
    for _ in pools:
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
        two.clock.turn()
    two.answer(exchange)
    quota = quotas.find("alice")
    assert client.status == 200 and quota is not None and not quota.open
    assert quota.ledger is not None and quota.ledger.requests.taken == 1.0


def test_a_request_that_falls_back_or_is_answered_later_counts_once() -> None:
    two = Two()
    quotas = limited(two, requests="10/min")
    two.filter(two.second)
    two.second_pod()
    pools = [two.pod(f"p{number}", connects=False) for number in (1, 2, 3)]
    exchange, _ = two.begin(ask())
    for _ in pools:
        at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
        two.clock.turn()
    assert two.second.table.in_flight == 1
    quota = quotas.find("alice")
    assert quota is not None and quota.ledger is not None
    assert quota.ledger.requests.taken == 1.0
    later = Later(SPEC)
    quotas = limited(later, requests="10/min", concurrency=1)
    later.pod()
    client = later.post(X_Api_Key=ALICE)
    quota = quotas.find("alice")
    assert quota is not None and client.status == 202 and len(quota.open) == 1, "it goes on"


class Owned:
    """A data plane whose quotas another member owns, which the test plays."""

    def __init__(self, **limits: Any) -> None:
        self.world = World(key="default/app")
        self.sent: list[QuotaMessage] = []
        self.quotas = Quotas(self.world.clock.now)
        self.quotas.join(1, lambda member, message: self.sent.append(message))
        members = (MemberName(1, 1), MemberName(2, 2))
        while View(1, members).owner_of(key_of("alice")) != 2:
            members = (members[0], MemberName(2, members[1].place + 1))
        self.quotas.adopt(View(1, members))
        users = users_of([Key("alice", Secret(ALICE), limits=KeyLimits(**limits))])
        self.quotas.set_users(users)
        self.world.share(Keys(users, {}), QuotaLimits(self.quotas, self.world.clock.now))
        self.quotas.linked(2)
        self.quotas.receive(2, QuotaQuery(1, 1))

    def reply(self, limit: str) -> None:
        asked = next(one for one in reversed(self.sent) if isinstance(one, QuotaRequest))
        self.quotas.receive(2, QuotaDecision(1, asked.key, asked.number, Decision(limit, 2.5, 3, 4.0, 0, 0.0)))


@pytest.mark.parametrize("limit", ["", "requests"])
def test_a_decision_of_another_member(limit: str) -> None:
    owned = Owned(requests="5/min")
    owned.world.pod()
    exchange, client = owned.world.begin(ask())
    assert owned.world.throttler.counters.granted_total == 0, "it waits for the decision"
    owned.reply(limit)
    if limit:
        assert (client.status, client.fields["retry-after"]) == (429, "3")
    else:
        owned.world.clock.turn()
        owned.world.answer(exchange)
        assert client.status == 200 and figures(client)["x-ratelimit-remaining-requests"] == "3"
    owned.world.check_idle()


def test_a_client_that_leaves_before_the_decision() -> None:
    owned = Owned(concurrency=1)
    owned.world.pod()
    exchange, _ = owned.world.begin(ask())
    exchange.client_gone()
    owned.reply("")
    quota = owned.quotas.find("alice")
    assert quota is not None and not quota.open and not quota.asking
    owned.world.check_idle()


def test_without_a_decision_the_request_is_refused() -> None:
    owned = Owned(requests="5/min")
    owned.world.pod()
    _, client = owned.world.begin(ask(target="/v1/chat"))
    for _ in range(round(ASK_MAX_S / MEMBER_TICK_S) - 1):
        owned.world.clock.pass_time(MEMBER_TICK_S)
        owned.quotas.tick()
        assert client.status == 0
    owned.world.clock.pass_time(MEMBER_TICK_S)
    owned.quotas.tick()
    assert (client.status, client.reason, client.fields["retry-after"]) == (503, "quota_unknown", "1")
    assert json.loads(client.body)["error"]["code"] == "quota_unknown"
    owned.world.check_idle()


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        (b'{"max_tokens": 5}', 5),
        (b'{"max_tokens": 5, "max_completion_tokens": 7}', 7),
        (b'{"max_tokens": 100000, "max_completion_tokens": 0}', 100_000),
        (b'{"max_tokens": 5, "n": 3, "best_of": 4}', 20),
        (b'{"max_tokens": 0, "n": -3}', 0),
        (b'{"max_output_tokens": 5}', 5),
        (b'{"n_predict": -1}', None),
        (b'{"max_tokens": 5.5}', 6),
        (b'{"max_tokens": 800.0}', 800),
        (b'{"max_tokens": "5"}', 5),
        (b'{"max_tokens": "five"}', None),
        (b'{"max_tokens": 800, "n_predict": "x", "best_of": [2]}', 800),
        (b'{"max_tokens": 800, "n": {"a": 1}}', 800),
        (b'{"max_tokens": 1e400}', None),
        (b'\xef\xbb\xbf{"max_tokens": 5}', 5),
        (b'{"options": {"num_predict": 42, "seed": 1}}', 42),
        (b'{"options": [1], "max_tokens": 5}', 5),
        (b'{"max_tokens": null, "messages": [{"max_tokens": 3}]}', None),
        (b'{"max_tokens": 99999999999999999999999999}', 1_000_000_000),
        (b"[1]", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[" * 60_000, None),
        (b"", None),
    ],
)
def test_the_bound_of_a_request(body: bytes, bound: int | None) -> None:
    assert response_bound(body) == bound


def test_metrics_name_the_limits() -> None:
    assert USER_LIMITS == LIMITS
