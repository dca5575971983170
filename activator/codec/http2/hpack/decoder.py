"""An HPACK decoder: the state of one direction of one connection (RFC 7541).

Rules
  1. A block is always decoded to its end, because the tables of both ends must not differ. Fields beyond the limits of
     a head are not kept: the rest of the block is only scanned, and nothing is copied but entries of the table.
  2. A peer controls no loop but the one over its own bytes, and no memory but the table that it was granted
     (RFC 7541 7.3): an integer has at most 5 bytes after its prefix, and a string is truncated to the bytes that may be
     kept. The state that all connections share (the rows of huffman.py and 256 literals) has a fixed size, and so has
     the cache of a connection's own literals.
  3. A field is made and classified when its literal is decoded. A reference to it is one access to a list: 12 ns,
     compiled. A literal takes 0.1 to 0.2 us, plus 20 ns per byte of Huffman code; a cached literal usually takes 50 ns.
  4. If a block equals the previous one and the table has not changed, the fields are the same (`section`). This is
     common once the table has all fields of a client.
  5. After HpackError the decoder must not be used: the connection ends with COMPRESSION_ERROR (RFC 9113 4.3).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.field import COOKIE, LINE_OVERHEAD, ORDINARY, OVERHEAD, PSEUDO_MAX, Field, name_kind
from activator.codec.http2.hpack import huffman, static_table
from activator.codec.http2.hpack.errors import HpackError

__all__ = ["TABLE_BYTES_DEFAULT", "HpackDecoder", "HpackError"]

TABLE_BYTES_DEFAULT: Final = 4096  # the size before any SETTINGS (RFC 9113 6.5.2)

_STATIC: Final[list[Field]] = static_table.static_fields()
_STATIC_MAX: Final = static_table.LENGTH
_NO_FIELD: Final[Field] = _STATIC[0]
_NO_FIELDS: Final[list[Field]] = []
_LINE_BYTES: Final = OVERHEAD - LINE_OVERHEAD  # the difference between an entry's size and its line in HTTP/1.1
_UPDATES_MAX: Final = 2  # RFC 7541 4.2: the smallest size since the last block, and the final one
_INTEGER_SHIFT_MAX: Final = 28  # five bytes: a larger number exceeds any block, table or index
_AGAIN_BYTES_MAX: Final = 256  # the largest block that is kept for comparison with the next one
_GONE_MAX: Final = 64  # evicted entries that may remain in the list

# The first bits of a representation (RFC 7541 6).
_INDEXED: Final = 0x80
_INDEXING: Final = 0x40
_UPDATE: Final = 0x20
_NEVER: Final = 0x10
_HUFFMAN: Final = 0x80

# A cache of literals without indexing, shared by all connections: 256 fields of at most 127 coded bytes. nghttp2, and
# therefore curl, Node and Envoy, send each :path as such a literal. A lookup takes a tenth of the time of decoding.
# Credentials are not cached here, so that no client can probe for those of others.
_SHARED_MAX: Final = 256  # a power of two
_SHARED: Final[list[Field]] = [_NO_FIELD] * _SHARED_MAX
_SHARED_CODES: Final[list[bytes]] = [b""] * _SHARED_MAX  # the coded value, with its length in front
_SECRETS: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"set-cookie"})
_IS_SHARED: Final[bytes] = bytes(0 if field.name in _SECRETS else 1 for field in _STATIC)
# Credentials and fields that must never be indexed are cached per connection: nghttp2, Node and browsers repeat them
# with each request. The lookup uses a keyed hash of the whole literal, so that its duration does not reveal how much of
# a guess is right. A token of 40 bytes takes 0.1 us instead of 0.7, one of 600 bytes 0.2 us instead of 14.
_OWN_BYTES_MAX: Final = 1024  # coded bytes per connection
_NO_OWN: Final[dict[bytes, Field]] = {}


class HpackDecoder:
    """The decoder of one connection's header blocks, which must be decoded in the order in which they were sent."""

    def __init__(self, table_bytes_max: int = TABLE_BYTES_DEFAULT) -> None:
        """Make a decoder; `table_bytes_max` is our SETTINGS_HEADER_TABLE_SIZE.

        It is at least the default of 4096, because a smaller one would take effect only when the peer acknowledges it.
        """
        if table_bytes_max < TABLE_BYTES_DEFAULT:
            raise ValueError("a table smaller than the default is not supported")
        self._allowed: i64 = table_bytes_max
        self._max: i64 = TABLE_BYTES_DEFAULT  # the size that the peer has chosen
        # The entries begin at `_first`, the newest is last; before `_first` are the places of evicted entries.
        self._entries: list[Field] = []
        self._first: i64 = 0
        self._bytes: i64 = 0
        self._own: dict[bytes, Field] = _NO_OWN  # the connection's own literals, by their bytes
        self._own_bytes: i64 = 0
        # The last block and its fields, if the table has not changed since that block began.
        self._again: bytes = b""
        self._again_fields: list[Field] = _NO_FIELDS
        self._is_stable: bool = True  # the table has not changed since the current block began
        self.is_whole: bool = True  # the last result of `decode` in `section`
        self._pos: i64 = 0  # the position after the last string, integer or literal

    def section(self, data: bytes, start: i64, end: i64, bytes_max: i64, fields_max: i64) -> list[Field]:
        """Return the fields of a block, as `decode` does, in a list that must not be changed.

        A repeated block gives the same list. The limits must be the same in every call. `is_whole` is set to the result
        of `decode`.
        """
        size = end - start
        if size == len(self._again) and size > 0 and data[start:end] == self._again:
            self.is_whole = True
            return self._again_fields
        self._is_stable = True
        fields: list[Field] = []
        self.is_whole = self.decode(data, start, end, fields, bytes_max, fields_max)
        if self._is_stable and self.is_whole and size <= _AGAIN_BYTES_MAX:
            self._again = data[start:end]
            self._again_fields = fields
        return fields

    def _table_changed(self) -> None:
        """Discard the cached block, because the same bytes may now mean other fields."""
        self._is_stable = False
        self._again = b""
        self._again_fields = _NO_FIELDS

    def decode(self, data: bytes, start: i64, end: i64, fields: list[Field], bytes_max: i64, fields_max: i64) -> bool:
        """Decode the complete block data[start:end], and append its fields to `fields`.

        Return False if it has more than `fields_max` fields, or more than `bytes_max` bytes as lines of HTTP/1.1 (name,
        value and 4 bytes per field): then `fields` has only those before the limit was exceeded. The pieces of a cookie
        count as one field (RFC 9113 8.2.3), pseudo-header fields do not count.

        Raises HpackError if the block is malformed, or refers to an entry that does not exist.
        """
        pos = start
        if start < end and data[start] & 0xE0 == _UPDATE:
            pos = self._updates(data, start, end)
        bytes_left = bytes_max
        fields_left = fields_max
        is_whole = True
        has_cookie = False
        while pos < end:
            byte: i64 = data[pos]
            if byte >= _INDEXED:
                index = byte & 0x7F
                pos += 1
                if index == 0x7F:
                    index += self._integer(data, pos, end)
                    pos = self._pos
                if index <= _STATIC_MAX:
                    if index == 0:
                        raise HpackError("an index of 0")
                    field = _STATIC[index]
                else:
                    position = len(self._entries) + _STATIC_MAX - index
                    if position < self._first:
                        raise HpackError("an index beyond the table")
                    field = self._entries[position]
            else:
                field = self._literal(data, pos, end, bytes_left)
                pos = self._pos
            bytes_left -= field.size - _LINE_BYTES
            kind = field.kind
            if kind == COOKIE:
                if not has_cookie:
                    has_cookie = True
                    fields_left -= 1
            elif kind == ORDINARY or kind > PSEUDO_MAX:
                fields_left -= 1
            if bytes_left >= 0 and fields_left >= 0:
                fields.append(field)
            else:
                is_whole = False
                bytes_left = -1  # keep no further field
        return is_whole

    # --- the dynamic table ---

    @property
    def table_bytes(self) -> int:
        """The size of the table (RFC 7541 4.1)."""
        return self._bytes

    @property
    def table_bytes_max(self) -> int:
        """The maximum size that the peer has chosen, within our limit."""
        return self._max

    def table(self) -> list[Field]:
        """Return the entries of the table in the order of their indexes, the newest first."""
        return self._entries[: self._first - 1 if self._first else None : -1]

    def _insert(self, field: Field) -> None:
        """Insert an entry (RFC 7541 4.4)."""
        size = field.size
        self._table_changed()
        if self._bytes + size > self._max:
            self._evict(self._max - size)
            if size > self._max:
                return
        self._entries.append(field)
        self._bytes += size

    def _evict(self, bytes_max: i64) -> None:
        """Evict the oldest entries until the others take at most `bytes_max`, which may be negative."""
        self._table_changed()
        count: i64 = len(self._entries)
        first = self._first
        while first < count and self._bytes > bytes_max:
            self._bytes -= self._entries[first].size
            self._entries[first] = _NO_FIELD
            first += 1
        if first == count:
            self._entries.clear()
            first = 0
        elif first >= _GONE_MAX:
            del self._entries[:first]
            first = 0
        self._first = first

    def _updates(self, data: bytes, start: i64, end: i64) -> i64:
        """Apply the table size updates at the start of a block (RFC 7541 4.2, 6.3). Return the position behind them."""
        pos = start
        count: i64 = 0
        while pos < end and data[pos] & 0xE0 == _UPDATE:
            count += 1
            if count > _UPDATES_MAX:
                raise HpackError("more than two table size updates")
            size: i64 = data[pos] & 0x1F
            pos += 1
            if size == 0x1F:
                size += self._integer(data, pos, end)
                pos = self._pos
            if size > self._allowed:
                raise HpackError("a table size above what we allow")
            self._max = size
            self._evict(size)  # marks the table as changed even if nothing is evicted
        return pos

    # --- literals ---

    def _literal(self, data: bytes, start: i64, end: i64, bytes_left: i64) -> Field:
        """Return the field whose literal begins at `start`, and set `_pos` behind it.

        `bytes_left` is the number of bytes of the head that may still be kept. If the field fits neither into them nor
        into the table, the result is a placeholder that is larger than `bytes_left`.
        """
        first: i64 = data[start]
        keep = max(bytes_left, 0)
        if first >= _INDEXING:
            index = first & 0x3F
            mask: i64 = 0x3F
            if keep < self._max:
                keep = self._max
        else:
            if first >= _UPDATE:
                raise HpackError("a table size update after a field")
            index = first & 0x0F
            mask = 0x0F
        pos = start + 1
        if index == mask:
            index += self._integer(data, pos, end)
            pos = self._pos
        if first < _UPDATE and 0 < index <= _STATIC_MAX and pos < end:
            if first < _NEVER and _IS_SHARED[index] != 0:
                return self._shared(data, pos, end, keep, index)
            return self._own_literal(data, start, pos, end, keep, index)
        if index != 0:
            named = self._field_at(index)
            name = named.name
            kind = named.name_kind
            value = self._string(data, pos, end, keep)
        else:
            name = self._string(data, pos, end, keep)
            if len(name) > keep:
                return self._too_large(data, end, first)
            kind = name_kind(name)
            value = self._string(data, self._pos, end, keep)
        size: i64 = len(name) + len(value)
        if size > keep:
            # The value may be truncated. A field larger than the table evicts all entries and is not inserted.
            if first >= _INDEXING:
                self._evict(-1)
            return _TOO_LARGE
        field = Field(name, value, kind, first & (_INDEXING | _NEVER) == _NEVER)
        if first >= _INDEXING:
            self._insert(field)
        return field

    def _shared(self, data: bytes, start: i64, end: i64, keep: i64, index: i64) -> Field:
        """Return a field without indexing that all connections may share: its value, at `start`, has a static name."""
        size: i64 = data[start]
        size &= 0x7F
        after = start + 1 + size
        if after > end or size == 0x7F:
            cache_slot: i64 = -1
        else:
            last: i64 = data[after - 1]
            middle: i64 = data[start + size // 2]
            before_last: i64 = data[after - 2]
            cache_slot = (last + before_last * 7 + middle * 31 + size * 61 + index) & (_SHARED_MAX - 1)
            known = _SHARED[cache_slot]
            if known.name is _STATIC[index].name and data[start:after] == _SHARED_CODES[cache_slot]:
                self._pos = after
                return known
        static = _STATIC[index]
        value = self._string(data, start, end, keep)
        if len(static.name) + len(value) > keep:
            return _TOO_LARGE
        field = Field(static.name, value, static.name_kind, False)
        if cache_slot >= 0:
            _SHARED[cache_slot] = field
            _SHARED_CODES[cache_slot] = data[start:after]
        return field

    def _own_literal(self, data: bytes, start: i64, value_at: i64, end: i64, keep: i64, index: i64) -> Field:
        """Return the literal at `start`, with a static name and not indexed, from the connection's own cache.

        Its value begins at `value_at`.
        """
        size: i64 = data[value_at]
        size &= 0x7F
        after = value_at + 1 + size
        if size == 0x7F:
            size += self._integer(data, value_at + 1, end)
            after = self._pos + size
        literal = data[start : min(after, end)]
        known = self._own.get(literal)
        if known is not None:
            self._pos = after
            return known
        static = _STATIC[index]
        value = self._string(data, value_at, end, keep)
        if len(static.name) + len(value) > keep:
            return _TOO_LARGE
        first: i64 = data[start]
        field = Field(static.name, value, static.name_kind, first >= _NEVER)
        size = len(literal)
        if size <= _OWN_BYTES_MAX:
            if not self._own or self._own_bytes + size > _OWN_BYTES_MAX:
                self._own = {}
                self._own_bytes = 0
            self._own[literal] = field
            self._own_bytes += size
        return field

    def _too_large(self, data: bytes, end: i64, first: i64) -> Field:
        """Validate the value of a field whose name is too large to be kept. Return the placeholder."""
        self._string(data, self._pos, end, 0)
        if first >= _INDEXING:
            self._evict(-1)
        return _TOO_LARGE

    def _field_at(self, index: i64) -> Field:
        """Return the field at an index that is not 0 (RFC 7541 2.3.3)."""
        if index <= _STATIC_MAX:
            return _STATIC[index]
        position = len(self._entries) + _STATIC_MAX - index
        if position < self._first:
            raise HpackError("an index beyond the table")
        return self._entries[position]

    def _string(self, data: bytes, start: i64, end: i64, keep: i64) -> bytes:
        """Return the string at `start`, and set `_pos` behind it. A long one is truncated to more than `keep` bytes."""
        if start >= end:
            raise HpackError("the block ends within a field")
        first: i64 = data[start]
        size = first & 0x7F
        pos = start + 1
        if size == 0x7F:
            size += self._integer(data, pos, end)
            pos = self._pos
        after = pos + size
        if after > end:
            raise HpackError("the block ends within a string")
        self._pos = after
        if first >= _HUFFMAN:
            return huffman.decode(data, pos, after, keep)
        return data[pos : pos + keep + 1 if size > keep else after]

    def _integer(self, data: bytes, start: i64, end: i64) -> i64:
        """Return the part of an integer behind its prefix (RFC 7541 5.1), and set `_pos` behind it."""
        value: i64 = 0
        shift: i64 = 0
        pos = start
        while pos < end:
            byte: i64 = data[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._pos = pos
                return value
            shift += 7
            if shift > _INTEGER_SHIFT_MAX:
                raise HpackError("an integer has too many bytes")
        raise HpackError("the block ends within an integer")


def _larger_than_any() -> Field:
    """Return the placeholder for a field that is too large to be kept."""
    field = Field(b"", b"", 0, False)
    field.size = 1 << 62
    return field


_TOO_LARGE: Final[Field] = _larger_than_any()
