"""The greatest number of tokens that a request to a model server allows for its response.

This module is not compiled, because mypyc would drop the options of the struct.
"""

from __future__ import annotations

import msgspec

from activator.codec.token_counts import COUNT_MAX


class _Bounds(msgspec.Struct):
    """The members of requests of OpenAI, Anthropic, and llama.cpp."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n_predict: int | None = None
    n: int | None = None
    best_of: int | None = None


_DECODER = msgspec.json.Decoder(_Bounds)


def response_bound(body: bytes) -> int | None:
    """Return the greatest bound that a request body sets, for all its choices; None without one.

    A body that is not such a request has none.
    """
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    bound = max(
        _at_least(found.max_completion_tokens, -1),
        _at_least(found.max_tokens, -1),
        _at_least(found.max_output_tokens, -1),
        _at_least(found.n_predict, -1),
    )
    choices = max(_at_least(found.n, 1), _at_least(found.best_of, 1))
    return None if bound < 0 else min(bound * choices, COUNT_MAX)


def _at_least(value: int | None, least: int) -> int:
    return least if value is None else max(value, least)
