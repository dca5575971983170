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
        gone: Callable[[Any], None],
        missed: Callable[[Any], None] | None = None,
        moves: bool = False,
    ) -> None:
        self._changed = changed
        self._gone = gone
        self._missed = missed
        self._moves = moves

    def changed(self, old: Any, new: Any) -> None:
        if self._moves and old is not None and owner_key(old) != owner_key(new):
            self._gone(old)
        self._changed(new)

    def gone(self, old: Any) -> None:
        self._gone(old)

    def missed(self, new: Any) -> None:
        """Handle an object whose events were lost; its present state has been delivered."""
        if self._missed is not None:
            self._missed(new)

    def listed(self, objects: Mapping[Key, Any]) -> None:
        """Do nothing: the differences have been delivered one by one."""


def owner_key(one: KubeObject) -> str:
    """Return the revision that the object's label names; empty if it names none."""
    name = one.metadata.labels.get(ACTIVATION_LABEL, "")
    return f"{one.metadata.namespace}/{name}" if name else ""
