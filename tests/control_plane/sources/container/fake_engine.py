"""A container engine in this process: the part of Docker's API that is used, over a real unix socket.

`contract.py` has what this one and a real engine must do alike; the end-to-end tests hold Podman and Docker to it. Its
containers are no programs: what an image would do is said when it is added, and a server listens where one would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Image:
    """`lines`: what its program writes; `exit_code`: it ends at once, with that; `listens`: on its port.

    `is_stubborn`: it ends at SIGKILL alone; `test`: its HEALTHCHECK.
    """

    def __init__(
        self,
        lines: tuple[tuple[int, str], ...] = (),
        exit_code: int | None = None,
        listens: bool = True,
        is_stubborn: bool = False,
        test: list[str] | None = None,
        ports: tuple[int, ...] = (8080,),
    ) -> None:
        self.lines = lines
        self.exit_code = exit_code
        self.listens = listens
        self.is_stubborn = is_stubborn
        self.test = test
        self.ports = ports
        self.is_oom_killed = False
        self.ignores_limits = False  # as a Podman without root on cgroups v1
        self.is_terminal = False


class FakeContainer:
    """One container; its server is on a port of 127.0.0.1."""

    def __init__(self, name: str, number: int, image: Image, body: dict[str, Any]) -> None:
        self.id = f"{number:064x}"
        self.name = name
        self.image = image
        self.body = body
        self.created = number
        self.state = "created"
        self.exit_code = 0
        self.began = "0001-01-01T00:00:00Z"
        self.paused = False
        self.port = 0
        self.changed = asyncio.Event()
        self.server: asyncio.Server | None = None
        self.clients: set[asyncio.StreamWriter] = set()
        self.log: list[tuple[int, int, bytes]] = []  # time in nanoseconds, stream, message
        self.written = asyncio.Event()

    def write(self, text: bytes, stream: int = 1) -> None:
        """The program writes a message, which the engine logs whether it is asked or not."""
        self.log.append((time.time_ns(), stream, text))
        self.written.set()
        self.written = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    async def start(self) -> None:
        self.state, self.exit_code = "running", 0
        self.began = datetime.now(UTC).isoformat()
        for stream, text in self.image.lines:
            self.write(text.encode() + b"\n", stream)
        if self.image.listens:
            # Bound first and served after: whoever asked may be cancelled in between, and the server would be lost.
            self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, start_serving=False)
            self.port = self.server.sockets[0].getsockname()[1]
            await self.server.start_serving()
        if self.image.exit_code is not None:
            self.end(self.image.exit_code)

    def end(self, code: int) -> None:
        if self.is_running:
            self.state, self.exit_code = "exited", code
            if self.server is not None:
                self.server.close()
            for client in self.clients:
                client.transport.abort()
            self.changed.set()
            self.changed = asyncio.Event()
            self.written.set()
            self.written = asyncio.Event()

    def shown(self) -> dict[str, Any]:
        ports: dict[str, Any] = {f"{port}/tcp": {} for port in self.image.ports}
        host = self.body.get("HostConfig") or {}
        bindings = host.get("PortBindings") or {}
        published = {
            name: [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}] if self.is_running and self.port else None
            for name in bindings
        }
        config: dict[str, Any] = {
            "ExposedPorts": ports,
            "Tty": self.image.is_terminal,
            "Labels": self.body.get("Labels") or {},
        }
        if self.image.test is not None:
            config["Healthcheck"] = {"Test": self.image.test}
        limits = {} if self.image.ignores_limits else {"Memory": host.get("Memory", 0)}
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": config,
            "State": {
                "Status": "paused" if self.paused else self.state,
                "Running": self.is_running,
                "Paused": self.paused,
                "Pid": os.getpid() if self.is_running else 0,
                "OOMKilled": self.image.is_oom_killed and not self.is_running,
                "ExitCode": self.exit_code,
                "Error": "",
                "StartedAt": self.began,
            },
            "HostConfig": {"NetworkMode": host.get("NetworkMode", "bridge"), "PortBindings": bindings} | limits,
            "NetworkSettings": {"Ports": published, "Networks": {"bridge": {"IPAddress": ""}}},
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()
        self.clients.discard(writer)


class FakeEngine:
    """`faults`: what to do instead of an answer, by the path's end: `500`, `stall`, `cut`, `trickle`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.images: dict[str, Image] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.faults: dict[str, str] = {}
        self.calls: list[str] = []
        self.queries: list[dict[str, str]] = []  # of each of them
        self.warnings: list[str] = []  # when one is created
        self.start_errors: list[str] = []  # of the next starts
        self.execs: dict[str, int] = {}
        self.exec_codes: list[int] = []  # of the commands that are run, in this order; 0 when there are no more
        self.pull_steps: list[dict[str, Any]] = [{"status": "Pulling"}]
        self.pulls_as: Image | None = None  # what a pull brings
        self.has_whole_seconds = False  # the times of messages, as those of Podman's compatible API
        self._events: list[asyncio.Queue[bytes]] = []
        self._numbers = itertools.count(1)
        self._transports: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[self._faulty])
        for method, target, handler in (
            ("GET", "/version", self._version),
            ("GET", "/_ping", self._ping),
            ("GET", "/containers/json", self._list),
            ("POST", "/containers/create", self._create),
            ("GET", "/containers/{name}/json", self._inspect),
            ("POST", "/containers/{name}/start", self._start),
            ("POST", "/containers/{name}/stop", self._stop),
            ("POST", "/containers/{name}/kill", self._kill),
            ("POST", "/containers/{name}/wait", self._wait),
            ("POST", "/containers/{name}/pause", self._pause),
            ("POST", "/containers/{name}/unpause", self._unpause),
            ("DELETE", "/containers/{name}", self._delete),
            ("GET", "/containers/{name}/logs", self._logs),
            ("POST", "/containers/{name}/exec", self._exec),
            ("POST", "/exec/{name}/start", self._exec_start),
            ("GET", "/exec/{name}/json", self._exec_shown),
            ("GET", "/images/{name:.+}/json", self._image),
            ("POST", "/images/create", self._pull),
            ("GET", "/events", self._listen),
        ):
            app.router.add_route(method, target, handler)
            app.router.add_route(method, "/v1.41" + target, handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, self.path).start()

    async def stop(self) -> None:
        """It is away; its containers go on."""
        if self._runner is not None:
            for transport in self._transports:
                transport.abort()
            await self._runner.cleanup()
            self._runner = None
        self._unlink()

    def _unlink(self) -> None:
        Path(self.path).unlink(missing_ok=True)

    async def close(self) -> None:
        await self.stop()
        for container in self.containers.values():
            container.end(0)

    def say(self, action: str, container: FakeContainer) -> None:
        """An event."""
        event = {"Type": "container", "Action": action, "Actor": {"ID": container.id}}
        for queue in self._events:
            queue.put_nowait(json.dumps(event).encode() + b"\n")

    def find(self, name: str) -> FakeContainer | None:
        for one in self.containers.values():
            if name in {one.id, one.name} or (len(name) >= 12 and one.id.startswith(name)):
                return one
        return None

    def add(self, name: str, image: str, **body: Any) -> FakeContainer:
        """A container that somebody else makes."""
        made = FakeContainer(name, next(self._numbers), self.images[image], body)
        self.containers[made.id] = made
        self.say("create", made)
        return made

    def remove(self, container: FakeContainer) -> None:
        self.containers.pop(container.id, None)
        container.end(137)
        self.say("destroy", container)

    # --- what is asked ---

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        self.calls.append(f"{request.method} {request.path.removeprefix('/v1.41')}")
        self.queries.append(dict(request.query))
        fault = next((kind for end, kind in self.faults.items() if request.path.endswith(end)), "")
        if fault == "500":
            return web.json_response({"message": "an error of the engine\n" + "x" * 10_000}, status=500)
        if fault == "stall":
            await asyncio.Event().wait()
        if fault == "cut":
            assert request.transport is not None
            request.transport.abort()
        if fault == "garbage":
            return web.Response(text="no JSON", content_type="application/json")
        if fault == "trickle":
            answer = await self._begun(request)
            for _ in range(10_000):
                await answer.write(b" ")
                await asyncio.sleep(0.01)
        if fault == "endless":
            answer = await self._begun(request)
            while True:
                await answer.write(b"x" * 65_536)
        return await handler(request)

    async def _begun(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        return answer

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Components": [{"Name": "Engine"}]})

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("filters", "{}")).get("label", [])
        shown = []
        for one in self.containers.values():
            labels = one.body.get("Labels") or {}
            pairs = {*labels, *(f"{name}={value}" for name, value in labels.items())}
            if pairs.issuperset(wanted):
                names = [f"/{one.name}"]
                shown.append(
                    {"Id": one.id, "Names": names, "Labels": labels, "State": one.state, "Created": one.created}
                )
        return web.json_response(shown)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = request.query.get("name") or f"made{len(self.containers)}"
        image = self.images.get(body["Image"])
        if image is None:
            return _missing(f"no such image: {body['Image']}")
        if self.find(name) is not None:
            return web.json_response({"message": f"the name {name} is in use"}, status=409)
        made = FakeContainer(name, next(self._numbers), image, body)
        self.containers[made.id] = made
        self.say("create", made)
        return web.json_response({"Id": made.id, "Warnings": self.warnings}, status=201)

    def _named(self, request: web.Request) -> FakeContainer | None:
        return self.find(request.match_info["name"])

    async def _inspect(self, request: web.Request) -> web.Response:
        one = self._named(request)
        return _missing("no such container") if one is None else web.json_response(one.shown())

    async def _start(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        if one.is_running:
            return web.Response(status=304)
        if self.start_errors:
            return web.json_response({"message": self.start_errors.pop(0)}, status=500)
        await asyncio.shield(one.start())  # a connection that breaks does not stop an engine halfway
        self.say("start", one)
        return web.Response(status=204)

    async def _stop(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        if not one.is_running:
            return web.Response(status=304)
        if one.image.is_stubborn:
            await asyncio.sleep(float(request.query.get("t", "10")))
        one.end(137 if one.image.is_stubborn else 143)
        self.say("die", one)
        return web.Response(status=204)

    async def _kill(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        if not one.is_running:
            return web.json_response({"message": "it does not run"}, status=409)
        one.end(137)
        self.say("die", one)
        return web.Response(status=204)

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        answer = await self._begun(request)
        began = one.began
        while one.is_running and one.began == began:  # one that is started again has ended, too
            await one.changed.wait()
        await answer.write(json.dumps({"StatusCode": one.exit_code}).encode())
        return answer

    async def _pause(self, request: web.Request) -> web.Response:
        return self._set_paused(request, True)

    async def _unpause(self, request: web.Request) -> web.Response:
        return self._set_paused(request, False)

    def _set_paused(self, request: web.Request, paused: bool) -> web.Response:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        if one.paused == paused or not one.is_running:
            return web.json_response({"message": "not in that state"}, status=500)
        one.paused = paused
        return web.Response(status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        if one.is_running and request.query.get("force") != "true":
            return web.json_response({"message": "it runs"}, status=409)
        self.remove(one)
        return web.Response(status=204)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        one = self._named(request)
        if one is None:
            return _missing("no such container")
        answer = await self._begun(request)
        since_ns = int(float(request.query.get("since", "0")) * 1e9)
        place = max(len(one.log) - int(request.query.get("tail", len(one.log))), 0)
        while True:
            for time_ns, stream, text in one.log[place:]:
                place += 1
                if time_ns < since_ns:
                    continue
                data = self._time(time_ns) + text if request.query.get("timestamps") == "1" else text
                if not one.image.is_terminal:
                    data = bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data
                await answer.write(data)
            if not (one.is_running and request.query.get("follow")):
                return answer
            await one.written.wait()

    def _time(self, time_ns: int) -> bytes:
        shown = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        part = "" if self.has_whole_seconds else f".{time_ns % 1_000_000_000:09}"
        return f"{shown}{part}Z ".encode()

    async def _exec(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if one is None or not one.is_running:
            return web.json_response({"message": "it does not run"}, status=404 if one is None else 409)
        name = f"e{next(self._numbers)}"
        self.execs[name] = self.exec_codes.pop(0) if self.exec_codes else 0
        return web.json_response({"Id": name}, status=201)

    async def _exec_start(self, request: web.Request) -> web.Response:
        return web.Response(body=b"")

    async def _exec_shown(self, request: web.Request) -> web.Response:
        return web.json_response({"ExitCode": self.execs[request.match_info["name"]], "Running": False})

    async def _image(self, request: web.Request) -> web.Response:
        image = self.images.get(request.match_info["name"])
        if image is None:
            return _missing("no such image")
        return web.json_response({"Config": {"ExposedPorts": {f"{port}/tcp": {} for port in image.ports}}})

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        answer = await self._begun(request)
        for step in self.pull_steps:
            await answer.write(json.dumps(step).encode() + b"\r\n")
        if self.pulls_as is not None:
            self.images[request.query["fromImage"]] = self.pulls_as
        return answer

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        answer = await self._begun(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._events.append(queue)
        try:
            while True:
                await answer.write(await queue.get())
        finally:
            self._events.remove(queue)


def _missing(message: str) -> web.Response:
    return web.json_response({"message": message}, status=404)


@contextlib.asynccontextmanager
async def fake_engine(path: Path) -> AsyncIterator[FakeEngine]:
    """One that serves at `path`."""
    made = FakeEngine(path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
