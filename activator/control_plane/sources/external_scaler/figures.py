"""What KEDA is told of revisions: whether one is active, and its load.

Rules
  1. A revision is active from its first request until ACTIVE_S have passed without one: KEDA asks every half minute,
     and what came and went in between must not be missed.
  2. Its load is the greater of the averages over both windows: a rise is seen after seconds, and how fast the number of
     pods falls is decided by KEDA and its HorizontalPodAutoscaler.
  3. There are figures only of revisions that were asked about. A revision that is not there may be watched: whoever
     does is woken when it comes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from activator.config.model.scaling import PANIC_WINDOW_SHARE, STABLE_WINDOW_S
from activator.control_plane.scaling.windows import Windows
from activator.messages import Load
from activator.runtime.clock import Now

ACTIVE_S: Final = 60.0  # after the last request


class _Figures:
    """Of one revision that was asked about."""

    def __init__(self) -> None:
        self.windows: Windows | None = None  # from its first load on
        self.here = 0
        self.queued = 0
        self.requests_total = -1
        self.busy_s: float | None = None  # when it last had a request


class ScalerFigures:
    """Of all revisions."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._concurrency: dict[str, int] = {}  # the limits of the revisions that there are
        self._figures: dict[str, _Figures] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}  # of streams, by the revision that they are about

    def set_revision(self, key: str, container_concurrency: int) -> None:
        is_new = key not in self._concurrency
        self._concurrency[key] = container_concurrency
        if is_new:
            self._wake(key)

    def drop_revision(self, key: str) -> None:
        self._concurrency.pop(key, None)
        self._figures.pop(key, None)
        self._wake(key)

    def load(self, load: Load) -> None:
        """A revision's load now."""
        figures = self._figures.get(load.key)
        if figures is None:
            return
        if figures.windows is None:
            panic_s = STABLE_WINDOW_S * PANIC_WINDOW_SHARE
            figures.windows = Windows(STABLE_WINDOW_S, panic_s, load.at_s, load.request_seconds, load.requests_total)
        figures.windows.observe(load)
        figures.here = load.in_flight + load.queued
        figures.queued = load.queued
        if figures.here or load.requests_total != figures.requests_total:
            now_s = self._now()
            is_new = figures.busy_s is None or now_s >= figures.busy_s + ACTIVE_S
            figures.requests_total, figures.busy_s = load.requests_total, now_s
            if is_new:
                self._wake(load.key)

    def ask(self, key: str) -> bool:
        """Whether there is such a revision; from now on there are figures of it."""
        return self._of(key) is not None

    def knows(self, key: str) -> bool:
        return key in self._concurrency

    def container_concurrency(self, key: str) -> int:
        return self._concurrency.get(key, 0)

    def active_for_s(self, key: str) -> float:
        """How long it will be active if no request comes; 0: it is not."""
        figures = self._of(key)
        if figures is None or figures.busy_s is None:
            return 0.0
        now_s = self._now()
        if figures.here:
            figures.busy_s = now_s
        return max(figures.busy_s + ACTIVE_S - now_s, 0.0)

    def value(self, key: str, metric: str) -> float:
        """The load, by this metric."""
        figures = self._of(key)
        if figures is None or figures.windows is None:
            return 0.0
        return max(figures.windows.averages(metric, self._now()))

    def waits(self, key: str) -> bool:
        """Whether requests are in line."""
        figures = self._figures.get(key)
        return figures is not None and figures.queued > 0

    def watch(self, key: str, watcher: asyncio.Event) -> None:
        """Set this event whenever the revision comes, has requests, or goes."""
        self._watchers.setdefault(key, set()).add(watcher)

    def unwatch(self, key: str, watcher: asyncio.Event) -> None:
        watchers = self._watchers.get(key, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(key, None)

    def wake_all(self) -> None:
        """All that watch, whatever for."""
        for key in self._watchers:
            self._wake(key)

    def _wake(self, key: str) -> None:
        for watcher in self._watchers.get(key, ()):
            watcher.set()

    def _of(self, key: str) -> _Figures | None:
        if key not in self._concurrency:
            return None
        return self._figures.setdefault(key, _Figures())
