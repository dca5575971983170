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
        self._at: dict[str, tuple[str, ...]] = {}  # identities by address; nearly always one
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
        return self._at.get(address, ())

    def flips(self, identity: str) -> int:
        return self._flips[identity]

    def read_all(self, backends: Mapping[str, Backend], with_tls: bool) -> None:
        """Replace all pods with these."""
        self._backends, self._at, self.ready, self._doubted = {}, {}, {}, {}
        for identity in [identity for identity in self._flips if identity not in backends]:
            del self._flips[identity], self._was_ready[identity]
        self.read(backends, with_tls)

    def read(self, backends: Mapping[str, Backend | None], with_tls: bool) -> dict[str, None]:
        """Update these pods; None: removed. Return the identities of all pods that may have changed."""
        for identity, one in backends.items():
            before = self._backends.get(identity)
            now = one._replace(address=with_port(one.address, _TLS_PORT)) if one is not None and with_tls else one
            if before is not None and (now is None or now.address != before.address):
                self._leave(before)
                before = None
            if now is None:
                self._flips.pop(identity, None)
                self._was_ready.pop(identity, None)
                self.ready.pop(identity, None)
                continue
            if before is None:
                self._at[now.address] = (*self.at(now.address), identity)
            self._backends[identity] = now
            self._note_readiness(now)
        doubted, self._doubted = self._doubted, {}
        return dict.fromkeys(backends) | doubted

    def events_lost(self, backends: Iterable[Backend]) -> None:
        """Record that events of these pods were lost, and that this is their present state."""
        for one in backends:
            if one.ready and self._was_ready.get(one.identity, False):
                self._flips[one.identity] += 1
                self._doubted[one.identity] = None

    def _leave(self, one: Backend) -> None:
        del self._backends[one.identity]
        others = tuple([other for other in self._at[one.address] if other != one.identity])
        if others:
            self._at[one.address] = others
        else:
            del self._at[one.address]

    def _note_readiness(self, one: Backend) -> None:
        flips = self._flips.get(one.identity, 0)
        if self._was_ready.get(one.identity, False) and not one.ready and not one.terminating:
            flips += 1
        self._flips[one.identity] = flips
        self._was_ready[one.identity] = one.ready
        if one.ready and not one.terminating:
            self.ready[one.identity] = one.address
        else:
            self.ready.pop(one.identity, None)


def with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
