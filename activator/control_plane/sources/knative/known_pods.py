"""The pods of a revision from their endpoints, with their readiness history.

A pod that was ready for Kubernetes and becomes unready has a *flip*. A pod also has one if it was and is ready while
events of it were lost. The number of its flips goes to the state worker as the number of its restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from activator.control_plane.sources.cluster.backends import Backend, by_address

_TLS_PORT: Final = 8112


class KnownPods:
    """The pods by identity. With TLS they are reached at another port than their endpoints name."""

    def __init__(self) -> None:
        self.ready: dict[str, str] = {}  # ready for Kubernetes and not terminating: identity → address
        self._backends: dict[str, Backend] = {}
        self._by_address: dict[str, tuple[str, ...]] = {}  # identities by address; nearly always one
        self._flips: dict[str, int] = {}
        self._was_ready: dict[str, bool] = {}
        self._doubted: dict[str, None] = {}  # pods with a flip that no endpoint shows

    def __len__(self) -> int:
        return len(self._backends)

    def __contains__(self, identity: str) -> bool:
        return identity in self._backends

    def get(self, identity: str) -> Backend | None:
        return self._backends.get(identity)

    def all(self) -> list[Backend]:
        """Return all pods, sorted by address; those at the same address in the order in which they came."""
        return sorted(self._backends.values(), key=by_address)

    def at(self, address: str) -> tuple[str, ...]:
        """Return the identities of the pods at an address."""
        return self._by_address.get(address, ())

    def flips(self, identity: str) -> int:
        return self._flips[identity]

    def read_all(self, backends: Mapping[str, Backend], with_tls: bool) -> None:
        """Replace all pods with these."""
        self._backends, self._by_address, self.ready, self._doubted = {}, {}, {}, {}
        for identity in [identity for identity in self._flips if identity not in backends]:
            del self._flips[identity], self._was_ready[identity]
        self.read(backends, with_tls)

    def read(self, backends: Mapping[str, Backend | None], with_tls: bool) -> dict[str, None]:
        """Update these pods; None: removed. Return the identities of all pods that may have changed."""
        for identity, reported in backends.items():
            before = self._backends.get(identity)
            after = reported
            if reported is not None and with_tls:
                after = reported._replace(address=with_port(reported.address, _TLS_PORT))
            if before is not None and (after is None or after.address != before.address):
                self._remove(before)
                before = None
            if after is None:
                self._flips.pop(identity, None)
                self._was_ready.pop(identity, None)
                self.ready.pop(identity, None)
                continue
            if before is None:
                self._by_address[after.address] = (*self.at(after.address), identity)
            self._backends[identity] = after
            self._record_readiness(after)
        doubted, self._doubted = self._doubted, {}
        return dict.fromkeys(backends) | doubted

    def events_lost(self, backends: Iterable[Backend]) -> None:
        """Record that events of these pods were lost, and that this is their present state."""
        for backend in backends:
            if backend.ready and self._was_ready.get(backend.identity, False):
                self._flips[backend.identity] += 1
                self._doubted[backend.identity] = None

    def _remove(self, backend: Backend) -> None:
        del self._backends[backend.identity]
        others = tuple([other for other in self._by_address[backend.address] if other != backend.identity])
        if others:
            self._by_address[backend.address] = others
        else:
            del self._by_address[backend.address]

    def _record_readiness(self, backend: Backend) -> None:
        """Record whether the pod is ready; count a flip if it was ready and is not any more."""
        flips = self._flips.get(backend.identity, 0)
        if self._was_ready.get(backend.identity, False) and not backend.ready and not backend.terminating:
            flips += 1
        self._flips[backend.identity] = flips
        self._was_ready[backend.identity] = backend.ready
        if backend.ready and not backend.terminating:
            self.ready[backend.identity] = backend.address
        else:
            self.ready.pop(backend.identity, None)


def with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
