"""Who may ask the admin port: with a token, and with a Host that is none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest

from activator.admin.inspection import configuration
from activator.admin.server import AdminServer
from activator.admin.token import AdminToken
from activator.config.file import parse
from activator.runtime.errors import StartError
from tests.admin.admin_server import served
from tests.admin.test_admin_health import Inside

Ask = Callable[..., Awaitable[tuple[int, str, str]]]

READS = [
    *("/", "/debug/revisions", "/debug/overview", "/debug/history", "/debug/config", "/debug/members", "/debug/tasks"),
    *("/debug/log", "/logs/a", "/nothing", "/metrics/", "//metrics", "/debug/../metrics/x"),
]
WRITES = [
    "/drain",
    "/reload",
    "/load/a",
    "/wake/a",
    "/unload/a",
    "/restart/a",
    "/debug/log",
    "/debug/profile?seconds=0",
    "/metrics",
]


def run(scenario: Callable[[Ask], Awaitable[None]], token: str) -> None:
    async def main() -> None:
        server = AdminServer(Inside(), lambda: 0.0, AdminToken(token))
        async with served(server) as address, aiohttp.ClientSession() as session:

            async def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                async with session.request(method, f"http://{address}{path}", headers=sent) as answer:
                    return answer.status, await answer.text(), answer.headers.get("WWW-Authenticate", "")

            await scenario(ask)

    asyncio.run(main())


def test_everything_needs_the_token_but_probes_and_metrics() -> None:
    async def scenario(ask: Ask) -> None:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await ask(path))[0] == 200
        for path in READS:
            assert (await ask(path))[0] == 401, path
            assert (await ask(path, Authorization="Bearer s3cret"))[0] != 401
        for path in WRITES:
            assert (await ask(path, "POST", Activator_Admin="1"))[0] == 401, path
            assert (await ask(path, "POST", Activator_Admin="1", Authorization="Bearer s3cret"))[0] != 401
        for wrong in (
            "",
            "s3cret",
            "Bearer",
            "Bearer s3cre",
            "Bearer s3crett",
            "Basic s3cret",
            "Basic =",
            "Bearer \xff",
        ):
            status, _, challenge = await ask("/debug/config", Authorization=wrong)
            assert (status, challenge[:6]) == (401, "Bearer"), wrong
        password = base64.b64encode(b"anybody:s3cret").decode()
        assert (await ask("/debug/config", Authorization=f"Basic {password}"))[0] == 200, "as a browser sends it"

    run(scenario, "s3cret")


def test_a_token_in_a_file_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")

    async def scenario(ask: Ask) -> None:
        assert (await ask("/debug/config", Authorization="Bearer one"))[0] == 200
        file.write_text("two\n")
        assert (await ask("/debug/config", Authorization="Bearer one"))[0] == 401
        assert (await ask("/debug/config", Authorization="Bearer two"))[0] == 200
        file.write_text("")
        for given in ("Bearer ", "Bearer two", ""):
            assert (await ask("/debug/config", Authorization=given))[0] == 401
        file.unlink()
        assert (await ask("/debug/config"))[0] == 401

    run(scenario, f"file:{file}")
    with pytest.raises(StartError, match="cannot be read"):
        AdminToken(f"file:{file}")
    with pytest.raises(StartError, match="ACTIVATOR_TEST_NO_SUCH is not set"):
        AdminToken("env:ACTIVATOR_TEST_NO_SUCH")


def test_without_a_token_nothing_is_asked_for() -> None:
    async def scenario(ask: Ask) -> None:
        assert (await ask("/debug/config"))[0] == 200

    run(scenario, "")


@pytest.mark.parametrize("host", ["[", "]", "[::1", "[x]", "a]b", "", "@", "\xff"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    async def scenario(ask: Ask) -> None:
        assert (await ask("/healthz", Host=host))[0] == 403
        assert (await ask("/healthz", Origin=f"http://{host}"))[0] == 403

    run(scenario, "")


SECRETS = """
admin: {listen: 127.0.0.1:1, token: hidden-1}
push: {listen: 127.0.0.1:2, token: hidden-2}
tracing: {exporter: otlp, endpoint: "http://user:hidden-3@collector:4318"}
revisions:
  - {name: a, hosts: [a], process: {command: [sh], environment: {KEY: hidden-4, EMPTY: ""}}}
  - {name: b, hosts: [b], container: {image: b, port: 80, environment: {KEY: hidden-5}}}
"""


def test_no_secret_is_shown() -> None:
    config = parse(SECRETS, "a", {})
    shown = configuration(config)
    assert "hidden" not in msgspec.json.encode(shown).decode()
    assert shown["push"]["token"] == shown["admin"]["token"] == "…"
    assert shown["tracing"]["endpoint"] == "http://…@collector:4318"
    assert shown["revisions"][0]["process"]["environment"] == {"KEY": "…", "EMPTY": ""}
    assert "hidden-1" not in repr(config) and "hidden-2" not in repr(config)
    assert "hidden-4" not in repr(config) and "hidden-5" not in repr(config)
    assert config.push.token == "hidden-2"
    assert configuration(parse(SECRETS.replace("token: hidden-2", 'token: ""'), "a", {}))["push"]["token"] == ""
