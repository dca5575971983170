"""Statuses of pods that a fallback replaces: for which requests, who counts them, and when the slot is free again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.config.specs import BuffersSpec, FallbackSpec, FiltersSpec
from activator.data_plane.proxy.cancelled import CLOSE_PATIENCE_S, CancelledRequest
from activator.data_plane.proxy.discarded import DISCARD_TIMEOUT_S, DISCARDED_BYTES_MAX, DiscardedResponse
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.streams import PodUser
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, Pod, Pool, World, at_pod, request_head, response_head
from tests.data_plane.proxy.test_cancelled import StoppingPod
from tests.data_plane.proxy.test_fallback_revision import Two

STATUSES = (502, 503)


class TwoByStatus(Two):
    """The second revision takes requests that a pod of the first one answers with a listed status, too."""

    any_method = False

    def filter(self, throttler: RevisionThrottler) -> None:
        if throttler is self.throttler:
            fallback = FallbackSpec(revision="ns/second", statuses=STATUSES, any_method=self.any_method)
            spec = FiltersSpec(fallback=fallback)
            throttler.filters = self.catalogue().chain_of(throttler.key, spec)
        else:
            super().filter(throttler)


class TwoByStatusAndAnyMethod(TwoByStatus):
    any_method = True


def fixed(redirect: str = "", **spec: Any) -> World:
    body = "" if redirect else "sorry"
    fallback = FallbackSpec(body=body, content_type="text/plain", redirect=redirect, statuses=STATUSES)
    return World(filters=FiltersSpec(fallback=fallback), **spec)


def at_pods(world: World, **fields: Any) -> tuple[ProxiedExchange, Client]:
    """A request that a pod has received completely."""
    client = Client()
    exchange = world.proxy.open(request_head(**fields), client)
    exchange.begin()
    if exchange.head.has_body:
        exchange.request_body(b"body")
    exchange.request_end([])
    return exchange, client


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_the_second_revision_responds(method: str) -> None:
    world = TwoByStatus()
    pool, second = world.pod(), world.second_pod()
    exchange, client = world.begin(request_head(method))
    at_pod(exchange).response_interim(response_head(103))
    at_pod(exchange).response_head(response_head(503))
    assert client.silent() and pool.pods[0].aborted and exchange.revision_key() == "ns/second"
    assert second.pods[0].head is not None and second.pods[0].head.method == method.encode()
    counters = world.throttler.counters
    assert (counters.codes, counters.failed_totals, counters.fallbacks) == ({503: 1}, {}, {"ns/second": 1})
    assert (pool.figures.responses, pool.figures.errors) == (1, 1)
    assert world.table.in_flight == 0
    world.answer(exchange, 200, b"hello" if method != "HEAD" else b"")
    assert client.status == 200 and client.fields["activator-fallback"] == "ns/second"
    assert exchange.reason is None and exchange.status == 200
    world.check_idle()


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (500, {}),
        (200, {}),
        (304, {}),
        (503, {"method": "POST", "length": 4}),
        (503, {"method": "PATCH", "length": 4}),
        (503, {"method": "POST", "length": 0}),
    ],
)
def test_other_statuses_and_methods_get_the_pods_response(status: int, fields: dict[str, Any]) -> None:
    world = TwoByStatus()
    world.pod()
    world.second_pod()
    exchange, client = at_pods(world, **fields)
    world.answer(exchange, status)
    assert client.status == status and "activator-fallback" not in client.fields
    assert world.throttler.counters.fallbacks == {} and world.throttler.counters.codes == {status: 1}
    world.check_idle()


def test_other_methods_fall_back_if_the_operator_says_so() -> None:
    world = TwoByStatusAndAnyMethod()
    world.pod()
    second = world.second_pod()
    exchange, client = at_pods(world, method="POST", length=4)
    at_pod(exchange).response_head(response_head(503))
    assert (second.pods[0].body, second.pods[0].ended) == (b"body", True)
    world.answer(exchange)
    assert client.status == 200 and client.fields["activator-fallback"] == "ns/second"
    exchange, client = world.begin(request_head("POST", length=4))
    at_pod(exchange).response_head(response_head(503))
    assert client.status == 503, "its body has not come"
    exchange.client_gone()


def test_a_body_is_sent_again_only_if_all_of_it_is_held() -> None:
    world = TwoByStatus()
    pool, second = world.pod(), world.second_pod()
    exchange, client = at_pods(world, method="PUT", length=4)
    at_pod(exchange).response_head(response_head(502))
    assert (pool.pods[0].body, second.pods[0].body, second.pods[0].ended) == (b"body", b"body", True)
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()
    exchange, client = world.begin(request_head("PUT", length=104))
    for piece in (b"a" * 50, b"b" * 54):  # more than the 100 bytes that are held of one request
        exchange.request_body(piece)
    exchange.request_end([])
    world.answer(exchange, 502)
    assert client.status == 502
    world.check_idle()
    exchange, client = world.begin(request_head("PUT", length=8))
    exchange.request_body(b"half")
    world.answer(exchange, 502)
    assert client.status == 502, "an early response, and more of the body is still to come"
    world.check_idle()


def test_a_fallback_that_is_gone() -> None:
    world = TwoByStatus()
    world.pod()
    world.router.drop("ns/second")
    exchange, client = world.begin()
    world.answer(exchange, 503)
    assert (client.status, client.body) == (503, b"hello")
    world.check_idle()


def test_a_second_revision_that_fails_as_well() -> None:
    world = TwoByStatus()
    world.pod()
    world.second_pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(503))
    world.answer(exchange, 503, b"both")
    assert (client.status, client.body) == (503, b"both")
    assert world.second.counters.codes == {503: 1}
    world.check_idle()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_file_in_place_of_the_body(method: str) -> None:
    world = fixed()
    world.pod()
    exchange, client = at_pods(world, method=method, **({"length": 4} if method == "POST" else {}))
    head = response_head(503)
    head.headers = head.headers.with_line(b"Retry-After", b"7").with_line(b"Set-Cookie", b"a=b")
    at_pod(exchange).response_head(head)
    assert (client.status, client.body, client.reason) == (503, b"sorry", "upstream_status")
    assert client.retry_after == "7" and "set-cookie" not in client.fields
    assert exchange.over and exchange.reason is Reason.UPSTREAM_STATUS and exchange.status == 503
    assert world.throttler.counters.codes == {503: 1} and world.throttler.counters.failed_totals == {}
    world.check_idle()


def test_a_file_while_the_body_still_arrives() -> None:
    world = fixed()
    pool = world.pod()
    exchange, client = world.begin(request_head("POST", length=8))
    exchange.request_body(b"half")
    at_pod(exchange).response_head(response_head(503))
    assert (client.status, client.body) == (503, b"sorry") and pool.pods[0].aborted
    world.check_idle()


def test_a_redirect_is_for_get_and_head() -> None:
    world = fixed(redirect="https://status.test/")
    world.pod()
    exchange, client = world.begin()
    world.answer(exchange, 502)
    assert (client.status, client.fields["location"]) == (302, "https://status.test/")
    exchange, client = at_pods(world, method="POST", length=4)
    world.answer(exchange, 502)
    assert (client.status, client.body) == (502, b"hello")
    world.check_idle()


def test_grpc_and_upgrades() -> None:
    for world in (TwoByStatus(), fixed()):
        world.pod()
        head = request_head("PUT", length=4, Content_Type="application/grpc", TE="trailers")
        head.takes_trailers = True
        client = Client()
        exchange = world.proxy.open(head, client)
        exchange.begin()
        exchange.request_body(b"body")
        exchange.request_end([])
        world.answer(exchange, 503)
        assert (client.status, client.body) == (503, b"hello"), "a gRPC client reads a status"
        world.check_idle()
    world = fixed()
    world.pod()
    exchange, client = world.begin(request_head(Upgrade="websocket", Connection="Upgrade"))
    world.answer(exchange, 503)
    assert (client.status, client.body) == (503, b"hello"), "a client that upgrades reads no page"
    world.check_idle()
    world = TwoByStatus()
    world.pod()
    world.second_pod()
    exchange, client = world.begin(request_head(Upgrade="websocket", Connection="Upgrade"))
    at_pod(exchange).response_head(response_head(503))
    assert client.silent() and exchange.revision_key() == "ns/second"
    exchange.client_gone()
    world.check_idle()


# --- the pod's response, which is discarded ---


def replaced(**spec: Any) -> tuple[World, StoppingPod, DiscardedResponse]:
    """A response of a pod whose head has been replaced."""
    world = fixed(container_concurrency=1, **spec)
    pool = world.pod(makes=StoppingPod)
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(503, 5))
    pod = pool.pods[0]
    assert client.ended and exchange.over and isinstance(pod, StoppingPod)
    assert isinstance(pod.successor, DiscardedResponse) and pod.waits
    at_pod(exchange).response_flush()  # of the same read
    assert world.table.in_flight == 1, "the pod is still busy with the request"
    return world, pod, pod.successor


def test_the_slot_is_free_when_the_response_is_complete() -> None:
    world, pod, discarded = replaced()
    waiting, _ = world.begin()
    discarded.response_body(b"hello")
    discarded.response_flush()
    discarded.response_end([])
    assert not pod.aborted and waiting.lease is not None
    waiting.client_gone()
    assert world.wheel.armed == 1, "of the second request, which is cancelled at its pod"


@pytest.mark.parametrize("end", ["complete", "closed", "refused", "revoked", "late", "long"])
def test_it_is_released_once_however_it_ends(end: str) -> None:
    world, pod, discarded = replaced()
    (lease,) = world.throttler.leases
    assert discarded.is_served(lease)
    if end == "complete":
        discarded.response_end([])
    elif end == "closed":
        discarded.pod_failed(Reason.POD_CLOSED, "", False)
    elif end == "refused":
        discarded.pod_refused(Reason.POD_CLOSED, "")
    elif end == "revoked":
        world.throttler.revoke(lease, Reason.POD_REMOVED, "")
    else:
        if end == "late":
            world.clock.pass_time(DISCARD_TIMEOUT_S + 0.1)
        for _ in range(3 if end == "long" else 0):
            discarded.response_body(b"x" * DISCARDED_BYTES_MAX)
        assert isinstance(pod.successor, CancelledRequest) and not pod.waits
        assert world.table.in_flight == 1, "it has not closed its side"
        world.clock.pass_time(CLOSE_PATIENCE_S + 0.1)
    assert world.table.in_flight == 0
    assert pod.aborted == (end in {"revoked", "late", "long"})
    discarded.response_end([])
    world.check_idle()


def test_a_pod_without_a_limit_is_not_waited_for_beyond_the_bounds() -> None:
    world = fixed()
    pool = world.pod(limit=9, makes=StoppingPod)
    exchange, _ = world.begin()
    at_pod(exchange).response_head(response_head(503, 5))
    pod = pool.pods[0]
    assert isinstance(pod, StoppingPod) and pod.successor is not None
    assert world.table.in_flight == 1
    world.clock.pass_time(DISCARD_TIMEOUT_S + 0.2)
    assert pod.aborted
    world.check_idle()


def test_a_response_that_is_long_by_its_own_account_is_not_read() -> None:
    world = fixed()
    pool = world.pod(makes=StoppingPod)
    exchange, _ = world.begin()
    at_pod(exchange).response_head(response_head(503, DISCARDED_BYTES_MAX + 1))
    assert pool.pods[0].aborted
    world.check_idle()


EVENTS = ("head", "body", "flush", "end", "failed", "refused", "time", "revoke")


@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.booleans())
def test_any_order_of_events_releases_once(events: list[str], is_limited: bool) -> None:
    world = fixed(container_concurrency=int(is_limited))
    pool = world.pod(makes=StoppingPod)
    exchange, _ = world.begin()
    at_pod(exchange).response_head(response_head(503))
    pod = pool.pods[0]
    assert isinstance(pod, StoppingPod) and pod.successor is not None
    for event in events:
        user: PodUser = pod.successor
        if event == "head":
            user.response_head(response_head(200))
        elif event == "body":
            user.response_body(b"x" * (DISCARDED_BYTES_MAX // 3))
        elif event == "flush":
            user.response_flush()
        elif event == "end":
            user.response_end([])
        elif event == "failed":
            user.pod_failed(Reason.POD_CLOSED, "", True)
        elif event == "refused":
            user.pod_refused(Reason.POD_CLOSED, "")
        elif event == "time":
            world.clock.pass_time(0.3)
        else:
            for lease in world.throttler.leases:
                world.throttler.revoke(lease, Reason.POD_REMOVED, "")
    world.clock.pass_time(DISCARD_TIMEOUT_S + CLOSE_PATIENCE_S + 0.1)
    world.check_idle()


def test_the_fallback_may_use_the_same_pod_as_soon_as_it_is_free() -> None:
    """Two revisions may share their budget, not their pods: here a second request takes the slot."""
    world = TwoByStatus(container_concurrency=1, buffers=BuffersSpec())
    pool: Pool = world.pod(makes=StoppingPod)
    second = world.second_pod()
    exchange, client = world.begin()
    at_pod(exchange).response_head(response_head(503))
    first: Pod = pool.pods[0]
    assert isinstance(first, StoppingPod) and isinstance(first.successor, DiscardedResponse)
    assert len(second.pods) == 1 and world.table.in_flight == 1
    world.answer(exchange)
    assert client.status == 200 and world.table.in_flight == 1
    first.successor.response_end([])
    world.check_idle()
