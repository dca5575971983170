"""What is known of the objects of one selection, and the handler that receives changes.

Rules
  1. The store is whole before the handler is called: a handler that looks into it sees what it receives.
  2. Per object: an identity (UID) that is replaced is `gone` and then a new one; a change of nothing that counts is not
     reported. A handler that raises is counted and logged; the next change is delivered all the same.
  3. Where a list has an object newer than its events did, what happened between is unknown: that is delivered as
     `missed`, also where the object looks as it did before.
  4. Nothing goes back in time. Resource versions of one resource only grow, so of two reports of one object the one
     with the smaller number is stale (Kubernetes promises this order; where a server's versions are no numbers, the
     last report counts). Only a full list after a break, `replace`, counts whatever it says. An object that a
     comparison removed leaves a tombstone: an event about it that is older is ignored.
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

Told_contra = TypeVar("Told_contra", bound=KubeObject, contravariant=True)


class Handler(Protocol[Told_contra]):
    """Receives changes; plain methods, called within one turn of the loop."""

    def changed(self, old: Told_contra | None, new: Told_contra) -> None:
        """`new` is there (`old` None) or differs from `old`, which had the same UID."""

    def gone(self, old: Told_contra) -> None:
        """Deleted, or no longer selected."""

    def missed(self, new: Told_contra) -> None:
        """Events of it were lost, or are late; its differences, if any, have been delivered."""

    def listed(self, objects: Mapping[Key, Told_contra]) -> None:
        """The store is a whole list now; its differences from before have been delivered. Do not keep `objects`."""


class ObjectStore(Generic[Object]):
    """`received_total`, `unchanged_total`, `stale_total`, `handler_errors_total` count what became of what came in."""

    def __init__(self, name: str, handler: Handler[Object]) -> None:
        self._name = name
        self._handler = handler
        self.objects: dict[Key, Object] = {}
        self._touched: set[Key] | None = None  # by events while a list is under way
        self._tombstones: dict[Key, int] = {}  # removed by a comparison: the version up to which events of it are stale
        self.received_total = 0
        self.unchanged_total = 0
        self.stale_total = 0
        self.handler_errors_total = 0

    @property
    def tombstones(self) -> int:
        """How many removals by comparison are remembered, until the watch is past them."""
        return len(self._tombstones)

    # --- lists ------------------------------------------------------------------------------------------------------

    def replace(self, listed: Mapping[Key, Object]) -> None:
        """A full list: what is not in it is gone."""
        self._tombstones.clear()
        for key in [key for key in self.objects if key not in listed]:
            self._remove(key)
        for item in listed.values():
            old = self.objects.get(item.key)
            self._put(item)
            if old is not None and _is_same_in_another_version(old, item):
                self._deliver_missed(item)
        try:
            self._handler.listed(self.objects)
        except Exception as error:
            self._handler_failed("listed", error)

    def begin_comparison(self) -> None:
        """A list is about to be asked for: from now on events are noted."""
        self._touched = set()

    def end_comparison(self) -> None:
        """However it ended."""
        self._touched = None

    def differing(self, listed: Mapping[Key, VersionOnly], version: str) -> list[Key]:
        """What `compare` would have to look at, by a list of versions alone; for the list the same holds."""
        touched = self._touched or set()
        number = version_number(version)
        found = [key for key in self.objects if key not in listed]
        found = [key for key in found if not _newer(self.objects[key], number, key in touched)]
        return found + [key for key, item in listed.items() if self._is_behind(key, item.metadata, key in touched)]

    def compare(self, listed: Mapping[Key, Object], version: str, scope: Scope | None) -> Counter[str]:
        """Repair what events have missed, by a list that is at `version`; how often which kind of miss was found.

        The list was read from the source itself after `begin_comparison`, so it is no older than what was known then.
        """
        touched = self._touched or set()
        number = version_number(version)
        repairs: Counter[str] = Counter()
        for key, old in list(self.objects.items()):
            if key not in listed and _in_scope(scope, old.metadata) and not _newer(old, number, key in touched):
                repairs["missed_delete"] += 1
                self._remove(key)
                if number is not None:
                    self._tombstones[key] = number
        for key, item in listed.items():
            kind = self._missed(item, key in touched)
            if kind:
                repairs[kind] += 1
                self._put(item)
                if kind in ("missed_change", "version_only"):
                    self._deliver_missed(item)
        return repairs

    def _missed(self, item: Object, touched: bool) -> str:
        """The kind of miss that a listed object shows; empty: none."""
        if not self._is_behind(item.key, item.metadata, touched):
            return ""
        old = self.objects.get(item.key)
        if old is None:
            return "missed_add"
        if old.metadata.uid != item.metadata.uid:
            return "missed_recreate"
        return "version_only" if unchanged(old, item) else "missed_change"

    def _is_behind(self, key: Key, listed: Metadata | Version, touched: bool) -> bool:
        """Whether what is known of an object is older than what a list says."""
        old = self.objects.get(key)
        if old is None:
            return not touched  # touched: deleted while the list was under way
        known = old.metadata.resource_version
        if listed.resource_version == known:
            return False
        before, now = version_number(known), version_number(listed.resource_version)
        return now > before if now is not None and before is not None else not touched

    # --- events -----------------------------------------------------------------------------------------------------

    def added_or_modified(self, new: Object) -> None:
        """An ADDED or MODIFIED event; which of the two is the server's view, not ours."""
        old = self.objects.get(new.key)
        number = version_number(new.metadata.resource_version)
        if number is not None and self._is_stale(new.key, old, number):
            self.stale_total += 1
            return
        self._touch(new.key)
        self._put(new)

    def deleted(self, metadata: Metadata) -> None:
        """A DELETED event: the object was deleted, or is no longer selected."""
        key = (metadata.namespace, metadata.name)
        old = self.objects.get(key)
        if old is None:
            return
        number = version_number(metadata.resource_version)
        known = version_number(old.metadata.resource_version)
        if old.metadata.uid != metadata.uid or (number is not None and known is not None and number < known):
            self.stale_total += 1
            return
        self._touch(key)
        self._remove(key)

    def _is_stale(self, key: Key, old: Object | None, number: int) -> bool:
        if self._tombstones and key in self._tombstones:
            if number <= self._tombstones[key]:
                return True
            del self._tombstones[key]
        known = None if old is None else version_number(old.metadata.resource_version)
        return known is not None and number <= known

    def progressed(self, version: str) -> None:
        """The watch is at `version`: tombstones up to it are dropped, since no older event can arrive."""
        if self._tombstones:
            number = version_number(version)
            if number is not None:
                self._tombstones = {key: marked for key, marked in self._tombstones.items() if marked > number}

    def _touch(self, key: Key) -> None:
        if self._touched is not None:
            self._touched.add(key)

    # --- both -------------------------------------------------------------------------------------------------------

    def _put(self, new: Object) -> None:
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

    def _deliver_missed(self, new: Object) -> None:
        try:
            self._handler.missed(new)
        except Exception as error:
            self._handler_failed("missed", error)

    def _remove(self, key: Key) -> None:
        old = self.objects.pop(key)
        self.received_total += 1
        try:
            self._handler.gone(old)
        except Exception as error:
            self._handler_failed("gone", error)

    def _handler_failed(self, method: str, error: Exception) -> None:
        self.handler_errors_total += 1
        log.error("%s: the handler's `%s` failed", self._name, method, exc_info=error)


def version_number(version: str) -> int | None:
    """A resource version as a number; None if it is none."""
    return int(version) if version.isascii() and version.isdigit() else None


def _is_same_in_another_version(old: KubeObject, new: KubeObject) -> bool:
    return old.metadata.uid == new.metadata.uid and old.metadata.resource_version != new.metadata.resource_version


def _newer(old: KubeObject, list_number: int | None, touched: bool) -> bool:
    """Whether what is known is newer than the list in which it is missing."""
    known = version_number(old.metadata.resource_version)
    if list_number is None or known is None:
        return touched
    return known > list_number


def _in_scope(scope: Scope | None, metadata: Metadata) -> bool:
    return scope is None or scope.holds(metadata.namespace, metadata.name, metadata.labels)
