"""The store of the objects of one selection, and the protocol of the handler that receives changes.

Rules
  1. The store is updated before the handler is called, so a handler that reads it finds the new state.
  2. An object whose UID changes is reported as `removed` and then as a new one. A change of irrelevant fields is not
     reported. An exception of a handler is counted and logged; the next change is still delivered.
  3. If a list has an object that is newer than its events, the changes between are unknown: the object is delivered by
     `resync`. This also holds for an object whose events were missed but whose final state is unchanged.
  4. The state never goes back in time. Resource versions of one resource only grow, so of two reports of one object the
     one with the smaller number is stale (Kubernetes guarantees this order; if a server's versions are not numbers, the
     last report counts). Only a full list after a break, `replace`, always counts. An object that a comparison removed
     leaves a tombstone: an older event of it is ignored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from activator.kubernetes.objects import (
    Key,
    KubeObject,
    Metadata,
    Object,
    Version,
    VersionOnly,
    unchanged,
)
from activator.kubernetes.resources import Scope

log = logging.getLogger("activator.kubernetes")

Object_contra = TypeVar("Object_contra", bound=KubeObject, contravariant=True)


class Handler(Protocol[Object_contra]):
    """Receives changes. Its methods are plain functions, called within one turn of the loop."""

    def changed(self, old: Object_contra | None, new: Object_contra) -> None:
        """Handle a new object (`old` None), or one that differs from `old`, which has the same UID."""

    def removed(self, old: Object_contra) -> None:
        """Handle an object that was deleted or is no longer selected."""

    def resync(self, new: Object_contra) -> None:
        """Handle an object whose events were lost or are late; its differences, if any, have been delivered."""

    def listed(self, objects: Mapping[Key, Object_contra]) -> None:
        """Handle a whole list, which the store equals now; differences have been delivered. Do not keep `objects`."""


class ObjectStore(Generic[Object]):
    """The objects of one selection.

    `received_total`, `unchanged_total`, `stale_total` and `handler_errors_total` count reports by result.
    """

    def __init__(self, name: str, handler: Handler[Object]) -> None:
        self._name = name
        self._handler = handler
        self.objects: dict[Key, Object] = {}
        self._with_event: set[Key] | None = (
            None  # objects with an event since `begin_comparison`; None: none is under way
        )
        self._tombstones: dict[Key, int] = {}  # by key of a removed object: up to which version events are stale
        self.received_total = 0
        self.unchanged_total = 0
        self.stale_total = 0
        self.handler_errors_total = 0

    @property
    def tombstones(self) -> int:
        """The number of tombstones; the watch removes them once it is past their versions."""
        return len(self._tombstones)

    # --- lists ------------------------------------------------------------------------------------------------------

    def replace(self, listed: Mapping[Key, Object]) -> None:
        """Replace the state by a full list; objects that are not in it are removed."""
        self._tombstones.clear()
        for key in [key for key in self.objects if key not in listed]:
            self._remove(key)
        for item in listed.values():
            old = self.objects.get(item.key)
            self._put(item)
            if old is not None and _is_same_in_another_version(old, item):
                self._deliver_resync(item)
        try:
            self._handler.listed(self.objects)
        except Exception as error:
            self._handler_failed("listed", error)

    def begin_comparison(self) -> None:
        """Note which objects have events from now on; call it before the list for a comparison is requested."""
        self._with_event = set()

    def end_comparison(self) -> None:
        """Stop noting events, whether or not the comparison succeeded."""
        self._with_event = None

    def differing(self, listed: Mapping[Key, VersionOnly], version: str) -> list[Key]:
        """Return the keys of the objects that `repair` needs, from a list of versions, which is as for `repair`."""
        with_event = self._with_event or set()
        number = version_number(version)
        unlisted = [key for key in self.objects if key not in listed]
        unlisted = [key for key in unlisted if not _is_newer(self.objects[key], number, key in with_event)]
        return unlisted + [
            key for key, item in listed.items() if self._is_behind(key, item.metadata, key in with_event)
        ]

    def repair(self, listed: Mapping[Key, Object], version: str, scope: Scope | None) -> Counter[str]:
        """Repair missed events from a list at `version`; return how often each kind of miss was found.

        The list was read from the source itself after `begin_comparison`, so it is no older than the store was then.
        """
        with_event = self._with_event or set()
        number = version_number(version)
        repairs: Counter[str] = Counter()
        for key, old in list(self.objects.items()):
            if key not in listed and _in_scope(scope, old.metadata) and not _is_newer(old, number, key in with_event):
                repairs["missed_delete"] += 1
                self._remove(key)
                if number is not None:
                    self._tombstones[key] = number
        for key, item in listed.items():
            miss = self._miss(item, key in with_event)
            if miss:
                repairs[miss] += 1
                self._put(item)
                if miss in ("missed_change", "version_only"):
                    self._deliver_resync(item)
        return repairs

    def _miss(self, item: Object, had_event: bool) -> str:
        """Return the kind of miss that a listed object shows; empty: none."""
        if not self._is_behind(item.key, item.metadata, had_event):
            return ""
        old = self.objects.get(item.key)
        if old is None:
            return "missed_add"
        if old.metadata.uid != item.metadata.uid:
            return "missed_recreate"
        return "version_only" if unchanged(old, item) else "missed_change"

    def _is_behind(self, key: Key, listed: Metadata | Version, had_event: bool) -> bool:
        """Return True if the store's state of an object is older than the list's."""
        old = self.objects.get(key)
        if old is None:
            return not had_event  # else it was deleted during the list
        known = old.metadata.resource_version
        if listed.resource_version == known:
            return False
        before, now = version_number(known), version_number(listed.resource_version)
        return now > before if now is not None and before is not None else not had_event

    # --- events -----------------------------------------------------------------------------------------------------

    def added_or_modified(self, new: Object) -> None:
        """Apply an ADDED or MODIFIED event; its type reflects the server's view, not the store's."""
        old = self.objects.get(new.key)
        number = version_number(new.metadata.resource_version)
        if number is not None and self._is_stale(new.key, old, number):
            self.stale_total += 1
            return
        self._note_event(new.key)
        self._put(new)

    def deleted(self, metadata: Metadata) -> None:
        """Apply a DELETED event: the object was deleted or is no longer selected."""
        key = (metadata.namespace, metadata.name)
        old = self.objects.get(key)
        if old is None:
            return
        number = version_number(metadata.resource_version)
        known = version_number(old.metadata.resource_version)
        if old.metadata.uid != metadata.uid or (number is not None and known is not None and number < known):
            self.stale_total += 1
            return
        self._note_event(key)
        self._remove(key)

    def _is_stale(self, key: Key, old: Object | None, number: int) -> bool:
        """Return True if an event with this version is older than the store; a newer one ends the tombstone."""
        if self._tombstones and key in self._tombstones:
            if number <= self._tombstones[key]:
                return True
            del self._tombstones[key]
        known = None if old is None else version_number(old.metadata.resource_version)
        return known is not None and number <= known

    def drop_tombstones(self, version: str) -> None:
        """Drop the tombstones up to `version`, which the watch has reached: no older event can arrive."""
        if self._tombstones:
            number = version_number(version)
            if number is not None:
                self._tombstones = {key: until for key, until in self._tombstones.items() if until > number}

    def _note_event(self, key: Key) -> None:
        if self._with_event is not None:
            self._with_event.add(key)

    # --- lists and events ---------------------------------------------------------------------------------------------

    def _put(self, new: Object) -> None:
        """Store the object, and report a change to the handler."""
        old = self.objects.get(new.key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._remove(new.key)
            old = None
        self.objects[new.key] = new
        if old is not None and unchanged(old, new):
            self.unchanged_total += 1
            return
        self.received_total += 1
        try:
            self._handler.changed(old, new)
        except Exception as error:
            self._handler_failed("changed", error)

    def _deliver_resync(self, new: Object) -> None:
        try:
            self._handler.resync(new)
        except Exception as error:
            self._handler_failed("resync", error)

    def _remove(self, key: Key) -> None:
        old = self.objects.pop(key)
        self.received_total += 1
        try:
            self._handler.removed(old)
        except Exception as error:
            self._handler_failed("removed", error)

    def _handler_failed(self, method: str, error: Exception) -> None:
        self.handler_errors_total += 1
        log.error("%s: the handler's `%s` failed", self._name, method, exc_info=error)


def version_number(version: str) -> int | None:
    """Return a resource version as a number; None if it is not a number."""
    return int(version) if version.isascii() and version.isdigit() else None


def _is_same_in_another_version(old: KubeObject, new: KubeObject) -> bool:
    return old.metadata.uid == new.metadata.uid and old.metadata.resource_version != new.metadata.resource_version


def _is_newer(old: KubeObject, list_number: int | None, had_event: bool) -> bool:
    """Return True if the store's object is newer than the list that does not have it."""
    known = version_number(old.metadata.resource_version)
    if list_number is None or known is None:
        return had_event
    return known > list_number


def _in_scope(scope: Scope | None, metadata: Metadata) -> bool:
    return scope is None or scope.holds(metadata.namespace, metadata.name, metadata.labels)
