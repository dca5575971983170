"""The interface of the HTTP/2 codec to the connection that uses it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2.stream import Stream
from activator.codec.message import Headers
from activator.runtime.errors import WireError


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionEvents:
    """The calls of the codec to its connection."""

    def write(self, data: bytes) -> None:
        """Send bytes to the peer, in order."""
        raise NotImplementedError

    def wants_flush(self) -> None:
        """Schedule a call of `flush` for the end of this turn."""
        raise NotImplementedError

    def stream_body(self, stream: Stream, data: bytes) -> None:
        raise NotImplementedError

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        """Handle the end of the peer's direction."""
        raise NotImplementedError

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        """Handle a request that exceeds a limit of ours (a large body): the user must answer it or reset the stream."""
        raise NotImplementedError

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        """Handle a reset: by the peer (`words` is empty), or by us because of the peer's error."""
        raise NotImplementedError

    def stream_closed(self, stream: Stream) -> None:
        """Handle the end of both directions, or a reset by the stream's user."""
        raise NotImplementedError

    def stream_full(self, stream: Stream) -> None:
        """Stop the user's writes: more than UNSENT_HIGH_BYTES wait for the peer."""
        raise NotImplementedError

    def stream_drained(self, stream: Stream) -> None:
        """Resume the user's writes: no more than UNSENT_LOW_BYTES wait."""
        raise NotImplementedError

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        """Handle GOAWAY: our streams above `last_id` were not processed, and no new ones may be opened."""
        raise NotImplementedError

    def peer_settings(self) -> None:
        """Handle the peer's SETTINGS, which are in effect."""
        raise NotImplementedError

    def settings_acknowledged(self) -> None:
        """Handle an acknowledgement of SETTINGS: the peer has processed all frames that were written before them."""

    def ping_answered(self, payload: bytes) -> None:
        raise NotImplementedError


NOBODY: Final = ConnectionEvents()


class Http2Error:
    """The cause of a connection's end: an error code of RFC 9113 section 7, and an explanatory text."""

    def __init__(self, code: i64, words: str) -> None:
        self.code = code
        self.words = words
