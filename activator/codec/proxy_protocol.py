"""HAProxy's PROXY protocol: the header by which a proxy states the client's address at the start of a connection.

Both versions of https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt are supported. No I/O.

Rules
  1. A header is complete, incomplete or invalid. An error may be reported later than at the first wrong byte, but an
     invalid header is never accepted. The result does not depend on how the input is split.
  2. The size is bounded: version 1 by 107 bytes, version 2 by PROXY_HEADER_BYTES_MAX, which is checked as soon as the
     length is received.
  3. A header states an address or none: for LOCAL, UNKNOWN, UNSPEC, datagrams and Unix sockets the connection's own
     address is used. TLVs are ignored.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

PROXY_V1_BYTES_MAX: Final = 107  # the longest line of version 1, with its end
PROXY_HEADER_BYTES_MAX: Final = 4096  # version 2, including its TLVs

V1: Final = "v1"
V2: Final = "v2"

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_FIXED_BYTES: Final = 16
_V1_START: Final = b"PROXY "
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,4}")
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
# The size of the addresses by family; other families are not in the specification.
_ADDRESS_BYTES: Final = {0: 0, 1: 12, 2: 36, 3: 216}
_TCP4: Final = 0x11
_TCP6: Final = 0x21


class Endpoints(NamedTuple):
    """The addresses of the two ends of a connection, possibly of two families; empty if a side has no IP address.

    `header` writes both in the family of the client.
    """

    client_ip: str
    client_port: int
    local_ip: str
    local_port: int


class ProxyHeader(NamedTuple):
    """A complete header."""

    size: int  # bytes
    endpoints: Endpoints | None  # None: the header states no address


class ProxyHeaderError(ValueError):
    """The data are not a PROXY header; the text is the reason."""


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of `data`, None if it is incomplete. Raises ProxyHeaderError if it is invalid."""
    if data[:1] == b"P":
        return _parse_v1(data)
    if not _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        raise ProxyHeaderError("it begins with neither version of the PROXY protocol")
    if len(data) < _V2_FIXED_BYTES:
        return None
    return _parse_v2(data)


def _parse_v1(data: bytes) -> ProxyHeader | None:
    if not _V1_START.startswith(data[: len(_V1_START)]):
        raise ProxyHeaderError("it begins with neither version of the PROXY protocol")
    end = data.find(b"\r\n", 0, PROXY_V1_BYTES_MAX)
    if end < 0:
        if len(data) >= PROXY_V1_BYTES_MAX:
            raise ProxyHeaderError("its line does not end within 107 bytes")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(end + 2, None)
    if words[1] not in {b"TCP4", b"TCP6"} or len(words) != 6:
        raise ProxyHeaderError("its line is malformed")
    version = 4 if words[1] == b"TCP4" else 6
    client_ip, local_ip = _address(words[2], version), _address(words[3], version)
    return ProxyHeader(end + 2, Endpoints(client_ip, _port(words[4]), local_ip, _port(words[5])))


def _address(text: bytes, version: int) -> str:
    """Return the canonical text of an address of this version. Raises ProxyHeaderError."""
    try:
        found = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        raise ProxyHeaderError("an address is malformed") from None
    if found.version != version or getattr(found, "scope_id", None) is not None:
        raise ProxyHeaderError("an address is malformed")
    return str(found)


def _port(text: bytes) -> int:
    """Return the number of a port. Raises ProxyHeaderError."""
    if _NUMBER.fullmatch(text) is None or int(text) > 65_535:
        raise ProxyHeaderError("a port is malformed")
    return int(text)


def _parse_v2(data: bytes) -> ProxyHeader | None:
    command, family_byte = data[12], data[13]
    if command not in {_LOCAL, _PROXY}:
        raise ProxyHeaderError("its version or its command is unknown")
    family, transport = family_byte >> 4, family_byte & 15
    if family not in _ADDRESS_BYTES or transport > 2:
        raise ProxyHeaderError("its family or its transport is unknown")
    size = _V2_FIXED_BYTES + int.from_bytes(data[14:16])
    if size > PROXY_HEADER_BYTES_MAX:
        raise ProxyHeaderError(f"it has more than {PROXY_HEADER_BYTES_MAX} bytes")
    if command == _PROXY and size < _V2_FIXED_BYTES + _ADDRESS_BYTES[family]:
        raise ProxyHeaderError("it is too short for its addresses")
    if len(data) < size:
        return None
    if command == _LOCAL or family_byte not in {_TCP4, _TCP6}:
        return ProxyHeader(size, None)
    width = 4 if family_byte == _TCP4 else 16
    block = data[_V2_FIXED_BYTES : _V2_FIXED_BYTES + 2 * width + 4]
    client, local = ipaddress.ip_address(block[:width]), ipaddress.ip_address(block[width : 2 * width])
    ports = block[2 * width :]
    return ProxyHeader(size, Endpoints(str(client), int.from_bytes(ports[:2]), str(local), int.from_bytes(ports[2:])))


def header(version: str, endpoints: Endpoints | None) -> bytes:
    """Return the header that a connection to a pod begins with.

    `endpoints` is None if the connection is the program's own, or of a client without an address.
    """
    ends = None if endpoints is None else _of_one_family(endpoints)
    if ends is None:
        return b"PROXY UNKNOWN\r\n" if version == V1 else b"%b\x20\0\0\0" % _SIGNATURE
    client, local, client_port, local_port = ends
    if version == V1:
        return f"PROXY TCP{client.version} {client} {local} {client_port} {local_port}\r\n".encode()
    block = client.packed + local.packed + client_port.to_bytes(2) + local_port.to_bytes(2)
    family_byte = _TCP4 if client.version == 4 else _TCP6
    return b"%b\x21%c%b%b" % (_SIGNATURE, family_byte, len(block).to_bytes(2), block)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _of_one_family(endpoints: Endpoints) -> tuple[Address, Address, int, int] | None:
    """Return both ends in the client's address family: (client, local, client port, local port).

    Return None if the client has no IP address. The local address is the unspecified one if it has another family.
    """
    try:
        client = _unmapped(endpoints.client_ip)
    except ValueError:
        return None
    try:
        local = _unmapped(endpoints.local_ip)
    except ValueError:
        local = client
    if local.version != client.version or endpoints.local_ip == "":
        local = ipaddress.ip_address("0.0.0.0" if client.version == 4 else "::")
    return client, local, endpoints.client_port, endpoints.local_port


def _unmapped(text: str) -> Address:
    """Return the address without its zone, an IPv4-mapped one as IPv4. Raises ValueError."""
    found = ipaddress.ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
