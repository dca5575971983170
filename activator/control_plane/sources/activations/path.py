"""Whether the activator is in the path of a Service's requests: a pure function of what was seen, step by step.

Rules
  1. `decide` reads no clock and does no I/O. Its steps are those between neighbours (OUT, BESIDE, ALONE), and one is
     taken only when the watches show the position before it; the loss of the last pod alone ends any wait.
  2. Out of the path nothing is known of the load, and connections that clients keep to pods are never seen. So pods are
     held there, and nothing is concluded from requests that do not come before the position has been ALONE, and
     settled, for the grace to zero.
  3. It leaves the path only for a revision that is busy: requests have come for the dwell without a gap, nobody waits,
     the capacity is ample, and no fewer pods would do. An idle one stays in the path, until it is at zero.
  4. After a time out of the path it steps in to look, if fewer pods may be wanted.
  5. A request that comes right after the scale to zero may be of a client that had kept its connection to a pod, or of
     a new one: both come on a new connection. So the activator stays in the path, where connections are its own and are
     seen, for the interval between two looks; after several such zeros in a row for longer, up to `after_mistake_s`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from activator.control_plane.reconcile.traffic_wanted import Position
from activator.runtime.backoff import grown_s
from activator.runtime.clock import NEVER

ALWAYS: Final = -1  # a burst capacity
BUSY_GAP_S: Final = 2.0  # without a request, and the revision is busy no more
LOOK_S: Final = 1.0  # how often a revision in the path that has pods is looked at
LISTEN_S: Final = 1.0  # until every replica of the activator listens on a port that a slice of ours shows
DUE_MIN_S: Final = 0.02  # between two looks at a revision of which nothing is heard
MISTAKE_MIN_S: Final = 30.0  # a request so soon after the scale to zero, at the least, may be of a kept connection
MISTAKE_GROWTH: Final = 4  # by which the time in the path grows with each such zero in a row
MISTAKES_MAX: Final = 16  # The limit of the count, so that the power stays small.


class Reason(Enum):
    """Why it is where it is: a word for conditions."""

    NO_POD = "NoPod"
    STARTING = "Starting"
    LIMIT = "Limit"
    LOOKING = "Looking"
    KEPT_CONNECTIONS = "KeptConnections"
    LEAVING = "Leaving"
    AMPLE = "CapacityIsAmple"


class PathRule(NamedTuple):
    """`burst`: ALWAYS, or requests that have to fit beside those that are there; `limit`: of a pod, 0: none; `least`:
    pods that are kept without load.
    """

    burst: int
    limit: int
    settle_s: float
    dwell_s: float
    look_interval_s: float
    after_mistake_s: float
    grace_s: float
    stable_s: float
    least: int
    zero_only: bool = False


class PathSeen(NamedTuple):
    """`shown`: the position that the watches show, None: between two. `replicas`: of the target; -1: not known."""

    now_s: float
    shown: Position | None
    ready: int
    replicas: int
    wanted: int
    in_flight: int = 0
    queued: int = 0
    requests_total: int = 0


class PathState(NamedTuple):
    """What a decision leaves for the next one."""

    position: Position = Position.OUT
    reason: Reason = Reason.AMPLE
    is_held: bool = True  # no fewer pods may be decided
    since_s: float = NEVER  # the watches show the position since then
    leaving: bool = False
    requests_total: int = 0
    last_s: float = -NEVER  # when a request was last here
    busy_s: float = NEVER  # since when there was no gap without one
    fit_s: float = NEVER  # since when all that leaving requires is given
    went_out: bool = True  # clients may keep connections to pods
    zero_s: float = NEVER  # since when the target has no replicas
    listens: bool = False  # every replica of the activator does, on its port
    distrust_s: float = -NEVER  # until when it stays in the path
    mistakes: int = 0  # zeros in a row that a request has followed at once
    due_s: float = NEVER  # when to decide again though nothing has changed

    @classmethod
    def begun(cls, shown: Position | None, replicas: int, requests_total: int) -> PathState:
        """Of a Service that is found like this."""
        return cls(position=shown or Position.OUT, requests_total=requests_total, went_out=replicas != 0)


def decide(rule: PathRule, seen: PathSeen, state: PathState) -> PathState:
    """What is wanted from now on."""
    state = _with_load(rule, seen, state)
    if seen.shown is not state.position:
        state = state._replace(since_s=NEVER, fit_s=NEVER)
    elif state.since_s == NEVER:
        state = state._replace(since_s=seen.now_s)
    if not state.listens and state.since_s != NEVER:
        listens = state.position is not Position.OUT or seen.now_s >= state.since_s + LISTEN_S
        state = state._replace(listens=listens)
    state = _step(rule, seen, _fit(rule, seen, state))
    return state._replace(is_held=_is_held(rule, seen, state), due_s=_due_s(rule, seen, state))


# --- what was seen ---------------------------------------------------------------------------------------------------


def _with_load(rule: PathRule, seen: PathSeen, state: PathState) -> PathState:
    now_s = seen.now_s
    carries = seen.in_flight + seen.queued > 0
    if carries or seen.requests_total != state.requests_total:
        busy_s = now_s if state.busy_s == NEVER or now_s - state.last_s > BUSY_GAP_S else state.busy_s
        state = state._replace(last_s=now_s, busy_s=busy_s, requests_total=seen.requests_total)
        if state.zero_s != NEVER and state.went_out:
            if now_s - state.zero_s < max(rule.grace_s, MISTAKE_MIN_S):
                stays_s = grown_s(rule.look_interval_s, state.mistakes, rule.after_mistake_s, MISTAKE_GROWTH)
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
    """From when on every proxy has the position."""
    return state.since_s + rule.settle_s


def _fit(rule: PathRule, seen: PathSeen, state: PathState) -> PathState:
    """Since when it may leave the path, if all stays as it is."""
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


def _is_reducible(rule: PathRule, seen: PathSeen) -> bool:
    """Fewer pods may be wanted without load."""
    return rule.least == 0 or (not rule.zero_only and seen.replicas > rule.least)


def _no_fewer(rule: PathRule, seen: PathSeen, state: PathState) -> bool:
    """No fewer pods would do for a revision that is busy, as far as that has been seen."""
    if rule.zero_only or seen.replicas <= max(rule.least, 1):
        return True
    return seen.now_s >= _settled_s(rule, state) + rule.stable_s and seen.wanted >= seen.replicas


# --- what follows ----------------------------------------------------------------------------------------------------


def _step(rule: PathRule, seen: PathSeen, state: PathState) -> PathState:
    goal, reason, leaving = _goal(rule, seen, state)
    state = state._replace(reason=reason, leaving=leaving)
    position = state.position
    if goal is position:
        return state
    if position is Position.OUT:
        return _moved(state, Position.BESIDE) if state.since_s != NEVER and state.listens else state
    if position is Position.ALONE:
        return _moved(state, Position.BESIDE)
    # BESIDE: everybody has to know our endpoints before the pods go, and the pods before ours do.
    if seen.now_s < _settled_s(rule, state):
        return state
    return _moved(state, goal)


def _moved(state: PathState, to: Position) -> PathState:
    went_out = state.went_out or to is Position.OUT
    return state._replace(position=to, since_s=NEVER, fit_s=NEVER, went_out=went_out)


def _goal(rule: PathRule, seen: PathSeen, state: PathState) -> tuple[Position, Reason, bool]:
    """Where it is to go in the end, why, and whether it leaves."""
    if rule.burst == ALWAYS:
        return Position.ALONE, Reason.LIMIT, False
    if seen.ready == 0:
        at_zero = seen.replicas == 0
        reason = Reason.NO_POD if at_zero else Reason.STARTING
        if rule.burst > 0 or (state.position is Position.ALONE and not at_zero):
            return Position.ALONE, reason, False
        return Position.BESIDE, reason, False
    if state.position is Position.OUT:
        is_due = state.since_s != NEVER and seen.now_s >= state.since_s + rule.look_interval_s
        if is_due and _is_reducible(rule, seen):
            return Position.ALONE, Reason.LOOKING, False
        return Position.OUT, Reason.AMPLE, False
    if state.leaving:
        return Position.OUT, Reason.LEAVING, True
    if state.last_s >= state.fit_s + rule.dwell_s and _no_fewer(rule, seen, state):
        return Position.OUT, Reason.LEAVING, True
    return Position.ALONE, _in_reason(rule, seen, state), False


def _in_reason(rule: PathRule, seen: PathSeen, state: PathState) -> Reason:
    if seen.now_s < state.distrust_s:
        return Reason.KEPT_CONNECTIONS
    if rule.limit and rule.burst > 0 and seen.ready * rule.limit - seen.in_flight < rule.burst:
        return Reason.LIMIT
    return Reason.LOOKING


def _is_held(rule: PathRule, seen: PathSeen, state: PathState) -> bool:
    if seen.ready == 0 and seen.replicas == 0:
        return False
    if state.position is not Position.ALONE or state.since_s == NEVER:
        return True
    seen_s = rule.grace_s if state.last_s < state.since_s else max(rule.grace_s, rule.stable_s)
    return seen.now_s < _settled_s(rule, state) + seen_s


def _due_s(rule: PathRule, seen: PathSeen, state: PathState) -> float:
    """The earliest time at which it may decide otherwise though nothing new is seen."""
    now_s = seen.now_s
    if state.since_s == NEVER:  # the watches will tell
        return now_s + LOOK_S
    times = [now_s + LOOK_S]
    if state.position is Position.OUT:
        if seen.ready and rule.burst != ALWAYS:
            times = [state.since_s + rule.look_interval_s] if _is_reducible(rule, seen) else [NEVER]
        else:
            times = [state.since_s + LISTEN_S]
    else:
        if seen.ready == 0 and seen.replicas == 0 and (rule.burst == 0 or state.position is Position.ALONE):
            return NEVER
        settled_s = _settled_s(rule, state)
        times += [settled_s, state.fit_s + rule.dwell_s, settled_s + rule.grace_s, settled_s + rule.stable_s]
    return max(min(time_s for time_s in times if time_s > now_s or time_s == times[0]), now_s + DUE_MIN_S)
