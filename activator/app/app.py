"""The composition root: one control plane, one data plane or several, the admin port, and signals.

The planes communicate only by messages, through a channel (`messages/`). Within one process the channel calls, and
optionally encodes the messages (tests use that). With several workers, `workers/` carries them between processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from activator.admin.overview import state_of
from activator.admin.port import ADMIN, AdminPort
from activator.app.admin_view import bind_admin
from activator.app.handover.upgrades import Upgrades
from activator.app.health import Health
from activator.app.listening import ServedAddresses
from activator.app.metrics_collector import MetricsCollector
from activator.app.quota_state import QuotaState
from activator.app.settings import Settings, worker_count
from activator.app.sources import Sources
from activator.app.users import KeysFile, UserRights
from activator.config.model.file import FIXED_KEYS
from activator.config.model.kubernetes import ACTIVATIONS
from activator.config.user_keys import users_in
from activator.control_plane.plane import ControlPlane
from activator.control_plane.sources.process.reaper import MARK
from activator.control_plane.sources.process.reaping import Reaping
from activator.data_plane.plane import DataPlane
from activator.messages import (
    AnnounceDrain,
    DataPlaneStatistics,
    DirectChannel,
    Drain,
    Drained,
    EnableKnativeHeaders,
    FromData,
    RevisionEnded,
)
from activator.runtime import orphans
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError, StartError
from activator.runtime.memory import MEMORY_CHECK_S, FreedMemory, relax_garbage_collection
from activator.runtime.service_manager import RETRY_S, ServiceManager
from activator.runtime.sockets import unused
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.telemetry.history import History
from activator.telemetry.logs.app_log import LOG_WINDOW_S, AppLog
from activator.telemetry.request_hooks import NoRequests
from activator.telemetry.switchboard import Telemetry
from activator.workers.alone import OneWorker
from activator.workers.messages import WorkerCounts
from activator.workers.workers import Workers
from lb.rng import Rng

if TYPE_CHECKING:
    from activator.app.handover.taking import Inheritance
    from activator.config.cluster_settings import ClusterSettings
    from activator.members.membership import Membership
    from activator.telemetry.request_hooks import RequestHooks
    from activator.workers.fork_server import Zygote
    from activator.workers.pool import WorkerPool

STOP_MARGIN_S: Final = 60.0  # beyond the drain timeout, for programs to end; then systemd may kill the activator
PANIC_JUDGE_INTERVAL_S: Final = 0.5  # between two checks whether the control plane has failed for too long

log = logging.getLogger("activator")

EXIT_FINE = 0
EXIT_CUT = 1  # the drain timed out and requests were aborted
EXIT_PANICS = 4  # the state worker failed repeatedly
EXIT_DISPLACED = 5  # another replica has this one's seat in the group
EXIT_NOW = 130  # a second signal


class App:
    """One running activator; to be used within one event loop."""

    def __init__(
        self,
        settings: Settings,
        reaping: Reaping,
        now: Now = time.monotonic,
        app_log: AppLog | None = None,
        manager: ServiceManager | None = None,
        zygote: Zygote | None = None,
        inheritance: Inheritance | None = None,
    ) -> None:
        """Build the parts.

        `reaping` ends remaining processes when the program is killed; `manager` is the service manager that started it;
        `zygote` is the process that workers are forked from, made before the event loop; `inheritance` comes from the
        process that this one replaces.
        """
        self.settings = settings
        self.config = settings.config
        self.started_s = now()
        self._manager = manager or ServiceManager({}, 0)
        self.draining = False
        self._errors_total = 0
        self.needs_restart: list[str] = []  # changed keys that the last reload could not apply
        self.last_reload: tuple[float, list[str]] | None = None  # when, and its problems
        self.admin_address = ""
        self.now = now
        rng = Rng(int.from_bytes(os.urandom(4), "big") if settings.seed is None else settings.seed)
        self._rng = rng
        self._tasks = TaskGroupOwner(self._task_failed)  # the tasks of a data plane in this process
        self._control_tasks = TaskGroupOwner(self._task_failed)
        channel = self._channel = DirectChannel(settings.encode_messages)
        count = worker_count(settings.config)
        is_alone = count == 1 and inheritance is None  # else the former process is a member beside the workers
        data = DataPlane(settings.config, now, channel.send_to_control, rng, self._tasks) if is_alone else None
        self.data = data  # None if workers have the data planes
        self.control = ControlPlane(
            now,
            channel.send_effects,
            channel.flush,
            rng,
            self._control_tasks,
            reaping,
            time.time,
            channel.send_command,
            settings.config.dns,
        )
        channel.connect_control(self._receive)
        self.workers: Workers
        telemetry_rng = Rng(rng.below(1 << 30))  # tracing a request must not change its pod
        if data is not None:
            self.telemetry = self._make_telemetry(data.proxy, app_log, telemetry_rng)
            self.workers = OneWorker(data, self.telemetry, self._tasks, now)
        else:
            self.telemetry = self._make_telemetry(NoRequests(), app_log, telemetry_rng)
            self.workers = self._make_pool(count, channel, reaping, app_log, zygote)
        known = self.control.known
        self.history = History(
            self.workers.revision_statistics, now, lambda revision: state_of(revision, known(revision.key))
        )
        self._served = ServedAddresses(self.workers, lambda: self.config)
        self.control.own_ports.addresses = self._own_addresses
        self.sources = Sources(
            self.config,
            self.control,
            self._served,
            now,
            rng,
            self._control_tasks,
            channel.send_command,
            self._cluster_settled,
        )
        self.figures = MetricsCollector(
            self.control, self.workers, now, self._tasks, self.sources, self._own_counts, lambda: self.config
        )
        channel.connect_data(self.workers.apply, self.workers.execute, self.workers.write_out)
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._exit_code = 0  # overrides the exit code of a normal end
        self._admin: AdminPort | None = None
        self._drained: asyncio.Future[bool] = loop.create_future()
        self.is_serving = False
        self._rights = UserRights(channel.send_command, self.control.wait_until_applied, self._control_tasks.start)
        self.membership: Membership | None = None
        self.health = Health(self, self.control, self.sources, channel.send_command)
        self.quota_state = QuotaState(self.config.state, self.workers)
        self._upgrade_tasks = TaskGroupOwner(self._task_failed)
        self.upgrades = Upgrades(self, reaping, self._manager, now, self._upgrade_tasks, inheritance)

    async def start(self) -> None:
        """Bind the listeners and begin to serve. Raises StartError."""
        workers = self.workers
        await self.upgrades.begin()
        workers.change(self._served.plan(self.config))
        self.telemetry.set(self.config)
        if self.config.members.listen:
            self.membership = await self._join_group()
            self.figures.join(self.membership)
        await workers.start()
        if self.config.admin_address:
            self._admin = bind_admin(self, self._control_tasks)
        await self.upgrades.take_over()
        self.quota_state.open()
        users = self.quota_state.with_use(users_in(self.config))
        KeysFile(lambda: self.config, self._rights).watch(self._control_tasks)
        self._rights.begin(users)  # after it has joined: a single data plane owns its quotas
        self._tasks.repeat("log", LOG_WINDOW_S, self.telemetry.sweep)
        self.control.start()
        if self.membership is not None:
            await self.membership.start()  # first: others may know more of revisions that were dropped and came back
        self.control.configure(self.config, self.settings.specs)
        await (
            self.control.wait_until_applied()
        )  # before that, requests to what the file names would be answered "no route"
        await self.sources.start(self.membership)
        self.health.report_pending()
        await self.upgrades.commit()
        if self._admin is not None:
            self.admin_address = self._admin.start(at_once=self.config.kubernetes is not None)
            log.info("admin port on %s", self.admin_address)  # with port 0 in the file, the port that was bound
        self.health.report()  # the first worker that listens answers health checks from its start
        await workers.serve()
        self.is_serving = True
        self.upgrades.serving()
        self.health.report()
        self.health.watch(self._control_tasks)

    async def run(self) -> int:
        """Serve until a signal or `stop`. Return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)
        loop.add_signal_handler(signal.SIGUSR2, self.upgrades.ask)
        self._tasks.repeat("freed memory", MEMORY_CHECK_S, FreedMemory().check)
        if orphans.adopt():
            self._tasks.repeat("orphans", orphans.CHECK_S, orphans.Orphans().check)
        try:
            await self.start()
        except (ConfigError, StartError) as error:
            self.upgrades.refuse(str(error))
            await self.control.close()  # some programs may run already
            raise
        self._control_tasks.repeat("judge", PANIC_JUDGE_INTERVAL_S, self._judge)
        if self.config.admin_address:
            self._control_tasks.keep_running("history", self.history.step)
        self.quota_state.keep(self._control_tasks)
        relax_garbage_collection()
        self._notify_ready()
        for address in unused():
            log.warning("systemd has opened %s, which no listener uses: correct its unit, or `listen`", address)
        if self._manager.is_managed():
            self._tasks.repeat("notifications", RETRY_S, self._manager.flush)
        if self._manager.watchdog_s > 0.0:
            self._control_tasks.keep_running("watchdog", self._feed_watchdog)
        await self._stop.wait()
        if self.upgrades.has_moved:
            return await self._finish()
        return await self.close()

    async def _finish(self) -> int:
        """Finish the requests that this process has; another one is the activator."""
        await self._control_tasks.close()
        if self._admin is not None:
            await self._admin.close()
        await self.control.close_connections()
        await self.upgrades.requests_ended()
        await self._manager.finish()
        await self._upgrade_tasks.close()
        await self._tasks.close()
        self.telemetry.close()
        return EXIT_FINE

    def stop(self) -> None:
        """Begin to drain; `run` returns when that is complete."""
        if self.upgrades.stops():
            return
        self.draining = True
        self.health.report()
        self._stop.set()

    async def close(self) -> int:
        """Drain, stop every process and end every task; return the exit code."""
        self.draining = True
        if self.membership is not None:
            self.membership.drain_begins()
        if self.sources.activations is not None:
            await self.sources.activations.stop_writing()
        shutdown = self.config.shutdown
        save_s = self.control.processes.supervisor.fleets.save_s()
        self._manager.stopping(shutdown.delay + max(shutdown.timeout, shutdown.tunnels) + save_s + STOP_MARGIN_S)
        if shutdown.delay > 0.0:
            log.info("not ready from now on; draining begins in %g s", shutdown.delay)
            self._channel.send_command(AnnounceDrain())
            await pause(shutdown.delay)
        log.info("draining")
        self._channel.send_command(Drain(float(shutdown.timeout), float(shutdown.tunnels)))
        finished = await self._drained
        await self.quota_state.close()
        await self.workers.close()
        if self.membership is not None:
            await self.membership.close()
        await self.control.close()
        if self._admin is not None:
            await self._admin.close()
        for tasks in (self._upgrade_tasks, self._control_tasks, self._tasks):
            await tasks.close()
        self.telemetry.close()
        if self._exit_code:
            return self._exit_code
        return EXIT_FINE if finished else EXIT_CUT

    def reload(self) -> list[str]:
        """Read the file again and apply it; an invalid file changes nothing. Return the problems, if any."""
        problems = self._reload()
        self.last_reload = (self.now(), problems)
        return problems

    def _reload(self) -> list[str]:
        if self.settings.reload is None:
            return ["started without a file: there is nothing to reload"]
        if self.draining:
            log.error("reload rejected: the activator is draining")
            return ["the program is draining"]
        if self.upgrades.is_under_way:
            log.error("reload rejected: an upgrade is under way, which reads the file")
            return ["an upgrade is under way, which reads the file"]
        try:
            config, specs = self.settings.reload()
            fixed = [key for key in FIXED_KEYS if getattr(config, key) != getattr(self.config, key)]
            config = msgspec.structs.replace(config, **{key: getattr(self.config, key) for key in fixed})
            # Steps that can fail come first: a rejected reload leaves the old configuration in effect.
            users = users_in(config)
            listeners = self._served.plan(config)
            try:
                self.telemetry.set(config)
            except StartError:
                listeners.discard()
                raise
        except ConfigError as error:
            for problem in error.problems:
                log.error("reload rejected: %s", problem)
            return error.problems
        except StartError as error:
            log.error("reload rejected: %s", error)
            return [str(error)]
        self._manager.reloading(time.monotonic_ns())
        self._rights.change(users)  # before a new revision may be used
        self.workers.reconfigure(config)
        self.workers.change(listeners)
        self.control.configure(config, specs)
        self.sources.configure(config)
        self.health.report_pending()
        self.config, self.needs_restart = config, fixed
        if fixed:
            log.warning("reloaded; restart the activator to apply the changes of: %s", ", ".join(fixed))
        else:
            log.info("reloaded")
        self._notify_ready()
        return []

    # --- queries ---

    @property
    def addresses(self) -> list[str]:
        """The addresses that the program serves on."""
        return self.workers.addresses

    def is_alive(self) -> bool:
        return self.control.is_alive()

    def waiting_for(self) -> list[str]:
        """Return why the activator is not ready to serve."""
        return self.health.waiting_for()

    # --- within ---

    def _receive(self, message: FromData) -> None:
        """Process a message from the data plane."""
        if isinstance(message, Drained):
            if not self._drained.done():
                self._drained.set_result(message.finished)
        elif isinstance(message, RevisionEnded):
            self.figures.ended(message.statistics)
        else:
            self.control.receive(message)

    async def _join_group(self) -> Membership | None:
        """Join the group of members. Raises StartError."""
        from activator.members.joining import join  # imported only with members

        kubernetes = self.config.kubernetes
        may_be_alone = kubernetes is None or kubernetes.mode != ACTIVATIONS
        return await join(
            self.config.members, self.workers, self._displaced, self.now, self._rng, self._tasks, may_be_alone
        )

    def _displaced(self) -> None:
        """End: another replica has this one's seat in the group, or the others consider this one ended."""
        self._exit_code = EXIT_DISPLACED
        self.stop()

    def _own_addresses(self) -> list[str]:
        push = "" if self.sources.push is None else self.sources.push.address
        return self._served.all(self.admin_address, push)

    def _notify_ready(self) -> None:
        self._manager.ready(f"serving on {', '.join(self.addresses)}")

    async def _feed_watchdog(self) -> None:
        """Notify systemd while the state worker makes progress; without that, systemd restarts the program."""
        if self.is_alive():
            self._manager.alive()
        await pause(self._manager.watchdog_s / 3)

    def _cluster_settled(self, settings: ClusterSettings) -> None:
        """Apply new settings of the cluster's ConfigMaps."""
        self._channel.send_command(EnableKnativeHeaders(self.sources.cluster_domain, settings.passes_through))
        try:
            self.telemetry.settle(settings)
        except StartError as error:
            log.error("the cluster's settings are not applied: %s", error)
            return
        self.workers.apply_cluster_settings(settings)

    def _judge(self) -> None:
        """Drain and exit, so that the activator is restarted, if the control plane has failed for `panic_grace`."""
        grace_s = self.config.shutdown.panic_grace
        if grace_s > 0.0 and not self.draining and self.control.is_hopeless(grace_s):
            reasons = self.control.over_budget()
            log.critical("%s: draining, then exit code %d", "; ".join(reasons), EXIT_PANICS)
            self._exit_code = EXIT_PANICS
            self.stop()

    def disconnect(self) -> None:
        """Separate the control plane from the data planes, which are workers of another process from now on."""
        worker = self.workers.worker if isinstance(self.workers, OneWorker) else None
        if worker is not None:
            self._channel.connect_control(worker.send)
        self._channel.connect_data(_drop, _drop, _do_nothing)

    def finish(self) -> None:
        """Begin to finish the requests of this process; `run` returns when that is complete."""
        self._stop.set()

    def listening(self) -> list[tuple[str, list[socket.socket]]]:
        """Return the name and the sockets of each listener, including the admin port."""
        if self._admin is None:
            return self.workers.listening()
        return [*self.workers.listening(), (ADMIN, [self._admin.socket])]

    def _on_reload_signal(self) -> None:
        if not self.upgrades.forward(signal.SIGHUP):
            self.reload()

    def _on_stop_signal(self) -> None:
        """Stop; at a second signal, exit at once."""
        if self.upgrades.has_moved and self.draining:
            self.upgrades.forward(signal.SIGTERM)
            os._exit(EXIT_NOW)
        if self.upgrades.has_moved:
            self.draining = True
        elif self.draining:
            self.upgrades.end_former()
            os._exit(EXIT_NOW)  # the reaper ends the remaining processes
        self.stop()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._errors_total += 1
        log.error("the task %s failed", name, exc_info=error)

    def _own_counts(self) -> WorkerCounts:
        """Return the counts of this process itself, without those of its workers."""
        spans = {} if self.data is not None else self.telemetry.traces.totals
        return WorkerCounts(DataPlaneStatistics(errors_total=self._errors_total), spans=spans)

    def _on_error(self, error: Exception) -> None:
        """Log and count an exception in a callback of the event loop."""
        self._errors_total += 1
        log.error("internal error: uncaught exception in a callback of the event loop", exc_info=error)

    def _make_telemetry(self, hooks: RequestHooks, app_log: AppLog | None, rng: Rng) -> Telemetry:
        loop = asyncio.get_running_loop()
        return Telemetry(
            *(hooks, self.control.controllers, app_log, rng, self.now, loop.call_soon, loop.call_later),
            *(time.time, time.time_ns, self._on_error),
            lambda: self.figures.make_knative_metrics(hooks, self._on_error),
        )

    def own_pool(self) -> WorkerPool:
        """Return the workers of a process that has replaced another one."""
        from activator.workers.pool import WorkerPool

        assert isinstance(self.workers, WorkerPool), "it has workers"
        return self.workers

    def _make_pool(
        self, count: int, channel: DirectChannel, reaping: Reaping, app_log: AppLog | None, zygote: Zygote | None
    ) -> Workers:
        from activator.workers.pool import WorkerPool  # imported only with several workers

        environment = {**os.environ, MARK: reaping.mark}  # for the reaper, which kills them if this process is killed
        log_level = "" if app_log is None else app_log.fixed_level or ""
        return WorkerPool(
            *(self.config, count, self.now, channel.send_to_control, self.control.tables, self._rng),
            *(self._tasks, environment, log_level, zygote),
        )


def _drop(message: object) -> None:
    """Drop what the control plane of a replaced process sends."""


def _do_nothing() -> None:
    pass
