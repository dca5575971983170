"""gRPC clients against gRPC servers, directly and through haproxy: the cases that will be run through our proxy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http2.grpc_processes import ask, serving
from tests.http2.grpc_program import LIBRARIES
from tests.http2.grpc_service import CASES
from tests.http2.reference_servers import HOST, haproxy_for_grpc, nghttpd

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

# grpclib's server answers what it does not know without a content-type, and grpclib's client insists on one.
KNOWN = {("grpclib", "grpclib"): {"unimplemented_method", "unimplemented_service"}}
# A server that answers before the request is over resets the stream after its status; haproxy (2.6) sometimes hands on
# the reset alone. A call of a millisecond sometimes ends at its client with haproxy's reset before its own deadline.
LOST_BY_HAPROXY = {"status_code_and_message", "timeout_on_sleeping_server"}


@pytest.fixture(autouse=True, scope="module")
def libraries(need: Callable[[bool, str], None]) -> None:
    for package in ("grpc", "grpclib"):
        need(importlib.util.find_spec(package) is not None, f"the Python package {package}")


@pytest.fixture(scope="module", params=LIBRARIES)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """(library, port)"""
    with serving(request.param) as port:
        yield request.param, port


def wrong(client: str, server: str, port: int) -> dict[str, str]:
    found = ask(client, f"{HOST}:{port}")
    assert tuple(found) == CASES
    known = KNOWN.get((client, server), set())
    return {case: problem for case, problem in found.items() if problem and case not in known}


@pytest.mark.parametrize("client", LIBRARIES)
def test_directly(client: str, server: tuple[str, int]) -> None:
    assert wrong(client, *server) == {}


@pytest.mark.parametrize("client", LIBRARIES)
def test_through_haproxy(
    client: str, server: tuple[str, int], tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("haproxy")
    with haproxy_for_grpc(tmp_path, server[1]) as proxy:
        assert wrong(client, server[0], proxy.port).keys() <= LOST_BY_HAPROXY


@pytest.mark.parametrize("client", LIBRARIES)
def test_what_is_no_grpc_fails(client: str, tmp_path: Path, need_program: Callable[[str], str]) -> None:
    """The cases can fail, but for those that end before an answer is needed."""
    need_program("nghttpd")
    with nghttpd(tmp_path) as running:
        found = ask(client, f"{HOST}:{running.port}", patience_s=1.0)
        passed = {case for case, problem in found.items() if not problem}
        assert passed <= {"cancel_after_begin", "timeout_on_sleeping_server", "unimplemented_method",
                          "unimplemented_service"}  # fmt: skip
