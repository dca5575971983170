"""Metrics, read from plain counters on request (docs/metrics.md)."""

from typing import Final

METRICS_REVISIONS_MAX: Final = 1_000  # revisions that /metrics shows by name; the others are aggregated
