"""One pass over one Activation: what its components share."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.desired import Desired, StatusSeen
from activator.control_plane.reconcile.memory import Memory
from activator.control_plane.reconcile.reads import Reads
from activator.control_plane.reconcile.writer import Writer
from activator.runtime.clock import Now


class Pass:
    """`skips`: what a comparison finds unchanged is not sent; False is for measurements."""

    __slots__ = ("desired", "memory", "now", "reads", "skips", "wall_s", "writer")

    def __init__(
        self,
        desired: Desired,
        memory: Memory,
        reads: Reads,
        writer: Writer,
        now: Now,
        wall_s: Callable[[], float],
        skips: bool,
    ) -> None:
        self.desired = desired
        self.memory = memory
        self.reads = reads
        self.writer = writer
        self.now = now
        self.wall_s = wall_s
        self.skips = skips

    async def status(self, fresh: bool = False) -> StatusSeen | None:
        """The Activation's status; None: it is gone, or another one has its name.

        `fresh`: read it, whatever is known.
        """
        known: StatusSeen | UnsetType | None = UNSET
        if not fresh:
            known = self.memory.known_status(self.desired, self.now())
        if known is UNSET:
            body = await self.reads.activation()
            known = None if body is None else wire.status_seen(body)
            self.memory.says_status(known, self.now())
        assert not isinstance(known, UnsetType)
        return known if known is not None and known.uid == self.desired.uid else None
