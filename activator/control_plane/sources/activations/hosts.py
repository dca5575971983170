"""Which object has a host that several of them name: the older one, until it is gone or no longer names it.

A host may be shared by objects that match different requests of it: then each claims its part.

Age is the time of creation that the API server wrote; of objects of the same second the first by namespace and name.
So all replicas of the activator decide alike, and a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from activator.config.model.revision import Revision

_PATH_MAX: Final = 4_095  # characters of a prefix that count for the order
_SECONDS: Final = 1 << 34  # more than a time of creation has


def part_of_host(revision: Revision, key: str) -> str:
    """What of a host the revision claims, as text; empty: all of it. Those that split their requests share a claim."""
    if revision.weight is not None:
        return f" {key}"
    if revision.match is None and not revision.aliases and not revision.default:
        return ""
    return " " + msgspec.json.encode((revision.match, sorted(revision.aliases), revision.default)).decode()


def order_of(revision: Revision, created: str) -> int:
    """Which revision of a host is asked first: the one with the longest path, then the oldest."""
    try:
        seconds = int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        seconds = 0
    path = "" if revision.match is None else revision.match.path
    return (_PATH_MAX - min(len(path), _PATH_MAX)) * _SECONDS + seconds


class Claim(NamedTuple):
    """Sorted by age: `created` is RFC 3339 in UTC, as the API server writes it."""

    created: str
    key: str


class HostClaims:
    """All hosts that objects name, in their canonical form, or parts of them."""

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
