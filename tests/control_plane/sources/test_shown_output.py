"""What the waiting page shows of a program, and when."""

from __future__ import annotations

import asyncio

from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess
from activator.control_plane.sources.process.program_log import ProgramLog, Terminal
from activator.control_plane.sources.process.shown_output import (
    OUTPUT_BYTES_MAX,
    OUTPUT_INTERVAL_S,
    OUTPUT_LINES_MAX,
    OutputTailSender,
    bounded,
)
from activator.messages import ShowOutput
from tests.control_plane.sources.unstarted import unstarted
from tests.manual_clock import ManualClock

KEY = "default/app"


class Program:
    """One revision with at most one process."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        revision = Revision(name="app", process=Process(command=["x"]))
        log = ProgramLog(Terminal(), self.clock.now)
        log.configure(False, None)
        self.fleet = Fleet(KEY, revision, log)
        self.sent: list[ShowOutput] = []
        self.output = OutputTailSender({KEY: self.fleet}.get, self.clock.now, self.sent.append)
        self.output.set_revision(KEY, True)

    def start(self) -> LocalProcess:
        process = unstarted(KEY, self.fleet.revision)
        self.fleet.processes = {process.identity: process}
        self.fleet.wanted = 1
        return process

    def says(self, *lines: str) -> list[tuple[str, ...]]:
        """What is sent when it has written these lines and been looked at."""
        for line in lines:
            self.fleet.log.add_line(f"{KEY}#1", "stdout", line.encode())
        self.clock.pass_time(OUTPUT_INTERVAL_S)
        self.sent.clear()
        self.output.tick()
        return [one.lines for one in self.sent]


def test_lines_of_a_start_until_it_is_ready() -> None:
    async def run() -> None:
        program = Program()
        assert program.says("of an earlier life") == []
        process = program.start()
        assert program.says() == []
        assert program.says("one", "\x1b[31mtwo\x1b[0m\x07") == [("one", "two\\x07")]
        assert program.says() == [], "nothing is new"
        assert program.says("three") == [("one", "two\\x07", "three")]
        process.ready = True
        assert program.says("a secret of a request") == [()]
        assert program.says("another") == []
        process.ready = False  # it has crashed, and is started again
        assert program.says("Traceback") == [("Traceback",)]
        program.output.set_revision(KEY, False)
        assert program.says("more") == []

    asyncio.run(run())


def test_a_revision_that_is_dropped_shows_nothing_any_more() -> None:
    async def run() -> None:
        program = Program()
        program.start()
        assert program.says("x") == [("x",)]
        program.sent.clear()
        program.output.drop_revision(KEY)
        assert program.sent == [ShowOutput(KEY, ())]
        assert program.says("y") == []

    asyncio.run(run())


def test_a_program_that_writes_much_is_shown_in_part() -> None:
    async def run() -> None:
        program = Program()
        program.start()
        (lines,) = program.says(*(str(number) for number in range(10_000)))
        assert lines == tuple(str(number) for number in range(10_000 - OUTPUT_LINES_MAX, 10_000))
        (lines,) = program.says(*("ä" * 2000 for _ in range(10)))
        assert len(lines) == 2 and sum(len(line.encode()) + 1 for line in lines) <= OUTPUT_BYTES_MAX

    asyncio.run(run())


def test_the_bound_on_bytes() -> None:
    assert bounded([]) == ()
    assert bounded(["x" * (OUTPUT_BYTES_MAX - 1)]) == ("x" * (OUTPUT_BYTES_MAX - 1),)
    assert bounded(["a", "x" * OUTPUT_BYTES_MAX]) == ("x" * (OUTPUT_BYTES_MAX // 4),)
    assert bounded(["a", "x" * (OUTPUT_BYTES_MAX - 3)]) == ("a", "x" * (OUTPUT_BYTES_MAX - 3))
