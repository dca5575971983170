"""Throttlers as the exposition sees them: by the statistics that a data plane sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from activator.config.specs import RevisionSpec
from activator.data_plane import statistics
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import RevisionStatistics
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from tests.data_plane.throttle.throttle_fakes import Heard
from tests.manual_clock import ManualClock

_INCARNATIONS = count(1)


def read_from(throttlers: Mapping[str, RevisionThrottler]) -> Callable[[], Iterable[RevisionStatistics]]:
    """What there is when the first is asked for."""
    return lambda: map(statistics.revision, list(throttlers.values()))


def of_world(throttler: RevisionThrottler) -> Callable[[], Iterable[RevisionStatistics]]:
    """One revision."""
    return read_from({throttler.key: throttler})


def a_throttler(key: str, requests: int = 0) -> RevisionThrottler:
    """That has carried so many requests, of 2 ms each."""
    clock = ManualClock()
    table = TrackerTable(create("round-robin", Rng(1)), 8, 0.5)
    throttler = RevisionThrottler(RevisionSpec(key=key), table, clock.now, clock.defer, Heard(), 256, HeldBudget())
    throttler.incarnation = next(_INCARNATIONS)
    throttler.counters.requests_total = requests
    for _ in range(requests):
        throttler.counters.traffic.duration.observe(0.002)
    return throttler


def throttlers(number: int, requests: int = 0) -> dict[str, RevisionThrottler]:
    """Of `ns/r0`, `ns/r1` and so on."""
    return {key: a_throttler(key, requests) for key in (f"ns/r{place}" for place in range(number))}
