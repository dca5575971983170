"""The handler of the watches on declared revisions: it handles one object at a time; lists need no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from activator.control_plane.reconcile.desired import ACTIVATION_LABEL
from activator.kubernetes.objects import Key, KubeObject


class ObjectHandler:
    """The handler of one watch. `moves`: a change of its label moves an object to another revision."""

    def __init__(
        self,
        changed: Callable[[Any], None],
        removed: Callable[[Any], None],
        resync: Callable[[Any], None] | None = None,
        moves: bool = False,
    ) -> None:
        self._changed = changed
        self._removed = removed
        self._resync = resync
        self._moves = moves

    def changed(self, old: Any, new: Any) -> None:
        if self._moves and old is not None and owner_key(old) != owner_key(new):
            self._removed(old)
        self._changed(new)

    def removed(self, old: Any) -> None:
        self._removed(old)

    def resync(self, new: Any) -> None:
        """Handle an object whose events were lost; its present state has been delivered."""
        if self._resync is not None:
            self._resync(new)

    def listed(self, objects: Mapping[Key, Any]) -> None:
        """Do nothing: the differences have been delivered one by one."""


def owner_key(one: KubeObject) -> str:
    """Return the revision that the object's label names; empty if it names none."""
    name = one.metadata.labels.get(ACTIVATION_LABEL, "")
    return f"{one.metadata.namespace}/{name}" if name else ""
