"""The admin port: health, metrics, debug pages, and a few commands.

Rules
  1. The port is for operators on this machine or in the cluster, and is protected against requests of foreign web
     pages: a request whose Host is a foreign name, or whose Origin is another site, is refused, and a request that
     changes something needs the header `Activator-Admin: 1`, which a page of another site cannot send without a
     preflight.
  2. If a token is configured, every request needs it except those of kubelets and Prometheus (`OPEN_PATHS`).
  3. The request path does not use this module, and no handler may block the loop for long.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

import activator
from activator.admin.hosts import hostname, is_own
from activator.admin.last_requests import parse_id
from activator.admin.page import HEADERS, PAGE
from activator.admin.token import CHALLENGE, OPEN_PATHS, AdminToken
from activator.config.model.telemetry import LOG_LEVELS, LOG_PARTS
from activator.config.specs import key_of
from activator.runtime.clock import Now
from activator.runtime.durations import parse_seconds
from activator.runtime.errors import NoWorkerError
from activator.runtime.profiler import Profiler, ProfilerBusyError
from activator.runtime.sockets import ADMIN_CONNECTIONS_MAX
from activator.runtime.tasks import describe_tasks
from activator.telemetry.history import HISTORY_DAY_INTERVAL_S, HISTORY_INTERVAL_S
from activator.telemetry.logs.app_log import AppLog
from activator.telemetry.metrics.sliced_response import answer_in_slices

PROFILE_SECONDS: Final = 5.0  # the default duration of a profile
PROFILE_SECONDS_MAX: Final = 60.0
REQUESTS_SHOWN: Final = 100  # the default number of last requests
REQUESTS_SHOWN_MAX: Final = 1_000
REQUEST_ORDERS: Final = ("newest", "slowest")
LINE_NUMBER_DIGITS_MAX: Final = 15
HISTORY_RANGES: Final = ("hour", "day")
HISTORY_KEYS_MAX: Final = 100  # revisions that one request may name
WAKE_S: Final = 600.0  # the default duration of a wake
HOLD_S_MAX: Final = 7 * 86_400.0

ADMIN_HEADER: Final = "Activator-Admin"
_READS: Final = frozenset({"GET", "HEAD"})
_INDEX: Final = """activator
GET  /                 the live page, for browsers
GET  /healthz          liveness: the state worker makes progress
GET  /readyz           readiness: requests can be served
GET  /metrics          Prometheus
GET  /debug/revisions  revisions, queues, slots; ?revision=NAMESPACE/NAME: one of them
GET  /debug/overview   one row for each revision
GET  /debug/history    samples of the last hour; ?range=day; ?revision=NAMESPACE/NAME (repeatable) selects revisions
GET  /debug/requests   the last requests; ?revision=NAME, ?n=COUNT, ?order=slowest
GET  /debug/requests/ID   what one of them sent and received
GET  /debug/config     the configuration in effect
GET  /debug/members    the group of replicas, as this one sees it
GET  /debug/tasks      background tasks
     ?worker=N on /debug/revisions, /debug/tasks, /debug/profile: one worker only
