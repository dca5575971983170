"""The response of a metrics port, sent in slices so that requests are served in between.

A client that disconnects early is not an error; one that does not read is disconnected after METRICS_ANSWER_S.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Final, Protocol

from aiohttp import web

from activator.runtime.tasks import pause

METRICS_ANSWER_S: Final = 60.0  # a client that has not read all metrics by then is disconnected

_GZIP_LEVEL: Final = 1  # the lowest level compresses metrics to a twentieth
_GZIP_WINDOW: Final = 31  # zlib's wbits value for the gzip format


class ContentEncoder(Protocol):
    """The part of zlib's compressors that is used here."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class IdentityEncoder:
    """A `ContentEncoder` that does not compress."""

    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


async def answer_in_slices(
    request: web.Request, slices: Iterable[bytes], content_type: str, answer_s: float = METRICS_ANSWER_S
) -> web.StreamResponse:
    """Send the slices one after the other, compressed if the client accepts gzip."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    encoder: ContentEncoder = IdentityEncoder()
    if _takes_gzip(request.headers.get("Accept-Encoding", "")):
        encoder = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        response.headers["Content-Encoding"] = "gzip"
    try:
        async with asyncio.timeout(answer_s):
            await response.prepare(request)
            for piece in slices:
                data = encoder.compress(piece)
                if data:
                    await response.write(data)
                await pause(0.0)
            await response.write_eof(encoder.flush())
    except (ConnectionError, TimeoutError):
        response.force_close()
        if request.transport is not None:
            request.transport.abort()  # an incomplete response cannot be ended
    return response


def _takes_gzip(accept_encoding: str) -> bool:
    """Return True if the field accepts gzip by name (RFC 9110 12.5.3); `*` is ignored."""
    for member in accept_encoding.lower().replace(" ", "").split(","):
        coding, _, weight = member.partition(";q=")
        if coding in {"gzip", "x-gzip"}:
            return not weight or weight.strip("0.") != ""
    return False
