"""The interface of observers of a body."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.runtime.clock import Deadline


@mypyc_attr(allow_interpreted_subclasses=True)
class BodyWatcher(Deadline):
    """An observer of a tunnel, or of the response body of another request, until the request ends.

    It may use the timing wheel for its own purposes.
    """

    def client_sent(self, data: bytes) -> None:
        """Handle bytes that the client has sent through a tunnel."""

    def pod_sent(self, data: bytes) -> None:
        """Handle bytes that the pod has sent."""

    def stop(self) -> None:
        """Release all timers and references to the request, which is over."""
