"""Encoder and decoder against those of the `hpack` package: block by block, fields and tables."""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKDecodingError, NeverIndexedHeaderTuple
from hypothesis import example, given
from hypothesis import strategies as st

from activator.codec.http2.field import COOKIE, ORDINARY, PSEUDO_MAX, Field, name_kind
from activator.codec.http2.hpack.decoder import HpackDecoder, HpackError
from activator.codec.http2.hpack.encoder import HpackEncoder, literal_start
from activator.codec.http2.hpack.static_table import ENTRIES
from activator.codec.message import Fields, Headers
from tests.codec.http2.hpack_examples import decoded, integer, literal, pairs, string, update

LARGE = 1 << 40

names = st.one_of(
    st.sampled_from([name for name, _ in ENTRIES]),
    st.sampled_from([b"x-a", b"x-b", b"x-request-id", b"grpc-timeout", b"n" * 130]),
    st.binary(max_size=12),
)
values = st.one_of(
    st.sampled_from([value for _, value in ENTRIES if value]),
    st.sampled_from([b"1", b"2", b"application/grpc", b"v" * 127, b"v" * 1000, b"v" * 5000, b"\xff" * 200]),
    st.binary(max_size=20),
)
# Few different ones in one example, so that they come again.
pools = st.lists(st.one_of(st.tuples(names, values), st.sampled_from(ENTRIES)), min_size=1, max_size=12)
sizes = st.sampled_from([0, 31, 32, 50, 100, 200, 1000, 4095, 4096])


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[int], list[tuple[bytes, bytes, bool]], bool]]:
    """Blocks: changes of the table's size before it, fields with whether they are sensitive, and Huffman code."""
    pool = draw(pools)
    field = st.builds(lambda pair, never: (*pair, never), st.sampled_from(pool), st.sampled_from([False] * 9 + [True]))
    block = st.tuples(
        st.lists(sizes, max_size=2).filter(lambda found: len(found) < 2 or found[0] < found[1]),
        st.lists(field, max_size=12),
        st.booleans(),
    )
    return draw(
        st.lists(st.one_of(block, st.tuples(st.just([]), st.lists(field, max_size=12), st.booleans())), max_size=8)
    )


def same_tables(ours: HpackDecoder, theirs: Decoder) -> None:
    assert pairs(ours.table()) == [(bytes(name), bytes(value)) for name, value in theirs.header_table.dynamic_entries]
    assert ours.table_bytes_max == theirs.header_table.maxsize
    assert ours.table_bytes == sum(field.size for field in ours.table())
    assert ours.table_bytes <= ours.table_bytes_max


@given(conversations())
def test_what_hpack_encodes_is_decoded(blocks: list[tuple[list[int], list[tuple[bytes, bytes, bool]], bool]]) -> None:
    encoder, decoder, oracle = Encoder(), HpackDecoder(), Decoder()
    for changes, fields, huffman in blocks:
        for size in changes:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        found: list[Field] = []
        assert decoder.decode(block, 0, len(block), found, LARGE, LARGE)
        assert pairs(found) == [field[:2] for field in fields]
        theirs = list(oracle.decode(block, raw=True))
        assert [field.never_indexed for field in found] == [isinstance(one, NeverIndexedHeaderTuple) for one in theirs]
        same_tables(decoder, oracle)


@given(conversations(), st.integers(0, 400), st.integers(0, 8))
def test_limits_change_nothing_but_what_is_kept(
    blocks: list[tuple[list[int], list[tuple[bytes, bytes, bool]], bool]], bytes_max: int, fields_max: int
) -> None:
    encoder, limited, unlimited = Encoder(), HpackDecoder(), HpackDecoder()
    for changes, fields, huffman in blocks:
        for size in changes:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        kept: list[Field] = []
        is_whole = limited.decode(block, 0, len(block), kept, bytes_max, fields_max)
        decoded(unlimited, block)
        count = 0
        used = 0
        counted = 0
        has_cookie = False
        for name, value, _ in fields:
            used += len(name) + len(value) + 4
            kind = Field(name, value, name_kind(name), False).kind
            if kind == COOKIE:
                counted += not has_cookie
                has_cookie = True
            elif not ORDINARY < kind <= PSEUDO_MAX:
                counted += 1
            if used > bytes_max or counted > fields_max:
                break
            count += 1
        assert pairs(kept) == [field[:2] for field in fields][:count]
        assert is_whole is (count == len(fields))
        assert pairs(limited.table()) == pairs(unlimited.table())
        assert limited.table_bytes == unlimited.table_bytes


