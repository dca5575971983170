"""The cost of HTTP/2 header compression per head, in comparison with the `hpack` package.

The loop and the call in Python are included: `floor_ns` is their cost alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import hpack
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.codec.http2.field import Field
from activator.codec.http2.hpack.decoder import HpackDecoder
from activator.codec.http2.hpack.encoder import HpackEncoder
from activator.codec.message import Fields, Headers
from bench.micro.rounds import best_ns, in_rounds

HEADS = 1_000  # per round

REQUEST: Headers = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"www.example.com"),
    (b":path", b"/api/v1/items"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120 Safari/537.36"),
    (b"accept", b"application/json, text/plain, */*"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-language", b"en-US,en;q=0.9"),
    (b"referer", b"https://www.example.com/start"),
    (b"sec-fetch-mode", b"cors"),
    (b"sec-fetch-site", b"same-origin"),
    (b"sec-fetch-dest", b"empty"),
    (b"origin", b"https://www.example.com"),
    (b"cache-control", b"no-cache"),
]
RESPONSE: Headers = [
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Server", b"nginx/1.24.0"),
    (b"Cache-Control", b"max-age=3600, public"),
    (b"Vary", b"Accept-Encoding"),
    (b"X-Frame-Options", b"SAMEORIGIN"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Strict-Transport-Security", b"max-age=31536000"),
    (b"ETag", b'"abcdef-12345"'),
    (b"Last-Modified", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"Date", b"Mon, 21 Oct 2024 20:13:21 GMT"),
    (b"Accept-Ranges", b"bytes"),
    (b"Access-Control-Allow-Origin", b"*"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"X-Cache", b"HIT"),
]
PATHS = [b"/api/v1/items/%d?page=2" % number for number in range(997)]


def path_literal(path: bytes, huffman: bool) -> bytes:
    """Return the path as curl and others send it: never added to the table (RFC 7541 6.2.2)."""
    literal = hpack.Encoder().encode([(b":path", path)], huffman=huffman)
    return b"\x04" + literal[1:]


def blocks(kind: str) -> tuple[bytes, list[bytes]]:
    """Return the first block of a connection, and the following ones."""
    encoder = hpack.Encoder()
    first = encoder.encode(REQUEST)
    again = encoder.encode(REQUEST)
    if kind == "indexed":
        return first, [again]
    if kind == "two literals":
        return first, [again[:12] + b"\x00\x04x-id\x0a0123456789" + b"\x00\x05x-seq\x0212"]
    if kind == "a path, Huffman":
        return first, [again[:13] + path_literal(path, True) for path in PATHS]
    if kind == "the same path, Huffman":
        return first, [again[:13] + path_literal(PATHS[7], True)]
    assert kind == "first block"
    return b"", [first]


def repeated(operation: Callable[[bytes], object], heads: list[bytes]) -> Callable[[], None]:
    following = cycle(heads)

    def run() -> None:
        for _ in range(HEADS):
            operation(next(following))

    return run


def floor_ns(heads: list[bytes]) -> float:
    return best_ns(repeated(lambda block: [len(block)], heads), HEADS)


@pytest.mark.benchmark(group="http2")
@pytest.mark.parametrize("by", ["activator", "hpack"])
@pytest.mark.parametrize(
    "kind", ["indexed", "two literals", "a path, Huffman", "the same path, Huffman", "first block"]
)
def test_decode(benchmark: BenchmarkFixture, kind: str, by: str) -> None:
    """Decode 14 fields."""
    first, following = blocks(kind)
    decoder = HpackDecoder()
    oracle = hpack.Decoder()
    if first:
        decoder.decode(first, 0, len(first), [], 65_536, 100)
        oracle.decode(first)

    def ours(block: bytes) -> None:
        fields: list[Field] = []
        (decoder if first else HpackDecoder()).decode(block, 0, len(block), fields, 65_536, 100)

    def theirs(block: bytes) -> None:
        (oracle if first else hpack.Decoder()).decode(block, raw=True)

    extra: dict[str, str | float] = {
        "fields": 14,
        "by": by,
        "floor_ns": best_ns(repeated(lambda block: [len(block)], following), HEADS),
    }
    rounds = 30 if by == "activator" else 5
    in_rounds(benchmark, repeated(ours if by == "activator" else theirs, following), HEADS, rounds, extra=extra)


@pytest.mark.benchmark(group="http2")
@pytest.mark.parametrize("by", ["activator", "hpack"])
@pytest.mark.parametrize("kind", ["the same block", "another order", "a line that is new", "first block"])
def test_encode(benchmark: BenchmarkFixture, kind: str, by: str) -> None:
    """Encode :status and 14 fields in 14 orders, or in one order with a 15th field of changing value."""
    block = Fields.from_pairs(RESPONSE).block
    following = [block]
    if kind == "another order":
        following = [Fields.from_pairs(RESPONSE[at:] + RESPONSE[:at]).block for at in range(len(RESPONSE))]
    elif kind == "a line that is new":
        following = [block + b"\r\nX-Request-Id: %d" % number for number in range(997)]
    encoder = HpackEncoder()
    oracle = hpack.Encoder()

    def ours(block: bytes) -> None:
        current = encoder if kind != "first block" else HpackEncoder()
        current.add_status(200)
        current.add_lines(block)
        current.finish()

    pairs = {block: [(b":status", b"200"), *lowered(block)] for block in following}

    def theirs(block: bytes) -> None:
        (oracle if kind != "first block" else hpack.Encoder()).encode(pairs[block])

    for one in (*following[:14], *following[:14]):
        ours(one)
    extra: dict[str, str | float] = {
        "fields": 14,
        "by": by,
        "floor_ns": best_ns(repeated(lambda block: [len(block)], following), HEADS),
    }
    rounds = 30 if by == "activator" else 5
    in_rounds(benchmark, repeated(ours if by == "activator" else theirs, following), HEADS, rounds, extra=extra)


def lowered(block: bytes) -> Headers:
    return [(name.lower(), value) for name, value in Fields(block).pairs()]
