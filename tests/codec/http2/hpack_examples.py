"""The examples of RFC 7541, Appendix C, and writers of what no good encoder would write."""

from __future__ import annotations

from activator.codec.http2.field import Field
from activator.codec.http2.hpack import huffman
from activator.codec.http2.hpack.decoder import HpackDecoder
from activator.codec.message import Headers

Table = list[tuple[bytes, bytes, int]]

CODES = [format(code, f"0{bits}b") for code, bits in huffman.codes()]

SINGLE: list[tuple[str, str, Headers, Table]] = [
    (
        "C.2.1", "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        [(b"custom-key", b"custom-header")], [(b"custom-key", b"custom-header", 55)],
    ),
    ("C.2.2", "040c 2f73 616d 706c 652f 7061 7468", [(b":path", b"/sample/path")], []),
    ("C.2.3", "1008 7061 7373 776f 7264 0673 6563 7265 74", [(b"password", b"secret")], []),
    ("C.2.4", "82", [(b":method", b"GET")], []),
]  # fmt: skip

_GET = (b":method", b"GET")
_EXAMPLE = (b":authority", b"www.example.com")
_REQUESTS: list[tuple[Headers, Table]] = [
    ([_GET, (b":scheme", b"http"), (b":path", b"/"), _EXAMPLE], [(*_EXAMPLE, 57)]),
    (
        [_GET, (b":scheme", b"http"), (b":path", b"/"), _EXAMPLE, (b"cache-control", b"no-cache")],
        [(b"cache-control", b"no-cache", 53), (*_EXAMPLE, 57)],
    ),
    (
        [_GET, (b":scheme", b"https"), (b":path", b"/index.html"), _EXAMPLE, (b"custom-key", b"custom-value")],
        [(b"custom-key", b"custom-value", 54), (b"cache-control", b"no-cache", 53), (*_EXAMPLE, 57)],
    ),
]

_PRIVATE = (b"cache-control", b"private")
_DATE = (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")
_LATER = (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT")
_LOCATION = (b"location", b"https://www.example.com")
_GZIP = (b"content-encoding", b"gzip")
_COOKIE = (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")
_RESPONSES: list[tuple[Headers, Table]] = [
    (
        [(b":status", b"302"), _PRIVATE, _DATE, _LOCATION],
        [(*_LOCATION, 63), (*_DATE, 65), (*_PRIVATE, 52), (b":status", b"302", 42)],
    ),
    (
        [(b":status", b"307"), _PRIVATE, _DATE, _LOCATION],
        [(b":status", b"307", 42), (*_LOCATION, 63), (*_DATE, 65), (*_PRIVATE, 52)],
    ),
    (
        [(b":status", b"200"), _PRIVATE, _LATER, _LOCATION, _GZIP, _COOKIE],
        [(*_COOKIE, 98), (*_GZIP, 52), (*_LATER, 65)],
    ),
]

# (section, size of the table, (block, fields, the table after it) of each message of a connection)
CONNECTIONS: list[tuple[str, int, list[str], list[tuple[Headers, Table]]]] = [
    ("C.3", 4096, [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ], _REQUESTS),
    ("C.4", 4096, [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ], _REQUESTS),
    ("C.5", 256, [
        ("4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d"
         "546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d"),
        "4803 3330 37c1 c0bf",
        ("88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f"
         "6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b"
         "2076 6572 7369 6f6e 3d31"),
    ], _RESPONSES),
    ("C.6", 256, [
        ("4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7"
         "8f0b 97c8 e9ae 82ae 43d3"),
        "4883 640e ffc1 c0bf",
        ("88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335"
         "dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07"),
    ], _RESPONSES),
]  # fmt: skip


def pairs(fields: list[Field]) -> Headers:
    return [(field.name, field.value) for field in fields]


def table_of(decoder: HpackDecoder) -> Table:
    return [(field.name, field.value, field.size) for field in decoder.table()]


def decoded(decoder: HpackDecoder, block: bytes) -> Headers:
    """Without limits."""
    fields: list[Field] = []
    assert decoder.decode(block, 0, len(block), fields, 1 << 40, 1 << 40)
    return pairs(fields)


def integer(value: int, bits: int, flags: int) -> bytes:
    """RFC 7541 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((flags | value,))
    value -= most
    found = bytearray((flags | most,))
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def string(text: bytes, coded: bool = False) -> bytes:
    """RFC 7541 5.2."""
    if coded:
        text = huffman_coded(text)
    return integer(len(text), 7, 0x80 if coded else 0) + text


def literal(name: bytes, value: bytes, flags: int = 0, coded: bool = False) -> bytes:
    """With a name of its own; `flags`: 0x40 to be indexed, 0x10 never to be."""
    return bytes((flags,)) + string(name, coded) + string(value, coded)


def update(size: int) -> bytes:
    """RFC 7541 6.3."""
    return integer(size, 5, 0x20)


def huffman_coded(text: bytes) -> bytes:
    """RFC 7541 5.2."""
    bits = "".join([CODES[byte] for byte in text])
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""
