"""The objects of a cluster, gathered by revision.

Rules
  1. A handler of a watch stores the object and marks the revisions that it affects. Their changes are worked out once
     per revision and turn of the loop (`mode.py`, `revision.py`). Of the mode, this class calls only `mark`.
  2. An Activation and an annotated Service of one name are one revision; the Activation takes precedence.
  3. A host belongs to one object among all (`hosts.py`); an object that gains or loses a host is marked.
  4. Readiness waits for the first lists of the kinds that routing depends on. Afterwards the last known state is served
     for as long as the API is unreachable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from activator.config.activation import Declared
from activator.config.checks import canonical_host
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec, EventSpec
from activator.control_plane.sources.activations.conditions import TakenHost
from activator.control_plane.sources.activations.declaration import Declaration, of_activation, of_service
from activator.control_plane.sources.activations.fronts import FrontInputs, FrontOutcome, Fronts
from activator.control_plane.sources.activations.hosts import HostClaims, part_of_host
from activator.control_plane.sources.activations.object_handler import ObjectHandler, owner_key
from activator.control_plane.sources.activations.objects import (
    Activation,
    AnnotatedService,
    HttpRoute,
    StartingPod,
    Workload,
)
from activator.control_plane.sources.activations.other_targets import TargetKey, key_of_target
from activator.control_plane.sources.activations.pod_failures import failure_of
from activator.control_plane.sources.activations.revision import (
    WATCHED_KINDS,
    DeclaredRevision,
    Make,
    PassResult,
    RevisionInputs,
    pods_service,
    replicas_of,
)
from activator.control_plane.sources.activations.routes import RouteHosts
from activator.control_plane.sources.activations.scaling import rule_of
from activator.control_plane.sources.pod_answers import PodAnswers
from activator.kubernetes.objects import EndpointSlice, Key, KubeObject
from activator.messages import Effect
from activator.runtime.clock import NEVER, Now

DEPARTURE_MAX_S: Final = 60.0  # how long a deleted revision is served while its Service has not been given back
EVENTS_KEPT_MAX: Final = 3  # scaling decisions of one turn that become events; more than one is rare

log = logging.getLogger("activator.kubernetes")


class Targets(Protocol):
    """The interface of `OtherTargets`, the reader of targets whose kind is not watched."""

    def follow(self, target: TargetKey) -> None:
        """Read the target until `forget`."""

    def forget(self, target: TargetKey) -> None:
        """Read the target no more."""


class ActivationSource:
    """The objects of the mode `activations`.

    `make` resolves a specification. `routed_to` is the activator's own Service, by namespace and name. `mark(key)`
    schedules a pass. `written_by_other(key, version, is_there)` returns True if another program wrote a private
    Service. `writes(uid)` returns True if this replica writes for an object.
    """

    def __init__(
        self,
        make: Make,
        policy_names: AbstractSet[str],
        routed_to: Key,
        now: Now,
        mark: Callable[[str], None],
        fronts: Fronts,
        targets: Targets,
        written_by_other: Callable[[str, str, bool], bool],
        writes: Callable[[str], bool],
    ) -> None:
        self._make = make
        self._policy_names = policy_names
        self._now = now
        self.mark = mark
        self._fronts = fronts
        self._targets = targets
        self._written_by_other = written_by_other
        self._writes = writes
        self.revisions: dict[str, DeclaredRevision] = {}
        self.answers = PodAnswers(self._mark_known)
        self.hosts = HostClaims()
        self.wanted: dict[str, int] = {}  # by key, as the autoscaler decided last
        self.workloads_known = True  # the first lists of the watched kinds have been received
        self._ended: set[str] = set()  # revisions whose object was removed since their last pass
        self._read: set[TargetKey] = set()  # targets that are not watched, and have been looked up
        self._unscalable: dict[TargetKey, str] = {}
        self._activations: dict[str, Declaration] = {}  # by key
        self._services: dict[str, Declaration] = {}
        self._workloads: dict[TargetKey, Workload] = {}
        self._users: dict[TargetKey, set[str]] = {}  # by workload: the revisions that name it as their target
        self._target_of: dict[str, TargetKey] = {}
        self._routes = RouteHosts(routed_to)
        self._notes: dict[str, tuple[ConditionSpec, ...]] = {}
        self._departing: dict[str, float] = {}  # deleted revisions that are still served, each with the latest end
        self._settling: dict[str, float] = {}  # departing revisions with a restored Service: when to remove them
        self.activation_objects = ObjectHandler(self._activation_changed, self._activation_gone)
        self.service_objects = ObjectHandler(self._service_changed, self._service_gone)
        self.slice_objects = ObjectHandler(self._slice_changed, self._slice_gone, self._slice_missed, moves=True)
        self.route_objects = ObjectHandler(self._route_changed, self._route_gone)

    def workload_objects(self, kind: str) -> ObjectHandler:
        """Return the handler of the workloads of a kind."""

        def changed(workload: Workload) -> None:
            self._workload_changed(kind, workload, workload)

        def removed(workload: Workload) -> None:
            self._workload_changed(kind, workload, None)

        return ObjectHandler(changed, removed)

    # --- from the mode ---

    def mark_all(self) -> None:
        for key in self.revisions:
            self.mark(key)

    def scaled(self, key: str, wanted: int, why: str = "") -> None:
        """Record the autoscaler's decision; `why`: one sentence for an event, if it is not empty."""
        revision = self.revisions.get(key)
        if revision is None or revision.served is None or self.wanted.get(key) == wanted:
            return
        if key in self._ended or revision.served.activation.external_scaler:
            return  # a decision about an object that was removed or changed in this turn, before its pass
        self.wanted[key] = wanted
        if why:
            reason = "ScaledToZero" if wanted == 0 else "Scaled"
            revision.events = (*revision.events[-EVENTS_KEPT_MAX:], EventSpec(reason, "Scale", why))
        self.mark(key)

    def unscaled(self, key: str) -> None:
        """Forget the autoscaler's decision: another component scales the revision."""
        if self.wanted.pop(key, None) is not None:
            self.mark(key)

    def replicas_of(self, key: str) -> int:
        """Return the replicas of the revision's target; -1: unknown."""
        workload = self.workload_of(key)
        return -1 if workload is None else replicas_of(workload)

    def record_notes(self, key: str, notes: tuple[ConditionSpec, ...]) -> None:
        """Record the problems that the writers had with the revision's objects; ignored if its object was removed."""
        revision = self.revisions.get(key)
        if revision is None or revision.declaration is None or self._notes.get(key, ()) == notes:
            return
        if notes:
            self._notes[key] = notes
        else:
            del self._notes[key]
        self.mark(key)

    def pods_listed(self, key: str, pods: Iterable[StartingPod], now_s: float) -> None:
        """Record the pods of a revision, none of which answers."""
        revision = self.revisions.get(key)
        if revision is None:
            return
        workload = self.workload_of(key)
        before = revision.failure
        failure = failure_of(pods, (workload.status.conditions if workload is not None else None) or ())
        revision.set_failure(failure, now_s)
        if failure != before:
            if failure is not None:
                log.warning("%s: %s (%s)", key, failure.cause, failure.reason)
            self.mark(key)

    def record_read(self, target: TargetKey, workload: Workload | None, problem: str) -> None:
        """Record the result of a read of a target that is not watched (`OtherTargets`)."""
        if target not in self._users:
            return
        is_news = target not in self._read or self._unscalable.get(target, "") != problem
        self._read.add(target)
        if problem:
            self._unscalable[target] = problem
        else:
            self._unscalable.pop(target, None)
        if is_news or self._workloads.get(target) != workload:
            self._put_workload(target, workload)

    def target_of(self, key: str) -> TargetKey | None:
        """Return where the target of a revision is."""
        return self._target_of.get(key)

    def workload_of(self, key: str) -> Workload | None:
        """Return the target of a revision."""
        target = self._target_of.get(key)
        return None if target is None else self._workloads.get(target)

    def applied(self, effect: Effect) -> None:
        """Record a change of the model.

        The effect may be the end of an earlier revision of the same name.
        """
        before = self.answers.count(effect.key)
        self.answers.applied(effect)
        if self.answers.count(effect.key) != before and effect.key in self.revisions:
            self.mark(effect.key)

    def forget_submitted(self, key: str) -> bool:
        """Have the next pass submit the whole revision, as changes were lost; return False if there is none."""
        revision = self.revisions.get(key)
        if revision is None or revision.served is None:
            return False
        revision.forget_submitted()
        return True

    def take_ended(self, key: str) -> bool:
        """Return True once after the object of the revision was deleted, even if it has been created again."""
        if key not in self._ended:
            return False
        self._ended.discard(key)
        return True

    def served(self, key: str) -> Declared | None:
        """Return the declaration in force; None: there is none, or the object was deleted."""
        revision = self.revisions.get(key)
        return None if revision is None or key in self._departing else revision.served

    def uid_of(self, key: str) -> str | None:
        """Return the uid of the revision's object."""
        revision = self.revisions.get(key)
        return None if revision is None or revision.declaration is None else revision.declaration.uid

    # --- handlers ---

    def _activation_changed(self, activation: Activation) -> None:
        declaration = of_activation(activation, self._policy_names)
        self._end_departure(declaration.key)
        self._activations[declaration.key] = declaration
        self._declare(declaration.key)

    def _activation_gone(self, activation: Activation) -> None:
        key = _key(activation)
        self._activations.pop(key, None)
        self._object_removed(key)

    def _object_removed(self, key: str) -> None:
        """Update the revision after its object was removed; it is served while requests still come by its Service."""
        declaration = self._activations.get(key) or self._services.get(key)
        if declaration is not None or not self._fronts.is_in_path(key):
            self._declare(key)
            return
        self._departing[key] = self._now() + DEPARTURE_MAX_S
        self._fronts.declare(key, None, "")
        self.unscaled(key)

    def expire_departures(self) -> None:
        """Remove deleted revisions whose Service has been given back. Call it about once a second."""
        for key, until_s in list(self._departing.items()):
            now_s = self._now()
            if self._fronts.is_in_path(key):
                if now_s < until_s:
                    continue
            elif key not in self._settling:  # the cluster's proxies learn only now that the Service has other endpoints
                revision = self.revisions[key]
                settle_s = 0.0 if revision.served is None else float(revision.served.activation.transparent.settle)
                self._settling[key] = now_s + settle_s
            if now_s >= self._settling.get(key, until_s):
                self._end_departure(key)
                self._declare(key)

    def _end_departure(self, key: str) -> None:
        self._departing.pop(key, None)
        self._settling.pop(key, None)

    def _service_changed(self, service: AnnotatedService) -> None:
        self._service_written(service, True)
        self._fronts.service_changed(service)
        declaration = of_service(service, self._policy_names)
        key = _key(service)
        if declaration is None:
            if self._services.pop(key, None) is not None:
                self._object_removed(key)
            return
        self._end_departure(key)
        self._services[key] = declaration
        self._declare(key)

    def _service_written(self, service: AnnotatedService, is_there: bool) -> None:
        """Mark the revision if another program wrote its private Service, recognized by its label or its name."""
        metadata = service.metadata
        for name in (metadata.labels.get(ACTIVATION_LABEL, ""), metadata.name.removesuffix("-pods")):
            key = f"{metadata.namespace}/{name}"
            if key in self.revisions and pods_service(name) == metadata.name:
                if self._written_by_other(key, metadata.resource_version, is_there):
                    self.mark(key)
                return

    def _service_gone(self, service: AnnotatedService) -> None:
        self._service_written(service, False)
        self._fronts.service_gone(service)
        if self._services.pop(_key(service), None) is not None:
            self._declare(_key(service))

    def _slice_changed(self, pod_slice: EndpointSlice) -> None:
        key = owner_key(pod_slice)
        if key:
            self._get_and_mark(key).pods.put_slice(pod_slice.metadata.name, pod_slice)

    def _slice_missed(self, pod_slice: EndpointSlice) -> None:
        key = owner_key(pod_slice)
        if key:
            self._get_and_mark(key).pods.events_lost(pod_slice)

    def _slice_gone(self, pod_slice: EndpointSlice) -> None:
        key = owner_key(pod_slice)
        revision = self.revisions.get(key)
        if revision is not None and key not in self._departing:
            revision.pods.put_slice(pod_slice.metadata.name, None)
            self.mark(key)

    def _workload_changed(self, kind: str, changed: Workload, workload: Workload | None) -> None:
        self._put_workload((f"apps/v1/{kind}", changed.metadata.namespace, changed.metadata.name), workload)

    def _put_workload(self, target: TargetKey, workload: Workload | None) -> None:
        if workload is None:
            self._workloads.pop(target, None)
        else:
            self._workloads[target] = workload
        for key in self._users.get(target, ()):
            self.mark(key)

    def _route_changed(self, route: HttpRoute) -> None:
        for key in self._routes.put(route):
            self._update_claims(key)

    def _route_gone(self, route: HttpRoute) -> None:
        for key in self._routes.drop(route):
            self._update_claims(key)

    # --- within ---

    def _get_and_mark(self, key: str) -> DeclaredRevision:
        """Return the revision of this key, created if necessary, and mark it."""
        revision = self.revisions.get(key)
        if revision is None:
            revision = self.revisions[key] = DeclaredRevision(key)
        self.mark(key)
        return revision

    def _declare(self, key: str) -> None:
        """Update the revision: its objects have changed."""
        declaration = self._activations.get(key) or self._services.get(key)
        revision = self._get_and_mark(key)
        if declaration is None:
            revision.declaration = revision.served = None
            self._notes.pop(key, None)
        else:
            if declaration.problems:
                log.warning("%s", "; ".join(declaration.problems[:3]))
            revision.declare(declaration)
        if revision.served is None:
            self._ended.add(key)
        if revision.served is None or revision.served.activation.external_scaler:
            self.wanted.pop(key, None)  # the autoscaler no longer decides on it
        self._fronts.declare(key, revision.served, "" if declaration is None else declaration.created)
        self._set_target(key, revision.served)
        self._update_claims(key)

    def _set_target(self, key: str, served: Declared | None) -> None:
        """Set the target of a revision; a former one that no revision names is forgotten."""
        old = self._target_of.pop(key, None)
        if old is not None:
            self._users[old].discard(key)
            if not self._users[old]:
                del self._users[old]
                if old[0] not in WATCHED_KINDS:
                    self._workloads.pop(old, None)
                    self._unscalable.pop(old, None)
                    self._read.discard(old)
                    self._targets.forget(old)
        if served is not None:
            target = key_of_target(served.activation.target, key.partition("/")[0])
            self._target_of[key] = target
            self._users.setdefault(target, set()).add(key)
            if target[0] not in WATCHED_KINDS:
                self._targets.follow(target)

    def _update_claims(self, key: str) -> None:
        """Claim the hosts that the revision names: they may have changed."""
        revision = self.revisions.get(key)
        named: dict[str, str] = {}
        created = ""
        if revision is not None and revision.declaration is not None and revision.served is not None:
            named = self._named(revision.served, key)
            created = revision.declaration.created
        for other in self.hosts.set_named(key, created, named.values()):
            self.mark(other)
        self.mark(key)

    def _named(self, served: Declared, key: str) -> dict[str, str]:
        """Return the hosts that the revision names, each with the claim on it."""
        hosts = [*served.revision.hosts, *self._routes.of(key)]
        part = part_of_host(served.revision, key)
        return {canonical: canonical + part for host in hosts if (canonical := canonical_host(host)) is not None}

    def work_out(self, key: str, front: FrontOutcome | None) -> PassResult:
        """Derive the changes to submit and the objects to write from the state of the revision."""
        revision = self.revisions.get(key)
        if revision is None:
            return PassResult([], None, NEVER)
        ports, is_left = self._fronts.entries(key)
        if key in self._departing:
            return PassResult(revision.update_departed(ports, is_left), None, NEVER)
        hosts, taken = self._granted(revision)
        inputs = RevisionInputs(
            self.workload_of(key),
            self.is_target_known(key),
            hosts,
            taken,
            self.answers.count(key),
            self.wanted.get(key, -1),
            self._notes.get(key, ()),
            self._unscalable.get(self._target_of.get(key, _NOWHERE), ""),
            front,
            ports,
            is_left,
        )
        outcome = revision.work_out(inputs, self._make, self._now())
        if revision.is_empty():
            del self.revisions[key]
        return outcome

    def decide_front(self, key: str, served: Declared) -> FrontOutcome | None:
        """Decide whether the requests of its Service should come here; None: the revision is not transparent."""
        inputs = FrontInputs(
            self.workload_of(key), self.answers.count(key), self.replicas_of(key), self.wanted.get(key, -1)
        )
        uid = self.uid_of(key)
        return self._fronts.decide(key, served, rule_of(served), inputs, uid is not None and self._writes(uid))

    def is_target_known(self, key: str) -> bool:
        """Return True if its target has been looked up, whether or not it exists."""
        target = self._target_of.get(key)
        if target is None or target[0] in WATCHED_KINDS:
            return self.workloads_known
        return target in self._read

    def _granted(self, revision: DeclaredRevision) -> tuple[tuple[str, ...], tuple[TakenHost, ...]]:
        """Return the hosts that the revision has, and those that it names and another one has."""
        if revision.served is None:
            return (), ()
        named = self._named(revision.served, revision.key)
        holders = {host: self.hosts.holder(claimed) for host, claimed in named.items()}
        hosts = tuple(host for host, holder in holders.items() if holder == revision.key)
        taken = tuple(TakenHost(host, holder) for host, holder in holders.items() if holder != revision.key)
        return hosts, taken

    def _mark_known(self, key: str) -> None:
        """Mark a revision whose first pod answers, or whose last one no longer does."""
        if key in self.revisions:
            self.mark(key)


_NOWHERE: Final[TargetKey] = ("", "", "")


def _key(item: KubeObject) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"
