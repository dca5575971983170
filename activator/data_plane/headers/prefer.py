"""Preferences of clients in `Prefer` fields (RFC 7240)."""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead

PREFER: Final = b"prefer"
RESPOND_ASYNC: Final = b"respond-async"
IF_AVAILABLE: Final = b"if-available"  # reject the request if it had to wait


def prefers(head: RequestHead, preference: bytes) -> bool:
    """Return True if a Prefer field contains the preference, with any parameters."""
    if head.headers.get(PREFER) is None:
        return False
    return any(
        is_preference(element, preference)
        for name, value in head.headers.pairs()
        if name.lower() == PREFER
        for element in value.split(b",")
    )


def is_preference(element: bytes, preference: bytes) -> bool:
    """Return True if an element of a Prefer field is this preference, with any parameters."""
    return element.partition(b";")[0].strip().lower() == preference
