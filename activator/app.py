"""The composition root: one control part, one data part, the admin port, signals.

The two parts know each other only by the messages that `Link` carries. Within one process it calls; it may as well
encode (tests run the program that way), and with more workers it will be a socket pair.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from activator.clock import Now
from activator.config import MEMORY_KEPT_BYTES, MEMORY_MAPPED_ABOVE_BYTES, Config, RevisionSpec, Tls
from activator.control import Control
from activator.data import Data
from activator.discovery.process import Reaping
from activator.errors import ConfigError, StartError
from activator.listen.listener import ListeningSocket, open_socket
from activator.state.messages import Effect, Told, decode, encode
from activator.tasks import TaskGroupOwner, pause
from activator.telemetry.log_switch import AccessLogSwitch
from lb.rng import Rng

if TYPE_CHECKING:
    from activator.admin.server import AdminServer
    from activator.discovery.push_server import PushServer
    from activator.telemetry.metrics import Exposition

log = logging.getLogger("activator")

EXIT_FINE = 0
EXIT_CUT = 1  # the drain took too long and requests were cut
EXIT_NOW = 130  # a second signal


# Of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

# What a reload cannot change.
_FIXED: Final = ("admin", "workers", "limits", "trust_revision_headers", "forwarded", "push")


class Settings(msgspec.Struct, frozen=True):
    """What a run needs beside the file: how to read the file again, and the seed of every random choice."""

    config: Config
    specs: list[RevisionSpec]
    reload: Callable[[], tuple[Config, list[RevisionSpec]]] | None = None
    seed: int | None = None
    encode_messages: bool = False  # carry every message as bytes between the parts


def _calm_the_collector() -> None:
    """What is there now stays; and a request leaves no cycles, so the collector need not look every 700 objects.

    Measured: 2 to 4 of 80 us per request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _listeners(config: Config) -> list[str | Tls]:
    return config.listen if isinstance(config.listen, list) else [config.listen]


def _keep_freed_memory() -> None:
    """Let the allocator keep some megabytes, where it is glibc's.

    A read of a large body is a quarter of a MiB. By default glibc asks the kernel for it anew each time and gives it
    back at once, and the kernel clears every page: 104 us a read, measured, instead of 13.
    """
    import ctypes  # here only

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    mallopt(_M_TRIM_THRESHOLD, MEMORY_KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, MEMORY_MAPPED_ABOVE_BYTES)


class Link:
    """Between the control part and the data part."""

    def __init__(self, encoded: bool) -> None:
        self._encoded = encoded
        self.data: Data | None = None
        self.control: Control | None = None

    def to_data(self, effects: list[Effect]) -> None:
        assert self.data is not None
        if self._encoded:
            effects = [decode(encode(effect)) for effect in effects]  # type: ignore[misc]
        self.data.apply(effects)

    def to_control(self, message: Told) -> None:
        assert self.control is not None
        self.control.hear(decode(encode(message)) if self._encoded else message)  # type: ignore[arg-type]


