"""A filter that looks at each request, each attempt and each end, and changes nothing: what the seam itself costs."""

from __future__ import annotations

from collections.abc import Mapping

from activator.filters import Filter, HeadEdits, RequestRecord


class Trivial(Filter):
    """Counts what it meets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.met = 0

    def on_request(self, request: RequestRecord) -> None:
        self.met += 1

    def on_attempt(self, request: RequestRecord, edits: HeadEdits) -> None:
        self.met += 1

    def on_end(self, request: RequestRecord) -> None:
        self.met += 1
