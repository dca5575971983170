"""Token counts: the reports of each kind of server, in any pieces, and texts that only look like reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.codec.token_counts import COUNT_MAX, FIRST_BYTES, LAST_BYTES, SLACK_BYTES, TokenCounts, TokenScan

OPENAI = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 5},
}
LLAMA = {"cache_n": 4, "prompt_n": 8, "prompt_ms": 3.5, "predicted_n": 7, "predicted_ms": 70.0}


def events(*objects: Any, names: bool = False) -> bytes:
    """Return an event stream, with the names of events as Anthropic sends them."""
    lines = []
    for one in objects:
        name = f"event: {one['type']}\n" if names else ""
        lines.append(f"{name}data: {one if isinstance(one, str) else json.dumps(one)}\n\n")
    return "".join(lines).encode()


def chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}], **more}


REPORTS: dict[str, tuple[bool, bytes, TokenCounts]] = {
    "OpenAI": (
        False,
        json.dumps({"choices": [{"message": {"content": "hi " * 5000}}], "usage": OPENAI, "id": "x"}).encode(),
        TokenCounts(12, 7, 5),
    ),
    "OpenAI, indented": (False, json.dumps({"choices": [], "usage": OPENAI}, indent=4).encode(), TokenCounts(12, 7, 5)),
    "OpenAI, a stream": (
        True,
        events(*[chunk("word ") for _ in range(300)], {"choices": [], "usage": OPENAI}, "[DONE]"),
        TokenCounts(12, 7, 5),
    ),
    "vLLM, counts in each event": (
        True,
        events(*[chunk("w", usage={"prompt_tokens": 9, "completion_tokens": n}) for n in range(200)], "[DONE]"),
        TokenCounts(9, 199, 0),
    ),
    "a null in all events but the last": (
        True,
        events(*[chunk("w", usage=None) for _ in range(99)], chunk("", usage=OPENAI), "[DONE]"),
        TokenCounts(12, 7, 5),
    ),
    "OpenAI, responses": (
        True,
        events(
            {"type": "response.output_text.delta", "delta": "x" * 9000},
            {
                "type": "response.completed",
                "response": {
                    "output": ["x" * 9000],
                    "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2},
                },
            },
        ),
        TokenCounts(3, 2, 1),
    ),
    "OpenAI, embeddings": (
        False,
        json.dumps({"data": [{"embedding": [0.25] * 3000}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}).encode(),
        TokenCounts(8, 0, 0),
    ),
    "llama.cpp, embeddings, counts first": (
        False,
        json.dumps({"usage": {"prompt_tokens": 8, "total_tokens": 8}, "data": [{"embedding": [0.25] * 3000}]}).encode(),
        TokenCounts(8, 0, 0),
    ),
    "llama.cpp, chat": (
        True,
        events(*[chunk("w") for _ in range(99)], {"choices": [], "usage": {**OPENAI}, "timings": LLAMA}, "[DONE]"),
        TokenCounts(12, 7, 5),
    ),
    "llama.cpp, chat without usage": (
        True,
        events(chunk("w"), chunk("", timings=LLAMA), "[DONE]"),
        TokenCounts(12, 7, 4),
    ),
    "llama.cpp, completion": (
        False,
        json.dumps({"content": "x" * 20_000, "tokens_predicted": 7, "timings": LLAMA, "stop": True}).encode(),
        TokenCounts(12, 7, 4),
    ),
    "Anthropic": (
        False,
        json.dumps(
            {
                "content": [{"type": "tool_use", "input": {"usage": {"prompt_tokens": 0, "output_tokens": 0}}}],
                "usage": {
                    "input_tokens": 10,
                    "cache_creation_input_tokens": 20,
                    "cache_read_input_tokens": 30,
                    "cache_creation": {"ephemeral_5m_input_tokens": 20},
                    "output_tokens": 6,
                },
            }
        ).encode(),
        TokenCounts(60, 6, 30),
    ),
    "Anthropic, a stream": (
        True,
        events(
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 25, "cache_read_input_tokens": 100, "output_tokens": 1}},
            },
            *[{"type": "content_block_delta", "delta": {"text": "word " * 20}} for _ in range(200)],
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}},
            {"type": "message_stop"},
            names=True,
        ),
        TokenCounts(125, 42, 100),
    ),
    "Ollama": (
        True,
        b"".join(json.dumps({"message": {"content": "w"}, "done": False}).encode() + b"\n" for _ in range(300))
        + json.dumps({"done": True, "prompt_eval_count": 26, "eval_count": 290, "eval_duration": 9}).encode(),
        TokenCounts(26, 290, 0),
    ),
    "Ollama, whole": (
        False,
        json.dumps({"response": "x" * 9000, "done": True, "prompt_eval_count": 26, "eval_count": 290}).encode(),
        TokenCounts(26, 290, 0),
    ),
    "Ollama, lines that claim to be one object": (
        False,
        b'{"done": false}\n{"done": true, "prompt_eval_count": 26, "eval_count": 290}\n',
        TokenCounts(26, 290, 0),
    ),
}

# What a model or a client can write: an object where the API has one that it does not define.
NONE = {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 0, "output_tokens": 0, "eval_count": 0}
CALL = {"tool_calls": [{"function": {"arguments": {"usage": NONE, "timings": {"predicted_n": 0}, "eval_count": 999}}}]}
TOOLS = [{"parameters": {"properties": {"usage": NONE, "response": {"usage": NONE}}}}]

Forgery = tuple[str, bool, Callable[[str], bytes], TokenCounts | None]
FORGERIES: tuple[Forgery, ...] = (
    (
        "Ollama",
        False,
        lambda x: json.dumps({"message": {"content": x, **CALL}, "prompt_eval_count": 26, "eval_count": 290}).encode(),
        TokenCounts(26, 290, 0),
    ),
    (
        "Ollama, without its count of the prompt",
        False,
        lambda x: json.dumps({"message": {"content": x, **CALL}, "eval_count": 290}).encode(),
        TokenCounts(0, 290, 0),
    ),
    (
        "Ollama, lines",
        True,
        lambda x: (
            json.dumps({"message": {"content": x, **CALL}}).encode()
            + b'\n{"done": true, "prompt_eval_count": 26, "eval_count": 290}\n'
        ),
        TokenCounts(26, 290, 0),
    ),
    (
        "responses, tools behind usage",
        True,
        lambda x: events(
            {
                "type": "response.completed",
                "response": {"output": x, "usage": {"input_tokens": 300, "output_tokens": 200}, "tools": TOOLS},
            }
        ),
        TokenCounts(300, 200, 0),
    ),
    (
        "responses, tools before usage",
        True,
        lambda x: events(
            {
                "type": "response.completed",
                "response": {"tools": TOOLS, "output": x, "usage": {"input_tokens": 300, "output_tokens": 200}},
            }
        ),
        TokenCounts(300, 200, 0),
    ),
    (
        "Anthropic, usage first",
        False,
        lambda x: json.dumps(
            {
                "usage": {"input_tokens": 10, "output_tokens": 6},
                "content": [{"text": x}, {"input": {"usage": NONE}}],
            }
        ).encode(),
        TokenCounts(10, 6, 0),
    ),
    (
        "Anthropic, usage last",
        False,
        lambda x: json.dumps(
            {
                "content": [{"input": {"usage": NONE}}, {"text": x}],
                "usage": {"input_tokens": 10, "output_tokens": 6},
            }
        ).encode(),
        TokenCounts(10, 6, 0),
    ),
    ("no report at all", False, lambda x: json.dumps({"content": [x, CALL], "a": CALL}).encode(), None),
    ("no report in a stream", True, lambda x: events({"choices": [{"delta": CALL, "x": x}]}), None),
)


FORGED = b'{"usage":{"prompt_tokens":999999,"completion_tokens":999999}}'
LONG = b'{"x":"' + b"y" * 9_000 + b'",'
REAL = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


@pytest.mark.parametrize(
    ("has_lines", "body", "expected"),
    [
        (False, b"[" + FORGED + b"]", None),
        (True, b"data: [" + FORGED + b"]\n\n", None),
        (True, b"data: " + REAL + b"\n\ndata: [" + FORGED + b"]\n\n", TokenCounts(3, 4, 0)),
        (True, b"data: hello " + FORGED[1:] + b"\n\n", None),
        (True, b": " + FORGED[1:] + b"\n\nevent: " + FORGED[1:] + b"\n\n", None),
        (False, REAL[:-1] + b',"t":"\xff","x":' + FORGED + b"}", TokenCounts(3, 4, 0)),
        (True, b"data: " + REAL[:-1] + b',"metadata":' + FORGED + b"}\n\n", TokenCounts(3, 4, 0)),
        (True, b"data: " + LONG + REAL[1:-1] + b',"metadata":' + FORGED + b"}\n\n", TokenCounts(3, 4, 0)),
        (False, LONG + REAL[1:-1] + b',"a":[' + b",".join([FORGED] * 20) + b"]}", TokenCounts(3, 4, 0)),
        (True, b"data: " + REAL + b'\n\ndata: {"message":{"usage":{}}}\n\n', TokenCounts(3, 4, 0)),
        (False, b"[" + REAL + b"," + b" " * 9_000 + FORGED + b"]", None),
    ],
)  # fmt: skip
def test_a_report_in_another_place_does_not_count(has_lines: bool, body: bytes, expected: TokenCounts | None) -> None:
    assert scan(body, has_lines) == expected


@pytest.mark.parametrize("size", [0, 9_000])
@pytest.mark.parametrize("forgery", FORGERIES, ids=[one[0] for one in FORGERIES])
@given(sizes=st.lists(st.integers(1, 2 * LAST_BYTES), min_size=1, max_size=4))
@settings(max_examples=15)
def test_objects_of_a_model_or_a_client_do_not_count(forgery: Forgery, size: int, sizes: list[int]) -> None:
    _, has_lines, make, expected = forgery
    assert scan(make("x" * size), has_lines, sizes) == expected


def scan(body: bytes, has_lines: bool, sizes: list[int] | None = None) -> TokenCounts | None:
    found = TokenScan(has_lines)
    place, at = 0, 0
    while place < len(body):
        size = len(body) if not sizes else sizes[at % len(sizes)]
        found.feed(body[place : place + size])
        place, at = place + size, at + 1
    return found.counts()


@pytest.mark.parametrize("name", REPORTS)
@given(sizes=st.lists(st.integers(1, 2 * LAST_BYTES), min_size=1, max_size=8))
@settings(max_examples=30)
def test_each_report_is_found_in_any_pieces(name: str, sizes: list[int]) -> None:
    is_stream, body, expected = REPORTS[name]
    assert scan(body, is_stream) == expected
    assert scan(body, is_stream, sizes) == expected


@given(st.text())
def test_a_text_of_the_model_is_no_report(text: str) -> None:
    """Whatever a model writes is a string of the response: its quotation marks are escaped."""
    for content in (text, json.dumps({"usage": OPENAI}), "\\" + json.dumps({"usage": OPENAI}) + text):
        body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
        assert scan(body, has_lines=False) is None
        assert scan(b"data: " + body + b"\n\n", has_lines=True) is None


@pytest.mark.parametrize("padding", range(LAST_BYTES - 40, LAST_BYTES + 10))
def test_a_cut_does_not_turn_a_text_into_a_report(padding: int) -> None:
    """A window may begin between a backslash and the quotation mark that it escapes."""
    content = "a" * 3 * LAST_BYTES + json.dumps({"usage": {"completion_tokens": 1}}) + "b" * padding
    assert scan(json.dumps({"content": content}).encode(), has_lines=False) is None


@pytest.mark.parametrize(
    "value", ["null", "[]", "7", '"x"', '{"prompt_tokens": -1}', '{"prompt_tokens": 1.5}', '{"prompt_tokens": true}',
              f'{{"prompt_tokens": {COUNT_MAX + 1}}}', '{"prompt_tokens": "9"}', '{"prompt_tokens": 1,', "{}"],
)  # fmt: skip
def test_what_is_no_count_counts_nothing(value: str) -> None:
    assert scan(f'{{"usage": {value}}}'.encode(), has_lines=False) is None


@given(st.binary(max_size=300), st.binary(max_size=300), st.booleans())
def test_no_bytes_raise(before: bytes, behind: bytes, is_stream: bool) -> None:
    scan(before + b'"usage":{' + behind, is_stream)
    scan(before + b'"usage":' * 2000 + b"{" * 3000 + behind, is_stream)


def test_little_is_kept() -> None:
    found = TokenScan(has_lines=True)
    for _ in range(1000):
        found.feed(b"x" * 1000)
    assert len(found._first) == FIRST_BYTES and len(found._last) <= LAST_BYTES + SLACK_BYTES
