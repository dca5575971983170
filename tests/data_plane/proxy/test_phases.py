"""The table of a request's phases: what it promises, and that an exchange keeps to it whatever happens to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from activator.config.specs import QueueSpec, TimeoutsSpec
from activator.data_plane.phases import (
    ARRIVED,
    CONNECTING,
    GATHERING,
    HELD,
    OVER,
    PHASE_NAMES,
    POD_ENDED,
    SENT,
    TRANSITIONS,
    WAITING,
    is_legal,
)
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.queue_place import QueuePlace
from activator.runtime.reasons import Reason
from activator.runtime.transitions import IllegalTransitionError
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import Client, Pod, World, at_pod, request_head, response_head

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"

PHASES = range(OVER + 1)
STEPS = {(one.phase, one.to) for one in TRANSITIONS}


def test_every_phase_has_a_name_and_every_step_stands_once() -> None:
    assert len(PHASE_NAMES) == len(set(PHASE_NAMES)) == len(PHASES)
    assert len(STEPS) == len(TRANSITIONS)
    assert all(one.why for one in TRANSITIONS)


def test_every_phase_is_reached_and_every_request_ends() -> None:
    reached = {ARRIVED}
    for _ in PHASES:
        reached |= {to for phase, to in STEPS if phase in reached}
    assert reached == set(PHASES)
    assert {phase for phase, to in STEPS if to == OVER} == set(PHASES) - {OVER}
    assert all(phase != OVER for phase, _ in STEPS)
    assert all(phase != to for phase, to in STEPS)


def test_a_request_goes_back_only_to_wait_again_or_for_filters() -> None:
    """Those of another revision, or behind its body."""
    back = {(phase, to) for phase, to in STEPS if to < phase}
    to_filters = {(GATHERING, HELD), (WAITING, HELD), (WAITING, GATHERING)}
    assert back == {(CONNECTING, WAITING), (SENT, WAITING)} | to_filters


@pytest.mark.parametrize("to", PHASES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_step_that_is_not_in_the_table_is_an_error_and_the_end(phase: int, to: int) -> None:
    world = World()
    world.takes_illegal_steps = True
    client = Client()
    exchange = world.proxy.open(request_head(), client)
    if phase == OVER:
        exchange.client_gone()
    exchange.phase = phase
    legal = (phase, to) in STEPS
    assert is_legal(phase, to) is legal
    assert exchange.enter(to) is legal
    if legal:
        assert exchange.phase == to and not world.errors
        return
    (error,) = world.errors
    assert isinstance(error, IllegalTransitionError)
    assert (error.phase, error.to) == (PHASE_NAMES[phase], PHASE_NAMES[to])
    assert exchange.phase == OVER and exchange.over
    assert phase == OVER or exchange.reason is Reason.INTERNAL


def test_a_slot_that_is_granted_twice_is_given_back() -> None:
    world = World()
    world.takes_illegal_steps = True
    world.pod(limit=2)
    exchange, client = world.begin()
    lease = world.throttler.try_acquire(QueuePlace(exchange), 0.0)
    assert lease is not None
    exchange.granted(lease)
    assert client.is_aborted() or client.status == 500
    assert [type(error) for error in world.errors] == [IllegalTransitionError]
    world.errors.clear()
    world.check_idle()


# What an exchange is told, by whomever, whether it fits its phase or not; but nothing from a pod that it does not have.
EVENTS: dict[str, Callable[[World, ProxiedExchange], None]] = {
    "begin": lambda world, exchange: exchange.begin(),
    "body": lambda world, exchange: exchange.request_body(b"x" * 30),
    "request end": lambda world, exchange: exchange.request_end([]),
    "bad request": lambda world, exchange: exchange.request_failed(Reason.BAD_REQUEST, ""),
    "client gone": lambda world, exchange: exchange.client_gone(),
    "client blocked": lambda world, exchange: exchange.client_blocked(),
    "client drained": lambda world, exchange: exchange.client_drained(),
    "pod comes": lambda world, exchange: pod_comes(world),
    "connected": lambda world, exchange: at_pod(exchange).connected(Pod(reused=True)),
    "time": lambda world, exchange: world.clock.pass_time(4.0),
}
EVENTS_OF_SLOT: dict[str, Callable[[World, ProxiedExchange], None]] = {
    "no connection": lambda world, exchange: at_pod(exchange).connect_failed(Reason.CONNECT_FAILED),
    "revoked": lambda world, exchange: exchange.revoked(Reason.POD_REMOVED, ""),
}
EVENTS_OF_POD: dict[str, Callable[[World, ProxiedExchange], None]] = {
    "head": lambda world, exchange: at_pod(exchange).response_head(response_head()),
    "switch": lambda world, exchange: at_pod(exchange).response_head(response_head(101)),
    "flush": lambda world, exchange: at_pod(exchange).response_flush(),
    "closed": lambda world, exchange: at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True),
    "broke": lambda world, exchange: at_pod(exchange).pod_failed(Reason.BAD_RESPONSE, "", False),
    "blocked": lambda world, exchange: at_pod(exchange).pod_blocked(),
    "drained": lambda world, exchange: at_pod(exchange).pod_drained(),
}
EVENTS_OF_ANSWER: dict[str, Callable[[World, ProxiedExchange], None]] = {
    "body": lambda world, exchange: at_pod(exchange).response_body(b"y"),
    "end": lambda world, exchange: at_pod(exchange).response_end([]),
}


def pod_comes(world: World) -> None:
    if world.table.find_identity("p1") is None:
        world.pod("p1", connects=False)
    world.table.set_state(world.tracker("p1"), READY)
    world.throttler.pump()


def possible(exchange: ProxiedExchange) -> list[Callable[[World, ProxiedExchange], None]]:
    found = list(EVENTS.values())
    if exchange.over or exchange.lease is not None:
        found += EVENTS_OF_SLOT.values()
    if exchange.over or exchange.pod is not None:
        found += EVENTS_OF_POD.values()
    if exchange.phase > SENT:
        found += [EVENTS_OF_ANSWER["end"]]
        if exchange.phase != POD_ENDED:
            found += [EVENTS_OF_ANSWER["body"]]
    return found


@settings(max_examples=20_000 if DEEP else 150, deadline=None)
@given(data=st.data())
def test_whatever_a_request_is_told_it_ends_once_and_holds_nothing(data: st.DataObject) -> None:
    world = World(timeouts=TimeoutsSpec(total_s=20.0, first_byte_s=7.0, idle_s=6.0), queue=QueueSpec(timeout_s=9.0))
    world.takes_illegal_steps = True
    if data.draw(st.booleans(), "a pod is there"):
        world.pod("p1", connects=data.draw(st.booleans(), "an idle connection is there"), reused=True)
    client = Client()
    method = data.draw(st.sampled_from(["GET", "PUT", "POST"]))
    exchange = world.proxy.open(request_head(method, length=-1 if method == "GET" else 100), client)
    phases = [int(exchange.phase)]
    for _ in range(data.draw(st.integers(1, 25))):
        event = data.draw(st.sampled_from(possible(exchange)))
        errors = len(world.errors)
        event(world, exchange)
        phases.append(int(exchange.phase))
        assert exchange.over is (exchange.phase == OVER)
        if len(world.errors) > errors:
            assert exchange.over, "an illegal step was taken to be none"
    assert all(later in reachable_from(phase) for phase, later in pairwise(phases)), phases
    client.has_left = not exchange.over
    exchange.client_gone()
    assert client.ended + client.aborted <= 1 or client.status == 101
    assert all(isinstance(error, IllegalTransitionError) for error in world.errors), world.errors
    world.errors.clear()
    world.check_idle()


def reachable_from(phase: int) -> set[int]:
    found = {phase}
    for _ in PHASES:
        found |= {to for one, to in STEPS if one in found}
    return found
