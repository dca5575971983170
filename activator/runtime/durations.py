"""Durations: as they are read (`300ms`, `5s`, `2m`, `1h`, or plain seconds), and as log lines show them."""

from __future__ import annotations

import math
import re
from typing import Final

DURATION_PATTERN: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h)?"
_DURATION: Final = re.compile(DURATION_PATTERN, re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float | None:
    """Return the duration in seconds; None if `text` is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    return seconds if math.isfinite(seconds) else None


def lasting(seconds: float) -> str:
    """Format a duration for a log line: `0.2 s`, `45 s`, `5 m`, `2 h`."""
    if seconds < 10.0:
        return f"{seconds:.2g} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} m" if seconds < 7_200.0 else f"{seconds / 3_600.0:.0f} h"
