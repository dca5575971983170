"""What a pod is told of where a request came from, and whose word counts for it."""

from __future__ import annotations

import ipaddress
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http1.request import RequestLimits, RequestParser
from activator.codec.message import Fields, RequestHead
from activator.data_plane.headers.forwarding import (
    AUTHORITIES_KEPT_MAX,
    AUTHORITY_KEPT_BYTES,
    FOR_ONLY,
    FORWARDED,
    ORIGINS_KEPT_MAX,
    X_FORWARDED,
    Origins,
    is_valid_request_id,
)
from tests.codec.http1.recording import Requests

PROXY = "10.1.2.3"
STRANGER = "192.0.2.7"


def origins(writes: int = X_FORWARDED, request_id: bool = False, via: bytes = b"") -> Origins:
    trusted = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/32"))
    return Origins(trusted, writes, request_id, via, seed=0xABCDEF)


def head(fields: str = "", authority: str = "a.test") -> RequestHead:
    """As the parser makes it."""
    sink = Requests()
    data = f"GET / HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n".encode()
    assert RequestParser(sink, RequestLimits()).feed(data) is None
    return sink.heads[0]


def told(peer: str, fields: str = "", secure: bool = False, **settings: Any) -> dict[bytes, bytes]:
    """The fields that are added, and no other about the origin."""
    one = head(fields)
    origins(**settings).of(peer, secure).stamp(one)
    pairs = one.headers.pairs()
    assert pairs[0] == (b"Host", b"a.test")
    found = dict(pairs[1:])
    assert len(found) == len(pairs) - 1, pairs
    return found


def test_a_stranger_is_described_by_what_we_see() -> None:
    assert told(STRANGER) == {
        b"X-Forwarded-For": b"192.0.2.7",
        b"X-Forwarded-Proto": b"http",
        b"X-Forwarded-Host": b"a.test",
    }
    assert told(STRANGER, secure=True)[b"X-Forwarded-Proto"] == b"https"


@pytest.mark.parametrize(
    "claim",
    [
        "X-Forwarded-For: 1.1.1.1",
        "x-forwarded-for: 1.1.1.1",
        "X_Forwarded_For: 1.1.1.1",
        "X-Forwarded_For: 1.1.1.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil.test",
        "X-Forwarded-Port: 1",
        "X-Forwarded-Anything-At-All: 1",
        "X-Forwarded: for=1.1.1.1",
        "X_Forwarded: for=1.1.1.1",
        "Forwarded: for=1.1.1.1",
        "X-Real-IP: 1.1.1.1",
        "X_Real_Ip: 1.1.1.1",
    ],
)
@pytest.mark.parametrize("writes", [0, X_FORWARDED, FORWARDED, X_FORWARDED | FORWARDED])
def test_the_claims_of_a_stranger_reach_no_pod(claim: str, writes: int) -> None:
    assert told(STRANGER, claim + "\r\n", writes=writes) == told(STRANGER, writes=writes)
    assert told("", claim + "\r\n", writes=writes) == {}, "a peer without an address is nobody to be trusted"


def test_what_is_no_claim_stays() -> None:
    found = told(STRANGER, "X-Forward: 1\r\nForwarded-For: 2\r\nX-Request: 3\r\nX: 4\r\n", writes=0)
    assert found == {b"X-Forward": b"1", b"Forwarded-For": b"2", b"X-Request": b"3", b"X": b"4"}


def test_a_trusted_proxy_is_believed_and_continued() -> None:
    claims = "X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\nX-Forwarded-For: 3.3.3.3\r\nX-Forwarded-Proto: https\r\n"
    assert told(
        PROXY, claims + "X-Forwarded-Host: outside.test\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 1.1.1.1\r\n"
    ) == {
        b"X-Forwarded-For": b"1.1.1.1, 2.2.2.2, 3.3.3.3, 10.1.2.3",
        b"X-Forwarded-Proto": b"https",
        b"X-Forwarded-Host": b"outside.test",
        b"X-Forwarded-Port": b"443",
        b"X-Real-IP": b"1.1.1.1",
    }


def test_a_list_that_is_not_ours_to_write_is_continued_all_the_same() -> None:
    claims = "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n"
    assert told(PROXY, claims, writes=0) == {
        b"X-Forwarded-For": b"1.1.1.1, 10.1.2.3",
        b"Forwarded": b'for=1.1.1.1, for=10.1.2.3;host="a.test";proto=http',
    }


