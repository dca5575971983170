"""What we rely on in a container engine: asked of the fake one by its tests, of Podman and Docker end to end."""

from __future__ import annotations

import asyncio
import json

import pytest

from activator.control_plane.sources.container.engine import Engine, EngineError
from activator.control_plane.sources.container.exec import run_command
from activator.control_plane.sources.container.state import state_of
from activator.control_plane.sources.container.streams import Demultiplexer, LogPosition

PORT = 8080


async def status_of(engine: Engine, method: str, target: str, query: dict[str, str] | None = None) -> int:
    """0: it did as it was told."""
    try:
        await engine.call(method, target, query)
    except EngineError as error:
        return error.status
    return 0


async def check_contract(engine: Engine, image: str, pauses: bool = True) -> None:
    """`image` has a server on PORT, which ends at SIGTERM and writes a line with "listening". `pauses`: as far as this
    machine can.
    """
    assert await engine.inspect("images", "localhost/nowhere") is None
    assert await engine.inspect("containers", "nobody") is None
    shown = await engine.inspect("images", image)
    assert shown is not None and f"{PORT}/tcp" in shown["Config"]["ExposedPorts"]
    body: dict[str, object] = {
        "Image": image,
        "Labels": {"contract": "held"},
        "ExposedPorts": {f"{PORT}/tcp": {}},
        "HostConfig": {"PortBindings": {f"{PORT}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}},
    }
    made = await engine.call("POST", "/containers/create", {"name": "contract"}, body)
    name = made["Id"]
    assert name.isalnum()
    try:
        await _check_life(engine, name, body, pauses)
    finally:
        await engine.call("DELETE", f"/containers/{name}", {"force": "true", "v": "true"})
    assert await engine.inspect("containers", name) is None
    assert await status_of(engine, "DELETE", f"/containers/{name}", {"force": "true"}) == 404
    assert await status_of(engine, "POST", f"/containers/{name}/start") == 404


async def _check_life(engine: Engine, name: str, body: dict[str, object], pauses: bool) -> None:
    with pytest.raises(EngineError, match="in use"):  # 409 with Docker, 500 with Podman
        await engine.call("POST", "/containers/create", {"name": "contract"}, body)
    query = {"all": "true", "filters": json.dumps({"label": ["contract=held"]})}
    listed = await engine.call("GET", "/containers/json", query)
    assert [(one["Id"], one["Labels"]["contract"]) for one in listed] == [(name, "held")]
    assert await status_of(engine, "POST", f"/containers/{name}/start") == 0
    assert await status_of(engine, "POST", f"/containers/{name}/start") == 0  # 304
    shown = await engine.inspect("containers", "contract")
    assert shown is not None and shown["Id"] == name and state_of(shown).is_running
    binding = shown["NetworkSettings"]["Ports"][f"{PORT}/tcp"][0]
    assert binding["HostIp"] == "127.0.0.1" and int(binding["HostPort"]) > 0
    assert state_of(shown).process > 0
    began = state_of(shown).began
    assert began
    assert await run_command(engine, name, ["true"], 10.0) == 0
    if pauses:
        assert await status_of(engine, "POST", f"/containers/{name}/pause") == 0
        shown = await engine.inspect("containers", name)
        assert shown is not None and state_of(shown).is_paused and state_of(shown).is_running
        assert await status_of(engine, "POST", f"/containers/{name}/unpause") == 0
        shown = await engine.inspect("containers", name)
        assert shown is not None and state_of(shown).began == began, "a pause is no restart"
    else:
        assert await status_of(engine, "POST", f"/containers/{name}/pause") == 500
    frames, position = Demultiplexer(), LogPosition()
    query = {"follow": "1", "stdout": "1", "stderr": "1", "timestamps": "1"}
    async with engine.streamed("GET", f"/containers/{name}/logs", query) as log:
        seen = b""
        async with asyncio.timeout(10.0):
            while b"listening" not in seen:
                seen += b"".join(position.unread_part(piece) for piece in frames.feed(await log.read(1024)))
    since_s = position.since_s()
    assert since_s is not None, "each message has a time"
    position.resume()
    query = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": f"{since_s:.6f}"}
    async with engine.streamed("GET", f"/containers/{name}/logs", query) as log:
        again = await log.read()
    assert b"listening" in again
    assert b"".join(position.unread_part(piece) for piece in Demultiplexer().feed(again)) == b""
    ended = asyncio.ensure_future(_until_ended(engine, name))
    assert await status_of(engine, "POST", f"/containers/{name}/stop", {"t": "5"}) == 0
    await asyncio.wait_for(ended, 10.0)
    shown = await engine.inspect("containers", name)
    assert shown is not None and not state_of(shown).is_running
    assert await status_of(engine, "POST", f"/containers/{name}/stop", {"t": "5"}) == 0  # 304
    assert await status_of(engine, "POST", f"/containers/{name}/kill", {"signal": "SIGKILL"}) in (409, 500)
    assert await status_of(engine, "POST", f"/containers/{name}/start") == 0
    shown = await engine.inspect("containers", name)
    assert shown is not None and state_of(shown).began not in ("", began), "each start has a time of its own"


async def _until_ended(engine: Engine, name: str) -> None:
    async with engine.streamed("POST", f"/containers/{name}/wait") as content:
        await content.read()
