"""A request in Knative's environment: edits made after routing reach the pod, and each pod has its own Host."""

from __future__ import annotations

import pytest

from activator.config.specs import FiltersSpec, ProgressSpec
from activator.data_plane.filters.knative import KnativeFilter
from activator.data_plane.headers.knative import KnativeDialect
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head


def world_of(passes_through: bool, **spec: object) -> World:
    world = World(**spec)  # type: ignore[arg-type]
    world.share(KnativeFilter(KnativeDialect(lambda target: "", "cluster.local", passes_through)))
    return world


def hosts(block: bytes) -> list[bytes]:
    return [line[6:] for line in block.split(b"\r\n") if line.lower().startswith(b"host: ")]


@pytest.mark.parametrize("passes_through", [False, True])
def test_edits_that_were_made_after_routing_reach_every_pod(passes_through: bool) -> None:
    world = world_of(passes_through, filters=FiltersSpec(progress=ProgressSpec(1.0, 1.0)))
    first = world.pod("p1", connects=False)
    second = world.pod("p2")
    sent = request_head(
        Accept="text/event-stream",
        Accept_Encoding="gzip",
        Knative_Serving_Revision="app",
        Knative_Serving_Namespace="ns",
    )
    exchange, client = world.begin(sent)
    head = exchange.head
    assert hosts(head.headers.block) == [b"app.test"], "the client's, until a pod is chosen"
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    sent_head = second.pods[0].head
    assert first.pods == [] and sent_head is not None
    assert head.headers.get(b"accept-encoding") == b"gzip", "the client's head stays as it came"
    block = sent_head.headers.block
    assert b"accept-encoding" not in block.lower(), "a stream of events with comments is not compressed"
    assert hosts(block) == ([b"app-private.ns"] if passes_through else [b"10.0.0.2:80"])
    assert block.count(b"K-Passthrough-Lb: true") == passes_through
    assert b"Knative-Serving" not in block
    assert block.count(b"K-Original-Host: app.test") == 1
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()
