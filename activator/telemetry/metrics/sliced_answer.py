"""The answer of a metrics port: sent in slices, so that requests are served in between.

A client that leaves in the middle of it is no error; one that does not read it is cut off after METRICS_ANSWER_S.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Final, Protocol

from aiohttp import web

from activator.runtime.tasks import pause

METRICS_ANSWER_S: Final = 60.0  # a client that has not taken all metrics by then is cut off

_GZIP_LEVEL: Final = 1  # lines of metrics shrink to a twentieth with the least effort
_GZIP_WINDOW: Final = 31  # zlib's word for gzip's own head and tail


class Packer(Protocol):
    """Of zlib's compressors, what is needed here."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Unpacked:
    """In the place of a compressor where none was asked for."""

    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


async def answer_in_slices(
    request: web.Request, slices: Iterable[bytes], content_type: str, answer_s: float = METRICS_ANSWER_S
) -> web.StreamResponse:
    """Make and send one slice after the other, packed if the request takes that."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})
    packer: Packer = Unpacked()
    if _takes_gzip(request.headers.get("Accept-Encoding", "")):
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        response.headers["Content-Encoding"] = "gzip"
    try:
        async with asyncio.timeout(answer_s):
            await response.prepare(request)
            for one in slices:
                data = packer.compress(one)
                if data:
                    await response.write(data)
                await pause(0.0)
            await response.write_eof(packer.flush())
    except (ConnectionError, TimeoutError):
        response.force_close()
        if request.transport is not None:
            request.transport.abort()  # nothing more is sent of an incomplete answer
    return response


def _takes_gzip(accept_encoding: str) -> bool:
    """RFC 9110 12.5.3; `*` does not count."""
    for member in accept_encoding.lower().replace(" ", "").split(","):
        coding, _, weight = member.partition(";q=")
        if coding in {"gzip", "x-gzip"}:
            return not weight or weight.strip("0.") != ""
    return False
