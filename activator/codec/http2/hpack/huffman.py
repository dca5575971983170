"""A decoder of HPACK's Huffman code (RFC 7541 5.2, Appendix B).

Rules
  1. The decoder processes one byte at a time. Its state is the inner node of the code's tree where the bits read so far
     end; the tree has 257 leaves, so there are 256 states and a state fits into a byte.
  2. The row of a state holds, for each byte, the next state and the symbols that the byte completes (two at most). It
     is built when a string first needs it. A few heads need 50 rows; all 256 take 21 ms (compiled) and 1.8 MB, once in
     a process.
  3. A result is at most two bytes longer than the caller's limit, but the rest of the string is validated: a connection
     ends with the same error whether or not its fields were kept.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.hpack.errors import HpackError

# The length of each symbol's code in bits, for the symbols 0 to 255 and EOS. The code is canonical: codes of one length
# are consecutive in the order of their symbols, and longer codes follow shorter ones. So the lengths define the code.
_LENGTHS: Final = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
)  # fmt: skip
_EOS_SYMBOL: Final = 256
_EOS: Final = b"EOS"  # marks a byte that completes EOS; compared by identity
_PADDING_BITS_MAX: Final = 7


def codes() -> list[tuple[int, int]]:
    """Return (code, length in bits) of each symbol, EOS last (RFC 7541 Appendix B)."""
    found = [(0, 0)] * len(_LENGTHS)
    code = 0
    bits = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        code <<= _LENGTHS[symbol] - bits
        bits = _LENGTHS[symbol]
        found[symbol] = (code, bits)
        code += 1
    return found


class _Row:
    """The transitions of one state."""

    def __init__(self) -> None:
        self.is_made: bool = False
        self.next: bytes = b""  # the next state, by byte
        self.symbols: list[bytes] = []  # the completed symbols, by byte


class _Tree:
    """The tree of the code: the two children of each inner node. A leaf is stored as -1 - symbol."""

    def __init__(self) -> None:
        self.children: list[list[int]] = [[0, 0]]  # node 0 is the root, so 0 marks a missing child
        for symbol, (code, bits) in enumerate(codes()):
            node = 0
            for shift in range(bits - 1, 0, -1):
                child = self.children[node][code >> shift & 1]
                if child == 0:
                    child = len(self.children)
                    self.children[node][code >> shift & 1] = child
                    self.children.append([0, 0])
                node = child
            self.children[node][code & 1] = -1 - symbol

    def padding(self) -> bytes:
        """Return 1 for each state in which a string may end: after up to 7 bits of EOS, which are ones (5.2)."""
        ends = bytearray(len(self.children))
        node = 0
        for _ in range(_PADDING_BITS_MAX + 1):
            ends[node] = 1
            node = self.children[node][1]
        return bytes(ends)

    def make(self, row: _Row, state: int) -> None:
        """Fill the row of this state."""
        following = bytearray()
        row.symbols = []
        for byte in range(256):
            node = state
            symbols = b""
            for shift in range(7, -1, -1):
                node = self.children[node][byte >> shift & 1]
                if node < 0:
                    if node == -1 - _EOS_SYMBOL:
                        symbols = _EOS
                        node = 0
                        break
                    symbols += bytes((-1 - node,))
                    node = 0
            following.append(node)
            row.symbols.append(_PIECES.setdefault(symbols, symbols))
        row.next = bytes(following)
        row.is_made = True


_PIECES: Final[dict[bytes, bytes]] = {_EOS: _EOS}  # all rows share one object for equal symbols
_TREE: Final = _Tree()
_ROWS: Final[list[_Row]] = [_Row() for _ in _TREE.children]
_ENDS: Final[bytes] = _TREE.padding()


def decode(data: bytes, start: i64, end: i64, bytes_max: i64) -> bytes:
    """Decode data[start:end].

    A string longer than `bytes_max` (>= 0) is truncated to `bytes_max` plus one or two bytes.

    Raises HpackError if it contains EOS, or if its padding is longer than 7 bits or not of ones (RFC 7541 5.2).
    """
    pieces: list[bytes] = []
    state: i64 = 0
    pos = start
    # The shortest codes have 5 bits, so a string of few enough bits needs no limit.
    room: i64 = (end - start) * 2 if (end - start) * 8 <= bytes_max * 5 else bytes_max
    while pos < end:
        row = _ROWS[state]
        if not row.is_made:
            _TREE.make(row, state)
        byte: i64 = data[pos]
        symbols = row.symbols[byte]
        if symbols is _EOS:
            raise HpackError("EOS in a Huffman-coded string")
        if room >= 0:
            pieces.append(symbols)
            room -= len(symbols)
        state = row.next[byte]
        pos += 1
    if _ENDS[state] == 0:
        raise HpackError("a Huffman-coded string with a padding that is too long, or not of ones")
    return b"".join(pieces)
