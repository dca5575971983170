"""What the program says of itself: formats, levels by part, and floods that are bounded."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator

import pytest
from aiohttp.http_exceptions import BadHttpMessage, InvalidURLError
from hypothesis import given
from hypothesis import strategies as st

from activator.config.model.telemetry import LOG_PARTS, Log
from activator.telemetry.logs.app_log import (
    LOG_PLACE_MAX,
    LOG_PLACES_MAX,
    LOG_SAME_MAX,
    LOG_WINDOW_S,
    AppLog,
    ConsoleFormatter,
    JsonFormatter,
)
from tests.manual_clock import ManualClock
from tests.sources import ROOT

state = logging.getLogger("activator.state")
data = logging.getLogger("activator.data")


class Said:
    """A log into a string."""

    def __init__(self, fixed_level: str | None = None) -> None:
        self.clock = ManualClock()
        self.stream = io.StringIO()
        self.log = AppLog(self.stream, self.clock.now, fixed_level)

    def lines(self) -> list[str]:
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text.splitlines()


@pytest.fixture
def said() -> Iterator[Said]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    made = Said()
    made.log.install(Log())
    yield made
    made.log.remove()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_console(said: Said) -> None:
    data.warning("a %s", "thing\nFORGED line\u2028\x1b[2J")
    (line,) = said.lines()
    assert line.endswith("WARNING activator.data: a thing\\nFORGED line\\u2028\\x1b[2J")


def test_json(said: Said) -> None:
    said.log.set(Log(format="json"))
    data.warning('a "%s"', "thing\n")
    try:
        raise ValueError("why")
    except ValueError:
        state.exception("it failed")
    first, second = (json.loads(line) for line in said.lines())
    assert set(first) == {"time", "level", "logger", "message", "caller"}
    assert (first["level"], first["logger"], first["message"]) == ("warning", "activator.data", 'a "thing\n"')
    assert first["caller"].startswith("test_app_log.py:") and first["time"].endswith("Z")
    assert "ValueError: why" in second["exception"] and second["level"] == "error"


@given(st.text() | st.just("\ud800"))
def test_a_record_is_one_line(text: str) -> None:
    record = logging.LogRecord("activator.data", logging.INFO, "a.py", 1, "%s", (text,), None)
    assert json.loads(JsonFormatter().format(record))["level"] == "info"
    for formatter in (JsonFormatter(), ConsoleFormatter("%(message)s")):
        assert len(formatter.format(record).splitlines()) <= 1


def test_levels_by_part(said: Said) -> None:
    said.log.set(Log(level="warning", levels={"state": "debug", "asyncio": "error"}))
    for logger in (state, data, logging.getLogger("asyncio")):
        logger.debug("debug")
        logger.warning("warning")
    assert [line.rpartition(" activator.")[2] for line in said.lines()] == [
        "state: debug",
        "state: warning",
        "data: warning",
    ]
    said.log.set_level("data", "error")
    said.log.set_level("", "debug")
    assert said.log.levels() == {"": "debug", "state": "debug", "asyncio": "error", "data": "error"}
    data.warning("no")
    logging.getLogger("activator.control").debug("yes")
    assert len(said.lines()) == 1
    said.log.set(Log())  # a reload: what was set by hand is gone
    assert said.log.levels() == {"": "info"}
    state.debug("no")
    data.info("yes")
    assert len(said.lines()) == 1


def test_the_command_line_is_stronger_than_the_file() -> None:
    fixed = Said("error")
    fixed.log.set(Log(level="debug", levels={"state": "info"}))
    assert fixed.log.levels() == {"": "error", "state": "info"}
    fixed.log.remove()
    logging.getLogger().setLevel(logging.WARNING)


def complain(text: str, level: int = logging.WARNING) -> None:
    """One place in the code."""
    data.log(level, "trouble with %s", text)


def test_the_same_again_and_again_is_left_out_and_counted(said: Said) -> None:
    for _ in range(100):
        complain("a")
    complain("b")
    lines = said.lines()
    assert len(lines) == LOG_SAME_MAX + 1 and lines[-1].endswith("trouble with b")
    said.clock.pass_time(LOG_WINDOW_S)
    complain("a")
    left_out, again = said.lines()
    count = 100 - LOG_SAME_MAX
    expected = f"WARNING activator.data: {count} more lines from here were left out in 10 s, the last: trouble with a"
    assert left_out.endswith(expected)
    assert again.endswith("trouble with a")
    assert said.log.suppressed_total == count


def test_one_place_that_says_something_else_each_time(said: Said) -> None:
    for number in range(1000):
        complain(str(number))
    data.warning("another place")
    lines = said.lines()
    assert len(lines) == LOG_PLACE_MAX + 1 and lines[-1].endswith("another place")
    said.log.sweep()
    assert said.lines() == []
    said.clock.pass_time(LOG_WINDOW_S)
    said.log.sweep()
    (line,) = said.lines()
    assert "900 more lines from here" in line and line.endswith("trouble with 999")
    said.log.sweep()
    assert said.lines() == []


def test_what_is_asked_for_is_not_left_out(said: Said) -> None:
    said.log.set(Log(level="debug"))
    for _ in range(20):
        complain("a", logging.DEBUG)
    assert len(said.lines()) == 20


def test_places_are_bounded(said: Said) -> None:
    for number in range(2 * LOG_PLACES_MAX):
        record = logging.LogRecord("x", logging.INFO, "made.py", number, "text", (), None)
        logging.getLogger().handle(record)
    assert len(said.log._repeats._call_sites) <= LOG_PLACES_MAX


def test_the_parts_are_the_loggers_of_the_code() -> None:
    found = set()
    for path in ROOT.glob("activator/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger":
                found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    own = {name.removeprefix("activator.") for name in found if isinstance(name, str) and name != "activator"}
    assert own == {part for part, is_own in LOG_PARTS.items() if is_own}


def test_a_request_that_is_no_http_is_not_an_error_of_ours(said: Said) -> None:
    server = logging.getLogger("aiohttp.server")
    for error in (BadHttpMessage("Pause on PRI/Upgrade"), InvalidURLError("")):
        try:
            raise error
        except BadHttpMessage:
            server.exception("Error handling request from 127.0.0.1")
    assert said.lines() == []
    try:
        raise RuntimeError("ours")
    except RuntimeError:
        server.exception("Error handling request")
    assert "RuntimeError: ours" in "\n".join(said.lines())
