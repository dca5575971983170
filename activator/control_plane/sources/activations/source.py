"""The objects of a cluster as they come, gathered by revision and submitted as changes.

Rules
  1. A handler of a watch only files what it receives and marks the revisions that it touches. What follows is worked
     out once per revision and turn (`sources/kubernetes/passes.py`, `revision.py`).
  2. An Activation and an annotated Service of one name are one revision: the Activation counts.
  3. Who has a host is decided over all objects (`hosts.py`); an object whose hosts change by that is worked out anew.
  4. Readiness waits for the first lists of what routing depends on. Afterwards the last known state is served for as
     long as the API is away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from activator.config.activation import Declared
from activator.config.checks import canonical_host
from activator.control_plane.controller_counts import Controllers
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec, Desired, EventSpec
from activator.control_plane.scaling.rule import ScalingRule
from activator.control_plane.sources.activations.conditions import Taken
from activator.control_plane.sources.activations.declaration import Declaration, of_activation, of_service
from activator.control_plane.sources.activations.fronts import Around, FrontOutcome, Fronts
from activator.control_plane.sources.activations.hosts import HostClaims, part_of_host
from activator.control_plane.sources.activations.object_handler import ObjectHandler, owner_key
from activator.control_plane.sources.activations.objects import (
    Activation,
    AnnotatedService,
    HttpRoute,
    StartingPod,
    Workload,
)
from activator.control_plane.sources.activations.other_targets import Place, place_of
from activator.control_plane.sources.activations.pod_failures import failure_of
from activator.control_plane.sources.activations.revision import (
    WATCHED_KINDS,
    DeclaredRevision,
    Make,
    Surroundings,
    pods_service,
    replicas_of,
)
from activator.control_plane.sources.activations.routes import RouteHosts
from activator.control_plane.sources.kubernetes.objects import EndpointSlice, Key, KubeObject
from activator.control_plane.sources.kubernetes.passes import Passes
from activator.control_plane.sources.pod_answers import PodAnswers
from activator.messages import Change, Effect, RevisionGone
from activator.runtime.clock import NEVER, Defer, Later

CONTROLLER: Final = "declaration"
FAREWELL_MAX_S: Final = 60.0  # for which a deleted one is served at the most, until its Service is given back
EVENTS_KEPT_MAX: Final = 3  # decisions of one turn that are told; more than one is rare

log = logging.getLogger("activator.kubernetes")


class ActivationSource:
    """`make` resolves a specification; `submit` takes changes for the state worker, `want` what is to be written;
    `panicked(key, what, error, now_s)` is called with errors of ours and returns how long to wait; `routed_to` is the
    activator's own Service, by namespace and name.
    """

    def __init__(
        self,
        make: Make,
        policy_names: frozenset[str],
        routed_to: Key,
        submit: Callable[[Change], None],
        want: Callable[[Desired], None],
        controllers: Controllers,
        panicked: Callable[[str, object, object, float], float],
        defer: Defer,
        later: Later,
    ) -> None:
        self._make = make
        self._policy_names = policy_names
        self._submit = submit
        self._want = want
        self._controllers = controllers
        self._panicked = panicked
        controllers.register(CONTROLLER)
        self.passes = Passes(self._work_out, self._failed, defer, later, controllers)
        self.revisions: dict[str, DeclaredRevision] = {}
        self.answers = PodAnswers(self._turned)
        self.declared: Callable[[str, Declared | None], None] = _nobody  # a revision is as this says; None: it is gone
        self.worked_out: Callable[[str], None] = _ignore  # what is known of this revision may be other than before
        self.service_written: Callable[[str, str, bool], bool] = _ignore_service  # by somebody else than us?
        self.hosts = HostClaims()
        self.wanted: dict[str, int] = {}  # by key, as the autoscaler decided last
        self.workloads_known: Callable[[], bool] = lambda: True
        self.fronts: Fronts | None = None  # of those that are transparent
        self.rule_of: Callable[[Declared], ScalingRule] = lambda declared: ScalingRule()
        self.held: Callable[[str, bool], None] = _ignore_hold  # no fewer pods may be decided for it
        self.is_ours: Callable[[str], bool] = lambda key: True  # whether this replica writes for it
        self.followed: Callable[[Place, bool], None] = _ignore_place  # an unwatched target is named, or no longer
        self._read: set[Place] = set()  # targets that are not watched, and have been looked for
        self._unscalable: dict[Place, str] = {}
        self._activations: dict[str, Declaration] = {}  # by key
        self._services: dict[str, Declaration] = {}
        self._workloads: dict[Place, Workload] = {}
        self._users: dict[Place, set[str]] = {}  # of a workload: revisions that name it as their target
        self._target_of: dict[str, Place] = {}
        self._routes = RouteHosts(routed_to)
        self._left: dict[str, float] = {}  # … those whose Service is given back: until when some may not know
        self._notes: dict[str, tuple[ConditionSpec, ...]] = {}
        self._farewells: dict[str, float] = {}  # deleted, while requests came by their Service: until when at the most
        self.activation_objects = ObjectHandler(self._activation_changed, self._activation_gone)
        self.service_objects = ObjectHandler(self._service_changed, self._service_gone)
        self.slice_objects = ObjectHandler(self._slice_changed, self._slice_gone, self._slice_missed, moves=True)
        self.route_objects = ObjectHandler(self._route_changed, self._route_gone)

    def workload_objects(self, kind: str) -> ObjectHandler:
        """The handler of the workloads of a kind."""

        def changed(one: Workload) -> None:
            self._workload(kind, one, one)

        def gone(one: Workload) -> None:
            self._workload(kind, one, None)

        return ObjectHandler(changed, gone)

    # --- what others say ---

    def is_behind(self) -> bool:
        """Something was filed that has not been worked out."""
        return self.passes.is_behind()

    def mark(self, key: str) -> None:
        self.passes.mark(key, CONTROLLER)

    def mark_all(self) -> None:
        for key in self.revisions:
            self.mark(key)

    def scaled(self, key: str, wanted: int, why: str = "") -> None:
        """The autoscaler wants so many pods; `why`: in one sentence, to be told where it is worth it."""
        revision = self.revisions.get(key)
        if revision is None or self.wanted.get(key) == wanted:
            return
        self.wanted[key] = wanted
        if why:
            reason = "ScaledToZero" if wanted == 0 else "Scaled"
            revision.events = (*revision.events[-EVENTS_KEPT_MAX:], EventSpec(reason, "Scale", why))
        self.mark(key)

    def unscaled(self, key: str) -> None:
        """Somebody else decides how many pods it has."""
        if self.wanted.pop(key, None) is not None:
            self.mark(key)

    def replicas_of(self, key: str) -> int:
        """Of the target of the revision; -1: it is not known."""
        workload = self.workload_of(key)
        return -1 if workload is None else replicas_of(workload)

    def noted(self, key: str, notes: tuple[ConditionSpec, ...]) -> None:
        """What the writers have met with its objects; empty: nothing. Nobody is told of what is gone."""
        revision = self.revisions.get(key)
        if revision is None or revision.declaration is None or self._notes.get(key, ()) == notes:
            return
        if notes:
            self._notes[key] = notes
        else:
            del self._notes[key]
        self.mark(key)

    def looked(self, key: str, pods: Iterable[StartingPod], now_s: float) -> None:
        """The pods of a revision none of which answers."""
        revision = self.revisions.get(key)
        if revision is None:
            return
        workload = self.workload_of(key)
        before = revision.failure
        found = failure_of(pods, (workload.status.conditions if workload is not None else None) or ())
        revision.looked(found, now_s)
        if found != before:
            if found is not None:
                log.warning("%s: %s (%s)", key, found.cause, found.reason)
            self.mark(key)

    def read(self, place: Place, workload: Workload | None, problem: str) -> None:
        """What was found of a target that is not watched (`OtherTargets`)."""
        if place not in self._users:
            return
        is_news = place not in self._read or self._unscalable.get(place, "") != problem
        self._read.add(place)
        if problem:
            self._unscalable[place] = problem
        else:
            self._unscalable.pop(place, None)
        if is_news or self._workloads.get(place) != workload:
            self._put_workload(place, workload)

    def target_of(self, key: str) -> Place | None:
        """Where the target of a revision is."""
        return self._target_of.get(key)

    def workload_of(self, key: str) -> Workload | None:
        """The target of a revision."""
        target = self._target_of.get(key)
        return None if target is None else self._workloads.get(target)

    def applied(self, effect: Effect) -> None:
        """The model is as this says. The end of a revision may be that of an earlier one of this name."""
        before = self.answers.count(effect.key)
        self.answers.applied(effect)
        if self.answers.count(effect.key) != before and effect.key in self.revisions:
            self.mark(effect.key)

    def relist(self, key: str) -> None:
        """Changes of this revision were lost: submit everything of it again."""
        revision = self.revisions.get(key)
        if revision is None or revision.served is None:
            self._submit(RevisionGone(key))
        else:
            revision.forget_submitted()
            self.mark(key)

    # --- handlers ---

    def _activation_changed(self, one: Activation) -> None:
        declaration = of_activation(one, self._policy_names)
        self._return(declaration.key)
        self._activations[declaration.key] = declaration
        self._declare(declaration.key)

    def _activation_gone(self, one: Activation) -> None:
        key = _key(one)
        self._activations.pop(key, None)
        self._leave(key)

    def _leave(self, key: str) -> None:
        """One of its objects is gone. While requests come by its Service, it is served until they do not."""
        others = self._activations.get(key) or self._services.get(key)
        if others is not None or self.fronts is None or not self.fronts.is_in_path(key):
            self._declare(key)
            return
        self._farewells[key] = self._controllers.now() + FAREWELL_MAX_S
        self.fronts.declare(key, None, "")
        self.unscaled(key)

    def say_farewell(self) -> None:
        """Deleted ones whose Service is given back are gone now; to be called every second or so."""
        for key, until_s in list(self._farewells.items()):
            now_s = self._controllers.now()
            if self.fronts is not None and self.fronts.is_in_path(key):
                if now_s < until_s:
                    continue
            elif key not in self._left:  # proxies of the cluster hear of it only now
                revision = self.revisions[key]
                settle_s = 0.0 if revision.served is None else float(revision.served.activation.transparent.settle)
                self._left[key] = now_s + settle_s
            if now_s >= self._left.get(key, until_s):
                self._return(key)
                self._declare(key)

    def _return(self, key: str) -> None:
        """It is deleted no more, or gone."""
        self._farewells.pop(key, None)
        self._left.pop(key, None)

    def _service_changed(self, one: AnnotatedService) -> None:
        self._service_written(one, True)
        if self.fronts is not None:
            self.fronts.service_changed(one)
        declaration = of_service(one, self._policy_names)
        key = _key(one)
        if declaration is None:
            if self._services.pop(key, None) is not None:
                self._leave(key)
            return
        self._return(key)
        self._services[key] = declaration
        self._declare(key)

    def _service_written(self, one: AnnotatedService, is_there: bool) -> None:
        """It may be one of ours: by its label, or by its name, where somebody took the label away."""
        metadata = one.metadata
        for name in (metadata.labels.get(ACTIVATION_LABEL, ""), metadata.name.removesuffix("-pods")):
            key = f"{metadata.namespace}/{name}"
            if key in self.revisions and pods_service(name) == metadata.name:
                if self.service_written(key, metadata.resource_version, is_there):
                    self.mark(key)
                return

    def _service_gone(self, one: AnnotatedService) -> None:
        self._service_written(one, False)
        if self.fronts is not None:
            self.fronts.service_gone(one)
        if self._services.pop(_key(one), None) is not None:
            self._declare(_key(one))

    def _slice_changed(self, one: EndpointSlice) -> None:
        key = owner_key(one)
        if key:
            self._of(key).pods.put_slice(one.metadata.name, one)

    def _slice_missed(self, one: EndpointSlice) -> None:
        key = owner_key(one)
        if key:
            self._of(key).pods.events_lost(one)

    def _slice_gone(self, one: EndpointSlice) -> None:
        key = owner_key(one)
        revision = self.revisions.get(key)
        if revision is not None and key not in self._farewells:
            revision.pods.put_slice(one.metadata.name, None)
            self.mark(key)

    def _workload(self, kind: str, one: Workload, now: Workload | None) -> None:
        self._put_workload((f"apps/v1/{kind}", one.metadata.namespace, one.metadata.name), now)

    def _put_workload(self, place: Place, now: Workload | None) -> None:
        if now is None:
            self._workloads.pop(place, None)
        else:
            self._workloads[place] = now
        for key in self._users.get(place, ()):
            self.mark(key)

    def _route_changed(self, one: HttpRoute) -> None:
        for key in self._routes.put(one):
            self._claim(key)

    def _route_gone(self, one: HttpRoute) -> None:
        for key in self._routes.drop(one):
            self._claim(key)

    # --- within ---

    def _of(self, key: str) -> DeclaredRevision:
        """The revision of this key, made where there is none, and marked."""
        found = self.revisions.get(key)
        if found is None:
            found = self.revisions[key] = DeclaredRevision(key)
        self.mark(key)
        return found

    def _declare(self, key: str) -> None:
        """Its objects are others than before."""
        declaration = self._activations.get(key) or self._services.get(key)
        revision = self._of(key)
        if declaration is None:
            revision.declaration = revision.served = None
            self._notes.pop(key, None)
        else:
            if declaration.problems:
                log.warning("%s", "; ".join(declaration.problems[:3]))
            revision.declare(declaration)
        if revision.served is None or revision.served.activation.external_scaler:
            self.wanted.pop(key, None)  # whoever decided on it does so no more
        if self.fronts is not None:
            self.fronts.declare(key, revision.served, "" if declaration is None else declaration.created)
        self._target(key, revision.served)
        self._claim(key)
        self.declared(key, revision.served)

    def _target(self, key: str, served: Declared | None) -> None:
        old = self._target_of.pop(key, None)
        if old is not None:
            self._users[old].discard(key)
            if not self._users[old]:
                del self._users[old]
                if old[0] not in WATCHED_KINDS:
                    self._workloads.pop(old, None)
                    self._unscalable.pop(old, None)
                    self._read.discard(old)
                    self.followed(old, False)
        if served is not None:
            place = place_of(served.activation.target, key.partition("/")[0])
            self._target_of[key] = place
            self._users.setdefault(place, set()).add(key)
            if place[0] not in WATCHED_KINDS:
                self.followed(place, True)

    def _claim(self, key: str) -> None:
        """The hosts that it names are others than before."""
        revision = self.revisions.get(key)
        named: dict[str, str] = {}
        created = ""
        if revision is not None and revision.declaration is not None and revision.served is not None:
            named = self._named(revision.served, key)
            created = revision.declaration.created
        for other in self.hosts.name(key, created, named.values()):
            self.mark(other)
        self.mark(key)

    def _named(self, served: Declared, key: str) -> dict[str, str]:
        """The hosts that it names, each with what it claims of it."""
        hosts = [*served.revision.hosts, *self._routes.of(key)]
        part = part_of_host(served.revision, key)
        return {found: found + part for host in hosts if (found := canonical_host(host)) is not None}

    def _work_out(self, key: str) -> float:
        revision = self.revisions.get(key)
        if revision is None:
            return NEVER
        now_s = self._controllers.now()
        ports, is_left = ((), False) if self.fronts is None else self.fronts.entries(key)
        if key in self._farewells:
            for change in revision.left(ports, is_left):
                self._submit(change)
            return NEVER
        hosts, taken = self._granted(revision)
        front = self._front(key, revision)
        around = Surroundings(
            self.workload_of(key),
            self._is_target_known(key),
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
        changes, desired, due_s = revision.work_out(around, self._make, now_s)
        for change in changes:
            self._submit(change)
        if desired is not None:
            self._want(desired)
        if revision.is_empty():
            del self.revisions[key]
        self.worked_out(key)
        return due_s

    def _front(self, key: str, revision: DeclaredRevision) -> FrontOutcome | None:
        """What follows for the requests of its Service; None: it is not transparent, or too little is known."""
        served = revision.served
        if self.fronts is None or served is None or not self._is_target_known(key):
            return None
        around = Around(self.workload_of(key), self.answers.count(key), self.replicas_of(key), self.wanted.get(key, -1))
        outcome = self.fronts.work_out(key, served, self.rule_of(served), around, self.is_ours(key))
        self.held(key, outcome is not None and outcome.is_held)
        return outcome

    def _is_target_known(self, key: str) -> bool:
        """Whether its target has been looked for: then there is none where none is known."""
        place = self._target_of.get(key)
        if place is None or place[0] in WATCHED_KINDS:
            return self.workloads_known()
        return place in self._read

    def _granted(self, revision: DeclaredRevision) -> tuple[tuple[str, ...], tuple[Taken, ...]]:
        """The hosts that it has, and those that it names and another one has."""
        if revision.served is None:
            return (), ()
        named = self._named(revision.served, revision.key)
        holders = {host: self.hosts.holder(claimed) for host, claimed in named.items()}
        hosts = tuple(host for host, holder in holders.items() if holder == revision.key)
        taken = tuple(Taken(host, holder) for host, holder in holders.items() if holder != revision.key)
        return hosts, taken

    def _failed(self, key: str, error: Exception) -> float:
        revision = self.revisions.get(key)
        if revision is not None:
            revision.forget_submitted()  # some of it may have been worked out, and not been submitted
        backoff_s = self._panicked(key, "what the cluster says of it", error, self._controllers.now())
        log.error("could not work out what changed in %s; again in %.1f s", key, backoff_s, exc_info=error)
        return backoff_s

    def _turned(self, key: str) -> None:
        """The first pod of a revision answers, or the last one that did no longer does."""
        if key in self.revisions:
            self.mark(key)


_NOWHERE: Final[Place] = ("", "", "")


def _ignore_place(place: Place, is_named: bool) -> None:
    pass


def _ignore_hold(key: str, is_held: bool) -> None:
    pass


def _nobody(key: str, declared: Declared | None) -> None:
    pass


def _ignore(key: str) -> None:
    pass


def _ignore_service(key: str, version: str, is_there: bool) -> bool:
    return False


def _key(one: KubeObject) -> str:
    return f"{one.metadata.namespace}/{one.metadata.name}"
