"""The buffer of a response whose client is slower than its pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from activator.codec.message import Headers
from activator.data_plane.buffering import is_response_streamed
from activator.data_plane.phases import DELIVERING
from activator.data_plane.proxy.request_body import SHARE_BYTES
from activator.data_plane.throttle.held_bodies import BodyBuffer
from activator.data_plane.throttle.revision import RevisionThrottler

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange


@final
class Delivery:
    """The rest of one response, buffered for a slow client.

    When the pod has finished, the slot is released, and the request stays in the phase DELIVERING until the client has
    taken the rest.
    """

    def __init__(self, exchange: ProxiedExchange, buffer: BodyBuffer) -> None:
        self._exchange = exchange
        self._buffer = buffer
        self._trailers: Headers = []

    def has_room(self) -> bool:
        """Return True if the pod may continue to send."""
        return self._buffer.has_room()

    def append(self, data: bytes) -> None:
        """Append `data` to the buffer."""
        self._buffer.append(data)

    def pod_ended(self, trailers: Headers, is_whole: bool) -> None:
        """Release the slot after the pod has finished or failed; the client takes the rest at its own pace."""
        exchange = self._exchange
        throttler = exchange.throttler
        lease = exchange.lease
        pod = exchange.pod
        attempt = exchange.attempt
        assert throttler is not None and attempt is not None
        self._trailers = trailers
        if not exchange.enter(DELIVERING):
            return
        throttler.delivering += 1
        self._buffer.ended()
        if exchange.upload is not None:
            exchange.upload.discard()
        exchange.context.arm(exchange, throttler)
        exchange.pod = None
        if lease is not None:
            attempt.give_back(throttler, lease, pod, exchange.time() - exchange.granted_s, is_whole)
        elif pod is not None:
            pod.abort()
        attempt.read_s = 0.0  # the request ends later than this read

    def send_share(self) -> bool:
        """Send the client up to SHARE_BYTES; return True if there is more and the client takes it.

        Raises OSError if a temporary file cannot be read.
        """
        exchange = self._exchange
        if exchange.is_client_full():
            return False
        client = exchange.client()
        buffer = self._buffer
        if buffer.size > 0:
            client.send_body(buffer.take(SHARE_BYTES))
            client.flush()  # may block the client again; the next bytes are then buffered, too
        if buffer.size == 0 and (exchange.phase == DELIVERING or not exchange.is_client_full()):
            self.drop()
            if exchange.phase == DELIVERING:
                self._delivered()
                return False
        attempt = exchange.attempt
        if exchange.is_client_slow and attempt is not None:
            attempt.resume_pod()
        return exchange.delivery is not None and not exchange.is_client_full()

    def drop(self) -> None:
        """Discard the buffer."""
        self._exchange.delivery = None
        self._buffer.drop()

    def _delivered(self) -> None:
        """End the request after the client has been sent everything that the pod sent."""
        exchange = self._exchange
        client = exchange.client()
        is_whole = exchange.reason is None
        exchange.end(is_whole, True)
        if is_whole:
            client.send_end(self._trailers)
        else:
            client.abort()


def keeps_response(exchange: ProxiedExchange, throttler: RevisionThrottler) -> bool:
    """Return True if the pod may continue to send while the client is blocked, because a buffer has room."""
    delivery = exchange.delivery
    if delivery is not None:
        return delivery.has_room()
    buffers = throttler.buffers
    head = exchange.response_head
    if buffers.response_bytes == 0 or head is None or is_response_streamed(head):
        return False
    bodies = exchange.context.bodies
    buffer = BodyBuffer(buffers.response_bytes, buffers.file_bytes, bodies.held, throttler.held, bodies.files)
    if not buffer.has_room():
        return False
    exchange.delivery = Delivery(exchange, buffer)
    return True


def send_buffered(exchange: ProxiedExchange, feeds: bool) -> None:
    """Send a share of the buffered response and, if `feeds`, a share of the buffered request body."""
    body, delivery = exchange.upload, exchange.delivery
    try:
        more = feeds and body is not None and body.send_share()
        more = (delivery is not None and delivery.send_share()) or more
    except OSError as error:  # a temporary file cannot be read
        exchange.end_with_error(error)
        return
    if more and not exchange.over:
        exchange.continue_soon()
