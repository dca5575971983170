"""Spans of requests, made of their timestamps when they have ended (docs/tracing.md)."""
