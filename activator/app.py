"""The composition root: one control plane, one data plane or several, the admin port, and signals.

The planes communicate only by messages, through a channel (`messages/`). Within one process the channel calls, and
optionally encodes the messages (tests use that). With several workers, `workers/` carries them between processes.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from activator.config.model.file import AUTO, FIXED_KEYS, Config
from activator.config.model.kubernetes import ACTIVATIONS, Kubernetes
from activator.config.model.listeners import AdminListener, Listener, address_of_listener
from activator.config.specs import RevisionSpec
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
    FromData,
    RevisionEnded,
    SetHealth,
    SetPending,
    SpeakKnative,
)
from activator.runtime import orphans
from activator.runtime.clock import Now
from activator.runtime.errors import ConfigError, StartError
from activator.runtime.extras import need
from activator.runtime.memory import MEMORY_LOOK_S, FreedMemory
from activator.runtime.processors import processors
from activator.runtime.service_manager import ServiceManager
from activator.runtime.sockets import join_address, split_address, unused
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_sockets import UNIX_ADMIN_MODE, SocketAccess
from activator.telemetry.history import History
from activator.telemetry.logs.app_log import LOG_WINDOW_S, AppLog
from activator.telemetry.request_hooks import NoRequests
from activator.telemetry.switchboard import Telemetry
from activator.workers.alone import OneWorker
from activator.workers.figures import counts_plus
from activator.workers.messages import WorkerCounts
from activator.workers.workers import Workers
from lb.rng import Rng

if TYPE_CHECKING:
    from activator.admin.server import AdminServer
    from activator.config.cluster_settings import ClusterSettings
    from activator.control_plane.sources.activations.mode import ActivationsMode
    from activator.control_plane.sources.external_scaler.source import ExternalScalerSource
    from activator.control_plane.sources.knative.mode import KnativeMode
    from activator.control_plane.sources.push.source import PushSource
    from activator.members.membership import Membership
    from activator.telemetry.metrics.exposition import Exposition
    from activator.telemetry.metrics.knative_export import KnativeExporter
    from activator.telemetry.metrics.knative_metrics import KnativeMetrics
    from activator.telemetry.metrics.program_families import Program
    from activator.telemetry.metrics.worker_families import WorkerFigures
    from activator.telemetry.request_hooks import RequestHooks
    from activator.workers.fork_server import Template

STOP_MARGIN_S: Final = 60.0  # beyond the drain timeout, for programs to end; then systemd may kill the activator
HEALTH_REPORT_INTERVAL_S: Final = 0.1  # between two reports to the data plane
PANIC_JUDGE_INTERVAL_S: Final = 0.5  # between two checks whether it has failed for too long

log = logging.getLogger("activator")

EXIT_FINE = 0
EXIT_CUT = 1  # the drain timed out and requests were aborted
EXIT_PANICS = 4  # the state worker failed repeatedly
EXIT_DISPLACED = 5  # another replica has this one's seat in the group
EXIT_NOW = 130  # a second signal


class Settings(msgspec.Struct, frozen=True):
    """The inputs of a run besides the file: how to read the file again, and the seed of all random choices."""

    config: Config
    specs: list[RevisionSpec]
    reload: Callable[[], tuple[Config, list[RevisionSpec]]] | None = None
    seed: int | None = None
    encode_messages: bool = False  # encode every message between the planes


def _calm_the_collector() -> None:
    """Exclude the present objects from garbage collection and raise the thresholds: requests create no cycles.

    Measured: 2 to 4 of 80 us per request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def worker_count(config: Config) -> int:
    """Return the number of worker processes."""
    return processors() if config.workers == AUTO else int(config.workers)


def load(config: Config) -> None:
    """Import the modules that the parent of several workers uses.

    To be called before the workers' template is forked: modules that are loaded later would be in memory twice.
    """
    importlib.import_module("activator.workers.pool")
    importlib.import_module("encodings.idna")  # used for every name that is resolved
    if config.admin_address:
        for name in ("server", "snapshot", "overview"):
            importlib.import_module(f"activator.admin.{name}")
        importlib.import_module("activator.telemetry.metrics.exposition")


