"""Who may use what, by which field, and what the others are told."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from activator.config.model.keys import Key
from activator.config.model.kinds import Secret
from activator.config.specs import DisciplineSpec, FiltersSpec, QueueSpec, QuietSpec
from activator.config.user_keys import users_of
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.keys import CREDENTIAL_BYTES_MAX, CREDENTIALS_MAX, Keys
from activator.data_plane.tables.apply import load_of
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head
from tests.data_plane.proxy.test_fallback_revision import Two

ALICE = "alice's-key-0"
BOB = "bob's-key-00"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def key(name: str, text: str | None, *revisions: str, priority: int | None = None, weight: int = 1) -> Key:
    return Key(name, Secret("none" if text is None else text), list(revisions) or None, priority, weight)


def shared(*keys: Key, **spec: Any) -> tuple[World, Keys]:
    world = World(**{"key": "default/app", **spec})
    made = Keys(users_of(keys), {})
    world.share(made)
    return world, made


def user_of(exchange: Exchange) -> str:
    assert exchange.access is not None and exchange.access.user is not None
    return exchange.access.user.name


def counts(keys: Keys) -> dict[str, int]:
    return {name: totals.requests for name, totals in keys.totals().items()}


def refusal(client: Client) -> tuple[int, str, bytes]:
    return client.status, client.reason, client.body


@pytest.mark.parametrize(
    ("fields", "removed"),
    [
        ({"Authorization": f"Bearer {ALICE}"}, b"authorization"),
        ({"AUTHORIZATION": f"bearer   {ALICE}"}, b"authorization"),
        ({"Authorization": basic(f"anybody:{ALICE}")}, b"authorization"),
        ({"X_Api_Key": ALICE}, b"x-api-key"),
        ({"Authorization": "Digest x", "X_Api_Key": ALICE}, b"x-api-key"),
    ],
)
@pytest.mark.parametrize("hashed", [False, True])
def test_a_valid_key_is_admitted_and_not_passed_on(fields: dict[str, Any], removed: bytes, hashed: bool) -> None:
    text = f"sha256:{hashlib.sha256(ALICE.encode()).hexdigest()}" if hashed else ALICE
    world, keys = shared(key("alice", text))
    pool = world.pod()
    exchange, client = world.begin(request_head(**fields, X_Other="stays"))
    sent = pool.pods[0].head
    assert sent is not None
    assert sent.headers.get(removed) is None and sent.headers.get(b"x-other") == b"stays"
    assert exchange.head.headers.get(removed) is not None, "the client's head never changes"
    assert user_of(exchange) == "alice"
    world.answer(exchange)
    assert client.status == 200
    assert counts(keys) == {"alice": 1}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, b"a valid key is required\n"),
        ({"Authorization": "Bearer "}, b"a valid key is required\n"),
        ({"Authorization": "Basic !!!"}, b"a valid key is required\n"),
        ({"Authorization": basic("alice")}, b"a valid key is required\n"),
        ({"Authorization": "Bearer " + "x" * CREDENTIAL_BYTES_MAX}, b"a valid key is required\n"),
        ({"Authorization": f"Bearer {ALICE}x"}, b"a valid key is required: it is not known\n"),
        ({"Authorization": basic(f"{ALICE}:")}, b"a valid key is required\n"),
        ({"X_Api_Key": BOB}, b"a valid key is required: it is not known\n"),
    ],
)
def test_without_a_valid_key_nothing_starts(fields: dict[str, Any], text: bytes) -> None:
    world, keys = shared(key("alice", ALICE))
    _, client = world.begin(request_head(**fields))
    assert refusal(client) == (401, "key_required", text)
    assert client.fields["www-authenticate"] == 'Bearer realm="activator", Basic realm="activator"'
    assert ALICE not in str(client.fields) and world.heard.events == [], "nothing was asked to start"
    assert counts(keys) == {"alice": 0}
    assert world.proxy.refused_requests[Reason.KEY_REQUIRED] == 1
    assert world.throttler.counters.failed_totals == {}


def test_a_key_that_may_not_use_the_revision() -> None:
    world, keys = shared(key("alice", ALICE, "other"), key("bob", BOB, "app"))
    _, client = world.begin(request_head(X_Api_Key=ALICE))
    assert refusal(client) == (403, "key_not_allowed", b"this key may not use this revision\n")
    world.pod()
    exchange, _ = world.begin(request_head(X_Api_Key=BOB))
    assert user_of(exchange) == "bob"
    assert counts(keys) == {"alice": 0, "bob": 1}


def test_a_revision_for_anyone_gets_the_fields_of_others() -> None:
    """They may be for the program itself."""
    world, keys = shared(key("alice", ALICE), key("anyone", None, "app"))
    pool = world.pod(limit=5)
    users = []
    cases: list[dict[str, Any]] = [{}, {"Authorization": "Bearer of-the-program"}, {"Authorization": f"Bearer {ALICE}"}]
    for fields in cases:
        exchange, _ = world.begin(request_head(**fields))
        users.append(user_of(exchange))
    assert users == ["anyone", "anyone", "alice"]
    passed = [pod.head.headers.get(b"authorization") for pod in pool.pods if pod.head is not None]
    assert passed == [None, b"Bearer of-the-program", None]
    assert counts(keys) == {"alice": 1, "anyone": 2}


def test_errors_below_v1_have_the_form_of_openai() -> None:
    world, _ = shared(key("alice", ALICE, "other"))
    answers = []
    cases: list[dict[str, Any]] = [{}, {"X_Api_Key": ALICE}]
    for fields in cases:
        head = request_head(**fields)
        head.target = b"/v1/chat/completions"
        _, client = world.begin(head)
        assert client.fields["content-type"] == "application/json"
        answers.append((client.status, json.loads(client.body)["error"]))
    assert answers == [
        (401, {"message": "a valid key is required", "type": "invalid_request_error", "param": None,
               "code": "invalid_api_key"}),
        (403, {"message": "this key may not use this revision", "type": "permission_error", "param": None,
               "code": "model_not_allowed"}),
    ]  # fmt: skip


def test_shares_by_key() -> None:
    world, _ = shared(
        key("alice", ALICE), key("bob", BOB), queue=QueueSpec(discipline=DisciplineSpec("fair", weights={"bob": 2}))
    )
    world.pod()
    first, _ = world.begin(request_head(X_Api_Key=ALICE))
    waiting = [world.begin(request_head(X_Api_Key=text))[0] for text in (ALICE, ALICE, ALICE, BOB, BOB)]
    served = []
    holder = first
    for _ in range(5):
        world.answer(holder)
        (holder,) = [one for one in waiting if one.lease is not None and not one.over]
        served.append(user_of(holder))
    assert sorted(served[:3]) == ["alice", "bob", "bob"], "bob's weight is 2"
    world.answer(holder)


def set_users(world: World, *keys: Key) -> None:
    """As the plane does it."""
    catalogue = world.catalogue()
    catalogue.set_users(users_of(keys))
    world.share(*catalogue.shared)
    world.throttler.queue.weigh_users(catalogue.user_weights)


@pytest.mark.parametrize("discipline", ["fair", "priority-fair"])
def test_weights_of_keys_and_a_reload_while_requests_wait(discipline: str) -> None:
    world = World(key="default/app", queue=QueueSpec(discipline=DisciplineSpec(discipline)))
    set_users(world, key("alice", ALICE, weight=3), key("bob", BOB))
    world.pod()
    holder, _ = world.begin(request_head(X_Api_Key=ALICE))
    waiting = [world.begin(request_head(X_Api_Key=text))[0] for _ in range(20) for text in (ALICE, BOB)]

    def serve(count: int) -> list[str]:
        nonlocal holder
        served = []
        for _ in range(count):
            world.answer(holder)
            (holder,) = [one for one in waiting if one.lease is not None and not one.over]
            served.append(user_of(holder))
        return served

    assert serve(8) == ["alice", "alice", "alice", "bob"] * 2
    set_users(world, key("alice", ALICE), key("bob", BOB, weight=2))
    assert serve(6) == ["alice", "bob", "bob"] * 2
    for one in [*waiting, holder]:
        one.client_gone()
    world.check_idle()


def test_a_reload_continues_the_counts() -> None:
    world, before = shared(key("alice", ALICE), key("gone", BOB))
    world.pod(limit=5)
    for text in (ALICE, ALICE, BOB):
        exchange, _ = world.begin(request_head(X_Api_Key=text))
        assert at_pod(exchange) is not None
    after = Keys(users_of([key("alice", "another-key"), key("new", None)]), before.totals())
    assert counts(after) == {"alice": 2, "new": 0}


def test_the_first_key_that_may_use_the_revision_counts_and_no_key_is_passed_on() -> None:
    world, _ = shared(key("alice", ALICE, "other"), key("bob", BOB))
    pool = world.pod(limit=5)
    exchange, _ = world.begin(request_head(Authorization=f"Bearer {ALICE}", X_Api_Key=BOB))
    assert user_of(exchange) == "bob"
    (pod,) = pool.pods
    assert pod.head is not None
    assert pod.head.headers.get(b"authorization") is None and pod.head.headers.get(b"x-api-key") is None


def test_a_key_behind_another_field_of_the_same_name_is_found() -> None:
    world, _ = shared(key("alice", ALICE), key("anyone", None))
    pool = world.pod(limit=5)
    head = request_head(X_Api_Key="of-the-program")
    head.headers = head.headers.with_line(b"x-api-KEY", ALICE.encode())
    exchange, _ = world.begin(head)
    assert user_of(exchange) == "alice"
    assert pool.pods[0].head is not None and pool.pods[0].head.headers.get(b"x-api-key") is None
    for _ in range(CREDENTIALS_MAX):
        head.headers = head.headers.with_line(b"Authorization", b"Bearer another")
    _, client = world.begin(head)
    assert refusal(client) == (401, "key_required", b"a valid key is required: there are too many\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"Bearer\t{ALICE}"),
        ("Authorization", ALICE),
        ("X-Api-Key", f"Bearer {ALICE}"),
        ("X_Api_Key", ALICE),
        ("x-API_Key", ALICE),
        ("X-Api-Key", basic(f"x:{ALICE}")),
    ],
)
def test_a_key_never_reaches_a_pod_however_it_is_written(name: str, value: str) -> None:
    world, keys = shared(key("alice", ALICE), key("anyone", None))
    pool = world.pod()
    head = request_head()
    head.headers = head.headers.with_line(name.encode(), value.encode())
    exchange, _ = world.begin(head)
    assert user_of(exchange) == "alice" and counts(keys) == {"alice": 1, "anyone": 0}
    assert pool.pods[0].head is not None and ALICE.encode() not in pool.pods[0].head.headers.block
    assert b"Authorization: Basic" not in pool.pods[0].head.headers.block


def test_a_key_that_a_reload_removes_gives_no_further_revision() -> None:
    """The request waits meanwhile; what it was granted at its arrival does not count for the next revision."""
    world = Two(queue=QueueSpec(depth=5))
    world.share(Keys(users_of([key("alice", ALICE)]), {}))
    world.filter(world.second)
    world.second_pod()
    exchange, client = world.begin(request_head(X_Api_Key=ALICE))
    assert exchange.place.is_queued
    world.share(Keys(users_of([key("bob", BOB)]), {}))
    world.filter(world.second)
    world.throttler.queue.fail("it is gone")
    world.clock.turn()
    assert refusal(client)[:2] == (401, "key_required")


def test_a_request_that_is_continued_keeps_its_user() -> None:
    queue = QueueSpec(discipline=DisciplineSpec("fair"))
    world, _ = shared(key("alice", ALICE), queue=queue)
    exchange, _ = world.begin(request_head(X_Api_Key=ALICE))
    assert exchange.place.share == b"alice"
    other = exchange.detach(Client())
    assert other.access is exchange.access and other.place.user is exchange.place.user is not None


def test_without_shares_the_place_of_a_request_is_ordinary() -> None:
    """What is sent of it between workers is shorter then."""
    world, _ = shared(key("alice", ALICE))
    exchange, _ = world.begin(request_head(X_Api_Key=ALICE))
    assert (exchange.place.share, exchange.place.level) == (b"", 0)


def test_a_grpc_call_without_a_key_has_no_json() -> None:
    world, _ = shared(key("alice", ALICE))
    head = request_head(Content_Type="application/grpc", TE="trailers")
    head.target, head.takes_trailers = b"/v1/x", True
    _, client = world.begin(head)
    assert client.fields["grpc-status"] == "16" and "{" not in client.fields["grpc-message"]


def test_a_refused_request_is_no_load() -> None:
    """Otherwise a client without rights could keep a program awake, or have it scaled."""
    quiet = FiltersSpec(no_wake=(QuietSpec("/quiet"),))
    world, _ = shared(key("alice", ALICE, "other"), filters=quiet)
    for _ in range(3):
        _, client = world.begin(request_head(X_Api_Key=ALICE))
        assert client.status == 403
    counters = world.throttler.counters
    assert (counters.quiet_total, counters.quiet, counters.failed_totals) == (3, 0, {Reason.KEY_NOT_ALLOWED: 3})
    assert load_of(world.throttler, world.clock.now()).requests_total == 0
    assert world.heard.events == []


def test_a_request_does_not_fall_back_to_a_revision_that_its_user_may_not_use() -> None:
    world = Two(queue=QueueSpec(depth=0))
    world.share(Keys(users_of([key("alice", ALICE, "ns/app"), key("bob", BOB)]), {}))
    world.filter(world.second)
    pool = world.second_pod()
    _, client = world.begin(request_head(X_Api_Key=ALICE))
    assert refusal(client)[:2] == (503, "queue_full"), "as if there were no fallback"
    exchange, _ = world.begin(request_head(X_Api_Key=BOB))
    assert exchange.throttler is world.second and pool.pods[0].head is not None
    assert pool.pods[0].head.headers.get(b"x-api-key") is None


def test_levels_and_shares_by_key() -> None:
    queue = QueueSpec(discipline=DisciplineSpec("priority-fair", default=3))
    world, _ = shared(key("alice", ALICE, priority=1), key("bob", BOB), queue=queue)
    places = [world.begin(request_head(X_Api_Key=text))[0].place for text in (ALICE, BOB)]
    assert [(place.level, place.share) for place in places] == [(1, b"alice"), (3, b"bob")]


def test_levels_by_key() -> None:
    """The level of a user counts more than what its request says."""
    queue = QueueSpec(discipline=DisciplineSpec("priority", header="X-Priority", default=3))
    world, _ = shared(key("alice", ALICE, priority=1), key("bob", BOB), queue=queue)
    places = [
        world.begin(request_head(X_Api_Key=text, X_Priority=level))[0].place
        for text, level in ((ALICE, "7"), (BOB, "6"), (BOB, "?"))
    ]
    assert [place.level for place in places] == [1, 6, 3]
