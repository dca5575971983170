"""Decides whether the activator is in the path of a Service's requests: a pure function of observations.

Rules
  1. `decide` reads no clock and does no I/O. A step is always to a neighbouring position (OUT, BESIDE, ALONE: see
     traffic_wanted.py, rule 1), and is taken only when the watches show the present position. Only the loss of the last
     pod ends a wait early.
  2. Out of the path the load is unknown, and connections that clients keep to pods are never seen. Therefore the number
     of pods is not lowered there; missing requests count as no load only after the position has been ALONE, and
     settled, for the grace to zero.
  3. The activator leaves the path only for a busy revision: requests have arrived for the dwell without a gap, none is
     queued, the capacity is ample, and all pods are needed. It stays in the path of an idle revision until zero.
  4. After the measurement interval out of the path it steps in to measure the load, if fewer pods may be wanted.
  5. A request directly after the scale to zero may come from a client that had kept a connection to a pod, or from a
     new client; both arrive on a new connection. The activator therefore stays in the path, where it sees all
     connections, for the measurement interval. After several such zeros in a row it stays longer, up to
     `after_mistake_s`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from activator.control_plane.reconcile.traffic_wanted import Position
from activator.runtime.backoff import grown_s
from activator.runtime.clock import NEVER

ALWAYS: Final = -1  # a burst capacity: stay in the path
BUSY_GAP_S: Final = 2.0  # A revision without a request for this time is no longer busy.
DECISION_INTERVAL_S: Final = 1.0  # between two decisions on a revision in the path that has pods
LISTEN_S: Final = 1.0  # until every replica listens on a port that our slices show
DUE_MIN_S: Final = 0.02  # the shortest time between two decisions without an event
# A request within this time after the scale to zero, or the grace if longer, may come from a kept connection.
MISTAKE_MIN_S: Final = 30.0
MISTAKE_GROWTH: Final = 4  # factor of the time in the path for each such zero in a row
MISTAKES_MAX: Final = 16  # bounds the count, and so the power


class PathReason(Enum):
    """The reason for the position, as a condition's reason."""

    NO_POD = "NoPod"
    STARTING = "Starting"
    LIMIT = "Limit"
    MEASURING = "Looking"
    KEPT_CONNECTIONS = "KeptConnections"
    LEAVING = "Leaving"
    AMPLE = "CapacityIsAmple"


class PathRule(NamedTuple):
    """The settings of one revision.

    `burst`: ALWAYS, or the number of requests for which there must be spare capacity. `limit`: requests of one pod; 0:
    none. `least`: pods that are kept without load.
    """

    burst: int
    limit: int
    settle_s: float
    dwell_s: float
    measure_interval_s: float
    after_mistake_s: float
    grace_s: float
    stable_s: float
    least: int
    zero_only: bool = False


class ObservedPath(NamedTuple):
    """The observed state. `shown`: the position that the watches show; None: between two. `replicas` -1: unknown."""

    now_s: float
    shown: Position | None
    ready: int
    replicas: int
    wanted: int
    in_flight: int = 0
    queued: int = 0
    requests_total: int = 0


class PathState(NamedTuple):
    """The state that one decision passes to the next."""

    position: Position = Position.OUT
    reason: PathReason = PathReason.AMPLE
    keeps_pods: bool = True  # the number of pods must not be lowered
    since_s: float = NEVER  # since when the watches show the position
    leaving: bool = False  # on the way out of the path
    requests_total: int = 0
    last_s: float = -NEVER  # when the last request was observed
    busy_s: float = NEVER  # since when requests have arrived without a gap
    fit_s: float = NEVER  # since when all conditions for leaving have held
    went_out: bool = True  # clients may keep connections to pods
    zero_s: float = NEVER  # since when the target has no replicas
    listens: bool = False  # every replica listens on the Service's port
    distrust_s: float = -NEVER  # until when it stays in the path
    mistakes: int = 0  # zeros in a row, each directly followed by a request
    due_s: float = NEVER  # when to decide again though nothing has changed

    @classmethod
    def begun(cls, shown: Position | None, replicas: int, requests_total: int) -> PathState:
        """Return the first state for a Service that is found like this."""
        return cls(position=shown or Position.OUT, requests_total=requests_total, went_out=replicas != 0)


