"""Fault injection (`fault`): delays and refusals, for tests of clients."""

from __future__ import annotations

from typing import Final, final

from activator.config.specs import FaultSpec
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import WITHOUT_BODY, Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.refusals import refusal_text
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason
from lb.rng import Rng

DELAY_SLACK_S: Final = 1.0  # after the delay, until the hold times out
_MILLION: Final = 1_000_000


@final
class _Delay(BodyWatcher):
    """The delay of one request, which is then released or refused with the status."""

    def __init__(self, request: Exchange, status: int, wheel: TimingWheel) -> None:
        super().__init__()
        self._request: Exchange | None = request
        self._status = status
        self._wheel = wheel
        self.hold_number: int = 0

    def expired(self, now_s: float) -> None:
        request = self._request
        self._request = None
        if request is None or request.over:
            return
        if self._status:
            _refuse(request, self._status)
        else:
            request.proceed(self.hold_number)

    def stop(self) -> None:
        self._request = None
        self._wheel.cancel(self)


@final
class Fault(Filter):
    """The faults of one revision, injected into randomly chosen requests."""

    def __init__(self, spec: FaultSpec, wheel: TimingWheel, now: Now, rng: Rng) -> None:
        self._spec = spec
        self._wheel = wheel
        self._now = now
        self._rng = rng

    def on_request(self, request: Exchange) -> None:
        spec = self._spec
        status = spec.status if spec.status and self._happens(spec.status_share) else 0
        if spec.delay_s > 0.0 and self._happens(spec.delay_share):
            delay = _Delay(request, status, self._wheel)
            request.watch(delay)
            self._wheel.arm(delay, self._now() + spec.delay_s)
            delay.hold_number = request.hold(spec.delay_s + DELAY_SLACK_S)
        elif status:
            _refuse(request, status)

    def _happens(self, share: float) -> bool:
        return self._rng.below(_MILLION) < int(share * _MILLION)


def _refuse(request: Exchange, status: int) -> None:
    reason = Reason.FAULT_INJECTED
    if request.is_grpc:
        request.fail(reason, "")  # gRPC clients read a gRPC status
        return
    request.reason = reason
    body = b"" if status in WITHOUT_BODY else refusal_text(reason, "")
    request.answer(
        status,
        body,
        [(b"Content-Type", b"text/plain; charset=utf-8"), (b"Activator-Reason", reason.value.encode())],
    )
