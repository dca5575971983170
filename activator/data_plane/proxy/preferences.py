"""`Prefer: respond-async` (RFC 7240): whether a request says it, and the request without it."""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead
from activator.data_plane.headers.edits import HeadEdits

_NAME: Final = b"prefer"
_ASYNC: Final = b"respond-async"


def prefers_async(head: RequestHead) -> bool:
    """One of its fields says so; parameters of the preference do not matter."""
    if head.headers.get(_NAME) is None:
        return False
    return any(
        _is_async(preference)
        for name, value in head.headers.pairs()
        if name.lower() == _NAME
        for preference in value.split(b",")
    )


def edit_prefer(head: RequestHead, edits: HeadEdits) -> None:
    """Leave `respond-async` out: a pod that knew it as well would answer with a 202 of its own."""
    edits.remove(frozenset({_NAME}))
    for name, value in head.headers.pairs():
        if name.lower() == _NAME:
            left = [one.strip() for one in value.split(b",") if not _is_async(one)]
            if left:
                edits.append(name, b", ".join(left))


def _is_async(preference: bytes) -> bool:
    return preference.partition(b";")[0].strip().lower() == _ASYNC
