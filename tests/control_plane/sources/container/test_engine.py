"""The client of a container engine: what the fake one has in common with a real one, and engines that misbehave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activator.control_plane.sources.container.engine import (
    ANSWER_BYTES_MAX,
    Engine,
    EngineAwayError,
    EngineError,
    message_of,
    version_of,
)
from activator.control_plane.sources.container.streams import (
    Demultiplexer,
    JsonLines,
    LogPosition,
    NoStreamError,
    TerminalLines,
    nanoseconds_of,
)
from tests.control_plane.sources.container.contract import check_contract
from tests.control_plane.sources.container.fake_engine import FakeEngine, Image, fake_engine


def with_engine(folder: Path, scenario: Callable[[FakeEngine, Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        async with fake_engine(folder / "engine.sock") as fake:
            engine = Engine(fake.path)
            try:
                await scenario(fake, engine)
            finally:
                await engine.close()

    asyncio.run(run())


def test_the_fake_engine_holds_the_contract(tmp_path: Path) -> None:
    async def scenario(fake: FakeEngine, engine: Engine) -> None:
        fake.images["serving"] = Image(((1, "listening on port 8080"),))
        await check_contract(engine, "serving")

    with_engine(tmp_path, scenario)


@pytest.mark.parametrize("fault", ["stall", "trickle", "cut"])
def test_an_engine_that_does_not_answer_is_away_after_a_time(tmp_path: Path, fault: str) -> None:
    async def scenario(fake: FakeEngine, engine: Engine) -> None:
        await engine.call("GET", "/version")
        fake.faults["/containers/json"] = fault
        began_s = time.monotonic()
        with pytest.raises(EngineAwayError):
            await engine.call("GET", "/containers/json", timeout_s=0.2)
        assert time.monotonic() - began_s < 5.0
        fake.faults.clear()
        assert await engine.call("GET", "/containers/json") == []

    with_engine(tmp_path, scenario)


def test_an_error_of_the_engine_is_one_short_line(tmp_path: Path) -> None:
    async def scenario(fake: FakeEngine, engine: Engine) -> None:
        fake.faults["/containers/json"] = "500"
        with pytest.raises(EngineError) as caught:
            await engine.call("GET", "/containers/json")
        assert caught.value.status == 500
        assert caught.value.message.startswith("an error of the engine\\n")
        assert len(caught.value.message) == 300
        fake.faults["/containers/json"] = "garbage"
        with pytest.raises(EngineError, match="not JSON"):
            await engine.call("GET", "/containers/json")

    with_engine(tmp_path, scenario)


def test_an_endless_answer_is_not_kept(tmp_path: Path) -> None:
    async def scenario(fake: FakeEngine, engine: Engine) -> None:
        fake.faults["/containers/json"] = "endless"
        with pytest.raises(EngineError, match=str(ANSWER_BYTES_MAX)):
            await engine.call("GET", "/containers/json")

    with_engine(tmp_path, scenario)


def test_an_engine_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine(str(tmp_path / "podman.sock"))
        with pytest.raises(EngineAwayError, match=r"cannot be reached: No such file or directory; start it: systemctl"):
            await engine.call("GET", "/containers/json")
        await engine.close()

    asyncio.run(scenario())


def test_the_version_of_the_api_is_one_that_both_know() -> None:
    assert version_of({"ApiVersion": "1.41"}) == "1.41"
    assert version_of({"ApiVersion": "1.99"}) == "1.51"
    with pytest.raises(EngineError):
        version_of({"ApiVersion": "../../x"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"message": "no such image"}', "no such image"),
        (b'{"cause": "image not known"}', "image not known"),
        (b"Bad Gateway", "Bad Gateway"),
        (b"", "no reason given"),
        (b"[" * 100_000, "[" * 299 + "…"),
        (b"\xff\x00", "\ufffd\\x00"),
    ],
)
def test_what_an_engine_says(data: bytes, message: str) -> None:
    assert message_of(data) == message


def test_frames_in_pieces_of_any_size() -> None:
    stream = b"\1\0\0\0\0\0\0\3abc" + b"\2\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\2de" + b"\0\0\0\0\0\0\0\1f"
    for size in range(1, len(stream) + 1):
        frames = Demultiplexer()
        seen: dict[str, bytes] = {}
        for place in range(0, len(stream), size):
            for piece in frames.feed(stream[place : place + size]):
                seen[piece.stream] = seen.get(piece.stream, b"") + piece.data
        assert seen == {"stdout": b"abcf", "stderr": b"de"}
    with pytest.raises(NoStreamError):
        list(Demultiplexer().feed(b"plain text"))


def as_frame(stream: int, message: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("digits", [0, 9], ids=["whole seconds", "nanoseconds"])
def test_reading_resumes_behind_what_was_read_wherever_it_was_cut(is_terminal: bool, digits: int) -> None:
    """Two breaks, the first at each byte; after each the engine sends again what is younger than `since`."""
    texts = [(1, b"one\n"), (2, b"E1\n"), (1, b"two\n"), (1, b"pro"), (1, b"gress 7%\n"), (2, b"E2\n"), (1, b"\n")]
    texts += [(1, b"two\n"), (1, b"2026-01-01T00:00:00Z a time of its own\n"), (1, b"end")]
    if is_terminal:
        texts = [(1, text) for _, text in texts if text not in (b"pro", b"end")]
    start_ns = 1_700_000_000_000_000_000
    messages = [(start_ns + number * 400_000_000, stream, text) for number, (stream, text) in enumerate(texts)]

    def sent(since_s: float | None) -> bytes:
        data = b""
        for time_ns, stream, text in messages:
            if since_s is None or time_ns > since_s * 1e9:
                shown = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
                part = f".{time_ns % 1_000_000_000:09}" if digits else ""
                message = f"{shown}{part}Z ".encode() + text
                data += message if is_terminal else as_frame(stream, message)
        return data

    def read(position: LogPosition, seen: dict[str, bytes], most: int) -> None:
        messages = TerminalLines() if is_terminal else Demultiplexer()
        data = sent(position.since_s())[:most]
        for place in range(0, len(data), 17):
            for piece in messages.feed(data[place : place + 17]):
                seen[piece.stream] = seen.get(piece.stream, b"") + position.unread_part(piece)
        position.resume()

    expected: dict[str, bytes] = {}
    for stream, text in texts:
        name = "stdout" if stream == 1 else "stderr"
        expected[name] = expected.get(name, b"") + text
    whole = len(sent(None))
    for first in range(whole + 1):
        for second in range(first % 149, whole + 1, 149):
            seen: dict[str, bytes] = {}
            position = LogPosition()
            for most in (first, second, whole):
                read(position, seen, most)
            assert {name: data for name, data in seen.items() if data} == expected, (first, second)


def test_messages_without_times_pass_and_give_no_position() -> None:
    position = LogPosition()
    messages = Demultiplexer()
    texts = [b"no time\n", b"", b" \n", b"x" * 5_000, b"2026-13-01T00:00:00Z no month\n", b"9999-99-99T99:99:99Z "]
    data = b"".join(as_frame(1, text) for text in texts)
    assert b"".join(position.unread_part(piece) for piece in messages.feed(data)) == b"".join(texts)
    assert position.since_s() is None
    position.resume()
    assert b"".join(position.unread_part(piece) for piece in messages.feed(as_frame(1, b"again"))) == b"again"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (b"2026-11-27T01:46:49Z", 1_795_744_009.0),
        (b"2026-11-27T03:46:49.25+02:00", 1_795_744_009.25),
        (b"2026-11-27T01:46:49.000000001Z", 1_795_744_009.0),
        (b"2026-11-27 01:46:49Z", 0.0),
        (b"", 0.0),
    ],
)
def test_times_of_messages(time: bytes, seconds: float) -> None:
    assert nanoseconds_of(time) / 1e9 == pytest.approx(seconds)


def test_lines_of_json_in_pieces_of_any_size_and_without_ends() -> None:
    data = b'{"a": 1}\r\n{"b": 2}{"c": 3}\n[4]\n\n{"d": "\xc3\xa4"}'
    for size in (1, 3, 100):
        lines = JsonLines()
        found = [one for place in range(0, len(data), size) for one in lines.feed(data[place : place + size])]
        found += lines.end()
        assert [next(iter(one)) for one in found] == ["a", "b", "c", "d"]
        assert found[-1] == {"d": "ä"}, "a character may be in two reads"
    with pytest.raises(NoStreamError, match="too long"):
        list(JsonLines().feed(b"x" * 2_000_000))
    with pytest.raises(NoStreamError, match="not JSON"):
        list(JsonLines().feed(b"nonsense\n"))
