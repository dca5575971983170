"""`POST /pods` over a socket: who may, what is read, what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from activator.config.model.kinds import Secret
from activator.config.model.pods import Push
from activator.control_plane.sources.push.server import PUSH_REPORTS_MAX, PushServer, read_token
from activator.runtime.errors import StartError
from tests.control_plane.sources.test_push import Reporting

JSON = {"Content-Type": "application/json"}
REPORT = {"namespace": "ns", "revision": "rev", "pod": "p1", "address": "127.0.0.1:80", "state": "ready"}


def served(token: str, scenario: Callable[[httpx.AsyncClient, Reporting], Awaitable[None]]) -> None:
    async def run() -> None:
        world = Reporting()
        server = PushServer(world.intake, token)
        address = await server.start("127.0.0.1:0")
        worker = asyncio.create_task(world.joined.worker.run())
        try:
            async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, timeout=60.0) as client:
                await scenario(client, world)
        finally:
            worker.cancel()
            await asyncio.wait({worker})
            await server.close()

    asyncio.run(run())


async def post(client: httpx.AsyncClient, content: object, **headers: str) -> tuple[int, Any]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = await client.post("/pods", content=body, headers={**JSON, **headers})
    return answer.status_code, answer.json()


def test_one_report_and_many() -> None:
    async def scenario(client: httpx.AsyncClient, world: Reporting) -> None:
        assert await post(client, REPORT) == (200, {"pod": "p1", "outcome": "applied"})
        assert world.joined.slots() == {"p1": "ready"}, "the answer comes when it is applied"
        many = [{**REPORT, "state": "draining"}, {**REPORT, "pod": "p2", "address": "10.9.9.9:80"}]
        assert await post(client, many) == (
            200,
            [{"pod": "p1", "outcome": "applied"}, {"pod": "p2", "outcome": "foreign_address"}],
        )
        assert world.joined.slots() == {}
        assert (await post(client, {**REPORT, "revision": "none"}))[0] == 404
        assert (await post(client, {**REPORT, "address": "10.9.9.9:80"}))[0] == 403
        assert (await post(client, {**REPORT, "address": "nowhere"}))[0] == 400

    served("", scenario)


def test_without_the_token_nothing_is_read() -> None:
    async def scenario(client: httpx.AsyncClient, world: Reporting) -> None:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer"}):
            assert (await post(client, REPORT, **given))[0] == 401
        assert world.intake.verdict_totals == {}
        assert (await post(client, REPORT, Authorization="Bearer secret"))[0] == 200

    served("secret", scenario)


def test_what_cannot_be_read_is_refused_with_a_line() -> None:
    async def scenario(client: httpx.AsyncClient, world: Reporting) -> None:
        for body in (b"", b"{", b"1", b"[1]", json.dumps({**REPORT, "state": "well"}).encode(), b'{"pod": "p1"}'):
            status, answer = await post(client, body)
            assert (status, list(answer)) == (400, ["error"])
        assert (await post(client, {**REPORT, "more": 1}))[0] == 400
        assert (await post(client, [REPORT] * (PUSH_REPORTS_MAX + 1)))[0] == 413
        assert (await post(client, REPORT, Origin="http://elsewhere.test"))[0] == 403
        assert (await post(client, REPORT, **{"Content-Type": "text/plain"}))[0] == 415
        assert (await client.get("/pods")).status_code == 405
        assert world.intake.verdict_totals == {}

    served("", scenario)


def test_the_token_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert read_token(Push(token_file=str(file))) == "secret"
    assert read_token(Push(token=Secret("other"))) == "other"
    file.write_text("\n")
    with pytest.raises(StartError, match="is empty"):
        read_token(Push(token_file=str(file)))
    with pytest.raises(StartError, match="cannot be read"):
        read_token(Push(token_file=str(tmp_path / "none")))