# --- what no encoder would write ---

parts = st.one_of(
    st.builds(lambda index: integer(index, 7, 0x80), st.integers(0, 70)),
    st.builds(literal, names, values, st.sampled_from([0, 0x10, 0x40]), st.booleans()),
    st.builds(lambda index, value: integer(index, 6, 0x40) + string(value), st.integers(1, 66), values),
    st.builds(lambda index, value: integer(index, 4, 0) + string(value), st.integers(1, 66), values),
    st.builds(lambda index, value: integer(index, 4, 0x10) + string(value, True), st.integers(1, 66), values),
    st.builds(update, st.sampled_from([0, 40, 100, 4096, 4097])),
    st.binary(max_size=6),
)
made = st.builds(
    lambda updates, found: b"".join(updates + found),
    st.lists(st.builds(update, st.sampled_from([0, 40, 100, 4096])), max_size=2),
    st.lists(parts, max_size=8),
)
mutated = st.builds(
    lambda block, at, byte: block[:at] + byte + block[at + len(byte) :], made, st.integers(0, 60), st.binary(max_size=2)
)


def oracle_decoded(oracle: Decoder, block: bytes) -> Headers | None:
    """hpack fails with other errors than its own where a string ends right behind its length."""
    try:
        return [(bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True)]
    except (HPACKDecodingError, IndexError):
        return None


# RFC 7541 5.1: integers beyond an implementation's limits, in value or in length, must be errors; hpack has no limit.
# RFC 7541 4.2: at most two size updates; hpack takes any number.
REFUSED_BY_US_ALONE = ("an integer of more bytes", "more than two table size updates")


def our_decoded(decoder: HpackDecoder, block: bytes) -> tuple[Headers | None, str]:
    """The fields, or None and why."""
    try:
        return decoded(decoder, block), ""
    except HpackError as error:
        return None, str(error)


@given(st.lists(st.one_of(made, mutated, st.binary(max_size=30)), min_size=1, max_size=6))
@example([update(0) + update(0) + update(0)])
@example([b"\xff\x80\x80\x80\x80\x80\x00"])
@example([b"\x00"])
@example([b"\x00\x01a"])
def test_any_block_is_judged_alike(blocks: list[bytes]) -> None:
    decoder, oracle = HpackDecoder(), Decoder(1 << 30)
    for block in blocks:
        theirs = oracle_decoded(oracle, block)
        ours, why = our_decoded(decoder, block)
        if ours is None:
            assert theirs is None or why.startswith(REFUSED_BY_US_ALONE), (block, why)
            return
        assert ours == theirs, block
        same_tables(decoder, oracle)


def section_of(decoder: HpackDecoder, block: bytes) -> tuple[list[Field] | None, str]:
    """The fields, or None and why."""
    try:
        return decoder.section(block, 0, len(block), LARGE, LARGE), ""
    except HpackError as error:
        return None, str(error)


