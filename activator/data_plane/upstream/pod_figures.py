"""The figures of one pod in one data plane."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

SERVER_ERROR_STATUS: Final = 500


@final
class PodFigures:
    """Counters since the pod was first added."""

    def __init__(self) -> None:
        self.responses: i64 = 0
        self.errors: i64 = 0  # responses with a status of at least 500, and requests that the pod failed
        self.first_byte_total_s: float = 0.0  # from the connection to the head, over all responses

    def responded(self, status: i64, first_byte_s: float) -> None:
        self.responses += 1
        self.first_byte_total_s += max(first_byte_s, 0.0)
        if status >= SERVER_ERROR_STATUS:
            self.errors += 1
