"""Up at once, down with patience, to zero when idle."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from activator.config.model import Duration, Process, Revision
from activator.control_plane.scaling.local import SCALE_DOWN_WINDOW_S, LocalAutoscaler, rule_of
from activator.messages import Load
from tests.manual_clock import ManualClock

KEY = "default/app"


class Scaled:
    """A scaler, and what it asked for, in order."""

    def __init__(self, idle_s: float = 60.0, min_scale: int = 0, max_scale: int = 4, concurrency: int = 10) -> None:
        self.clock = ManualClock()
        self.asked: list[int] = []
        self.requests = 0
        self.scaler = LocalAutoscaler(self.clock.now, lambda _, wanted: self.asked.append(wanted))
        self.revision = Revision(
            name="app",
            container_concurrency=concurrency,
            process=Process(command=["x"], idle=Duration(idle_s), min_scale=min_scale, max_scale=max_scale),
        )
        self.scaler.set_revision(KEY, self.revision)

    def load(self, in_flight: int, queued: int = 0) -> None:
        self.requests += in_flight + queued
        self.scaler.load(Load(KEY, in_flight, queued, self.requests))

    def tick(self, seconds: float) -> None:
        """Ticks as the loop makes them."""
        for _ in range(int(seconds / 0.5)):
            self.clock.pass_time(0.5)
            self.scaler.tick()

    @property
    def wanted(self) -> int:
        return self.asked[-1] if self.asked else 0


def test_the_first_request_asks_for_one_at_once() -> None:
    scaled = Scaled()
    scaled.load(0, 1)
    assert scaled.asked == [1]


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 50), st.integers(1, 20))
def test_the_formula(in_flight: int, queued: int, target: int, max_scale: int) -> None:
    scaled = Scaled(max_scale=max_scale, concurrency=target)
    scaled.load(in_flight, queued)
    carried = in_flight + queued
    assert scaled.wanted == min(max_scale, -(-carried // target))


def test_down_only_when_the_window_has_not_asked_for_more() -> None:
    scaled = Scaled()
    scaled.load(40)
    assert scaled.wanted == 4
    scaled.load(15)
    scaled.tick(SCALE_DOWN_WINDOW_S - 1.0)
    assert scaled.wanted == 4
    scaled.load(25)
    scaled.tick(2.0)
    assert scaled.wanted == 3
    scaled.load(15)
    scaled.tick(SCALE_DOWN_WINDOW_S + 1.0)
    assert scaled.wanted == 2


def test_to_zero_after_idle_and_not_before() -> None:
    scaled = Scaled(idle_s=30.0)
    scaled.load(0, 1)
    scaled.load(0)
    scaled.tick(29.0)
    assert scaled.wanted == 1
    scaled.tick(2.0)
    assert scaled.wanted == 0
    scaled.load(0, 1)
    assert scaled.wanted == 1


def test_requests_between_two_reports_count_as_busy() -> None:
    scaled = Scaled(idle_s=30.0)
    scaled.load(1)
    for _ in range(4):
        scaled.scaler.load(Load(KEY, 0, 0, scaled.requests))
        scaled.requests += 5  # came and went
        scaled.scaler.load(Load(KEY, 0, 0, scaled.requests))
        scaled.tick(20.0)
    assert scaled.wanted == 1


def test_one_long_request_keeps_its_process() -> None:
    scaled = Scaled(idle_s=5.0)
    scaled.load(1)
    scaled.tick(600.0)
    assert scaled.wanted == 1


def test_min_scale_is_there_without_requests() -> None:
    scaled = Scaled(min_scale=2, idle_s=5.0)
    assert scaled.asked == [2]
    scaled.load(40)
    scaled.load(0)
    scaled.tick(60.0)
    assert scaled.wanted == 2


def test_a_changed_rule_takes_effect_at_once() -> None:
    scaled = Scaled()
    scaled.load(40)
    revision = Revision(name="app", container_concurrency=10, process=Process(command=["x"], max_scale=2))
    scaled.scaler.set_revision(KEY, revision)
    assert scaled.wanted == 2


def test_defaults_follow_the_concurrency() -> None:
    unlimited = rule_of(Revision(name="a", process=Process(command=["x"])))
    assert (unlimited.max_scale, unlimited.target) == (1, 100)
    limited = rule_of(Revision(name="a", container_concurrency=3, process=Process(command=["x"])))
    assert limited.max_scale >= 1
    assert limited.target == 3
