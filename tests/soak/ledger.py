"""The judge of requests: the ledger of all outcomes, and the disturbances that may explain a failure.

Rules
  1. A request has succeeded, or a disturbance explains its failure: the same door and revision, an expected result, and
     a time that overlaps. All others are violations; so is a kind of request that never succeeds.
  2. A disturbance is recorded before it begins, so that a failure can be judged at once.
  3. Where the test knows which connections or which process a fault hits, it explains failures of these only.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

OK: Final = "ok"
CUT: Final = "cut"  # the connection ended before the response did
REFUSED: Final = "refused"  # no connection could be made
HANG: Final = "hang"  # it had not ended in time; nothing explains that
LEFT: Final = "left"  # by its client, which was connected: the success of a client that leaves
ANY: Final = "*"
KEPT: Final = 1_000  # ended disturbances
SHOWN: Final = 50  # violations


class Outcome(NamedTuple):
    """The outcome of one request. `port`: the client's.

    `result`: OK, CUT, REFUSED, HANG, `<status> <reason>`, or other words. `heard`: something had come over its
    connection, in answer to this request or before.
    """

    kind: str
    door: str
    revision: str
    name: str  # its X-Id
    began_s: float
    ended_s: float
    result: str
    port: int = 0
    detail: str = ""
    heard: bool = False


class Explanation(NamedTuple):
    """The failures that a disturbance may cause; empty `ports` and `pids` are no condition.

    `only_new`: of requests that began while it went on. `not_accepted`: of those that no process had, over connections
    over which nothing has come.
    """

    door: str
    revision: str
    results: frozenset[str]
    ports: frozenset[int] = frozenset()
    pids: frozenset[int] = frozenset()
    only_new: bool = False
    not_accepted: bool = False


class Disturbance:
    """One fault. Its consequences may last until `until_s`, which is open while it goes on."""

    def __init__(self, kind: str, explanations: tuple[Explanation, ...] = ()) -> None:
        self.kind = kind
        self.explanations = explanations
        self.began_s = time.monotonic()
        self.until_s = math.inf

    def __repr__(self) -> str:
        return f"{self.kind} from {self.began_s:.2f} to {self.until_s:.2f}"

    def end(self, aftermath_s: float) -> None:
        """End it; requests that run within `aftermath_s` may still fail because of it."""
        self.until_s = time.monotonic() + aftermath_s

    def explains(self, outcome: Outcome, executors: Callable[[str], frozenset[int]]) -> bool:
        """True if the failure may be its consequence. `executors`: the processes that had the request with this ID."""
        if outcome.ended_s < self.began_s or outcome.began_s > self.until_s:
            return False
        return any(self._fits(one, outcome, executors) for one in self.explanations)

    def _fits(self, one: Explanation, outcome: Outcome, executors: Callable[[str], frozenset[int]]) -> bool:
        if one.only_new and outcome.began_s < self.began_s:
            return False
        if one.door not in {ANY, outcome.door} or one.revision not in {ANY, outcome.revision}:
            return False
        if outcome.result not in one.results:
            return False
        if one.ports and outcome.port not in one.ports:
            return False
        if not (one.pids or one.not_accepted):
            return True
        if one.not_accepted and outcome.heard:
            return False
        had = executors(outcome.name)
        if one.not_accepted and had:
            return False
        return not had or bool(had & one.pids)


class Ledger:
    """All outcomes, counted; the unexplained ones as words in `violations`. For use from several threads.

    `executors` is called without its lock, so that it may take others.
    """

    def __init__(self, executors: Callable[[str], frozenset[int]]) -> None:
        self.results: Counter[tuple[str, str]] = Counter()  # by kind and result
        self.disturbed: Counter[str] = Counter()  # by kind of disturbance
        self.explained: Counter[str] = Counter()  # failures by kind of disturbance
        self.violations: list[str] = []
        self.violation_count = 0
        self.failed = 0  # requests, with or without an explanation
        self.longest_s: dict[str, float] = {}  # of the successful requests of a kind
        self._executors = executors
        self._successes: Counter[tuple[str, str, str]] = Counter()  # by kind, door and revision
        self._expected: set[tuple[str, str, str]] = set()
        self._lock = threading.RLock()
        self._disturbances: deque[Disturbance] = deque(maxlen=KEPT)

    def disturb(self, kind: str, *explanations: Explanation) -> Disturbance:
        """Record a disturbance, which begins now."""
        disturbance = Disturbance(kind, explanations)
        with self._lock:
            self._disturbances.append(disturbance)
            self.disturbed[kind] += 1
        return disturbance

    def expect(self, kind: str, door: str, revision: str) -> None:
        """Clients begin such requests, at least one of which must succeed in the whole run."""
        with self._lock:
            self._expected.add((kind, door, revision))

    def judge_successes(self) -> None:
        """At the end of a run: clients that never had a success have tested nothing."""
        with self._lock:
            missing = sorted(one for one in self._expected if not self._successes[one])
        for kind, door, revision in missing:
            self.violate(f"no request succeeded of kind {kind!r} to {revision} at the {door}")

    def count(self, kind: str, door: str, revision: str, result: str) -> None:
        """Count an exchange that has no outcome to judge."""
        with self._lock:
            self.results[kind, result] += 1
            self._successes[kind, door, revision] += result == LEFT

    def record(self, outcome: Outcome) -> None:
        with self._lock:
            self.results[outcome.kind, outcome.result] += 1
            if outcome.result == OK:
                self._successes[outcome.kind, outcome.door, outcome.revision] += 1
                took_s = outcome.ended_s - outcome.began_s
                self.longest_s[outcome.kind] = max(self.longest_s.get(outcome.kind, 0.0), took_s)
                return
            self.failed += 1
            disturbances = list(self._disturbances)
        self._judge(outcome, disturbances)

    def _judge(self, outcome: Outcome, disturbances: list[Disturbance]) -> None:
        """Judge a failure without the lock: `executors` takes one of its own."""
        for disturbance in reversed(disturbances):
            if disturbance.explains(outcome, self._executors):
                with self._lock:
                    self.explained[disturbance.kind] += 1
                return
        self.violate(f"an unexplained failure: {outcome}; the last disturbances: {disturbances[-4:]}")

    def disturbances(self) -> list[str]:
        """Describe the last disturbances, by the monotonic clock as the outcomes do, and by the time of day."""
        offset_s = time.time() - time.monotonic()
        return [
            f"{time.strftime('%H:%M:%S', time.localtime(one.began_s + offset_s))} {one}" for one in self._disturbances
        ]

    def violate(self, words: str) -> None:
        """Record that a promise was broken."""
        with self._lock:
            self.violation_count += 1
            if len(self.violations) < SHOWN:
                self.violations.append(words)
                print(f"violation at {time.strftime('%H:%M:%S')}: {words}", flush=True)

    @property
    def total(self) -> int:
        return sum(self.results.values())
