"""What a source is: one origin of revisions, of pods, or of both.

A source is a class in a folder of its own that overrides what applies to it, and a line in `app/sources.py`
that makes it where the configuration asks for it. What it knows it submits as changes (`messages/`); the state worker
decides.
"""

from __future__ import annotations

from activator.control_plane.scaling.autoscaler import Shown
from activator.messages import Effect, Load, PodTaken


class Source:
    """By itself a source of nothing. Methods that are no coroutines return at once: they hold the event loop."""

    async def start(self) -> None:
        """Begin to submit. Raises StartError with what to do."""

    async def close(self) -> None:
        """Release everything; nothing is submitted afterwards."""

    def declares(self, key: str) -> bool:
        """Whether the revision exists because this source says so."""
        return False

    def resubmit(self, key: str) -> None:
        """Changes of this revision were lost: submit all of it again, also if the revision is gone.

        All of it, since what was submitted after a lost change may have had no effect without it.
        """

    def receive_load(self, load: Load) -> None:
        """A revision's load now."""

    def receive_taken(self, taken: PodTaken) -> None:
        """A pod that takes one request has it."""

    def receive_drained(self, key: str, identity: str) -> None:
        """A withdrawn pod has no request any more."""

    def applied(self, effects: list[Effect]) -> None:
        """The model is as these say, and the data plane has received them."""

    def scaling(self, key: str) -> Shown | None:
        """The last decision about how many pods the revision should have; None: this source does not scale it."""
        return None

    def pending(self) -> list[str]:
        """Return what this source has to receive before the program is ready to serve; reasons for an operator.

        A source of revisions is pending until it has listed them once: until then no request is refused for good
        because no revision serves it.
        """
        return []
