"""Header blocks decoded (RFC 7541): the state of one direction of one connection.

Rules
  1. A block is decoded to its end whatever is in it: the table that both ends keep must not differ. What a head may not
     hold is not kept; then the rest costs what its bytes cost, and nothing is copied for it but entries of the table.
  2. A peer controls no loop but the one over its own bytes, and no memory but the table that it was allowed
     (RFC 7541 7.3): an integer has at most 5 bytes after its prefix, a string is never larger than what may be kept.
     What all connections share, the rows of huffman.py and 256 literals, has a fixed size, and so have a connection's
     own literals.
  3. A field is made and judged when its literal is read. To refer to it costs a look into a list: 12 ns, compiled.
     A literal costs 0.1 to 0.2 us, and 20 ns for each byte of Huffman code; one that came before, as a rule, 50 ns.
  4. A block that is byte for byte the one before, while the table is as it was, has the same fields (`section`). Many
     clients' blocks are, once the table has their fields.
  5. After HpackError the decoder is of no use: the connection ends with COMPRESSION_ERROR (RFC 9113 4.3).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.field import COOKIE, LINE_OVERHEAD, ORDINARY, OVERHEAD, PSEUDO_MAX, Field, name_kind
from activator.codec.http2.hpack import huffman, static_table
from activator.codec.http2.hpack.errors import HpackError

__all__ = ["TABLE_BYTES_DEFAULT", "HpackDecoder", "HpackError"]

TABLE_BYTES_DEFAULT: Final = 4096  # RFC 9113 6.5.2: until a SETTINGS frame says otherwise

_STATIC: Final[list[Field]] = static_table.static_fields()
_STATIC_MAX: Final = static_table.LENGTH
_NO_FIELD: Final[Field] = _STATIC[0]
_NO_FIELDS: Final[list[Field]] = []
_LINE_BYTES: Final = OVERHEAD - LINE_OVERHEAD  # by what an entry's size exceeds its line in HTTP/1.1
_UPDATES_MAX: Final = 2  # RFC 7541 4.2: the smallest size since the last block, and the final one
_INTEGER_SHIFT_MAX: Final = 28  # five bytes: what is larger is larger than any block, table or index that we have
_AGAIN_BYTES_MAX: Final = 256  # of a block that is kept to be compared with the next one
_GONE_MAX: Final = 64  # entries that were evicted and whose places are still in the list

# The first bits of a representation (RFC 7541 6).
_INDEXED: Final = 0x80
_INDEXING: Final = 0x40
_UPDATE: Final = 0x20
_NEVER: Final = 0x10
_HUFFMAN: Final = 0x80

# The fields of literals that came last and whose sender never puts them into the table, by their bytes: nghttp2, and so
# curl, node and Envoy, send each :path in this way. To find one takes a tenth of decoding it. One cache for all
# connections: 256 fields of at most 127 coded bytes. Credentials are not in it: nobody can probe for them.
_SHARED_MAX: Final = 256  # a power of two
_SHARED: Final[list[Field]] = [_NO_FIELD] * _SHARED_MAX
_SHARED_CODES: Final[list[bytes]] = [b""] * _SHARED_MAX  # of the value, with its length before it
_SECRETS: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"set-cookie"})
_IS_SHARED: Final[bytes] = bytes(0 if field.name in _SECRETS else 1 for field in _STATIC)
# What is in neither, credentials and what is never to be indexed, as nghttp2, Node and browsers send it with each
# request: kept for the connection that it came on, found by a keyed hash of the whole of it, so that nothing tells how
# much of a guess is right. A token of 40 bytes takes 0.1 us in the place of 0.7, one of 600 bytes 0.2 in that of 14.
_OWN_BYTES_MAX: Final = 1024  # coded, of each connection
_NO_OWN: Final[dict[bytes, Field]] = {}


class HpackDecoder:
    """Decodes the header blocks of one connection, in the order in which they were sent."""

    def __init__(self, table_bytes_max: int = TABLE_BYTES_DEFAULT) -> None:
        """`table_bytes_max`: what our SETTINGS_HEADER_TABLE_SIZE says.

        At least the default of 4096: for less, the peer would have to be held to it from its acknowledgement on.
        """
        if table_bytes_max < TABLE_BYTES_DEFAULT:
            raise ValueError("a table smaller than the default is not supported")
        self._allowed: i64 = table_bytes_max
        self._max: i64 = TABLE_BYTES_DEFAULT  # what the peer has chosen
        # Entries from `_first` on, the newest last; before them, places of evicted ones.
        self._entries: list[Field] = []
        self._first: i64 = 0
        self._bytes: i64 = 0
        self._own: dict[bytes, Field] = _NO_OWN  # literals that are not indexed, by their bytes
        self._own_bytes: i64 = 0
        # The last block and its fields, while the table is as it was before and after it.
        self._again: bytes = b""
        self._again_fields: list[Field] = _NO_FIELDS
        self._is_stable: bool = True  # nothing has changed the table since the block at hand began
        self.is_whole: bool = True  # what `decode` said last, to `section`
        self._pos: i64 = 0  # after what was read last

    def section(self, data: bytes, start: i64, end: i64, bytes_max: i64, fields_max: i64) -> list[Field]:
        """The fields of a block as `decode` gives them, in a list that nobody changes; the same list for the same block
        again. The limits are the same in every call. `is_whole` says what `decode` said.
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

    def _table_changes(self) -> None:
        """The same bytes may mean other fields now."""
        self._is_stable = False
        self._again = b""
        self._again_fields = _NO_FIELDS

    def decode(self, data: bytes, start: i64, end: i64, fields: list[Field], bytes_max: i64, fields_max: i64) -> bool:
        """Decode the block data[start:end], which is whole, and append its fields to `fields`.

        Return False if it has more than `fields_max` fields, or more than `bytes_max` bytes as lines of HTTP/1.1 (name
        and value, and 4 for each field): then `fields` has those that came before the limit was passed. The fields that
        a client has cut its cookie into count as one (RFC 9113 8.2.3), pseudo-header fields do not count.

        Raises HpackError: the block is not well-formed, or refers to what is in no table.
        """
        pos = start
        if start < end and data[start] & 0xE0 == _UPDATE:
            pos = self._updates(data, start, end)
        left = bytes_max
        room = fields_max
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
                    place = len(self._entries) + _STATIC_MAX - index
                    if place < self._first:
                        raise HpackError("an index beyond the table")
                    field = self._entries[place]
            else:
                field = self._literal(data, pos, end, left)
                pos = self._pos
            left -= field.size - _LINE_BYTES
            kind = field.kind
            if kind == COOKIE:
                if not has_cookie:
                    has_cookie = True
                    room -= 1
            elif kind == ORDINARY or kind > PSEUDO_MAX:
                room -= 1
            if left >= 0 and room >= 0:
                fields.append(field)
            else:
                is_whole = False
                left = -1  # and so it stays
        return is_whole

    # --- the dynamic table ---

    @property
    def table_bytes(self) -> int:
        """Its size by RFC 7541 4.1."""
        return self._bytes

    @property
    def table_bytes_max(self) -> int:
        """What the peer has chosen, at most what we allow."""
        return self._max

    def table(self) -> list[Field]:
        """Its entries, the newest first, as they are numbered."""
        return self._entries[: self._first - 1 if self._first else None : -1]

    def _insert(self, field: Field) -> None:
        """RFC 7541 4.4."""
        size = field.size
        self._table_changes()
        if self._bytes + size > self._max:
            self._evict(self._max - size)
            if size > self._max:
                return
        self._entries.append(field)
        self._bytes += size

    def _evict(self, bytes_max: i64) -> None:
        """Drop the oldest entries until the others take no more than this, which may be less than nothing."""
        self._table_changes()
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
        """Changes of the table's size, which stand before the first field (RFC 7541 4.2, 6.3)."""
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
            self._evict(size)  # which says that the table changes, also where nothing is evicted
        return pos

    # --- literals ---

    def _literal(self, data: bytes, start: i64, end: i64, left: i64) -> Field:
        """The field whose literal begins at `start`; `_pos` is behind it.

        `left`: how many bytes of the head may still be kept. In the place of a field for which neither they nor the
        table suffice, there is one that is larger than `left`.
        """
        first: i64 = data[start]
        keep = max(left, 0)
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
            named = self._at(index)
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
            # Of the value there may be the start alone. The table is no larger: nothing is kept.
            if first >= _INDEXING:
                self._evict(-1)
            return _TOO_LARGE
        field = Field(name, value, kind, first & (_INDEXING | _NEVER) == _NEVER)
        if first >= _INDEXING:
            self._insert(field)
        return field

    def _shared(self, data: bytes, start: i64, end: i64, keep: i64, index: i64) -> Field:
        """A field with a name of the static table whose value begins at `start` and which is not to be indexed."""
        size: i64 = data[start]
        size &= 0x7F
        after = start + 1 + size
        if after > end or size == 0x7F:
            place: i64 = -1
        else:
            last: i64 = data[after - 1]
            middle: i64 = data[start + size // 2]
            before_last: i64 = data[after - 2]
            place = (last + before_last * 7 + middle * 31 + size * 61 + index) & (_SHARED_MAX - 1)
            known = _SHARED[place]
            if known.name is _STATIC[index].name and data[start:after] == _SHARED_CODES[place]:
                self._pos = after
                return known
        named = _STATIC[index]
        value = self._string(data, start, end, keep)
        if len(named.name) + len(value) > keep:
            return _TOO_LARGE
        field = Field(named.name, value, named.name_kind, False)
        if place >= 0:
            _SHARED[place] = field
            _SHARED_CODES[place] = data[start:after]
        return field

    def _own_literal(self, data: bytes, start: i64, value_at: i64, end: i64, keep: i64, index: i64) -> Field:
        """The field at `start`, with a name of the static table, which is not indexed and is not for other connections.

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
        named = _STATIC[index]
        value = self._string(data, value_at, end, keep)
        if len(named.name) + len(value) > keep:
            return _TOO_LARGE
        first: i64 = data[start]
        field = Field(named.name, value, named.name_kind, first >= _NEVER)
        size = len(literal)
        if size <= _OWN_BYTES_MAX:
            if not self._own or self._own_bytes + size > _OWN_BYTES_MAX:
                self._own = {}
                self._own_bytes = 0
            self._own[literal] = field
            self._own_bytes += size
        return field

    def _too_large(self, data: bytes, end: i64, first: i64) -> Field:
        """Of a field whose name is more than can be kept: its value is checked."""
        self._string(data, self._pos, end, 0)
        if first >= _INDEXING:
            self._evict(-1)
        return _TOO_LARGE

    def _at(self, index: i64) -> Field:
        """The field at an index that is not 0 (RFC 7541 2.3.3)."""
        if index <= _STATIC_MAX:
            return _STATIC[index]
        place = len(self._entries) + _STATIC_MAX - index
        if place < self._first:
            raise HpackError("an index beyond the table")
        return self._entries[place]

    def _string(self, data: bytes, start: i64, end: i64, keep: i64) -> bytes:
        """The string at `start`; of one longer than `keep`, a start that is longer than `keep`. `_pos` is behind it."""
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
        """What an integer that begins at `start` adds to its prefix (RFC 7541 5.1). `_pos` is behind it."""
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
                raise HpackError("an integer of more bytes than any that we could use")
        raise HpackError("the block ends within an integer")


def _larger_than_any() -> Field:
    field = Field(b"", b"", 0, False)
    field.size = 1 << 62
    return field


_TOO_LARGE: Final[Field] = _larger_than_any()
