"""Profiles for speedscope, and the table of `activator status`, live."""

from __future__ import annotations

import io
import sys
import threading
from traceback import walk_stack
from typing import Any

import msgspec
import pytest
from rich.console import Console

from activator.admin.status import table, watch
from activator.runtime.profiler import Profiler, ProfilerBusyError


class Stepping:
    """A clock that goes on by itself, a hundredth of a second at each look."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.looked = threading.Event()

    def now(self) -> float:
        self.now_s += 0.01
        self.looked.set()
        return self.now_s


class Sleeper:
    """A thread that stands in a function of a known name."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.thread = threading.Thread(target=self.stand_still, name="sleeper")
        self.thread.start()
        while "Event.wait" not in self.stack():
            self.thread.join(0.001)

    def stack(self) -> list[str]:
        """The functions it is in; a thread that has been started may not have come to any of ours yet."""
        assert self.thread.ident is not None
        return [frame.f_code.co_qualname for frame, _ in walk_stack(sys._current_frames()[self.thread.ident])]

    def stand_still(self) -> None:
        self.go.wait(60.0)

    def close(self) -> None:
        self.go.set()
        self.thread.join(60.0)


def test_a_profile_says_who_stood_where() -> None:
    sleeper = Sleeper()
    profile = Profiler(Stepping().now).take(0.2)
    sleeper.close()
    frames = [frame["name"] for frame in profile["shared"]["frames"]]
    assert profile["$schema"].startswith("https://www.speedscope.app/")
    by_name = {one["name"]: one for one in profile["profiles"]}
    one = by_name["sleeper"]
    assert (one["type"], one["unit"]) == ("sampled", "seconds")
    assert len(one["samples"]) == len(one["weights"]) > 0
    assert sum(one["weights"]) == pytest.approx(one["endValue"]) == pytest.approx(0.2, abs=0.02)
    for stack in one["samples"]:
        names = [frames[place] for place in stack]
        assert "Sleeper.stand_still" in names, "outermost first, innermost last"
        assert names.index("Sleeper.stand_still") < names.index("Event.wait")
    assert threading.current_thread().name not in by_name, "not the one who looks"


def test_one_at_a_time_and_it_can_be_stopped() -> None:
    clock = Stepping()
    profiler = Profiler(clock.now)
    found: list[dict[str, Any]] = []
    taking = threading.Thread(target=lambda: found.append(profiler.take(1e9)))
    taking.start()
    assert clock.looked.wait(60.0)
    with pytest.raises(ProfilerBusyError):
        profiler.take(0.1)
    while taking.is_alive():  # `take` may not have begun to look yet
        profiler.stop()
        taking.join(0.05)
    assert len(found) == 1
    profiler.take(0.01)


def snapshot(in_flight: int) -> bytes:
    slot: dict[str, Any] = {"slot": 0, "pod": "p1", "address": "10.0.0.1:80", "state": "ready", "reason": ""}
    slot.update(in_flight=in_flight, limit=3)
    revision = {
        "namespace": "ns",
        "name": "app",
        "in_flight": in_flight,
        "queued": 0,
        "gathering": 3,
        "delivering": 4,
        "requests": 7,
        "policy": "random",
        "protocol": "h1",
        "waits_for": "",
        "waiting_requests": [],
        "failure": None,
        "slots": [slot],
        "without_slot": [],
    }
    return msgspec.json.encode({"revisions": [revision] if in_flight >= 0 else [], "clients": {"http2_connections": 0}})


def test_the_table() -> None:
    text = " ".join(table(snapshot(2)).split())
    assert "ns/app in flight 2" in text and "10.0.0.1:80" in text and "slow clients: 3 send, 4 read" in text
    assert table(snapshot(-1)) == "no revisions"


def test_it_is_watched() -> None:
    answers = [snapshot(1), snapshot(2), snapshot(3)]
    asked: list[bytes] = []

    def ask() -> bytes:
        asked.append(answers[len(asked)])
        return asked[-1]

    written = io.StringIO()
    watch(ask, lambda: len(asked) < 3, Console(file=written, force_terminal=True, width=100, height=20))
    text = written.getvalue()
    assert len(asked) == 3
    assert all(f"in flight {count}" in text for count in (1, 2, 3))