def _listeners(config: Config) -> list[str | Listener]:
    return config.listen if isinstance(config.listen, list) else [config.listen]


class App:
    """One running activator; to be used within one event loop."""

    def __init__(
        self,
        settings: Settings,
        reaping: Reaping,
        now: Now = time.monotonic,
        app_log: AppLog | None = None,
        manager: ServiceManager | None = None,
        template: Template | None = None,
    ) -> None:
        """Assemble the parts.

        `reaping` kills the remaining processes if the activator is killed; `manager` is the service manager that has
        started it; `template`: the process that workers are forked from, if it was forked before there was an event
        loop.
        """
        self.settings = settings
        self.config = settings.config
        self.started_s = now()
        self._manager = manager or ServiceManager({}, 0)
        self.draining = False
        self._errors_total = 0
        self.needs_restart: list[str] = []  # changed keys that the last reload could not apply
        self.admin_address = ""
        self._now = now
        rng = Rng(int.from_bytes(os.urandom(4), "big") if settings.seed is None else settings.seed)
        self._rng = rng
        self._tasks = TaskGroupOwner(self._task_failed)
        channel = self._channel = DirectChannel(settings.encode_messages)
        count = worker_count(settings.config)
        data = DataPlane(settings.config, now, channel.send_to_control, rng, self._tasks) if count == 1 else None
        self.data = data  # if it is in this process
        self.control = ControlPlane(
            now,
            channel.send_effects,
            channel.flush,
            rng,
            self._tasks,
            reaping,
            time.time,
            channel.send_command,
            settings.config.dns,
        )
        self.control.own_ports.addresses = self._own_addresses
        channel.connect_control(self._receive)
        self.workers: Workers
        own_rng = Rng(rng.below(1 << 30))  # tracing must not change which pod a request goes to
        self._exposition: Exposition | None = None
        self._knative_metrics: KnativeMetrics | None = None
        if data is not None:
            self.telemetry = self._make_telemetry(data.proxy, app_log, own_rng)
            self.workers = OneWorker(data, self.telemetry, self._tasks, now)
        else:
            self.telemetry = self._make_telemetry(NoRequests(), app_log, own_rng)
            self.workers = self._make_pool(count, channel, reaping, app_log, template)
        self._history = History(self.workers.revision_statistics, now)
        channel.connect_data(self.workers.apply, self.workers.execute, self.workers.write_out)
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._exit_code = 0  # overrides the exit code of a normal end
        self._admin: AdminServer | None = None
        self._drained: asyncio.Future[bool] = loop.create_future()
        self._serving = False
        self._health = SetHealth()
        self._is_pending = False  # a source has yet to list its revisions
        self._push: PushSource | None = None
        self._knative: KnativeMode | None = None
        self._activations: ActivationsMode | None = None
        self._membership: Membership | None = None
        self._cluster_domain = ""
        self._asked_by_cluster: list[Listener] = []  # listeners from the cluster's settings
        self._entries: list[str] = []  # entry ports of single revisions
        self._unbound_entries: set[str] = set()  # Entries that cannot be bound; each is logged once.

    async def start(self) -> None:
        """Bind the listeners and begin to serve. Raises StartError."""
        workers = self.workers
        workers.change(workers.plan(_listeners(self.config)))
        self.telemetry.set(self.config)
        if self.config.members.listen:
            self._membership = await self._join_group()
        await workers.start()
        self._tasks.repeat("log", LOG_WINDOW_S, self.telemetry.sweep)
        self.control.start()
        if self._membership is not None:
            await self._membership.start()  # first: the others may know more of revisions that came back
        self.control.configure(self.config, self.settings.specs)
        await self.control.settle()  # before that, requests for the file's revisions would get "no route"
        await self._start_sources()
        self._report_pending()
        if self.config.admin_address:
            await self._start_admin()
            log.info("admin port on %s", self.admin_address)  # the bound port, if the file has port 0
        self._report_health()  # the first worker that listens can then report why the activator is not ready
        await workers.serve()
        self._serving = True
        self._report_health()
        self._tasks.repeat("health", HEALTH_REPORT_INTERVAL_S, self._watch_health)

    async def run(self) -> int:
        """Serve until a signal or `stop`; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        self._tasks.repeat("freed memory", MEMORY_LOOK_S, FreedMemory().look)
        if orphans.adopt():
            self._tasks.repeat("orphans", orphans.CHECK_S, orphans.Orphans().check)
        try:
            await self.start()
        except StartError:
            await self.control.close()  # some programs may run already
            raise
        self._tasks.repeat("judge", PANIC_JUDGE_INTERVAL_S, self._judge)
        if self.config.admin_address:
            self._tasks.keep_running("history", self._history.step)
        _calm_the_collector()
        self._notify_ready()
        for address in unused():
            log.warning("systemd has opened %s, which no listener uses: correct its unit, or `listen`", address)
        if self._manager.watchdog_s > 0.0:
            self._tasks.keep_running("watchdog", self._feed_watchdog)
        await self._stop.wait()
        return await self.close()

    def stop(self) -> None:
        """Begin to drain; `run` returns when that is complete."""
        self.draining = True
        self._report_health()
        self._stop.set()

    async def close(self) -> int:
        """Drain, stop every process and end every task; return the exit code."""
        self.draining = True
        if self._membership is not None:
            self._membership.drain_begins()
        if self._activations is not None:
            await self._activations.stop_writing()
        shutdown = self.config.shutdown
        self._manager.stopping(shutdown.delay + max(shutdown.timeout, shutdown.tunnels) + STOP_MARGIN_S)
        if shutdown.delay > 0.0:
            log.info("not ready from now on; draining begins in %g s", shutdown.delay)
            self._channel.send_command(AnnounceDrain())
            await pause(shutdown.delay)
        log.info("draining")
        self._channel.send_command(Drain(float(shutdown.timeout), float(shutdown.tunnels)))
        finished = await self._drained
        await self.workers.close()
        if self._membership is not None:
            await self._membership.close()
        await self.control.close()
        if self._admin is not None:
            await self._admin.close()
        await self._tasks.close()
        self.telemetry.close()
        if self._exit_code:
            return self._exit_code
        return EXIT_FINE if finished else EXIT_CUT

    def reload(self) -> list[str]:
        """Read the file again and apply it, or keep the old configuration; return the problems, if any."""
        if self.settings.reload is None:
            return ["started without a file: there is nothing to reload"]
        if self.draining:
            log.error("reload refused: the activator is draining")
            return ["the program is draining"]
        try:
            config, specs = self.settings.reload()
            fixed = [key for key in FIXED_KEYS if getattr(config, key) != getattr(self.config, key)]
            config = msgspec.structs.replace(config, **{key: getattr(self.config, key) for key in fixed})
            # Steps that may be rejected come first, and change nothing if they are.
            listeners = self.workers.plan([*_listeners(config), *self._asked_by_cluster, *self._entries])
            try:
                self.telemetry.set(config)
            except StartError:
                listeners.discard()
                raise
        except ConfigError as error:
            for problem in error.problems:
                log.error("reload refused: %s", problem)
            return error.problems
        except StartError as error:
            log.error("reload refused: %s", error)
            return [str(error)]
        self._manager.reloading(time.monotonic_ns())
        self.workers.reconfigure(config)
        self.workers.change(listeners)
        self.control.configure(config, specs)
        if self._cluster is not None:
            self._cluster.configure(config)
        self._report_pending()
        self.config, self.needs_restart = config, fixed
        if fixed:
            log.warning("reloaded, but a change of %s requires a restart", ", ".join(fixed))
        else:
            log.info("reloaded")
        self._notify_ready()
        return []

    # --- for the admin port ---

    @property
    def addresses(self) -> list[str]:
        """The addresses of the listeners."""
        return self.workers.addresses

    def is_alive(self) -> bool:
        return self.control.is_alive()

    def waiting_for(self) -> list[str]:
        """Return why the activator is not ready to serve."""
        reasons = []
        if self.draining:
            reasons.append("draining")
        if not self._serving:
            reasons.append("not listening yet")
        if not self.control.worker.is_settled():
            reasons.append("the first changes have not been applied")
        if self._membership is not None and self._membership.waiting_for():
            reasons.append(self._membership.waiting_for())
        reasons.extend(self.control.pending())
        reasons.extend(self.control.over_budget())
        return reasons

    async def gather_statistics(self) -> None:
        await self.workers.gather_statistics()

    async def gather_snapshot(self) -> None:
        await self.workers.gather_snapshot()

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        if self._exposition is None:
            from activator.telemetry.metrics.exposition import (
                Exposition,  # prometheus-client: imported on the first request
            )

            self._exposition = Exposition(self.workers.revision_statistics, self._program)
        if self._cluster is not None:
            self.control.controllers.rest_totals(self._cluster.client.requests_total)
        self._exposition.histograms = self.config.metrics.histograms
        return self._exposition.render(accept)

    def snapshot(self, only: str = "") -> object:
        return self._joined(self.workers.snapshot(only), only)

    async def snapshot_of(self, worker: int) -> object:
        return self._joined(await self.workers.snapshot_of(worker))

    def _joined(self, shown: dict[str, dict[str, Any]], only: str = "") -> object:
        from activator.admin.snapshot import joined

        made = joined(shown, *self.control.snapshot(only), self.workers.describe(), self.workers.counts().data)
        groups = self.control.groups_shown()
        return {**made, "groups": groups} if groups else made

    def overview(self) -> Iterator[bytes]:
        from activator.admin.overview import slices, totals

        head = totals(self.workers.counts().data, self.workers.describe(), self.draining)
        head["groups"] = self.control.groups_shown()
        return slices(self.workers.revision_statistics(), self.control.known, head)

    def history(self, keys: list[str]) -> object:
        return self._history.shown(keys)

    async def tasks_of(self, worker: int) -> object:
        return await self.workers.tasks_of(worker)

    async def profile_of(self, worker: int, seconds: float) -> object:
        return await self.workers.profile_of(worker, seconds)

    def program_output(self, key: str, after: int) -> object:
        found = self.control.processes.supervisor.log_of(key)
        return None if found is None else found.after(after)

    def load(self, key: str, seconds: float | None) -> str:
        return self.control.processes.load(key, seconds)

    def unload(self, key: str) -> str:
        return self.control.processes.unload(key)

    def restart(self, key: str) -> str:
        return self.control.processes.restart(key)

    def end_member(self, seat: int) -> str:
        return "this program has no group" if self._membership is None else self._membership.end_seat(seat)

    def members(self) -> object:
        return {} if self._membership is None else self._membership.describe()

    def configuration(self) -> object:
        from activator.admin.inspection import configuration

        return configuration(self.config)

    @property
    def log(self) -> AppLog | None:
        """The activator's own log, if it manages that."""
        return self.telemetry.app_log

    def set_log_level(self, part: str, level: str) -> None:
        if self.log is not None:
            self.log.set_level(part, level)
        self.workers.set_log_level(part, level)

    # --- within ---

    def _program(self) -> Program:
        """Return the inputs of the activator's metrics."""
        from activator.telemetry.metrics.group_families import GroupFigures
        from activator.telemetry.metrics.program_families import Program
        from activator.telemetry.metrics.scaling_families import ScalingFigures

        control = self.control
        counts = counts_plus(self.workers.counts(), self._own_counts())
        return Program(
            counts.data,
            control.worker,
            control.prober,
            counts.lost_log_lines,
            self._now,
            control.controllers,
            counts.spans,
            None if self._push is None else self._push.intake,
            self._cluster,
            self._knative,
            self._activations,
            self._worker_figures(counts),
            None if self._membership is None else self._membership.figures(),
            ScalingFigures.of((self._activations or control.processes).autoscaler),
            GroupFigures.of(control.processes.groups),
        )

    def _worker_figures(self, counts: WorkerCounts) -> WorkerFigures | None:
        from activator.telemetry.metrics.worker_families import WorkerFigures

        shown = self.workers.describe()
        if not shown:
            return None
        states = Counter(one["state"] for one in shown)
        return WorkerFigures(dict(states), sum(one["restarts"] for one in shown), counts.cpu_s, counts.resident_bytes)

    def _receive(self, message: FromData) -> None:
        """Process a message from the data plane."""
        if isinstance(message, Drained):
            if not self._drained.done():
                self._drained.set_result(message.finished)
        elif isinstance(message, RevisionEnded):
            for reader in (self._exposition, self._knative_metrics):
                if reader is not None:
                    reader.ended(message.statistics)
        else:
            self.control.receive(message)

    async def _start_sources(self) -> None:
        """Start the sources other than the file: each is a folder, and a line here. Raises StartError."""
        kubernetes = self.config.kubernetes
        if kubernetes is not None and kubernetes.mode == ACTIVATIONS:
            self._activations = self._make_activations()
            if self._membership is not None:
                self._activations.join(self._membership.writing)
        elif kubernetes is not None:
            self._knative = self._make_knative()
        if self._cluster is not None:
            await self.control.start_source(self._cluster)
        if kubernetes is not None and kubernetes.external_scaler.listen:
            await self.control.start_source(self._make_external_scaler(kubernetes))
        if self.config.push.listen:
            self._push = self._make_push()
            await self.control.start_source(self._push)

    async def _join_group(self) -> Membership | None:
        """Join the group of members. Raises StartError."""
        from activator.members.joining import join  # imported only with members

        if self.config.admin_address:
            importlib.import_module("activator.admin.server")  # now: it takes 0.3 s without heartbeats
        kubernetes = self.config.kubernetes
        may_be_alone = kubernetes is None or kubernetes.mode != ACTIVATIONS
        return await join(
            self.config.members, self.workers, self._displaced, self._now, self._rng, self._tasks, may_be_alone
        )

    def _displaced(self) -> None:
        """End: another replica has this one's seat in the group, or the others consider this one ended."""
        self._exit_code = EXIT_DISPLACED
        self.stop()

    def _make_push(self) -> PushSource:
        from activator.control_plane.sources.push.source import PushSource  # aiohttp: only if pods report themselves

        worker = self.control.worker
        return PushSource(self.config.push, worker.submit_with_outcome, worker.model, self.control.own_ports.is_own)

    def _own_addresses(self) -> list[str]:
        """Return the addresses that the activator listens on, as configured and as bound."""
        config, kubernetes = self.config, self.config.kubernetes
        addresses = [*map(address_of_listener, _listeners(config)), config.admin_address]
        addresses += [config.push.listen, config.members.listen]
        if kubernetes is not None:
            addresses.append(kubernetes.external_scaler.listen)
        push = "" if self._push is None else self._push.address
        return [one for one in (*addresses, *self.addresses, self.admin_address, push) if one]

    @property
    def _cluster(self) -> KnativeMode | ActivationsMode | None:
        return self._knative or self._activations

    def _make_activations(self) -> ActivationsMode:
        need("kubernetes", "kubernetes mode")
        from activator.control_plane.sources.activations.mode import ActivationsMode

        control = self.control
        return ActivationsMode(
            self.config,
            control.submit,
            self._now,
            time.time,
            self._rng,
            self._tasks,
            control.controllers,
            control.worker.supervision.panicked,
            self._serve_entries,
            self._families,
        )

    def _make_external_scaler(self, kubernetes: Kubernetes) -> ExternalScalerSource:
        need("kubernetes", "the external scaler")  # grpclib: imported only with KEDA
        from activator.control_plane.sources.external_scaler.source import ExternalScalerSource

        return ExternalScalerSource(kubernetes.external_scaler.listen, self._now)

    def _make_knative(self) -> KnativeMode:
        # Kubernetes' client and protobuf are needed only with a cluster.
        need("kubernetes", "kubernetes mode")
        from activator.control_plane.sources.knative.environment import read_environment
        from activator.control_plane.sources.knative.mode import KnativeMode

        environment = read_environment(os.environ)
        self._cluster_domain = environment.cluster_domain
        self._channel.send_command(SpeakKnative(environment.cluster_domain))
        control = self.control
        return KnativeMode(
            environment,
            self.config,
            control.submit,
            control.prober.hurry,
            self._now,
            self._rng,
            self._tasks,
            control.controllers,
            self._cluster_settled,
            self._serve_tls,
            control.worker.supervision.panicked,
        )

    def _report_health(self) -> None:
        """Send a change of the health that kubelets get on a serving port; only Knative's kubelets ask there."""
        if self._knative is None:
            return
        not_alive = "" if self.is_alive() else "the state worker does not turn"
        health = SetHealth(not_alive, "; ".join(self.waiting_for()))
        if health != self._health:
            self._health = health
            self._channel.send_command(health)

    def _notify_ready(self) -> None:
        self._manager.ready(f"serving on {', '.join(self.addresses)}")

    async def _feed_watchdog(self) -> None:
        """Notify systemd's watchdog while the state worker turns; otherwise systemd restarts the activator."""
        if self.is_alive():
            self._manager.alive()
        await pause(self._manager.watchdog_s / 3)

    def _watch_health(self) -> None:
        self._report_health()
        self._report_pending()

    def _report_pending(self) -> None:
        """Notify the data plane of the first source that has yet to list its revisions, and of the last that has.

        The second message follows the effects of these lists on the same channel.
        """
        is_pending = not self.control.is_listed() if self._is_pending else bool(self.control.pending())
        if is_pending is not self._is_pending:
            self._is_pending = is_pending
            self._channel.send_command(SetPending(is_pending))

    def _cluster_settled(self, settings: ClusterSettings) -> None:
        """Apply changed settings of the cluster's ConfigMaps."""
        self._channel.send_command(SpeakKnative(self._cluster_domain, settings.passes_through))
        try:
            self.telemetry.settle(settings)
        except StartError as error:
            log.error("the cluster's settings are not applied: %s", error)
            return
        self.workers.settle(settings)

    def _serve_tls(self, wanted: Listener) -> None:
        """Serve a TLS listener of the cluster's settings, or its new certificate."""
        self._asked_by_cluster = [wanted]
        try:
            self.workers.change(self.workers.plan([*_listeners(self.config), wanted]))
        except StartError as error:
            log.error("%s", error)

    def _serve_entries(self, ports: frozenset[int]) -> frozenset[int]:
        """Serve on these ports, each for one revision, and on no other entries. Return those that cannot be bound."""
        host = self._entry_host()
        fixed = [*_listeners(self.config), *self._asked_by_cluster]
        wanted = [join_address(host, port) for port in sorted(ports)]
        try:
            self.workers.change(self.workers.plan([*fixed, *wanted]))
            self._entries = wanted
            self._unbound_entries.clear()
            return frozenset()
        except StartError:
            self._entries = [one for one in self._entries if one in wanted]
            for address in wanted:
                if address not in self._entries:
                    self._serve_entry(address)
            self._unbound_entries &= {*wanted}
            return frozenset(port for port in ports if join_address(host, port) not in self._entries)

    def _entry_host(self) -> str:
        """Return the host for ports of single revisions: that of the first TCP listener."""
        addresses = [address_of_listener(one) for one in _listeners(self.config)]
        return split_address(next((one for one in addresses if not is_unix(one)), "0.0.0.0:0"))[0]

    def _families(self) -> frozenset[str]:
        """Return the address families of those ports."""
        host = self._entry_host()
        return frozenset({"IPv4", "IPv6"} if host == "::" else {"IPv6" if ":" in host else "IPv4"})

    def _serve_entry(self, address: str) -> None:
        """Serve one more entry port."""
        wanted = [*_listeners(self.config), *self._asked_by_cluster, *self._entries, address]
        try:
            self.workers.change(self.workers.plan(wanted))
        except StartError as error:
            if address not in self._unbound_entries:  # it is retried every second
                self._unbound_entries.add(address)
                log.error("%s: requests of one Service cannot be received; another port is used for it", error)
            return
        self._entries.append(address)

    def _make_knative_metrics(self, proxy: RequestHooks) -> KnativeExporter:
        from activator.telemetry.metrics.knative_export import (
            KnativeExporter,  # aiohttp and more: imported only if enabled
        )
        from activator.telemetry.metrics.knative_metrics import KnativeMetrics
        from activator.telemetry.metrics.knative_requests import KnativeRequests

        workers = self.workers
        requests = workers.requests()
        own = None
        if requests is None:
            requests = own = KnativeRequests(self._failed)
        metrics = KnativeMetrics(workers.revision_statistics, requests, lambda: self._knative)
        self._knative_metrics = metrics
        return KnativeExporter(metrics, proxy, own, self._tasks, time.time_ns, workers.gather_statistics)

    async def _start_admin(self) -> None:
        from activator.admin.server import AdminServer  # aiohttp: imported only with an admin port
        from activator.admin.token import AdminToken

        wanted = self.config.admin
        admin = AdminServer(self, self._now, AdminToken(wanted.token if isinstance(wanted, AdminListener) else ""))
        access = wanted.access(UNIX_ADMIN_MODE) if isinstance(wanted, AdminListener) else SocketAccess(UNIX_ADMIN_MODE)
        self.admin_address = await admin.start(self.config.admin_address, access)
        self._admin = admin

    def _judge(self) -> None:
        """Drain and exit if the state worker has failed for too long, so that the activator is restarted."""
        grace_s = self.config.shutdown.panic_grace
        if grace_s > 0.0 and not self.draining and self.control.is_hopeless(grace_s):
            reasons = self.control.over_budget()
            log.critical("%s: draining, then exit code %d", "; ".join(reasons), EXIT_PANICS)
            self._exit_code = EXIT_PANICS
            self.stop()

    def _signalled(self) -> None:
        if self.draining:
            os._exit(EXIT_NOW)  # the reaper kills the remaining processes
        self.stop()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._errors_total += 1
        log.error("the task %s failed", name, exc_info=error)

    def _own_counts(self) -> WorkerCounts:
        """Return the counts of this process in addition to those of the workers."""
        spans = {} if self.data is not None else self.telemetry.traces.totals
        return WorkerCounts(DataPlaneStatistics(errors_total=self._errors_total), spans=spans)

    def _failed(self, error: Exception) -> None:
        self._errors_total += 1
        log.error("an error of the program", exc_info=error)

    def _make_telemetry(self, hooks: RequestHooks, app_log: AppLog | None, rng: Rng) -> Telemetry:
        loop = asyncio.get_running_loop()
        return Telemetry(
            *(hooks, self.control.controllers, app_log, rng, self._now, loop.call_soon, loop.call_later),
            *(time.time, time.time_ns, self._failed, lambda: self._make_knative_metrics(hooks)),
        )

    def _make_pool(
        self, count: int, channel: DirectChannel, reaping: Reaping, app_log: AppLog | None, template: Template | None
    ) -> Workers:
        from activator.workers.pool import WorkerPool  # imported only with several workers

        environment = {**os.environ, MARK: reaping.mark}  # for the reaper, which kills them if this process is killed
        log_level = "" if app_log is None else app_log.fixed_level or ""
        return WorkerPool(
            *(self.config, count, self._now, channel.send_to_control, self.control.tables, self._rng),
            *(self._tasks, environment, log_level, template),
        )
