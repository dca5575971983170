"""An HPACK encoder: the state of one direction of one connection (RFC 7541).

Rules
  1. Most fields of a head were in the previous head, as the same bytes and in the same order. So lines are not parsed:
     each is compared with the line that last followed its predecessor (40 ns, compiled), then looked up as a whole
     (100 ns). A block of lines that was encoded before, with an unchanged table, takes one comparison.
  2. A line is inserted into the table when it comes for the second time within a short while, so that values that occur
     once (ids, dates, lengths) evict nothing. The encoder keeps hashes of the last 32 to 64 lines that were not in the
     table. A field that always differs is not looked up (`add_once` saves 0.7 of the 11 us of a proxied request).
  3. Credentials, and fields received as never indexed, are literals that are never indexed (RFC 7541 6.2.3, 7.1.3).
  4. Huffman code is not used: it would take more time than the rest of the encoding and save a third of the literals.
  5. The table takes at most 4 KB, whatever the peer allows, and so do the lines that are kept with it. At most four
     blocks, of at most 2 KB each, are cached.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http1.fields import end_of_line
from activator.codec.http2.field import OVERHEAD
from activator.codec.http2.hpack import static_table

TABLE_BYTES_MAX: Final = 4096  # the largest table that is used, even if the peer allows more
# Credentials are always sent as literals that are never indexed.
NEVER_INDEXED: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})

_STATIC_MAX: Final = static_table.LENGTH
_ENTRIES_MAX: Final = 128  # as many as fit with empty names and values; a power of two
_HASHES_MAX: Final = 32  # hashes per generation of lines that are not in the table; two generations are kept
_BLOCKS_MAX: Final = 4
_BLOCK_BYTES_MAX: Final = 2048
_SHORT: Final = 127  # a length from this on is encoded in more than one byte
_NO_LINES: Final[frozenset[bytes]] = frozenset()
_OPTIONAL_SPACE: Final = b" \t"
_COLON: Final = b":"
_CR: Final = 13
_LF: Final = 10


def _integer(value: i64, bits: i64, flags: i64) -> bytes:
    """Return the encoding of an integer with a prefix of `bits` bits (RFC 7541 5.1)."""
    prefix_max: i64 = (1 << bits) - 1
    if value < prefix_max:
        return bytes((flags | value,))
    found = bytearray((flags | prefix_max,))
    value -= prefix_max
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_INDEXED: Final[list[bytes]] = [_integer(index, 7, 0x80) for index in range(_STATIC_MAX + _ENTRIES_MAX + 1)]
# The first bytes of literals, by the static index of the name; with index 0 the name follows (RFC 7541 6.2).
_WITH_INDEXING: Final[list[bytes]] = [_integer(index, 6, 0x40) for index in range(_STATIC_MAX + 1)]
_WITHOUT_INDEXING: Final[list[bytes]] = [_integer(index, 4, 0x00) for index in range(_STATIC_MAX + 1)]
_NEVER: Final[list[bytes]] = [_integer(index, 4, 0x10) for index in range(_STATIC_MAX + 1)]
_LENGTHS: Final[list[bytes]] = [_integer(length, 7, 0) for length in range(_SHORT)]
_STATUSES: Final[list[bytes]] = [b"%d" % status for status in range(1000)]


def literal_start(name: bytes) -> bytes:
    """Return the start of a literal without indexing, up to its value (RFC 7541 6.2.2), for `add_once`.

    The name must be lowered.
    """
    index = _NAMES.get(name, 0)
    if index:
        return _WITHOUT_INDEXING[index]
    return _WITHOUT_INDEXING[0] + _integer(len(name), 7, 0) + name


def _names() -> dict[bytes, int]:
    """Return the first index of each name in the static table."""
    found: dict[bytes, int] = {}
    for index, (name, _) in enumerate(static_table.ENTRIES):
        found.setdefault(name, index + 1)
    return found


_NAMES: Final[dict[bytes, int]] = _names()
# Entries of the static table with a value, by the keys of `add`; and the only such line, in its two usual spellings.
_STATIC: Final[dict[bytes, bytes]] = {
    b"%b\n%b" % (name, value): _INDEXED[index + 1] for index, (name, value) in enumerate(static_table.ENTRIES) if value
}
_STATIC_STATUSES: Final[list[bytes]] = [_STATIC.get(b":status\n%b" % status, b"") for status in _STATUSES]
_STATIC_LINES: Final[dict[bytes, bytes]] = {
    b"\r\naccept-encoding: gzip, deflate": _STATIC[b"accept-encoding\ngzip, deflate"],
    b"\r\nAccept-Encoding: gzip, deflate": _STATIC[b"accept-encoding\ngzip, deflate"],
}


class _Entry:
    """An entry of the dynamic table."""

    def __init__(self, key: bytes, number: i64, size: i64) -> None:
        self.key = key
        self.key_length: i64 = len(key)
        self.number: i64 = number  # the insertion count, from 1
        self.size: i64 = size  # RFC 7541 4.1
        self.follower: i64 = 0  # the number of the line that last followed this one; 0: none


_NO_ENTRY: Final = _Entry(b"", -1, 0)


class _Block:
    """A block of lines and its encoding, which is valid until the table changes."""

    def __init__(self, lines: bytes, encoded: bytes) -> None:
        self.lines = lines
        self.encoded = encoded


class HpackEncoder:
    """The encoder of one connection's header blocks.

    A block is made by calls of the `add` methods, pseudo-header fields first (RFC 9113 8.3), and one `finish`. Every
    block that is begun must be finished, and blocks must be sent in this order, because the peer's table depends on it.
    """

    def __init__(self, skip: frozenset[bytes] = _NO_LINES) -> None:
        """Make an encoder; `add_lines` omits the fields whose lowered names are in `skip`."""
        self._skip = skip
        self._parts: list[bytes] = []  # the current block
        # The keys are lines, with CRLF in front, or the keys that `add` makes.
        self._table: dict[bytes, _Entry] = {}
        self._ring: list[_Entry] = []  # the entries by number, modulo its length; allocated by the first insertion
        self._start = _Entry(b"", 0, 0)  # its follower is the first line of a block
        self._bytes: i64 = 0
        self._inserted: i64 = 0  # the number of insertions
        self._max: i64 = TABLE_BYTES_MAX
        self._announced: i64 = TABLE_BYTES_MAX  # the table size that the peer was last sent
        self._smallest: i64 = TABLE_BYTES_MAX  # the smallest size after that
        self._hashes: set[int] = set()
        self._older_hashes: set[int] = self._hashes
        self._blocks: list[_Block] = []
        self._next_block: i64 = 0
        # The pseudo-header fields of the last request and their encoding, valid until the table changes.
        self._line_method: bytes = b""
        self._line_scheme: bytes = b""
        self._line_authority: bytes = b""
        self._line_path: bytes = b""
        self._line: bytes = b""
        self._line_inserted: i64 = -1
        # The last field of `add` that is in a table, and its encoding: most often the length of a response.
        self._field_name: bytes = b""
        self._field_value: bytes = b""
        self._field: bytes = b""
        self._field_inserted: i64 = -1
        self._is_stable: bool = True  # encoding the current block again would give the same bytes

    # --- the table ---

    @property
    def table_bytes(self) -> int:
        """The size of the table (RFC 7541 4.1)."""
        return self._bytes

    @property
    def table_length(self) -> int:
        """The number of entries of the table."""
        return len(self._table)

    def set_table_bytes_max(self, size: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE. Must not be called between `add` and `finish`.

        The next block begins with the smallest size since the last block, if it was smaller, and the new size
        (RFC 7541 4.2).
        """
        self._max = min(size, TABLE_BYTES_MAX)
        self._smallest = min(self._smallest, self._max)
        self._blocks = []
        self._line_inserted = -1
        self._field_inserted = -1
        self._evict(self._max)

    def _evict(self, bytes_max: i64) -> None:
        """Evict the oldest entries until the table takes at most `bytes_max` (RFC 7541 4.3)."""
        while self._bytes > bytes_max:
            number: i64 = self._inserted - len(self._table) + 1
            oldest = self._ring[number & (_ENTRIES_MAX - 1)]
            self._ring[number & (_ENTRIES_MAX - 1)] = _NO_ENTRY
            self._bytes -= oldest.size
            del self._table[oldest.key]

    def _insert(self, key: bytes, size: i64) -> None:
        """Insert an entry, whose size must be at most that of the table (RFC 7541 4.4)."""
        self._evict(self._max - size)
        if not self._ring:
            self._ring = [_NO_ENTRY] * _ENTRIES_MAX
        self._inserted += 1
        entry = _Entry(key, self._inserted, size)
        self._ring[self._inserted & (_ENTRIES_MAX - 1)] = entry
        self._table[key] = entry
        self._bytes += size
        if self._blocks:
            self._blocks = []

    def _came_before(self, key: bytes) -> bool:
        """Return True if the line is among the recent ones that were not in the table; otherwise record it.

        The comparison is by hash, so that another line may rarely be mistaken for it, which is harmless.
        """
        hashed = hash(key)
        if hashed in self._hashes or hashed in self._older_hashes:
            return True
        if len(self._hashes) >= _HASHES_MAX:
            self._older_hashes = self._hashes
            self._hashes = set()
        self._hashes.add(hashed)
        return False

    # --- a block ---

    def add_status(self, status: i64) -> None:
        """Add `:status`, a number of three digits."""
        static = _STATIC_STATUSES[status]
        if static:
            self._parts.append(static)
        else:
            self.add(b":status", _STATUSES[status])

    def add_once(self, start: bytes, value: bytes) -> None:
        """Add a field whose value differs each time; `start` is the result of `literal_start` for its name."""
        self._parts.append(start)
        self._string(value)

    def add(self, name: bytes, value: bytes, never_indexed: bool = False) -> None:
        """Add a field; the name must be lowered, and the value without surrounding whitespace."""
        if (
            self._field_inserted == self._inserted
            and value == self._field_value
            and name == self._field_name
            and not never_indexed
        ):
            self._parts.append(self._field)
            return
        key = b"%b\n%b" % (name, value)  # differs from all lines, which begin with CRLF
        if not never_indexed:
            found = _STATIC.get(key)
            if found is None:
                entry = self._table.get(key)
                if entry is not None:
                    found = _INDEXED[_STATIC_MAX + 1 + self._inserted - entry.number]
            if found is not None:
                self._parts.append(found)
                self._field_name = name
                self._field_value = value
                self._field = found
                self._field_inserted = self._inserted
                return
        self._literal(key, name, value, never_indexed)

    def add_request_line(self, method: bytes, scheme: bytes, authority: bytes, path: bytes) -> None:
        """Add the four pseudo-header fields of a request; those of the previous request take one comparison."""
        if (
            self._line_inserted == self._inserted
            and path == self._line_path
            and authority == self._line_authority
            and method == self._line_method
            and scheme == self._line_scheme
        ):
            self._parts.append(self._line)
            return
        first_part: i64 = len(self._parts)
        inserted = self._inserted
        self._is_stable = True
        self.add(b":method", method)
        self.add(b":scheme", scheme)
        self.add(b":authority", authority)
        self.add(b":path", path)
        self._line_inserted = -1
        if self._is_stable and inserted == self._inserted:
            self._line_method = method
            self._line_scheme = scheme
            self._line_authority = authority
            self._line_path = path
            self._line = b"".join(self._parts[first_part:])
            self._line_inserted = inserted

    def add_lines(self, block: bytes, never_indexed: frozenset[bytes] = _NO_LINES) -> None:
        """Add the fields of a block of `Fields`, with lowered names and without those in `skip`.

        `never_indexed` holds lines with their CRLF, as in `Field.line`. Fields in NEVER_INDEXED need not be among them.
        If it is not empty, the block is slower to encode, because each line is looked up.
        """
        if not block:
            return
        if not never_indexed:
            for known in self._blocks:
                if known.lines == block:
                    self._parts.append(known.encoded)
                    return
            self._is_stable = True
            first_part: i64 = len(self._parts)
            inserted = self._inserted
            self._lines(block, never_indexed)
            if self._is_stable and inserted == self._inserted and len(block) <= _BLOCK_BYTES_MAX:
                self._keep_block(_Block(block, b"".join(self._parts[first_part:])))
        else:
            self._lines(block, never_indexed)

    def _lines(self, block: bytes, never_indexed: frozenset[bytes]) -> None:
        """Add the fields of a block line by line, as `add_lines` does."""
        parts = self._parts
        previous = self._start
        size: i64 = len(block)
        pos: i64 = 0
        while pos < size:
            if previous.follower > 0:
                entry = self._ring[previous.follower & (_ENTRIES_MAX - 1)]
                end = pos + entry.key_length
                if (
                    entry.number == previous.follower
                    and (end == size or (end + 1 < size and block[end] == _CR and block[end + 1] == _LF))
                    and block[pos:end] == entry.key
                    and not (never_indexed and entry.key in never_indexed)
                ):
                    parts.append(_INDEXED[_STATIC_MAX + 1 + self._inserted - entry.number])
                    previous = entry
                    pos = end
                    continue
            end = end_of_line(block, pos + 2, size)
            if end < 0:
                end = size
            line = block[pos:end]
            pos = end
            known = self._table.get(line)
            if known is None or (never_indexed and line in never_indexed):
                self._new_line(line, line in never_indexed)
            else:
                parts.append(_INDEXED[_STATIC_MAX + 1 + self._inserted - known.number])
                previous.follower = known.number
                previous = known

    def finish(self) -> bytes:
        """Return the complete block; the next `add` begins another one."""
        if self._smallest != self._announced or self._max != self._announced:
            self._parts.insert(0, self._size_updates())
        block = b"".join(self._parts)
        self._parts = []
        return block

    def _size_updates(self) -> bytes:
        """Return the table size updates for the start of a block (RFC 7541 4.2, 6.3)."""
        updates = _integer(self._max, 5, 0x20)
        if self._smallest < self._max and self._smallest < self._announced:
            updates = _integer(self._smallest, 5, 0x20) + updates
        self._announced = self._max
        self._smallest = self._max
        return updates

    def _keep_block(self, block: _Block) -> None:
        """Cache a block; if the cache is full, it replaces the oldest one."""
        if len(self._blocks) < _BLOCKS_MAX:
            self._blocks.append(block)
        else:
            self._blocks[self._next_block] = block
            self._next_block = (self._next_block + 1) % _BLOCKS_MAX

    def _new_line(self, line: bytes, never_indexed: bool) -> None:
        """Add a line, with CRLF in front, that is not in the table or must not be indexed."""
        if not never_indexed:
            static = _STATIC_LINES.get(line)
            if static is not None and not self._skip:
                self._parts.append(static)
                return
        colon: i64 = line.find(_COLON)
        if colon <= 2:
            return  # not a field; the parsers refuse such lines
        name = line[2:colon].lower()
        if name not in self._skip:
            self._literal(line, name, line[colon + 1 :].strip(_OPTIONAL_SPACE), never_indexed)

    def _literal(self, key: bytes, name: bytes, value: bytes, never_indexed: bool) -> None:
        """Add a literal (RFC 7541 6.2)."""
        index: i64 = _NAMES.get(name, 0)
        size: i64 = len(name) + len(value) + OVERHEAD
        if never_indexed or name in NEVER_INDEXED:
            start = _NEVER[index]
        elif size * 2 > self._max or len(key) > size:
            # It would evict half of the table, or most of the line is whitespace, which its size does not include.
            start = _WITHOUT_INDEXING[index]
        elif self._came_before(key):
            start = _WITH_INDEXING[index]
            self._insert(key, size)
        else:
            start = _WITHOUT_INDEXING[index]
            self._is_stable = False
        self._parts.append(start)
        if index == 0:
            self._string(name)
        self._string(value)

    def _string(self, text: bytes) -> None:
        """Add a string literal (RFC 7541 5.2)."""
        length: i64 = len(text)
        self._parts.append(_LENGTHS[length] if length < _SHORT else _integer(length, 7, 0))
        self._parts.append(text)
