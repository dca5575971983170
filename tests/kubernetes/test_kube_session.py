"""The session that is made from kubernetes-asyncio's configuration, against real servers and a real proxy."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import uvloop
from aiohttp import ClientError, web
from kubernetes_asyncio.client import Configuration

from activator.kubernetes.session import KubeSession


def configuration(host: str) -> Configuration:
    made = Configuration()
    made.host = host
    return made


def serve(asked: Callable[[int], Awaitable[None]], context: ssl.SSLContext | None = None) -> list[web.BaseRequest]:
    """Run `asked` with the port of a server that answers everything; return the requests."""
    requests: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        requests.append(request)
        return web.Response(text="{}")

    async def run() -> None:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            await asked(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    uvloop.run(run())
    return requests


async def get(configured: Configuration) -> int:
    session = KubeSession(configured)
    try:
        async with await session.request("GET", "/api/v1/pods", {"limit": "2"}, {"Accept": "*/*"}, None) as response:
            return response.status
    finally:
        await session.close()


@pytest.mark.parametrize("token", ["Bearer first", ""])
def test_a_call_has_its_query_and_the_present_token(token: str) -> None:
    async def asked(port: int) -> None:
        made = configuration(f"http://127.0.0.1:{port}")
        made.api_key["BearerToken"] = token
        assert await get(made) == 200

    (request,) = serve(asked)
    assert request.path_qs == "/api/v1/pods?limit=2"
    assert request.headers.get("Authorization", "") == token


def test_calls_go_through_the_proxy_of_the_configuration() -> None:
    async def asked(port: int) -> None:
        made = configuration("http://cluster.invalid")
        made.proxy = f"http://127.0.0.1:{port}"
        assert await get(made) == 200

    (request,) = serve(asked)
    assert request.headers["Host"] == "cluster.invalid"


@pytest.mark.parametrize("way", ["named", "not verified", "neither"])
def test_a_certificate_is_verified_for_the_name_of_the_configuration(way: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("kubernetes.default").configure_cert(context)

    async def asked(port: int) -> None:
        made = configuration(f"https://127.0.0.1:{port}")
        made.ssl_ca_cert = str(tmp_path / "ca.crt")
        made.verify_ssl = way != "not verified"
        made.tls_server_name = "kubernetes.default" if way == "named" else None
        if way == "neither":
            with pytest.raises(ClientError):
                await get(made)
        else:
            assert await get(made) == 200

    assert len(serve(asked, context)) == (0 if way == "neither" else 1)
