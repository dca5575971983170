"""A cluster without Knative, put together: what declares revisions, where their pods are, how many there should be.

    watches ──► ActivationSource ──► changes ──► state worker
    loads ──► Autoscaler ──► wanted ──► ActivationSource ──► Desired ──► Reconciler ──► the API
    (pods are wanted and none answers) ──► PodLooks ──► why ──► ActivationSource

With several replicas of the activator each knows all revisions and serves them; Autoscaler and Reconciler have those
that are this replica's (`replicas.py`).

It belongs to the control plane: it exists once, whatever the number of workers. `docs/kubernetes.md` has the contract.
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
from activator.config.specs import RevisionSpec
from activator.control_plane.controller_counts import Controllers
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec, Desired
from activator.control_plane.reconcile.reconciler import Reconciler
from activator.control_plane.reconcile.report import Report
from activator.control_plane.reconcile.traffic_wanted import MANAGED_BY_LABEL, OURS, SERVICE_NAME_LABEL
from activator.control_plane.scaling.autoscaler import Autoscaler, Shown
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import ScalingRule, resolve_rule
from activator.control_plane.sources.activations.conditions import CONTESTED, note_of
from activator.control_plane.sources.activations.fronts import Fronts
from activator.control_plane.sources.activations.give_back import GiveBack
from activator.control_plane.sources.activations.hosts import order_of
from activator.control_plane.sources.activations.object_handler import ObjectHandler
from activator.control_plane.sources.activations.objects import (
    ACTIVATIONS,
    ANNOTATED_SERVICES,
    DEPLOYMENTS,
    FRONT_SLICES,
    HTTP_ROUTES,
    STATEFUL_SETS,
)
from activator.control_plane.sources.activations.other_targets import OtherTargets, Place
from activator.control_plane.sources.activations.pod_looks import PodLooks
from activator.control_plane.sources.activations.replicas import OtherReplicas, Replicas
from activator.control_plane.sources.activations.source import ActivationSource
from activator.control_plane.sources.kubernetes.client import KubeClient
from activator.control_plane.sources.kubernetes.credentials import Credentials
from activator.control_plane.sources.kubernetes.object_store import Handler
from activator.control_plane.sources.kubernetes.objects import Key, Object
from activator.control_plane.sources.kubernetes.reflector import Reflector
from activator.control_plane.sources.kubernetes.relister import Relister
from activator.control_plane.sources.kubernetes.resources import ENDPOINT_SLICES, Resource, Scope, Selection
from activator.control_plane.sources.kubernetes.watches import KubeWatches
from activator.control_plane.sources.source import Source
from activator.messages import Change, Effect, Load
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.registry import default_name, names
from lb.rng import Rng

CONTESTED_KEPT_S: Final = 600.0  # how long the status says that somebody else wrote what is ours
EXPIRE_INTERVAL_S: Final = 1.0  # between two looks for loads of replicas that say nothing any more
SCALE_TICK_S: Final = 0.1  # how often it is looked at whether a decision is due

log = logging.getLogger("activator.kubernetes")

_REFUSED: Final = frozenset({"403", "404"})  # kinds of errors: no right to it, or no such kind in this cluster
_OPTIONAL: Final = frozenset({HTTP_ROUTES.plural, ANNOTATED_SERVICES.plural, STATEFUL_SETS.plural})


class ActivationsMode(Source):
    """`submit` takes changes for the state worker; `wall_s` is the time of day; `panicked` is as for the source."""

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
        self._config = config
        self._namespace = kubernetes.namespace
        self._reconcile_interval_s = float(kubernetes.reconcile_interval)
        self._now = now
        self._tasks = TaskGroupOwner(tasks.on_error)
        self.client = KubeClient(Credentials(os.environ, now), "activator")
        self.watches = KubeWatches(self.client, now, rng, tasks.on_error)
        loop = asyncio.get_running_loop()
        self.source = ActivationSource(
            self._make,
            frozenset(names()),
            _service(kubernetes.service),
            submit,
            self._want,
            controllers,
            panicked,
            loop.call_soon,
            loop.call_later,
        )
        self.source.declared = self._declared
        self.source.worked_out = self._worked_out
        self.autoscaler = Autoscaler(now, wall_s, self._scaled)
        self.reconciler = Reconciler(
            self.client,
            controllers,
            now,
            wall_s,
            rng,
            self._reported,
            tasks.on_error,
            os.environ.get("POD_NAME", "activator"),
        )
        self.source.service_written = self.reconciler.service_written
        self.looks = PodLooks(self.client, self.source.looked, now, pause)
        self.others = OtherTargets(self.client, self.source.read, now, pause)
        self.source.followed = self._followed
        own_address = "" if kubernetes.service else os.environ.get("POD_IP", "")
        self.fronts = Fronts(self._find_service, self.source.mark, listen, now, own_address, listened)
        self.fronts.slices_version = lambda: "" if self._front_slices is None else self._front_slices.version
        self.give_back = GiveBack(self.client, self.fronts, self._find_service, self._may_give_back, now, pause)
        for one in (self.reconciler, self.others, self.give_back):
            self.client.outage.on_end(one.wake)
        self.source.fronts = self.fronts
        self.source.rule_of = _rule_of
        self.source.held = self._held
        self.source.is_ours = self._is_ours
        self._own_service = _service(kubernetes.service)
        self._floors: dict[str, int] = {}  # revisions of which no fewer pods may be decided
        self._services: Reflector[Any] | None = None
        self._front_slices: Reflector[Any] | None = None
        self.replicas = Replicas(self._uid_of, self._carried, self._writers_shifted, now)
        self._writes = True
        self._is_announced = False  # to the other replicas
        self._expired_s = now()  # when it was last looked for loads that nobody confirms
        self._begun: set[str] = set()  # revisions that the autoscaler knows
        self._ours: set[str] = set()  # revisions that this replica writes for, as they were last worked out …
        self._foreign: set[str] = set()  # … and those that were another one's before
        self._awaited: dict[str, Scope] = {}  # revisions whose requests wait for a pod
        self._slices: Relister[Any] | None = None
        self._workloads: list[Reflector[Any]] = []
        self._were_workloads_known = False
        self._contested: dict[str, tuple[ConditionSpec, float]] = {}  # by key: what was taken from whom, and until when

    # --- life ---

    def configure(self, config: Config) -> None:
        """What the file says from now on of all revisions; their specifications are made anew."""
        self._config = config
        self.source.mark_all()

    async def start(self) -> None:
        """Begin to watch."""
        self._watch(ACTIVATIONS, self.source.activation_objects)
        self._watch(ANNOTATED_SERVICES, self.source.service_objects)
        self._services = self.watches.reflectors[-1]
        self._slices = self._watch(ENDPOINT_SLICES, self.source.slice_objects, ACTIVATION_LABEL)
        self._watch(DEPLOYMENTS, self.source.workload_objects("Deployment"))
        self._watch(STATEFUL_SETS, self.source.workload_objects("StatefulSet"))
        self._workloads = self.watches.reflectors[-2:]
        self.source.workloads_known = self._are_workloads_known
        self._watch(HTTP_ROUTES, self.source.route_objects)
        self._watch_fronts()
        self._tasks.keep_running("pod looks", self.looks.step)
        self._tasks.keep_running("other targets", self.others.step)
        self._tasks.keep_running("giving back", self.give_back.step)
        self._tasks.repeat("scaling", SCALE_TICK_S, self._scale, retry_max_s=SCALE_TICK_S)

    def _watch_fronts(self) -> None:
        """Our slices of the Services of others, and those of our own Service."""
        fronts = self.fronts
        ours = ObjectHandler(fronts.slice_changed, fronts.slice_gone)
        self._watch(FRONT_SLICES, ours, f"{MANAGED_BY_LABEL}={OURS}")
        self._front_slices = self.watches.reflectors[-1]
        namespace, name = self._own_service
        if name:
            own = ObjectHandler(fronts.own_changed, fronts.own_gone)
            selection = Selection(FRONT_SLICES, namespace, f"{SERVICE_NAME_LABEL}={name}")
            self.watches.add(selection, own, self._reconcile_interval_s)

    async def stop_writing(self) -> None:
        """Another replica may write from now on: this one drains, sees less and less of the load, and must not scale by
        that. Pods are followed as before.
        """
        self._writes = False
        self.replicas.set_writes(False)
        await self.reconciler.close()

    async def close(self) -> None:
        await self._tasks.close()
        await self.reconciler.close()
        await self.watches.close()
        await self.client.close()

    def pending(self) -> list[str]:
        """What routing depends on and has not been received yet."""
        waiting = [f"the first list of {one.name}" for one in self.watches.reflectors if not _may_do_without(one)]
        if self.source.is_behind():
            waiting.append("what was listed has not been submitted yet")
        return waiting

    # --- from the control plane ---

    def receive_load(self, load: Load) -> None:
        """A revision's load now."""
        self.replicas.receive(load)
        if load.in_flight or load.queued:
            self.looks.hurry(load.key)
        revision = self.source.revisions.get(load.key)
        is_served = revision is not None and revision.served is not None
        waits = is_served and load.queued > 0 and not self.source.answers.has_answer(load.key)
        if waits != (load.key in self._awaited):
            self._await_pods(load.key, waits)

    def applied(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.source.applied(effect)

    def declares(self, key: str) -> bool:
        return True  # no other source declares it: a revision that the cluster does not know is gone

    def resubmit(self, key: str) -> None:
        self.source.relist(key)

    def view_age_s(self) -> float:
        """How old the oldest of the views of the cluster is, seconds."""
        return self.watches.age_s(self._now())

    # --- what metrics read ---

    def declared(self) -> dict[str, int]:
        """Revisions by what can be served of them."""
        return dict(Counter(one.state for one in self.source.revisions.values() if one.declaration is not None))

    def contested_hosts(self) -> int:
        """Hosts that more than one object names."""
        return self.source.hosts.contested

    def scaling(self, key: str) -> Shown | None:
        return self.autoscaler.shown(key)

    # --- several replicas ---

    def join(self, others: OtherReplicas) -> None:
        """This replica is one of several. To be called before `start`."""
        self.replicas.join(others)

    def owned(self) -> int:
        """Objects that this replica writes for."""
        return sum(self._is_ours(key) for key in self.source.revisions)

    def _uid_of(self, key: str) -> str | None:
        revision = self.source.revisions.get(key)
        return None if revision is None or revision.declaration is None else revision.declaration.uid

    def _find_service(self, key: str) -> Any:
        """The Service of this namespace/name, as it is known; None: there is none."""
        namespace, _, name = key.partition("/")
        return None if self._services is None else self._services.store.get((namespace, name))

    def _may_give_back(self, uid: str) -> bool:
        return self._writes and not self.pending() and self._are_workloads_known() and self.replicas.writes(uid)

    def _is_ours(self, key: str) -> bool:
        uid = self._uid_of(key)
        return uid is not None and self.replicas.writes(uid)

    def _carried(self, load: Load) -> None:
        """What all replicas carry of a revision; the autoscaler knows those that are ours."""
        self.autoscaler.load(load)
        self.fronts.receive_load(load)
        if load.in_flight or load.queued:
            self.looks.hurry(load.key)

    def _writers_shifted(self) -> None:
        """What is not ours any more is let go of now; what is ours now is worked out in this turn."""
        for key in self.source.revisions:
            if self._is_ours(key) != (key in self._ours):
                self.source.mark(key)
                if key in self._ours:
                    self._let_go(key)

    def _let_go(self, key: str) -> None:
        """Another replica decides on it and writes for it."""
        self._ours.discard(key)
        self._begun.discard(key)
        self._floors.pop(key, None)
        self.fronts.forget_decision(key)
        self.autoscaler.drop_revision(key)
        self.source.unscaled(key)
        self.reconciler.abandon(key)

    # --- within ---

    def _watch(self, resource: Resource[Object], handler: Handler[Object], labels: str = "") -> Relister[Object]:
        selection = Selection(resource, self._namespace, labels)
        _, relister = self.watches.add(selection, handler, self._reconcile_interval_s)
        return relister

    def _make(self, declared: Declared, hosts: tuple[str, ...], is_http2: bool, created: str) -> RevisionSpec:
        revision = declared.revision
        protocol = "h2c" if is_http2 and revision.protocol == "auto" else revision.protocol
        made: Revision = structs.replace(
            revision, hosts=list(hosts), protocol=protocol, max_scale=revision.scaling.max or revision.max_scale
        )
        spec = resolve_revision(self._config, made, default_name)
        return structs.replace(spec, order=order_of(revision, created))

    def _declared(self, key: str, declared: Declared | None) -> None:
        """A revision is as this says; None: it is gone."""
        if declared is None or declared.activation.external_scaler:
            self._begun.discard(key)
            self.autoscaler.drop_revision(key)
        elif key in self._begun:
            self._set_rule(key, declared, 0)
        if declared is None:
            self._contested.pop(key, None)
            self.replicas.drop_revision(key)
            self._ours.discard(key)
            self._foreign.discard(key)
            self._floors.pop(key, None)
            self.looks.set(key, None)
            if key in self._awaited:
                self._await_pods(key, False)

    def _worked_out(self, key: str) -> None:
        """What is known of this revision may be other than before."""
        source = self.source
        revision = source.revisions.get(key)
        if revision is None or revision.declaration is None or revision.served is None:
            return
        replicas = source.replicas_of(key)
        if self._is_ours(key):
            self._begin(key, revision.served, replicas)
        else:
            if key in self._ours:
                self._let_go(key)  # another object of this name
            if self.replicas.is_anothers(revision.declaration.uid):
                self._foreign.add(key)
        ready = source.answers.count(key)
        self.autoscaler.ready(key, ready)
        workload = source.workload_of(key)
        is_starting = workload is not None and not ready and source.wanted.get(key, replicas) > 0
        labels = workload.spec.selector.match_labels if workload is not None and is_starting else None
        self.looks.set(key, labels or None)
        place = source.target_of(key)
        if place is not None:
            self.others.hurry(place, not ready and source.wanted.get(key, replicas) != 0)

    def _begin(self, key: str, declared: Declared, replicas: int) -> None:
        """It is ours."""
        self._ours.add(key)
        if key in self._begun or replicas < 0 or declared.activation.external_scaler:
            return
        self._begun.add(key)
        self.source.scaled(key, replicas)
        self._set_rule(key, declared, replicas, key in self._foreign)
        if not self.replicas.is_alone:
            self.autoscaler.load(self.replicas.sum(key))

    def _set_rule(self, key: str, declared: Declared, replicas: int, is_taken_over: bool = False) -> None:
        rule = _rule_of(declared)
        floor = self._floors.get(key, 0)
        if floor > rule.min:
            rule = structs.replace(rule, min=floor)
        self.autoscaler.set_revision(key, rule, replicas, is_taken_over)

    def _held(self, key: str, is_held: bool) -> None:
        """No fewer pods may be decided for it, or they may again."""
        before = self._floors.get(key, 0)
        floor = max(self.source.wanted.get(key, -1), self.source.replicas_of(key), before, 1) if is_held else 0
        if floor == before:
            return
        if floor:
            self._floors[key] = floor
        else:
            del self._floors[key]
        revision = self.source.revisions.get(key)
        if key in self._begun and revision is not None and revision.served is not None:
            self._set_rule(key, revision.served, 0)

    def _scaled(self, key: str, decision: Decision) -> None:
        log.info("%s: %d pods wanted: %s", key, decision.wanted, decision.explanation)
        self.source.scaled(key, decision.wanted, decision.explanation)

    def _followed(self, place: Place, is_named: bool) -> None:
        """A target of a kind that is not watched is named by a revision, or by none any more."""
        if is_named:
            self.others.follow(place)
        else:
            self.others.forget(place)

    def _want(self, desired: Desired) -> None:
        if self._writes and self.replicas.writes(desired.uid):
            self.reconciler.want(desired)
        else:
            self.reconciler.abandon(desired.key)

    def _reported(self, report: Report) -> None:
        revision = self.source.revisions.get(report.key)
        if revision is None or revision.declaration is None or revision.declaration.uid != report.uid:
            return  # about an object that is gone
        found = [note_of(component, outcome) for component, outcome in report.outcomes.items()]
        notes = tuple(note for note in found if note is not None)
        for note in notes:
            if note.reason == CONTESTED:  # the next pass will have nothing to take
                self._contested[report.key] = (note, self._now() + CONTESTED_KEPT_S)
        if not notes and report.key in self._contested:
            notes = (self._contested[report.key][0],)
        self.source.noted(report.key, notes)

    def _forget_contests(self) -> None:
        """Nobody has written what is ours for a while."""
        for key in [key for key, (_, until_s) in self._contested.items() if until_s <= self._now()]:
            del self._contested[key]
            self.source.noted(key, ())

    def _are_workloads_known(self) -> bool:
        return all(_may_do_without(one) for one in self._workloads)

    def _look_at_workloads(self) -> None:
        """Once they are known, it is told which of the targets are missing: no event does."""
        if not self._were_workloads_known and self._are_workloads_known():
            self._were_workloads_known = True
            self.source.mark_all()

    def _keep_up_with_replicas(self) -> None:
        if not self._is_announced and self._writes and not self.pending():
            self._is_announced = True
            self.replicas.set_writes(True)
        if self._now() - self._expired_s >= EXPIRE_INTERVAL_S:
            self._expired_s = self._now()
            self.replicas.expire()
            self.fronts.expire()
        self.source.say_farewell()

    def _await_pods(self, key: str, waits: bool) -> None:
        """Look every second whether the watch has missed a pod that requests wait for."""
        scope = self._awaited.pop(key, None)
        if waits:
            namespace, _, name = key.partition("/")
            scope = self._awaited[key] = Scope(namespace, ((ACTIVATION_LABEL, name),))
        if scope is not None and self._slices is not None:
            if waits:
                self._slices.hurry(scope)
            else:
                self._slices.relax(scope)

    def _scale(self) -> None:
        self._look_at_workloads()
        self._forget_contests()
        self._keep_up_with_replicas()
        self.autoscaler.tick()


def _may_do_without(reflector: Reflector[Any]) -> bool:
    """It is synced; or it is refused to us, or unknown here, and only some clusters have it."""
    if reflector.synced:
        return True
    is_refused = any(kind in _REFUSED for kind in reflector.errors_total)
    if reflector.selection.labels.startswith(f"{SERVICE_NAME_LABEL}="):
        return is_refused  # our own Service: for mode transparent alone
    return is_refused and reflector.selection.resource.plural in _OPTIONAL


def _rule_of(declared: Declared) -> ScalingRule:
    return resolve_rule(declared.revision.scaling, declared.revision.container_concurrency)


def _service(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return (namespace, name)
