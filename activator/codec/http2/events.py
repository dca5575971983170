"""What the codec of HTTP/2 asks of the connection that it serves, and tells it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.http2.stream import Stream
from activator.codec.message import Headers
from activator.runtime.errors import WireError


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionEvents:
    """What the codec asks of its connection, and tells it."""

    def write(self, data: bytes) -> None:
        """Bytes for the peer, in order."""
        raise NotImplementedError

    def wants_flush(self) -> None:
        """Call `flush` at the end of this turn."""
        raise NotImplementedError

    def stream_body(self, stream: Stream, data: bytes) -> None:
        raise NotImplementedError

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        """The peer sends no more on it."""
        raise NotImplementedError

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        """What came on it broke a bound of ours (its body is too large): it is for the user to answer, or to reset."""
        raise NotImplementedError

    def stream_reset(self, stream: Stream, code: i64, words: str) -> None:
        """It is over before its end: the peer has reset it (`words` is empty), or we have, for an error of the peer."""
        raise NotImplementedError

    def stream_closed(self, stream: Stream) -> None:
        """It has ended in both directions; or its user has reset it."""
        raise NotImplementedError

    def stream_full(self, stream: Stream) -> None:
        """The peer takes less than is sent on it."""
        raise NotImplementedError

    def stream_drained(self, stream: Stream) -> None:
        """It takes more again."""
        raise NotImplementedError

    def peer_goes_away(self, last_id: i64, code: i64) -> None:
        """GOAWAY: streams of ours above `last_id` were not processed, and no new one may be opened."""
        raise NotImplementedError

    def peer_settings(self) -> None:
        """SETTINGS have come, and are in force."""
        raise NotImplementedError

    def settings_acknowledged(self) -> None:
        """The peer has processed all frames that were written before the last SETTINGS that was acknowledged."""

    def ping_answered(self, payload: bytes) -> None:
        raise NotImplementedError


NOBODY: Final = ConnectionEvents()


class Http2Error:
    """Why a connection ended: an error code of RFC 9113 section 7, and words for people."""

    def __init__(self, code: i64, words: str) -> None:
        self.code = code
        self.words = words
