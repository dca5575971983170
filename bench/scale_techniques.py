"""The techniques that make the reconciler's passes cheap, each of which can be disabled to measure its benefit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from activator.control_plane.reconcile.desired import Desired
from activator.control_plane.reconcile.groups import Groups
from activator.control_plane.reconcile.reads import Reads
from activator.control_plane.reconcile.reconciler import Reconciler
from activator.control_plane.reconcile.report import Component
from activator.control_plane.reconcile.run import ReconcileRun


class Techniques(msgspec.Struct, frozen=True):
    """Read everything once per pass; run the components of a group concurrently; write only changes."""

    memoised_reads: bool = True
    groups: bool = True
    skip_unchanged: bool = True


class MeasuredReconciler(Reconciler):
    """The reconciler with a part of its techniques."""

    def __init__(self, *parts: Any, techniques: Techniques, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._techniques = techniques

    def _is_established(self, desired: Desired) -> bool:
        return self._techniques.skip_unchanged and super()._is_established(desired)

    def _new_run(self, desired: Desired) -> ReconcileRun:
        kind = ReconcileRun if self._techniques.skip_unchanged else _WritingPass
        reads = Reads if self._techniques.memoised_reads else FreshReads
        memory = self._memories[desired.key]
        return kind(desired, memory, reads(self._api, desired), self._writer, self._now, self._wall_s)

    def _groups(self, desired: Desired) -> Groups:
        groups = super()._groups(desired)
        return groups if self._techniques.groups else tuple((component,) for group in groups for component in group)


class _WritingPass(ReconcileRun):
    """A pass that writes the object after every comparison."""

    __slots__ = ()

    def count_if_unchanged(self, component: Component, is_same: bool) -> bool:
        return False


class FreshReads(Reads):
    """Reads that do not share their results."""

    async def _once(self, path: str, verb: str, call: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        self.forget()
        return await super()._once(path, verb, call)