GET  /logs/NAME        the last lines of a local program; ?after=N: lines after number N
GET  /debug/log        log levels by component
POST /debug/log?part=state&level=debug   until the next reload   (with the header Activator-Admin: 1)
POST /debug/profile?seconds=5            for speedscope          (with the header Activator-Admin: 1)
POST /load/NAME        start the programs of a revision; ?for=10m: and keep one (with the header Activator-Admin: 1)
POST /wake/NAME        the same as /load; ?for= defaults to 10m (with the header Activator-Admin: 1)
POST /unload/NAME      stop the programs of a revision after their requests (with the header Activator-Admin: 1)
POST /restart/NAME     start replacements, then stop the old programs (with the header Activator-Admin: 1)
POST /drain-pod/NAME?pod=ADDRESS   take a pod out of service    (with the header Activator-Admin: 1)
POST /enable-pod/NAME?pod=ADDRESS  put it back into service     (with the header Activator-Admin: 1)
POST /members/SEAT/ended  confirm that the silent member at SEAT has ended (with the header Activator-Admin: 1)
POST /drain            finish the requests in progress, then exit (with the header Activator-Admin: 1)
POST /reload           read the configuration file again     (with the header Activator-Admin: 1)
POST /upgrade          hand over to a new process            (with the header Activator-Admin: 1)
"""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminBackend(Protocol):
    """The queries and commands that the admin port needs from the program."""

    def is_alive(self) -> bool: ...

    def waiting_for(self) -> list[str]:
        """Return why the program is not ready to serve; empty if it is."""
        ...

    async def gather_statistics(self) -> None:
        """Collect the figures for `metrics` from all processes of the program."""
        ...

    async def gather_snapshot(self) -> None:
        """Collect the data for `snapshot` from all processes of the program."""
        ...

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        """Return the exposition, as slices rendered on demand, and its content type, for the header Accept."""
        ...

    def snapshot(self, only: str = "") -> object:
        """Return plain data for `GET /debug/revisions`, of all revisions or of the one with this key."""
        ...

    def overview(self) -> Iterator[bytes]:
        """Return the response to `GET /debug/overview`, as slices rendered on demand."""
        ...

    async def last_requests(self, key: str, count: int, searched: int) -> object:
        """Return the last requests of a revision, or of all if `key` is empty, as plain data, the newest first.

        With `searched`, return the slowest of that many instead, the slowest first.
        """
        ...

    async def capture_of(self, worker: int, number: int) -> object:
        """Return what one request sent and received; None if it was not captured. Raises NoWorkerError."""
        ...

    def history(self, keys: list[str], is_day: bool) -> object:
        """Return the history of these revisions as plain data, of the last hour or day; of all without keys."""
        ...

    def timelines(self) -> object:
        """Return what the programs of each group did in the last hour, as plain data."""
        ...

    async def snapshot_of(self, worker: int) -> object:
        """Return the snapshot of one worker. Raises NoWorkerError, as the next two methods do."""
        ...

    async def tasks_of(self, worker: int) -> object: ...

    async def profile_of(self, worker: int, seconds: float) -> object:
        """Take a profile of one worker. Raises ProfilerBusyError."""
        ...

    def program_output(self, key: str, after: int) -> object:
        """Return the lines of a revision's programs behind a number; None if it does not exist or has no programs."""

    def load(self, key: str, seconds: float | None) -> str:
        """Load a revision, and keep a program for `seconds`, or its idle time if None. Return a problem, or ""."""
        ...

    def unload(self, key: str) -> str:
        """Stop the programs of a revision. Return why it is refused, or ""."""
        ...

    def set_aside(self, key: str, pod: str, is_aside: bool) -> str:
        """Take a pod, by address or identity, out of service, or put it back. Return why it is refused, or ""."""
        ...

    def restart(self, key: str) -> str:
        """Replace the programs of a revision by new ones. Return why it is refused, or ""."""
        ...

    def end_member(self, seat: int) -> str:
        """Accept the operator's assurance that the silent member at a seat has ended. Return why not, or ""."""

    def members(self) -> object:
        """Return plain data for `GET /debug/members`."""

    def configuration(self) -> object:
        """Return plain data for `GET /debug/config`."""
        ...

    @property
    def log(self) -> AppLog | None:
        """The program's own log; None if it is not configured here."""
        ...

    def set_log_level(self, part: str, level: str) -> None: ...

    def stop(self) -> None: ...

    @property
    def needs_restart(self) -> list[str]:
        """Keys that the last reload changed and that only take effect after a restart."""
        ...

    def reload(self) -> list[str]: ...

    async def upgrade(self) -> dict[str, Any]:
        """Hand over to a new process. Return `problems`; without any, also what serves now."""
        ...


