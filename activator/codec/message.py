"""Heads of requests and responses, independent of the protocol version.

Rules
  1. `headers` holds end-to-end fields only. Hop-by-hop fields and framing (Connection, Keep-Alive, Transfer-Encoding,
     Content-Length, Upgrade, Proxy-*) never appear in it; the length is a number, and the code that forwards the
     message writes new framing. Two exceptions: Trailer appears, because trailers are forwarded; and so does
     `TE: trailers` if the client sent it (gRPC servers insist on it), with the `Connection: TE` that HTTP/1 requires.
  2. Names and values are the received bytes, in their order and case; code that compares names lowers them.
  3. A codec makes a head, and the listener adds the request's origin (headers/forwarding.py). After that the head is
     only read: for each attempt, edits for the pod are made on a copy (headers/edits.py).

(content_length, has_body) is (n, True) for a body of n bytes, (0, False) for a declared empty one,
(UNKNOWN_LENGTH, True) for a body that the stream delimits, and (UNKNOWN_LENGTH, False) for no body.
A response to HEAD, or a 304, may declare the length of a body that does not follow: (n, False).
"""

from __future__ import annotations

from typing import Final

UNKNOWN_LENGTH: Final = -1

Headers = list[tuple[bytes, bytes]]

_NO_LINES: Final[frozenset[bytes]] = frozenset()
_NO_CLAIMS: Final[list[bytes]] = []


class Fields:
    """Header fields as one block of bytes: each field is CRLF, name, colon, value.

    A proxy reads two or three of the dozen fields of a head. A block costs one slice to read and one copy to write; a
    list of pairs took half of the time of parsing and all of the time of writing. The block does not depend on HTTP/1:
    `from_pairs` makes a block from pairs, and `pairs` makes pairs from a block. Names and values must not contain CR,
    LF or NUL: the parsers refuse them, and code that adds a field must not use them. Objects are shared and must not be
    changed: `with_line` and `without` return new ones.

    `never_indexed`: lines, each with its CRLF, that no hop may put into a compression table (RFC 7541 6.2.3).
    """

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.never_indexed: frozenset[bytes] = _NO_LINES

    @staticmethod
    def from_pairs(pairs: Headers) -> Fields:
        return Fields(b"".join([b"\r\n%b: %b" % (name, value) for name, value in pairs]))

    def with_line(self, name: bytes, value: bytes) -> Fields:
        """Return these fields with one more at the end."""
        return self._with_block(b"%b\r\n%b: %b" % (self.block, name, value))

    def with_changed(self, line: bytes, other: bytes) -> Fields:
        """Return these fields with the first occurrence of `line` replaced by `other`."""
        block = (self.block + b"\r\n").replace(b"\r\n%b\r\n" % line, b"\r\n%b\r\n" % other, 1)[:-2]
        return self._with_block(block)

    def without(self, lowered_names: frozenset[bytes]) -> Fields:
        """Return these fields without those whose names are in `lowered_names`."""
        lines = self.block.split(b"\r\n")
        return self._with_block(
            b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in lowered_names])
        )

    def _with_block(self, block: bytes) -> Fields:
        fields = Fields(block)
        fields.never_indexed = self.never_indexed
        return fields

    def get(self, lowered_name: bytes) -> bytes | None:
        """Return the value of the first field of this name, without surrounding whitespace; None if there is none."""
        start = self.block.lower().find(b"\r\n%b:" % lowered_name)
        if start < 0:
            return None
        start += len(lowered_name) + 3
        end = self.block.find(b"\r\n", start)
        return self.block[start : end if end >= 0 else len(self.block)].strip(b" \t")

    def pairs(self) -> Headers:
        """Return all fields as (name, value), in order; values without surrounding whitespace."""
        return pairs_of(self.block.split(b"\r\n")[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.pairs() == other.pairs()

    def __hash__(self) -> int:
        return hash(tuple(self.pairs()))

    def __repr__(self) -> str:
        return f"Fields({self.pairs()!r})"


def pairs_of(lines: list[bytes]) -> Headers:
    """Split field lines, without their line ends, into (name, value)."""
    pairs: Headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        pairs.append((name, value.strip(b" \t")))
    return pairs


class RequestHead:
    """The head of a request.

    `target` is in origin-form (path and query) or `*`. `authority` is the lowered host[:port]; it is empty if an
    HTTP/1.0 client names none, and then `headers` has no Host. If `upgrade` is set, both bodies become raw streams once
    the pod has answered 101 (RFC 9110 7.8).
    """

    def __init__(
        self,
        method: bytes,
        target: bytes,
        authority: bytes,
        headers: Fields,
        content_length: int,
        has_body: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.authority = authority
        self.headers = headers
        self.content_length = content_length
        self.has_body = has_body
        self.upgrade: bytes = b""  # the protocols that the client offers in Upgrade, lowered and comma-separated
        self.named: bytes = b""  # the fields that Connection names, as a block; they are not in `headers`
        self.claims: list[bytes] = (
            _NO_CLAIMS  # field lines about the request's origin, removed from `headers` (headers/forwarding.py)
        )
        self.has_internal: bool = False  # has fields that only Knative's components and this program use
        self.takes_trailers: bool = False  # an HTTP/2 request with `te: trailers`, as all of gRPC are
        self.entry: bytes = b""  # a port that selects the revision, whatever the host; empty: none
        self.needs_key: bool = True  # False: it came to a listener that requires none
        self.traceparent: bytes = b""  # the field line, which is also in `headers`: see headers/trace_context.py

    def copy(self) -> RequestHead:
        """Return a copy that shares the fields."""
        head = RequestHead(self.method, self.target, self.authority, self.headers, self.content_length, self.has_body)
        head.upgrade = self.upgrade
        head.named = self.named
        head.claims = self.claims
        head.has_internal = self.has_internal
        head.takes_trailers = self.takes_trailers
        head.entry = self.entry
        head.needs_key = self.needs_key
        head.traceparent = self.traceparent
        return head

    def received(self, lowered_name: bytes) -> bytes | None:
        """Return the value of the first field of this name that the client sent, even if Connection names it."""
        value = self.headers.get(lowered_name)
        if value is None and self.named:
            value = Fields(self.named).get(lowered_name)
        return value


class ResponseHead:
    """The head of a response. `reason_phrase` is kept for HTTP/1 peers and may be empty."""

    def __init__(
        self,
        status: int,
        reason_phrase: bytes,
        headers: Fields,
        content_length: int,
        has_body: bool,
    ) -> None:
        self.status = status
        self.reason_phrase = reason_phrase
        self.headers = headers
        self.content_length = content_length
        self.has_body = has_body
        self.upgrade: bytes = b""  # the new protocol, if this is a 101
