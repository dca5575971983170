"""The autoscaler: decides when each revision needs another number of pods, from its loads and its ready pods.

Rules
  1. A revision with requests, or with more pods than its minimum, is *awake*: it is decided on every
     SCALING_INTERVAL_S, and at once when its first request arrives or, with `burst`, when it has more requests than its
     pods are meant for. All others sleep: a tick does not check them, and they have no windows.
  2. A scheduled minimum wakes its revision at the time of its next change.
  3. A changed rule takes effect at once. The windows are kept and resized.
  4. `scale` is called when the number changes, and never with the same number twice in a row.
  5. The last decision of each revision is kept, and the last one that changed the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from activator.config.model.scaling import METRIC_CONCURRENCY
from activator.control_plane.scaling.decision import Decision, ScalingState, decide
from activator.control_plane.scaling.explanation import ScalingReason
from activator.control_plane.scaling.observation import Observation
from activator.control_plane.scaling.rule import ScalingRule
from activator.control_plane.scaling.schedule import minimum_at, next_change_s
from activator.control_plane.scaling.windows import Windows
from activator.messages import Load
from activator.runtime.clock import NEVER, Now
from activator.runtime.schedule import Schedule

SCALING_INTERVAL_S: Final = 2.0  # between two decisions about one revision, as in Knative: rates are per decision
HOLD_START_S: Final = 600.0  # how long a pod that an operator keeps may take to be ready before its time counts

Scale = Callable[[str, Decision], None]


class LastDecision(NamedTuple):
    """The last decisions on the scale of one revision."""

    key: str
    decision: Decision
    changed: Decision | None  # the last one that changed the number
    is_awake: bool


class HandedScale(msgspec.Struct, frozen=True, array_like=True):
    """The commands of operators on one revision, for another process of the activator: to keep a pod, or to unload."""

    key: str
    held_for_s: float
    held_until_s: float
    is_released: bool
    is_initialized: bool


class _Revision:
    """One revision; without `windows` it sleeps."""

    __slots__ = (
        "burst_over", "busy", "busy_s", "changed", "decision", "due_s", "held_for_s", "held_until_s", "in_flight",
        "is_fresh", "is_released", "kept", "queued", "ready", "requests_total", "rule", "state",
        "users", "windows",
    )  # fmt: skip

    def __init__(self, rule: ScalingRule, state: ScalingState, ready: int) -> None:
        self.rule = rule
        self.state = state
        self.ready = ready
        self.windows: Windows | None = None
        self.in_flight = 0
        self.queued = 0
        self.requests_total = 0
        self.busy_s = state.begun_s  # when it last had a request
        self.busy = 0  # pods that work without a request
        self.users = 0  # revisions that depend on it and want a pod
        self.due_s = 0.0  # the next decision, while it is awake
        self.burst_over = NEVER  # more requests than this are decided on at once
        self.held_for_s = 0.0  # how long an operator keeps a pod, from when it is ready
        self.held_until_s = 0.0  # until when an operator keeps a pod
        self.is_released = False  # an operator has unloaded it: requests in flight end with their pods
        self.is_fresh = True  # neither a load nor a number of pods has been recorded
        self.kept = 0  # pods that the last decision wants without a request
        self.decision: Decision | None = None
        self.changed: Decision | None = None

    @property
    def carried(self) -> int:
        """The number of requests in flight and in the queue."""
        return self.in_flight + self.queued

    def floor(self, scheduled: int) -> int:
        """Return the least number of pods without load."""
        initial = 0 if self.state.is_initialized else self.rule.initial_scale
        return max(self.rule.min, scheduled, initial)


class Autoscaler:
    """The autoscaler of all revisions.

    `now` returns monotonic, `wall_clock` Unix seconds. `scale(key, decision)` sets the number of pods and does not
    wait. `kept_changed(key, count)` reports how many are wanted without a request.
    """

    def __init__(
        self, now: Now, wall_clock: Now, scale: Scale, kept_changed: Callable[[str, int], None] | None = None
    ) -> None:
        self._now = now
        self._wall_clock = wall_clock
        self._scale = scale
        self._kept_changed = kept_changed
        self._revisions: dict[str, _Revision] = {}
        self._awake: dict[str, _Revision] = {}
        self._restored: dict[str, HandedScale] = {}  # from a former process, until the revision is set
        self._schedule_changes: Schedule[str] = Schedule()  # when a revision's schedule may change, by the wall clock
        self.decision_totals: dict[ScalingReason, int] = dict.fromkeys(ScalingReason, 0)

    # --- inputs ---

    def set_revision(self, key: str, rule: ScalingRule, ready: int = 0, is_taken_over: bool = False) -> None:
        """Add a revision of which `ready` pods run already, or change its rule, with effect at once.

        `is_taken_over`: another component has decided on it before, so its initial scale does not apply.
        """
        revision = self._revisions.get(key)
        if revision is None:
            state = ScalingState.begun(self._now(), ready)
            former = self._restored.pop(key, None)
            is_known = is_taken_over or (former is not None and former.is_initialized)
            state = state._replace(is_initialized=state.is_initialized or is_known)
            revision = self._revisions[key] = _Revision(rule, state, ready)
            if former is not None:
                revision.held_for_s, revision.held_until_s = former.held_for_s, former.held_until_s
                revision.is_released = former.is_released
        elif revision.rule == rule:
            return
        else:
            revision.rule = rule
            if revision.windows is not None:
                revision.windows.resize(rule.stable_window_s, rule.panic_window_s)
        self._plan_schedule_change(key, revision)
        self._decide(key, revision)

    def handed(self) -> tuple[HandedScale, ...]:
        """Return the commands of operators, for another process of the activator."""
        return tuple([
            HandedScale(key, one.held_for_s, one.held_until_s, one.is_released, one.state.is_initialized)
            for key, one in self._revisions.items()
        ])  # fmt: skip

    def restore(self, scales: Iterable[HandedScale]) -> None:
        """Take over the commands from a former process; each takes effect when its revision is set."""
        self._restored = {scale.key: scale for scale in scales}

    def drop_revision(self, key: str) -> None:
        """Forget the revision, which was removed; `scale` is not called for it any more."""
        self._revisions.pop(key, None)
        self._awake.pop(key, None)
        self._schedule_changes.cancel(key)

    def load(self, load: Load) -> None:
        """Record the present load of a revision."""
        revision = self._revisions.get(load.key)
        if revision is None:
            return
        if revision.is_released:
            if not load.queued:
                if load.in_flight or load.requests_total != revision.requests_total:
                    revision.busy_s = self._now()
                revision.requests_total = load.requests_total
                if revision.queued:
                    self._stop_counting_requests(revision)
                    self._decide(load.key, revision)
                return
            revision.is_released = False
        carried = load.in_flight + load.queued
        revision.in_flight, revision.queued = load.in_flight, load.queued
        windows = revision.windows
        if windows is None:
            if not carried and load.requests_total == revision.requests_total:
                return
            windows = self._wake(load, revision)
        if carried or load.requests_total != revision.requests_total:
            revision.busy_s = self._now()
            revision.requests_total = load.requests_total
        revision.is_fresh = False
        windows.observe(load)
        if not carried:  # its last request may have ended within an interval
            revision.due_s = min(revision.due_s, revision.busy_s + revision.rule.scale_to_zero_grace_s)
        if carried > revision.burst_over:
            self._decide(load.key, revision)

    def ready(self, key: str, count: int) -> None:
        """Record how many pods are ready. The first count of a new revision is that of its running pods."""
        revision = self._revisions.get(key)
        if revision is None or count == revision.ready:
            return
        now_s = self._now()
        if revision.ready == 0 and now_s < revision.held_until_s:
            revision.held_until_s = now_s + revision.held_for_s
        if count > revision.ready:
            revision.is_released = False  # its requests are no longer only those of leaving pods
        revision.ready = count
        if revision.is_fresh and count > revision.state.wanted:
            revision.state = ScalingState.begun(self._now(), count)
            self._decide(key, revision)
        revision.is_fresh = False

    def busy(self, key: str, count: int) -> None:
        """Record how many pods report work without a request; they are needed until they report none.

        The grace before zero begins with the last such report.
        """
        revision = self._revisions.get(key)
        if revision is None:
            return
        if count or revision.busy:
            revision.busy_s = self._now()
        if count != revision.busy:
            revision.busy = count
            self._decide(key, revision)

    def needed(self, key: str, users: int) -> None:
        """Record how many revisions depend on this one and want a pod: it is kept while there is one.

        The grace before zero begins when there is none any more.
        """
        revision = self._revisions.get(key)
        if revision is None or users == revision.users:
            return
        if users > revision.users:
            revision.is_released = False
        revision.busy_s = self._now()
        revision.users = users
        self._decide(key, revision)

    def touched(self, key: str, ago_s: float) -> None:
        """Record a pod's report of its last activity `ago_s` seconds ago; it counts like a request at that time."""
        revision = self._revisions.get(key)
        if revision is not None:
            revision.busy_s = max(revision.busy_s, self._now() - ago_s)

    def has_requests(self, key: str) -> bool:
        """Return True if the revision has a request in flight or in its queue."""
        revision = self._revisions.get(key)
        return revision is not None and revision.carried > 0

    def keep_for_operator(self, key: str, seconds: float | None) -> bool:
        """Keep a pod for `seconds` from when it is ready, because an operator wants it.

        `seconds` None: for the grace before zero. Return False if there is no such revision.
        """
        revision = self._revisions.get(key)
        if revision is None:
            return False
        revision.is_released = False
        held_for_s = revision.rule.scale_to_zero_grace_s if seconds is None else seconds
        revision.held_for_s = held_for_s
        start_s = HOLD_START_S if revision.ready == 0 else 0.0
        revision.held_until_s = self._now() + max(held_for_s, start_s)
        self._decide(key, revision)
        return True

    def unload(self, key: str) -> None:
        """Unload the revision: from now on only a queued request calls for a pod.

        Requests in flight end with the pods that leave, and the loads that report them call for no other pod. A queued
        request of the last load may have been served since, so the next load decides.
        """
        revision = self._revisions.get(key)
        if revision is not None:
            revision.held_until_s = 0.0
            revision.is_released = True
            if not revision.queued:
                self._stop_counting_requests(revision)
            self._decide(key, revision)

    def _stop_counting_requests(self, revision: _Revision) -> None:
        """Forget the counted requests, which the pods that leave finish; the initial scale is over, too."""
        revision.in_flight = revision.queued = 0
        revision.state = revision.state._replace(is_initialized=True)

    def minimum(self, key: str) -> int | None:
        """Return the least number of pods at this hour, without load; None: there is no such revision."""
        revision = self._revisions.get(key)
        if revision is None:
            return None
        scheduled = minimum_at(revision.rule.schedule, self._wall_clock()) if revision.rule.schedule else 0
        return max(revision.rule.min, scheduled)

    def tick(self) -> None:
        """Decide on each revision that is due; call it several times in SCALING_INTERVAL_S."""
        if self._schedule_changes:
            self._decide_scheduled()
        if not self._awake:
            return
        now_s = self._now()
        for key, revision in list(self._awake.items()):
            if revision.due_s <= now_s:
                revision.due_s = now_s + SCALING_INTERVAL_S  # first, so that an exception does not block others
                self._decide(key, revision)

    # --- decisions ---

    def decision(self, key: str) -> Decision | None:
        """Return the last decision; its `seen.now_s` is the time at which it was made."""
        revision = self._revisions.get(key)
        return None if revision is None else revision.decision

    def shown(self, key: str) -> LastDecision | None:
        """Return the last decisions for `/debug/revisions`."""
        revision = self._revisions.get(key)
        return None if revision is None else self._shown(key, revision)

    def all_shown(self) -> Iterator[LastDecision]:
        """Yield the last decisions of every revision."""
        for key, revision in self._revisions.items():
            shown = self._shown(key, revision)
            if shown is not None:
                yield shown

    def awake(self) -> int:
        """Return how many revisions a tick checks."""
        return len(self._awake)

    # --- within ---

    def _shown(self, key: str, revision: _Revision) -> LastDecision | None:
        if revision.decision is None:
            return None
        return LastDecision(key, revision.decision, revision.changed, key in self._awake)

    def _wake(self, load: Load, revision: _Revision) -> Windows:
        """Give the revision windows that begin with this load; ticks check it from now on."""
        rule = revision.rule
        revision.windows = Windows(
            rule.stable_window_s, rule.panic_window_s, load.at_s, load.request_seconds, revision.requests_total
        )
        self._awake[load.key] = revision
        revision.due_s = 0.0
        return revision.windows

    def _decide(self, key: str, revision: _Revision) -> None:
        """Decide on the revision now; report its number if that has changed."""
        now_s = self._now()
        rule = revision.rule
        scheduled = minimum_at(rule.schedule, self._wall_clock()) if rule.schedule else 0
        decision = decide(rule, self._observation(revision, now_s, scheduled), revision.state)
        revision.decision = decision
        revision.state = decision.state
        self.decision_totals[decision.reason] += 1
        self._plan_next_decision(key, revision, decision, scheduled)
        if decision.kept != revision.kept:
            revision.kept = decision.kept
            if self._kept_changed is not None:
                self._kept_changed(key, decision.kept)
        if decision.wanted != decision.before:
            revision.changed = decision
            self._scale(key, decision)

    def _observation(self, revision: _Revision, now_s: float, scheduled: int) -> Observation:
        """Return the figures of the revision at this time."""
        rule, windows = revision.rule, revision.windows
        stable = panic = 0.0
        peak = 0
        if windows is not None:
            stable, panic = windows.averages(rule.metric, now_s)
            peak = windows.peak(now_s)
        idle_s = 0.0 if revision.carried else max(now_s - revision.busy_s, 0.0)
        if not revision.carried and now_s >= revision.busy_s + rule.scale_to_zero_grace_s:
            idle_s = max(idle_s, rule.scale_to_zero_grace_s)  # so that the rounding does not delay it
        if revision.busy:
            idle_s = 0.0
        # If an operator wants no pod, pods that report work leave too.
        busy = 0 if revision.is_released else revision.busy
        held = 1 if now_s < revision.held_until_s else 0
        return Observation(
            now_s,
            stable,
            panic,
            revision.in_flight,
            revision.queued,
            peak,
            revision.ready,
            idle_s,
            scheduled,
            held,
            busy,
            revision.users,
            revision.is_released,
        )

    def _plan_next_decision(self, key: str, revision: _Revision, decision: Decision, scheduled: int) -> None:
        """Plan the next decision, or let the revision sleep."""
        rule, seen = revision.rule, decision.seen
        is_used = seen.carried or seen.held or seen.busy or seen.users
        if not is_used and decision.wanted == revision.floor(scheduled):
            is_done = decision.wanted == 0 or seen.idle_s >= max(rule.stable_window_s, rule.scale_to_zero_grace_s)
            if is_done and revision.state.is_initialized:
                self._sleep(key, revision)
                return
        self._awake[key] = revision
        revision.due_s = seen.now_s + SCALING_INTERVAL_S
        grace_over_s = revision.busy_s + rule.scale_to_zero_grace_s
        if not seen.carried and grace_over_s > seen.now_s:
            revision.due_s = min(revision.due_s, grace_over_s)
        if seen.held:
            revision.due_s = min(revision.due_s, revision.held_until_s)
        zero_s = revision.state.zero_s
        if zero_s is not None and zero_s + rule.last_pod_retention_s > seen.now_s:
            revision.due_s = min(revision.due_s, zero_s + rule.last_pod_retention_s)
        revision.burst_over = self._burst_over(rule, decision)

    def _burst_over(self, rule: ScalingRule, decision: Decision) -> float:
        """Return the number of requests above which a load is decided on at once."""
        if decision.wanted == 0:
            return 0.0
        if not rule.burst or rule.metric != METRIC_CONCURRENCY or 0 < rule.max <= decision.wanted:
            return NEVER
        if decision.reason is ScalingReason.RATE_LIMITED_UP:
            return NEVER  # until the next interval
        return decision.wanted * rule.effective_target

    def _sleep(self, key: str, revision: _Revision) -> None:
        """Drop the windows of a revision; a tick no longer checks it."""
        state = revision.state
        revision.state = ScalingState(state.wanted, state.begun_s, is_initialized=True)
        revision.windows = None
        revision.burst_over = 0.0  # the first request is decided on at once
        self._awake.pop(key, None)

    def _plan_schedule_change(self, key: str, revision: _Revision) -> None:
        if revision.rule.schedule:
            self._schedule_changes.plan(key, next_change_s(revision.rule.schedule, self._wall_clock()))
        else:
            self._schedule_changes.cancel(key)

    def _decide_scheduled(self) -> None:
        wall_s = self._wall_clock()
        while (key := self._schedule_changes.pop(wall_s)) is not None:
            revision = self._revisions[key]
            self._plan_schedule_change(key, revision)
            self._decide(key, revision)
