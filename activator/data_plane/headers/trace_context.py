"""The sampling of traces, and the W3C trace context for pods (https://www.w3.org/TR/trace-context/).

Rules
  1. A request that is not traced costs the check of one attribute and a random draw, and is forwarded unchanged:
     traceparent, tracestate and baggage stay as they are.
  2. A valid traceparent of the client decides if the request is traced; without one, a random draw decides. A rate of 1
     traces everything and a rate of 0 nothing, regardless of clients.
  3. A traced request gets spans of the activator: the pod's parent is the span of the request to the pod, and
     tracestate is kept. An invalid traceparent is removed together with its tracestate.
  4. This module is independent of the SDK; spans are created after the end of a request (telemetry/tracing/spans.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from activator.codec.message import RequestHead
from activator.data_plane.headers.edits import HeadEdits
from lb.rng import Rng

_DRAWS: Final = 1 << 30
_TRACE_FIELDS: Final = frozenset({b"traceparent", b"tracestate"})
_HEX: Final = b"0123456789abcdef"
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
_SPAN_ID_BYTES: Final = 32  # random bytes for four span ids
_LENGTH: Final = 55  # version 00: 00-<32 digits>-<16 digits>-<2 digits>


@final
class TraceContext:
    """The trace context of one traced request; ids are lower-case hexadecimal digits."""

    def __init__(self, trace_id: str, parent_id: str, random: bytes) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id  # the client's span; empty: the trace begins here
        self.server_id = random[:8].hex()  # the activator's span, from arrival to end
        self.proxy_id = random[8:16].hex()  # the span of the request to the pod
        self.more_ids = random[16:]  # for two more spans that are not propagated; raw bytes

    def edit(self, edits: HeadEdits) -> None:
        """Set the span of the request to the pod as the parent of the pod's spans."""
        if not self.parent_id:
            edits.remove(_TRACE_FIELDS)
        edits.set(b"traceparent", f"00-{self.trace_id}-{self.proxy_id}-01".encode())


@final
class Sampler:
    """The sampler of traces. `rate`: the share of requests without a traceparent; `entropy` returns random bytes."""

    def __init__(self, rate: float, rng: Rng, entropy: Callable[[int], bytes]) -> None:
        self._all: bool = rate >= 1.0
        self._none: bool = rate <= 0.0
        self._threshold: int = int(rate * _DRAWS)  # draws below it are sampled
        self._rng = rng
        self._entropy = entropy

    def draw(self) -> bool:
        """Return True if a trace without a parent is sampled."""
        return self._all or (not self._none and self._rng.below(_DRAWS) < self._threshold)

    def begin(self, head: RequestHead) -> TraceContext | None:
        """Return the context of a request; None if it is not traced."""
        line = head.traceparent
        if not line:
            return self._new_trace() if self.draw() else None
        traceparent = line[line.index(b":") + 1 :].strip(b" \t")
        if not is_traceparent(traceparent):
            return self._new_trace() if self.draw() else None
        if self._none or not (self._all or is_sampled(traceparent)):
            return None
        return TraceContext(traceparent[3:35].decode(), traceparent[36:52].decode(), self._entropy(_SPAN_ID_BYTES))

    def new_id(self, size: int) -> bytes:
        """Return a random id of `size` bytes."""
        return self._entropy(size)

    def _new_trace(self) -> TraceContext:
        random = self._entropy(16 + _SPAN_ID_BYTES)
        return TraceContext(random[:16].hex(), "", random[16:])


def is_traceparent(value: bytes) -> bool:
    """Return True if the value is valid in its version; later versions may be longer."""
    size = len(value)
    if size < _LENGTH or value[2:3] != b"-" or value[35:36] != b"-" or value[52:53] != b"-":
        return False
    version = value[:2]
    if version == b"ff" or (size > _LENGTH and (version == b"00" or value[_LENGTH : _LENGTH + 1] != b"-")):
        return False
    digits = version + value[3:35] + value[36:52] + value[53:55]
    return not digits.translate(None, _HEX) and value[3:35] != _NO_TRACE and value[36:52] != _NO_SPAN


def is_sampled(traceparent: bytes) -> bool:
    """Return True if the sampled flag is set in the last byte."""
    return bool(int(traceparent[53:55], 16) & 1)


def trace_id_of(traceparent: bytes) -> str:
    """Return the trace id; "" if the value is invalid."""
    return traceparent[3:35].decode() if is_traceparent(traceparent) else ""