def decide(rule: PathRule, seen: ObservedPath, state: PathState) -> PathState:
    """Return the next state, with the wanted position."""
    state = _with_load(rule, seen, state)
    if seen.shown is not state.position:
        state = state._replace(since_s=NEVER, fit_s=NEVER)
    elif state.since_s == NEVER:
        state = state._replace(since_s=seen.now_s)
    if not state.listens and state.since_s != NEVER:
        listens = state.position is not Position.OUT or seen.now_s >= state.since_s + LISTEN_S
        state = state._replace(listens=listens)
    state = _step(rule, seen, _with_fit(rule, seen, state))
    return state._replace(keeps_pods=_keeps_pods(rule, seen, state), due_s=_due_s(rule, seen, state))


# --- observations ----------------------------------------------------------------------------------------------------


def _with_load(rule: PathRule, seen: ObservedPath, state: PathState) -> PathState:
    """Record the load: since when the revision is busy or at zero, and whether a zero was a mistake (rule 5)."""
    now_s = seen.now_s
    carries = seen.in_flight + seen.queued > 0
    if carries or seen.requests_total != state.requests_total:
        busy_s = now_s if state.busy_s == NEVER or now_s - state.last_s > BUSY_GAP_S else state.busy_s
        state = state._replace(last_s=now_s, busy_s=busy_s, requests_total=seen.requests_total)
        if state.zero_s != NEVER and state.went_out:
            if now_s - state.zero_s < max(rule.grace_s, MISTAKE_MIN_S):
                stays_s = grown_s(rule.measure_interval_s, state.mistakes, rule.after_mistake_s, MISTAKE_GROWTH)
                state = state._replace(distrust_s=now_s + stays_s, mistakes=min(state.mistakes + 1, MISTAKES_MAX))
            else:
                state = state._replace(mistakes=0)
            state = state._replace(went_out=False)
    elif now_s - state.last_s > BUSY_GAP_S:
        state = state._replace(busy_s=NEVER)
    if seen.replicas == 0 and seen.ready == 0:
        return state._replace(zero_s=now_s) if state.zero_s == NEVER else state
    return state._replace(zero_s=NEVER) if seen.ready else state


def _settled_s(rule: PathRule, state: PathState) -> float:
    """Return the time from which every proxy knows the position."""
    return state.since_s + rule.settle_s


def _with_fit(rule: PathRule, seen: ObservedPath, state: PathState) -> PathState:
    """Return the state with the time since which the activator may leave the path."""
    now_s = seen.now_s
    spare = seen.ready * rule.limit - seen.in_flight if rule.limit else rule.burst
    fits = (
        rule.burst != ALWAYS
        and state.position is Position.ALONE
        and now_s >= _settled_s(rule, state)
        and state.busy_s != NEVER
        and 0 < seen.ready >= seen.wanted
        and seen.queued == 0
        and spare >= rule.burst
        and now_s >= state.distrust_s
    )
    if not fits:
        return state._replace(fit_s=NEVER)
    return state._replace(fit_s=now_s) if state.fit_s == NEVER else state


def _is_reducible(rule: PathRule, seen: ObservedPath) -> bool:
    """Return True if fewer pods may be wanted without load."""
    return rule.least == 0 or (not rule.zero_only and seen.replicas > rule.least)


def _needs_all_pods(rule: PathRule, seen: ObservedPath, state: PathState) -> bool:
    """Return True if a busy revision needs all its pods, as far as has been observed."""
    if rule.zero_only or seen.replicas <= max(rule.least, 1):
        return True
    return seen.now_s >= _settled_s(rule, state) + rule.stable_s and seen.wanted >= seen.replicas


# --- decisions -------------------------------------------------------------------------------------------------------


