"""A filter that is called for each request, attempt and end and changes nothing: the cost of calling filters."""

from __future__ import annotations

from collections.abc import Mapping

from activator.filters import Exchange, Filter, HeadEdits


class Trivial(Filter):
    """Counts its calls."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.met = 0

    def on_request(self, request: Exchange) -> None:
        self.met += 1

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        self.met += 1

    def on_end(self, request: Exchange) -> None:
        self.met += 1
