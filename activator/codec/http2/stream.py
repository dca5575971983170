"""A stream of an HTTP/2 connection: its state in both directions, its two windows, and its unsent data.

Rules
  1. A stream is in the connection's table from its first HEADERS until both directions have ended or it was reset;
     `is_closed` is true after that.
  2. Received data are counted against `receive_window`. The window is returned to the peer only while the stream is not
     `paused`, so that at most one window is in flight beyond the data that the reader accepts.
  3. Data to be sent wait in `unsent` until both windows and the transport allow it. If `end_pending` is set, the end of
     the stream, with `trailers`, follows them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.budgets import FRAMES_PER_DATA, STREAM_FRAMES_BURST
from activator.codec.message import UNKNOWN_LENGTH, Headers

_NO_TRAILERS: Final[Headers] = []
_SENT_KEPT_MAX: Final = 64  # sent pieces in `unsent` before they are removed


class Stream:
    """One request and its response on a connection, in either role."""

    def __init__(self, stream_id: i64, send_window: i64, receive_window: i64) -> None:
        self.id: i64 = stream_id
        self.id_bytes: bytes = int(stream_id).to_bytes(4, "big")
        self.user: object = None  # the object of the data plane that uses the stream
        self.is_closed: bool = False
        # Receiving.
        self.receive_window: i64 = receive_window
        self.owed: i64 = 0  # received bytes that have not been returned to the peer's window
        self.paused: bool = False
        self.has_head: bool = False  # the final head has come
        self.remote_ended: bool = False
        self.expected: i64 = UNKNOWN_LENGTH  # bytes of the declared length still to come; negative: no length declared
        self.received_bytes: i64 = 0
        self.is_refused: bool = False  # the body is too large, which has been reported
        self.has_body: bool = True  # DATA that is not empty may come
        self.head_request: bool = False  # the request is a HEAD; as a server, set only for refused requests
        self.spare_frames: i64 = STREAM_FRAMES_BURST  # the budget of frames that do not advance it (budgets.py)
        self.interims: i64 = 0  # as a client: 1xx responses received
        # Sending.
        self.send_window: i64 = send_window
        self.sent_bytes: i64 = 0  # bytes of the body sent in DATA frames
        self.unsent: list[bytes] = []
        self.unsent_first: i64 = 0  # index in `unsent` of the first piece that is not completely sent
        self.unsent_bytes: i64 = 0
        self.unsent_at: i64 = 0  # bytes of that piece that have been sent
        self.end_pending: bool = False
        self.trailers: Headers = _NO_TRAILERS
        self.local_ended: bool = False
        self.wants_no_more: bool = False  # when all is sent, reset the stream instead of receiving the rest (8.1)
        self.is_waiting: bool = False  # waits for the connection's window or the transport
        self.is_full: bool = False  # its user must stop writing until `stream_drained`

    def advanced(self) -> None:
        """Refill the budget of frames, because a DATA frame was not empty."""
        self.spare_frames = min(self.spare_frames + FRAMES_PER_DATA, STREAM_FRAMES_BURST)

    def queue(self, data: bytes) -> None:
        """Append data to be sent."""
        self.unsent.append(data)
        self.unsent_bytes += len(data)

    def move(self, count: i64, out: list[bytes]) -> None:
        """Move the next `count` unsent bytes to `out`, in the pieces in which they were queued."""
        unsent = self.unsent
        self.unsent_bytes -= count
        while count > 0:
            piece = unsent[self.unsent_first]
            at = self.unsent_at
            size: i64 = len(piece) - at
            if size > count:
                out.append(piece[at : at + count])
                self.unsent_at = at + count
                return
            self.unsent_first += 1
            self.unsent_at = 0
            out.append(piece if at == 0 else piece[at:])
            count -= size
        if self.unsent_bytes == 0:
            self.unsent = []
            self.unsent_first = 0
        elif self.unsent_first >= _SENT_KEPT_MAX:
            self.unsent = unsent[self.unsent_first :]
            self.unsent_first = 0

    def is_single(self) -> bool:
        """Return True if the unsent data are one complete piece."""
        return len(self.unsent) == 1 and self.unsent_at == 0 and self.unsent_first == 0

    def take_single(self) -> bytes:
        """Remove and return the only piece; requires `is_single`."""
        self.unsent_bytes = 0
        return self.unsent.pop()

    def drop_unsent(self) -> None:
        """Discard the unsent data, and do not send an end."""
        if self.unsent_bytes > 0:
            self.unsent = []
            self.unsent_first = 0
            self.unsent_bytes = 0
            self.unsent_at = 0
        self.end_pending = False
