"""The deadlines of a client connection: each alone, and one after the other in the one entry of the wheel."""

from __future__ import annotations

import pytest

from activator.data_plane.server.http1_connection import BODY_RATE_GRACE_S, HEAD_TIMEOUT_S
from tests.data_plane.server.test_http1_connection import GET, Visit

HALF = len(GET) // 2
UPLOAD = b"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 100000\r\n\r\n"


def is_timed_out(visit: Visit) -> bool:
    visit.turn.end()
    return visit.transport.sent.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("idle_s", [5.0, 75.0])
def test_a_head_has_its_time_whatever_the_idle_timeout(idle_s: float) -> None:
    visit = Visit(idle_s=idle_s)
    visit.connection.data_received(GET[:HALF])
    visit.world.clock.pass_time(HEAD_TIMEOUT_S / 2)
    visit.connection.data_received(GET[HALF:-1])
    visit.world.clock.pass_time(HEAD_TIMEOUT_S / 2 - 1.0)
    assert not visit.transport.sent and not visit.transport.is_closed()
    visit.world.clock.pass_time(1.1)
    assert is_timed_out(visit)
    visit.end()


def test_an_idle_timeout_shorter_than_that_of_heads_is_kept_after_a_slow_head() -> None:
    visit = Visit(idle_s=5.0)
    visit.connection.data_received(GET[:HALF])
    visit.world.clock.pass_time(20.0)
    visit.connection.data_received(GET[HALF:])
    visit.world.clock.pass_time(20.0)
    visit.answer()
    visit.world.clock.pass_time(4.9)
    assert not visit.transport.is_closed()
    visit.world.clock.pass_time(0.2)
    assert visit.transport.is_closed()
    visit.end()


def test_each_head_has_its_own_time() -> None:
    visit = Visit()
    for _ in range(3):
        visit.connection.data_received(GET[:HALF])
        visit.world.clock.pass_time(HEAD_TIMEOUT_S - 1.0)
        visit.connection.data_received(GET[HALF:])
        visit.answer()
    assert visit.begun == 3 and not visit.transport.is_closed()
    visit.end()


def test_a_body_is_measured_again_and_again() -> None:
    visit = Visit(body_rate=100)
    visit.connection.data_received(UPLOAD)
    for _ in range(5):
        visit.connection.data_received(bytes(int(100 * BODY_RATE_GRACE_S) + 10))
        visit.world.clock.pass_time(BODY_RATE_GRACE_S)
    assert not is_timed_out(visit)
    visit.world.clock.pass_time(2 * BODY_RATE_GRACE_S)
    assert is_timed_out(visit)
    visit.end()


def test_a_loop_that_was_paused_extends_the_time_of_a_head() -> None:
    visit = Visit()
    visit.connection.data_received(GET[:HALF])
    visit.world.clock.pass_time(HEAD_TIMEOUT_S - 1.0)
    visit.world.wheel._extend(HEAD_TIMEOUT_S)
    visit.world.clock.pass_time(HEAD_TIMEOUT_S)
    assert not visit.transport.sent
    visit.world.clock.pass_time(1.1)
    assert is_timed_out(visit)
    visit.end()
