"""The admin port: health, metrics, what is going on, and the few things that can be asked for.

Rules
  1. It is for operators on this machine or in the cluster, never for a browser that was lured here: a request whose
     Host is a foreign name, or whose Origin is another site, is refused, and whatever changes something needs the
     header `Activator-Admin: 1`, which no page of another site can send without asking first.
  2. Where a token is configured, every request needs it but those of kubelets and Prometheus (`OPEN_PATHS`).
  3. Nothing here is on the path of a request, and nothing here may hold the loop up for long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from activator.admin.page import HEADERS, PAGE
from activator.admin.token import CHALLENGE, OPEN_PATHS, AdminToken
from activator.config.model.telemetry import LOG_LEVELS, LOG_PARTS
from activator.runtime.clock import Now
from activator.runtime.durations import parse_seconds
from activator.runtime.errors import NoWorkerError, StartError
from activator.runtime.profiler import Profiler, ProfilerBusyError
from activator.runtime.sockets import ADMIN_CONNECTIONS_MAX, address_of, bind
from activator.runtime.tasks import describe_tasks
from activator.runtime.unix_sockets import SocketAccess, remove_file
from activator.telemetry.history import HISTORY_INTERVAL_S
from activator.telemetry.logs.app_log import AppLog
from activator.telemetry.metrics.sliced_answer import answer_in_slices

PROFILE_SECONDS: Final = 5.0  # of a profile for which no length is given
PROFILE_SECONDS_MAX: Final = 60.0
LINE_NUMBER_DIGITS_MAX: Final = 15
HISTORY_KEYS_MAX: Final = 100  # that one request may ask for by name
WAKE_S: Final = 600.0  # of a wake for which no time is given
HOLD_S_MAX: Final = 7 * 86_400.0

ADMIN_HEADER: Final = "Activator-Admin"
_READS: Final = frozenset({"GET", "HEAD"})
_INDEX: Final = """activator
GET  /                 the live page, for browsers
GET  /healthz          alive: the state worker's loop turns
GET  /readyz           able to serve
GET  /metrics          Prometheus
GET  /debug/revisions  revisions, queues, slots; ?revision=NAMESPACE/NAME: one of them
GET  /debug/overview   one row for each revision
GET  /debug/history    the last hour; ?revision=NAMESPACE/NAME, also several: only these
GET  /debug/config     the configuration in force
GET  /debug/members    the group of replicas, as this one sees it
GET  /debug/tasks      what runs beside the requests
GET  /logs/NAME        the last lines of a local program; ?after=N: those behind line N
GET  /debug/log        what the program says of itself: levels by part
POST /debug/log?part=state&level=debug   until the next reload   (with the header Activator-Admin: 1)
POST /debug/profile?seconds=5            for speedscope          (with the header Activator-Admin: 1)
     …?worker=0                          of one worker: revisions, tasks, profile
POST /load/NAME        load the programs of a revision; ?for=10m: and keep one (with the header Activator-Admin: 1)
POST /wake/NAME        the same, for 10m if nothing is said     (with the header Activator-Admin: 1)
POST /unload/NAME      stop them when they have finished        (with the header Activator-Admin: 1)
POST /restart/NAME     start others, then stop these           (with the header Activator-Admin: 1)
POST /members/SEAT/ended  this silent member has ended, for certain (with the header Activator-Admin: 1)
POST /drain            finish what is in flight, then exit   (with the header Activator-Admin: 1)
POST /reload           read the file again                   (with the header Activator-Admin: 1)
"""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Inside(Protocol):
    """What the admin port asks of the running program."""

    def is_alive(self) -> bool: ...

    def waiting_for(self) -> list[str]:
        """Why the program is not ready to serve; empty when it is."""
        ...

    async def gather_statistics(self) -> None:
        """Let all processes of the program report what `metrics` shows."""
        ...

    async def gather_snapshot(self) -> None:
        """Let them report what `snapshot` shows."""
        ...

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        """The exposition, in slices made one by one, and its content type, for the header Accept."""
        ...

    def snapshot(self, only: str = "") -> object:
        """Plain data: what `GET /debug/revisions` shows of all revisions, or of the one of this key."""
        ...

    def overview(self) -> Iterator[bytes]:
        """What `GET /debug/overview` answers, in slices made one by one."""
        ...

    def history(self, keys: list[str]) -> object:
        """Plain data: the curves of these revisions; without keys, of all that have any."""
        ...

    async def snapshot_of(self, worker: int) -> object:
        """The same of one worker. Raises NoWorkerError, as the next two do."""
        ...

    async def tasks_of(self, worker: int) -> object: ...

    async def profile_of(self, worker: int, seconds: float) -> object:
        """Raises ProfilerBusyError."""
        ...

    def program_output(self, key: str, after: int) -> object:
        """The lines of a revision's programs behind a number; None: no such revision, or it has no programs."""

    def load(self, key: str, seconds: float | None) -> str:
        """Have a revision loaded, and keep a program of it for so long; None: as long as it may be idle. Why not."""
        ...

    def unload(self, key: str) -> str:
        """Stop the programs of a revision. Why not."""
        ...

    def restart(self, key: str) -> str:
        """Start other programs in the place of a revision's. Why not."""
        ...

    def end_member(self, seat: int) -> str:
        """Take the operator's word that the silent member at a seat has ended. Return why not."""

    def members(self) -> object:
        """Plain data: what `GET /debug/members` shows."""

    def configuration(self) -> object:
        """Plain data: what `GET /debug/config` shows."""
        ...

    @property
    def log(self) -> AppLog | None:
        """The program's own log, where it is ours to set."""
        ...

    def set_log_level(self, part: str, level: str) -> None: ...

    def stop(self) -> None: ...

    needs_restart: list[str]  # keys of the file that the last reload changed in vain: only a new start applies them

    def reload(self) -> list[str]: ...


