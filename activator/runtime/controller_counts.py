"""The counts of the control plane's controllers: passes, queues, calls of the API, conflicts, errors by kind.

    with controllers.reconcile("endpoints") as reconcile:   # one pass: counted, timed, traced
        ...                                                 # an exception is counted by kind and propagates
        reconcile.requeue(after_s=5.0)                      # the object is requeued

Rules
  1. Every label is a word of a closed set below; any other word raises ValueError. Verbs and codes of the API are an
     exception: unknown ones become `other` or `error`. No names, namespaces, addresses, paths or functions.
  2. Plain counters: telemetry/ names and renders them.
  3. A controller has no series before it is registered; from then on it has all of them, because a rate needs the zero
     before the first error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Final, Self

from activator.runtime.clock import Now
from activator.runtime.histogram import Histogram

CONTROLLERS: Final = ("revision", "endpoints", "membership", "declaration", "activation")
RESULTS: Final = ("success", "error", "requeue", "requeue_after")
TARGET_KINDS: Final = ("member_row", "status", "scale", "service", "event", "endpointslice")
WRITE_COMPONENTS: Final = ("service", "scale", "traffic", "status", "events")  # the writes for one Activation
WRITE_OUTCOMES: Final = ("ok", "conflict", "failed", "unchanged")  # the last: compared, and not sent
# Field managers that write the fields that are ours. `none`: the API named no manager; `other`: any other manager.
MANAGER_WORDS: Final = ("activator", "kubectl", "helm", "argocd", "flux", "keda", "horizontal", "none", "other")
VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete", "other")
NO_ANSWER: Final = "error"  # the code of a call that was not answered

# A pass over one object takes a millisecond or a call of the API; one of a minute has met a timeout.
RECONCILE_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip
# Work queues are measured in decades everywhere.
QUEUE_BOUNDS_S: Final[tuple[float, ...]] = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class ErrorType(Enum):
    """Kinds of errors of a pass, as Kubernetes distinguishes them."""

    CONFLICT = "conflict"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    TIMEOUT = "timeout"
    TOO_MANY_REQUESTS = "too_many_requests"
    OTHER = "other"

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed; other errors persist until something is changed."""
        return self in _TRANSIENT


_TRANSIENT: Final = frozenset(
    {ErrorType.CONFLICT, ErrorType.ALREADY_EXISTS, ErrorType.TIMEOUT, ErrorType.TOO_MANY_REQUESTS}
)
_BY_STATUS: Final = {
    400: ErrorType.INVALID,
    401: ErrorType.FORBIDDEN,  # authentication or authorisation: both are for an operator to repair
    403: ErrorType.FORBIDDEN,
    404: ErrorType.NOT_FOUND,
    408: ErrorType.TIMEOUT,
    409: ErrorType.CONFLICT,
    422: ErrorType.INVALID,
    429: ErrorType.TOO_MANY_REQUESTS,
    504: ErrorType.TIMEOUT,
}


def error_type_of_status(status: int, reason: str = "") -> ErrorType:
    """Return the kind of a status of the API; `reason` is that of its Status object and distinguishes the two 409s."""
    if status == 409 and reason == "AlreadyExists":
        return ErrorType.ALREADY_EXISTS
    return _BY_STATUS.get(status, ErrorType.OTHER)


def error_type_of(error: BaseException) -> ErrorType:
    """Return the kind of an exception: TIMEOUT, or by its `status` (or `code`) and `reason`; OTHER without them."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return ErrorType.TIMEOUT
    for name in ("status", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return error_type_of_status(status, str(getattr(error, "reason", "")))
    return ErrorType.OTHER


class ControllerCounts:
    """The counts of one controller since it was registered."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency  # passes that may run at the same time
        self.active = 0
        self.added_total = 0  # objects put into its queue
        self.taken_total = 0
        self.retries_total = 0  # objects put into its queue again, after an error or on request
        self.results = dict.fromkeys(RESULTS, 0)
        self.errors = dict.fromkeys(ErrorType, 0)
        self.conflicts = dict.fromkeys(TARGET_KINDS, 0)
        self.conflict_managers: Counter[tuple[str, str]] = Counter()  # by target kind and manager's word
        self.writes: Counter[tuple[str, str]] = Counter()  # by component and outcome
        self.reconcile_time = Histogram(RECONCILE_BOUNDS_S)
        self.queue_time = Histogram(QUEUE_BOUNDS_S)
        self.work_time = Histogram(QUEUE_BOUNDS_S)

    @property
    def depth(self) -> int:
        """Objects in its queue."""
        return self.added_total - self.taken_total


OnPass = Callable[[str, float, float, str, str], None]


