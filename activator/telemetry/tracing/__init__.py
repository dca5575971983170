"""Spans of requests, made from their timestamps when they have ended (docs/tracing.md)."""
