"""The roles in one exchange of a request and its response, and the calls between them.

    ClientStream  ── request_body, request_end, client_gone, client_blocked/drained ──►  Exchange
    ClientStream  ◄─ send_interim, send_head, send_body, send_end, abort, pause/resume ──  Exchange
    PodStream     ── response_interim/head/body/end, pod_failed, pod_blocked/drained ──►  PodUser
    PodStream     ◄─ send_request, send_body, send_end, abort, pause/resume ─────────────  PodUser

Rules
  1. None of these classes depends on the HTTP version: a request may arrive over one and be forwarded over another.
  2. Every method is a plain `def`, takes effect at once, and may be called until the exchange is over; later calls have
     no effect.
  3. Bodies are bytes as the parser delivered them, never views of the receive buffer.
  4. After a 101 both bodies continue as raw streams, each with its own end: a tunnel is an exchange, too.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.throttle.leases import LeaseHolder
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientStream:
    """The client's side of an exchange, which receives the response."""

    def send_interim(self, head: ResponseHead) -> None:
        """Send a 1xx response; the final one follows."""
        raise NotImplementedError

    def send_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def send_body(self, data: bytes) -> None:
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        """Complete the response; it is written before this returns."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what `send_head` and `send_body` have batched in this turn."""
        raise NotImplementedError

    def abort(self) -> None:
        """End a response that cannot be completed, such that the client notices that it is cut short."""
        raise NotImplementedError

    def pause_request(self) -> None:
        """Stop reading the request body for now."""
        raise NotImplementedError

    def resume_request(self) -> None:
        raise NotImplementedError

    def ask_for_body(self) -> None:
        """Request the body before any pod has: a client that waits for a 100 (Continue) gets it."""

    def taken_bytes(self) -> int:
        """Return a counter that grows as the client takes bytes; 0 if it is unknown."""
        return 0

    def unsent_bytes(self) -> int:
        """Return the approximate memory of unsent response data, in bytes."""
        return 0

    def half_closes(self) -> bool:
        """Return True if one direction of a tunnel can end before the other (not over TLS)."""
        raise NotImplementedError

    def client_ip(self) -> str:
        """Return the trusted address of the client; "" if it has none."""
        raise NotImplementedError

    def is_local(self) -> bool:
        """Return True if the client is connected to a Unix socket."""
        return False

    def endpoints(self) -> Endpoints | None:
        """Return source and destination address of the request; None if they are unknown."""
        return None

    def protocol(self) -> str:
        """Return the protocol of the client, with its version."""
        return "HTTP/1.1"

    def secure(self) -> bool:
        """Return True if the client uses TLS."""
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientWrapper(ClientStream):
    """The base of wrappers that edit or delay the response of a client; it forwards all calls to `client`.

    Back-pressure bypasses wrappers: the client itself calls the exchange when it is blocked.
    """

    def __init__(self, client: ClientStream) -> None:
        self.client = client

    def stop(self) -> None:
        """Release all timers and references to the request, which is over."""
        if isinstance(self.client, ClientWrapper):
            self.client.stop()

    def send_interim(self, head: ResponseHead) -> None:
        self.client.send_interim(head)

    def send_head(self, head: ResponseHead) -> None:
        self.client.send_head(head)

    def send_body(self, data: bytes) -> None:
        self.client.send_body(data)

    def send_end(self, trailers: Headers) -> None:
        self.client.send_end(trailers)

    def flush(self) -> None:
        self.client.flush()

    def abort(self) -> None:
        self.client.abort()

    def pause_request(self) -> None:
        self.client.pause_request()

    def resume_request(self) -> None:
        self.client.resume_request()

    def ask_for_body(self) -> None:
        self.client.ask_for_body()

    def taken_bytes(self) -> int:
        return self.client.taken_bytes()

    def unsent_bytes(self) -> int:
        return self.client.unsent_bytes()

    def half_closes(self) -> bool:
        return self.client.half_closes()

    def client_ip(self) -> str:
        return self.client.client_ip()

    def is_local(self) -> bool:
        return self.client.is_local()

    def endpoints(self) -> Endpoints | None:
        return self.client.endpoints()

    def protocol(self) -> str:
        return self.client.protocol()

    def secure(self) -> bool:
        return self.client.secure()


@mypyc_attr(allow_interpreted_subclasses=True)
class PodStream:
    """The pod's side of an exchange, which receives the request.

    `reused`: the connection has been idle, so the pod may be closing it. `may_refuse`: the protocol lets the pod state
    that it did not process a request (`pod_refused`). `was_reset`: the connection ended with an error, for example of
    a write, and not in order.
    """

    reused: bool
    may_refuse: bool = False
    was_reset: bool = False

    def protocol(self) -> str:
        """Return the protocol of the connection, with its version."""
        return "HTTP/1.1"

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        """Send the head together with the first pieces of the body."""
        raise NotImplementedError

    def send_body(self, data: bytes) -> None:
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """Discard the response, and close the connection to the pod or reset its stream."""
        raise NotImplementedError

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        """Cancel the request, and call `successor` in place of its user from now on.

        `waits`: let the pod finish; otherwise ask it to stop. Return False if the pod has already stopped, as far as
        that is known; then `successor` is not called.
        """
        self.abort()
        return False

    def half_closes(self) -> bool:
        """Return True if one direction of a tunnel can end before the other (not over TLS)."""
        raise NotImplementedError

    def finish(self) -> None:
        """Close a tunnel whose both directions have ended, after all data is sent."""
        raise NotImplementedError

    def pause_response(self) -> None:
        raise NotImplementedError

    def resume_response(self) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class PodUser(LeaseHolder):
    """The user of a connection to a pod: an attempt of a request (`proxy/attempt.py`), or its replacement."""

    def __init__(self, head: RequestHead) -> None:
        super().__init__()
        self.head = head
        self.read_s: float = 0.0  # the time of the current read from the pod; 0.0 in between

    def endpoints(self) -> Endpoints | None:
        """Return the client's addresses for the PROXY protocol; None if they are unknown."""
        return None

    def connected(self, pod: PodStream) -> None:
        """Use the connection that `checkout` has requested."""
        raise NotImplementedError

    def connect_failed(self, reason: Reason) -> None:
        """Handle a failure to get a connection."""
        raise NotImplementedError

    def response_interim(self, head: ResponseHead) -> None:
        """Handle a 1xx response; the final one follows."""
        raise NotImplementedError

    def response_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def response_body(self, data: bytes) -> None:
        raise NotImplementedError

    def response_flush(self) -> None:
        """Handle the end of the data of one read from the pod."""
        raise NotImplementedError

    def response_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        """Handle a closed connection, or data that is not a response.

        `untouched`: the connection had been idle, and closed before a byte of a response arrived.
        """
        raise NotImplementedError

    def pod_refused(self, reason: Reason, detail: str) -> None:
        """Handle a pod that did nothing with the request, which may be sent again whatever its method."""
        raise NotImplementedError

    def pod_blocked(self) -> None:
        """Handle a pod that reads more slowly than the client sends."""
        raise NotImplementedError

    def pod_drained(self) -> None:
        raise NotImplementedError
