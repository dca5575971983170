"""`Prefer: respond-async`: who gets a 202, what the address then says, and what is never exceeded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.codec.message import RequestHead
from activator.config.specs import AsyncSpec, FiltersSpec, QueueSpec
from activator.data_plane.filters.stored_responses import edit_prefer
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.prefer import RESPOND_ASYNC, prefers
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.status_exchange import StatusOpener
from activator.data_plane.stored_responses.links import StoredResponseLinks
from activator.data_plane.stored_responses.store import ANSWERS_PATH, GONE_MAX, ResponseStore
from activator.data_plane.stored_responses.stored_response import KEPT_OVERHEAD_BYTES
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import (
    SEND_TIMEOUT_S,
    Client,
    Pool,
    World,
    at_pod,
    holder_of,
    request_head,
    response_head,
)

KEEP_S = 60.0
SPEC = AsyncSpec(KEEP_S, requests_max=3, answer_bytes_max=1000, bytes_max=12_000, body_bytes_max=200)


class Later(World):
    """A revision that answers later, and who asks for the answers."""

    def __init__(self, spec: AsyncSpec = SPEC, bytes_max: int = 50_000, requests_max: int = 100, **more: Any) -> None:
        super().__init__(filters=FiltersSpec(respond_async=spec), **more)
        numbers = iter(range(1, 1 << 20))
        self.store = ResponseStore(
            self.wheel, self.clock.now, self.clock.defer, bytes_max, requests_max, lambda: f"{next(numbers):032x}"
        )
        self.store.revision_set(self.spec.key, True)
        self.links = StoredResponseLinks(self.store)
        self.proxy.answers = self.answers = self.store
        self.filter(self.throttler)
        self.proxy.open_status = StatusOpener(self.proxy, self.store, self.links).open

    def post(self, body: bytes = b"", prefer: str = "respond-async", **fields: Any) -> Client:
        """One request, to its end."""
        client = Client()
        exchange = self.proxy.open(request_head("POST", length=len(body), Prefer=prefer, **fields), client)
        exchange.begin()
        if body:
            exchange.request_body(body)
        exchange.request_end([])
        self.clock.turn()
        return client

    def ask(self, path: str, method: str = "GET") -> Client:
        head = request_head(method)
        head.target = path.encode()
        client = Client()
        exchange = self.proxy.open_request(head, client)
        exchange.request_end([])
        exchange.begin()
        return client

    def exchange_at(self, pool: Pool, number: int = -1) -> ProxiedExchange:
        """Whoever has the pod."""
        (found,) = [holder_of(lease) for lease in self.throttler.leases]
        assert found.pod is pool.pods[number]
        return found

    def check_bounds(self) -> None:
        kept = self.store.kept.values()
        assert self.store.bytes == sum(answer.bytes for answer in kept) <= 50_000
        assert len(self.store.kept) <= SPEC.requests_max
        assert sum(answer.bytes for answer in kept) <= SPEC.bytes_max
        assert all(len(answer.body) <= SPEC.answer_bytes_max + 100 for answer in kept)
        assert self.store.pending == sum(not answer.is_done for answer in kept)

    def check_nothing_kept(self) -> None:
        assert not self.store.kept and self.store.bytes == 0 and self.store.pending == 0
        self.check_idle()


def place_of(client: Client) -> str:
    assert client.status == 202
    return client.fields["location"]


# --- the preference ---


@pytest.mark.parametrize(
    ("values", "is_preferred", "left"),
    [
        (["respond-async"], True, []),
        (["Respond-Async; x=1, wait=10"], True, ["wait=10"]),
        (["wait=10", "handling=lenient , respond-async"], True, ["wait=10", "handling=lenient"]),
        (["respond-asynchronously"], False, ["respond-asynchronously"]),
        (['foo="respond-async"'], False, ['foo="respond-async"']),
        ([], False, []),
    ],
)
def test_the_preference_is_found_and_taken_out(values: list[str], is_preferred: bool, left: list[str]) -> None:
    head = request_head(X="y")
    for value in values:
        head.headers = head.headers.with_line(b"PREFER", value.encode())
    before = head.headers.pairs()
    assert prefers(head, RESPOND_ASYNC) == is_preferred
    edits = HeadEdits()
    edit_prefer(head, edits)
    assert head.headers.pairs() == before, "a client's head stays"
    head = edits.apply(head)
    assert [value.decode() for name, value in head.headers.pairs() if name == b"PREFER"] == left
    others = [pair for pair in before if pair[0] != b"PREFER"]
    assert [pair for pair in head.headers.pairs() if pair[0] != b"PREFER"] == others


# --- from the 202 to the answer ---


def test_a_request_is_accepted_runs_and_its_answer_is_kept() -> None:
    world = Later(queue=QueueSpec(depth=5))
    client = world.post(b"work", Accept="x/y")
    place = place_of(client)
    assert place.startswith(ANSWERS_PATH.decode()) and client.ended
    assert client.fields["preference-applied"] == "respond-async"
    assert client.fields["activator-queue-position"] == "1" and client.retry_after == "1"
    assert client.fields["cache-control"] == "no-store"
    assert json.loads(client.body)["state"] == "starting"
    assert ("queue_formed",) in world.heard.events, "it wakes the revision as any request does"
    pool = world.pod()
    (pod,) = pool.pods
    assert pod.head is not None and pod.body == b"work" and pod.head.headers.get(b"prefer") is None
    told = world.ask(place)
    assert (told.status, json.loads(told.body)["state"]) == (202, "running")
    assert told.fields["activator-answer"] == "running" and "activator-queue-position" not in told.fields
    exchange = world.exchange_at(pool)
    head = response_head(201, 5)
    head.headers = head.headers.with_line(b"X-Result", b"r")
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(b"he")
    at_pod(exchange).response_body(b"llo")
    at_pod(exchange).response_end([(b"x-sum", b"1")])
    for _ in range(3):
        got = world.ask(place)
        assert (got.status, got.body, got.fields["x-result"], got.ended) == (201, b"hello", "r", True)
        assert got.fields["activator-answer"] == "kept"
    assert world.ask(place, "HEAD").body == b""
    assert world.store.totals["collected"] == 1
    world.clock.pass_time(KEEP_S + 0.1)
    assert (world.ask(place).status, world.ask(place).reason) == (410, "answer_gone")
    assert world.throttler.counters.requests_total == 1, "it is one request"
    world.check_nothing_kept()


def test_positions_fall_as_others_are_served() -> None:
    world = Later()
    places = [place_of(world.post()) for _ in range(3)]
    world.clock.pass_time(1.0)
    shown = [json.loads(world.ask(place).body) for place in places]
    assert [one["position"] for one in shown] == [1, 2, 3] and {one["waiting"] for one in shown} == {3}
    world.pod()
    world.answer(world.throttler_holder())
    world.clock.pass_time(1.0)
    states = [world.ask(place) for place in places]
    assert [one.fields["activator-answer"] for one in states] == ["kept", "running", "waiting"]
    assert json.loads(states[2].body)["position"] == 1
    for place in places:
        assert world.ask(place, "DELETE").status == 204
    world.clock.turn()
    world.check_nothing_kept()


def test_without_the_key_or_the_preference_clients_wait() -> None:
    world = Later()
    client = world.post(prefer="wait=5")
    assert client.silent() and not world.store.kept
    plain = World()
    _, client = plain.begin(request_head(Prefer="respond-async"))
    assert client.silent()


def test_upgrades_and_revisions_that_cannot_start_are_answered_at_once() -> None:
    world = Later()
    exchange, client = world.begin(request_head(Prefer="respond-async", Upgrade="websocket", Connection="Upgrade"))
    assert client.silent()
    exchange.client_gone()
    world.throttler.queue.fail("no model")
    client = world.post()
    assert (client.status, client.reason) == (503, "revision_failed") and b"no model" in client.body
    world.check_nothing_kept()


def test_a_refusal_at_once_is_the_clients_answer() -> None:
    world = Later(queue=QueueSpec(depth=1))
    first = place_of(world.post())
    client = world.post()
    assert (client.status, client.reason, client.retry_after) == (503, "queue_full", "1")
    assert world.throttler.counters.failed_totals == {Reason.QUEUE_FULL: 1}
    assert len(world.store.kept) == 1 and world.store.totals["accepted"] == 1
    assert world.ask(first, "DELETE").status == 204
    world.check_nothing_kept()


def test_a_refusal_later_is_the_kept_answer() -> None:
    world = Later(queue=QueueSpec(timeout_s=5.0))
    place = place_of(world.post())
    world.clock.pass_time(6.0)
    world.clock.turn()
    got = world.ask(place)
    assert (got.status, got.reason) == (504, "queue_timeout")
    world.clock.pass_time(KEEP_S)
    world.check_nothing_kept()


def test_a_client_that_leaves_before_all_of_its_request_is_here() -> None:
    world = Later()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=10, Prefer="respond-async"), client)
    exchange.begin()
    exchange.request_body(b"half")
    assert client.silent() and client.asked_for_body
    exchange.client_gone()
    world.check_nothing_kept()


def test_nothing_that_happens_to_the_first_connection_matters_after_the_202() -> None:
    world = Later()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=0, Prefer="respond-async"), client)
    exchange.begin()
    assert client.status == 202
    exchange.client_blocked()
    exchange.client_gone()
    exchange.request_failed(Reason.BAD_REQUEST, "")
    assert world.store.pending == 1
    world.pod()
    world.answer(world.throttler_holder())
    assert world.ask(place_of(client)).body == b"hello"


def test_a_deleted_request_is_ended_like_one_whose_client_leaves() -> None:
    world = Later()
    pool = world.pod()
    place = place_of(world.post())
    assert world.ask(place, "DELETE").status == 204
    assert pool.pods[0].aborted
    assert (world.ask(place).status, world.ask(place, "DELETE").status) == (410, 410)
    world.check_nothing_kept()


def test_a_pod_that_fails_in_the_middle_of_its_answer() -> None:
    world = Later()
    world.pod()
    place = place_of(world.post())
    exchange = world.throttler_holder()
    at_pod(exchange).response_head(response_head(200, 100))
    at_pod(exchange).response_body(b"a part")
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    got = world.ask(place)
    assert (got.status, got.reason) == (502, "pod_closed") and b"a part" not in got.body


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_answer_that_is_too_large_is_a_failure_with_its_reason(is_declared: bool) -> None:
    world = Later()
    pool = world.pod()
    place = place_of(world.post())
    exchange = world.throttler_holder()
    size = SPEC.answer_bytes_max + 1
    at_pod(exchange).response_head(response_head(200, size if is_declared else -1))
    at_pod(exchange).response_body(b"x" * (size - 1))
    at_pod(exchange).response_body(b"x")
    got = world.ask(place)
    assert (got.status, got.reason) == (502, "answer_too_large")
    world.clock.turn()
    assert pool.pods[0].aborted and world.table.in_flight == 0, "it is not waited for any more"
    assert world.store.totals["too_large"] == 1
    assert world.store.bytes < KEPT_OVERHEAD_BYTES + 200
    world.clock.pass_time(KEEP_S + 0.1)
    world.check_nothing_kept()


def test_an_answer_without_a_body() -> None:
    world = Later()
    world.pod()
    for method, status in (("HEAD", 200), ("POST", 204)):
        client = Client()
        exchange = world.proxy.open(request_head(method, Prefer="respond-async"), client)
        exchange.request_end([])
        exchange.begin()
        head = response_head(status, 500)
        head.has_body = False
        holder = world.throttler_holder()
        at_pod(holder).response_head(head)
        at_pod(holder).response_end([])
        got = world.ask(place_of(client))
        assert (got.status, got.body, got.ended) == (status, b"", True)


# --- what does not fit ---


def test_beyond_the_bounds_clients_wait_like_others() -> None:
    world = Later()
    places = [place_of(world.post()) for _ in range(SPEC.requests_max)]
    client = world.post()
    assert client.silent() and world.store.totals["synchronous"] == 1
    world.pod(limit=10)
    for lease in list(world.throttler.leases):
        world.answer(holder_of(lease))
    assert client.status == 200 and "preference-applied" not in client.fields
    assert world.ask(places[0], "DELETE").status == 204
    assert world.post().status == 202, "a deleted one makes room"
    world.check_bounds()


def test_a_body_that_is_too_large_is_sent_on_as_it_comes() -> None:
    world = Later()
    pool = world.pod()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=SPEC.body_bytes_max + 1, Prefer="respond-async"), client)
    exchange.begin()
    assert client.silent() and pool.pods[0].head is exchange.head
    exchange.client_gone()
    client = Client()
    exchange = world.proxy.open(request_head("POST", chunked=True, Prefer="respond-async"), client)
    exchange.begin()
    sent = b""
    while not client.is_paused() and len(sent) < 10_000 and len(pool.pods) == 1:
        exchange.request_body(b"y" * 40)
        sent += b"y" * 40
        world.clock.turn()
    for _ in range(5):
        world.clock.turn()
    assert pool.pods[1].body == sent and client.silent(), "nothing is lost of it"
    exchange.client_gone()
    world.check_nothing_kept()


def test_all_revisions_together_are_bounded_as_well() -> None:
    world = Later(requests_max=2)
    assert [world.post().status for _ in range(3)] == [202, 202, 0]
    world = Later(bytes_max=KEPT_OVERHEAD_BYTES)
    assert [world.post().status for _ in range(2)] == [202, 0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.integers(0, 300)),
        st.tuples(st.just("answer"), st.integers(0, 1300)),
        st.tuples(st.just("fail"), st.integers(0, 1)),
        st.tuples(st.just("get"), st.integers(0, 30)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("time"), st.integers(1, 40)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_happens_the_bounds_hold_and_nothing_is_left(steps: list[tuple[str, int]]) -> None:
    world = Later(held_bytes=100_000)
    world.pod(limit=2)
    places: list[str] = []

    def holder() -> Any:
        return next((holder_of(lease) for lease in world.throttler.leases), None)

    actions: dict[str, Callable[[int], object]] = {
        "post": lambda size: places.extend(
            [client.fields["location"]] if (client := world.post(b"b" * size)).status == 202 else []
        ),
        "answer": lambda size: world.answer(holder(), body=b"a" * size) if holder() else None,
        "fail": lambda _: at_pod(holder()).pod_failed(Reason.POD_CLOSED, "", False) if holder() else None,
        "get": lambda place: world.ask(places[place]) if place < len(places) else None,
        "delete": lambda place: world.ask(places[place], "DELETE") if place < len(places) else None,
        "time": lambda seconds: world.clock.pass_time(float(seconds)),
    }
    for what, number in steps:
        actions[what](number)
        world.clock.turn()
        world.check_bounds()
    world.store.close()
    world.store.cut()
    world.store.forget_all()
    while holder():
        holder().client_gone()
    for _ in range(5):
        world.clock.turn()
    world.clock.pass_time(200.0)
    assert not world.store.kept and world.store.bytes == 0 and world.store.pending == 0
    assert not world.errors and world.table.in_flight == 0


# --- who asks ---


def test_names_that_are_none() -> None:
    world = Later()
    for name in ("", "0", "0-", "-", "zz-1", "0-" + "f" * 32, "0-" + "f" * 100, "1-" + "f" * 32, "0-%2e%2e"):
        client = world.ask(ANSWERS_PATH.decode() + name)
        assert (client.status, client.reason) in {(404, "no_answer"), (410, "answer_gone")}, name
    client = world.ask(ANSWERS_PATH.decode() + "0-1", "POST")
    assert (client.status, client.fields["allow"]) == (405, "GET, HEAD, DELETE")
    world.check_nothing_kept()


def test_the_path_is_the_pods_where_no_revision_answers_later() -> None:
    world = Later()
    pool = world.pod()
    world.store.revision_set(world.spec.key, False)
    client = world.ask(ANSWERS_PATH.decode() + "0-1")
    assert client.silent() and pool.pods[0].head is not None


def test_names_that_were_forgotten_are_remembered_for_long_but_bounded() -> None:
    world = Later()
    first = place_of(world.post())
    assert world.ask(first, "DELETE").status == 204
    for _ in range(GONE_MAX - 1):
        world.ask(place_of(world.post()), "DELETE")
    assert world.ask(first).status == 410
    world.ask(place_of(world.post()), "DELETE")
    assert world.ask(first).status == 404


class SlowClient(Client):
    """Is full after each part."""

    exchange: Any = None

    def send_body(self, data: bytes) -> None:
        super().send_body(data)
        self.exchange.client_blocked()


def test_a_slow_reader_is_sent_parts_and_cut_when_it_takes_nothing() -> None:
    spec = AsyncSpec(KEEP_S, 3, 1 << 20, 1 << 20, 200)
    world = Later(spec, bytes_max=1 << 21)
    world.pod()
    place = place_of(world.post())
    world.answer(world.throttler_holder(), body=b"x" * 200_000)

    def read() -> SlowClient:
        head = request_head()
        head.target = place.encode()
        client = SlowClient()
        client.exchange = world.proxy.open_request(head, client)
        client.exchange.request_end([])
        client.exchange.begin()
        return client

    client = read()
    assert 0 < len(client.body) < 100_000
    while not client.has_ended():
        client.exchange.client_drained()
    assert client.body == b"x" * 200_000
    client = read()
    world.ask(place, "DELETE")
    assert world.store.bytes > 200_000, "it counts until it is sent, or its reader is gone"
    client.taken = 10
    world.clock.pass_time(SEND_TIMEOUT_S + 1.0)
    assert not client.is_aborted(), "it has taken something"
    world.clock.pass_time(SEND_TIMEOUT_S + 1.0)
    assert client.is_aborted()
    world.check_nothing_kept()


# --- several data planes ---


class Two:
    """Two data planes, and what they have said to each other and not heard yet."""

    def __init__(self) -> None:
        spec = AsyncSpec(KEEP_S, 300, 1 << 20, 1 << 24, 200)
        self.worlds = {number: Later(spec, bytes_max=1 << 24, requests_max=1000) for number in (1, 2)}
        self.said: list[tuple[int, int, Any]] = []
        for number, world in self.worlds.items():
            world.links.join(number, lambda to, message, own=number: self.said.append((own, to, message)))  # type: ignore[misc]
            world.links.set_members({1, 2})
            world.links.linked(3 - number)

    def talk(self) -> None:
        while self.said:
            sender, to, message = self.said.pop(0)
            self.worlds[to].links.receive(sender, message)


def test_any_of_several_gives_the_answer() -> None:
    two = Two()
    one, other = two.worlds[1], two.worlds[2]
    place = place_of(one.post())
    assert place.startswith(ANSWERS_PATH.decode() + "1-")
    other.store.is_open = True
    client = other.ask(place)
    assert client.silent()
    two.talk()
    assert client.status == 202 and json.loads(client.body)["position"] == 1
    one.pod()
    body = bytes(range(256)) * 1000
    one.answer(one.throttler_holder(), body=body)
    client = other.ask(place)
    two.talk()
    assert (client.status, client.ended) == (200, True) and client.body == body
    assert client.fields["activator-answer"] == "kept"
    client = other.ask(place, "HEAD")
    two.talk()
    assert (client.status, client.body, client.ended) == (200, b"", True)
    client = other.ask(place, "DELETE")
    two.talk()
    assert client.status == 204
    client = other.ask(place)
    two.talk()
    assert (client.status, client.reason) == (410, "answer_gone")
    one.check_nothing_kept()
    other.check_nothing_kept()


def test_a_refusal_that_is_kept_is_the_same_from_everywhere() -> None:
    two = Two()
    one, other = two.worlds[1], two.worlds[2]
    place = place_of(one.post())
    one.throttler.queue.fail("no model")
    one.clock.turn()
    client = other.ask(place)
    two.talk()
    got = one.ask(place)
    assert (client.status, client.body, client.fields) == (got.status, got.body, got.fields)
    assert client.reason == "revision_failed" and client.fields["activator-answer"] == "kept"


def test_one_that_does_not_answer_is_not_waited_for() -> None:
    two = Two()
    place = place_of(two.worlds[1].post())
    other = two.worlds[2]
    client = other.ask(place)
    other.clock.pass_time(6.0)
    assert (client.status, client.reason, client.retry_after) == (503, "answer_unreachable", "1")
    assert other.proxy.refused_requests == {Reason.ANSWER_UNREACHABLE: 1}
    two.talk()  # too late
    client = other.ask(place)
    other.links.unlinked(1)
    assert (client.status, client.reason) == (503, "answer_unreachable")
    assert other.ask(place).reason == "answer_unreachable"
    other.links.set_members({2})
    client = other.ask(place)
    assert (client.status, client.reason) == (410, "answer_gone")
    other.check_idle()


def test_an_answer_that_goes_away_in_the_middle_is_cut() -> None:
    two = Two()
    one, other = two.worlds[1], two.worlds[2]
    one.pod()
    place = place_of(one.post())
    one.answer(one.throttler_holder(), body=b"x" * 200_000)
    client = other.ask(place)
    sender, _, message = two.said.pop(0)
    one.links.receive(sender, message)
    sender, _, message = two.said.pop(0)
    other.links.receive(sender, message)
    assert client.status == 200 and 0 < len(client.body) < 200_000
    assert one.ask(place, "DELETE").status == 204
    two.talk()
    assert client.is_aborted() and not client.has_ended()
    other.check_idle()


def test_many_who_ask_at_once_do_not_fill_the_link() -> None:
    two = Two()
    one, other = two.worlds[1], two.worlds[2]
    one.pod()
    place = place_of(one.post())
    one.answer(one.throttler_holder(), body=b"x" * 150_000)
    clients = [other.ask(place) for _ in range(200)]
    most = 0
    while two.said:
        most = max(most, len(two.said))
        sender, to, message = two.said.pop(0)
        two.worlds[to].links.receive(sender, message)
    assert most <= 33, "parts under way"
    assert all(client.ended and len(client.body) == 150_000 for client in clients)
    other.check_idle()


def test_clients_that_leave_give_their_queries_up() -> None:
    two = Two()
    other = two.worlds[2]
    place = place_of(two.worlds[1].post())
    head: RequestHead = request_head()
    head.target = place.encode()
    exchange = other.proxy.open_request(head, Client())
    exchange.begin()
    exchange.client_gone()
    two.talk()
    other.check_idle()


# --- the end of the program ---


def test_at_the_end_nothing_is_accepted_and_what_was_not_read_is_counted() -> None:
    world = Later()
    world.pod()
    read = place_of(world.post())
    world.answer(world.throttler_holder())
    assert world.ask(read).status == 200
    place_of(world.post())
    world.store.close()
    assert world.post().silent(), "it is answered at once"
    assert world.store.pending == 1
    world.store.cut()
    assert world.store.pending == 0
    assert world.store.forget_all() == 1 and world.store.totals["lost"] == 1
    assert not world.store.kept and world.store.bytes == 0


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("leaves", [True, False])
def test_what_a_request_for_an_answer_carries_is_discarded(method: str, leaves: bool) -> None:
    """It holds no memory, and its client is not paused."""
    it = Later()
    it.pod()
    path = it.post().fields["location"]
    head = request_head(method, length=100_000)
    head.target = path.encode()
    client = Client()
    exchange = it.proxy.open_request(head, client)
    for _ in range(10):
        exchange.request_body(bytes(5_000))
    assert it.held.held_bytes == 0 and not client.is_paused()
    if leaves:
        exchange.client_gone()
        exchange.begin()
        assert client.silent()
    else:
        exchange.begin()
        assert client.status == {"POST": 405, "GET": 202, "DELETE": 204}[method]
    exchange.request_body(bytes(50_000))
    exchange.request_end([])
    exchange.client_gone()
    for lease in list(it.throttler.leases):
        it.answer(holder_of(lease))
    it.clock.pass_time(2 * KEEP_S)
    it.check_idle()