class AdminServer:
    """aiohttp on a listener of its own."""

    def __init__(self, inside: Inside, now: Now, token: AdminToken | None = None) -> None:
        """`token`: what requests must carry; None: nothing."""
        self._inside = inside
        self._token = token or AdminToken("")
        self._profiler = Profiler(now)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._address = ""

    async def start(self, address: str, access: SocketAccess | None = None) -> str:
        """Bind and serve; the address as bound. Raises StartError."""
        try:
            sock = bind(address, access=access)
        except StartError as error:
            raise StartError(f"admin port: {error} (`admin:` in the file, --admin, or ACTIVATOR_ADMIN)") from error
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
                web.post("/members/{seat:[0-9]{1,3}}/ended", self._end_member),
                web.post("/drain", self._drain),
                web.post("/reload", self._reload),
            ]
        )
        runner = self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        accepting = _Accepting(runner.server)
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
        self._server = await create(accepting.accepted, sock=sock)
        self._address = address_of(sock)
        return self._address

    async def close(self) -> None:
        self._profiler.stop()
        remove_file(self._address)
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _refuse_strangers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the token, but for what kubelets and Prometheus read."""
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
        if self._inside.is_alive():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the state worker makes no progress\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._inside.waiting_for()
        if not reasons:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        await self._inside.gather_statistics()
        slices, content_type = self._inside.metrics(request.headers.get("Accept", ""))
        return await answer_in_slices(request, slices, content_type)

    async def _revisions(self, request: web.Request) -> web.Response:
        worker = _worker(request)
        if worker is not None:
            return _json(await self._inside.snapshot_of(worker))
        await self._inside.gather_snapshot()
        return _json(self._inside.snapshot(request.query.get("revision", "")))

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        return await answer_in_slices(request, self._inside.overview(), "application/json")

    async def _history(self, request: web.Request) -> web.Response:
        keys = request.query.getall("revision", [])
        if len(keys) > HISTORY_KEYS_MAX:
            return _json({"problems": [f"revision: at most {HISTORY_KEYS_MAX} of them"]}, status=400)
        body = msgspec.json.encode({"interval_s": HISTORY_INTERVAL_S, "revisions": self._inside.history(keys)})
        return web.Response(body=body, content_type="application/json")

    async def _configuration(self, request: web.Request) -> web.Response:
        return _json(self._inside.configuration())

    async def _logs(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= LINE_NUMBER_DIGITS_MAX):
            return _json({"problems": ["after: the number of a line, 0 for all"]}, status=400)
        found = self._inside.program_output(name if "/" in name else f"default/{name}", int(after))
        if found is None:
            problem = f"there is no revision {name} with a local program; `activator status` lists revisions"
            return _json({"problems": [problem]}, status=404)
        return _json(found)

    async def _load(self, request: web.Request) -> web.Response:
        said = request.query.get("for")
        seconds = parse_seconds(said) if said is not None else None
        if request.path.startswith("/wake/") and said is None:
            seconds = WAKE_S
        if (said is not None and seconds is None) or not 0.0 < (seconds or 1.0) <= HOLD_S_MAX:
            problem = f"for: a duration such as 300s, 10m or 2h, more than 0, at most {HOLD_S_MAX / 3600.0:g}h"
            return _json({"problems": [problem]}, status=400)
        return _outcome(request, self._inside.load(_key(request), seconds))

    async def _unload(self, request: web.Request) -> web.Response:
        return _outcome(request, self._inside.unload(_key(request)))

    async def _restart(self, request: web.Request) -> web.Response:
        return _outcome(request, self._inside.restart(_key(request)))

    async def _members(self, request: web.Request) -> web.Response:
        return _json(self._inside.members())

    async def _end_member(self, request: web.Request) -> web.Response:
        seat = int(request.match_info["seat"])
        problem = self._inside.end_member(seat)
        if not problem:
            return _json({"problems": []})
        return _json({"problems": [f"seat {seat}: {problem}; `GET /debug/members` lists seats"]}, status=409)

    async def _tasks(self, request: web.Request) -> web.Response:
        worker = _worker(request)
        return _json(describe_tasks() if worker is None else await self._inside.tasks_of(worker))

    async def _log(self, request: web.Request) -> web.Response:
        app_log = self._inside.log
        return _json({} if app_log is None else app_log.levels())

    async def _set_log(self, request: web.Request) -> web.Response:
        app_log = self._inside.log
        part, level = request.query.get("part", ""), request.query.get("level", "")
        if app_log is None or level not in LOG_LEVELS or (part and part not in LOG_PARTS):
            expected = f"level: one of {', '.join(LOG_LEVELS)}; part: none, or one of {', '.join(LOG_PARTS)}"
            return _json({"problems": [f"expected {expected}"]}, status=400)
        self._inside.set_log_level(part, level)
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
                return _json(await self._inside.profile_of(worker, seconds))
            return _json(await asyncio.to_thread(self._profiler.take, seconds))
        except ProfilerBusyError:
            return _json({"problems": ["a profile is being taken already"]}, status=409)
        except asyncio.CancelledError:
            self._profiler.stop()  # its client has gone
            raise

    async def _drain(self, request: web.Request) -> web.Response:
        self._inside.stop()
        return _json({"draining": True})

    async def _reload(self, request: web.Request) -> web.Response:
        problems = self._inside.reload()
        if problems:
            return _json({"problems": problems}, status=400)
        return _json({"problems": [], "needs_restart": self._inside.needs_restart})


def _key(request: web.Request) -> str:
    name = request.match_info["name"]
    return name if "/" in name else f"default/{name}"


def _outcome(request: web.Request, problem: str) -> web.Response:
    if not problem:
        return _json({"problems": []})
    name = request.match_info["name"]
    return _json({"problems": [f"{name}: {problem}; `activator status` lists revisions"]}, status=409)


def _worker(request: web.Request) -> int | None:
    """Which one is asked about; None: the program as a whole."""
    said = request.query.get("worker")
    if said is None:
        return None
    if not said.isdecimal():
        raise NoWorkerError(f"worker: a number from 0, not {said!r}")
    return int(said)


class _Accepting:
    """Bounds the connections: a client that opens many takes descriptors only from other clients of this port.

    The oldest is closed for the newest: a question whether the program is alive is always answered.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def accepted(self) -> RequestHandler:
        """The protocol factory of `loop.create_server`."""
        transports = [connection.transport for connection in self._server.connections]
        open_ones = [one for one in transports if one is not None and not one.is_closing()]
        if len(open_ones) >= ADMIN_CONNECTIONS_MAX:
            open_ones[0].abort()
        return self._server()


def _json(data: object, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def _refuse_foreign(request: web.Request, handler: Handler) -> web.StreamResponse:
    said = request.headers.get("Host", "")
    host = _hostname(said)
    if not _is_own(host):
        text = f"the Host {host or said!r} is not this program's: use an address or localhost\n"
        return web.Response(status=403, text=text)
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != said:
        return web.Response(status=403, text="requests from other sites are refused\n")
    if request.method not in _READS and request.headers.get(ADMIN_HEADER) != "1":
        return web.Response(status=403, text=f"send the header {ADMIN_HEADER}: 1 with what changes something\n")
    try:
        return await handler(request)
    except NoWorkerError as error:
        return _json({"problems": [str(error)]}, status=404)


def _hostname(host: str) -> str:
    """Return the name or address of a Host field; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets that hold no IPv6 address
        return ""


def _is_own(host: str) -> bool:
    """An address or a name that no one outside can point here: DNS rebinding needs a name of its own."""
    if host == "localhost" or host.endswith((".localhost", ".svc", ".cluster.local")):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
