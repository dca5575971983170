"""The cancelled requests of one HTTP/2 connection to a pod, until the pod has processed their resets.

If a slot were released earlier, it could be granted to a request on another connection that reaches the pod before the
reset. A SETTINGS frame is therefore sent after the reset; its acknowledgement confirms all frames before it.
"""

from __future__ import annotations

from typing import Final

from activator.codec.http2.client import Http2Client
from activator.data_plane.streams import PodUser
from activator.runtime.reasons import Reason

UNCONFIRMED_MAX: Final = 1_000  # per connection, waiting for the next acknowledgement


class CancelledStreams:
    """The cancelled requests of one connection. If the pod confirms nothing, the deadline of each request ends it."""

    def __init__(self, codec: Http2Client) -> None:
        self._codec = codec
        self._confirmed_next: list[PodUser] = []  # confirmed by the pending acknowledgement
        self._confirmed_later: list[PodUser] = []  # reset after the pending SETTINGS were sent

    def add(self, cancelled: PodUser) -> None:
        """Add a request whose stream has just been reset."""
        if self._codec.unacknowledged == 0:
            self._confirmed_next.append(cancelled)
            self._codec.ask_for_order()
        elif len(self._confirmed_later) < UNCONFIRMED_MAX:
            self._confirmed_later.append(cancelled)

    def acknowledged(self) -> None:
        """End the requests whose streams were reset before the SETTINGS that the pod has acknowledged."""
        if self._codec.unacknowledged > 0:
            return
        confirmed = self._confirmed_next
        self._confirmed_next, self._confirmed_later = self._confirmed_later, []
        if self._confirmed_next:
            self._codec.ask_for_order()
        end_all(confirmed)

    def remove_all(self) -> list[PodUser]:
        """Remove and return all waiting requests, to be passed to `end_all`."""
        waiting = [*self._confirmed_next, *self._confirmed_later]
        self._confirmed_next, self._confirmed_later = [], []
        return waiting


def end_all(cancelled: list[PodUser]) -> None:
    """Report the end of its stream to each request."""
    for request in cancelled:
        request.pod_failed(Reason.POD_CLOSED, "", False)
