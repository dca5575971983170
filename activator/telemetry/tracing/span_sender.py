"""The sender of spans: a bounded queue and a thread, which takes little time from the loop.

Rules
  1. The loop queues encoded spans; the thread wakes periodically and sends them in one call, whose body it joins from
     them. A call holds the interpreter for about 1 ms, whatever the number of spans.
  2. If the queue is full, whole traces are dropped and counted; an unreachable collector has no other effect.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from activator.telemetry.tracing.span_messages import Envelope  # needs the packages of the extra

TRACE_SPANS_MAX: Final = 8_192  # spans in the queue, some 200 bytes each; more are dropped and counted
TRACE_BATCH_SPANS: Final = 2_048  # as many spans in the queue are sent at once
TRACE_DELAY_S: Final = 1.0  # the delay before fewer spans are sent, unless OpenTelemetry's variables set it

log = logging.getLogger("activator.tracing")


class SpanClient(Protocol):
    """The client of a collector."""

    def post(self, body: bytes) -> bool:
        """Send a body, and block. Return True if it was accepted. Never raises."""

    def expedite(self) -> None:
        """Do not wait between attempts any more. May be called from another thread."""

    def close(self) -> None: ...


class SpanSender:
    """The queue of spans, and the thread that sends them.

    At most `spans_max` spans are queued. A batch has at least `batch_spans` spans, rounded up to whole traces; fewer
    are sent after `delay_s` seconds.
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
        self._waiting: deque[tuple[bytes, int]] = deque()  # the encoded spans of a trace, and their number
        # Each counter is written by only one of the two threads, so none needs a lock.
        self._given_total = 0
        self.dropped_total = 0
        self.sent_total = 0
        self.failed_total = 0
        self._awake = Event()
        self._closing = False
        self._thread = Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def give(self, spans: bytes, count: int) -> bool:
        """Queue the `count` encoded spans of one trace. Return False if they were dropped. Never blocks."""
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
        """Send the queued spans, and block until it is done."""
        self._closing = True
        self._client.expedite()
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
        """Send all queued spans, in batches."""
        while self._waiting:
            batch: list[bytes] = []
            size = 0
            while self._waiting and size < self._batch_spans:
                spans, count = self._waiting.popleft()
                batch.append(spans)
                size += count
            if self._post(batch):
                self.sent_total += size
            else:
                self.failed_total += size

    def _post(self, batch: list[bytes]) -> bool:
        """Send a batch; return True if the collector has accepted it."""
        try:
            return self._client.post(self._envelope.around(batch))
        except Exception:  # a defect, which must not end the thread
            log.exception("spans could not be sent")
            return False
