"""The header of the PROXY protocol: compared with another parser, cut anywhere, and with whatever else may come."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.proxy_protocol import (
    PROXY_HEADER_BYTES_MAX,
    PROXY_V1_BYTES_MAX,
    Endpoints,
    ProxyHeader,
    ProxyHeaderError,
    header,
    parse,
)
from activator.runtime.networks import canonical

SIGNATURE = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"

Told = tuple[str, int, str, int]
WRONG = "wrong"


# --- another parser: by regular expressions and the kernel's own reading of addresses --------------------------------

V1 = re.compile(rb"PROXY (?:(TCP4|TCP6) (\S+) (\S+) (\d+) (\d+)|(UNKNOWN)(?: [^\r\n]*)?)\r\n", re.ASCII)


def oracle(data: bytes) -> tuple[int, Told | None] | str | None:
    """What a whole header says, or WRONG, or None where it is not whole."""
    if data.startswith(SIGNATURE):
        return _oracle_v2(data)
    if SIGNATURE.startswith(data):
        return None
    line, end, _ = data.partition(b"\r\n")
    if not end:
        return None
    match = V1.fullmatch(line + end)
    if match is None or len(line) > 105:
        return WRONG
    size = len(line) + 2
    if match[6]:
        return size, None
    family = socket.AF_INET if match[1] == b"TCP4" else socket.AF_INET6
    try:
        ips = [socket.inet_ntop(family, socket.inet_pton(family, match[place].decode())) for place in (2, 3)]
    except OSError:
        return WRONG
    ports = [int(match[place]) for place in (4, 5)]
    if max(ports) > 65_535 or any(len(match[place]) > 1 and match[place][:1] == b"0" for place in (4, 5)):
        return WRONG
    return size, (ips[0], ports[0], ips[1], ports[1])


def _oracle_v2(data: bytes) -> tuple[int, Told | None] | str | None:
    if len(data) < 16:
        return None
    command, kind, length = struct.unpack(">BBH", data[12:16])
    needs = {0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216, 0x00: 0, 0x01: 0, 0x02: 0, 0x10: 12}
    needs |= {0x20: 36, 0x30: 216}
    if command not in {0x20, 0x21} or kind not in needs or 16 + length > PROXY_HEADER_BYTES_MAX:
        return WRONG
    if command == 0x21 and length < needs[kind]:
        return WRONG
    if len(data) < 16 + length:
        return None
    if command == 0x20 or kind not in {0x11, 0x21}:
        return 16 + length, None
    family, width = (socket.AF_INET, 4) if kind == 0x11 else (socket.AF_INET6, 16)
    block = data[16:]
    ips = [socket.inet_ntop(family, block[:width]), socket.inet_ntop(family, block[width : 2 * width])]
    ports = struct.unpack(">HH", block[2 * width : 2 * width + 4])
    return 16 + length, (ips[0], ports[0], ips[1], ports[1])


def same_ip(one: str, other: str) -> bool:
    family = socket.AF_INET6 if ":" in one else socket.AF_INET
    return socket.inet_pton(family, one) == socket.inet_pton(family, other)


def agrees(data: bytes) -> None:
    """Both read the same of it."""
    expected = oracle(data)
    try:
        found: ProxyHeader | str | None = parse(data)
    except ProxyHeaderError:
        found = WRONG
    if isinstance(found, ProxyHeader):
        assert isinstance(expected, tuple), (data, found, expected)
        assert found.size == expected[0]
        told = expected[1]
        if told is None:
            assert found.endpoints is None
        else:
            assert found.endpoints is not None
            assert same_ip(found.endpoints.client_ip, told[0]) and same_ip(found.endpoints.local_ip, told[2])
            assert (found.endpoints.client_port, found.endpoints.local_port) == (told[1], told[3])
    elif found is None:
        assert expected is None, (data, expected)
    else:
        assert expected == WRONG or expected is None, (data, expected)  # ours may see it sooner


IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6).map(str)
PORT = st.integers(0, 65_535)
ENDPOINTS = st.one_of(st.builds(Endpoints, IPV4, PORT, IPV4, PORT), st.builds(Endpoints, IPV6, PORT, IPV6, PORT))


@st.composite
def v1_lines(draw: st.DrawFn) -> bytes:
    """Whole lines, of which a word may be another one."""
    four = draw(st.booleans())
    ip = IPV4 if four else IPV6
    words = ["PROXY", "TCP4" if four else "TCP6", draw(ip), draw(ip), str(draw(PORT)), str(draw(PORT))]
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(1, 5))
        words[place] = draw(
            st.sampled_from(["UNKNOWN", "TCP4", "01", "65536", "-1", "1.2.3", "::g", "1.2.3.4%1", "", "²"])
        )
    return " ".join(words).encode() + b"\r\n"


@st.composite
def v2_headers(draw: st.DrawFn) -> bytes:
    command = draw(st.sampled_from([0x21, 0x21, 0x20, 0x22, 0x11]))
    kind = draw(st.sampled_from([0x11, 0x21, 0x12, 0x00, 0x31, 0x22, 0x40, 0x13, 0x10]))
    block = draw(st.binary(min_size=216, max_size=216))[: draw(st.sampled_from([0, 11, 12, 35, 36, 216]))]
    tlvs = draw(st.binary(max_size=40))
    return SIGNATURE + bytes([command, kind]) + struct.pack(">H", len(block) + len(tlvs)) + block + tlvs


@given(st.one_of(v1_lines(), v2_headers()), st.binary(max_size=20), st.data())
def test_it_agrees_with_another_parser_wherever_it_is_cut(data: bytes, rest: bytes, draw: st.DataObject) -> None:
    whole = data + rest
    agrees(whole)
    cut = draw.draw(st.integers(0, len(whole)))
    agrees(whole[:cut])
    try:
        found = parse(whole)
    except ProxyHeaderError:
        return
    if found is not None:
        assert found.size == len(data), "what follows is the client's"
        for end in range(1, found.size):
            assert parse(whole[:end]) is None, "no part of a good header is whole, or wrong"


@given(st.binary(max_size=400))
def test_whatever_comes_it_is_one_of_three(data: bytes) -> None:
    if data.startswith((b"PROXY ", SIGNATURE)):
        agrees(data)
    with contextlib.suppress(ProxyHeaderError):
        parse(data)


@given(ENDPOINTS, st.sampled_from(["v1", "v2"]))
def test_what_pods_are_sent_says_the_same(endpoints: Endpoints, version: str) -> None:
    made = header(version, endpoints)
    found = parse(made)
    assert found is not None and found.size == len(made) and found.endpoints is not None
    found_ip, sent_ip = (ipaddress.ip_address(one.client_ip) for one in (found.endpoints, endpoints))
    assert canonical(found_ip) == canonical(sent_ip), "however an IPv4-mapped address is written"
    assert (found.endpoints.client_port, found.endpoints.local_port) == (endpoints.client_port, endpoints.local_port)


def test_v1_as_the_specification_shows_it() -> None:
    line = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
    assert parse(line + b"GET / HTTP/1.1\r\n") == ProxyHeader(
        len(line), Endpoints("192.168.0.1", 56324, "192.168.0.11", 443)
    )
    longest = b"PROXY UNKNOWN " + b"f" * 91 + b"\r\n"
    assert len(longest) == PROXY_V1_BYTES_MAX
    assert parse(longest) == ProxyHeader(107, None)
    with pytest.raises(ProxyHeaderError, match="within 107 bytes"):
        parse(b"PROXY UNKNOWN " + b"f" * 93)


def test_addresses_of_two_families_are_told_in_that_of_the_client() -> None:
    """As where a client came to a socket for both, or over a Unix socket with X-Forwarded-For."""
    told = parse(header("v1", Endpoints("10.0.0.1", 5, "2001:db8::1", 80)))
    assert told is not None and told.endpoints == Endpoints("10.0.0.1", 5, "0.0.0.0", 80)
    told = parse(header("v2", Endpoints("2001:db8::2", 0, "", 0)))
    assert told is not None and told.endpoints == Endpoints("2001:db8::2", 0, "::", 0)
    told = parse(header("v2", Endpoints("::ffff:10.0.0.1", 5, "::ffff:10.0.0.2", 80)))
    assert told is not None and told.endpoints == Endpoints("10.0.0.1", 5, "10.0.0.2", 80)


def test_who_has_no_address_is_not_told() -> None:
    assert header("v1", None) == header("v1", Endpoints("", 0, "", 0)) == b"PROXY UNKNOWN\r\n"
    assert header("v2", None) == SIGNATURE + b"\x20\x00\x00\x00"


@pytest.mark.parametrize("size", [0, 36, 4_080])
def test_the_length_is_bounded_before_it_has_come(size: int) -> None:
    whole = SIGNATURE + b"\x21\x11" + struct.pack(">H", 12 + size)
    if 16 + 12 + size > PROXY_HEADER_BYTES_MAX:
        with pytest.raises(ProxyHeaderError, match="more than 4096 bytes"):
            parse(whole)
    else:
        assert parse(whole) is None
