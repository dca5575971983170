"""The tokens of one request."""

from __future__ import annotations

from typing import final

from activator.codec.token_counts import TokenCounts


@final
class Usage:
    """The tokens of one request, and the times of its event stream: monotonic seconds, 0.0: no event yet."""

    def __init__(self) -> None:
        self.tokens: TokenCounts | None = None
        self.events: int = 0  # events of the stream with data other than `[DONE]`; at least 1 after any
        self.first_event_s: float = 0.0
        self.last_event_s: float = 0.0

    def output_token_s(self) -> float:
        """Return the mean time from one token of a stream to the next; 0.0 if it is not known."""
        tokens = self.tokens
        if tokens is None or tokens.completion < 2 or self.last_event_s <= self.first_event_s:
            return 0.0
        return (self.last_event_s - self.first_event_s) / (tokens.completion - 1)

    def tokens_per_s(self) -> float:
        """Return the tokens of a stream per second after the first one; 0.0 if it is not known."""
        token_s = self.output_token_s()
        return 1.0 / token_s if token_s > 0.0 else 0.0
