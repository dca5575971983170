"""By which names of ports HTTP/2 is spoken."""

from __future__ import annotations

import pytest

from activator.control_plane.sources.activations.declaration import names_http2


@pytest.mark.parametrize("name", ["h2c", "http2", "grpc", "h2c-api", "http2-a-b", "grpc-health", "grpc-website"])
def test_http2(name: str) -> None:
    assert names_http2(name)


@pytest.mark.parametrize(
    "name", ["", "http", "http1", "http21", "h2cx", "grpcweb", "web-grpc", "grpc-web", "grpc-web-a"]
)
def test_http1(name: str) -> None:
    assert not names_http2(name)
