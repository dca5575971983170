"""One declared revision: from what the cluster shows of it to changes for the state worker and to what is written back.

Rules
  1. Pure but for its own memory: no clock, no I/O. `work_out` is called once per turn in which something of it changed.
  2. What was submitted before is remembered, and only what is new is submitted; of its pods, see `declared_pods.py`.
  3. A spec that is not valid does not end a revision that is served: the last valid one stays in force.
  4. A failure ends when a pod answers, when the pods no longer fail, with another target, and at zero: the next request
     tries again, and what was found before says nothing about it.
  5. What the state worker has been told and what of it may be lost are two things: a revision that it knows is ended by
     RevisionGone, whatever was lost meanwhile.
  6. Nothing is written back before the workloads have been listed: whether there is a target decides whether there is a
     private Service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from activator.config.activation import KIND, Declared
from activator.config.specs import RevisionSpec
from activator.control_plane.reconcile.desired import (
    THE_ACTIVATION,
    ConditionSpec,
    Desired,
    EventSpec,
    Observed,
    Owner,
    PodsService,
    ScaleSeen,
    TargetReference,
)
from activator.control_plane.sources.activations.conditions import Situation, Taken, conditions_of
from activator.control_plane.sources.activations.declaration import SERVICE, Declaration, names_http2
from activator.control_plane.sources.activations.declared_pods import PORT_NAME, DeclaredPods
from activator.control_plane.sources.activations.fronts import FrontOutcome
from activator.control_plane.sources.activations.objects import Workload
from activator.control_plane.sources.activations.pod_failures import Failure
from activator.messages import (
    Change,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from activator.runtime.child_name import child_name
from activator.runtime.clock import NEVER

# Between a Service and an Activation of one name: what was made for the one goes before it is made for the other.
HANDOVER_S: Final = 1.0
WATCHED_KINDS: Final = frozenset({"apps/v1/Deployment", "apps/v1/StatefulSet"})


def pods_service(name: str) -> str:
    """The name of the private Service of the revision of this name."""
    return child_name(name, "-pods")


class RevisionInputs(NamedTuple):
    """What is known of the revision beside its own object.

    `workload` None: there is none of this name. `is_known`: it has been looked for. `ready`: pods that may be
    picked. `wanted`: by the autoscaler; -1: it has not decided, or somebody else scales.
    """

    workload: Workload | None
    is_known: bool
    hosts: tuple[str, ...]
    taken: tuple[Taken, ...]
    ready: int
    wanted: int
    notes: tuple[ConditionSpec, ...] = ()
    unscalable: str = ""  # why the target can never be scaled
    front: FrontOutcome | None = None  # of a transparent one
    ports: tuple[int, ...] = ()  # that lead to it, whatever the host …
    is_left: bool = False  # … and its clients do better without this program


class Outcome(NamedTuple):
    """`due_s`: when to look again though nothing has changed, monotonic seconds."""

    changes: list[Change]
    desired: Desired | None
    due_s: float


# With these hosts; True: its pods speak HTTP/2; when the object was created.
Make = Callable[[Declared, tuple[str, ...], bool, str], RevisionSpec]


class DeclaredRevision:
    """Filled in by the handlers of watches; `work_out` says what follows."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.declaration: Declaration | None = None
        self.served: Declared | None = None  # the last valid declaration
        self.failure: Failure | None = None  # of its pods, as they were last looked at
        self.failing_since_s = NEVER
        self.events: tuple[EventSpec, ...] = ()
        self.pods = DeclaredPods(key)
        self._spec: RevisionSpec | None = None  # as submitted; None: it is to be submitted
        self._is_told = False  # the state worker has been told of the revision
        self._cause: str | None = ""  # as submitted; None: it is not known whether that arrived
        self._ever_failed = False  # a cause was submitted
        self._desired_last: Desired | None = None

    # --- what handlers file ---

    def declare(self, declaration: Declaration) -> None:
        if self.declaration is None or self.declaration.uid != declaration.uid:
            self.served = None  # another object of this name
        self.declaration = declaration
        if declaration.declared is not None:
            if _target(self.served) != _target(declaration.declared):
                self._forget_failure()
            self.served = declaration.declared

    def looked(self, failure: Failure | None, now_s: float) -> None:
        """Its pods have been looked at."""
        if failure is None:
            self.failing_since_s = NEVER
        elif self.failure is None or self.failing_since_s == NEVER:
            self.failing_since_s = now_s
        self.failure = failure

    def forget_submitted(self) -> None:
        """Some of it was lost: all of it is submitted again."""
        self._spec = None
        self._cause = None if self._ever_failed else ""
        self.pods.forget_submitted()

    @property
    def state(self) -> str:
        """What can be served of it, in one word, as it was last worked out."""
        if self._desired_last is None:
            return "not_ready"
        ready = self._desired_last.conditions[0]
        words = {"Serving": "serving", "AtZero": "at_zero", "Starting": "starting"}
        return words.get(ready.reason, "not_ready") if ready.status == "True" else "not_ready"

    def is_empty(self) -> bool:
        """Nothing is known of it any more."""
        return self.declaration is None and self.pods.is_empty()

    # --- what follows ---

    def work_out(self, inputs: RevisionInputs, make: Make, now_s: float) -> Outcome:
        declaration, served = self.declaration, self.served
        if declaration is None:
            last, self._desired_last = self._desired_last, None
            return Outcome(self._end(), None if last is None else _removal(last), NEVER)
        failure, due_s = self._failure(inputs, now_s)
        changes: list[Change] = []
        if served is not None:
            is_http2 = declaration.is_http2 or _template_names_http2(served, inputs.workload)
            spec = make(served, inputs.hosts, is_http2, declaration.created)
            spec = replace(spec, ports=inputs.ports, is_left=inputs.is_left)
            if spec != self._spec:
                self._spec, self._is_told = spec, True
                changes.append(RevisionSet(spec))
            cause = "" if failure is None or due_s != NEVER else failure.cause
            if cause != self._cause:
                self._cause = cause
                self._ever_failed |= bool(cause)
                changes.append(RevisionFailed(self.key, cause) if cause else RevisionRecovered(self.key))
            changes += self.pods.changes(served.revision.probe is not None)
        else:
            changes += self._end()
        if not inputs.is_known:
            return Outcome(changes, None, due_s)
        last = self._desired_last
        if last is not None and last.owner.kind != declaration.kind:
            self._desired_last = None
            return Outcome(changes, _removal(last), min(due_s, now_s + HANDOVER_S))
        desired = self._desired_last = self._desired(declaration, served, inputs, failure)
        if inputs.front is not None:
            due_s = min(due_s, inputs.front.due_s)
        return Outcome(changes, desired, due_s)

    def left(self, ports: tuple[int, ...], is_left: bool) -> list[Change]:
        """Its object is gone; it is served until nobody reaches it by its Service any more."""
        if self._spec is None:
            return []
        spec = replace(self._spec, ports=ports, is_left=is_left)
        if spec == self._spec:
            return []
        self._spec = spec
        return [RevisionSet(spec)]

    def _end(self) -> list[Change]:
        was, self._is_told = self._is_told, False
        self._spec, self._cause, self._ever_failed = None, "", False
        self._forget_failure()
        self.pods.end()
        return [RevisionGone(self.key)] if was else []

    def _forget_failure(self) -> None:
        self.failure, self.failing_since_s = None, NEVER

    # --- failures ---

    def _failure(self, inputs: RevisionInputs, now_s: float) -> tuple[Failure | None, float]:
        """Why it cannot start, and until when requests wait nevertheless (NEVER: they do not, or there is none)."""
        served = self.served
        if served is None or inputs.ready:
            self._forget_failure()
            return None, NEVER
        missing = _missing(served, inputs)
        if missing is not None:
            return missing, NEVER
        if _wanted(inputs) == 0:
            self._forget_failure()
        if self.failure is None:
            return None, NEVER
        until_s = self.failing_since_s + float(served.activation.patience)
        if self.failure.is_certain or now_s >= until_s:
            return self.failure, NEVER
        return self.failure, until_s

    # --- what is written back ---

    def _desired(
        self, declaration: Declaration, served: Declared | None, inputs: RevisionInputs, failure: Failure | None
    ) -> Desired:
        workload = inputs.workload
        replicas = -1 if workload is None else replicas_of(workload)
        wanted = _wanted(inputs)
        front = inputs.front
        writes = inputs.wanted >= 0 and workload is not None and (front is None or front.writes_replicas)
        situation = Situation(
            declaration.problems,
            served is not None,
            inputs.hosts,
            inputs.taken,
            failure,
            inputs.ready,
            wanted,
            replicas,
            inputs.notes,
            None if front is None else front.condition,
        )
        events, self.events = self.events, ()
        return Desired(
            key=self.key,
            uid=declaration.uid,
            generation=declaration.generation,
            target=_target(served),
            replicas=inputs.wanted if writes else None,
            service=None if served is None else self._service(served, workload),
            conditions=conditions_of(situation),
            wanted=wanted,
            ready=inputs.ready,
            hosts=inputs.hosts,
            owner=THE_ACTIVATION if declaration.kind == KIND else Owner("v1", SERVICE),
            events=events,
            observed=Observed(
                scale=UNSET if workload is None else scale_seen(workload),
                traffic=None if front is None else front.seen,
            ),
            traffic=None if front is None else front.traffic,
        )

    def _service(self, served: Declared, workload: Workload | None) -> PodsService | None:
        if workload is None or not workload.spec.selector.match_labels:
            return None
        labels = workload.spec.selector.match_labels
        return PodsService(pods_service(self.key.partition("/")[2]), labels, PORT_NAME, served.activation.port)


