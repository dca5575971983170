"""What a throttler reports to those above it; `data_plane/plane.py` hands in one that posts messages."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotEvents:
    """All of it is about one revision, named by `key`; `epoch` is the pod's (lb/tracker.py)."""

    def activated(self, key: str) -> None:
        """The first request after a silence."""
        raise NotImplementedError

    def wanted(self, key: str) -> None:
        """A line has formed: requests wait and no slot is free."""
        raise NotImplementedError

    def drained(self, key: str, slot: int, generation: int) -> None:
        """The last request of a draining slot has ended."""
        raise NotImplementedError

    def departed(self, key: str, identity: str) -> None:
        """The last request at a pod of a removed revision has ended; nothing more is reported of its slot."""
        raise NotImplementedError

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        """The one request that a recovering pod was tried with has ended."""
        raise NotImplementedError

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        """A pod did not take a connection (dead), or was silent, or broke one; `reason`: the value of a `Reason`."""
        raise NotImplementedError

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        """A pod that takes one request has been given it; or it is over there, or has failed there."""

    def suspected(self, key: str, identity: str) -> None:
        """Another member has found that a pod takes no connections, and reports it: the pod is suspected here, too."""

    def served(self, key: str, identity: str, epoch: int) -> None:
        """A pod that was silent or broke a connection has answered a request."""
        raise NotImplementedError

    def failed(self, key: str, error: Exception) -> None:
        """A waiter raised when it was granted a slot or refused one: a defect of ours; the line goes on."""
        raise NotImplementedError
