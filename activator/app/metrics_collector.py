"""The metrics of the program, put together from both planes when they are read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from activator.config.model.file import Config
from activator.control_plane.plane import ControlPlane
from activator.messages import (
    RevisionStatistics,
)
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner
from activator.workers.messages import WorkerCounts
from activator.workers.sums import plus
from activator.workers.workers import Workers
from lb.tracker import STATE_NAMES

if TYPE_CHECKING:
    from activator.app.sources import Sources
    from activator.control_plane.sources.knative.mode import KnativeMode
    from activator.members.membership import Membership
    from activator.telemetry.metrics.exposition import Exposition
    from activator.telemetry.metrics.knative_export import KnativeExporter
    from activator.telemetry.metrics.knative_metrics import KnativeMetrics
    from activator.telemetry.metrics.program_families import Program
    from activator.telemetry.metrics.worker_families import WorkerFigures
    from activator.telemetry.request_hooks import RequestHooks

CLOCK_STEP_S: Final = 1.0  # a larger change of the time of day moves the shown times of former events


class MetricsCollector:
    """The metrics of the activator.

    `own_counts()` returns what this process counts beside its workers; `config()` the configuration in effect.
    """

    def __init__(
        self,
        control: ControlPlane,
        workers: Workers,
        now: Now,
        tasks: TaskGroupOwner,
        sources: Sources,
        own_counts: Callable[[], WorkerCounts],
        config: Callable[[], Config],
    ) -> None:
        self._control = control
        self._workers = workers
        self._now = now
        self._tasks = tasks
        self._sources = sources
        self._own_counts = own_counts
        self._config = config
        self._membership: Membership | None = None
        self._exposition: Exposition | None = None
        self._knative_metrics: KnativeMetrics | None = None
        self._booted_s = 0.0  # the time of day when the monotonic clock began

    def join(self, membership: Membership | None) -> None:
        """Read the figures of the group, too, from now on."""
        self._membership = membership

    def ended(self, statistics: RevisionStatistics) -> None:
        """Keep the counts of a removed revision, whose last request has ended."""
        for reader in (self._exposition, self._knative_metrics):
            if reader is not None:
                reader.ended(statistics)

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        """Return the exposition in slices, and its content type, for the header Accept."""
        if self._exposition is None:
            from activator.telemetry.metrics.exposition import (
                Exposition,  # prometheus-client: only when asked for
            )

            self._exposition = Exposition(self._revisions, self._program)
        cluster = self._sources.cluster
        if cluster is not None:
            self._control.controllers.rest_totals(cluster.client.requests_total)
        self._exposition.histograms = self._config().metrics.histograms
        return self._exposition.render(accept)

    def _revisions(self) -> Iterator[RevisionStatistics]:
        """Yield the figures of each revision, with the states of the pods that are shown one by one."""
        booted_s = time.time() - self._now()
        if abs(booted_s - self._booted_s) > CLOCK_STEP_S:
            self._booted_s = booted_s
        for revision in self._workers.revision_statistics():
            yield replace(revision, pod_states=self._pod_states(revision)) if revision.by_pod else revision

    def _pod_states(self, revision: RevisionStatistics) -> dict[str, tuple[str, float]]:
        """Return the state of each pod, by address, and when it came into it, in Unix seconds."""
        record = self._control.worker.model.revisions.get(revision.key)
        pods = () if record is None else record.pods.values()
        return {
            pod.address: (STATE_NAMES[pod.state()], round(self._booted_s + pod.since_s, 3))
            for pod in pods
            if pod.address in revision.by_pod and not pod.ousted_by
        }

    def _program(self) -> Program:
        """Return what the metrics of the program are read from."""
        from activator.telemetry.metrics.group_families import GroupFigures
        from activator.telemetry.metrics.memory_families import MemoryFigures
        from activator.telemetry.metrics.program_families import Program
        from activator.telemetry.metrics.scaling_families import ScalingFigures

        control, sources = self._control, self._sources
        counts = plus(self._workers.counts(), self._own_counts())
        return Program(
            counts.data,
            control.worker,
            control.prober,
            counts.lost_log_lines,
            self._now,
            control.controllers,
            counts.spans,
            None if sources.push is None else sources.push.intake,
            sources.cluster,
            sources.knative,
            sources.activations,
            self._worker_figures(counts),
            None if self._membership is None else self._membership.figures(),
            ScalingFigures.of((sources.activations or control.processes).autoscaler),
            GroupFigures.of(control.processes.groups),
            MemoryFigures.of(control.processes.memory, control.processes.supervisor.fleets.by_key),
        )

    def _worker_figures(self, counts: WorkerCounts) -> WorkerFigures | None:
        from activator.telemetry.metrics.worker_families import WorkerFigures

        workers = self._workers.inspection.describe()
        if not workers:
            return None
        states = Counter(worker["state"] for worker in workers)
        return WorkerFigures(
            dict(states), sum(worker["restarts"] for worker in workers), counts.cpu_s, counts.resident_bytes
        )

    def make_knative_metrics(self, proxy: RequestHooks, failed: Callable[[Exception], None]) -> KnativeExporter:
        """Return an exporter of Knative's own metrics."""
        from activator.telemetry.metrics.knative_export import KnativeExporter  # imports aiohttp: only if configured
        from activator.telemetry.metrics.knative_metrics import KnativeMetrics
        from activator.telemetry.metrics.knative_requests import KnativeRequests

        workers = self._workers
        requests = workers.requests()
        own = None
        if requests is None:
            requests = own = KnativeRequests(failed)
        metrics = KnativeMetrics(workers.revision_statistics, requests, self._knative)
        self._knative_metrics = metrics
        return KnativeExporter(metrics, proxy, own, self._tasks, time.time_ns, workers.gather_statistics)

    def _knative(self) -> KnativeMode | None:
        return self._sources.knative
