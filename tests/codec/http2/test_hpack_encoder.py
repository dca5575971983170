"""Header blocks encoded: what goes into the table, what never does, and what is kept in memory for it."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from activator.codec.http2.field import Field
from activator.codec.http2.hpack.decoder import HpackDecoder
from activator.codec.http2.hpack.encoder import HpackEncoder
from activator.codec.message import Headers
from tests.codec.http2.hpack_examples import decoded, literal, update

BLOCK = b"\r\nServer: a\r\nContent-Type: text/plain\r\nX-Frame-Options: DENY"
FIELDS = [(b"server", b"a"), (b"content-type", b"text/plain"), (b"x-frame-options", b"DENY")]


def encoded(encoder: HpackEncoder, block: bytes) -> bytes:
    encoder.add_lines(block)
    return encoder.finish()


def test_a_line_is_indexed_when_it_comes_again() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    sizes = []
    for _ in range(4):
        block = encoded(encoder, BLOCK)
        sizes.append(len(block))
        assert decoded(decoder, block) == FIELDS
    assert sizes[0] > 30
    assert sizes[1] > 30
    assert sizes[2:] == [3, 3]
    assert encoder.table_length == 3


def test_an_index_is_right_however_much_was_inserted_since() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for number in range(400):
        block = BLOCK + b"\r\nX-Number: %d" % (number // 2)
        assert decoded(decoder, encoded(encoder, block)) == [*FIELDS, (b"x-number", b"%d" % (number // 2))]
        assert encoder.table_bytes == decoder.table_bytes <= 4096


def test_what_comes_once_displaces_nothing() -> None:
    encoder = HpackEncoder()
    for number in range(1000):
        encoder.add(b":path", b"/items/%d" % number)
        encoder.add_lines(BLOCK + b"\r\nX-Request-Id: %d" % number)
        encoder.finish()
    assert encoder.table_length == 3


@pytest.mark.parametrize("line", [
    b"Authorization: Basic x", b"Cookie: a=b", b"Set-Cookie: a=b", b"Proxy-Authorization: Basic x"
])  # fmt: skip
def test_credentials_are_never_indexed(line: bytes) -> None:
    """RFC 7541 7.1.3."""
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for _ in range(3):
        fields: list[Field] = []
        block = encoded(encoder, b"\r\n" + line)
        assert decoder.decode(block, 0, len(block), fields, 1000, 10)
        assert fields[0].never_indexed
        assert fields[0].line.lower() == b"\r\n" + line.lower()
    assert encoder.table_length == 0


def test_what_was_received_as_never_indexed_is_sent_so_also_if_it_is_in_the_table() -> None:
    """RFC 7541 6.2.3."""
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for _ in range(3):
        decoded(decoder, encoded(encoder, BLOCK))
    for _ in range(2):
        fields: list[Field] = []
        encoder.add_lines(BLOCK, frozenset({b"\r\nServer: a", b"\r\nno-such: line"}))
        block = encoder.finish()
        assert decoder.decode(block, 0, len(block), fields, 1000, 10)
        assert [field.never_indexed for field in fields] == [True, False, False]
    assert len(encoded(encoder, BLOCK)) == 3


def test_static_entries() -> None:
    encoder = HpackEncoder()
    encoder.add_status(200)
    encoder.add(b":method", b"GET")
    encoder.add(b":path", b"/")
    encoder.add_lines(b"\r\nAccept-Encoding: gzip, deflate\r\naccept-encoding: gzip, deflate")
    assert encoder.finish() == b"\x88\x82\x84\x90\x90"
    encoder = HpackEncoder(frozenset({b"accept-encoding"}))
    encoder.add_lines(b"\r\nAccept-Encoding: gzip, deflate\r\nAccept-Encoding: br\r\nA: b")
    assert encoder.finish() == literal(b"a", b"b")


def test_a_field_of_add_is_indexed_when_it_comes_again() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for size in (5, 5, 1, 1):
        encoder.add_status(201)
        block = encoder.finish()
        assert len(block) == size
        assert decoded(decoder, block) == [(b":status", b"201")]
    encoder.add(b":status", b"201", True)
    assert encoder.finish() == b"\x18\x03201"


def test_the_last_field_of_add_has_another_index_when_something_was_inserted_or_evicted() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    steps: list[tuple[bytes, int]] = [(b"", 4096)] * 4 + [(b"\r\nA: 1", 4096)] * 3 + [(b"", 0), (b"", 4096)] * 2
    for lines, size in steps:
        encoder.set_table_bytes_max(size)
        encoder.add(b"content-length", b"77")
        encoder.add_lines(lines)
        encoder.add(b"content-length", b"77")
        found = decoded(decoder, encoder.finish())
        assert [value for name, value in found if name == b"content-length"] == [b"77", b"77"]


def test_a_line_and_a_field_of_add_are_not_confused() -> None:
    """`skip` is for lines alone."""
    encoder = HpackEncoder(frozenset({b"te"}))
    for _ in range(3):
        encoder.add(b"te", b"trailers")
        encoder.finish()
    for line in (b"te: trailers", b"te:trailers", b"TE: trailers"):
        assert encoded(encoder, b"\r\n" + line) == b""


def test_no_lines() -> None:
    assert encoded(HpackEncoder(), b"") == b""
    assert HpackEncoder().finish() == b""
    assert encoded(HpackEncoder(), b"\r\n: a\r\nno colon\r\n") == b""


def test_long_strings() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for length in (126, 127, 128, 254, 255, 256, 16_383, 70_000):
        for block, field in [
            (b"\r\nA: " + b"v" * length, (b"a", b"v" * length)),
            (b"\r\n" + b"N" * length + b":v", (b"n" * length, b"v")),
        ]:
            for _ in range(3):
                assert decoded(decoder, encoded(encoder, block)) == [field]


# --- sizes of the table ---


@pytest.mark.parametrize(
    ("sizes", "start"),
    [
        ([4096], b""),
        ([65_536], b""),
        ([100], update(100)),
        ([0], update(0)),
        ([0, 4096], update(0) + update(4096)),
        ([100, 65_536, 200], update(100) + update(200)),
        ([200, 300, 100], update(100)),
        ([65_536, 5000], b""),
    ],
)
def test_a_size_is_told_once_with_the_smallest_in_between(sizes: list[int], start: bytes) -> None:
    """RFC 7541 4.2."""
    encoder = HpackEncoder()
    for size in sizes:
        encoder.set_table_bytes_max(size)
    encoder.add_status(200)
    assert encoder.finish() == start + b"\x88"
    encoder.add_status(200)
    assert encoder.finish() == b"\x88"


def test_a_smaller_table_loses_its_oldest_entries() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    for _ in range(3):
        decoded(decoder, encoded(encoder, BLOCK))
    encoder.set_table_bytes_max(60)
    assert decoded(decoder, encoded(encoder, BLOCK)) == FIELDS
    assert encoder.table_bytes == decoder.table_bytes <= 60
    encoder.set_table_bytes_max(4096)
    for _ in range(4):
        assert decoded(decoder, encoded(encoder, BLOCK)) == FIELDS
    assert encoder.table_length == 3


# --- memory ---


def test_large_lines_do_not_enter_the_table() -> None:
    encoder = HpackEncoder()
    for _ in range(3):
        encoded(encoder, b"\r\nA: " + b"v" * 2100)
        encoded(encoder, b"\r\nB:" + b" " * 2000 + b"v")
    assert encoder.table_length == 0


def test_memory_is_bounded_whatever_is_encoded() -> None:
    encoder = HpackEncoder()

    def churn(first: int) -> None:
        for number in range(first, first + 3000):
            block = b"\r\nA: %d\r\nB: %b" % (number, b"v" * (number % 1900))
            for _ in range(4):  # into the table, then as a block
                encoded(encoder, block)
                encoded(encoder, b"\r\nC: " + b"v" * 100_000)

    churn(0)
    tracemalloc.start()
    try:
        churn(3000)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 64_000, kept


def test_a_new_encoder_and_a_new_decoder_are_small() -> None:
    """Ten thousand idle connections have as many of each."""
    tracemalloc.start()
    try:
        made = [(HpackEncoder(), HpackDecoder()) for _ in range(100)]
        each = tracemalloc.get_traced_memory()[0] / len(made)
    finally:
        tracemalloc.stop()
    assert each < 2_000, each


def test_whole_blocks_are_forgotten_when_the_table_changes() -> None:
    encoder, decoder = HpackEncoder(), HpackDecoder()
    blocks = [BLOCK, BLOCK + b"\r\nA: b", b"\r\nA: b" + BLOCK, b"\r\nC: d", b"\r\nC: d" + BLOCK, b"\r\nE: f"]
    expected: list[Headers] = []
    for _ in range(5):
        for block in blocks:
            found = decoded(decoder, encoded(encoder, block))
            expected.append(found)
            assert len(found) == block.count(b"\r\n")
    assert expected[-6:] == expected[:6]
    assert sys.getsizeof(encoded(encoder, blocks[-2])) < 45
