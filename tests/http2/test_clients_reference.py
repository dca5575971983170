"""Clients that are not ours against servers that are not ours: what will be asked of our proxy can be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.http2.clients import CLIENTS, Address
from tests.http2.reference_servers import HOST, certificate, haproxy, nghttpd

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

STARTERS = {"nghttpd": nghttpd, "haproxy": haproxy}

# haproxy takes fields of 16 KiB at most, unless its buffers are enlarged.
KNOWN = {("haproxy", "nghttp"): {"continuation"}}


@pytest.fixture(scope="module", params=["nghttpd", "haproxy", "nghttpd with TLS", "haproxy with TLS"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]
) -> Iterator[tuple[str, Address]]:
    """(name, address)"""
    name, _, tls = request.param.partition(" with ")
    need_program(name)
    folder = tmp_path_factory.mktemp(name)
    made = certificate(folder) if tls else None
    with STARTERS[name](folder, made) as running:
        yield name, Address(HOST, running.port, made.ca if made is not None else None)


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_client(name: str, server: tuple[str, Address], need_program: Callable[[str], str]) -> None:
    need_program(name)
    known = KNOWN.get((server[0], name), set())
    assert {what: wrong for what, wrong in CLIENTS[name](server[1]).items() if wrong and what not in known} == {}