class AdminServer:
    """The HTTP server of the admin port, by aiohttp."""

    def __init__(self, backend: AdminBackend, now: Now, token: AdminToken | None = None) -> None:
        """Make a server; requests must have `token` unless it is None."""
        self._backend = backend
        self._token = token or AdminToken("")
        self._profiler = Profiler(now)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve the connections of a listening socket, which the server owns from now on."""
        application = web.Application(middlewares=[_refuse_foreign, self._refuse_strangers], client_max_size=64 * 1024)
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/debug/revisions", self._revisions),
                web.get("/debug/overview", self._overview),
                web.get("/debug/history", self._history),
                web.get("/debug/requests", self._requests),
                web.get("/debug/requests/{id}", self._request),
                web.get("/debug/config", self._configuration),
                web.get("/logs/{name:.+}", self._logs),
                web.get("/debug/members", self._members),
                web.get("/debug/tasks", self._tasks),
                web.get("/debug/log", self._log),
                web.post("/debug/log", self._set_log),
                web.post("/debug/profile", self._profile),
                web.post("/load/{name:.+}", self._load),
                web.post("/wake/{name:.+}", self._load),
                web.post("/unload/{name:.+}", self._unload),
                web.post("/restart/{name:.+}", self._restart),
                web.post("/drain-pod/{name:.+}", self._drain_pod),
                web.post("/enable-pod/{name:.+}", self._enable_pod),
                web.post("/members/{seat:[0-9]{1,3}}/ended", self._end_member),
                web.post("/drain", self._drain),
                web.post("/reload", self._reload),
                web.post("/upgrade", self._upgrade),
            ]
        )
        runner = self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        accepting = _Accepting(runner.server)
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        self._server = await create(accepting.accepted, sock=sock)

    async def close(self) -> None:
        self._profiler.stop()
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _refuse_strangers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Require the token, except for the paths that kubelets and Prometheus read."""
        is_open = request.path in OPEN_PATHS and request.method in _READS
        if is_open or self._token.is_in(request.headers.get("Authorization", "")):
            return await handler(request)
        text = "the token is missing or wrong (Authorization: Bearer …, or `activator --token`)\n"
        return web.Response(status=401, text=text, headers={"WWW-Authenticate": CHALLENGE})

    async def _index(self, request: web.Request) -> web.Response:
        if "text/html" in request.headers.get("Accept", ""):
            return web.Response(text=PAGE, content_type="text/html", headers=HEADERS)
        return web.Response(text=_INDEX)

    async def _healthz(self, request: web.Request) -> web.Response:
        if self._backend.is_alive():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the state worker makes no progress\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._backend.waiting_for()
        if not reasons:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        await self._backend.gather_statistics()
        slices, content_type = self._backend.metrics(request.headers.get("Accept", ""))
        return await answer_in_slices(request, slices, content_type)

    async def _revisions(self, request: web.Request) -> web.Response:
        worker = _worker(request)
        if worker is not None:
            return _json(await self._backend.snapshot_of(worker))
        await self._backend.gather_snapshot()
        return _json(self._backend.snapshot(request.query.get("revision", "")))

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        return await answer_in_slices(request, self._backend.overview(), "application/json")

    async def _history(self, request: web.Request) -> web.Response:
        keys = request.query.getall("revision", [])
        if len(keys) > HISTORY_KEYS_MAX:
            return _json({"problems": [f"revision: at most {HISTORY_KEYS_MAX} of them"]}, status=400)
        span = request.query.get("range", HISTORY_RANGES[0])
        if span not in HISTORY_RANGES:
            return _json({"problems": [f"range: one of {', '.join(HISTORY_RANGES)}"]}, status=400)
        is_day = span == "day"
        interval_s = HISTORY_DAY_INTERVAL_S if is_day else HISTORY_INTERVAL_S
        shown = {"interval_s": interval_s, "revisions": self._backend.history(keys, is_day)}
        body = msgspec.json.encode({**shown, "groups": self._backend.timelines()})
        return web.Response(body=body, content_type="application/json")

    async def _requests(self, request: web.Request) -> web.Response:
        name, count = request.query.get("revision", ""), request.query.get("n", str(REQUESTS_SHOWN))
        if not (count.isascii() and count.isdigit() and 0 < int(count[:5]) <= REQUESTS_SHOWN_MAX and len(count) <= 4):
            return _json({"problems": [f"n: a number from 1 to {REQUESTS_SHOWN_MAX}"]}, status=400)
        order = request.query.get("order", REQUEST_ORDERS[0])
        if order not in REQUEST_ORDERS:
            return _json({"problems": [f"order: one of {', '.join(REQUEST_ORDERS)}"]}, status=400)
        searched = 0 if order == REQUEST_ORDERS[0] else REQUESTS_SHOWN_MAX
        return _json(await self._backend.last_requests(key_of(name) if name else "", int(count), searched))

    async def _request(self, request: web.Request) -> web.Response:
        worker, number = parse_id(request.match_info["id"])
        capture = await self._backend.capture_of(worker, number) if number else None
        if capture is None:
            problem = "there is no capture of this request, or none any more (`record.capture` keeps them)"
            return _json({"problems": [problem]}, status=404)
        return _json(capture)

    async def _configuration(self, request: web.Request) -> web.Response:
        return _json(self._backend.configuration())

    async def _logs(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= LINE_NUMBER_DIGITS_MAX):
            return _json({"problems": ["after: the number of a line, 0 for all"]}, status=400)
        output = self._backend.program_output(key_of(name), int(after))
        if output is None:
            problem = f"there is no revision {name} with a local program; `activator status` lists revisions"
            return _json({"problems": [problem]}, status=404)
        return _json(output)

    async def _load(self, request: web.Request) -> web.Response:
        duration = request.query.get("for")
        seconds = parse_seconds(duration) if duration is not None else None
        if request.path.startswith("/wake/") and duration is None:
            seconds = WAKE_S
        if (duration is not None and seconds is None) or not 0.0 < (seconds or 1.0) <= HOLD_S_MAX:
            problem = f"for: a duration such as 300s, 10m or 2h, more than 0, at most {HOLD_S_MAX / 3600.0:g}h"
            return _json({"problems": [problem]}, status=400)
        return _outcome(request, self._backend.load(_key(request), seconds))

    async def _unload(self, request: web.Request) -> web.Response:
        return _outcome(request, self._backend.unload(_key(request)))

    async def _restart(self, request: web.Request) -> web.Response:
        return _outcome(request, self._backend.restart(_key(request)))

    async def _drain_pod(self, request: web.Request) -> web.Response:
        return _outcome(request, self._backend.set_aside(_key(request), request.query.get("pod", ""), True))

    async def _enable_pod(self, request: web.Request) -> web.Response:
        return _outcome(request, self._backend.set_aside(_key(request), request.query.get("pod", ""), False))

    async def _members(self, request: web.Request) -> web.Response:
        return _json(self._backend.members())

    async def _end_member(self, request: web.Request) -> web.Response:
        seat = int(request.match_info["seat"])
        problem = self._backend.end_member(seat)
        if not problem:
            return _json({"problems": []})
        return _json({"problems": [f"seat {seat}: {problem}; `GET /debug/members` lists seats"]}, status=409)

    async def _tasks(self, request: web.Request) -> web.Response:
        worker = _worker(request)
        return _json(describe_tasks() if worker is None else await self._backend.tasks_of(worker))

    async def _log(self, request: web.Request) -> web.Response:
        app_log = self._backend.log
        return _json({} if app_log is None else app_log.levels())

    async def _set_log(self, request: web.Request) -> web.Response:
        app_log = self._backend.log
        part, level = request.query.get("part", ""), request.query.get("level", "")
        if app_log is None or level not in LOG_LEVELS or (part and part not in LOG_PARTS):
            expected = f"level: one of {', '.join(LOG_LEVELS)}; part: none, or one of {', '.join(LOG_PARTS)}"
            return _json({"problems": [f"expected {expected}"]}, status=400)
        self._backend.set_log_level(part, level)
        return _json(app_log.levels())

    async def _profile(self, request: web.Request) -> web.Response:
        try:
            seconds = float(request.query.get("seconds", PROFILE_SECONDS))
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds <= PROFILE_SECONDS_MAX:
            return _json({"problems": [f"seconds: a number above 0, at most {PROFILE_SECONDS_MAX:g}"]}, status=400)
        worker = _worker(request)
        try:
            if worker is not None:
                return _json(await self._backend.profile_of(worker, seconds))
            return _json(await asyncio.to_thread(self._profiler.take, seconds))
        except ProfilerBusyError:
            return _json({"problems": ["a profile is being taken already"]}, status=409)
        except asyncio.CancelledError:
            self._profiler.stop()  # the client has disconnected
            raise

    async def _drain(self, request: web.Request) -> web.Response:
        self._backend.stop()
        return _json({"draining": True})

    async def _reload(self, request: web.Request) -> web.Response:
        problems = self._backend.reload()
        if problems:
            return _json({"problems": problems}, status=400)
        return _json({"problems": [], "needs_restart": self._backend.needs_restart})

    async def _upgrade(self, request: web.Request) -> web.Response:
        """Upgrade; with `?unless=VERSION`, only reload if this version runs already."""
        if request.query.get("unless") == activator.__version__:
            return await self._reload(request)
        outcome = await self._backend.upgrade()
        return _json(outcome, status=409 if outcome["problems"] else 200)


