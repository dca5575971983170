"""What a turn of load came to, with whatever a test wants to be otherwise."""

from __future__ import annotations

import msgspec

from bench.generator import Summary

FINE = Summary(
    requests=1000,
    duration_us=1_000_000,
    bytes=1,
    p50_us=1500,
    p99_us=2500,
    connect=0,
    read=0,
    write=0,
    status=0,
    timeout=0,
)


def summary(**changes: int) -> Summary:
    """A thousand requests in one second, none of which failed, but for `changes`."""
    return msgspec.structs.replace(FINE, **changes)
