"""One declared revision: from the cluster's objects to changes for the state worker and the desired objects.

Rules
  1. The class has state but reads no clock and does no I/O. `work_out` is called once per turn in which something of
     the revision has changed.
  2. Submitted state is kept, and only differences are submitted; for pods, see `declared_pods.py`.
  3. An invalid spec does not end a revision that is served: the last valid one stays in force.
  4. A failure ends when a pod answers, when the pods no longer fail, with another target, and at zero: the next request
     starts pods again, and the former failure need not apply to them.
  5. Whether the state worker knows the revision is tracked separately from the state that it may have lost: a revision
     that it knows is ended by RevisionGone in any case.
  6. Nothing is written back before the workloads have been listed: the private Service exists only with a target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from activator.config.activation import KIND, Declared
from activator.config.specs import RevisionSpec, reroute
from activator.control_plane.reconcile.desired import (
    THE_ACTIVATION,
    ConditionSpec,
    Desired,
    EventSpec,
    Observed,
    ObservedScale,
    Owner,
    PodsService,
    TargetReference,
)
from activator.control_plane.sources.activations.conditions import ConditionInputs, TakenHost, conditions_of
from activator.control_plane.sources.activations.declaration import SERVICE, Declaration, names_http2
from activator.control_plane.sources.activations.declared_pods import PORT_NAME, DeclaredPods
from activator.control_plane.sources.activations.fronts import FrontOutcome
from activator.control_plane.sources.activations.objects import Workload
from activator.control_plane.sources.activations.pod_failures import PodFailure
from activator.messages import (
    Change,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from activator.runtime.child_name import child_name
from activator.runtime.clock import NEVER

# When an object of another kind takes over a name, the former one's objects are removed this long before new ones.
HANDOVER_S: Final = 1.0
WATCHED_KINDS: Final = frozenset({"apps/v1/Deployment", "apps/v1/StatefulSet"})


def pods_service(name: str) -> str:
    """Return the name of the private Service of a revision."""
    return child_name(name, "-pods")


class RevisionInputs(NamedTuple):
    """The state of the revision beside its own object.

    `workload` None: there is none of this name. `is_known`: the workload has been looked up. `ready`: pods that may be
    picked. `wanted`: by the autoscaler; -1: it has not decided, or another component scales.
    """

    workload: Workload | None
    is_known: bool
    hosts: tuple[str, ...]
    taken: tuple[TakenHost, ...]
    ready: int
    wanted: int
    notes: tuple[ConditionSpec, ...] = ()
    unscalable: str = ""  # why the target can never be scaled
    front: FrontOutcome | None = None  # mode transparent only
    ports: tuple[int, ...] = ()  # the ports that lead to the revision, whatever the host
    is_left: bool = False  # its clients should leave the activator


class PassResult(NamedTuple):
    """The result of a pass. `due_s`: when to run again without a change, monotonic seconds."""

    changes: list[Change]
    desired: Desired | None
    due_s: float


# Arguments: the declaration, its hosts, True if its pods speak HTTP/2, and the creation time of its object.
Make = Callable[[Declared, tuple[str, ...], bool, str], RevisionSpec]


class DeclaredRevision:
    """The state of one revision. Handlers of watches fill it in; `work_out` derives what to submit and to write."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.declaration: Declaration | None = None
        self.served: Declared | None = None  # the last valid declaration
        self.failure: PodFailure | None = None  # what the pods' last list shows
        self.failing_since_s = NEVER
        self.events: tuple[EventSpec, ...] = ()  # to be written after the next pass
        self.pods = DeclaredPods(key)
        self._spec: RevisionSpec | None = None  # as submitted; None: to be submitted
        self._is_submitted = False  # the state worker knows the revision
        self._cause: str | None = ""  # as submitted; None: it may have been lost
        self._ever_failed = False  # a cause was submitted
        self._desired_last: Desired | None = None

    # --- set by handlers ---

    def declare(self, declaration: Declaration) -> None:
        if self.declaration is None or self.declaration.uid != declaration.uid:
            self.served = None  # another object of this name
        self.declaration = declaration
        if declaration.declared is not None:
            if _target(self.served) != _target(declaration.declared):
                self._forget_failure()
            self.served = declaration.declared

    def set_failure(self, failure: PodFailure | None, now_s: float) -> None:
        """Record the failure that the revision's pods show; None: they may still start."""
        if failure is None:
            self.failing_since_s = NEVER
        elif self.failure is None or self.failing_since_s == NEVER:
            self.failing_since_s = now_s
        self.failure = failure

    def forget_submitted(self) -> None:
        """Have everything submitted again: some changes were lost."""
        self._spec = None
        self._cause = None if self._ever_failed else ""
        self.pods.forget_submitted()

    @property
    def state(self) -> str:
        """The state as of the last pass: "serving", "at_zero", "starting" or "not_ready"."""
        if self._desired_last is None:
            return "not_ready"
        ready = self._desired_last.conditions[0]
        words = {"Serving": "serving", "AtZero": "at_zero", "Starting": "starting"}
        return words.get(ready.reason, "not_ready") if ready.status == "True" else "not_ready"

    def is_empty(self) -> bool:
        """Return True if the revision has neither an object nor pods."""
        return self.declaration is None and self.pods.is_empty()

    # --- results ---

    def work_out(self, inputs: RevisionInputs, make: Make, now_s: float) -> PassResult:
        """Return the changes to submit, the objects to write, and when to run again."""
        declaration, served = self.declaration, self.served
        if declaration is None:
            last, self._desired_last = self._desired_last, None
            return PassResult(self._end(), None if last is None else _removal(last), NEVER)
        failure, due_s = self._update_failure(inputs, now_s)
        changes: list[Change] = []
        if served is not None:
            is_http2 = declaration.is_http2 or _template_names_http2(served, inputs.workload)
            spec = make(served, inputs.hosts, is_http2, declaration.created)
            spec = reroute(spec, ports=inputs.ports, is_left=inputs.is_left)
            if spec != self._spec:
                self._spec, self._is_submitted = spec, True
                changes.append(RevisionSet(spec))
            cause = "" if failure is None or due_s != NEVER else failure.cause
            if cause != self._cause:
                self._cause = cause
                self._ever_failed |= bool(cause)
                changes.append(RevisionFailed(self.key, cause) if cause else RevisionRecovered(self.key))
            changes += self.pods.take_changes(served.revision.probe is not None)
        else:
            changes += self._end()
        if not inputs.is_known:
            return PassResult(changes, None, due_s)
        last = self._desired_last
        if last is not None and last.owner.kind != declaration.kind:
            self._desired_last = None
            return PassResult(changes, _removal(last), min(due_s, now_s + HANDOVER_S))
        desired = self._desired_last = self._desired(declaration, served, inputs, failure)
        if inputs.front is not None:
            due_s = min(due_s, inputs.front.due_s)
        return PassResult(changes, desired, due_s)

    def update_departed(self, ports: tuple[int, ...], is_left: bool) -> list[Change]:
        """Update the spec of a deleted revision, which is served while clients still reach it through its Service."""
        if self._spec is None:
            return []
        spec = reroute(self._spec, ports=ports, is_left=is_left)
        if spec == self._spec:
            return []
        self._spec = spec
        return [RevisionSet(spec)]

    def _end(self) -> list[Change]:
        """Return the changes that end the revision, and forget the submitted state."""
        was_submitted, self._is_submitted = self._is_submitted, False
        self._spec, self._cause, self._ever_failed = None, "", False
        self._forget_failure()
        self.pods.end()
        return [RevisionGone(self.key)] if was_submitted else []

    def _forget_failure(self) -> None:
        self.failure, self.failing_since_s = None, NEVER

    # --- failures ---

    def _update_failure(self, inputs: RevisionInputs, now_s: float) -> tuple[PodFailure | None, float]:
        """Forget a failure that has ended; return it, and until when requests wait despite it (NEVER: they do not)."""
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

    # --- the desired objects ---

    def _desired(
        self, declaration: Declaration, served: Declared | None, inputs: RevisionInputs, failure: PodFailure | None
    ) -> Desired:
        """Return the objects to write, with the conditions of the declaring object."""
        workload = inputs.workload
        replicas = -1 if workload is None else replicas_of(workload)
        wanted = _wanted(inputs)
        front = inputs.front
        writes = inputs.wanted >= 0 and workload is not None and (front is None or front.writes_replicas)
        condition_inputs = ConditionInputs(
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
            conditions=conditions_of(condition_inputs),
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
        """Return the private Service; None: the target has no labels to select its pods by."""
        if workload is None or not workload.spec.selector.match_labels:
            return None
        labels = workload.spec.selector.match_labels
        return PodsService(pods_service(self.key.partition("/")[2]), labels, PORT_NAME, served.activation.port)


def _removal(last: Desired) -> Desired:
    """Return an order to remove the objects that were made for the revision; the workload stays unchanged."""
    return replace(last, present=False, replicas=None, service=None, traffic=None, events=())


def _wanted(inputs: RevisionInputs) -> int:
    """Return the number of wanted pods: the autoscaler's or, if it does not decide, the workload's."""
    if inputs.wanted >= 0:
        return inputs.wanted
    return 0 if inputs.workload is None else max(replicas_of(inputs.workload), 0)


def scale_seen(workload: Workload) -> ObservedScale:
    metadata = workload.metadata
    return ObservedScale(replicas_of(workload), metadata.resource_version, metadata.uid)


def replicas_of(workload: Workload) -> int:
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def _target(served: Declared | None) -> TargetReference:
    if served is None:
        return TargetReference("", "", "")
    target = served.activation.target
    return TargetReference(target.api_version, target.kind, target.name)


def _missing(served: Declared, inputs: RevisionInputs) -> PodFailure | None:
    """Return the failure of an object that names something that the cluster does not have."""
    target = served.activation.target
    if not inputs.is_known:
        return None
    name = f"{target.kind}/{target.name}"
    if inputs.unscalable:
        return PodFailure("TargetNotSupported", inputs.unscalable, True)
    workload = inputs.workload
    if workload is None:
        return PodFailure("TargetNotFound", f"its target {name} does not exist", True)
    selector = workload.spec.selector
    has_template = bool(workload.spec.template.spec.containers)  # False: only its scale is known
    if not selector.match_labels or selector.match_expressions:
        message = f"the selector of its target {name} has to consist of matchLabels alone"
        if not has_template:
            message = f"the scale of its target {name} has to have a selector that consists of matchLabels alone"
        return PodFailure("SelectorNotSupported", message, True)
    port = served.activation.port
    if isinstance(port, str) and has_template and port not in _port_names(workload):
        return PodFailure("PortNotFound", f'no container of its target {name} has a port named "{port}"', True)
    return None


def _port_names(workload: Workload) -> set[str]:
    return {port.name for container in workload.spec.template.spec.containers or [] for port in container.ports or []}


def _template_names_http2(served: Declared, workload: Workload | None) -> bool:
    """Return True if the port of the pods has a name that means HTTP/2."""
    if workload is None or not isinstance(served.activation.port, int):
        return False
    return any(
        port.container_port == served.activation.port and names_http2(port.name)
        for container in workload.spec.template.spec.containers or []
        for port in container.ports or []
    )
