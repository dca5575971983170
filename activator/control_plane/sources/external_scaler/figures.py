"""The figures that KEDA receives: whether a revision is active, and its load.

Rules
  1. A revision is active from its first request until ACTIVE_S have passed without one. KEDA asks every half minute,
     and must not miss requests in between.
  2. Its load is the larger of the averages over both windows, so a rise shows after seconds. KEDA and its
     HorizontalPodAutoscaler decide how fast the number of pods falls.
  3. Only revisions that KEDA has asked about have figures. A revision that does not exist may be watched; the watcher
     is woken when it is added.
"""

from __future__ import annotations

import asyncio
from typing import Final

from activator.config.model.scaling import PANIC_WINDOW_SHARE, STABLE_WINDOW_S
from activator.control_plane.scaling.windows import Windows
from activator.messages import Load
from activator.runtime.clock import Now

ACTIVE_S: Final = 60.0  # after the last request


class _RevisionLoad:
    """The figures of one revision that KEDA has asked about."""

    def __init__(self) -> None:
        self.windows: Windows | None = None  # from its first load on
        self.concurrency = 0
        self.queued = 0
        self.requests_total = -1
        self.busy_s: float | None = None  # when it last had a request


class ScalerFigures:
    """The figures of all revisions."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._concurrency: dict[str, int] = {}  # the limits of the existing revisions
        self._figures: dict[str, _RevisionLoad] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}  # the events of streams, by revision

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
        """Record the present load of a revision."""
        figures = self._figures.get(load.key)
        if figures is None:
            return
        if figures.windows is None:
            panic_s = STABLE_WINDOW_S * PANIC_WINDOW_SHARE
            figures.windows = Windows(STABLE_WINDOW_S, panic_s, load.at_s, load.request_seconds, load.requests_total)
        figures.windows.observe(load)
        figures.concurrency = load.in_flight + load.queued
        figures.queued = load.queued
        if figures.concurrency or load.requests_total != figures.requests_total:
            now_s = self._now()
            is_new = figures.busy_s is None or now_s >= figures.busy_s + ACTIVE_S
            figures.requests_total, figures.busy_s = load.requests_total, now_s
            if is_new:
                self._wake(load.key)

    def begin_figures(self, key: str) -> bool:
        """Keep figures of the revision from now on; return False if there is no such revision."""
        return self._figures_of(key) is not None

    def knows(self, key: str) -> bool:
        return key in self._concurrency

    def container_concurrency(self, key: str) -> int:
        return self._concurrency.get(key, 0)

    def active_for_s(self, key: str) -> float:
        """Return how long the revision stays active without a request, in seconds; 0: it is not active."""
        figures = self._figures_of(key)
        if figures is None or figures.busy_s is None:
            return 0.0
        now_s = self._now()
        if figures.concurrency:
            figures.busy_s = now_s
        return max(figures.busy_s + ACTIVE_S - now_s, 0.0)

    def value(self, key: str, metric: str) -> float:
        """Return the load by this metric."""
        figures = self._figures_of(key)
        if figures is None or figures.windows is None:
            return 0.0
        return max(figures.windows.averages(metric, self._now()))

    def has_queued(self, key: str) -> bool:
        """Return True if requests are queued."""
        figures = self._figures.get(key)
        return figures is not None and figures.queued > 0

    def watch(self, key: str, watcher: asyncio.Event) -> None:
        """Set this event whenever the revision is added, becomes active, or is removed."""
        self._watchers.setdefault(key, set()).add(watcher)

    def unwatch(self, key: str, watcher: asyncio.Event) -> None:
        watchers = self._watchers.get(key, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(key, None)

    def wake_all(self) -> None:
        """Wake all watchers."""
        for key in self._watchers:
            self._wake(key)

    def _wake(self, key: str) -> None:
        for watcher in self._watchers.get(key, ()):
            watcher.set()

    def _figures_of(self, key: str) -> _RevisionLoad | None:
        if key not in self._concurrency:
            return None
        return self._figures.setdefault(key, _RevisionLoad())
