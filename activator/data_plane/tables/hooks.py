"""The interface that `RevisionTables` (apply.py) calls: the layers above implement it."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.policy import Policy
from lb.slots import Trim
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class TableHooks:
    """The calls of `RevisionTables` to the layers above; implemented by `plane.py`."""

    def make_policy(self, name: str) -> Policy:
        raise NotImplementedError

    def revision_set(self, throttler: RevisionThrottler) -> None:
        """Route the hosts of the revision."""
        raise NotImplementedError

    def revision_dropped(self, throttler: RevisionThrottler) -> None:
        raise NotImplementedError

    def revision_ended(self, throttler: RevisionThrottler) -> None:
        """Handle the end of the last request of a removed revision."""
        raise NotImplementedError

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        """Attach a connection pool to the slot."""
        raise NotImplementedError

    def pod_withdrawn(self, attachment: object) -> None:
        """Close the pool."""
        raise NotImplementedError

    def address_taken(self, attachment: object) -> None:
        """Handle a draining pod whose address another pod has; the draining one may have ended."""
        raise NotImplementedError

    def pod_drained(self, key: str, identity: str) -> None:
        """Handle the end of the last request of a withdrawn pod."""
        raise NotImplementedError

    def pod_unplaced(self, key: str, identity: str) -> None:
        raise NotImplementedError

    def drain_expired(self, key: str, slot: int, generation: int) -> None:
        raise NotImplementedError

    def trimmed(self, key: str, trim: Trim) -> None:
        """Log that a table has released trailing empty slots."""
        raise NotImplementedError

    def failed(self, effect: object, error: Exception) -> None:
        """Handle an effect that could not be applied."""
        raise NotImplementedError

    def broken(self, key: str, cause: str, kind: str) -> None:
        """Handle a revision whose state cannot be trusted."""
        raise NotImplementedError
