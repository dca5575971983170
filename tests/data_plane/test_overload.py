"""The steps against an overload: which measure asks for which, and how they are taken and left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.config.model.kinds import Size
from activator.config.model.listeners import Limits
from activator.data_plane.overload import (
    CALM_S,
    CHECK_INTERVAL_S,
    CLOSES_KEPT,
    DELAY_SAMPLES,
    NO_CONNECTIONS,
    NO_QUEUEING,
    NORMAL,
    Overload,
    OverloadLadder,
)
from activator.data_plane.throttle.budget import HeldBudget
from activator.runtime.units import MIB
from tests.data_plane.server.test_http1_connection import Visit


class Loop:
    """A loop of which the test decides how late it is."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], Any]]] = []

    def now(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], Any]) -> Any:
        self.timers.append((self.now_s + delay_s, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def check(self, late_s: float = 0.0) -> None:
        ((due_s, callback),) = self.timers
        self.timers.clear()
        self.now_s = due_s + late_s
        callback()


class Watched:
    """A worker that is watched, with a memory that the test sets."""

    def __init__(self, **limits: Any) -> None:
        self.loop = Loop()
        self.resident = 0
        self.registry = Visit().registry
        self.registry.limit_connections(100)
        self.waiting = HeldBudget()
        loop: Any = self.loop
        self.watch = Overload(loop, self.loop.now, self.registry, self.waiting, lambda: self.resident, Limits(**limits))
        self.watch.start()

    def taken(self) -> tuple[bool, bool, bool]:
        registry = self.registry
        taken = (registry.closes_kept, self.waiting.refuses, registry.refuses_new)
        assert taken == self.watch.taken()
        return taken

    def checks(self, count: int, late_s: float = 0.0) -> None:
        for _ in range(count):
            self.loop.check(late_s)


STEPS = {
    NORMAL: (False, False, False),
    CLOSES_KEPT: (True, False, False),
    NO_QUEUEING: (True, True, False),
    NO_CONNECTIONS: (True, True, True),
}
CHECKS_PER_STEP = int(CALM_S / CHECK_INTERVAL_S) + 1


@pytest.mark.parametrize(
    ("used", "step"), [(0, NORMAL), (79, NORMAL), (80, CLOSES_KEPT), (90, NO_QUEUEING), (100, NO_CONNECTIONS)]
)
def test_memory(used: int, step: int, caplog: pytest.LogCaptureFixture) -> None:
    worker = Watched(memory=Size(100 * MIB))
    worker.resident = used * MIB
    worker.checks(1)
    assert worker.taken() == STEPS[step]
    if step == NO_CONNECTIONS:
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            "overloaded: 100 of 100 MiB of memory are used; responses close their connections, and requests that would "
            "have to wait are rejected, and new connections are rejected"
        )


def test_without_a_limit_memory_is_not_read() -> None:
    worker = Watched()
    worker.resident = 1 << 50
    worker.checks(10)
    assert worker.taken() == STEPS[NORMAL]


@pytest.mark.parametrize(
    ("late_s", "step"), [(1.9, NORMAL), (2.0, NO_QUEUEING), (3.9, NO_QUEUEING), (4.0, NO_CONNECTIONS)]
)
def test_a_late_loop(late_s: float, step: int) -> None:
    worker = Watched()
    worker.checks(DELAY_SAMPLES - 1, late_s)
    assert worker.taken() == STEPS[NORMAL]
    worker.checks(1, late_s)
    assert worker.taken() == (False, step >= NO_QUEUEING, step >= NO_CONNECTIONS), "connections are kept"


def test_one_long_turn_is_no_overload() -> None:
    """Such as a process that was stopped."""
    worker = Watched()
    for _ in range(10):
        worker.checks(1, 60.0)
        worker.checks(1)
    assert worker.taken() == STEPS[NORMAL]


def test_no_delay_is_too_long() -> None:
    worker = Watched(loop_delay=0.0)
    worker.checks(10, 60.0)
    assert worker.taken() == STEPS[NORMAL]


def test_many_connections() -> None:
    worker = Watched()
    worker.registry.limit_connections(1)
    worker.checks(1)
    assert worker.taken() == STEPS[CLOSES_KEPT], "the one of the visit"
    worker.registry.limit_connections(2)
    worker.checks(CHECKS_PER_STEP)
    assert worker.taken() == STEPS[NORMAL]


def test_back_to_normal_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worker = Watched(memory=Size(MIB))
    worker.resident = 2 * MIB
    worker.checks(3)
    worker.resident = 1
    began_s = worker.loop.now_s
    taken = STEPS[NO_CONNECTIONS]
    for step in (NO_QUEUEING, CLOSES_KEPT, NORMAL):
        while worker.taken() == taken:
            worker.checks(1)
        taken = worker.taken()
        assert taken == STEPS[step]
    assert worker.loop.now_s - began_s <= 2.0
    assert [record.getMessage() for record in caplog.records[1:]] == [
        (
            "overload reduced; still in effect: responses close their connections, and requests that would have to "
            "wait are rejected"
        ),
        "overload reduced; still in effect: responses close their connections",
        "no longer overloaded",
    ]


def test_memory_that_is_free_again_opens_connections_though_the_loop_is_late(caplog: pytest.LogCaptureFixture) -> None:
    """What each cause has asked for is left by itself, and a message names each cause that lasts."""
    caplog.set_level(logging.INFO)
    worker_closes = "responses close their connections, and new connections are rejected"
    worker = Watched(memory=Size(MIB))
    worker.resident = 2 * MIB
    worker.checks(1)
    worker.checks(DELAY_SAMPLES, 2.0)
    assert worker.taken() == STEPS[NO_CONNECTIONS]
    worker.resident = 1
    worker.checks(3 * CHECKS_PER_STEP, 2.0)
    assert worker.taken() == (False, True, False)
    worker.resident = 2 * MIB
    worker.checks(1, 2.0)
    assert worker.taken() == STEPS[NO_CONNECTIONS]
    assert [record.getMessage() for record in caplog.records[-2:]] == [
        "overload reduced; still in effect: requests that would have to wait are rejected",
        "overloaded: 2 of 1 MiB of memory are used; the event loop is late by 2.0 s; " + worker_closes,
    ]


def test_a_reload_changes_the_limits_and_stop_ends_the_checks() -> None:
    worker = Watched(memory=Size(MIB))
    worker.resident = 2 * MIB
    worker.checks(1)
    worker.watch.configure(Limits())
    worker.checks(3 * CHECKS_PER_STEP)
    assert worker.taken() == STEPS[NORMAL]
    worker.watch.stop()
    worker.watch.stop()
    assert worker.loop.timers == []


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1.0)), max_size=60))
def test_the_ladder_rises_at_once_and_falls_slowly(story: list[tuple[int, float]]) -> None:
    ladder = OverloadLadder()
    now_s = 0.0
    lower_since_s = 0.0  # since when less has been wanted, or since the last fall
    for wanted, passes_s in story:
        now_s += passes_s
        before = ladder.step
        ladder.follow(wanted, now_s)
        if wanted >= before:
            assert ladder.step == wanted
            lower_since_s = now_s
        elif now_s - lower_since_s >= CALM_S:
            assert ladder.step == before - 1
            lower_since_s = now_s
        else:
            assert ladder.step == before
