"""One request's half of an HTTP/1.1 client connection, which serializes and batches the response.

Rules
  1. Data that is sent in one turn is written with one call, at `flush` or at the end.
  2. HTTP/1.0 clients get no interim responses, and a body of unknown length ends with the connection.
  3. A response to a request that has not ended is the connection's last, because the start of the next is unknown.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from activator.codec.http1.serialise import chunk, interim_bytes, last_chunk, response_bytes
from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.exchange import Exchange
from activator.data_plane.server.client_connection import ClientConnection
from activator.data_plane.streams import ClientStream

ZEROS_MAX: Final = 4  # in one chunk size; Go rejects sizes of more than 16 digits

_CONTINUE: Final = ResponseHead(100, b"Continue", Fields(b""), UNKNOWN_LENGTH, False)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamOwner(ClientConnection):
    """The interface of an HTTP/1.1 connection for its streams."""

    def pause_request(self, pause: bool) -> None:
        """Pause or resume reading."""
        raise NotImplementedError

    def stream_ended(self, stream: Http1Stream) -> None:
        """Handle the end of a response."""
        raise NotImplementedError

    def begin_tunnel(self, stream: Http1Stream) -> None:
        """Pass all further data to this stream, unparsed."""
        raise NotImplementedError

    def end_tunnel(self, stream: Http1Stream) -> None:
        """Handle a pod that has closed its side of the tunnel."""
        raise NotImplementedError

    def stream_cut(self, stream: Http1Stream) -> None:
        """Close after a response that was cut short, in such a way that the client notices."""
        raise NotImplementedError

    def is_draining(self) -> bool:
        """Return True if the connection must close after the current response."""
        raise NotImplementedError


class Http1Stream(ClientStream):
    """One request's half of a client connection."""

    exchange: Exchange

    def __init__(self, connection: StreamOwner, keep_alive: bool, http_1_0: bool, request_ended: bool) -> None:
        self._connection = connection
        self._http_1_0 = http_1_0
        self.close: bool = not keep_alive  # the connection closes after the response
        self.request_ended = request_ended
        self._chunked: bool = False
        self.until_close: bool = False  # only the end of the connection ends the body
        self._tunnel: bool = False
        self.answered: bool = False  # the head of the final response is written
        self._continued: bool = False  # a 100 (Continue) is written
        self._zeros: int = 0  # digits of the next chunk's size that have been sent
        self._out: list[bytes] = []  # not written yet

    def send_interim(self, head: ResponseHead) -> None:
        if head.status == 100:
            if self._continued:
                return  # already sent before the request had a pod
            self._continued = True
        self._write_interim(head)

    def _write_interim(self, head: ResponseHead) -> None:
        if not self._http_1_0:
            self._connection.write(interim_bytes(head))

    def probe(self) -> None:
        """Send data without a meaning, if HTTP/1.1 has a place for it, to detect a disconnected client.

        Before the response, this is a 100 (Continue), which clients ignore (RFC 9110 15.2); between chunks, a leading
        zero of the next size (RFC 9112 7.1). A body of known length has no such place.
        """
        if not self.answered:
            self._continued = True
            self._write_interim(_CONTINUE)
        elif self._chunked and self._zeros < ZEROS_MAX:
            self.flush()
            self._zeros += 1
            self._connection.write(b"0")

    def ask_for_body(self) -> None:
        if self.awaits_continue():
            self.send_interim(_CONTINUE)

    def awaits_continue(self) -> bool:
        """Return True if the client waits for a 100 (Continue) before its body, and has got none (RFC 9110 10.1.1)."""
        return not self._continued and self.exchange.head.headers.get(b"expect") is not None

    def send_head(self, head: ResponseHead) -> None:
        self.answered = True
        has_unknown_length = head.has_body and head.content_length < 0
        self._chunked = has_unknown_length and not self._http_1_0
        self.until_close = has_unknown_length and self._http_1_0
        if not self.request_ended or self.until_close or self._connection.is_draining():
            self.close = True
        self._out.append(response_bytes(head, self._http_1_0, self.close))
        if head.upgrade:
            self._tunnel = True
            self.request_ended = False
            self.flush()
            self._connection.begin_tunnel(self)

    def send_body(self, data: bytes) -> None:
        if self._zeros:
            self._zeros = 0
        self._out.append(chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        if self._chunked:
            self._out.append(last_chunk(trailers))
        self.flush()
        if self._tunnel:
            self._connection.end_tunnel(self)
        else:
            self._connection.stream_ended(self)

    def flush(self) -> None:
        out = self._out
        if out:
            self._out = []
            self._connection.write(out[0] if len(out) == 1 else b"".join(out))

    def abort(self) -> None:
        self.flush()
        self._connection.stream_cut(self)

    def pause_request(self) -> None:
        self._connection.pause_request(True)

    def resume_request(self) -> None:
        self._connection.pause_request(False)

    def taken_bytes(self) -> int:
        return self._connection.taken_bytes()

    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes()

    def protocol(self) -> str:
        return "HTTP/1.0" if self._http_1_0 else "HTTP/1.1"

    def half_closes(self) -> bool:
        return self._connection.half_closes()

    def client_ip(self) -> str:
        return self._connection.client_ip_of(self.exchange.head)

    def is_local(self) -> bool:
        return self._connection.is_local()

    def endpoints(self) -> Endpoints | None:
        return self._connection.client_endpoints(self.exchange.head)

    def secure(self) -> bool:
        return self._connection.secure()
