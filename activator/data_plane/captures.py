"""Captures: the heads and bodies of single requests and responses, kept for a short time in memory.

Rules
  1. Captures of all revisions share CAPTURES_BYTES_MAX bytes. New ones displace the oldest that are complete; a request
     for which there is still no room is captured in part.
  2. A complete capture is kept for a configured time, and at most CAPTURES_CHECK_S longer.
  3. Secrets are masked when a capture is read (runtime/masking.py), because most are never read.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.data_plane.body_watcher import BodyWatcher
from activator.runtime.clock import Deadline, Now, TimingWheel
from activator.runtime.units import KIB, MIB

CAPTURES_BYTES_MAX: Final = 32 * MIB  # all captures of one data plane together
CAPTURE_BYTES_MIN: Final = 4 * KIB  # counted for a smaller capture, so that there are at most 8,192
CAPTURE_HEAD_BYTES_MAX: Final = 16 * KIB  # each head
CAPTURES_CHECK_S: Final = 1.0  # interval between two checks for captures whose time has passed


@final
class Capture(BodyWatcher):
    """The heads and the first `bytes_max` bytes of both bodies of one request to the revision `key`."""

    def __init__(self, store: CaptureStore, key: str, bytes_max: int, keep_s: float) -> None:
        super().__init__()
        self.key = key
        self.number: int = 0  # also the number of its record; set when the request has ended
        self.until_s: float = 0.0  # when it expires; set at the same time
        self.bytes_max = bytes_max
        self.keep_s = keep_s
        self.size: i64 = CAPTURE_BYTES_MIN  # counted in `CaptureStore.size`
        self.request_head: bytes = b""
        self.response_head: bytes = b""
        self.request_body = bytearray()
        self.response_body = bytearray()
        self.is_cut: bool = False  # something was left out
        self._has_body_start: bool = True  # the request body is known from its beginning
        self._kept_bytes: i64 = 0  # heads and bodies
        self._is_stopped: bool = False
        self._store: CaptureStore | None = store  # None once it is kept or dropped

    def add_request(self, head: bytes, body: bytes | None) -> None:
        """Keep the head and the received part of the body; None: it is not available, and the body is left out."""
        self.request_head = self._reserve(head, CAPTURE_HEAD_BYTES_MAX)
        if body is None:
            self._has_body_start, self.is_cut = False, True
        else:
            self.client_sent(body)

    def add_response_head(self, head: bytes) -> None:
        self.response_head = self._reserve(head, CAPTURE_HEAD_BYTES_MAX)

    def client_sent(self, data: bytes) -> None:
        if self._has_body_start:
            self.request_body += self._reserve(data, self.bytes_max - len(self.request_body))

    def pod_sent(self, data: bytes) -> None:
        self.response_body += self._reserve(data, self.bytes_max - len(self.response_body))

    def stop(self) -> None:
        """Take no more data."""
        self._is_stopped = True

    def keep(self, number: int) -> None:
        """Keep the complete capture in the store until it expires, as the capture of the record `number`."""
        store, self._store = self._store, None
        if store is not None:
            self.number = number
            store.keep(self)

    def release(self) -> None:
        """Drop the capture, unless it is kept."""
        self._is_stopped = True
        store, self._store = self._store, None
        if store is not None:
            store.size -= self.size

    def _reserve(self, data: bytes, bytes_max: i64) -> bytes:
        """Return the beginning of `data` for which there is room, at most `bytes_max`, and count it."""
        store = self._store
        part = data[: max(bytes_max, 0)]
        extra: i64 = max(self._kept_bytes + len(part) - self.size, 0)
        if store is None or self._is_stopped or (extra > 0 and not store.make_room(extra)):
            extra, part = 0, b""
        self.size += extra
        self._kept_bytes += len(part)
        if len(part) < len(data):
            self.is_cut = True
        return part


@final
class CaptureStore(Deadline):
    """The captures of one data plane, and the numbers of its records."""

    def __init__(self, wheel: TimingWheel, now: Now) -> None:
        super().__init__()
        self.size: int = 0  # bytes of all captures, including those of requests in progress
        # Microseconds, so that the numbers of a process that is started again do not repeat.
        self._last_number: int = int(now() * 1e6)
        self._wheel = wheel
        self._now = now
        self._kept: dict[int, Capture] = {}  # by number, in the order of their ends

    def next_number(self) -> int:
        """Return the number of a new record."""
        self._last_number += 1
        return self._last_number

    def begin(self, key: str, bytes_max: int, keep_s: float) -> Capture | None:
        """Return a capture for a request of the revision `key`; None if there is no room."""
        return Capture(self, key, bytes_max, keep_s) if self.make_room(CAPTURE_BYTES_MIN) else None

    def keep(self, capture: Capture) -> None:
        """Keep a complete capture until its time has passed."""
        now_s = self._now()
        capture.until_s = now_s + capture.keep_s
        self._kept[capture.number] = capture
        if capture.until_s < self.deadline_s:
            self._wheel.arm(self, max(capture.until_s, now_s + CAPTURES_CHECK_S))

    def find(self, number: int) -> Capture | None:
        """Return the capture with this number; None if it was never kept, or has been dropped."""
        return self._kept.get(number)

    def make_room(self, count: int) -> bool:
        """Count `count` bytes, and drop the oldest complete captures for them; return False if there is no room."""
        while self.size + count > CAPTURES_BYTES_MAX:
            oldest = next(iter(self._kept), 0)
            if oldest == 0:
                return False
            self.size -= self._kept.pop(oldest).size
        self.size += count
        return True

    def expired(self, now_s: float) -> None:
        for capture in [capture for capture in self._kept.values() if capture.until_s <= now_s]:
            del self._kept[capture.number]
            self.size -= capture.size
        if self._kept:
            next_s = min(capture.until_s for capture in self._kept.values())
            self._wheel.arm(self, max(next_s, now_s + CAPTURES_CHECK_S))
