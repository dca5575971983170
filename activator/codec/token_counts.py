"""The counts of tokens that model servers report in their responses.

Rules
  1. Known reports: `usage` of OpenAI and Anthropic, `timings` of llama.cpp, and the counts of Ollama; in one JSON
     object, in an event stream, or in lines of JSON.
  2. Only a report in its own place counts: in the outermost object, or in its `message` or `response`. Anything
     deeper may have been written by the model or by the client, such as the input of a tool.
  3. The last report counts. Only Anthropic's streams report in two events: the prompt in the first one, the rest in the
     last one.
  4. The first FIRST_BYTES and the last LAST_BYTES of a body are kept and searched. A report elsewhere is not found.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple, final

from mypy_extensions import i64

FIRST_BYTES: Final = 2_048
LAST_BYTES: Final = 4_096
SLACK_BYTES: Final = 1_024  # received before the last bytes are trimmed again
COUNT_MAX: Final = 1_000_000_000  # a greater number is not a count
_FIRST_READS: Final = 2  # lines that are read at the beginning of a window
_LAST_READS: Final = 8  # and at its end
_READS_MAX: Final = 64  # members whose depth is determined; 10 us each

_NAMES: Final = re.compile(rb'(?<!\\)"(?:usage|timings|(?:prompt_)?eval_count)"')
_MEMBER: Final = re.compile(rb'(?<!\\)"(usage|timings|(?:prompt_)?eval_count)"[ \t\r\n]{0,16}:[ \t\r\n]{0,16}(?=[{\d])')
_MARK: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
_OPENS: Final = b"{["
_QUOTE: Final = b'"'
_DETAILS: Final = frozenset({"prompt_tokens_details", "input_tokens_details"})
_OUTER: Final = ("message", "response")
_OLLAMA: Final = ("prompt_eval_count", "eval_count")
_DECODER: Final = json.JSONDecoder()


class TokenCounts(NamedTuple):
    """The tokens of one response. `cached`: the part of `prompt` that the server did not process again."""

    prompt: int
    completion: int
    cached: int


@final
class TokenScan:
    """The search through one response body, which comes in pieces. `has_lines`: an event stream, or lines of JSON."""

    def __init__(self, has_lines: bool) -> None:
        self._has_lines = has_lines
        self._first: bytes = b""
        self._last = bytearray()  # what follows; trimmed to LAST_BYTES now and then
        self._is_cut: bool = False  # bytes between the two were dropped

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        room: i64 = FIRST_BYTES - len(self._first)
        if room > 0:
            self._first += data[:room]
            if len(data) <= room:
                return
            data = data[room:]
        last = self._last
        if len(data) >= LAST_BYTES:
            self._is_cut = self._is_cut or len(last) > 0 or len(data) > LAST_BYTES
            self._last = bytearray(data[-LAST_BYTES:])
            return
        last += data
        if len(last) > LAST_BYTES + SLACK_BYTES:
            del last[:-LAST_BYTES]
            self._is_cut = True

    def counts(self) -> TokenCounts | None:
        """Return the counts that were found so far; None if there are none."""
        report = _Report()
        first, last = self._first, bytes(self._last)
        if not self._is_cut:
            first, last = first + last, b""
        if self._has_lines:
            _read_lines(first.split(b"\n"), report)
            if self._is_cut:
                lines = last.split(b"\n")
                _read_to_end(lines[0], report, 2)  # `response` may be long
                _read_lines(lines[1:], report)
        elif self._is_cut:
            _read_from_start(first, report)
            _read_to_end(last, report, 1)
        elif not _read_value(first, report):
            _read_lines(first.split(b"\n"), report)
        return report.counts()


@final
class _Report:
    """The last report of a body."""

    def __init__(self) -> None:
        self.usage: dict[str, int] = {}
        self.timings: dict[str, int] = {}

    def read(self, value: dict[str, Any]) -> None:
        """Take the reports of an event or of a whole response."""
        for name in _OUTER:
            inner = value.get(name)
            if isinstance(inner, dict):
                self.take("usage", inner.get("usage"), False)
        self.take("usage", value.get("usage"), value.get("type") == "message_delta")
        self.take("timings", value.get("timings"), False)
        ollama = {name: value[name] for name in _OLLAMA if _is_count(value.get(name))}
        if ollama:
            self.usage = ollama

    def take(self, name: str, value: object, merges: bool) -> None:
        """Take one report; an empty one changes nothing."""
        found = _counts_in(value) if isinstance(value, dict) else {}
        if not found:
            return
        if name == "timings":
            self.timings = found
        else:
            self.usage = {**self.usage, **found} if merges else found

    def counts(self) -> TokenCounts | None:
        """Return the counts in the terms of OpenAI, in which the prompt includes its cached part."""
        usage, timings = self.usage, self.timings
        prompt = _first_of(usage, "prompt_tokens", "prompt_eval_count")
        completion = _first_of(usage, "completion_tokens", "output_tokens", "eval_count")
        cached = _first_of(usage, "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
        if prompt < 0 and "input_tokens" in usage:
            # Anthropic counts tokens that its cache provided or took separately.
            cache_tokens = usage.get("cache_read_input_tokens", 0) + usage.get("cache_creation_input_tokens", 0)
            prompt = usage["input_tokens"] + cache_tokens
        if prompt < 0 and "prompt_n" in timings:
            prompt = timings["prompt_n"] + timings.get("cache_n", 0)
        if completion < 0:
            completion = timings.get("predicted_n", -1)
        if prompt < 0 and completion < 0:
            return None
        if cached < 0:
            cached = timings.get("cache_n", 0)
        prompt = max(prompt, 0)
        return TokenCounts(prompt, max(completion, 0), min(cached, prompt))


def _read_lines(lines: list[bytes], report: _Report) -> None:
    """Read each line that is a JSON object, alone or after `data:`."""
    chosen = [line for line in lines if _NAMES.search(line) is not None]
    if len(chosen) > _FIRST_READS + _LAST_READS:
        chosen = chosen[:_FIRST_READS] + chosen[-_LAST_READS:]
    for line in chosen:
        _read_value(line[5:] if line.startswith(b"data:") else line, report)


def _read_value(text: bytes, report: _Report) -> bool:
    """Read a JSON text, which may be no object; return False if it is not valid."""
    try:
        value = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    if isinstance(value, dict):
        report.read(value)
    return True


def _read_from_start(window: bytes, report: _Report) -> None:
    """Read the members of the outermost object of a JSON text that begins with `window`."""
    if not window.lstrip().startswith(b"{"):
        return
    for found in list(_MEMBER.finditer(window))[:_READS_MAX]:
        if _depth(window[: found.start()]) == 1:
            _take_member(window, found, report)


def _read_to_end(window: bytes, report: _Report, depth: int) -> None:
    """Read the members of the outermost object of a JSON text that ends with `window`.

    If there are none and `depth` is 2, read those of an object in it.
    """
    matches = list(_MEMBER.finditer(window, 1))[-_READS_MAX:]
    depths = [_depth(window[found.end() :]) for found in matches]
    level = -1 if -1 in depths else -depth
    for found, found_depth in zip(matches, depths, strict=True):
        if found_depth == level:
            _take_member(window, found, report)


def _take_member(window: bytes, found: re.Match[bytes], report: _Report) -> None:
    """Read the report in the value that follows the matched name, if the window has all of the value."""
    text = window[found.end() :].decode("utf-8", "replace")
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # cut off, or not JSON
        return
    name = found[1].decode()
    if name not in _OLLAMA:
        report.take(name, value, False)
    elif _is_count(value):
        report.usage = {**{key: count for key, count in report.usage.items() if key in _OLLAMA}, name: value}


def _depth(text: bytes) -> i64:
    """Return how many brackets `text` opens, without those that it closes; 0 if it ends within a string."""
    depth: i64 = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if len(mark) == 1:
            if mark == _QUOTE:
                return 0
            depth += 1 if mark in _OPENS else -1
    return depth


def _counts_in(report: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of a report, and of its details the cached tokens."""
    counts: dict[str, int] = {}
    for name, value in report.items():
        if _is_count(value):
            counts[name] = value
        elif isinstance(value, dict) and name in _DETAILS and _is_count(value.get("cached_tokens")):
            counts["cached_tokens"] = value["cached_tokens"]
    return counts


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNT_MAX


def _first_of(counts: dict[str, int], *names: str) -> int:
    """Return the count of the first name that there is; -1 if there is none."""
    for name in names:
        if name in counts:
            return counts[name]
    return -1
