"""What is written in a turn goes out at its end, in order, and before whatever ends the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activator.runtime.buffered_writer import WRITE_AT_ONCE_BYTES, BufferedWriter, WriteBatcher


class Pipe:
    """A transport that writes down what is asked of it."""

    def __init__(self, raises: bool = False) -> None:
        self.told: list[str] = []
        self.gone = False
        self.raises = raises

    def write(self, data: bytes) -> None:
        assert not self.gone
        if self.raises:
            raise RuntimeError("a defect")
        self.told.append(data.decode() if len(data) < 100 else f"{len(data)} bytes")

    def write_eof(self) -> None:
        self.told.append("eof")

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")

    def is_closing(self) -> bool:
        return self.gone

    def get_extra_info(self, name: str) -> Any:
        return None


class Turn:
    """A loop's turn that the test ends."""

    def __init__(self) -> None:
        self.deferred: list[Callable[[], None]] = []
        self.errors: list[Exception] = []
        self.turn = WriteBatcher(self.deferred.append, self.errors.append)

    def writer(self, raises: bool = False) -> tuple[BufferedWriter, Pipe]:
        pipe = Pipe(raises)
        return BufferedWriter(self.turn, pipe), pipe  # type: ignore[arg-type]

    def end(self) -> None:
        deferred, self.deferred[:] = list(self.deferred), []
        for one in deferred:
            one()


def test_what_a_turn_wrote_goes_out_once_at_its_end() -> None:
    turn = Turn()
    first, one = turn.writer()
    second, other = turn.writer()
    first.write(b"a")
    second.write(b"b")
    first.write(b"c")
    first.write(b"")
    assert one.told == other.told == []
    assert len(turn.deferred) == 1
    turn.end()
    assert one.told == ["ac"]
    assert other.told == ["b"]
    assert turn.deferred == []
    first.write(b"d")
    turn.end()
    assert one.told == ["ac", "d"]


def test_a_turn_may_be_ended_before_its_time() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"a")
    turn.turn.end()
    assert pipe.told == ["a"]
    writer.write(b"b")
    assert pipe.told == ["a"]
    turn.end()
    assert pipe.told == ["a", "b"], "once each, however often the end is announced"
    assert turn.deferred == []


def test_nothing_written_is_no_turn() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"")
    writer.flush()
    assert turn.deferred == []
    assert pipe.told == []


def test_a_large_piece_goes_at_once_and_in_its_place() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"head")
    writer.write(b"x" * WRITE_AT_ONCE_BYTES)
    writer.write(b"tail")
    assert pipe.told == ["head", f"{WRITE_AT_ONCE_BYTES} bytes"]
    turn.end()
    assert pipe.told[2:] == ["tail"]


@pytest.mark.parametrize(("end", "word"), [("write_eof", "eof"), ("close", "close"), ("abort", "abort")])
def test_an_end_comes_after_what_was_written(end: str, word: str) -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"last")
    getattr(writer, end)()
    turn.end()
    assert pipe.told == ["last", word]


def test_a_reset_sends_and_a_cut_forgets() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"begun")
    writer.reset()
    turn.end()
    assert pipe.told == ["begun", "abort"]
    writer, pipe = turn.writer()
    writer.write(b"never")
    writer.cut()
    turn.end()
    assert pipe.told == ["abort"]


def test_a_peer_that_has_gone_meanwhile_is_no_error() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    writer.write(b"a")
    pipe.gone = True
    turn.end()
    assert pipe.told == []
    assert turn.errors == []


def test_one_that_raises_costs_the_others_nothing() -> None:
    turn = Turn()
    bad, _ = turn.writer(raises=True)
    good, pipe = turn.writer()
    bad.write(b"a")
    good.write(b"b")
    turn.end()
    assert pipe.told == ["b"]
    assert [str(error) for error in turn.errors] == ["a defect"]


def test_what_is_written_while_the_turn_ends_is_of_the_next() -> None:
    turn = Turn()
    writer, pipe = turn.writer()
    echo, _ = turn.writer()
    pipe_write = pipe.write

    def write_more(data: bytes) -> None:
        pipe_write(data)
        echo.write(b"more")

    pipe.write = write_more  # type: ignore[method-assign]
    writer.write(b"a")
    turn.end()
    assert len(turn.deferred) == 1
