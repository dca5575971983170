"""One pass over one Activation: the state that its components share."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.desired import Desired, ObservedStatus
from activator.control_plane.reconcile.observed_cache import ObservedCache
from activator.control_plane.reconcile.reads import Reads
from activator.control_plane.reconcile.report import Component
from activator.control_plane.reconcile.writer import Writer
from activator.runtime.clock import Now


class ReconcileRun:
    """The desired and the known state, and the means to read and write."""

    __slots__ = ("desired", "memory", "now", "reads", "wall_s", "writer")

    def __init__(
        self,
        desired: Desired,
        memory: ObservedCache,
        reads: Reads,
        writer: Writer,
        now: Now,
        wall_s: Callable[[], float],
    ) -> None:
        self.desired = desired
        self.memory = memory
        self.reads = reads
        self.writer = writer
        self.now = now
        self.wall_s = wall_s

    def count_if_unchanged(self, component: Component, is_same: bool) -> bool:
        """Count the saved write if the desired state is there already (`is_same`); return `is_same`."""
        if is_same:
            self.writer.count_unchanged(component)
        return is_same

    async def status(self, fresh: bool = False) -> ObservedStatus | None:
        """Return the Activation's status; None: it was deleted, or another one has its name.

        `fresh`: read it even if it is known.
        """
        known: ObservedStatus | UnsetType | None = UNSET
        if not fresh:
            known = self.memory.known_status(self.desired, self.now())
        if known is UNSET:
            body = await self.reads.activation()
            known = None if body is None else wire.status_seen(body)
            self.memory.store_status(known, self.now())
        assert not isinstance(known, UnsetType)
        return known if known is not None and known.uid == self.desired.uid else None
