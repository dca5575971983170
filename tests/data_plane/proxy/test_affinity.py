"""What requests are known by: the same number wherever it is asked, and none where there is nothing."""

from __future__ import annotations

import pytest

from activator.codec.message import Fields, RequestHead
from activator.data_plane.headers.affinity import Affinity, cookie_of
from lb.hashing import hash_bytes


def head(**fields: str) -> RequestHead:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    return RequestHead(b"GET", b"/", b"a.test", Fields.from_pairs(pairs), 0, False)


def test_by_the_clients_address() -> None:
    for hash_on in ("", "client_ip"):
        affinity = Affinity(hash_on)
        assert affinity.on_client_ip
        assert affinity.key_of(head(), "10.0.0.1") == hash_bytes(b"10.0.0.1")
        assert affinity.key_of(head(), "") == 0


def test_by_a_header_whatever_its_case() -> None:
    affinity = Affinity("header:X-User")
    assert not affinity.on_client_ip
    assert affinity.key_of(head(x_uSer="ann"), "10.0.0.1") == hash_bytes(b"ann")
    assert affinity.key_of(head(x_user="Ann"), "") != hash_bytes(b"ann")
    assert affinity.key_of(head(x_users="ann"), "10.0.0.1") == 0
    assert affinity.key_of(head(x_user=""), "10.0.0.1") == 0


def test_by_a_cookie() -> None:
    affinity = Affinity("cookie:Sid")
    assert affinity.key_of(head(Cookie="a=1; Sid=7; sid=8"), "") == hash_bytes(b"7")
    assert affinity.key_of(head(Cookie="sid=8"), "") == 0
    assert affinity.key_of(head(), "10.0.0.1") == 0


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"", b""),
        (b"s=1", b"1"),
        (b" s=1 ;s=2", b"1"),
        (b"ss=1;s", b""),
        (b"s=a=b; x=y", b"a=b"),
        (b"=;;s=", b""),
        (b'x="; s=1"', b'1"'),  # quotes mean nothing to those who set cookies, and nothing here
    ],
)
def test_cookies(header: bytes, value: bytes) -> None:
    assert cookie_of(header, b"s") == value
