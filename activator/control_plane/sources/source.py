"""The interface of a source: one origin of revisions, of pods, or of both.

A source is a class in a folder of its own that overrides the methods it needs, and a line in
`app/sources.py` that creates it if the configuration enables it. It submits changes (`messages/`); the state worker
decides.
"""

from __future__ import annotations

from activator.control_plane.scaling.autoscaler import LastDecision
from activator.messages import Effect, Load, PodTaken


class Source:
    """The base class of all sources. Methods that are not coroutines run on the event loop and must not block."""

    async def start(self) -> None:
        """Begin to submit. Raises StartError with an instruction."""

    async def close(self) -> None:
        """Release everything; nothing is submitted afterwards."""

    def declares(self, key: str) -> bool:
        """Return True if the revision exists because this source declares it."""
        return False

    def resubmit(self, key: str) -> None:
        """Submit the whole revision again, or its removal, because changes of it were lost.

        The whole is submitted because later changes may have had no effect without the lost ones.
        """

    def receive_load(self, load: Load) -> None:
        """Receive the present load of a revision."""

    def receive_taken(self, taken: PodTaken) -> None:
        """Record that a pod that serves a single request has received it."""

    def receive_drained(self, key: str, identity: str) -> None:
        """Record that a withdrawn pod has finished its requests."""

    def applied(self, effects: list[Effect]) -> None:
        """Receive the effects that the model has applied and the data plane has received."""

    def scaling(self, key: str) -> LastDecision | None:
        """Return the last scaling decision for the revision; None if this source does not scale it."""
        return None

    def pending(self) -> list[str]:
        """Return what this source has to receive before the activator is ready to serve, as reasons for people.

        A source of revisions is pending until it has listed them once: until then no request is rejected for the lack
        of a revision.
        """
        return []
