"""Header blocks decoded: the examples of RFC 7541, its limits, and attacks on a decoder's memory and time."""

from __future__ import annotations

import importlib
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http2.field import Field
from activator.codec.http2.hpack.decoder import HpackDecoder, HpackError
from activator.codec.http2.hpack.static_table import ENTRIES
from activator.codec.message import Headers
from tests.codec.http2.hpack_examples import (
    CONNECTIONS,
    SINGLE,
    Table,
    decoded,
    integer,
    literal,
    pairs,
    string,
    table_of,
    update,
)

LARGE = 1 << 40


@pytest.mark.parametrize(("section", "block", "fields", "table"), SINGLE)
def test_single_fields_of_appendix_c(section: str, block: str, fields: Headers, table: Table) -> None:
    decoder = HpackDecoder()
    found: list[Field] = []
    data = bytes.fromhex(block)
    assert decoder.decode(data, 0, len(data), found, LARGE, LARGE)
    assert pairs(found) == fields
    assert table_of(decoder) == table
    assert found[0].never_indexed is (section == "C.2.3")


@pytest.mark.parametrize(("section", "size", "blocks", "after"), CONNECTIONS)
def test_connections_of_appendix_c(
    section: str, size: int, blocks: list[str], after: list[tuple[Headers, Table]]
) -> None:
    decoder = HpackDecoder()
    if size != 4096:
        assert decoded(decoder, update(size)) == []
    for block, (fields, table) in zip(blocks, after, strict=True):
        assert decoded(decoder, bytes.fromhex(block)) == fields, section
        assert table_of(decoder) == table
        assert decoder.table_bytes == sum(entry[2] for entry in table)


# --- what is refused ---

