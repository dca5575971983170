"""Corrections of text that is not YAML, in addition to the parser's own message.

A hint shows no value but a word with a placeholder: any other may be a secret.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

_QUOTED: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_PLACEHOLDER: Final = re.compile(r"\{(?:port|socket)\}[^\s,\[\]{}]*")
_SAFE_TO_SHOW: Final = re.compile(r"(--?[\w-]+=)?((\d{1,3}(\.\d{1,3}){3}|localhost)?:)?\{(?:port|socket)\}", re.ASCII)
_BEGINS_VALUE: Final = re.compile(r"[,\[{]\s*|:\s+|^\s*-\s+")
_NO_SPACE: Final = re.compile(r"^[\s-]*([A-Za-z_][\w.-]*):[^\s:/]")
_TWO_COLONS: Final = re.compile(r"^[\s-]*([\w.-]+):\s+([^\s\"'\[{|>&*!#].*:\s.*)$")
_OPEN_QUOTE: Final = re.compile(r"(?:^|[:\-,\[{])\s*([\"'])(?!.*\1)")
_LINES_MAX: Final = 10  # lines before the error that are searched
_LINE_MAX: Final = 1_000  # characters of a line that are searched


def yaml_hint(text: str, line: int, error: yaml.MarkedYAMLError) -> str:
    """Return a correction of the error in `line`, beginning with "; "; empty if the parser's message suffices."""
    detail = f"{error.context} {error.problem}"
    if "alias" in detail:
        return "; a value that begins with * needs quotes"
    before = [earlier[:_LINE_MAX] for earlier in text.splitlines()[max(line - _LINES_MAX, 0) : line]][::-1]
    near = before[:2]  # the parser may report the line after
    if any("\t" in earlier[: len(earlier) - len(earlier.lstrip())] for earlier in near):
        return "; indent with spaces, not with tabs"
    hint = next(filter(None, map(_value_in_line, near)), "") or _unclosed(before, line, error)
    if not hint and "mapping values are not allowed" in detail:
        hint = next(filter(None, map(_colon_in_line, near)), "")
    if not hint and "<document start>" in detail:
        hint = "begin the keys of the file in the first column"
    if not hint and any(word in detail for word in ("did not find expected", "mapping values", "block")):
        hint = "check the indentation: the keys of a mapping begin in one column, and so do the dashes of a list"
    return f"; {hint}" if hint else ""


def _value_in_line(line: str) -> str:
    """Return how to write a value with a placeholder, whose brace begins a mapping in brackets and after a quote."""
    bare = _QUOTED.sub(lambda quoted: "q" * len(quoted[0]), line)
    placeholder = _PLACEHOLDER.search(bare)
    if placeholder is None:
        return ""
    if not any(mark in line[: placeholder.start()] for mark in "[{\"'"):
        return ""  # in a line of words it needs no quotes
    begins = [begin.end() for begin in _BEGINS_VALUE.finditer(bare, 0, placeholder.start())]
    value = line[begins[-1] if begins else 0 : placeholder.end()].strip()
    name = placeholder[0][: placeholder[0].index("}") + 1]
    if not _SAFE_TO_SHOW.fullmatch(value):
        return f"write the whole text with {name} in quotes"
    return f'a text with {name} needs quotes: write "{value}"'


def _unclosed(before: list[str], line: int, error: yaml.MarkedYAMLError) -> str:
    """Return which quote or bracket is not closed. `before`: the lines up to `line`, the last one first."""
    detail, opening = f"{error.context} {error.problem}", error.context_mark
    if opening is not None and "quoted scalar" in detail:
        return f"the quote in line {opening.line + 1} is not closed"
    for distance, earlier in enumerate(before):
        if _OPEN_QUOTE.search(_QUOTED.sub("q", earlier)):
            return f"the quote in line {line - distance} is not closed"
    for construct, bracket in (("flow sequence", "["), ("flow mapping", "{")):
        if opening is not None and construct in detail:
            return f'the "{bracket}" in line {opening.line + 1} is not closed, or a comma is missing'
    return ""


def _colon_in_line(line: str) -> str:
    match = _NO_SPACE.match(line)
    if match is not None:
        return f'write a space after the colon of "{match[1]}"'
    if _TWO_COLONS.match(_QUOTED.sub("q", line)):
        return "a text with a colon and a space needs quotes"
    return ""
