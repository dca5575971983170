"""The cancelled requests of one HTTP/2 connection to a pod, until the pod has processed their resets.

A slot that is free before that could be granted to a request on another connection, which reaches the pod before the
reset. So SETTINGS are sent behind it, whose acknowledgement confirms all that was written before.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http2.client import Http2Client
from activator.data_plane.exchange import PodUser
from activator.runtime.reasons import Reason

UNCONFIRMED_MAX: Final = 1_000  # cancelled requests of one connection that wait for the next acknowledgement


class CancelledStreams:
    """If the pod confirms nothing, the deadline of each exchange ends it."""

    def __init__(self, codec: Http2Client) -> None:
        self._codec = codec
        self._confirmed_next: list[PodUser] = []  # those that the acknowledgement under way confirms
        self._confirmed_later: list[PodUser] = []  # those that were reset after it was asked for

    def add(self, cancelled: PodUser) -> None:
        """Its stream has just been reset."""
        if self._codec.unacknowledged == 0:
            self._confirmed_next.append(cancelled)
            self._codec.ask_for_order()
        elif len(self._confirmed_later) < UNCONFIRMED_MAX:
            self._confirmed_later.append(cancelled)

    def acknowledged(self) -> None:
        """End the streams that were reset before the last SETTINGS: the pod has acknowledged it."""
        if self._codec.unacknowledged > 0:
            return
        confirmed = self._confirmed_next
        self._confirmed_next, self._confirmed_later = self._confirmed_later, []
        if self._confirmed_next:
            self._codec.ask_for_order()
        end_all(confirmed)

    def take(self) -> list[PodUser]:
        """Return all that wait, for `end_all`; none waits from now on."""
        waiting = [*self._confirmed_next, *self._confirmed_later]
        self._confirmed_next, self._confirmed_later = [], []
        return waiting


def end_all(cancelled: list[PodUser]) -> None:
    """Report to each that its stream is over."""
    for one in cancelled:
        one.pod_failed(Reason.POD_CLOSED, "", False)