@given(st.lists(made, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
@example([b"\x1f\x08\x01a\xbe", literal(b"a", b"1", 0x40)], [1, 0, 0, 1, 0])
@example([literal(b"a", b"1", 0x40), b"\xbe"], [0, 0, 1, 0, 1])
def test_blocks_that_come_again_are_judged_alike(blocks: list[bytes], order: list[int]) -> None:
    """What is kept of the block before, and of literals, changes nothing."""
    decoder, oracle = HpackDecoder(), Decoder(1 << 30)
    for number in order:
        block = blocks[number % len(blocks)]
        try:
            theirs = list(oracle.decode(block, raw=True))
        except (HPACKDecodingError, IndexError):
            return
        ours, why = section_of(decoder, block)
        if ours is None:
            assert why.startswith(REFUSED_BY_US_ALONE), (block, why)
            return
        assert decoder.is_whole and pairs(ours) == [(bytes(name), bytes(value)) for name, value in theirs]
        by_name = [one.never_indexed for one in ours]
        assert by_name == [isinstance(one, NeverIndexedHeaderTuple) for one in theirs]
        same_tables(decoder, oracle)


# --- our encoder ---

line_names = st.one_of(
    st.sampled_from([name.title() for name, _ in ENTRIES if not name.startswith(b":")]),
    st.sampled_from([b"X-A", b"x-a", b"X-B", b"Authorization", b"Cookie", b"N" * 130, b"Skipped", b"skipped"]),
)
line_values = st.one_of(
    st.sampled_from([b"gzip, deflate", b"1", b"", b"v" * 126, b"v" * 127, b"v" * 128, b"v" * 700, b"v" * 3000]),
    st.integers(0, 5).map(lambda number: b"value %d" % number),
)
lines = st.builds(
    lambda name, before, value, after: name + b":" + before + value + after,
    line_names,
    st.sampled_from([b" ", b" ", b"", b" \t", b" " * 100]),
    line_values,
    st.sampled_from([b"", b"", b" "]),
)
pseudo = st.sampled_from(
    [(b":status", b"200"), (b":status", b"201"), (b":path", b"/"), (b":path", b"/a"), (b":path", b"/b")]
)
settings_sizes = st.sampled_from([0, 33, 60, 100, 300, 1000, 4096, 65536])


@st.composite
def answers(draw: st.DrawFn) -> list[tuple[list[int], Headers, list[bytes], list[int]]]:
    """Blocks: sizes that the peer allows before it, pseudo-header fields, lines, and which were never indexed."""
    pool = draw(st.lists(lines, min_size=1, max_size=8))
    block = st.tuples(
        st.one_of(st.just([]), st.lists(settings_sizes, max_size=3)),
        st.lists(pseudo, max_size=3),
        st.lists(st.one_of(st.sampled_from(pool), lines), max_size=10),
        st.one_of(st.just([]), st.lists(st.integers(0, 9), max_size=2)),
    )
    return draw(st.lists(block, max_size=12))


SENSITIVE = {b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"}


@given(answers())
def test_what_is_encoded_hpack_decodes_and_so_do_we(
    blocks: list[tuple[list[int], Headers, list[bytes], list[int]]],
) -> None:
    encoder, decoder, oracle = HpackEncoder(frozenset({b"skipped"})), HpackDecoder(), Decoder(1 << 30)
    for changes, pseudos, block_lines, never in blocks:
        for size in changes:
            encoder.set_table_bytes_max(size)
        never_lines = frozenset(b"\r\n" + block_lines[at] for at in never if at < len(block_lines))
        lines_block = b"".join(b"\r\n" + line for line in block_lines)
        expected = [(name.lower(), value) for name, value in Fields(lines_block).pairs() if name.lower() != b"skipped"]
        never_pairs = {(name.lower(), value) for line in never_lines for name, value in Fields(line).pairs()}
        for name, value in pseudos:
            encoder.add(name, value)
        encoder.add_lines(lines_block, never_lines)
        once = [(b"x-request-id", b"%d" % len(block_lines)), (b"location", b"/" * len(changes))]
        for name, value in once:
            encoder.add_once(literal_start(name), value)
        encoder.add(b"x-secret", b"s", True)
        data = encoder.finish()
        theirs = list(oracle.decode(data, raw=True))
        assert [tuple(map(bytes, pair)) for pair in theirs] == [*pseudos, *expected, *once, (b"x-secret", b"s")]
        found: list[Field] = []
        assert decoder.decode(data, 0, len(data), found, LARGE, LARGE)
        assert pairs(found) == [*pseudos, *expected, *once, (b"x-secret", b"s")]
        for field in found:
            must = field.name in SENSITIVE or field.name == b"x-secret"
            assert not must or field.never_indexed
            assert must or not field.never_indexed or (field.name, field.value) in never_pairs
        same_tables(decoder, oracle)
        assert encoder.table_bytes == decoder.table_bytes
        assert encoder.table_length == len(decoder.table())
        assert not {field.name for field in decoder.table()} & SENSITIVE