BAD = [
    ("an index of 0", b"\x80"),
    ("an index beyond the static table, of an empty dynamic one", b"\xbe"),
    ("an index beyond the dynamic table", literal(b"a", b"b", 0x40) + b"\xbf"),
    ("an index far beyond", b"\xff\xff\xff\xff\xff\x0f"),
    ("a name of an index beyond the table", b"\x7e\x01a"),
    ("a name of an index beyond the table, not indexed", b"\x0f\x30\x01a"),
    ("an integer without an end", b"\xff"),
    ("an integer without an end, later", b"\xff\x80\x80"),
    ("an integer of six bytes", b"\xff\x80\x80\x80\x80\x80\x00"),
    ("an integer that overflows", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ("a literal without a name", b"\x00"),
    ("a literal without a value", b"\x00\x01a"),
    ("a literal of an indexed name without a value", b"\x41"),
    ("a name that is longer than the block", b"\x00\x05a"),
    ("a value that is longer than the block", b"\x00\x01a\x02b"),
    ("a value that is longer than any block", b"\x00\x01a\x7f\xff\xff\xff\xff\x0f"),
    ("a length without an end", b"\x00\x7f\xff"),
    ("a table size above the default", update(4097)),
    ("a table size above any", b"\x3f\xff\xff\xff\xff\x7f"),
    ("a table size without an end", b"\x3f"),
    ("a table size after a field", b"\x82" + update(0)),
    ("a table size after a literal", literal(b"a", b"b") + update(0)),
    ("three table sizes", update(0) + update(1) + update(2)),
    ("Huffman: EOS in a name", b"\x00\x84\xff\xff\xff\xff\x00"),
    ("Huffman: a padding of zeros in a value", b"\x00\x01a\x81\x00"),
    ("Huffman: a padding of 8 bits", b"\x00\x01a\x81\xff"),
]


@pytest.mark.parametrize(("what", "block"), BAD, ids=[what for what, _ in BAD])
@pytest.mark.parametrize("limits", [(LARGE, LARGE), (0, 0), (LARGE, 0), (0, LARGE)])
def test_refused_whether_or_not_fields_are_kept(what: str, block: bytes, limits: tuple[int, int]) -> None:
    with pytest.raises(HpackError):
        HpackDecoder().decode(block, 0, len(block), [], *limits)


@pytest.mark.parametrize("block", [block for _, block, *_ in SINGLE] + [b for _, _, bs, _ in CONNECTIONS for b in bs])
def test_a_block_that_is_cut_within_a_field_is_refused(block: str) -> None:
    """Or it has fewer fields."""
    data = bytes.fromhex(block)
    whole: list[Field] = []
    prepared = literal(b"a", b"b", 0x40) * 8
    for end in range(len(data) + 1):
        decoder = HpackDecoder()
        decoded(decoder, prepared)
        found: list[Field] = []
        try:
            decoder.decode(data, 0, end, found, LARGE, LARGE)
        except HpackError:
            continue
        assert end == len(data) or len(found) < len(data)
        whole = found
    assert whole


def test_bytes_outside_of_the_block_do_not_count() -> None:
    decoder = HpackDecoder()
    fields: list[Field] = []
    assert decoder.decode(b"\x80\x00\x82\x86\x80", 2, 4, fields, LARGE, LARGE)
    assert pairs(fields) == [(b":method", b"GET"), (b":scheme", b"http")]
    assert decoder.decode(b"\x80", 1, 1, fields, LARGE, LARGE)
    with pytest.raises(HpackError):
        decoder.decode(literal(b"name", b"value"), 0, 8, [], LARGE, LARGE)


# --- the table ---


def test_two_size_updates_at_the_start_of_a_block() -> None:
    decoder = HpackDecoder(8192)
    decoded(decoder, literal(b"a", b"b", 0x40))
    assert decoded(decoder, update(0) + update(8192) + b"\x82") == [(b":method", b"GET")]
    assert decoder.table() == []
    assert (decoder.table_bytes, decoder.table_bytes_max) == (0, 8192)
    with pytest.raises(HpackError):
        decoded(decoder, update(8193))


def test_a_small_table_cannot_be_demanded() -> None:
    with pytest.raises(ValueError, match="smaller"):
        HpackDecoder(4095)


def test_eviction_is_exact() -> None:
    """RFC 7541 4.1, 4.4."""
    decoder = HpackDecoder()
    decoded(decoder, update(100))
    decoded(decoder, literal(b"aa", b"xxxxxxxxxxxxxxxx", 0x40))
    decoded(decoder, literal(b"bb", b"yyyyyyyyyyyyyyyy", 0x40))
    assert decoder.table_bytes == 100
    decoded(decoder, literal(b"c", b"", 0x40))
    assert [entry[:2] for entry in table_of(decoder)] == [(b"c", b""), (b"bb", b"yyyyyyyyyyyyyyyy")]
    decoded(decoder, update(82))
    assert [entry[0] for entry in table_of(decoder)] == [b"c"]
    assert decoder.table_bytes == 33


def test_an_entry_that_is_larger_than_the_table_empties_it() -> None:
    decoder = HpackDecoder()
    decoded(decoder, update(100) + literal(b"a", b"b", 0x40))
    value = b"x" * 68
    assert decoded(decoder, literal(b"a", value, 0x40)) == [(b"a", value)]
    assert decoder.table() == []
    assert decoded(decoder, literal(b"a", value[1:], 0x40)) == [(b"a", value[1:])]
    assert decoder.table_bytes == 100


def test_a_name_may_be_that_of_the_entry_that_goes() -> None:
    decoder = HpackDecoder()
    decoded(decoder, update(60) + literal(b"name", b"x" * 20, 0x40))
    assert decoded(decoder, b"\x7e" + string(b"y" * 20)) == [(b"name", b"y" * 20)]
    assert [entry[:2] for entry in table_of(decoder)] == [(b"name", b"y" * 20)]


def test_a_long_life_of_the_table() -> None:
    """Against a list that is shifted at each insertion."""
    decoder = HpackDecoder()
    model: Headers = []
    for number in range(3000):
        pair = (b"n%d" % (number % 7), b"v" * (number * 37 % 90))
        decoded(decoder, literal(*pair, 0x40))
        model.insert(0, pair)
        while sum(len(name) + len(value) + 32 for name, value in model) > 4096:
            model.pop()
        assert pairs(decoder.table()) == model
        for index in (0, len(model) // 2, len(model) - 1):
            assert decoded(decoder, integer(62 + index, 7, 0x80)) == [model[index]]
        with pytest.raises(HpackError):
            decoded(decoder, integer(62 + len(model), 7, 0x80))


def test_fields_of_the_table_are_shared() -> None:
    decoder = HpackDecoder()
    fields: list[Field] = []
    data = literal(b"a", b"b", 0x40) + b"\xbe\xbe"
    assert decoder.decode(data, 0, len(data), fields, LARGE, LARGE)
    assert fields[0] is fields[1] is fields[2]


# --- literals that are shared ---


@given(st.lists(st.tuples(st.sampled_from([1, 4, 5, 23, 28, 32, 44]), st.text("ab0", max_size=6), st.booleans())))
def test_a_literal_that_came_before_is_the_same_field_again(literals: list[tuple[int, str, bool]]) -> None:
    """Of few and similar values, many of which have the same place."""
    decoder = HpackDecoder()
    for index, text, coded in literals:
        name, value = ENTRIES[index - 1][0], text.encode()
        block = integer(index, 4, 0) + string(value, coded)
        for bytes_max in (0, len(name) + len(value) + 3, len(name) + len(value) + 4, 1000, 0):
            fields: list[Field] = []
            is_whole = decoder.decode(block, 0, len(block), fields, bytes_max, 10)
            assert is_whole is (bytes_max >= len(name) + len(value) + 4)
            assert pairs(fields) == ([(name, value)] if is_whole else [])
            assert not any(field.never_indexed for field in fields)
        fields = []
        never = integer(index, 4, 0x10) + string(value, coded)
        assert decoder.decode(never, 0, len(never), fields, 1000, 10)
        assert fields[0].never_indexed
        for end in range(len(block)):
            if end > 0:
                with pytest.raises(HpackError):
                    decoder.decode(block, 0, end, [], 1000, 10)


def test_what_is_shared_is_bounded_and_holds_no_credentials() -> None:
    module = importlib.import_module("activator.codec.http2.hpack.decoder")
    decoder = HpackDecoder()
    for number in range(300):
        for index in range(1, 62):
            decoded(decoder, integer(index, 4, 0) + string(b"%d" % number + b"x" * (number % 300), number % 2 == 0))
    assert len(module._SHARED) == len(module._SHARED_CODES) == 256
    assert max(map(len, module._SHARED_CODES)) <= 127
    assert max(field.size for field in module._SHARED) < 300
    names = {field.name for field in module._SHARED}
    assert len(names) > 10
    assert not names & {b"authorization", b"proxy-authorization", b"cookie", b"set-cookie"}


# --- literals of one connection ---


def test_credentials_that_come_again_are_kept_for_their_connection_alone() -> None:
    """A short cookie and a token, as nghttp2 sends them: never to be indexed."""
    block = b"".join(
        integer(index, 4, flags) + string(value, coded)
        for index, value, flags, coded in [
            (23, b"Bearer " + b"0123456789abcdef" * 2, 0x10, True),
            (32, b"a=1", 0x10, False),
            (49, b"Basic YTpi", 0, True),
            (23, b"x" * 400, 0x10, True),
        ]
    )
    one, other = HpackDecoder(), HpackDecoder()
    found: list[list[Field]] = [[], [], []]
    for decoder, fields in zip((one, one, other), found, strict=True):
        assert decoder.decode(block, 0, len(block), fields, LARGE, LARGE)
    assert pairs(found[0]) == pairs(found[1]) == pairs(found[2])
    assert all(first is again for first, again in zip(found[0], found[1], strict=True))
    assert not any(first is foreign for first, foreign in zip(found[0], found[2], strict=True))
    assert [field.never_indexed for field in found[1]] == [True, True, False, True]
    assert one.table() == []
    for end in range(len(block)):
        fields = []
        try:
            one.decode(block, 0, end, fields, LARGE, LARGE)
        except HpackError:
            continue
        assert pairs(fields) == pairs(found[0])[: len(fields)]
    assert not one.decode(block, 0, len(block), [], 60, LARGE), "a limit holds for what is kept, too"


def test_what_is_kept_of_a_connection_is_bounded() -> None:
    decoder = HpackDecoder()
    module = importlib.import_module("activator.codec.http2.hpack.decoder")
    most = 0
    for number in range(300):
        value = b"%d" % number + b"x" * (number * 7)
        for _ in range(2):
            assert decoded(decoder, integer(23, 4, 0x10) + string(value)) == [(b"authorization", value)]
            kept = sum(map(len, decoder._own))
            assert kept == decoder._own_bytes <= 1024
            most = max(most, kept)
    assert most > 512
    assert module._NO_OWN == {}


# --- a block that comes again ---


def section(decoder: HpackDecoder, block: bytes, bytes_max: int = LARGE) -> list[Field]:
    return decoder.section(b"x" + block + b"yz", 1, 1 + len(block), bytes_max, 100)


def test_the_same_block_has_the_same_fields_while_the_table_is_as_it_was() -> None:
    decoder = HpackDecoder()
    for name in (b"a", b"b"):
        section(decoder, literal(name, b"1", 0x40))
    block = b"\x82\xbe\xbf"  # :method: GET, the newest entry, the one before
    first = section(decoder, block)
    assert pairs(first) == [(b":method", b"GET"), (b"b", b"1"), (b"a", b"1")]
    assert section(decoder, block) is first and decoder.is_whole
    assert section(decoder, b"\x82\xbe") is not first
    assert section(decoder, block) is not first
    section(decoder, literal(b"c", b"1", 0x40))
    assert pairs(section(decoder, block)) == [(b":method", b"GET"), (b"c", b"1"), (b"b", b"1")]
    section(decoder, block)
    section(decoder, update(0))
    with pytest.raises(HpackError):
        section(decoder, block)


def test_a_block_that_changes_the_table_is_read_each_time() -> None:
    decoder = HpackDecoder()
    block = literal(b"a", b"1", 0x40) + b"\xbe"
    for count in (1, 2, 3):
        assert pairs(section(decoder, block)) == [(b"a", b"1")] * 2
        assert len(decoder.table()) == count
    empty = update(0) + update(4096)
    assert section(decoder, empty) == section(decoder, empty) == []
    assert decoder.table() == []


def test_a_block_of_which_not_all_is_kept_is_not_whole_the_second_time_either() -> None:
    decoder = HpackDecoder()
    for _ in range(3):
        assert pairs(section(decoder, b"\x82\x84", 15)) == [(b":method", b"GET")]
        assert not decoder.is_whole
    assert section(decoder, b"") == [] and decoder.is_whole
    large = literal(b"a", b"x" * 300)
    assert section(decoder, large) is not section(decoder, large), "nothing large is kept"


# --- limits of a head ---


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("flags", [0, 0x10, 0x40])
def test_limits_are_exact(coded: bool, flags: int) -> None:
    block = b"\x82" + literal(b"name", b"value", flags, coded) + b"\x86"
    sizes = [7 + 3 + 4, 4 + 5 + 4, 7 + 4 + 4]
    names = [b":method", b"name", b":scheme"]
    for bytes_max in range(sum(sizes) + 2):
        for fields_max in range(3):
            decoder = HpackDecoder()
            fields: list[Field] = []
            is_whole = decoder.decode(block, 0, len(block), fields, bytes_max, fields_max)
            count = 0
            while count < (3 if fields_max else 1) and sum(sizes[: count + 1]) <= bytes_max:
                count += 1
            assert [field.name for field in fields] == names[:count]
            assert is_whole is (count == 3)
            assert table_of(decoder) == ([(b"name", b"value", 41)] if flags == 0x40 else [])


def test_the_crumbs_of_a_cookie_are_one_field() -> None:
    """A browser with 180 cookies sends 180 fields (RFC 9113 8.2.3)."""
    block = b"\x82" + b"".join([literal(b"cookie", b"c%d=v" % number) for number in range(180)])
    fields: list[Field] = []
    assert HpackDecoder().decode(block, 0, len(block), fields, 10_000, 1)
    assert len(fields) == 181
    block += literal(b"name", b"value")
    assert not HpackDecoder().decode(block, 0, len(block), [], 10_000, 1)
    assert not HpackDecoder().decode(block, 0, len(block), [], 1_000, 100), "their bytes count"


def test_after_the_limit_nothing_more_is_appended_however_small() -> None:
    fields: list[Field] = []
    block = literal(b"a", b"x" * 100) + b"\x82"
    assert not HpackDecoder().decode(block, 0, len(block), fields, 50, 10)
    assert fields == []


@pytest.mark.parametrize("coded", [False, True])
def test_large_literals_do_to_the_table_what_they_must(coded: bool) -> None:
    for name, value in [(b"n" * 9000, b""), (b"n", b"v" * 9000), (b"n" * 3000, b"v" * 3000), (b"n", b"v" * 4064)]:
        decoder = HpackDecoder()
        decoded(decoder, literal(b"a", b"b", 0x40))
        block = literal(name, value, 0x40, coded)
        assert not decoder.decode(block, 0, len(block), [], 100, 100)
        assert decoder.table() == []
        assert decoder.table_bytes == 0
        block = literal(name, value, 0, coded) + literal(b"a", b"b", 0x40)
        assert not decoder.decode(block, 0, len(block), [], 100, 100)
        assert table_of(decoder) == [(b"a", b"b", 34)]
    # As large as the table.
    decoder = HpackDecoder()
    block = literal(b"n", b"v" * 4063, 0x40, coded)
    assert not decoder.decode(block, 0, len(block), [], 100, 100)
    assert decoder.table_bytes == 4096


def test_a_bomb_of_references() -> None:
    """One entry of 4 KB, referred to 16,000 times: 64 MB as a list of fields."""
    decoder = HpackDecoder()
    entry = literal(b"n", b"v" * 4000, 0x40)
    decoded(decoder, entry)
    bomb = b"\xbe" * 16_000
    fields: list[Field] = []
    tracemalloc.start()
    try:
        start = time.thread_time()
        assert not decoder.decode(bomb, 0, len(bomb), fields, 65_536, 100)
        took_s = time.thread_time() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(fields) == 16
    assert peak < 20_000
    assert took_s < 1.0
    assert decoder.table_bytes == 4033


def test_a_bomb_of_names() -> None:
    """Literals that each refer to a name of 4 KB and have an empty value."""
    decoder = HpackDecoder()
    decoded(decoder, literal(b"n" * 4000, b"", 0x40))
    bomb = (integer(62, 4, 0) + b"\x00") * 10_000
    fields: list[Field] = []
    tracemalloc.start()
    try:
        assert not decoder.decode(bomb, 0, len(bomb), fields, 65_536, 100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(fields) == 16
    assert peak < 100_000


def test_entries_in_the_bomb_of_names_are_bounded_by_the_table() -> None:
    decoder = HpackDecoder()
    decoded(decoder, literal(b"n" * 2000, b"", 0x40))
    bomb = (b"\x7e" + b"\x00") * 10_000
    assert not decoder.decode(bomb, 0, len(bomb), [], 0, 0)
    assert decoder.table_bytes == 2 * 2032


def test_a_full_table_takes_no_more_memory_than_its_entries_can() -> None:
    """Of the smallest entries, which RFC 7541 4.1 counts with 33 bytes each; and after many were evicted."""
    decoder = HpackDecoder()
    entries = [literal(b"%c" % (97 + number % 26), b"", 0x40) for number in range(1000)]
    tracemalloc.start()
    try:
        for entry in entries:
            decoder.decode(entry, 0, len(entry), [], 100, 100)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(decoder.table()) == 4096 // 33
    assert kept < 60_000, kept