class Controllers:
    """The controllers of the program.

    `on_pass` is called after each pass with the controller, its begin and end (monotonic seconds), its result and the
    kind of error, if it failed: traces are made from it.
    """

    def __init__(self, now: Now) -> None:
        self.now = now
        self.on_pass: OnPass | None = None
        self.counts: dict[str, ControllerCounts] = {}
        self.calls: dict[tuple[str, str], int] = {}  # calls of the API, by verb and code

    def register(self, controller: str, concurrency: int = 1) -> None:
        """Register a controller; its concurrency is the highest that has been registered. Raises ValueError."""
        _check(controller, CONTROLLERS)
        counts = self.counts.setdefault(controller, ControllerCounts(concurrency))
        counts.concurrency = max(counts.concurrency, concurrency)

    def of(self, controller: str) -> ControllerCounts:
        """Return the counts of a controller, and register it if necessary. Raises ValueError."""
        counts = self.counts.get(controller)
        if counts is None:
            self.register(controller)
            counts = self.counts[controller]
        return counts

    # --- its queue ---

    def added(self, controller: str, again: bool = False) -> None:
        """Count an object put into the queue; `again`: after an error or on request. Do not call it for a duplicate."""
        counts = self.of(controller)
        counts.added_total += 1
        counts.retries_total += again

    def taken(self, controller: str, waited_s: float) -> None:
        """Count an object taken out of the queue after `waited_s` seconds."""
        counts = self.of(controller)
        counts.taken_total += 1
        counts.queue_time.observe(waited_s)

    # --- its passes ---

    def reconcile(self, controller: str) -> Reconcile:
        """Return a context for one pass, which counts its result even if it raises."""
        return Reconcile(self, controller)

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        """Count a pass that took `seconds`. The context of `reconcile` does this."""
        _check(result, RESULTS)
        counts = self.of(controller)
        counts.results[result] += 1
        counts.reconcile_time.observe(seconds)
        counts.work_time.observe(seconds)

    def failed(self, controller: str, error_type: ErrorType) -> None:
        """Count an error in a pass; a pass may continue after an error and have several."""
        self.of(controller).errors[error_type] += 1

    def conflict(self, controller: str, target_kind: str) -> None:
        """Count a write that was refused because another client had written (409)."""
        _check(target_kind, TARGET_KINDS)
        self.of(controller).conflicts[target_kind] += 1

    def written(self, controller: str, component: str, outcome: str) -> None:
        """Count the outcome of writing one component; `unchanged`: compared, and not sent."""
        _check(component, WRITE_COMPONENTS)
        _check(outcome, WRITE_OUTCOMES)
        self.of(controller).writes[component, outcome] += 1

    def refused_by(self, controller: str, target_kind: str, manager: str) -> None:
        """Count a conflict with a field manager, by its word of MANAGER_WORDS; empty: the API named none."""
        _check(target_kind, TARGET_KINDS)
        lowered = manager.lower()
        word = next((known for known in MANAGER_WORDS if lowered.startswith(known)), "other" if manager else "none")
        self.of(controller).conflict_managers[target_kind, word] += 1

    # --- the API ---

    def rest(self, verb: str, code: int | None) -> None:
        """Count a call of the API; `code` is that of the answer, None if there was none."""
        known = verb if verb in VERBS else "other"
        label = str(code) if code is not None and 100 <= code <= 599 else NO_ANSWER
        self.calls[known, label] = self.calls.get((known, label), 0) + 1

    def rest_totals(self, totals: Mapping[tuple[str, str], int]) -> None:
        """Set the calls so far, from a client with counters of its own: by verb, and by code or kind of error."""
        self.calls.clear()
        for (verb, outcome), count in totals.items():
            key = (verb if verb in VERBS else "other", outcome if outcome.isdecimal() else NO_ANSWER)
            self.calls[key] = self.calls.get(key, 0) + count


class Reconcile:
    """A context manager that counts and times one pass of a controller."""

    def __init__(self, controllers: Controllers, controller: str) -> None:
        self._controllers = controllers
        self._controller = controller
        self._counts = controllers.of(controller)
        self._result = "success"
        self._began_s = 0.0

    def requeue(self, after_s: float = 0.0) -> None:
        """Record that the object is requeued after `after_s` seconds."""
        self._result = "requeue_after" if after_s > 0.0 else "requeue"

    def __enter__(self) -> Self:
        self._counts.active += 1
        self._began_s = self._controllers.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        controllers = self._controllers
        ended_s = controllers.now()
        self._counts.active -= 1
        error_type = ""
        if isinstance(error, Exception):  # a cancelled pass was stopped, it did not fail
            self._result = "error"
            kind_of_error = error_type_of(error)
            error_type = kind_of_error.value
            controllers.failed(self._controller, kind_of_error)
        controllers.reconciled(self._controller, self._result, ended_s - self._began_s)
        if controllers.on_pass is not None:
            controllers.on_pass(self._controller, self._began_s, ended_s, self._result, error_type)


def _check(word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