def _key(request: web.Request) -> str:
    return key_of(request.match_info["name"])


def _outcome(request: web.Request, problem: str) -> web.Response:
    """Return the response to a command about a revision: 409 with `problem`, or 200 if it is empty."""
    if not problem:
        return _json({"problems": []})
    name = request.match_info["name"]
    return _json({"problems": [f"{name}: {problem}; `activator status` lists revisions"]}, status=409)


def _worker(request: web.Request) -> int | None:
    """Return the worker that the request names; None for the whole program."""
    number = request.query.get("worker")
    if number is None:
        return None
    if not number.isdecimal():
        raise NoWorkerError(f"worker: expected a worker number (0, 1, …), found {number!r}")
    return int(number)


class _Accepting:
    """The acceptor of connections, which bounds their number, so that no client can exhaust the program's descriptors.

    The oldest connection is closed in favour of a new one, so that health checks are always answered.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def accepted(self) -> RequestHandler:
        """Return a protocol; this is the protocol factory of `loop.create_server`."""
        transports = [connection.transport for connection in self._server.connections]
        open_transports = [
            transport for transport in transports if transport is not None and not transport.is_closing()
        ]
        if len(open_transports) >= ADMIN_CONNECTIONS_MAX:
            open_transports[0].abort()
        return self._server()


def _json(data: object, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def _refuse_foreign(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests of foreign web pages (rule 1); answer 404 if the request names an unknown worker."""
    field = request.headers.get("Host", "")
    host = hostname(field)
    if not is_own(host):
        text = f"the Host {host or field!r} is not this program's: use an address or localhost\n"
        return web.Response(status=403, text=text)
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != field:
        return web.Response(status=403, text="requests from other sites are refused\n")
    if request.method not in _READS and request.headers.get(ADMIN_HEADER) != "1":
        return web.Response(status=403, text=f"send the header {ADMIN_HEADER}: 1 with requests that change something\n")
    try:
        return await handler(request)
    except NoWorkerError as error:
        return _json({"problems": [str(error)]}, status=404)
