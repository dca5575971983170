"""The composition root: the two planes, their workers, sources, addresses and the admin port put together."""

from __future__ import annotations

from activator.app.app import (
    EXIT_CUT,
    EXIT_DISPLACED,
    EXIT_FINE,
    EXIT_NOW,
    EXIT_PANICS,
    App,
)
from activator.app.settings import Settings, load, worker_count

__all__ = [
    "EXIT_CUT",
    "EXIT_DISPLACED",
    "EXIT_FINE",
    "EXIT_NOW",
    "EXIT_PANICS",
    "App",
    "Settings",
    "load",
    "worker_count",
]
