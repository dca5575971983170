"""What a field is to a proxy, beside what the HTTP/1.1 codec says of the same field."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.http1 import field_names
from activator.codec.http1.field_names import kind_of
from activator.codec.http2 import field as field_module
from activator.codec.http2.field import (
    ALIAS,
    AUTHORITY,
    CLAIM,
    CONNECTION_SPECIFIC,
    COOKIE,
    EXPECT,
    HOP,
    HOST,
    INTERNAL,
    LENGTH,
    MALFORMED,
    MALFORMED_FROM,
    METHOD,
    ORDINARY,
    OTHER_PSEUDO,
    PATH,
    PROTOCOL,
    PSEUDO_MAX,
    SCHEME,
    STATUS,
    TE,
    TRACE,
    field_of,
    is_value,
)
from tests.codec.http1.recording import RequestRun

KINDS = [
    (b":method", METHOD), (b":scheme", SCHEME), (b":path", PATH), (b":authority", AUTHORITY), (b":status", STATUS),
    (b":protocol", PROTOCOL), (b":", OTHER_PSEUDO), (b":x", OTHER_PSEUDO), (b":Method", OTHER_PSEUDO),
    (b"host", HOST), (b"content-length", LENGTH), (b"cookie", COOKIE), (b"te", TE), (b"traceparent", TRACE),
    (b"expect", EXPECT), (b"forwarded", CLAIM), (b"x-forwarded-for", CLAIM), (b"x_forwarded_for", CLAIM),
    (b"x-forwarded", CLAIM), (b"x-real-ip", CLAIM), (b"x-request-id", CLAIM), (b"x_request-id", CLAIM),
    (b"x-real-ipx", ORDINARY), (b"x", ORDINARY), (b"x-", ORDINARY), (b"a", ORDINARY), (b"ac", ORDINARY),
    (b"accept", ORDINARY), (b"activator-x", INTERNAL), (b"activator_x", INTERNAL), (b"knative-serving-x", INTERNAL),
    (b"knative_serving_x", INTERNAL), (b"k-original-host", INTERNAL), (b"k-x", ORDINARY),
    (b"proxy-authorization", HOP), (b"proxy-authenticate", HOP), (b"content_length", ALIAS),
    (b"transfer_encoding", ALIAS), (b"connection", CONNECTION_SPECIFIC), (b"proxy-connection", CONNECTION_SPECIFIC),
    (b"keep-alive", CONNECTION_SPECIFIC), (b"transfer-encoding", CONNECTION_SPECIFIC),
    (b"upgrade", CONNECTION_SPECIFIC), (b"", MALFORMED), (b"Accept", MALFORMED), (b"a b", MALFORMED),
    (b"a:b", MALFORMED), (b"a\x00", MALFORMED), (b"\xe9", MALFORMED), (b"a\r\nb", MALFORMED), (b"b@", MALFORMED),
]  # fmt: skip

# Of the HTTP/1.1 codec, in this one's terms.
SAME = {
    field_names.ORDINARY: {ORDINARY, COOKIE, EXPECT},
    field_names.HOST: {HOST},
    field_names.LENGTH: {LENGTH},
    field_names.CODING: {CONNECTION_SPECIFIC},
    field_names.CONNECTION: {CONNECTION_SPECIFIC},
    field_names.UPGRADE: {CONNECTION_SPECIFIC},
    field_names.TE: {TE},
    field_names.HOP: {HOP},
    field_names.PROXY_CONNECTION: {CONNECTION_SPECIFIC},
    field_names.ALIAS: {ALIAS},
    field_names.KEEP_ALIVE: {CONNECTION_SPECIFIC},
    field_names.CLAIM: {CLAIM},
    field_names.TRACE: {TRACE},
    field_names.INTERNAL: {INTERNAL},
}

special = st.sampled_from([name for name, _ in KINDS if name])
near = st.builds(lambda name, at, byte: name[:at] + byte + name[at + 1 :], special, st.integers(0, 18), st.binary())
token = st.from_regex(re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]{1,20}"), fullmatch=True)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_kinds(name: bytes, kind: int) -> None:
    field = field_of(name, b"v")
    assert field.kind == field.name_kind == kind
    has_line = kind not in {MALFORMED, OTHER_PSEUDO} and not ORDINARY < kind <= PSEUDO_MAX
    assert field.line == (b"\r\n" + name + b": v" if has_line else b"")
    assert field.size == len(name) + 1 + 32
    assert (kind >= MALFORMED_FROM) == (kind in {ALIAS, CONNECTION_SPECIFIC, OTHER_PSEUDO, MALFORMED})


@given(st.one_of(special, near, token, st.binary(max_size=8)))
def test_names_mean_the_same_in_both_versions(name: bytes) -> None:
    kind = field_of(name, b"").kind
    if name.startswith(b":"):
        assert 0 < kind <= PSEUDO_MAX or kind == OTHER_PSEUDO
    elif not re.fullmatch(rb"[!#$%&'*+.^_`|~0-9a-z-]+", name):
        assert kind == MALFORMED
    else:
        line = name + b":"
        assert kind in SAME[kind_of(line, 0, len(line))]


@pytest.mark.parametrize("byte", range(256))
def test_a_value_may_hold_what_it_may_in_http_1_1(byte: int) -> None:
    for value in (b"a%bb" % bytes((byte,)), b"%b" % bytes((byte,)), b"a%b" % bytes((byte,)), b"%bb" % bytes((byte,))):
        run = RequestRun([b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + value + b"\r\n\r\n"])
        taken = bool(run.sink.heads) and run.sink.heads[0].headers.get(b"x-a") == value
        assert is_value(value) is taken, value
        assert field_of(b"x-a", value).kind == (ORDINARY if taken else MALFORMED)
        assert field_of(b":path", value).kind == (PATH if taken else MALFORMED)


@given(st.binary(max_size=100))
def test_values(value: bytes) -> None:
    expected = re.fullmatch(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?", value) is not None
    assert is_value(value) is expected
    field = field_of(b"te", value)
    assert field.kind == (TE if expected else MALFORMED)
    assert field.line == (b"\r\nte: " + value if expected else b"")


def test_a_malformed_value_spoils_no_other_value_of_the_name() -> None:
    assert field_of(b"te", b" ").name_kind == TE


def test_the_kinds_are_different_numbers() -> None:
    names = {name for name in vars(field_module) if name.isupper() and not name.startswith("_")}
    kinds = names - {"COMPILED", "PSEUDO_MAX", "MALFORMED_FROM", "OVERHEAD", "LINE_OVERHEAD"}
    values = {getattr(field_module, name) for name in kinds}
    assert values == set(range(len(kinds)))
