"""Lines written by a thread: nobody waits for a slow reader, and what is lost is counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.runtime.line_writer import LOG_ATOMIC_BYTES, LineWriter, atomic_end

LOG = logging.getLogger("activator.access_log")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test has closed it


def test_a_reader_that_does_not_read_holds_nobody_up(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter("the log", descriptor, 1 << 20, LOG)
    line = b"x" * 9999 + b"\n"
    given_lines = 0
    while writer.room_bytes >= len(line):  # the pipe holds less than that: the thread is stuck in its write long before
        writer.write(line)
        given_lines += 1
    assert given_lines >= 100
    assert not writer.close(timeout_s=0.01)
    with open(reader, "rb", closefd=False) as stream:
        for _ in range(given_lines):
            assert stream.readline() == line
    assert writer.lost_lines == 0


def test_lines_come_out_as_they_went_in(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LineWriter("the log", descriptor, 1 << 20, LOG)
    for number in range(100):
        writer.write(b"%d\n" % number)
    assert writer.close(timeout_s=60.0)
    assert writer.backlog_bytes == 0
    writer.write(b"again\n")
    assert writer.close(timeout_s=60.0)
    os.close(descriptor)
    with open(reader, "rb", closefd=False) as stream:
        assert stream.read() == b"".join(b"%d\n" % number for number in range(100)) + b"again\n"


def test_a_reader_that_has_gone_costs_lines_and_nothing_else(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    reader, descriptor = pipe
    os.close(reader)
    writer = LineWriter("the log", descriptor, 1 << 20, LOG)
    for _ in range(5):
        writer.write(b"one\ntwo\n")
    assert writer.close(timeout_s=60.0)
    assert (writer.lost_lines, writer.backlog_bytes) == (10, 0)
    assert len(caplog.records) == 1, "told once, not for every batch"


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=40))
def test_a_write_among_others_is_whole_lines_that_the_system_does_not_mix(lengths: list[int]) -> None:
    lines = b"".join(b"x" * (length - 1) + b"\n" for length in lengths)
    begin = 0
    while begin < len(lines):
        end = atomic_end(lines, begin)
        piece = lines[begin:end]
        assert piece.endswith(b"\n")
        assert len(piece) <= LOG_ATOMIC_BYTES or piece.count(b"\n") == 1
        following = lines.find(b"\n", end) + 1
        assert end == len(lines) or following - begin > LOG_ATOMIC_BYTES, "as many as fit"
        begin = end


def test_lines_of_several_writers_to_one_pipe_stay_whole() -> None:
    read, write = os.pipe()
    writers = [LineWriter("the log", write, 1 << 30, LOG, shared=True) for _ in range(3)]
    lines = 3_000
    for number, writer in enumerate(writers):
        for batch in range(30):
            text = "".join(f"{number}:{batch}:{line}:{'x' * (line * 7 % 900)}\n" for line in range(lines // 30))
            writer.write(text.encode())
    seen = b""
    while seen.count(b"\n") < 3 * lines:
        seen += os.read(read, 1 << 16)
    assert all(writer.close(10.0) for writer in writers)
    found = [line.split(b":") for line in seen.splitlines()]
    assert all(len(parts) == 4 and len(parts[3]) == int(parts[2]) * 7 % 900 for parts in found)
    for number in range(3):
        own = [(int(parts[1]), int(parts[2])) for parts in found if parts[0] == b"%d" % number]
        assert own == sorted(own) and len(own) == lines
    os.close(read)
    os.close(write)
