"""How many local processes a revision should have, by its load: more at once, fewer only after a while.

    wanted = min(max_scale, ceil((in flight + queued) / target)), counting processes that are starting

Up as soon as a load asks for more (the first request is reported at once, so 0 → 1 waits for nothing). From n to fewer
when `SCALE_DOWN_WINDOW_S` has not asked for more. To zero (or `min_scale`) after `idle` without requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

import msgspec

from activator.config.model import Revision
from activator.config.specs import resolve_process
from activator.messages import Load
from activator.runtime.clock import Now

SCALE_DOWN_WINDOW_S: Final = 10.0  # from n to fewer: the most that was wanted in this window stays


class ScaleRule(msgspec.Struct, frozen=True):
    """Resolved: nothing here is 0 for "unset" any more."""

    min_scale: int
    max_scale: int
    target: int
    idle_s: float
    window_s: float


def rule_of(revision: Revision) -> ScaleRule:
    """The rule of a revision that is run by processes."""
    process = resolve_process(revision)
    idle_s = float(process.idle)
    return ScaleRule(
        min_scale=process.min_scale,
        max_scale=process.max_scale,
        target=process.target_concurrency,
        idle_s=idle_s,
        window_s=min(SCALE_DOWN_WINDOW_S, idle_s),
    )


class _Scale:
    """One revision's figures."""

    def __init__(self, rule: ScaleRule, now_s: float) -> None:
        self.rule = rule
        self.carried = 0  # in flight and queued, as last reported
        self.requests_total = 0
        self.busy_s = now_s  # when it last carried something
        self.wanted = 0
        self.asked: deque[tuple[float, int]] = deque()  # (when, how many) within the window, falling

    def desired(self) -> int:
        return min(self.rule.max_scale, max(self.rule.min_scale, ceil(self.carried / self.rule.target)))

    def most_asked(self, now_s: float) -> int:
        """The most that was asked for within the window; O(1) amortised."""
        desired = self.desired()
        while self.asked and self.asked[-1][1] <= desired:
            self.asked.pop()
        self.asked.append((now_s, desired))
        while self.asked[0][0] < now_s - self.rule.window_s:
            self.asked.popleft()
        return self.asked[0][1]


class LocalAutoscaler:
    """`scale(key, wanted)` is the process supervisor's."""

    def __init__(self, now: Now, scale: Callable[[str, int], None]) -> None:
        self._now = now
        self._scale = scale
        self._revisions: dict[str, _Scale] = {}
        self._awake: dict[str, _Scale] = {}  # that carry something or have processes

    def set_revision(self, key: str, revision: Revision) -> None:
        """A new or changed rule; takes effect at once."""
        rule = rule_of(revision)
        scale = self._revisions.get(key)
        if scale is None:
            scale = self._revisions[key] = _Scale(rule, self._now())
        scale.rule = rule
        wanted = min(max(scale.wanted, rule.min_scale), rule.max_scale)
        if wanted != scale.wanted:
            self._set(key, scale, wanted)

    def drop_revision(self, key: str) -> None:
        self._revisions.pop(key, None)
        self._awake.pop(key, None)

    def load(self, load: Load) -> None:
        """A revision's load now."""
        scale = self._revisions.get(load.key)
        if scale is None:
            return
        now_s = self._now()
        scale.carried = load.in_flight + load.queued
        if scale.carried or load.requests_total != scale.requests_total:
            scale.busy_s = now_s
            scale.requests_total = load.requests_total
        desired = scale.desired()
        if scale.carried and desired > scale.wanted:
            scale.most_asked(now_s)
            self._set(load.key, scale, desired)

    def tick(self) -> None:
        """Find the revisions that may have fewer processes."""
        now_s = self._now()
        for key, scale in list(self._awake.items()):
            most = scale.most_asked(now_s)
            if now_s - scale.busy_s >= scale.rule.idle_s and scale.carried == 0:
                wanted = scale.rule.min_scale
            else:
                wanted = max(most, 1)
            if wanted < scale.wanted:
                self._set(key, scale, wanted)

    def _set(self, key: str, scale: _Scale, wanted: int) -> None:
        scale.wanted = wanted
        if wanted > scale.rule.min_scale or scale.carried:
            self._awake[key] = scale
        else:
            self._awake.pop(key, None)
        self._scale(key, wanted)
