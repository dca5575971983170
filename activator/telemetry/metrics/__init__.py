"""Metrics, read from plain counters when they are asked for (docs/metrics.md)."""