def test_forwarded_as_the_standard_has_it() -> None:
    assert told(STRANGER, writes=FORWARDED) == {b"Forwarded": b'for=192.0.2.7;host="a.test";proto=http'}
    found = told("2001:db9::1", secure=True, writes=FORWARDED)
    assert found == {b"Forwarded": b'for="[2001:db9::1]";host="a.test";proto=https'}


def test_a_socket_for_both_families_names_the_same_peer() -> None:
    assert told("::ffff:10.1.2.3", "X-Forwarded-For: 1.1.1.1\r\n")[b"X-Forwarded-For"] == b"1.1.1.1, 10.1.2.3"
    assert told("fe80::1%eth0")[b"X-Forwarded-For"] == b"fe80::1"


def test_what_connection_names_is_gone_also_from_a_trusted_proxy() -> None:
    claims = "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\nConnection: x-forwarded-for\r\n"
    found = told(PROXY, claims)
    assert found[b"X-Forwarded-For"] == b"10.1.2.3"
    assert found[b"X-Forwarded-Proto"] == b"https"


def test_via() -> None:
    assert told(STRANGER, writes=0, via=b"activator") == {b"Via": b"1.1 activator"}
    assert told(PROXY, "X-Forwarded-For: 1.1.1.1\r\n", via=b"activator")[b"Via"] == b"1.1 activator"


@pytest.mark.parametrize("peer", [STRANGER, PROXY])
def test_where_no_request_id_is_written_that_of_the_client_passes(peer: str) -> None:
    assert told(peer, "X-Request-Id: abc 1\r\n", writes=0) == {b"X-Request-Id": b"abc 1"}


@pytest.mark.parametrize("peer", [STRANGER, PROXY])
def test_request_ids_are_kept_or_made(peer: str) -> None:
    assert told(peer, "X-Request-Id: abc-1:2/x\r\n", request_id=True)[b"X-Request-Id"] == b"abc-1:2/x"
    for improper in ("", "a b", "a\tb", "x" * 129, "a,b", 'a"b', "é"):
        made = told(peer, f"X-Request-Id: {improper}\r\n", request_id=True)[b"X-Request-Id"]
        assert len(made) == 32
        assert int(made, 16)


@pytest.mark.parametrize("line", ["X-Request-Id:a1", "x-request-id: \ta1 \t", "X-REQUEST-ID:  a1", "X-Request-Id: a1 "])
@pytest.mark.parametrize("before", ["", "X-Request-Idx: b\r\n", "X-Real-IP: b\r\n", "X-Forwarded-:x-request-id\r\n"])
def test_however_a_request_id_is_written_it_is_found(line: str, before: str) -> None:
    assert told(STRANGER, f"{before}{line}\r\n", request_id=True)[b"X-Request-Id"] == b"a1"


