"""An ordinary HTTP/1.1 server, written for the tests: what it is asked for is what it shows, in every framing there is.

/echo             JSON: the request as it came
/chunked          the body that was sent, in chunks, with trailers
/close            the same, ended by the end of the connection
/http10           the same in HTTP/1.0, ended likewise
/status/204       that status, without a body
/bytes/1000       so many bytes of a known pattern
/slow/0.1/echo    /echo after so many seconds
"""

from __future__ import annotations

import hashlib
import json
import time

from tests.e2e.pods import PodSide, Request

HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-hop"}
ORIGIN = {
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-request-id",
}  # what a proxy tells of the client
FRAMING = {"content-length", "transfer-encoding"}
PATTERN = bytes(range(256)) * 256


def pattern(size: int) -> bytes:
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(request: Request) -> bytes:
    """The request without what belongs to one hop, or tells of the client."""
    shown = {
        "line": request.line,
        "headers": [field for field in request.headers if field[0].lower() not in HOP_BY_HOP | FRAMING | ORIGIN],
        "size": len(request.body),
        "body": digest(request.body),
        "trailers": request.trailers,
    }
    return json.dumps(shown).encode()


def origin(side: PodSide) -> None:
    """The script of a `ScriptedPod`."""
    while True:
        request = side.head()
        if [value.lower() for value in request.all("expect")] == ["100-continue"]:
            side.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        side.body(request)
        if not answer(side, request) or "close" in request.all("connection"):
            return


def answer(side: PodSide, request: Request) -> bool:
    """Whether the connection may carry another request."""
    target = request.target
    if target.startswith("/slow/"):
        _, _, seconds, rest = target.split("/", 3)
        time.sleep(float(seconds))
        target = f"/{rest}"
    kind, _, argument = target.partition("?")[0].lstrip("/").partition("/")
    extra = b"Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nX-Two: 1\r\nx-two: 2\r\nX-Empty:\r\nSet-Cookie: a=b; c\r\n"
    body = b"" if request.method == "HEAD" else request.body
    if kind == "chunked":
        side.send(b"HTTP/1.1 200 OK\r\n" + extra + b"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n")
        if request.method != "HEAD":
            for start in range(0, len(body), 50_000):
                piece = body[start : start + 50_000]
                side.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            side.send(b"0\r\nX-Sum: %b\r\nX-Other: 1\r\n\r\n" % digest(body).encode())
    elif kind == "close":
        side.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + extra + b"\r\n" + body)
        return False
    elif kind == "http10":
        side.send(b"HTTP/1.0 203 Who Knows\r\n" + extra + b"\r\n" + body)
        return False
    elif kind == "status":
        side.send(b"HTTP/1.1 %b Something\r\n" % argument.encode() + extra + b"\r\n")
    else:
        whole = pattern(int(argument)) if kind == "bytes" else described(request)
        side.send(b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(whole))
        if request.method != "HEAD":
            side.send(whole)
    return True
