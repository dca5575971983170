"""`Prefer: respond-async` (RFC 7240): whether a request says it, and the request without it."""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead

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


def take_async_out(head: RequestHead) -> None:
    """It is fulfilled here: a pod that knew it as well would answer with a 202 of its own."""
    lines = []
    for line in head.headers.block.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == _NAME:
            left = [one.strip() for one in value.split(b",") if not _is_async(one)]
            if left:
                lines.append(b"%b: %b" % (name, b", ".join(left)))
        else:
            lines.append(line)
    head.headers.block = b"".join([b"\r\n%b" % line for line in lines])


def _is_async(preference: bytes) -> bool:
    return preference.partition(b";")[0].strip().lower() == _ASYNC