def test_which_bytes_a_request_id_may_have() -> None:
    allowed = set(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.~:/+=@")
    for byte in range(256):
        for one in (bytes([byte]), b"a%cb" % byte, b"ab%c" % byte):
            assert is_valid_request_id(one) is (byte in allowed)
    assert is_valid_request_id(b"a" * 128) and not is_valid_request_id(b"a" * 129) and not is_valid_request_id(b"")


def test_no_id_comes_twice() -> None:
    ours = origins(request_id=True)
    assert len({ours.request_id() for _ in range(10_000)}) == 10_000


def test_connections_share_what_is_said_of_them_only_if_nothing_differs() -> None:
    shared = origins(via=b"us")
    ways = list(itertools.product(("", STRANGER), (False, True), (b"1.1", b"2.0")))
    first = [shared.of(peer, secure, False, version) for peer, secure, version in ways]
    assert [shared.of(peer, secure, False, version) for peer, secure, version in ways] == first
    assert len(set(first)) == len(ways)
    for authority in ("a.test", "b.test", "a.test"):
        for (peer, secure, version), origin in zip(ways, first, strict=True):
            one, alone = head(authority=authority), head(authority=authority)
            origin.stamp(one)
            origins(via=b"us").of(peer, secure, False, version).stamp(alone)
            assert one.headers.block == alone.headers.block


def test_what_is_kept_of_peers_is_bounded() -> None:
    shared = origins()
    for number in range(3 * ORIGINS_KEPT_MAX):
        shared.of(f"192.0.{number >> 8}.{number & 255}", False)
        assert len(shared._cached) <= ORIGINS_KEPT_MAX
    origin = shared.of(STRANGER, False)
    for number in range(3 * AUTHORITIES_KEPT_MAX):
        origin.stamp(head(authority=f"{number}.test"))
        assert len(origin._fields) <= AUTHORITIES_KEPT_MAX
    before = dict(origin._fields)
    long = head(authority=".".join(["a" * 60] * (AUTHORITY_KEPT_BYTES // 60 + 1)))
    origin.stamp(long)
    assert origin._fields == before and b"X-Forwarded-Host: aaa" in long.headers.block


def test_a_connection_may_change_hosts() -> None:
    origin = origins().of(STRANGER, False)
    for authority in ("a.test", "b.test", "a.test"):
        one = head(authority=authority)
        origin.stamp(one)
        assert one.headers.get(b"x-forwarded-host") == authority.encode()


@pytest.mark.parametrize(
    ("peer", "claims", "client"),
    [
        (STRANGER, "X-Forwarded-For: 1.1.1.1\r\n", STRANGER),
        (PROXY, "", PROXY),
        (PROXY, "X-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
        (PROXY, "X-Forwarded-For: 6.6.6.6, 1.1.1.1, 10.9.9.9\r\n", "1.1.1.1"),  # the last that nobody trusted has said
        (PROXY, "X-Forwarded-For: 10.8.8.8, 10.9.9.9\r\n", "10.8.8.8"),
        (PROXY, "X-Forwarded-For: 1.1.1.1:5000\r\n", "1.1.1.1"),
        (PROXY, "X-Forwarded-For: [2001:db9::1]:5000\r\n", "2001:db9::1"),
        (PROXY, "X-Forwarded-For: 2001:DB9::1\r\n", "2001:db9::1"),
        (PROXY, "X-Forwarded-For: 6.6.6.6, unknown, 10.9.9.9\r\n", "10.9.9.9"),
        (PROXY, "X-Forwarded-For: nonsense\r\n", PROXY),
        (PROXY, "X-Forwarded-For: ::ffff:1.1.1.1, ::ffff:10.9.9.9\r\n", "1.1.1.1"),  # from a socket for both families
    ],
)
def test_the_client_is_the_last_that_no_trusted_proxy_is(peer: str, claims: str, client: str) -> None:
    assert origins().of(peer, False).client_ip(head(claims)) == client


@given(st.binary(max_size=40).filter(lambda value: not set(value) & set(b"\r\n\0")), st.sampled_from([STRANGER, PROXY]))
def test_no_claim_whatever_breaks_a_head(value: bytes, peer: str) -> None:
    one = RequestHead(b"GET", b"/", b"a", Fields(b"\r\nHost: a"), -1, False)
    one.claims = [b"X-Forwarded-For: " + value, b"Forwarded: " + value, b"X-Request-Id: " + value]
    origin = origins(writes=3, request_id=True).of(peer, False)
    origin.stamp(one)
    assert b"\n" not in one.headers.block.replace(b"\r\n", b"")
    assert origin.client_ip(one)


def told_over_unix(trusts: bool, fields: str = "", writes: int = X_FORWARDED | FORWARDED) -> dict[bytes, bytes]:
    """What a pod is told of a request that came over a Unix socket."""
    made = head(fields)
    made_by = Origins((), writes, False, b"", 1, trusts)
    made_by.of("", False, True).stamp(made)
    return {name.lower(): value for name, value in made.headers.pairs()}


def test_a_client_of_a_unix_socket_has_no_address_and_is_believed_only_if_that_is_said() -> None:
    found = told_over_unix(False, "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n")
    assert b"x-forwarded-for" not in found
    assert found[b"forwarded"] == b'for=unknown;host="a.test";proto=http'
    assert (found[b"x-forwarded-proto"], found[b"x-forwarded-host"]) == (b"http", b"a.test")
    found = told_over_unix(True, "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Proto: https\r\n")
    assert found[b"x-forwarded-for"] == b"1.2.3.4"
    assert found[b"forwarded"] == b'for=1.2.3.4, for=unknown;host="a.test";proto=http'
    assert found[b"x-forwarded-proto"] == b"https"
    assert b"x-forwarded-for" not in told_over_unix(True, "", FOR_ONLY)


def test_whom_a_trusted_proxy_names_over_a_unix_socket() -> None:
    made = head("X-Forwarded-For: 1.2.3.4\r\n")
    assert Origins((), 0, False, b"", 1, True).of("", False, True).client_ip(made) == "1.2.3.4"
    assert Origins((), 0, False, b"", 1, False).of("", False, True).client_ip(made) == ""
    assert Origins((), 0, False, b"", 1, True).of("", False, False).client_ip(made) == "", "a connection that is gone"
