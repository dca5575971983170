"""One request in flight, as the client side and the pod side see it: four roles and the calls between them.

    ClientStream  ── request_body, request_end, client_gone, client_blocked/drained ──►  Exchange
    ClientStream  ◄─ send_interim, send_head, send_body, send_end, abort, pause/resume ──  Exchange
    PodStream     ── response_interim/head/body/end, pod_failed, pod_blocked/drained ──►  PodUser
    PodStream     ◄─ send_request, send_body, send_end, abort, pause/resume ─────────────  PodUser

Rules
  1. Nothing here belongs to a protocol version: a request may come in over one and leave over another.
  2. Every method is a plain `def`, takes effect at once, and may be called until the exchange is over; calls that come
     later are harmless.
  3. Bodies are bytes as the parser delivered them, never the buffer that was received.
  4. After a 101 both bodies go on as raw streams, each with an end of its own: a tunnel is an exchange like any other.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.throttle.leases import LeaseHolder
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientStream:
    """The client's half: where the answer goes."""

    def send_interim(self, head: ResponseHead) -> None:
        """A 1xx answer; the real one follows."""
        raise NotImplementedError

    def send_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def send_body(self, data: bytes) -> None:
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        """The answer is complete, and is on its way when this returns."""
        raise NotImplementedError

    def flush(self) -> None:
        """Put on its way what `send_head` and `send_body` have gathered in this turn."""
        raise NotImplementedError

    def abort(self) -> None:
        """The answer cannot be completed: the client must notice that it is cut short."""
        raise NotImplementedError

    def pause_request(self) -> None:
        """Read no more of the request's body for now."""
        raise NotImplementedError

    def resume_request(self) -> None:
        raise NotImplementedError

    def ask_for_body(self) -> None:
        """The body is wanted before any pod has been asked: a client that waits for a 100 (Continue) gets it."""

    def taken_bytes(self) -> int:
        """Return a number that grows as the client takes bytes; 0 if that is not known."""
        return 0

    def unsent_bytes(self) -> int:
        """Return the approximate memory of unsent response data, in bytes."""
        return 0

    def half_closes(self) -> bool:
        """Return True if one direction of a tunnel can end before the other (not over TLS)."""
        raise NotImplementedError

    def client_ip(self) -> str:
        """The address of the client, as far as it can be trusted; empty where there is none to be had."""
        raise NotImplementedError

    def endpoints(self) -> Endpoints | None:
        """Whence the request came and where it arrived; None: that is not known."""
        return None

    def protocol(self) -> str:
        """The protocol of the client, with its version."""
        return "HTTP/1.1"

    def secure(self) -> bool:
        """The client uses TLS."""
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientWrapper(ClientStream):
    """A client behind something that edits or delays its response; passes everything on to `client`.

    Back-pressure is the client's own: it calls the exchange itself when it is full.
    """

    def __init__(self, client: ClientStream) -> None:
        self.client = client

    def stop(self) -> None:
        """The request is over: no timer and no reference to it may be left."""
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

    def endpoints(self) -> Endpoints | None:
        return self.client.endpoints()

    def protocol(self) -> str:
        return self.client.protocol()

    def secure(self) -> bool:
        return self.client.secure()


@mypyc_attr(allow_interpreted_subclasses=True)
class PodStream:
    """The pod's half: where the request goes.

    `reused`: it has been idle, so that the pod may be closing it just now. `may_refuse`: the protocol lets the pod
    state that it did not process a request (`pod_refused`). `was_reset`: the connection was lost by an error, such as
    that of a write, and not closed in order.
    """

    reused: bool
    may_refuse: bool = False
    was_reset: bool = False

    def protocol(self) -> str:
        """Return the protocol of the connection, with its version."""
        return "HTTP/1.1"

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        """The head and the body pieces that are there already, together."""
        raise NotImplementedError

    def send_body(self, data: bytes) -> None:
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """The answer is not wanted any more; the connection to the pod is closed."""
        raise NotImplementedError

    def cancel(self, successor: PodUser, waits: bool) -> bool:
        """Give up the request, and call `successor` in the place of its user from now on.

        `waits`: let the pod finish; otherwise ask it to stop. Return False if the pod has stopped already, as far as
        that can be known: then `successor` is not called.
        """
        self.abort()
        return False

    def half_closes(self) -> bool:
        """As the client's."""
        raise NotImplementedError

    def finish(self) -> None:
        """A tunnel has ended both ways: close when all is sent."""
        raise NotImplementedError

    def pause_response(self) -> None:
        raise NotImplementedError

    def resume_response(self) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class PodUser(LeaseHolder):
    """What uses a connection to a pod: an attempt of a request (`proxy/attempt.py`), or what takes its place there."""

    def __init__(self, head: RequestHead) -> None:
        super().__init__()
        self.head = head
        self.read_s: float = 0.0  # the time of the read from the pod that is being handled; 0.0 in between

    def endpoints(self) -> Endpoints | None:
        """Return the client's, for the PROXY protocol; None if they are not known."""
        return None

    def connected(self, pod: PodStream) -> None:
        """Take the connection that `checkout` has asked for."""
        raise NotImplementedError

    def connect_failed(self, reason: Reason) -> None:
        """Learn that there is no connection to be had."""
        raise NotImplementedError

    def response_interim(self, head: ResponseHead) -> None:
        """Take a 1xx response; the real one follows."""
        raise NotImplementedError

    def response_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def response_body(self, data: bytes) -> None:
        raise NotImplementedError

    def response_flush(self) -> None:
        """Learn that all that one read from the pod brought has been delivered."""
        raise NotImplementedError

    def response_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        """Learn that the pod has closed, or sent something other than a response.

        `untouched`: the connection had been idle before, and closed before a byte of a response came.
        """
        raise NotImplementedError

    def pod_refused(self, reason: Reason, detail: str) -> None:
        """Learn that the pod did nothing with the request: it may be sent again, whatever its method."""
        raise NotImplementedError

    def pod_blocked(self) -> None:
        """Learn that the pod reads more slowly than the client writes."""
        raise NotImplementedError

    def pod_drained(self) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Exchange(Waiter):
    """One request from its arrival to its end, as its client's connection sees it (`proxy/exchange.py`)."""

    def __init__(self, head: RequestHead) -> None:
        super().__init__()
        self.head = head
        self.over: bool = False
        self.is_shed: bool = False  # it is cut because the memory that its client holds is needed
        self.done_s: float = 0.0  # when it was over, in monotonic seconds

    def request(self) -> RequestHead | None:
        return self.head

    def begin(self) -> None:
        """Find the request's revision and a pod, since its turn has come."""
        raise NotImplementedError

    def refuse_unsent(self) -> bool:
        """Refuse the request because the program ends, if no pod has it and it is not queued; return whether it was."""
        return False

    def request_body(self, data: bytes) -> None:
        raise NotImplementedError

    def request_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def client_gone(self) -> None:
        """Learn that the client has closed: the place or slot is free within this turn."""
        raise NotImplementedError

    def client_blocked(self) -> None:
        """Learn that the client reads more slowly than the pod writes."""
        raise NotImplementedError

    def client_drained(self) -> None:
        raise NotImplementedError

    def request_failed(self, reason: Reason, detail: str) -> None:
        """Learn that the request's own bytes turned out to be bad after its head was taken."""
        raise NotImplementedError
