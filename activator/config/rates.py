"""Rates such as `60/min`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

RATE_MAX: Final = 10**9  # per period

_FACTORS: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_PERIODS_S: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_RATE: Final = re.compile(r"(\d{1,13}(?:\.\d{1,6})?)([kM])?/(s|min|h|day)", re.ASCII)


def parse_rate(text: str) -> tuple[int, float] | None:
    """Return the number and the period in seconds of `60/min`; None if the text is no such rate."""
    match = _RATE.fullmatch(text)
    if match is None:
        return None
    count = Decimal(match[1]) * _FACTORS[match[2] or ""]
    return (int(count), _PERIODS_S[match[3]]) if 1 <= count <= RATE_MAX and count == int(count) else None
