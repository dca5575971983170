"""The address by https: that of the same resource at the same host, or none."""

from __future__ import annotations

from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http1.request import RequestLimits, RequestParser
from activator.codec.message import Fields, RequestHead
from activator.data_plane.filters.https_redirect import https_location
from tests.data_plane.proxy.proxy_fakes import _Heads

HOSTS = st.one_of(
    st.from_regex(rb"[A-Za-z0-9.-]{1,20}(:[0-9]{0,6})?", fullmatch=True),
    st.ip_addresses().map(lambda ip: f"[{ip}]:80".encode() if ip.version == 6 else str(ip).encode()),
    st.binary(max_size=20),
    st.text("a.:@/\\?#[]%\r\n\t 0", max_size=8).map(str.encode),
)
TARGETS = st.one_of(
    st.from_regex(rb"/[!-~]{0,30}", fullmatch=True),
    st.binary(max_size=20).map(lambda rest: b"/" + rest),
    st.from_regex(rb"https?://[a-z@.:]{1,9}[/?]?[a-z]{0,3}", fullmatch=True),
    st.just(b"*"),
)


def parsed(method: bytes, target: bytes, host: bytes | None, version: bytes) -> RequestHead | None:
    """The head of a request as the parser of clients' connections delivers it; None if it refuses it."""
    sink = _Heads()
    parser = RequestParser(sink, RequestLimits())
    line = b"" if host is None else b"Host: %b\r\n" % host
    parser.feed(b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version, line))
    return sink.head


@given(
    st.sampled_from([b"GET", b"POST", b"OPTIONS"]),
    TARGETS,
    st.none() | HOSTS,
    st.sampled_from([b"1.0", b"1.1"]),
    st.sampled_from([1, 443, 8443]),
)
def test_it_is_a_url_of_the_same_host_and_path(
    method: bytes, target: bytes, host: bytes | None, version: bytes, port: int
) -> None:
    head = parsed(method, target, host, version)
    if head is None:
        return
    location = https_location(head, port)
    if not location:
        assert head.target == b"*" or not head.authority or b".." in head.authority or head.authority.startswith(b".")
        return
    text = location.decode("ascii")
    assert all("!" <= character <= "~" for character in text)
    parts = urlsplit(text)
    assert (parts.scheme, parts.username, parts.password, parts.fragment) == ("https", None, None, "")
    assert (parts.port or 443) == port
    assert parts.hostname == urlsplit(f"//{head.authority.decode()}").hostname
    assert text.endswith(head.target.decode()) and text.startswith(f"https://{parts.netloc}/")
    assert parts.path + (f"?{parts.query}" if "?" in text else "") == head.target.decode()


def test_heads_that_no_parser_delivers() -> None:
    """The filter does not rely on the parsers."""
    for authority in (
        b"",
        b"a\r\nX: y",
        b"a b",
        b"b@a",
        b"a/",
        b"[::1",
        b"::1",
        b"a:80:80",
        b"a\n",
        b"[::1]\n",
        b"\xe4",
    ):
        head = RequestHead(b"GET", b"/", authority, Fields(b""), -1, False)
        assert https_location(head, 443) == b"", authority
