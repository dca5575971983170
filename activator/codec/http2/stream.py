"""One stream of an HTTP/2 connection: its two directions, its two windows, and what is still to be sent on it.

Rules
  1. A stream is in the connection's table from its first HEADERS until both directions have ended or it was reset;
     `is_closed` says that it is not in it any more.
  2. What is received is counted against `receive_window`; credit goes back to the peer only while the stream is not
     `paused`, so a peer has at most one window more on its way than its reader wants.
  3. What is to be sent waits in `unsent` until both windows and the transport let it out. `end_wanted`: the end of the
     stream, with `trailers`, follows it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.http2.budgets import FRAMES_PER_DATA, STREAM_FRAMES_BURST
from activator.codec.message import UNKNOWN_LENGTH, Headers

_NO_TRAILERS: Final[Headers] = []
_SENT_KEPT_MAX: Final = 64  # pieces that have been sent, before the list is made anew


class Stream:
    """The peer of one request, in either role."""

    def __init__(self, stream_id: i64, send_window: i64, receive_window: i64) -> None:
        self.id: i64 = stream_id
        self.id_bytes: bytes = int(stream_id).to_bytes(4, "big")
        self.user: object = None  # whose stream it is, in the data plane
        self.is_closed: bool = False
        # received
        self.receive_window: i64 = receive_window
        self.owed: i64 = 0  # bytes that were received, and whose credit has not been given back
        self.paused: bool = False
        self.has_head: bool = False  # the final head has come
        self.remote_ended: bool = False
        self.expected: i64 = UNKNOWN_LENGTH  # bytes that the announced length still lacks; below 0: none was announced
        self.received_bytes: i64 = 0
        self.is_refused: bool = False  # its body is too large, which was said
        self.has_body: bool = True  # DATA with something in it may come
        self.head_request: bool = False  # it is a HEAD, whose answer has no body; as a server, of refused ones only
        self.spare_frames: i64 = STREAM_FRAMES_BURST  # frames left that do not advance it (budgets.py)
        self.interims: i64 = 0  # as a client: 1xx responses that have come
        # sent
        self.send_window: i64 = send_window
        self.sent_bytes: i64 = 0  # of bodies, as far as the peer's windows have let them out
        self.unsent: list[bytes] = []
        self.unsent_first: i64 = 0  # of `unsent`: those before it have been sent
        self.unsent_bytes: i64 = 0
        self.unsent_at: i64 = 0  # of its first piece: so much has been sent
        self.end_wanted: bool = False
        self.trailers: Headers = _NO_TRAILERS
        self.local_ended: bool = False
        self.wants_no_more: bool = False  # when all is sent, what the peer has not sent yet is not wanted (8.1)
        self.is_waiting: bool = False  # among those that the connection sends for
        self.is_full: bool = False  # its user was told that it takes no more for now

    def advanced(self) -> None:
        """Note that it has brought DATA with something in it."""
        self.spare_frames = min(self.spare_frames + FRAMES_PER_DATA, STREAM_FRAMES_BURST)

    def queue(self, data: bytes) -> None:
        """To be sent when its turn comes."""
        self.unsent.append(data)
        self.unsent_bytes += len(data)

    def move(self, count: i64, out: list[bytes]) -> None:
        """Put the next `count` bytes of what is unsent behind `out`, in as many pieces as they are."""
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
        """What is unsent is one piece, whole."""
        return len(self.unsent) == 1 and self.unsent_at == 0 and self.unsent_first == 0

    def take_single(self) -> bytes:
        """That piece; nothing is left."""
        self.unsent_bytes = 0
        return self.unsent.pop()

    def drop_unsent(self) -> None:
        """Nothing more is sent."""
        if self.unsent_bytes > 0:
            self.unsent = []
            self.unsent_first = 0
            self.unsent_bytes = 0
            self.unsent_at = 0
        self.end_wanted = False
