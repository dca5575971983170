"""JSON bodies whose members are set and removed: lengths, trailers, budgets, captures and another pod."""

from __future__ import annotations

import pytest

from activator.codec.json_edit import ObjectEdit
from activator.config.specs import RecordSpec
from activator.data_plane.captures import CaptureStore
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.filters.record import Record
from tests.data_plane.proxy.proxy_fakes import Client, World, request_head

EDIT = ObjectEdit(["top_p"], [("seed", "1")])
BODY = b'{"top_p":1,"a":2,"top_p":3,"b":4}'
EDITED = b'{"seed":1,"a":2,"b":4}'


def world_of(edit: ObjectEdit = EDIT, held_bytes: int = 100_000) -> World:
    world = World(held_bytes=held_bytes, held_body_bytes=1000)
    world.throttler.object_edit = edit
    return world


@pytest.mark.parametrize("cut", [1, 14, len(BODY)])
@pytest.mark.parametrize("has_trailers", [False, True])
def test_a_whole_body_has_its_length_and_any_body_its_trailers(cut: int, has_trailers: bool) -> None:
    """A body with a length has no trailers in HTTP/1.1, so one with trailers is sent in chunks."""
    world = world_of()
    exchange, client = world.begin(request_head("POST", length=len(BODY)))
    exchange.request_body(BODY[:cut])
    if cut == len(BODY):
        exchange.request_end([(b"X-Sum", b"1")] if has_trailers else [])
    pool = world.pod()
    if cut < len(BODY):
        exchange.request_body(BODY[cut:])
        exchange.request_end([(b"X-Sum", b"1")] if has_trailers else [])
    (pod,) = pool.pods
    assert pod.head is not None and pod.head.has_body and pod.body == EDITED and pod.ended
    assert pod.head.content_length == (len(EDITED) if cut == len(BODY) and not has_trailers else -1)
    assert pod.trailers == ([(b"X-Sum", b"1")] if has_trailers else [])
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_the_rest_of_a_cut_name_is_refused_without_room_and_not_lost() -> None:
    world = world_of(ObjectEdit(["top_p" * 10], []), held_bytes=30)
    body = b'{"a":1,"' + b"x" * 29
    exchange, client = world.begin(request_head("POST", length=len(body)))
    exchange.request_body(body)
    assert client.silent()
    exchange.request_end([])
    assert client.status == 503 and client.reason == "held_bytes_full"
    world.check_idle()


def test_a_capture_has_what_the_pod_got() -> None:
    world = world_of()
    world.throttler.filters = FilterChain(
        (), (Record(RecordSpec(False, 5, 4096, 60.0), CaptureStore(world.wheel, world.clock.now), world.clock.now),)
    )
    pool = world.pod()
    exchange = world.proxy.open(request_head("POST", length=len(BODY)), Client())
    exchange.request_body(BODY[:14])
    exchange.begin()
    exchange.request_body(BODY[14:])
    exchange.request_end([])
    assert exchange.capture is not None
    assert bytes(exchange.capture.request_body) == pool.pods[0].body == EDITED
    world.answer(exchange)
