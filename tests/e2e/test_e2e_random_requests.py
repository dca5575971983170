"""Requests that nobody thought of: made by hypothesis, sent with the activator between and without it."""

from __future__ import annotations

import string
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import DEEP
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, chunked
from tests.e2e.origin import FRAMING, HOP_BY_HOP, origin
from tests.e2e.pair import Pair, paired

TOKEN = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"
# Fields that mean something to a proxy have tests of their own; here the others are meant.
MEANT = (
    *("connection", "content-length", "content_length", "expect", "forwarded", "host", "keep-alive", "proxy", "te"),
    *("trailer", "transfer", "upgrade", "x-forwarded", "x_forwarded", "x-real", "x_real", "x-request", "x_request"),
)

names = st.text(TOKEN, min_size=1, max_size=20).filter(lambda name: not name.lower().startswith(tuple(MEANT)))
values = st.text([chr(byte) for byte in range(0x20, 0x100) if byte != 0x7F] + ["\t"], max_size=40)
fields = st.lists(st.tuples(names, values), max_size=20)
segments = st.text(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@%[]^`{|}", max_size=20)
targets = st.builds(
    lambda path, query: "/echo/" + path.replace("%", "%25") + ("" if query is None else "?" + query),
    segments,
    st.none() | segments,
)
bodies = st.none() | st.lists(st.binary(min_size=1, max_size=200_000), max_size=4)


@pytest.fixture(scope="module")
def pair(run_shared_activator: RunActivator) -> Iterator[Pair]:
    with paired(origin, run_shared_activator) as pair:
        yield pair


def request_of(
    method: str, target: str, headers: list[tuple[str, str]], body: list[bytes] | None, in_chunks: bool
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: a.test", *(f"{name}: {value}" for name, value in headers)]
    data = b""
    if body is not None and in_chunks:
        lines.append("Transfer-Encoding: chunked")
        data = chunked(*body)
    elif body is not None:
        data = b"".join(body)
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def comparable(answer: Answer, method: str) -> tuple[object, ...]:
    dropped = HOP_BY_HOP | (set() if method == "HEAD" else FRAMING)
    headers = [field for field in answer.headers if field[0] not in dropped]
    return answer.status, answer.phrase, headers, answer.body, answer.trailers


@settings(max_examples=2_000 if DEEP else 150, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "QUERY"]),
    target=targets,
    headers=fields,
    body=bodies,
    in_chunks=st.booleans(),
)
def test_through_is_as_direct(
    pair: Pair, method: str, target: str, headers: list[tuple[str, str]], body: list[bytes] | None, in_chunks: bool
) -> None:
    data = request_of(method, target, headers, None if method == "GET" else body, in_chunks)
    with Client(pair.pod.address) as direct, Client(pair.activator.address) as through:
        without = comparable(direct.ask(data), method)
        assert comparable(through.ask(data), method) == without
        assert comparable(through.ask(data), method) == without, "again on the same connection"
