"""The status resource of an asynchronous request: `GET`, `HEAD` and `DELETE` of the URL that a 202 has named.

Rules
  1. It belongs to no revision: it joins no queue, starts no pod and holds no slot.
  2. Until the asynchronous request has been answered, the response is a 202 with its state; then it is the stored
     response with its status, fields and body.
  3. A body is sent in parts, as fast as the client takes them. The response is aborted if the client takes nothing for
     the send timeout, or if the rest is no longer available.
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.phases import OVER, ROUTING
from activator.data_plane.proxy.context import ProxyContext
from activator.data_plane.proxy.own_answers import send_whole
from activator.data_plane.refusals import PHRASES, refusal_head, refusal_text
from activator.data_plane.stored_responses.links import PART_BYTES, PartReceiver, StoredResponseLinks, fields_of
from activator.data_plane.stored_responses.messages import StoredResponsePart
from activator.data_plane.stored_responses.store import ANSWERS_PATH, STATE_HEADER, ResponseStore
from activator.data_plane.stored_responses.stored_response import StoredResponse, copy_of
from activator.data_plane.streams import ClientStream
from activator.runtime.reasons import Reason, reason_named

ASK_TIMEOUT_S: Final = 5.0  # for the response of another data plane
_NAME_MAX: Final = 64  # characters of an identity; real ones are shorter
_NO_CLIENT: Final = ClientStream()  # the client of an ended request
_ALLOWED: Final = b"GET, HEAD, DELETE"


@final
class StatusOpener:
    """A factory of status exchanges."""

    def __init__(self, proxy: ProxyContext, store: ResponseStore, links: StoredResponseLinks) -> None:
        self._proxy = proxy
        self._store = store
        self._links = links

    def open(self, head: RequestHead, client: ClientStream) -> Exchange:
        return StatusExchange(self._proxy, head, client, self._store, self._links)


@final
class _PendingPart(PartReceiver):
    """The recipient of a part from another data plane; it refers to its exchange until that ends."""

    def __init__(self, exchange: StatusExchange) -> None:
        self.exchange: StatusExchange | None = exchange

    def part_received(self, part: StoredResponsePart) -> None:
        if self.exchange is not None:
            self.exchange.part_received(part)

    def unreachable(self) -> None:
        if self.exchange is not None:
            self.exchange.unreachable()


@final
class StatusExchange(Exchange):
    """One request for a stored response. It has no revision, no pod and no filters, and its body is discarded."""

    def __init__(
        self,
        proxy: ProxyContext,
        head: RequestHead,
        client: ClientStream,
        store: ResponseStore,
        links: StoredResponseLinks,
    ) -> None:
        super().__init__(head, client, proxy.now())
        self._proxy = proxy
        self._store = store
        self._links = links
        self._identity: str = ""  # the name of the stored response
        self._member: int = 0  # the data plane that stores it
        self._query: int = 0  # the number of the pending query to another data plane; 0 if none
        self._receiver: _PendingPart | None = None
        self._stored: StoredResponse | None = None  # the response that is being sent, if this data plane stores it
        self._is_sending: bool = False  # the head of the stored response has been sent
        self._length: int = 0  # bytes of its body
        self._offset: int = 0  # body bytes that have been sent
        self._part: bytes = b""  # the bytes at `_offset`, received from another data plane
        self._trailers: Headers = []  # the trailers of the response

    def begin(self) -> None:
        if self.over:
            return
        try:
            self.phase = ROUTING
            self._proxy.active += 1
            self._respond_or_query()
        except Exception as error:  # a defect ends this request only
            self._proxy.on_error(error)
            self.fail(Reason.INTERNAL, "")

    def request_body(self, data: bytes) -> None:
        self.request_bytes += len(data)

    def request_end(self, trailers: Headers) -> None:
        self.request_done = True

    def _respond_or_query(self) -> None:
        """Respond to the request, or query the data plane that stores the response."""
        method = self.head.method
        if method not in {b"GET", b"HEAD", b"DELETE"}:
            text = b"a stored response can be read (GET, HEAD) or deleted (DELETE)\n"
            fields = Fields.from_pairs([(b"Allow", _ALLOWED), (b"Content-Type", b"text/plain; charset=utf-8")])
            self._respond(ResponseHead(405, PHRASES[405], fields, len(text), True), text)
            return
        self._identity = self.head.target[len(ANSWERS_PATH) :].partition(b"?")[0].decode("latin-1")
        self._member = _member_of(self._identity)
        if self._member == self._store.number:
            self._respond_from_store()
        elif self._member < 0:
            self._respond(*self._store.absence_response(self._identity))
        elif self._links.has_ended(self._member):
            text = refusal_text(Reason.ANSWER_GONE, "the process that stored it has ended")
            self._respond(refusal_head(Reason.ANSWER_GONE, text, 0), text)
        else:
            self._receiver = _PendingPart(self)
            self._query_part(method.decode() if method == b"DELETE" else "GET")

    def _respond_from_store(self) -> None:
        """Respond from the store of this data plane."""
        store = self._store
        answer = store.find(self._identity)
        if answer is None:
            self._respond(*store.absence_response(self._identity))
        elif self.head.method == b"DELETE":
            store.delete(answer)
            self._respond(ResponseHead(204, PHRASES[204], Fields(b""), -1, False), b"")
        elif not answer.is_done:
            self._respond(*store.pending_response(answer))
        else:
            stored_head = answer.head
            assert stored_head is not None
            self._stored = answer
            store.read_begins(answer)
            self._begin_sending(copy_of(stored_head), len(answer.body), answer.trailers)

    def _respond(self, head: ResponseHead, body: bytes) -> None:
        """Send a short response of the activator, and end the request."""
        reason = head.headers.get(b"activator-reason")
        if reason is not None:
            self.reason = reason_named(reason.decode())
            self._proxy.count_refused(self.reason)
        client = self._client
        self.status = head.status
        self._end()
        send_whole(client, self.head, head, body)

    # --- the body ---

    def _begin_sending(self, head: ResponseHead, length: int, trailers: Headers) -> None:
        """Send the head of a stored response, and its body in parts."""
        head.headers = head.headers.with_line(STATE_HEADER, b"kept")
        self.status = head.status
        self.first_byte_s = self._proxy.now()
        if not head.has_body or self.head.method == b"HEAD":
            client = self._client
            head.has_body = False
            self._end()
            client.send_head(head)
            client.send_end([])
            return
        self._length = length
        self._trailers = trailers
        self._is_sending = True
        self._client.send_head(head)
        self._send_parts()

    def _send_parts(self) -> None:
        """Send as many parts as the client takes now."""
        answer = self._stored
        client = self._client
        while self._offset < self._length and not self._client_full:
            if answer is not None:
                data = bytes(answer.body[self._offset : self._offset + PART_BYTES])
            else:
                data = self._part
                if not data:
                    self._query_part("GET")
                    return
                self._part = b""
            self._offset += len(data)
            self.response_bytes += len(data)
            client.send_body(data)
            client.flush()
        if self.over:
            return
        if self._offset >= self._length:
            trailers = self._trailers
            self._end()
            client.send_end(trailers)
        else:
            self._wait_for_client()

    def _wait_for_client(self) -> None:
        """Set the timer for a client that must take some of the response."""
        timeout_s = self._proxy.send_timeout_s
        if timeout_s > 0.0:
            self._proxy.wheel.arm(self, self._proxy.now() + timeout_s)

    def client_blocked(self) -> None:
        self._client_full = True
        self._taken_bytes = self._client.taken_bytes()

    def client_drained(self) -> None:
        self._client_full = False
        if self._is_sending and not self.over and self._query == 0:
            self._proxy.wheel.cancel(self)
            self._send_parts()

    # --- from another data plane ---

    def _query_part(self, method: str) -> None:
        """Request the next part of the response from the data plane that stores it, or its deletion."""
        receiver = self._receiver
        assert receiver is not None
        self._query = self._links.ask(self._member, self._identity, method, self._offset, receiver)
        if self._query == 0:
            self.unreachable()
        else:
            self._proxy.wheel.arm(self, self._proxy.now() + ASK_TIMEOUT_S)

    def part_received(self, part: StoredResponsePart) -> None:
        """Send the part that was requested; refuse or abort the request if the part does not fit the response."""
        if self.over:
            return
        self._query = 0
        self._proxy.wheel.cancel(self)
        if self._is_sending:
            if part.status == 0 or part.length != self._length or not part.data:
                self.fail(Reason.ANSWER_GONE, "")
            else:
                self._part = part.data
                self._send_parts()
            return
        head = ResponseHead(part.status, part.phrase, fields_of(part), part.length, part.has_body)
        if not part.has_body:
            head.content_length = -1
        if part.is_kept:
            self._part = part.data
            self._begin_sending(head, part.length, part.trailers)
        else:
            self._respond(head, part.data)

    def unreachable(self) -> None:
        """Refuse the request, because the data plane that has the response cannot be reached now."""
        self._query = 0
        if not self.over:
            self.fail(Reason.ANSWER_UNREACHABLE, "")

    # --- ends ---

    def client_gone(self) -> None:
        if not self.over:
            self.reason = Reason.CLIENT_GONE
            self._end()

    def expired(self, now_s: float) -> None:
        if self.over:
            return
        if self._query != 0:
            self.fail(Reason.ANSWER_UNREACHABLE, "")
            return
        if self.has_client_taken():
            self._wait_for_client()
        else:
            self.fail(Reason.SEND_TIMEOUT, "")

    def fail(self, reason: Reason, detail: str) -> None:
        if self.over:
            return
        if not self._is_sending:
            text = refusal_text(reason, "")
            self._respond(refusal_head(reason, text, 1 if reason is Reason.ANSWER_UNREACHABLE else 0), text)
            return
        client = self._client
        self.reason = reason
        self._proxy.count_refused(reason)
        self._end()
        client.abort()

    def _end(self) -> None:
        """Release everything that the request holds."""
        proxy, client = self._proxy, self._client
        phase, self.phase, self.over = self.phase, OVER, True
        self._client = _NO_CLIENT  # the stream refers to the exchange: avoid a reference cycle
        proxy.count_end(phase)
        self.done_s = proxy.now()
        proxy.wheel.cancel(self)
        if self._query != 0:
            self._links.give_up(self._member, self._query)
            self._query = 0
        if self._receiver is not None:
            self._receiver.exchange = None
            self._receiver = None
        answer = self._stored
        if answer is not None:
            self._stored = None
            self._store.read_ends(answer)
        proxy.notify_observers(self, client)


def _member_of(identity: str) -> int:
    """Return the number of the data plane in the identity of a response; -1 if it is not such an identity."""
    number, dash, secret = identity.partition("-")
    if not dash or not secret or len(identity) > _NAME_MAX:
        return -1
    try:
        return int(number, 16)
    except ValueError:
        return -1
