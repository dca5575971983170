"""Replacements of a refusal, or of a pod's error (`fallback`): a fixed response, a redirect, or another revision."""

from __future__ import annotations

from typing import final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.config.specs import FallbackSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.filters.start_request import start_request_for
from activator.data_plane.refusals import PHRASES
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason, Substitute


@final
class _Replacement:
    """A fixed response or a redirect."""

    def __init__(self, spec: FallbackSpec) -> None:
        self._body: bytes = spec.body.encode()
        self._type: bytes = spec.content_type.encode()
        self._redirect: bytes = spec.redirect.encode()

    def send(self, request: Exchange, reason: Reason, status: int, retry_after: bytes) -> None:
        """Respond, if the client can use it: gRPC clients read a status, and redirects are for GET and HEAD."""
        if request.is_grpc or request.upgrade or (self._redirect and request.head.method not in {b"GET", b"HEAD"}):
            return
        headers: Headers = [(b"Activator-Reason", reason.value.encode()), (b"Cache-Control", b"no-store")]
        request.reason = reason
        if self._redirect:
            headers.insert(0, (b"Location", self._redirect))
            request.respond(ResponseHead(302, PHRASES[302], Fields.from_pairs(headers), 0, True), b"", False)
            return
        headers.insert(0, (b"Content-Type", self._type))
        if retry_after:
            headers.append((b"Retry-After", retry_after))
        fields = Fields.from_pairs(headers)
        request.respond(
            ResponseHead(status, PHRASES.get(status, b""), fields, len(self._body), True), self._body, False
        )


@final
class FallbackResponse(Filter):
    """The fixed response or redirect that replaces a refusal."""

    def __init__(self, spec: FallbackSpec) -> None:
        self._replacement = _Replacement(spec)

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        reason = failure.reason
        if reason.substitute & Substitute.RESPONSE:
            retry_after = b"%d" % failure.retry_after_s if failure.retry_after_s > 0 else b""
            self._replacement.send(request, reason, reason.status, retry_after)


@final
class StatusFallback(Filter):
    """The fallback in place of a pod's response with one of `fallback.statuses`.

    Without a fallback that the request can use, the client gets the pod's response.
    """

    def __init__(self, spec: FallbackSpec) -> None:
        self._statuses = frozenset(spec.statuses)
        self._key = spec.revision
        self.repeats_any_method = spec.any_method
        self._replacement = _Replacement(spec)

    def on_pod_status(self, request: Exchange, head: ResponseHead) -> None:
        if head.status not in self._statuses or request.is_grpc:
            return
        if self._key:
            request.fall_back(self._key, Reason.UPSTREAM_STATUS, self.repeats_any_method)
        else:
            retry_after = head.headers.get(b"retry-after") or b""
            self._replacement.send(request, Reason.UPSTREAM_STATUS, head.status, retry_after)


@final
class FallbackRevision(Filter):
    """The revision that serves a request in place of a refusal or, with `while_starting`, of the wait for a start."""

    def __init__(self, spec: FallbackSpec, wheel: TimingWheel, now: Now) -> None:
        self._key = spec.revision
        self._while_starting = spec.while_starting
        self._wheel = wheel
        self._now = now

    def on_request(self, request: Exchange) -> None:
        throttler = request.throttler
        if not self._while_starting or throttler is None or throttler.table.capacity != 0:
            return
        start_request = start_request_for(request, throttler, self._wheel)
        if start_request is not None:
            start_request.wait_until(self._now() + throttler.queue.queue_timeout_s())
            request.fall_back(self._key, Reason.STARTING)

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        if failure.may_fall_back:
            request.fall_back(self._key, failure.reason)
