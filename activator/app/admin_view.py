"""The interface of the running program to its admin port (`admin/server.py`, `AdminBackend`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import activator
from activator.admin.port import AdminPort
from activator.app.handover.upgrades import Upgrades
from activator.app.metrics_collector import MetricsCollector
from activator.config.model.file import Config
from activator.config.model.listeners import AdminListener
from activator.control_plane.plane import NO_REVISION, ControlPlane
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.unix_sockets import UNIX_ADMIN_MODE, SocketAccess
from activator.telemetry.history import History
from activator.telemetry.logs.app_log import AppLog
from activator.telemetry.switchboard import Telemetry
from activator.workers.workers import Workers

if TYPE_CHECKING:
    from activator.admin.server import AdminServer
    from activator.members.membership import Membership


class RunningProgram(Protocol):
    """The part of `App` that the admin port uses."""

    config: Config
    control: ControlPlane
    workers: Workers
    telemetry: Telemetry
    figures: MetricsCollector
    history: History
    membership: Membership | None
    draining: bool
    needs_restart: list[str]
    last_reload: tuple[float, list[str]] | None
    started_s: float
    now: Now

    def is_alive(self) -> bool: ...

    def waiting_for(self) -> list[str]: ...

    upgrades: Upgrades

    def reload(self) -> list[str]: ...

    def stop(self) -> None: ...


def bind_admin(app: RunningProgram, tasks: TaskGroupOwner) -> AdminPort:
    """Bind the admin port of the configuration. Raises StartError."""
    listener = app.config.admin

    def make_server() -> AdminServer:
        from activator.admin.server import AdminServer  # aiohttp
        from activator.admin.token import AdminToken

        return AdminServer(
            AdminView(app), app.now, AdminToken(listener.token if isinstance(listener, AdminListener) else "")
        )

    admin = AdminPort(make_server, tasks)
    access = listener.access(UNIX_ADMIN_MODE) if isinstance(listener, AdminListener) else SocketAccess(UNIX_ADMIN_MODE)
    admin.bind(app.config.admin_address, access)
    return admin


class AdminView:
    """The implementation of the admin port's queries and commands."""

    def __init__(self, app: RunningProgram) -> None:
        self._app = app
        self._control = app.control
        self._workers = app.workers

    # --- the program as a whole ---

    def is_alive(self) -> bool:
        return self._app.is_alive()

    def waiting_for(self) -> list[str]:
        return self._app.waiting_for()

    @property
    def needs_restart(self) -> list[str]:
        return self._app.needs_restart

    def reload(self) -> list[str]:
        return self._app.reload()

    async def upgrade(self) -> dict[str, Any]:
        return await self._app.upgrades.run()

    def stop(self) -> None:
        self._app.stop()

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        return self._app.figures.metrics(accept)

    async def gather_statistics(self) -> None:
        await self._workers.gather_statistics()

    async def gather_snapshot(self) -> None:
        await self._workers.inspection.gather_snapshot()

    def snapshot(self, only: str = "") -> object:
        return self._joined(self._workers.inspection.snapshot(only), only)

    async def snapshot_of(self, worker: int) -> object:
        return self._joined(await self._workers.inspection.snapshot_of(worker))

    def _joined(self, shown: dict[str, dict[str, Any]], only: str = "") -> object:
        from activator.admin.snapshot import joined

        response = joined(
            shown, *self._control.snapshot(only), self._workers.inspection.describe(), self._workers.counts().data
        )
        groups = self._control.groups_shown()
        return {**response, "groups": groups} if groups else response

    def overview(self) -> Iterator[bytes]:
        from activator.admin.overview import slices, totals

        head = totals(self._workers.counts().data, self._workers.inspection.describe(), self._app.draining)
        head["groups"] = self._control.groups_shown()
        head["version"] = activator.__version__
        head["uptime_s"] = round(self._app.now() - self._app.started_s, 1)
        head["reload"] = None
        if self._app.last_reload is not None:
            at_s, problems = self._app.last_reload
            head["reload"] = {"age_s": round(self._app.now() - at_s, 1), "problems": problems}
        history = self._app.history
        statistics = self._workers.revision_statistics()
        return slices(statistics, self._control.known, history.state_age_s, history.recent_failures, head)

    async def last_requests(self, key: str, count: int, searched: int) -> object:
        from activator.admin.last_requests import listed

        answers = await self._workers.inspection.last_requests(key, searched or count)
        response = listed(answers, count, time.time(), searched > 0)
        known = self._control.known(key)
        return response if known is None else {**response, "recorded": known.record.spec.recorded_requests()}

    async def capture_of(self, worker: int, number: int) -> object:
        return await self._workers.inspection.capture_of(worker, number)

    def history(self, keys: list[str], is_day: bool) -> object:
        return self._app.history.shown(keys, is_day)

    def timelines(self) -> object:
        return self._control.timelines()

    async def tasks_of(self, worker: int) -> object:
        return await self._workers.inspection.tasks_of(worker)

    async def profile_of(self, worker: int, seconds: float) -> object:
        return await self._workers.inspection.profile_of(worker, seconds)

    def program_output(self, key: str, after: int) -> object:
        output = self._control.processes.supervisor.fleets.log_of(key)
        return None if output is None else output.after(after)

    def load(self, key: str, seconds: float | None) -> str:
        return self._refusal(key, self._control.processes.load(key, seconds))

    def unload(self, key: str) -> str:
        return self._refusal(key, self._control.processes.unload(key))

    def set_aside(self, key: str, pod: str, is_aside: bool) -> str:
        return self._control.set_aside(key, pod, is_aside)

    def restart(self, key: str) -> str:
        return self._refusal(key, self._control.processes.restart(key))

    def _refusal(self, key: str, problem: str) -> str:
        """Return the problem of a command about a revision; NO_REVISION in its place if there is no such revision."""
        return NO_REVISION if problem and self._control.known(key) is None else problem

    def end_member(self, seat: int) -> str:
        membership = self._app.membership
        return "this program has no group" if membership is None else membership.end_seat(seat)

    def members(self) -> object:
        membership = self._app.membership
        return {} if membership is None else membership.describe()

    def configuration(self) -> object:
        from activator.admin.inspection import configuration

        return configuration(self._app.config)

    @property
    def log(self) -> AppLog | None:
        """The program's own log; None if it is not configured here."""
        return self._app.telemetry.app_log

    def set_log_level(self, part: str, level: str) -> None:
        if self.log is not None:
            self.log.set_level(part, level)
        self._workers.set_log_level(part, level)
