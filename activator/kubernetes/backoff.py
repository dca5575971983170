"""The pauses after failed calls to the Kubernetes API."""

from __future__ import annotations

from typing import Final

from activator.runtime.backoff import Backoff
from lb.rng import Rng

KUBE_BACKOFF_INITIAL_S: Final = 0.25
KUBE_BACKOFF_MAX_S: Final = 30.0
KUBE_WOKEN_S: Final = 1.0  # upper bound of the pause after a failed attempt at the end of an outage


def kube_backoff(rng: Rng) -> Backoff:
    """Return the backoff of one kind of call."""
    return Backoff(KUBE_BACKOFF_INITIAL_S, KUBE_BACKOFF_MAX_S, rng)
