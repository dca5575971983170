"""A WSGI application that tells what it received; for servers that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mirror_asgi import describe  # type: ignore[import-not-found]


def app(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """As `mirror_asgi.app`."""
    body = environ["wsgi.input"].read()
    words = environ["PATH_INFO"].strip("/").split("/")
    headers = [("X-Mirror", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    if words[0] == "stream":
        start_response("200 OK", headers)
        return (b"piece %d\n" % number for number in range(int(words[1])))
    if words[0] == "status":
        start_response(f"{words[1]} ToControl", headers)
        return []
    answer: bytes
    if words[0] == "bytes":
        answer = bytes(range(256)) * (int(words[1]) // 256)
    else:
        came = [(name[5:].replace("_", "-"), value) for name, value in environ.items() if name.startswith("HTTP_")]
        answer = describe(environ["REQUEST_METHOD"], environ["RAW_URI"], came, body)
    start_response("200 OK", [*headers, ("Content-Length", str(len(answer)))])
    return [answer]