class App:
    """One running activator. Use it within one event loop."""

    def __init__(self, settings: Settings, reaping: Reaping, now: Now = time.monotonic) -> None:
        self.settings = settings
        self.config = settings.config
        self.started_s = now()
        self.draining = False
        self.addresses: list[str] = []
        self.admin_address = ""
        self._now = now
        rng = Rng(int.from_bytes(os.urandom(4), "big") if settings.seed is None else settings.seed)
        self._tasks = TaskGroupOwner(self._task_failed)
        self._link = Link(settings.encode_messages)
        self.data = Data(settings.config, now, self._link.to_control, rng, self._tasks)
        self.control = Control(now, self._link.to_data, rng, self._tasks, reaping)
        self._access_log = AccessLogSwitch(
            self.data.proxy, time.time, asyncio.get_running_loop().call_later, self.data.failed
        )
        self._link.data = self.data
        self._link.control = self.control
        self._watches: dict[ListeningSocket, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._admin: AdminServer | None = None
        self._push: PushServer | None = None
        self.push_address = ""
        self._exposition: Exposition | None = None

    async def start(self) -> None:
        """Bind, begin to serve. Raises StartError."""
        sockets = [open_socket(wanted) for wanted in _listeners(self.config)]
        self.addresses = [one.address for one in sockets]
        self._access_log.set(self.config.access_log)
        self.control.start()
        self.control.configure(self.config, self.settings.specs)
        await self.data.start(sockets)
        for one in sockets:
            self._watch_certificate(one)
        if self.config.push.listen:
            await self._start_push()
        if self.config.admin:
            await self._start_admin()
            log.info("admin port on %s", self.admin_address)  # port 0 in the file: here stands what it became
        log.info("serving on %s", ", ".join(self.addresses))

    async def run(self) -> int:
        """Serve until a signal or `stop` says otherwise; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        _keep_freed_memory()
        await self.start()
        _calm_the_collector()
        await self._stop.wait()
        return await self.close()

    def stop(self) -> None:
        """Begin to drain; `run` returns when that is done."""
        self.draining = True
        self._stop.set()

    async def close(self) -> int:
        """Drain, stop every process, end every task."""
        self.draining = True
        shutdown = self.config.shutdown
        if shutdown.delay > 0.0:
            log.info("not ready from now on; draining begins in %g s", shutdown.delay)
            self.data.announce_drain()
            await pause(shutdown.delay)
        log.info("draining")
        finished = await self.data.drain(shutdown.timeout, shutdown.tunnels)
        await self.control.close()
        if self._push is not None:
            await self._push.close()
        if self._admin is not None:
            await self._admin.close()
        await self._tasks.close()
        self._access_log.close()
        return EXIT_FINE if finished else EXIT_CUT

    def reload(self) -> list[str]:
        """Read the file again; a bad one is refused and the old configuration goes on. The problems, if any."""
        if self.settings.reload is None:
            return ["started without a file: there is nothing to reload"]
        try:
            config, specs = self.settings.reload()
            self._change_listeners(config)
            self.control.configure(config, specs)
            self._access_log.set(config.access_log)
        except ConfigError as error:
            for problem in error.problems:
                log.error("reload refused: %s", problem)
            return error.problems
        except StartError as error:
            log.error("reload refused: %s", error)
            return [str(error)]
        fixed = [field for field in _FIXED if getattr(config, field) != getattr(self.config, field)]
        self.config = msgspec.structs.replace(config, **{field: getattr(self.config, field) for field in fixed})
        if fixed:
            log.warning("reloaded, but for a change of %s the program must be started anew", ", ".join(fixed))
        else:
            log.info("reloaded")
        return []

    # --- what the admin port asks ---

    def is_alive(self) -> bool:
        return self.control.is_alive()

    def waiting_for(self) -> list[str]:
        """Why the program is not ready to serve."""
        reasons = []
        if self.draining:
            reasons.append("draining")
        if self.data.server is None:
            reasons.append("not listening yet")
        if not self.control.worker.is_settled():
            reasons.append("the first changes have not been applied")
        reasons.extend(self.control.worker.supervision.over_budget(self._now()))
        return reasons

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        if self._exposition is None:
            from activator.telemetry.metrics import Exposition  # prometheus-client: only when asked for
            from activator.telemetry.program_families import Program

            data = self.data
            program = Program(
                data.listening,
                data.held,
                self.control.worker,
                self.control.prober,
                data.part,
                self._access_log,
                lambda: data.errors_total,
                self._now,
                self.control.intake,
            )
            self._exposition = Exposition(data.part.throttlers, program)
        return self._exposition.render(accept)

    def snapshot(self) -> object:
        from activator.admin.snapshot import revisions

        return revisions(self.data.part, self.control.worker, self.control.processes.statistics(), self._now())

    def configuration(self) -> object:
        from activator.admin.inspection import configuration

        return configuration(self.config)

    # --- within ---

    def _change_listeners(self, config: Config) -> None:
        """Open what is new, then close what is not wanted any more: no moment without a listener.

        Raises StartError, and changes nothing, where one cannot be opened.
        """
        server = self.data.server
        if server is None:
            return
        wanted = _listeners(config)
        leaving = [one for one in server.sockets if one.wanted not in wanted]
        staying = [one.wanted for one in server.sockets if one.wanted in wanted]
        opened: list[ListeningSocket] = []
        try:
            opened.extend(open_socket(one, leaving) for one in wanted if one not in staying)
        except StartError:
            for listener in opened:
                listener.socket.close()
            raise
        server.look_at_certificates()
        if opened or leaving:
            self._tasks.start("listeners", self._exchange_listeners(opened, leaving))

    async def _exchange_listeners(self, opened: list[ListeningSocket], leaving: list[ListeningSocket]) -> None:
        server = self.data.server
        assert server is not None
        for listener in opened:
            await server.open(listener)
            self._watch_certificate(listener)
        for listener in leaving:
            server.close(listener)
            watch = self._watches.pop(listener, None)
            if watch is not None:
                watch.cancel()
        self.addresses = [listener.address for listener in server.sockets]
        log.info("serving on %s", ", ".join(self.addresses))

    def _watch_certificate(self, listener: ListeningSocket) -> None:
        if listener.certificate is not None:
            self._watches[listener] = self._tasks.start("certificate", listener.certificate.watch())

    async def _start_push(self) -> None:
        from activator.discovery.push_server import PushServer, read_token  # aiohttp: only where pods report themselves

        push = PushServer(self.control.take_reports(self.config.push), read_token(self.config.push))
        self.push_address = await push.start(self.config.push.listen)
        self._push = push
        log.info("pods may report themselves on %s", self.push_address)

    async def _start_admin(self) -> None:
        from activator.admin.server import AdminServer  # aiohttp: only where there is an admin port

        admin = AdminServer(self)
        self.admin_address = await admin.start(self.config.admin)
        self._admin = admin

    def _signalled(self) -> None:
        if self.draining:
            os._exit(EXIT_NOW)  # the reaper ends what is left of the processes
        self.stop()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.data.errors_total += 1
        log.error("the task %s failed", name, exc_info=error)
