"""The greatest number of tokens that a request to a model server allows for its response.

This module is not compiled, because mypyc would drop the options of the struct.
"""

from __future__ import annotations

import codecs
import math
from typing import Final

import msgspec

from activator.codec.token_counts import COUNT_MAX

_ABSENT: Final = msgspec.Raw(b"null")


class _Options(msgspec.Struct):
    """The member `options` of Ollama's requests."""

    num_predict: msgspec.Raw = _ABSENT


class _Bounds(msgspec.Struct):
    """The members of requests of OpenAI, Anthropic, llama.cpp and Ollama."""

    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    n_predict: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT
    options: msgspec.Raw = _ABSENT


_DECODER: Final = msgspec.json.Decoder(_Bounds)
_OPTIONS: Final = msgspec.json.Decoder(_Options)
_NUMBER: Final = msgspec.json.Decoder(int | float, strict=False)


def response_bound(body: bytes) -> int | None:
    """Return the greatest bound that a request body sets, for all its choices; None without one.

    A body that is not such a request has none. A member that is not a number counts as absent; some servers accept
    fractions, and numbers in quotes.
    """
    try:
        found = _DECODER.decode(body.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    members = (found.max_completion_tokens, found.max_tokens, found.max_output_tokens, found.n_predict)
    bound = max(_at_least(one, -1) for one in (*members, _num_predict(found.options)))
    choices = max(_at_least(found.n, 1), _at_least(found.best_of, 1))
    return None if bound < 0 else min(bound * choices, COUNT_MAX)


def _num_predict(options: msgspec.Raw) -> msgspec.Raw:
    """Return the member `num_predict` of Ollama's `options`; null if it is absent or `options` is no object."""
    try:
        return _OPTIONS.decode(options).num_predict
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ABSENT


def _at_least(value: msgspec.Raw, least: int) -> int:
    """Return a number, rounded up; `least` if it is lower, or no number."""
    try:
        number: int | float = _NUMBER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return least
    if not math.isfinite(number):
        return COUNT_MAX if number > 0 else least
    return max(math.ceil(number), least)
