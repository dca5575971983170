"""The pods of a Service's EndpointSlices, read slice by slice: an event costs in proportion to the size of its slice.

A Service of 10,000 pods has a hundred slices, and each pod that comes, goes or becomes ready changes one of them.
Reading all endpoints for each such event took 19 ms.

Rule: after any sequence of events the pods are those that `of_slices` reads from all slices; new pods also have the
order in which it returns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from activator.control_plane.sources.cluster.backends import Backend, by_family, merged_record, of_slice
from activator.kubernetes.objects import EndpointSlice


class _Entry(NamedTuple):
    """A pod in one slice, with its position."""

    backend: Backend
    position: int


class SliceIndex:
    """The slices of one Service as they were last read, for the ports of this name."""

    def __init__(self, port_name: str) -> None:
        self.pods: dict[str, Backend] = {}  # by identity; those of one read are sorted by address
        self._port_name = port_name
        self._entries: dict[str, dict[str, _Entry]] = {}  # by slice, then by identity
        self._ranks: dict[str, tuple[bool, str]] = {}  # by slice: its sort key in the order of reading
        self._slices_of: dict[str, tuple[str, ...]] = {}  # by identity; several while a pod is moved between slices

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, changed: Mapping[str, EndpointSlice | None]) -> dict[str, Backend | None]:
        """Read the changed slices; return the changed pods, removed ones (None) first, then sorted by address.

        `changed`: slices by name; None: the slice was removed.
        """
        touched: dict[str, None] = {}
        for name, changed_slice in changed.items():
            self._replace(name, changed_slice, touched)
        changed_pods: dict[str, Backend | None] = {}
        updated: dict[str, Backend] = {}
        for identity in touched:
            merged = self._merged(identity)
            if merged is None:
                if self.pods.pop(identity, None) is not None:
                    changed_pods[identity] = None
            elif self.pods.get(identity) != merged:
                updated[identity] = merged
        for backend in sorted(updated.values(), key=self._sort_key):
            changed_pods[backend.identity] = self.pods[backend.identity] = backend
        return changed_pods

    def _replace(self, name: str, changed: EndpointSlice | None, touched: dict[str, None]) -> None:
        """Read one slice; add the identities of its changed pods to `touched`."""
        before = self._entries.pop(name, {})
        after: dict[str, _Entry] = {}
        if changed is not None:
            backends = of_slice(changed, self._port_name)
            after = {
                identity: _Entry(backend, position) for position, (identity, backend) in enumerate(backends.items())
            }
            self._entries[name] = after
            self._ranks[name] = by_family(changed)
        else:
            self._ranks.pop(name, None)
        for identity in before.keys() - after.keys():
            others = tuple([other for other in self._slices_of[identity] if other != name])
            if others:
                self._slices_of[identity] = others
            else:
                del self._slices_of[identity]
            touched[identity] = None
        for identity, entry in after.items():
            known = before.get(identity)
            if known is None:
                self._slices_of[identity] = (*self._slices_of.get(identity, ()), name)
            if known is None or known.backend != entry.backend:
                touched[identity] = None

    def _merged(self, identity: str) -> Backend | None:
        """Return the pod from all slices that have it; None if none has."""
        merged = None
        for name in self._slices_in_order(identity):
            merged = merged_record(merged, self._entries[name][identity].backend)
        return merged

    def _slices_in_order(self, identity: str) -> Iterable[str]:
        """Return the slices that have the pod, in the order of reading."""
        names = self._slices_of.get(identity, ())
        return names if len(names) < 2 else sorted(names, key=self._ranks.__getitem__)

    def _sort_key(self, pod: Backend) -> tuple[str, tuple[bool, str], int]:
        """Return the key that sorts pods by address, and those of one address as `of_slices` does."""
        first = next(iter(self._slices_in_order(pod.identity)))
        return pod.address, self._ranks[first], self._entries[first][pod.identity].position
