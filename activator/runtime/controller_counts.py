"""What the control plane's controllers count: passes, queues, calls of the API, conflicts, errors by kind.

    with controllers.reconcile("endpoints") as reconcile:   # one pass: counted, timed, traced
        ...                                                 # what it raises is counted by kind, and goes on
        reconcile.requeue(after_s=5.0)                      # it is to come again

Rules
  1. Every label is a word of a closed set below; what is in none of them raises ValueError, but for what the API itself
     says (verbs, codes), which becomes `other` or `error`. No names, namespaces, addresses, paths or functions.
  2. Plain counters: telemetry/ names and renders them.
  3. A controller shows nothing before it is registered; from then on all its series are there, since a rate needs the
     zero before the first error.
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
WRITE_COMPONENTS: Final = (
    "service",
    "scale",
    "traffic",
    "status",
    "events",
)  # parts of what is written for one Activation
WRITE_OUTCOMES: Final = ("ok", "conflict", "failed", "unchanged")  # the last: compared, and not sent
# Who else writes the fields that are ours; the last two: none is named, and any other.
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
        """Trying again may well help; other errors stay until something is changed."""
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
    """`status`: of the API's answer; `reason`: the word in its Status object, which distinguishes both kinds of 409."""
    if status == 409 and reason == "AlreadyExists":
        return ErrorType.ALREADY_EXISTS
    return _BY_STATUS.get(status, ErrorType.OTHER)


def error_type_of(error: BaseException) -> ErrorType:
    """Of an exception: by its `status` (or `code`) and `reason` where it carries them, else whether it is a timeout."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return ErrorType.TIMEOUT
    for name in ("status", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return error_type_of_status(status, str(getattr(error, "reason", "")))
    return ErrorType.OTHER


class ControllerCounts:
    """Of one controller, since it was registered."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency  # passes that may run at the same time
        self.active = 0
        self.added_total = 0  # objects put into its queue
        self.taken_total = 0
        self.retries_total = 0  # of those put into it: again, after an error or by wish
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
    """All of one program. `on_pass` is called after each pass: controller, begin, end (monotonic seconds), result
    and, where it failed, the kind of error: what a trace is made of.
    """

    def __init__(self, now: Now) -> None:
        self.now = now
        self.on_pass: OnPass | None = None
        self.counts: dict[str, ControllerCounts] = {}
        self.calls: dict[tuple[str, str], int] = {}  # of the API, by verb and code

    def register(self, controller: str, concurrency: int = 1) -> None:
        """It exists; of several that say how many passes may run at once, the most counts. Raises ValueError."""
        _check(controller, CONTROLLERS)
        counts = self.counts.setdefault(controller, ControllerCounts(concurrency))
        counts.concurrency = max(counts.concurrency, concurrency)

    def of(self, controller: str) -> ControllerCounts:
        """Registers it if it is not registered yet. Raises ValueError."""
        counts = self.counts.get(controller)
        if counts is None:
            self.register(controller)
            counts = self.counts[controller]
        return counts

    # --- its queue ---

    def added(self, controller: str, again: bool = False) -> None:
        """An object was put into its queue; `again`: after an error or by wish. Folded into one there: not added."""
        counts = self.of(controller)
        counts.added_total += 1
        counts.retries_total += again

    def taken(self, controller: str, waited_s: float) -> None:
        """An object was taken out of its queue."""
        counts = self.of(controller)
        counts.taken_total += 1
        counts.queue_time.observe(waited_s)

    # --- its passes ---

    def reconcile(self, controller: str) -> Reconcile:
        """One pass, as a context: it ends with a result whatever happens within."""
        return Reconcile(self, controller)

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        """A pass is over. `reconcile` says it by itself."""
        _check(result, RESULTS)
        counts = self.of(controller)
        counts.results[result] += 1
        counts.reconcile_time.observe(seconds)
        counts.work_time.observe(seconds)

    def failed(self, controller: str, error_type: ErrorType) -> None:
        """Something in a pass failed so; a pass may go on after an error and meet another."""
        self.of(controller).errors[error_type] += 1

    def conflict(self, controller: str, target_kind: str) -> None:
        """A write of this kind was refused since another client had written (409)."""
        _check(target_kind, TARGET_KINDS)
        self.of(controller).conflicts[target_kind] += 1

    def written(self, controller: str, component: str, outcome: str) -> None:
        """A write of one component ended so, or was not sent since a comparison found nothing to write."""
        _check(component, WRITE_COMPONENTS)
        _check(outcome, WRITE_OUTCOMES)
        self.of(controller).writes[component, outcome] += 1

    def refused_by(self, controller: str, target_kind: str, manager: str) -> None:
        """A conflict was with this manager, whose name becomes one of MANAGER_WORDS; empty: none was named."""
        _check(target_kind, TARGET_KINDS)
        lowered = manager.lower()
        word = next((one for one in MANAGER_WORDS if lowered.startswith(one)), "other" if manager else "none")
        self.of(controller).conflict_managers[target_kind, word] += 1

    # --- the API ---

    def rest(self, verb: str, code: int | None) -> None:
        """A call; `code`: of the answer, None where there was none."""
        known = verb if verb in VERBS else "other"
        said = str(code) if code is not None and 100 <= code <= 599 else NO_ANSWER
        self.calls[known, said] = self.calls.get((known, said), 0) + 1

    def rest_totals(self, totals: Mapping[tuple[str, str], int]) -> None:
        """All calls so far, of a client that counts for itself: by verb, and by code or by what went wrong."""
        self.calls.clear()
        for (verb, said), count in totals.items():
            key = (verb if verb in VERBS else "other", said if said.isdecimal() else NO_ANSWER)
            self.calls[key] = self.calls.get(key, 0) + count


class Reconcile:
    """One pass of one controller."""

    def __init__(self, controllers: Controllers, controller: str) -> None:
        self._controllers = controllers
        self._controller = controller
        self._counts = controllers.of(controller)
        self._result = "success"
        self._began_s = 0.0

    def requeue(self, after_s: float = 0.0) -> None:
        """It is to come again, after so long."""
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
            found = error_type_of(error)
            error_type = found.value
            controllers.failed(self._controller, found)
        controllers.reconciled(self._controller, self._result, ended_s - self._began_s)
        if controllers.on_pass is not None:
            controllers.on_pass(self._controller, self._began_s, ended_s, self._result, error_type)


def _check(word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
