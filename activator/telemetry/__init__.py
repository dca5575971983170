"""Telemetry: metrics, traces, the access log, and the program's own log."""
