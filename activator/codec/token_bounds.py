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


_DECODER = msgspec.json.Decoder(_Bounds)


def response_bound(body: bytes) -> int | None:
    """Return the bound that a request body sets; None without one, or if the body is not such a request."""
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for bound in (found.max_completion_tokens, found.max_tokens, found.max_output_tokens, found.n_predict):
        if bound is not None and bound >= 0:
            return min(bound, COUNT_MAX)
    return None
