"""Huffman-coded strings against the table of RFC 7541 Appendix B and against hpack's decoder."""

from __future__ import annotations

from itertools import product

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http2.hpack import huffman
from activator.codec.http2.hpack.errors import HpackError
from tests.codec.http2.hpack_examples import huffman_coded

EOS = (0x3FFFFFFF, 30)


def outcome(data: bytes) -> bytes | None:
    try:
        return huffman.decode(data, 0, len(data), 1 << 20)
    except HpackError:
        return None


def oracle(data: bytes) -> bytes | None:
    try:
        return bytes(decode_huffman(data))
    except HPACKDecodingError:
        return None


def bits_to_bytes(bits: str) -> bytes:
    assert len(bits) % 8 == 0
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def test_the_codes_are_those_of_the_standard() -> None:
    assert huffman.codes() == list(zip(REQUEST_CODES, REQUEST_CODES_LENGTH))
    assert huffman.codes()[256] == EOS


def test_every_string_of_one_or_two_bytes() -> None:
    assert outcome(b"") == b""
    for size in (1, 2):
        for data in product(range(256), repeat=size):
            assert outcome(bytes(data)) == oracle(bytes(data)), bytes(data)


@given(st.binary(max_size=40))
def test_random_bytes(data: bytes) -> None:
    assert outcome(data) == oracle(data)


@given(st.binary(max_size=200))
def test_what_is_coded_is_decoded(text: bytes) -> None:
    assert outcome(huffman_coded(text)) == text


def test_every_symbol_in_every_state_that_others_lead_to() -> None:
    for first in range(256):
        text = bytes(byte for second in range(256) for byte in (first, second))
        assert outcome(huffman_coded(text)) == text


@pytest.mark.parametrize("ones", range(40))
def test_padding_has_at_most_7_bits_of_ones(ones: int) -> None:
    """RFC 7541 5.2. "0" has the code 00000."""
    zeros = (ones + 5) // 5  # as many symbols, then `ones` bits of padding up to the byte's end
    while (zeros * 5 + ones) % 8:
        zeros += 1
    found = outcome(bits_to_bytes("00000" * zeros + "1" * ones))
    assert found == (b"0" * zeros if ones <= 7 else None)


@pytest.mark.parametrize("padding", ["000", "001", "010", "011", "100", "101", "110"])
def test_padding_of_anything_but_ones_is_refused(padding: str) -> None:
    assert outcome(bits_to_bytes("00000" + padding)) is None
    assert outcome(bits_to_bytes("00000" + "111")) == b"0"


@pytest.mark.parametrize("before", range(9))
def test_eos_is_refused_wherever_it_ends(before: int) -> None:
    bits = "00000" * before + "1" * 30
    assert outcome(bits_to_bytes(bits + "00000" * 8 + "1" * (-len(bits) % 8))) is None
    assert outcome(bits_to_bytes(bits + "1" * (-len(bits) % 8))) is None


@given(st.binary(max_size=60), st.integers(0, 70))
def test_a_result_is_no_longer_than_wanted_by_more_than_two_bytes(text: bytes, bytes_max: int) -> None:
    coded = huffman_coded(text)
    found = huffman.decode(coded, 0, len(coded), bytes_max)
    if len(text) <= bytes_max:
        assert found == text
    else:
        assert text.startswith(found)
        assert bytes_max < len(found) <= bytes_max + 2


def test_what_is_not_kept_is_judged_all_the_same() -> None:
    coded = huffman_coded(b"0" * 800)
    assert len(huffman.decode(coded, 0, len(coded), 0)) <= 2
    with pytest.raises(HpackError):
        huffman.decode(coded + b"\xff\xff\xff\xff", 0, len(coded) + 4, 0)
    with pytest.raises(HpackError):
        huffman.decode(coded + b"\x00\x00", 0, len(coded) + 1, 0)


@given(st.binary(max_size=8), st.binary(max_size=30), st.binary(max_size=8))
def test_only_the_bytes_between_start_and_end_count(before: bytes, text: bytes, after: bytes) -> None:
    coded = huffman_coded(text)
    data = before + coded + after
    assert huffman.decode(data, len(before), len(before) + len(coded), 1000) == text
