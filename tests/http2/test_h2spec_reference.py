"""The table of h2spec's cases is complete, and servers that are known to conform pass it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http2.h2spec_cases import CASES, SECTIONS, Case, run_case
from tests.http2.raw_client import SETTINGS_ACK, Setting, settings_frame, trusting
from tests.http2.reference_servers import HOST, SERVERS, certificate, haproxy, nghttpd

# How many cases h2spec 2.6 has in each section.
COUNTS = {
    "generic/1": 1,
    "generic/2": 5,
    "generic/3.1": 3,
    "generic/3.2": 3,
    "generic/3.3": 5,
    "generic/3.4": 1,
    "generic/3.5": 1,
    "generic/3.7": 1,
    "generic/3.8": 1,
    "generic/3.9": 2,
    "generic/3.10": 2,
    "generic/4": 4,
    "generic/5": 15,
    "http2/3.5": 2,
    "http2/4.1": 3,
    "http2/4.2": 3,
    "http2/4.3": 3,
    "http2/5.1": 13,
    "http2/5.1.1": 2,
    "http2/5.1.2": 1,
    "http2/5.3.1": 2,
    "http2/5.4.1": 2,
    "http2/5.5": 2,
    "http2/6.1": 3,
    "http2/6.2": 4,
    "http2/6.3": 2,
    "http2/6.4": 3,
    "http2/6.5": 3,
    "http2/6.5.2": 5,
    "http2/6.5.3": 2,
    "http2/6.7": 4,
    "http2/6.8": 1,
    "http2/6.9": 3,
    "http2/6.9.1": 3,
    "http2/6.9.2": 3,
    "http2/6.10": 6,
    "http2/7": 2,
    "http2/8.1": 1,
    "http2/8.1.2": 1,
    "http2/8.1.2.1": 4,
    "http2/8.1.2.2": 2,
    "http2/8.1.2.3": 7,
    "http2/8.1.2.6": 2,
    "http2/8.2": 1,
    "hpack/2.3.3": 2,
    "hpack/4.2": 1,
    "hpack/5.2": 3,
    "hpack/6.1": 1,
    "hpack/6.3": 1,
}

# What a server does otherwise, in some version: such a case may fail, and need not. nginx is no reference: of these
# cases it fails 25, since it forgives streams that are closed, and answers malformed requests with 400.
KNOWN = {
    "nghttpd": {
        "http2/5.1.1/2": "nghttp2 ignores HEADERS of a stream that it skipped, as if it had been closed (seen in 1.52)",
    },
    "haproxy": {},
    # It leaves the meaning of pseudo-header fields (RFC 9113 8.3) to the program above it.
    "hyper": dict.fromkeys(
        ("http2/8.1.2.1/2", "http2/8.1.2.3/1", "http2/8.1.2.3/2", "http2/8.1.2.3/3", "http2/8.1.2.3/4"),
        "hyper serves a request whose pseudo-header fields are wrong (seen in httpunk 0.4.5)",
    ),
}


def test_the_table_is_whole() -> None:
    assert Counter(case.section for case in CASES) == COUNTS
    assert len(CASES) == 147
    assert [case.number for case in CASES if case.strict] == ["http2/5.4.1/2"]  # without it: h2spec's 146
    assert set(SECTIONS) == set(COUNTS)
    for section, count in COUNTS.items():
        numbers = [case.number for case in CASES if case.section == section]
        assert numbers == [f"{section}/{number}" for number in range(1, count + 1)]


def mute(listening: socket.socket) -> None:
    """Says SETTINGS, acknowledges the first of the client, and then nothing."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as open_ones:
        while True:
            connection = open_ones.enter_context(listening.accept()[0])
            connection.sendall(settings_frame((Setting.MAX_CONCURRENT_STREAMS, 100)) + SETTINGS_ACK)


@pytest.mark.e2e
@pytest.mark.deep
def test_a_mute_server_fails() -> None:
    """Nothing passes but what asks for no more than a begin."""
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=mute, args=[listening], daemon=True)
        thread.start()
        port = listening.getsockname()[1]
        cases = [case for case in CASES if not case.needs_body]
        passed = {case.number for case in cases if run_case(case, HOST, port, patience_s=0.02).passed}
        assert passed == {"generic/1/1", "http2/3.5/1"}
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.e2e
@pytest.mark.deep
@pytest.mark.parametrize("name", ["nghttpd", "haproxy"])
def test_over_tls(name: str, tmp_path: Path, need_program: Callable[[str], str]) -> None:
    """With HTTP/2 by ALPN. A case of each section is enough."""
    need_program(name)
    made = certificate(tmp_path)
    tls = trusting(made.ca)
    with {"nghttpd": nghttpd, "haproxy": haproxy}[name](tmp_path, made) as running:
        for case in CASES:
            if case.number.endswith("/1"):
                verdict = run_case(case, HOST, running.port, tls=tls)
                assert verdict.passed, f"{case.number}: {verdict}"


@pytest.fixture(scope="module", params=sorted(KNOWN))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]
) -> Iterator[tuple[str, int]]:
    """(name, port)"""
    name = request.param
    if name == "hyper":
        pytest.importorskip("httpunk", reason="httpunk is not installed")
    else:
        need_program(name)
    with SERVERS[name](tmp_path_factory.mktemp(name)) as running:
        yield name, running.port


@pytest.mark.e2e
@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=[case.number for case in CASES])
def test_a_reference_passes(server: tuple[str, int], case: Case) -> None:
    name, port = server
    verdict = run_case(case, HOST, port)
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    if not verdict.passed and case.number in KNOWN[name]:
        pytest.xfail(KNOWN[name][case.number])
    assert verdict.passed, f"{case.title}: {verdict}"
