"""The retry rule, for every combination of what it depends on, against the table of its module written another way."""

from __future__ import annotations

import itertools

import pytest

from activator.data_plane.phases import ANSWERING, CONNECTING, OVER, SENT, WAITING
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.proxy.retry_policy import (
    AGAIN,
    END,
    FALL_BACK,
    FALLBACKS_MAX,
    NOT_SENT,
    REFUSED,
    RISKY_IDLE_S,
    TOUCHED,
    UNTOUCHED,
    decide,
    idle_limit_s,
)
from activator.data_plane.throttle.budget import RetryBudget
from activator.runtime.clock import NEVER
from activator.runtime.reasons import PodFault, Reason, Substitute, reason_named
from tests.data_plane.proxy.proxy_fakes import World, request_head

ATTEMPTS_MAX = 3


def sent(world: World, method: str, length: int = 0) -> ProxiedExchange:
    """Return a request that its pod has."""
    exchange, _ = world.begin(request_head(method, length=length))
    assert exchange.phase == SENT
    return exchange


@pytest.mark.parametrize("reason", list(Reason))
def test_every_combination(reason: Reason) -> None:
    world = World()
    world.pod(limit=2)
    requests = [sent(world, "GET"), sent(world, "POST")]
    combinations = itertools.product(
        requests,
        (WAITING, CONNECTING, SENT, ANSWERING),
        (NOT_SENT, REFUSED, UNTOUCHED, TOUCHED),
        range(ATTEMPTS_MAX),
        (0, FALLBACKS_MAX),
        (False, True),
    )
    for request, phase, evidence, attempts, fallbacks, is_whole in combinations:
        request.phase, request.attempts, request.fallbacks, request.request_done = phase, attempts, fallbacks, is_whole
        world.throttler.retry_budget = RetryBudget()
        repeats = request.head.method == b"GET"
        if (
            reason in {Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT, Reason.TLS_FAILED, Reason.POD_CLOSED}
            and attempts < ATTEMPTS_MAX - 1
            and (
                evidence == NOT_SENT
                or (evidence == REFUSED and phase == SENT)
                or (evidence == UNTOUCHED and phase == SENT and repeats)
            )
        ):
            expected = AGAIN
        elif (
            fallbacks < FALLBACKS_MAX
            and reason.substitute & Substitute.REVISION
            and (phase in {WAITING, CONNECTING} or (phase == SENT and repeats and is_whole))
        ):
            expected = FALL_BACK
        else:
            expected = END
        assert decide(request, None, reason, evidence, ATTEMPTS_MAX) == expected
    for request in requests:
        request.phase = OVER  # nothing of this was its life


def test_a_body_that_has_left_the_buffers_is_not_sent_again() -> None:
    world = World()
    world.pod()
    exchange, client = world.begin(request_head("PUT", length=10))
    body = RequestBody(world.proxy.bodies, client)
    exchange.phase = SENT
    for evidence in (REFUSED, UNTOUCHED):
        assert decide(exchange, body, Reason.POD_CLOSED, evidence, ATTEMPTS_MAX) == END
    assert decide(exchange, body, Reason.CONNECT_FAILED, NOT_SENT, ATTEMPTS_MAX) == AGAIN, "none of it has left"


def test_repetitions_cost_the_budget_of_the_revision_and_dials_do_not() -> None:
    world = World()
    world.pod()
    exchange = sent(world, "GET")
    again = 0
    while decide(exchange, None, Reason.POD_CLOSED, UNTOUCHED, ATTEMPTS_MAX) == AGAIN:
        again += 1
        assert again < 1_000
    assert again > 0
    assert decide(exchange, None, Reason.CONNECT_FAILED, NOT_SENT, ATTEMPTS_MAX) == AGAIN


def test_what_may_not_be_repeated_uses_no_connection_that_was_idle_for_long() -> None:
    world = World()
    world.pod(limit=2)
    get, post = sent(world, "GET"), sent(world, "POST")
    assert (idle_limit_s(get, None), idle_limit_s(post, None)) == (NEVER, RISKY_IDLE_S)
    get.attempts = post.attempts = 1
    assert (idle_limit_s(get, None), idle_limit_s(post, None)) == (0.0, 0.0)


def test_the_table_of_reasons() -> None:
    for reason in Reason:
        assert reason_named(reason.value) is reason
        assert 400 <= reason.status < 600 and 0 < reason.grpc_status <= 16 and reason.sentence
        if reason.verdict is not PodFault.NOTHING or reason.is_retriable:
            assert reason.status in {502, 504}, "only what a pod does counts against it"
        if reason.substitute and reason is not Reason.NOT_AVAILABLE:  # that is the client's wish, and no fault
            assert reason.status in {502, 503, 504}, "a client's fault stays one elsewhere"
    with pytest.raises(KeyError):
        reason_named("no_such_reason")
