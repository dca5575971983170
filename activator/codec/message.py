"""Heads of requests and responses, in no protocol version's terms.

Rules
  1. What stands here is end to end: hop-by-hop fields and framing (Connection, Keep-Alive, Transfer-Encoding,
     Content-Length, Upgrade, Proxy-*) never appear in `headers`; the length is a number, and the code that sends the
     message on frames it anew. Trailer does appear, since trailers are handed on; and `TE: trailers` where the client
     sent it (gRPC servers insist on it), with the `Connection: TE` that must accompany it in HTTP/1.
  2. Names and values are the bytes that were received, order and case kept; code that compares names lowers them.
  3. A head is made once by a codec, and its listener adds where it comes from (headers/forwarding.py). From then on it
     is only read: what a pod receives differently is made of it for each attempt (headers/edits.py).

(content_length, has_body) is (n, True) for a body of n bytes, (0, False) for a declared empty one,
(UNKNOWN_LENGTH, True) for a body whose end the stream shows, and (UNKNOWN_LENGTH, False) for no body at all.
A response to HEAD, or a 304, may declare the length of a body that does not follow: (n, False).
"""

from __future__ import annotations

from typing import Final

UNKNOWN_LENGTH: Final = -1

Headers = list[tuple[bytes, bytes]]

_NO_LINES: Final[frozenset[bytes]] = frozenset()
_NO_CLAIMS: Final[list[bytes]] = []


class Fields:
    """Header fields as one block of bytes: before each field CRLF, between its name and its value a colon.

    Of the dozen fields that a proxied head has, two or three are ever looked at. As a block they cost one slice when
    read and one copy when written; as a list of pairs they were half of what parsing cost and all of what writing did.
    The notation does not depend on HTTP/1: `from_pairs` makes a block of pairs, `pairs` makes pairs of a block.
    Neither a name nor a value may hold CR, LF or NUL: the parsers let none through, and code that adds a field must
    not either. Fields are shared: those who did not make them use `with_line` and `without`, which return others.

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
        """Return these fields with another line in the place of the first one that is `line`."""
        block = (self.block + b"\r\n").replace(b"\r\n%b\r\n" % line, b"\r\n%b\r\n" % other, 1)[:-2]
        return self._with_block(block)

    def without(self, lowered_names: frozenset[bytes]) -> Fields:
        """Return these fields without those of these names."""
        lines = self.block.split(b"\r\n")
        return self._with_block(
            b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in lowered_names])
        )

    def _with_block(self, block: bytes) -> Fields:
        fields = Fields(block)
        fields.never_indexed = self.never_indexed
        return fields

    def get(self, lowered_name: bytes) -> bytes | None:
        """The value of the first field of this name, without whitespace around it."""
        start = self.block.lower().find(b"\r\n%b:" % lowered_name)
        if start < 0:
            return None
        start += len(lowered_name) + 3
        end = self.block.find(b"\r\n", start)
        return self.block[start : end if end >= 0 else len(self.block)].strip(b" \t")

    def pairs(self) -> Headers:
        """All fields, in order; values without whitespace around them."""
        return pairs_of(self.block.split(b"\r\n")[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.pairs() == other.pairs()

    def __hash__(self) -> int:
        return hash(tuple(self.pairs()))

    def __repr__(self) -> str:
        return f"Fields({self.pairs()!r})"


def pairs_of(lines: list[bytes]) -> Headers:
    """Field lines, without their line ends, taken apart."""
    pairs: Headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        pairs.append((name, value.strip(b" \t")))
    return pairs


class RequestHead:
    """What a client asks for. `target` is origin-form (path and query) or `*`; `authority` the lowered host[:port],
    empty where an HTTP/1.0 client names none: then `headers` have no Host.

    An `upgrade` makes both bodies raw streams once the pod has answered 101 (RFC 9110 7.8).
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
        self.upgrade: bytes = b""  # the protocols that the client asks for on this connection, lowered, in a list
        self.named: bytes = b""  # the fields that Connection names, as a block: for us, and not in `headers`
        self.claims: list[bytes] = (
            _NO_CLAIMS  # field lines about its origin, taken out of `headers` (headers/forwarding.py)
        )
        self.has_internal: bool = False  # fields that only Knative's components and this program give a meaning
        self.takes_trailers: bool = False  # over HTTP/2 it says so (TE), as all of gRPC's do
        self.entry: bytes = b""  # a port that says the revision, whatever the host; empty: it came to none
        self.traceparent: bytes = b""  # its field line; it stays in `headers`: see headers/trace_context.py

    def copy(self) -> RequestHead:
        """Return another head that says the same, with the same fields."""
        head = RequestHead(self.method, self.target, self.authority, self.headers, self.content_length, self.has_body)
        head.upgrade = self.upgrade
        head.named = self.named
        head.claims = self.claims
        head.has_internal = self.has_internal
        head.takes_trailers = self.takes_trailers
        head.entry = self.entry
        head.traceparent = self.traceparent
        return head

    def received(self, lowered_name: bytes) -> bytes | None:
        """The value of the first field of this name that the client sent to us, also if it is for us alone."""
        value = self.headers.get(lowered_name)
        if value is None and self.named:
            value = Fields(self.named).get(lowered_name)
        return value


class ResponseHead:
    """What a pod answers. `reason_phrase` is kept for HTTP/1 peers and may be empty."""

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
        self.upgrade: bytes = b""  # of a 101: the protocol that is spoken from here on
