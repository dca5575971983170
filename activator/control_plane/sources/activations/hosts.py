"""Which object has a host that several of them name: the older one, until it is gone or no longer names it.

Age is the time of creation that the API server wrote; of objects of the same second the first by namespace and name.
So all replicas of the activator decide alike, and a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Claim(NamedTuple):
    """Sorted by age: `created` is RFC 3339 in UTC, as the API server writes it."""

    created: str
    key: str


class HostClaims:
    """All hosts that objects name, in their canonical form."""

    def __init__(self) -> None:
        self._claims: dict[str, list[Claim]] = {}  # by host, the oldest first
        self._of: dict[str, tuple[Claim, frozenset[str]]] = {}  # by key of the object

    def name(self, key: str, created: str, hosts: Iterable[str]) -> set[str]:
        """The object names these hosts and no others. Returns all other objects that name a host which has another
        holder now.
        """
        claim, named = Claim(created, key), frozenset(hosts)
        old_claim, old = self._of.pop(key, (claim, frozenset()))
        holders = {host: self.holder(host) for host in old | named}
        for host in old:
            self._claims[host].remove(old_claim)
        for host in named:
            self._claims.setdefault(host, []).append(claim)
            self._claims[host].sort()
        if named:
            self._of[key] = (claim, named)
        touched = {
            one.key
            for host, before in holders.items()
            if self.holder(host) != before
            for one in self._claims.get(host, ())
        }
        for host in old:
            if not self._claims[host]:
                del self._claims[host]
        return touched - {key}

    def drop(self, key: str) -> set[str]:
        """It names none; as `name`."""
        return self.name(key, "", ())

    def holder(self, host: str) -> str:
        """The key of the object that has it; empty: nobody names it."""
        claims = self._claims.get(host)
        return claims[0].key if claims else ""

    @property
    def contested(self) -> int:
        """Hosts that more than one object names."""
        return sum(len(claims) > 1 for claims in self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)
