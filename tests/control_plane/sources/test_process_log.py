"""The log lines about the life of a program: one when it is ready, and one when it has ended, with the reason."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable

import pytest

from activator.config.model.file import Config
from activator.config.model.kinds import Duration
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, PodGone
from activator.runtime.durations import lasting
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.sources import ROOT

SERVE = [sys.executable, "-I", "-S", str(ROOT / "tests" / "e2e" / "programs" / "serving.py"), "{port}"]
KEY = "default/app"


class Programs:
    """A source of real programs."""

    def __init__(self, idle_s: float, *command: str) -> None:
        self.tasks = TaskGroupOwner(lambda name, error: None)
        units = ChildProcesses(self.tasks, time.monotonic, Reaping(None, ""))
        panicked = Supervision().panicked
        self.source = ProcessSource(
            self.tasks, self._submit, time.monotonic, time.time, units, panicked, lambda _: None
        )
        revision = Revision("app", process=Process([*command], max_scale=1, idle=Duration(idle_s)))
        self.source.configure(Config(revisions=[revision]), {KEY: revision})
        assert self.source.load(KEY, None) == ""

    def _submit(self, change: Change) -> None:
        if isinstance(change, PodGone):
            self.source.receive_drained(change.key, change.identity)

    async def until(self, check: Callable[[], object]) -> None:
        async with asyncio.timeout(10.0):
            while not check():
                self.source.tick()
                await pause(0.01)

    async def close(self) -> None:
        await self.source.close()
        await self.tasks.close()


def ends(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if ": stopped " in one]


@pytest.mark.parametrize(
    ("idle_s", "act", "why"),
    [
        (0.3, lambda source: "", "after 0\\.3\\d? s without a request"),
        (60.0, lambda source: source.unload(KEY), "by `unload`"),
        (60.0, lambda source: source.restart(KEY), "by `restart`"),
    ],
)
def test_a_program_that_is_ready_and_stopped(
    idle_s: float, act: Callable[[ProcessSource], str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "activator.process")

    async def scenario() -> None:
        programs = Programs(idle_s, *SERVE)
        await programs.until(lambda: "ready after" in caplog.text)
        assert act(programs.source) == ""
        await programs.until(lambda: ends(caplog))
        await programs.close()

    asyncio.run(scenario())
    assert len([one for one in caplog.messages if re.fullmatch(rf"{KEY}#1: ready after \d[\d.]* s", one)]) == 1
    (line,) = ends(caplog)
    assert re.fullmatch(f"{KEY}#1: stopped {why}", line), line


def test_a_program_that_exits_is_tried_again_after_the_backoff(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        programs = Programs(60.0, "sh", "-c", "echo hi; exit 3")
        await programs.until(lambda: "app#3" in caplog.text)
        await programs.close()

    asyncio.run(scenario())
    assert [one for one in caplog.messages if "#" in one][:3] == [
        f"{KEY}#{number}: the program exited with code 3: hi; next attempt in {wait} s"
        for number, wait in ((1, "0.1"), (2, "0.2"), (3, "0.4"))
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.234, "0.23 s"), (9.96, "10 s"), (119.0, "119 s"), (300.2, "5 m"), (7_200.0, "2 h")],
)
def test_durations_of_log_lines(seconds: float, text: str) -> None:
    assert lasting(seconds) == text
