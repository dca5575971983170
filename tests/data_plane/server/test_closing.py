"""The table of a client connection's phases, and that a connection keeps to it whatever happens to it."""

from __future__ import annotations

import os
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from activator.data_plane.server.closing import (
    CLIENT_ENDED,
    CLOSING,
    GIVEN_UP,
    GONE,
    LINGERING,
    OPEN,
    PHASE_NAMES,
    TRANSITIONS,
    illegal,
    is_legal,
)
from activator.data_plane.server.registry import TCP_CLOSE
from activator.runtime.reasons import Reason
from activator.runtime.transitions import IllegalTransitionError
from tests.data_plane.proxy.proxy_fakes import at_pod, response_head
from tests.data_plane.server.test_http1_connection import GET, IDLE_S, LAST, UPLOAD, Visit

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"

PHASES = range(GONE + 1)
STEPS = {(one.phase, one.to) for one in TRANSITIONS}


def test_the_table() -> None:
    assert len(PHASE_NAMES) == len(set(PHASE_NAMES)) == len(PHASES)
    assert len(STEPS) == len(TRANSITIONS)
    assert all(phase < to for phase, to in STEPS), "no connection comes back"
    assert {to for _, to in STEPS} == set(PHASES) - {OPEN}
    assert {phase for phase, to in STEPS if to == GONE} == set(PHASES) - {GONE}
    assert {phase for phase, to in STEPS if to == GIVEN_UP}.isdisjoint({OPEN, CLIENT_ENDED}), "only who was answered"


@pytest.mark.parametrize("to", PHASES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_step_that_is_not_in_the_table_is_an_error_and_cuts_the_connection_off(phase: int, to: int) -> None:
    visit = Visit()
    visit.world.takes_illegal_steps = True
    connection = visit.connection
    connection._phase = phase
    legal = (phase, to) in STEPS
    assert is_legal(phase, to) is legal
    assert connection._enter(to) is legal
    assert visit.transport.is_aborted() is not legal
    assert [str(error) for error in visit.world.errors] == [] if legal else [str(illegal(phase, to))]


def answer(visit: Visit) -> None:
    if visit.world.throttler.leases:
        visit.answer(b"x" * 500)


def cut(visit: Visit) -> None:
    if visit.world.throttler.leases:
        exchange = visit.world.throttler_holder()
        at_pod(exchange).response_head(response_head(200, 1000))
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)


def end_of_file(visit: Visit) -> None:
    if not visit.connection.eof_received():
        visit.transport.close()


def drain(visit: Visit) -> None:
    visit.registry.draining = True
    visit.connection.drain()


def evict(visit: Visit) -> None:
    before, visit.registry.connections_max = visit.registry.connections_max, 0
    visit.registry.evict()
    visit.registry.connections_max = before


EVENTS: dict[str, Callable[[Visit], None]] = {
    "request": lambda visit: visit.connection.data_received(GET),
    "two requests": lambda visit: visit.connection.data_received(GET + GET),
    "last request": lambda visit: visit.connection.data_received(LAST),
    "upload": lambda visit: visit.connection.data_received(UPLOAD),
    "bytes": lambda visit: visit.connection.data_received(b"u" * 100),
    "answer": answer,
    "cut answer": cut,
    "end of file": end_of_file,
    "full": lambda visit: visit.connection.pause_writing(),
    "drained": lambda visit: visit.connection.resume_writing(),
    "takes some": lambda visit: visit.transport.take(50),
    "takes nothing": lambda visit: setattr(visit.transport, "takes", False),
    "drain": drain,
    "found gone": lambda visit: visit.connection.peer_has_ended(True),
    "found half-closed": lambda visit: visit.connection.peer_has_ended(False),
    "reset": lambda visit: setattr(visit.transport, "tcp_state", TCP_CLOSE),
    "abort": lambda visit: visit.connection.abort(True),
    "evicted": evict,
    "turn": lambda visit: visit.turn.end(),
    "a moment": lambda visit: visit.world.clock.pass_time(1.0),
    "silence": lambda visit: visit.world.clock.pass_time(6.0),
    "long silence": lambda visit: visit.world.clock.pass_time(IDLE_S + 1.0),
}


@settings(max_examples=10_000 if DEEP else 150, deadline=None)
@given(data=st.data())
def test_whatever_happens_to_a_connection_it_is_counted_right_and_ends(data: st.DataObject) -> None:
    visit = Visit(half_closes=data.draw(st.booleans(), "half-closes"))
    phase = OPEN
    for event in data.draw(st.lists(st.sampled_from(sorted(EVENTS)), max_size=20)):
        EVENTS[event](visit)
        now = int(visit.connection._phase)
        assert now >= phase
        phase = now
        registry = visit.registry
        assert registry.given_up == (phase == GIVEN_UP)
        assert not registry.lingering or phase >= LINGERING
        assert registry.count() == (phase != GIVEN_UP)
        if phase in {LINGERING, CLOSING, CLIENT_ENDED}:
            assert visit.world.wheel.armed > 0, "nothing ends it"
    assert not any(isinstance(error, IllegalTransitionError) for error in visit.world.errors)
    visit.end()
    assert visit.registry.count() == visit.registry.given_up == 0
    assert not visit.registry.lingering and not visit.registry.paused and not visit.registry.shed
