"""Spans on their way out, in a thread of their own: what waits is bounded, and the loop is hardly disturbed.

Rules
  1. The loop hands over bytes that are encoded already; the thread wakes now and then, and makes one call of many. It
     needs the interpreter for about 1 ms a call, however many spans are in it.
  2. What does not fit is dropped, a trace at a time, and counted; a collector that is away costs nothing else.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Event, Thread
from typing import Final, Protocol

from activator.telemetry.tracing.span_bytes import Envelope

TRACE_SPANS_MAX: Final = 8_192  # waiting to be sent, some 200 bytes each; more are dropped and counted
TRACE_BATCH_SPANS: Final = 2_048  # sent at once, …
TRACE_DELAY_S: Final = 1.0  # … or so long after the last time, unless OpenTelemetry's variables say otherwise

log = logging.getLogger("activator.tracing")


class SpanClient(Protocol):
    """Takes bodies to a collector."""

    def post(self, body: bytes) -> bool:
        """Blocks; whether it was taken. Never raises."""

    def hurry(self) -> None:
        """From another thread: do not wait between attempts any more."""

    def close(self) -> None: ...


class SpanSender:
    """`spans_max`: so many wait at most; `batch_spans`: so many go at once, and the rest of a trace; `delay_s`: so long
    they wait where they are fewer.
    """

    def __init__(
        self,
        client: SpanClient,
        envelope: Envelope,
        spans_max: int = TRACE_SPANS_MAX,
        batch_spans: int = TRACE_BATCH_SPANS,
        delay_s: float = TRACE_DELAY_S,
    ) -> None:
        self._client = client
        self._envelope = envelope
        self._spans_max = spans_max
        self._batch_spans = batch_spans
        self._delay_s = delay_s
        self._waiting: deque[tuple[bytes, int]] = deque()
        # Each is written by one of the two threads only, so none needs a lock.
        self._given_total = 0
        self.dropped_total = 0
        self.sent_total = 0
        self.failed_total = 0
        self._awake = Event()
        self._closing = False
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def give(self, spans: bytes, count: int) -> bool:
        """Those of one trace; False: they are dropped. Never blocks."""
        waiting = self._given_total - self.sent_total - self.failed_total + count
        if waiting > self._spans_max or self._closing:
            self.dropped_total += count
            return False
        self._given_total += count
        self._waiting.append((spans, count))
        if waiting >= self._batch_spans and not self._awake.is_set():
            self._awake.set()
        return True

    def close(self) -> None:
        """Send what waits; blocks."""
        self._closing = True
        self._client.hurry()
        self._awake.set()
        self._thread.join()

    # --- in the thread ---

    def _run(self) -> None:
        while not self._closing:
            self._awake.wait(self._delay_s)
            self._awake.clear()
            self._send_all()
        self._send_all()
        self._client.close()

    def _send_all(self) -> None:
        while self._waiting:
            batch: list[bytes] = []
            size = 0
            while self._waiting and size < self._batch_spans:
                spans, count = self._waiting.popleft()
                batch.append(spans)
                size += count
            if self._taken(batch):
                self.sent_total += size
            else:
                self.failed_total += size

    def _taken(self, batch: list[bytes]) -> bool:
        try:
            return self._client.post(self._envelope.around(batch))
        except Exception:  # a defect; without its thread nothing would ever be sent again
            log.exception("spans could not be sent")
            return False
