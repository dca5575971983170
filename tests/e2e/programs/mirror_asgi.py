"""An ASGI application that tells what it received; for servers that are not ours."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "te"}


def describe(method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    """As JSON, without what belongs to one hop or tells of a client's origin."""
    kept = sorted(
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in _OF_ONE_HOP and not name.lower().startswith(("x-forwarded", "x-request"))
    )
    told = {"method": method, "target": target, "headers": kept, "body": hashlib.sha256(body).hexdigest()}
    return json.dumps(told).encode()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """`/stream/N`: N pieces without a length; `/status/N`; `/bytes/N`; anything else tells what came."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    words = scope["path"].strip("/").split("/")
    headers = [(b"x-mirror", b"1"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    if words[0] == "stream":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(int(words[1])):
            await send({"type": "http.response.body", "body": b"piece %d\n" % number, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    status = int(words[1]) if words[0] == "status" else 200
    answer = b""
    if words[0] == "bytes":
        answer = bytes(range(256)) * (int(words[1]) // 256)
    elif status not in {204, 304}:
        target = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        came = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        answer = describe(scope["method"], target, came, body)
    if status not in {204, 304}:
        headers.append((b"content-length", b"%d" % len(answer)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
