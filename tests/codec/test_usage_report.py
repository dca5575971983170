"""The option in the request and the event in the stream, each beside a plain reading of the whole text."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.codec.usage_report import EVENT_BYTES_MAX, UsageEventRemoval, UsageOption

OPTION = {"include_usage": True}
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
REPORT = json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
TOKEN = json.dumps({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "w\n"}}]})


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[begin:end] for begin, end in itertools.pairwise(at)]


# --- the option ---


def optioned(pieces: list[bytes]) -> tuple[bytes, bool]:
    editor = UsageOption()
    return b"".join([editor.feed(piece) for piece in pieces]) + editor.finish(), editor.is_added


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"\\{}[]:, \u00e9', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\', max_size=2), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["stream", "stream_options", "model", "messages", "strea", "stream_", "\u00e9"])
TEXTS = st.builds(
    lambda value, escapes, indent: json.dumps(value, indent=indent, ensure_ascii=escapes).replace(
        '"stream"', '"str\\u0065am"' if escapes else '"stream"'
    ),
    st.dictionaries(NAMES, st.booleans() | VALUES, max_size=5) | VALUES,
    st.booleans(),
    st.sampled_from([None, 1]),
)


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_the_option_is_added_where_a_stream_has_none(text: str, places: list[int]) -> None:
    body = text.encode()
    before = json.loads(text)
    after, is_added = optioned(cut(body, places))
    if isinstance(before, dict) and before.get("stream") is True and before.get("stream_options") is None:
        assert is_added and json.loads(after) == {**before, "stream_options": OPTION}
        assert after.startswith(body.rstrip(b"} \n")), "what is there does not change"
    else:
        assert (after, is_added) == (body, False)


@pytest.mark.parametrize(
    ("body", "is_added"),
    [
        (b'{"stream":true}', True),
        (b'\xef\xbb\xbf {"a":[{"stream_options":{}}],"stream":true }\n', True),
        (b'{"stream":false,"stream":true}', True),
        (b'{"stream":true,"stream":false}', False),
        (b'{"stream":true,"stream_options":null}', True),
        (b'{"stream_options": null ,"stream":true}', True),
        (b'{"stream":true,"stream_options":null,"stream_options":{}}', False),
        (b'{"stream":true,"stream_options":nulls}', False),
        (b'{"stream":true,"stream\\u005foptions":{"include_usage":false}}', False),
        (b'{"stream":"true"}', False),
        (b'{"stream":truex}', False),
        (b'{"stream":true', False),
        (b'{"stream":true,}', False),
        (b'{"a" 1,"stream":true}', False),
        (b'[{"stream":true}]', False),
        (b'{"a":{"stream":true}}', False),
        (b"{}", False),
        (b"", False),
        (b'"{\\"stream\\":true}"', False),
        ('{"stream":true}'.encode("utf-16"), False),
    ],
)
def test_texts_with_and_without_the_option(body: bytes, is_added: bool) -> None:
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        after, found = optioned(pieces)
        assert found == is_added
        assert after == body if not is_added else after.rstrip().endswith(b',"stream_options":{"include_usage":true}}')


def test_a_long_request_is_read_once() -> None:
    began_s = time.monotonic()
    body = b'{"messages":[' + b'{"content":"' + b'[\\"' * 1_000_000 + b'"}],"stream":true}'
    assert optioned([body[at : at + 65_536] for at in range(0, len(body), 65_536)])[1]
    assert not optioned([b'{"' + b"x" * 3_000_000 + b'":1,"stream":false}'])[1]
    assert time.monotonic() - began_s < 5.0


# --- the event ---


def removed(pieces: list[bytes]) -> bytes:
    stream = UsageEventRemoval()
    return b"".join([stream.feed(piece) for piece in pieces]) + stream.finish()


def segments(data: bytes) -> list[bytes]:
    """Split a stream into comments before events, and events with the empty lines that end them."""
    found, current, is_begun = [], b"", False
    for line in re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", data):
        current += line
        text = line.rstrip(b"\r\n")
        if text and not (text.startswith(b":") and not is_begun):
            is_begun = True
            continue
        found.append(current)
        current, is_begun = b"", False
    return [*found, current] if current else found


def is_report(segment: bytes) -> bool:
    text = re.sub(rb"(?:\r\n|\r|\n)\Z", b"", segment)
    values = [line[5:] for line in re.split(rb"\r\n|\r|\n", text) if line.startswith(b"data:")]
    if len(values) != 1 or b'"usage"' not in values[0]:
        return False
    try:
        event = json.loads(values[0].decode())
    except ValueError:
        return False
    fits = len(text) <= EVENT_BYTES_MAX
    return fits and isinstance(event, dict) and event.get("choices") == [] and isinstance(event.get("usage"), dict)


def expected(data: bytes) -> bytes:
    return b"".join([rest(one) if is_report(one) else one for one in segments(data)])


def rest(report: bytes) -> bytes:
    return report.replace(USAGE_TEXT, b"") if b"data: " + MORE in report else b""


USAGE_TEXT = b',"usage":{"a":1}'
MORE = b'{"id":"a","choices":[]' + USAGE_TEXT + b',"timings":{"predicted_ms":1.50}}'

LINES = st.sampled_from([
    f"data: {MORE.decode()}",
    f"data: {REPORT}",
    f"data:{REPORT}",
    f"data: {TOKEN}",
    "data: [DONE]",
    ": ping",
    ":",
    "",
    "event: message",
    "id: 7",
    "data",
    "data:",
    "dat",
    "database: 1",
    'data: {"usage":{"a":1},',
    'data: "choices": [ ]}',
    'data: {"choices":[],"usage":null}',
    'data: {"choices":[]}',
    'data: {"usage":{}}',
    'data: {"choices":[],"usage":{}} x',
    'data: {"choices":[],"usage":{"a":[}',
    'data: {"choices" : [\t] , "usage" : {"a":"\\"}"} }  ',
    'data: {"choices":[1],"usage":{}}',
    'data: {"ch\\u006fices":[],"usage":{}}',
    'data: {"choices":[],"us\\u0061ge":{}}',
    'data: {"choices":[],"us\\u0061ge":{"a":"\\"usage"}}',
    'data: {"choices":[],"us\\u0061ge":{"usage":1}}',
    'data: {"a":{"choices":[],"usage":{}}}',
    'data: {"choices":{},"usage":{}}',
    "data: [[[[",
    'data: {"id":"\u00e9 ',
    "x" * 40,
])  # fmt: skip
ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r", "\n\r\n", ""])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(
    lambda pairs: "".join([line + end for line, end in pairs]).encode()
)
BIG = f'data: {{"id":"{"x" * (EVENT_BYTES_MAX - 40)}'.encode() + b'","choices":[],"usage":{}}'
assert len(BIG) == EVENT_BYTES_MAX - 1


@given(STREAMS, st.lists(st.integers(0, 1_500)) | st.just(list(range(1_500))))
@example(f"data: {REPORT}\r\n\r\n: x\r\ndata: {TOKEN}\r\n\r\n".encode(), list(range(500)))
@example(BIG + b"\n\n" + BIG + b"\r\n\r\n" + BIG + b" \n\n" + BIG + b"  \n\n", list(range(0, 20_000, 7)))
@example(BIG + b"\r\n\r\nx" + BIG + b"  \n\n", [EVENT_BYTES_MAX - 1, EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1])
def test_any_stream_in_any_pieces_loses_its_reports_only(data: bytes, places: list[int]) -> None:
    assert removed(cut(data, places)) == expected(data)


def may_become_report(segment: bytes) -> bool:
    """Return True if the rest of the stream may make a report of these bytes, which begin an event."""
    if len(segment) > EVENT_BYTES_MAX or (segment.startswith(b":")):
        return False
    lines = [line.partition(b":") for line in re.split(rb"\r\n|\r|\n", segment)]
    text = b"\n".join([value for name, _, value in lines if name == b"data"]).lstrip()
    return re.match(rb'\{[^{}\[\]]*"choices"\s*:\s*([^\s\[]|\[\s*[^\s\]])|[^\s{]', text) is None


@given(STREAMS, st.lists(st.integers(0, 1_500)) | st.just(list(range(1_500))))
def test_only_what_may_become_a_report_is_held_back(data: bytes, places: list[int]) -> None:
    stream, before, after = UsageEventRemoval(), b"", b""
    for piece in cut(data, places):
        before += piece
        after += stream.feed(piece)
        found = segments(before)
        is_open = (
            found and re.search(rb"(?:\r\n|\r|\n)\Z", re.sub(rb"(?:\r\n|\r|\n)\Z", b"", found[-1]) or b"\n") is None
        )
        last = found[-1] if is_open and not (found[-1].startswith(b":")) else b""
        whole = before[: len(before) - len(last)]
        held = expected(whole) + last
        assert held.startswith(after), "nothing else is written"
        if not may_become_report(last):
            assert after == held, "nothing is held back"
        else:
            assert len(after) >= len(expected(whole)), "all events before are passed on"


@pytest.mark.parametrize("cuts", [1, 7, 64, 10_000_000])
def test_a_stream_in_pieces_of_one_size(cuts: int) -> None:
    events = [f"data: {TOKEN}\n\n"] * 20 + [f"data: {REPORT}\n\n", "data: [DONE]\n\n"]
    data = "".join(events).encode()
    stream = UsageEventRemoval()
    pieces = [stream.feed(data[at : at + cuts]) for at in range(0, len(data), cuts)]
    assert b"".join(pieces) == data.replace(events[-2].encode(), b"")
    assert stream.finish() == b""


@pytest.mark.parametrize(
    "rest", [b" x", b"\ndata: ", b"\r\ndata:{", b'\ndata: {"choices":[],"usage":{}}\n', b"\n\n: x", b"\n\ndata: [D"]
)
def test_bytes_behind_a_report_are_passed_on_at_once(rest: bytes) -> None:
    stream, report = UsageEventRemoval(), f"data: {REPORT}".encode()
    assert stream.feed(report) == b""
    is_removed = rest.startswith(b"\n\n")
    assert stream.feed(rest) == (rest.lstrip(b"\n") if is_removed else report + rest)


def test_a_piece_of_tokens_is_not_even_copied() -> None:
    stream, piece = UsageEventRemoval(), f"data: {TOKEN}\n\ndata: {TOKEN}\n\n".encode()
    assert stream.feed(piece) is piece


def test_much_of_it_is_read_once() -> None:
    began_s = time.monotonic()
    many = f"data: {TOKEN}\n\n".encode() * 10_000
    assert removed([many]) == many
    line = b"data: " + b"x" * (10 << 20)
    assert removed([line[at : at + 65_536] for at in range(0, len(line), 65_536)]) == line
    endless = b'data: {"id":"' + b"x" * (10 << 20)
    stream = UsageEventRemoval()
    held_max = out = 0
    for at in range(0, len(endless), 1_000):
        out += len(stream.feed(endless[at : at + 1_000]))
        held_max = max(held_max, at + 1_000 - out)
    assert held_max <= EVENT_BYTES_MAX
    reports = f"data: {REPORT}\r\r".encode() * 10_000
    assert removed([reports]) == b""
    small = b'data: {"id":"' + b"x" * (EVENT_BYTES_MAX - 40)
    assert removed([small[at : at + 1] for at in range(len(small))]) == small
    assert time.monotonic() - began_s < 20.0
