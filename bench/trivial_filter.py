"""A filter that is called for each request, attempt and end and changes nothing: the cost of calling filters."""

from __future__ import annotations

from collections.abc import Mapping

from activator.filters import Filter, HeadEdits, RequestRecord


class Trivial(Filter):
    """Counts its calls."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.met = 0

    def on_request(self, request: RequestRecord) -> None:
        self.met += 1

    def on_attempt(self, request: RequestRecord, edits: HeadEdits) -> None:
        self.met += 1

    def on_end(self, request: RequestRecord) -> None:
        self.met += 1
