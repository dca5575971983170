"""What is kept of a program's output, however it is cut into pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.process.output import LINE_BYTES_MAX, LINES_KEPT, Output


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
