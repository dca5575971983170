"""The frames of HTTP/2: types, flags and codes (RFC 9113 sections 6, 7 and 11), and functions that serialise them."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.runtime.units import KIB

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes that a client sends
HEADER_BYTES: Final = 9  # before the payload of every frame
FRAME_BYTES_MAX: Final = 16 * KIB  # the largest payload that we accept and send; every peer must accept it
FRAME_BYTES_LIMIT: Final = 2**24 - 1  # the largest valid MAX_FRAME_SIZE
WINDOW_MAX: Final = 2**31 - 1
STREAM_ID_MAX: Final = 2**31 - 1
FIRST_WINDOW: Final = 65_535  # the initial window of every connection, and of streams before any SETTINGS

# Types.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags.
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

# Settings.
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
ENABLE_CONNECT_PROTOCOL: Final = 8  # RFC 8441
SETTINGS_PER_FRAME_MAX: Final = 64  # fewer than twenty are defined

# Error codes.
NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
SETTINGS_TIMEOUT: Final = 4
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
CONNECT_ERROR: Final = 10
ENHANCE_YOUR_CALM: Final = 11
INADEQUATE_SECURITY: Final = 12
HTTP_1_1_REQUIRED: Final = 13

CODE_NAMES: Final = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)

# The first five bytes of short frames are precomputed.
_READY: Final = 1024
_DATA: Final[list[bytes]] = [b"%b\x00\x00" % size.to_bytes(3, "big") for size in range(_READY)]
_LAST_DATA: Final[list[bytes]] = [b"%b\x00\x01" % size.to_bytes(3, "big") for size in range(_READY)]
_HEADERS: Final[list[bytes]] = [b"%b\x01\x04" % size.to_bytes(3, "big") for size in range(_READY)]
_LAST_HEADERS: Final[list[bytes]] = [b"%b\x01\x05" % size.to_bytes(3, "big") for size in range(_READY)]
_SETTINGS_ACK: Final = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"


def code_name(code: int) -> str:
    """Return the name of an error code of RFC 9113 section 7, or its number if it is unknown, for a log or an error."""
    return CODE_NAMES[code] if 0 <= code < len(CODE_NAMES) else str(code)


def start(size: int, kind: int, flags: int) -> bytes:
    """Return the first five bytes of a frame; the four of the stream id follow."""
    return size.to_bytes(3, "big") + bytes((kind, flags))


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return a complete frame."""
    return b"%b%b%b" % (start(len(payload), kind, flags), stream_id.to_bytes(4, "big"), payload)


def data_start(size: i64, last: bool) -> bytes:
    """Return the first five bytes of a DATA frame."""
    if size < _READY:
        return _LAST_DATA[size] if last else _DATA[size]
    return start(size, DATA, END_STREAM if last else 0)


def header_frames(id_bytes: bytes, block: bytes, last: bool) -> bytes:
    """Return a field section as HEADERS and, if it is long, CONTINUATION frames. It ends the stream if `last`."""
    size: i64 = len(block)
    if size < _READY:
        return b"%b%b%b" % (_LAST_HEADERS[size] if last else _HEADERS[size], id_bytes, block)
    flags = END_STREAM if last else 0
    if size <= FRAME_BYTES_MAX:
        return b"%b%b%b" % (start(size, HEADERS, flags | END_HEADERS), id_bytes, block)
    pieces = [start(FRAME_BYTES_MAX, HEADERS, flags), id_bytes, block[:FRAME_BYTES_MAX]]
    pos: i64 = FRAME_BYTES_MAX
    while pos < size:
        piece = block[pos : pos + FRAME_BYTES_MAX]
        pos += len(piece)
        pieces.append(start(len(piece), CONTINUATION, END_HEADERS if pos == size else 0))
        pieces.append(id_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def settings_frame(settings: list[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame with these (identifier, value), in order."""
    payload = b"".join([number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in settings])
    return frame(SETTINGS, 0, 0, payload)


def settings_ack() -> bytes:
    return _SETTINGS_ACK


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, count.to_bytes(4, "big"))


def reset_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def ping(payload: bytes, ack: bool) -> bytes:
    """Return a PING frame; `payload` has eight bytes."""
    return frame(PING, ACK if ack else 0, 0, payload)


def go_away(last_stream_id: int, code: int, words: str) -> bytes:
    """Return a GOAWAY frame; `words` is its debug data, in ASCII."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + words.encode("ascii", "replace")
    return frame(GOAWAY, 0, 0, payload)