def _removal(last: Desired) -> Desired:
    """What was made for the object goes; the workload stays as it is."""
    return replace(last, present=False, replicas=None, service=None, traffic=None, events=())


def _wanted(inputs: RevisionInputs) -> int:
    """Pods that are to be there, whoever decides that."""
    if inputs.wanted >= 0:
        return inputs.wanted
    return 0 if inputs.workload is None else max(replicas_of(inputs.workload), 0)


def scale_seen(workload: Workload) -> ScaleSeen:
    metadata = workload.metadata
    return ScaleSeen(replicas_of(workload), metadata.resource_version, metadata.uid)


def replicas_of(workload: Workload) -> int:
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def _target(served: Declared | None) -> TargetReference:
    if served is None:
        return TargetReference("", "", "")
    target = served.activation.target
    return TargetReference(target.api_version, target.kind, target.name)


def _missing(served: Declared, inputs: RevisionInputs) -> Failure | None:
    """What the object names and the cluster does not have."""
    target = served.activation.target
    if not inputs.is_known:
        return None
    name = f"{target.kind}/{target.name}"
    if inputs.unscalable:
        return Failure("TargetNotSupported", inputs.unscalable, True)
    workload = inputs.workload
    if workload is None:
        return Failure("TargetNotFound", f"its target {name} does not exist", True)
    selector = workload.spec.selector
    has_template = bool(workload.spec.template.spec.containers)  # no: what its scale says is all that is known of it
    if not selector.match_labels or selector.match_expressions:
        said = f"the selector of its target {name} has to consist of matchLabels alone"
        if not has_template:
            said = f"the scale of its target {name} has to tell a selector that consists of matchLabels alone"
        return Failure("SelectorNotSupported", said, True)
    port = served.activation.port
    if isinstance(port, str) and has_template and port not in _port_names(workload):
        return Failure("PortNotFound", f'no container of its target {name} has a port named "{port}"', True)
    return None


def _port_names(workload: Workload) -> set[str]:
    return {port.name for container in workload.spec.template.spec.containers or [] for port in container.ports or []}


def _template_names_http2(served: Declared, workload: Workload | None) -> bool:
    """Whether the port of the pods has a name that means HTTP/2."""
    if workload is None or not isinstance(served.activation.port, int):
        return False
    return any(
        port.container_port == served.activation.port and names_http2(port.name)
        for container in workload.spec.template.spec.containers or []
        for port in container.ports or []
    )
