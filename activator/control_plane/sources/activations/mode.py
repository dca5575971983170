"""The mode `activations`, a cluster without Knative: connects its watches, its scaling and its writes.

    watches ──► ActivationSource ──► a pass per revision ──► changes ──► state worker
    loads ──► ActivationScaling ──► wanted ──► ActivationSource ──► Desired ──► Reconciler ──► the API
    (pods are wanted and none answers) ──► PodDiagnostics ──► the cause ──► ActivationSource

Of several replicas of the activator, each knows and serves all revisions; ActivationScaling and Reconciler handle only
those that this replica owns (`replicas.py`).

The mode is part of the control plane: it exists once, whatever the number of workers. `docs/kubernetes.md` has the
contract.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from activator.config.activation import Declared
from activator.config.file import resolve_revision
from activator.config.model.file import Config
from activator.config.model.kubernetes import Kubernetes
from activator.config.model.revision import Revision
from activator.config.policy_names import PolicyNames
from activator.config.specs import RevisionSpec, reroute
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec, Desired
from activator.control_plane.reconcile.reconciler import Reconciler
from activator.control_plane.reconcile.report import Report
from activator.control_plane.reconcile.traffic_wanted import MANAGED_BY_LABEL, OURS, SERVICE_NAME_LABEL
from activator.control_plane.scaling.autoscaler import LastDecision
from activator.control_plane.sources.activations.conditions import CONTESTED, note_of
from activator.control_plane.sources.activations.fronts import Fronts
from activator.control_plane.sources.activations.hosts import order_of
from activator.control_plane.sources.activations.object_handler import ObjectHandler
from activator.control_plane.sources.activations.objects import (
    ACTIVATIONS,
    ANNOTATED_SERVICES,
    DEPLOYMENTS,
    FRONT_SLICES,
    HTTP_ROUTES,
    STATEFUL_SETS,
    Workload,
)
from activator.control_plane.sources.activations.other_targets import OtherTargets, TargetKey
from activator.control_plane.sources.activations.pod_diagnostics import PodDiagnostics
from activator.control_plane.sources.activations.replicas import OtherReplicas, Replicas
from activator.control_plane.sources.activations.scaling import ActivationScaling
from activator.control_plane.sources.activations.service_restorer import ServiceRestorer
from activator.control_plane.sources.activations.source import ActivationSource
from activator.control_plane.sources.cluster.cluster_mode import ClusterMode, is_refused
from activator.control_plane.sources.cluster.reconcile_queue import ReconcileQueue
from activator.kubernetes.object_store import Handler
from activator.kubernetes.objects import Key, Object
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.relister import Relister
from activator.kubernetes.resources import ENDPOINT_SLICES, Resource, Selection
from activator.messages import Change, Effect, Load, RevisionGone
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.registry import default_name
from lb.rng import Rng

CONTESTED_KEPT_S: Final = 600.0  # how long the status reports that another program wrote our fields
EXPIRE_INTERVAL_S: Final = 1.0  # between two removals of expired loads
SCALE_TICK_S: Final = 0.1  # between two checks for decisions that are due

CONTROLLER: Final = "declaration"

log = logging.getLogger("activator.kubernetes")

_OPTIONAL: Final = frozenset({HTTP_ROUTES.plural, ANNOTATED_SERVICES.plural, STATEFUL_SETS.plural})


class ActivationsMode(ClusterMode):
    """The source of the mode `activations`.

    `submit` takes changes for the state worker. `wall_s` returns the time of day. `panicked(key, work, error, now_s)`
    counts an internal error and returns how long to wait before a retry, in seconds.
    """

    pod_label = ACTIVATION_LABEL

    def __init__(
        self,
        config: Config,
        submit: Callable[[Change], None],
        now: Now,
        wall_s: Callable[[], float],
        rng: Rng,
        tasks: TaskGroupOwner,
        controllers: Controllers,
        panicked: Callable[[str, object, object, float], float],
        listen: Callable[[frozenset[int]], frozenset[int]],
        listened: Callable[[], frozenset[str]],
    ) -> None:
        kubernetes = config.kubernetes or Kubernetes()
        super().__init__(kubernetes, now, rng, tasks)
        self._config = config
        self._namespace = kubernetes.namespace
        self._submit = submit
        self._panicked = panicked
        self._own_service = _service(kubernetes.service)
        loop = asyncio.get_running_loop()
        controllers.register(CONTROLLER)
        self._passes = ReconcileQueue(
            self._run_pass, self._record_failed_pass, loop.call_soon, loop.call_later, controllers
        )
        name = os.environ.get("POD_NAME", "activator")
        self.reconciler = Reconciler(
            self.client, controllers, now, wall_s, rng, self._record_report, tasks.on_error, name
        )
        self.others = OtherTargets(self.client, self._target_read, now, pause)
        own_address = "" if kubernetes.service else os.environ.get("POD_IP", "")
        self.fronts = Fronts(self._find_service, self._mark, listen, now, self._slices_version, own_address, listened)
        self.replicas = Replicas(self._uid_of, self._load_changed, self._writers_changed, now)
        self.source = ActivationSource(
            self._resolve,
            PolicyNames(),
            self._own_service,
            now,
            self._mark,
            self.fronts,
            self.others,
            self.reconciler.service_written,
            self.replicas.writes,
        )
        self._scaling = ActivationScaling(now, wall_s, self.replicas, self.source.scaled)
        self.autoscaler = self._scaling.autoscaler
        self.diagnostics = PodDiagnostics(self.client, self.source.pods_listed, now, pause)
        self.give_back = ServiceRestorer(self.client, self.fronts, self._find_service, self._may_give_back, now, pause)
        for retried in (self.reconciler, self.others, self.give_back):
            self.client.outage.on_end(retried.wake)
        self._services: Reflector[Any] | None = None
        self._front_slices: Reflector[Any] | None = None
        self._workloads: list[Reflector[Any]] = []
        self._were_workloads_known = False
        self._writes = True
        self._is_announced = False  # to the other replicas
        self._expired_s = now()  # when expired loads were last removed
        self._contested: dict[str, tuple[ConditionSpec, float]] = {}  # by key, each until a time

    # --- life ---

    def configure(self, config: Config) -> None:
        """Apply a new configuration: all specifications are made again."""
        self._config = config
        self.source.mark_all()

    async def start(self) -> None:
        """Start the watches and the periodic tasks."""
        source = self.source
        self._watch_all(ACTIVATIONS, source.activation_objects)
        self._services, _ = self._watch_all(ANNOTATED_SERVICES, source.service_objects)
        _, slices = self._watch_all(ENDPOINT_SLICES, source.slice_objects, ACTIVATION_LABEL)
        self._pod_relisters = [slices]
        deployments, _ = self._watch_all(DEPLOYMENTS, source.workload_objects("Deployment"))
        stateful_sets, _ = self._watch_all(STATEFUL_SETS, source.workload_objects("StatefulSet"))
        self._workloads = [deployments, stateful_sets]
        self._watch_all(HTTP_ROUTES, source.route_objects)
        self._watch_fronts()
        self._tasks.keep_running("pod diagnostics", self.diagnostics.step)
        self._tasks.keep_running("other targets", self.others.step)
        self._tasks.keep_running("giving back", self.give_back.step)
        self._tasks.repeat("scaling", SCALE_TICK_S, self._tick, retry_max_s=SCALE_TICK_S)

    def _watch_fronts(self) -> None:
        """Watch our slices of other programs' Services, and the slices of the activator's own Service."""
        fronts = self.fronts
        ours = ObjectHandler(fronts.slice_changed, fronts.slice_gone)
        self._front_slices, _ = self._watch_all(FRONT_SLICES, ours, f"{MANAGED_BY_LABEL}={OURS}")
        namespace, name = self._own_service
        if name:
            own = ObjectHandler(fronts.replica_slice_changed, fronts.replica_slice_gone)
            self._watch(Selection(FRONT_SLICES, namespace, f"{SERVICE_NAME_LABEL}={name}"), own)

    async def stop_writing(self) -> None:
        """Stop deciding and writing, so that another replica may.

        This replica drains and sees a falling share of the load, and must not scale by it. Pods are still followed.
        """
        self._writes = False
        self.replicas.set_writes(False)
        await self.reconciler.close()

    async def close(self) -> None:
        await self._tasks.close()
        await self.reconciler.close()
        await self.watches.close()
        await self.client.close()

    # --- from the control plane ---

    def receive_load(self, load: Load) -> None:
        """Pass on the present load of a revision, and compare its pods with the API while requests wait for one."""
        self.replicas.receive(load)
        if load.in_flight or load.queued:
            self.diagnostics.expedite(load.key)
        revision = self.source.revisions.get(load.key)
        is_served = revision is not None and revision.served is not None
        waits = is_served and load.queued > 0 and not self.source.answers.has_answer(load.key)
        if waits != (load.key in self._awaited):
            self._await_pods(load.key, waits)

    def applied(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.source.applied(effect)

    def resubmit(self, key: str) -> None:
        if self.source.forget_submitted(key):
            self._mark(key)
        else:
            self._submit(RevisionGone(key))

    # --- what metrics read ---

    def declared(self) -> dict[str, int]:
        """Count the declared revisions by state."""
        return dict(
            Counter(revision.state for revision in self.source.revisions.values() if revision.declaration is not None)
        )

    def contested_hosts(self) -> int:
        """Return the number of hosts that more than one object names."""
        return self.source.hosts.contested

    def scaling(self, key: str) -> LastDecision | None:
        return self.autoscaler.shown(key)

    # --- several replicas ---

    def join(self, others: OtherReplicas) -> None:
        """Make this replica one of several. Call it before `start`."""
        self.replicas.join(others)

    def owned(self) -> int:
        """Return the number of objects that this replica writes for."""
        return sum(self._is_ours(key) for key in self.source.revisions)

    def _uid_of(self, key: str) -> str | None:
        return self.source.uid_of(key)

    def _find_service(self, key: str) -> Any:
        """Return the Service of this namespace/name as the watch shows it; None: there is none."""
        namespace, _, name = key.partition("/")
        return None if self._services is None else self._services.store.get((namespace, name))

    def _may_give_back(self, uid: str) -> bool:
        return self._writes and not self.pending() and self._are_workloads_known() and self.replicas.writes(uid)

    def _is_ours(self, key: str) -> bool:
        uid = self._uid_of(key)
        return uid is not None and self.replicas.writes(uid)

    def _load_changed(self, load: Load) -> None:
        """Give the load of a revision, summed over all replicas, to its scaling, its front and its diagnosis."""
        self._scaling.load(load)
        self.fronts.receive_load(load)
        if load.in_flight or load.queued:
            self.diagnostics.expedite(load.key)

    def _writers_changed(self) -> None:
        """Give up revisions that this replica no longer owns, and schedule a pass of those that it owns now."""
        for key in self.source.revisions:
            was_ours = self._scaling.is_known_as_ours(key)
            if self._is_ours(key) != was_ours:
                self._mark(key)
                if was_ours:
                    self._give_up(key)

    def _give_up(self, key: str) -> None:
        """Stop deciding on the revision and writing for it: another replica does."""
        self._scaling.give_up(key)
        self.fronts.forget_decision(key)
        self.source.unscaled(key)
        self.reconciler.abandon(key)

    # --- within ---

    def _watch_all(
        self, resource: Resource[Object], handler: Handler[Object], labels: str = ""
    ) -> tuple[Reflector[Object], Relister[Object]]:
        """Watch the objects of a kind in the namespaces that are served."""
        return self._watch(Selection(resource, self._namespace, labels), handler)

    def _resolve(self, declared: Declared, hosts: tuple[str, ...], is_http2: bool, created: str) -> RevisionSpec:
        """Resolve a declaration to the specification that is submitted."""
        revision = declared.revision
        protocol = "h2c" if is_http2 and revision.protocol == "auto" else revision.protocol
        resolved: Revision = structs.replace(
            revision, hosts=list(hosts), protocol=protocol, max_scale=revision.scaling.max or revision.max_scale
        )
        spec = resolve_revision(self._config, resolved, default_name)
        return reroute(spec, order=order_of(revision, created))

    def _mark(self, key: str) -> None:
        self._passes.mark(key, CONTROLLER)

    def _is_behind(self) -> bool:
        return self._passes.is_behind()

    def _slices_version(self) -> str:
        return "" if self._front_slices is None else self._front_slices.version

    def _target_read(self, target: TargetKey, workload: Workload | None, problem: str) -> None:
        self.source.record_read(target, workload, problem)

    # --- a pass ---

    def _run_pass(self, key: str) -> float:
        """Submit and write the changes of a revision. Return when the next pass is due without a change."""
        source = self.source
        source.workloads_known = self._are_workloads_known()
        if source.take_ended(key):
            self._drop(key)
        served = source.served(key)
        front = None
        if served is not None:
            self._scaling.declare(key, served)
            if source.is_target_known(key):
                front = source.decide_front(key, served)
                least = max(source.wanted.get(key, -1), source.replicas_of(key), 1)
                self._scaling.set_floor(key, served, least if front is not None and front.keeps_pods else 0)
        changes, desired, due_s = source.work_out(key, front)
        for change in changes:
            self._submit(change)
        if desired is not None:
            self._want(desired)
        if served is not None:
            self._scale_and_diagnose(key, served)
        return due_s

    def _record_failed_pass(self, key: str, error: Exception) -> float:
        """Count and log the exception of a pass; return how long to wait, in seconds."""
        self.source.forget_submitted(key)  # some changes may have been made and not submitted
        backoff_s = self._panicked(key, "what the cluster says of it", error, self._now())
        log.error("%s: the pass failed; next attempt in %.1f s", key, backoff_s, exc_info=error)
        return backoff_s

    def _drop(self, key: str) -> None:
        """Forget the revision: its object was removed."""
        self._contested.pop(key, None)
        self.replicas.drop_revision(key)
        self._scaling.drop_revision(key)
        self.diagnostics.set_labels(key, None)
        if key in self._awaited:
            self._await_pods(key, False)

    def _scale_and_diagnose(self, key: str, served: Declared) -> None:
        """Scale the revision if this replica owns it, and list its pods if they do not start."""
        source = self.source
        uid = source.uid_of(key)
        if uid is None:
            return
        running = source.replicas_of(key)
        if self.replicas.writes(uid):
            self._scaling.begin(key, served, running)
        else:
            if self._scaling.is_known_as_ours(key):
                self._give_up(key)  # another object of this name
            if self.replicas.is_anothers(uid):
                self._scaling.set_anothers(key)
        ready = source.answers.count(key)
        self._scaling.ready(key, ready)
        workload = source.workload_of(key)
        is_starting = workload is not None and not ready and source.wanted.get(key, running) > 0
        labels = workload.spec.selector.match_labels if workload is not None and is_starting else None
        self.diagnostics.set_labels(key, labels or None)
        target = source.target_of(key)
        if target is not None:
            self.others.expedite(target, not ready and source.wanted.get(key, running) != 0)

    def _want(self, desired: Desired) -> None:
        """Have the reconciler establish this state, if this replica writes for the object."""
        if self._writes and self.replicas.writes(desired.uid):
            self.reconciler.want(desired)
        else:
            self.reconciler.abandon(desired.key)

    def _record_report(self, report: Report) -> None:
        """Pass the problems of a pass on to the conditions of its object."""
        revision = self.source.revisions.get(report.key)
        if revision is None or revision.declaration is None or revision.declaration.uid != report.uid:
            return  # about an object that was removed
        all_notes = [note_of(component, outcome) for component, outcome in report.outcomes.items()]
        notes = tuple(note for note in all_notes if note is not None)
        for note in notes:
            if note.reason == CONTESTED:  # the next pass finds nothing to take over
                self._contested[report.key] = (note, self._now() + CONTESTED_KEPT_S)
        if not notes and report.key in self._contested:
            notes = (self._contested[report.key][0],)
        self.source.record_notes(report.key, notes)

    def _forget_contests(self) -> None:
        """Remove conditions about other writers whose time is over."""
        for key in [key for key, (_, until_s) in self._contested.items() if until_s <= self._now()]:
            del self._contested[key]
            self.source.record_notes(key, ())

    def _are_workloads_known(self) -> bool:
        return all(_may_do_without(reflector) for reflector in self._workloads)

    def _mark_all_once_known(self) -> None:
        """Mark all revisions once the workloads are known: no event reports a target that is missing."""
        if not self._were_workloads_known and self._are_workloads_known():
            self._were_workloads_known = True
            self.source.mark_all()

    def _announce_and_expire(self) -> None:
        """Announce once that this replica may own objects, and remove expired loads, ports and departed revisions."""
        if not self._is_announced and self._writes and not self.pending():
            self._is_announced = True
            self.replicas.set_writes(True)
        if self._now() - self._expired_s >= EXPIRE_INTERVAL_S:
            self._expired_s = self._now()
            self.replicas.expire()
            self.fronts.expire()
        self.source.expire_departures()

    def _tick(self) -> None:
        """Run the checks and decisions that are due by time alone; called every SCALE_TICK_S."""
        self._mark_all_once_known()
        self._forget_contests()
        self._announce_and_expire()
        self._scaling.tick()

    def _may_do_without(self, reflector: Reflector[Any]) -> bool:
        return _may_do_without(reflector)


def _may_do_without(reflector: Reflector[Any]) -> bool:
    """Return True if the reflector is synced, or was refused and is not needed.

    It is not needed if only some clusters have its kind. The own Service is needed only for mode transparent.
    """
    if reflector.synced:
        return True
    if reflector.selection.labels.startswith(f"{SERVICE_NAME_LABEL}="):
        return is_refused(reflector)  # the activator's own Service
    return is_refused(reflector) and reflector.selection.resource.plural in _OPTIONAL


def _service(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return (namespace, name)
