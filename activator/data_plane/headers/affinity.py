"""The affinity key of a request, for revisions whose policy sends the same client to the same pod.

A key is a hash of the value of a header field, of a cookie, or of the client's address. It is the same in every
process and after every restart (lb/hashing.py), and never 0. A request without that value has key 0, "no key", and may
go to any pod.
"""

from __future__ import annotations

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.config.model.routing import HASH_ON_CLIENT_IP
from lb.hashing import hash_bytes


class Affinity:
    """The source of the keys of a revision's requests: `client_ip`, `header:NAME` or `cookie:NAME`."""

    def __init__(self, hash_on: str) -> None:
        source, _, name = hash_on.partition(":")
        self.on_client_ip: bool = hash_on in {"", HASH_ON_CLIENT_IP}
        self._is_cookie: bool = source == "cookie"
        self._name: bytes = name.encode("latin-1") if self._is_cookie else name.lower().encode("latin-1")

    def key_of(self, head: RequestHead, client_ip: str) -> i64:
        """Return the key of a request; `client_ip` is only used if `on_client_ip`."""
        if self.on_client_ip:
            return hash_bytes(client_ip.encode()) if client_ip else 0
        if self._is_cookie:
            header = head.headers.get(b"cookie")
            value = cookie_of(header, self._name) if header else b""
        else:
            value = head.received(self._name) or b""
        return hash_bytes(value) if value else 0


def cookie_of(header: bytes, name: bytes) -> bytes:
    """Return the value of the first cookie `name` (RFC 6265 4.2.1: `name=value; name=value`); b"" if there is none."""
    for pair in header.split(b";"):
        pair_name, _, value = pair.partition(b"=")
        if pair_name.strip(b" \t") == name:
            return value.strip(b" \t")
    return b""
