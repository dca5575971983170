"""What is kept of a program's output, however it is cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.process.output import (
    BURST_BYTES,
    LINE_BYTES_MAX,
    LINES_KEPT,
    RATE_BYTES_S,
    Output,
    OutputRateLimiter,
)
from tests.manual_clock import ManualClock


@given(
    st.lists(st.text("ab é\x1b[m", max_size=8), max_size=80),
    st.lists(st.integers(0, 300), max_size=10),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_the_pieces_make_no_difference(lines: list[str], cuts: list[int], end: str) -> None:
    data = end.join(lines).encode()
    whole, cut = Output(), Output()
    whole.feed("stderr", data)
    places = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    for start, stop in itertools.pairwise(places):
        cut.feed("stderr", data[start:stop])
    assert cut.lines() == whole.lines()
    assert len(whole.lines()) <= LINES_KEPT + 1


def test_a_line_is_matched_whole_and_once() -> None:
    output = Output(r"^ready on \d+$")
    for piece in (b"not ready on 1\nrea", b"dy on \x1b[32m8080\x1b[0m"):
        output.feed("stdout", piece)
        assert not output.ready.is_set()
    output.feed("stderr", b"\n")  # of another stream
    assert not output.ready.is_set()
    output.feed("stdout", b"\r\n")
    assert output.ready.is_set()
    assert output.lines() == ["not ready on 1", "ready on 8080"]


def test_a_program_controls_no_memory() -> None:
    output = Output("end")
    for _ in range(100):
        output.feed("stdout", b"x" * 100_000)
    assert [len(line) for line in output.lines()] == [LINE_BYTES_MAX]
    output.feed("stdout", b"end\n")
    assert not output.ready.is_set()
    output.feed("stdout", b"y\n" * 10_000 + b"end\n")
    assert output.ready.is_set()
    assert output.lines() == ["y"] * (LINES_KEPT - 1) + ["end"]


@given(
    st.lists(
        st.sampled_from([b"", b"a", b"\x1b[1mb", b"x" * 4_095, b"y" * 4_096, b"z" * 4_097, b"w" * 9_000]), max_size=6
    ),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(1, 10_000),
)
def test_all_that_is_written_is_handed_on(lines: list[bytes], end: bytes, step: int) -> None:
    """Byte for byte but for empty lines, in pieces that are bounded."""
    found: list[bytes] = []

    def take(stream: str, data: bytes) -> None:
        assert stream == "stderr" and 0 < len(data) <= LINE_BYTES_MAX
        found.append(data)

    output = Output(on_line=take)
    data = end.join(lines)
    for place in range(0, len(data), step):
        output.feed("stderr", data[place : place + step])
    output.end("stderr")
    assert b"".join(found) == b"".join(lines)
    assert len(found) == sum(-(-len(line) // LINE_BYTES_MAX) for line in lines)


@pytest.mark.parametrize(
    ("size", "lines", "cost"), [(65_536, 0, 65_536), (65_536, 10, 65_536), (1_024, 512, 512 * 256)]
)
def test_who_writes_much_is_read_at_a_bounded_rate(size: int, lines: int, cost: int) -> None:
    clock = ManualClock()
    pace = OutputRateLimiter(clock.now)
    assert pace.wait_s(BURST_BYTES, 0) == 0.0
    taken, end_s = BURST_BYTES, clock.now() + 10.0
    while clock.now() < end_s:
        taken += cost
        clock.pass_time(pace.wait_s(size, lines))
    assert 9.9 * RATE_BYTES_S <= taken <= BURST_BYTES + 10.0 * RATE_BYTES_S + 2 * cost