def _step(rule: PathRule, seen: ObservedPath, state: PathState) -> PathState:
    """Move to the neighbouring position towards the goal, if the present one is settled."""
    goal, reason, leaving = _goal(rule, seen, state)
    state = state._replace(reason=reason, leaving=leaving)
    position = state.position
    if goal is position:
        return state
    if position is Position.OUT:
        return _moved(state, Position.BESIDE) if state.since_s != NEVER and state.listens else state
    if position is Position.ALONE:
        return _moved(state, Position.BESIDE)
    # BESIDE: all proxies must know our endpoints before the pods' are removed, and vice versa.
    if seen.now_s < _settled_s(rule, state):
        return state
    return _moved(state, goal)


def _moved(state: PathState, to: Position) -> PathState:
    """Return the state in another position, which the watches do not show yet."""
    went_out = state.went_out or to is Position.OUT
    return state._replace(position=to, since_s=NEVER, fit_s=NEVER, went_out=went_out)


def _goal(rule: PathRule, seen: ObservedPath, state: PathState) -> tuple[Position, PathReason, bool]:
    """Return the position to move to, the reason, and True if the activator is leaving the path."""
    if rule.burst == ALWAYS:
        return Position.ALONE, PathReason.LIMIT, False
    if seen.ready == 0:
        at_zero = seen.replicas == 0
        reason = PathReason.NO_POD if at_zero else PathReason.STARTING
        if rule.burst > 0 or (state.position is Position.ALONE and not at_zero):
            return Position.ALONE, reason, False
        return Position.BESIDE, reason, False
    if state.position is Position.OUT:
        is_due = state.since_s != NEVER and seen.now_s >= state.since_s + rule.measure_interval_s
        if is_due and _is_reducible(rule, seen):
            return Position.ALONE, PathReason.MEASURING, False
        return Position.OUT, PathReason.AMPLE, False
    if state.leaving:
        return Position.OUT, PathReason.LEAVING, True
    if state.last_s >= state.fit_s + rule.dwell_s and _needs_all_pods(rule, seen, state):
        return Position.OUT, PathReason.LEAVING, True
    return Position.ALONE, _reason_to_stay(rule, seen, state), False


def _reason_to_stay(rule: PathRule, seen: ObservedPath, state: PathState) -> PathReason:
    """Return why the activator stays in the path of a revision with pods."""
    if seen.now_s < state.distrust_s:
        return PathReason.KEPT_CONNECTIONS
    if rule.limit and rule.burst > 0 and seen.ready * rule.limit - seen.in_flight < rule.burst:
        return PathReason.LIMIT
    return PathReason.MEASURING


def _keeps_pods(rule: PathRule, seen: ObservedPath, state: PathState) -> bool:
    """Return True if the number of pods must not be lowered, because the load is not known well enough."""
    if seen.ready == 0 and seen.replicas == 0:
        return False
    if state.position is not Position.ALONE or state.since_s == NEVER:
        return True
    observed_s = rule.grace_s if state.last_s < state.since_s else max(rule.grace_s, rule.stable_s)
    return seen.now_s < _settled_s(rule, state) + observed_s


def _due_s(rule: PathRule, seen: ObservedPath, state: PathState) -> float:
    """Return the earliest time at which the decision may change without a new observation."""
    now_s = seen.now_s
    if state.since_s == NEVER:  # the change of a watch is awaited
        return now_s + DECISION_INTERVAL_S
    times = [now_s + DECISION_INTERVAL_S]
    if state.position is Position.OUT:
        if seen.ready and rule.burst != ALWAYS:
            times = [state.since_s + rule.measure_interval_s] if _is_reducible(rule, seen) else [NEVER]
        else:
            times = [state.since_s + LISTEN_S]
    else:
        if seen.ready == 0 and seen.replicas == 0 and (rule.burst == 0 or state.position is Position.ALONE):
            return NEVER
        settled_s = _settled_s(rule, state)
        times += [settled_s, state.fit_s + rule.dwell_s, settled_s + rule.grace_s, settled_s + rule.stable_s]
    return max(min(time_s for time_s in times if time_s > now_s or time_s == times[0]), now_s + DUE_MIN_S)
