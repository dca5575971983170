"""Decides which object has a host that several objects name: the oldest, as long as it exists and names the host.

Objects that match different requests may share a host; each then claims its part.

Age is the creation time that the API server wrote, then namespace and name. All replicas of the activator therefore
decide alike, and a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from activator.config.model.revision import Revision

_PATH_MAX: Final = 4_095  # characters of a path prefix that count in the order
_SECONDS: Final = 1 << 34  # above any creation time


def part_of_host(revision: Revision, key: str) -> str:
    """Return a suffix that names the part of a host's requests that the revision claims; empty: all requests.

    A revision with a weight gets its own key as the suffix, so that it conflicts with no other revision of the split.
    """
    if revision.weight is not None:
        return f" {key}"
    if revision.match is None and not revision.aliases and not revision.default:
        return ""
    return " " + msgspec.json.encode((revision.match, sorted(revision.aliases), revision.default)).decode()


def order_of(revision: Revision, created: str) -> int:
    """Return the rank of a revision among those of a host: the longest path first, then the oldest revision."""
    try:
        seconds = int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        seconds = 0
    path = "" if revision.match is None else revision.match.path
    return (_PATH_MAX - min(len(path), _PATH_MAX)) * _SECONDS + seconds


class Claim(NamedTuple):
    """A claim on a host, sorted by age; `created` is RFC 3339 in UTC, as the API server writes it."""

    created: str
    key: str


class HostClaims:
    """The claims on all hosts, or parts of them, in canonical form."""

    def __init__(self) -> None:
        self._claims: dict[str, list[Claim]] = {}  # by host, the oldest first
        self._named: dict[str, tuple[Claim, frozenset[str]]] = {}  # by key of the object

    def set_named(self, key: str, created: str, hosts: Iterable[str]) -> set[str]:
        """Set the hosts that an object names; return the other objects that name a host whose holder has changed."""
        claim, named = Claim(created, key), frozenset(hosts)
        old_claim, old = self._named.pop(key, (claim, frozenset()))
        holders = {host: self.holder(host) for host in old | named}
        for host in old:
            self._claims[host].remove(old_claim)
        for host in named:
            self._claims.setdefault(host, []).append(claim)
            self._claims[host].sort()
        if named:
            self._named[key] = (claim, named)
        affected = {
            claimant.key
            for host, before in holders.items()
            if self.holder(host) != before
            for claimant in self._claims.get(host, ())
        }
        for host in old:
            if not self._claims[host]:
                del self._claims[host]
        return affected - {key}

    def drop(self, key: str) -> set[str]:
        """Remove all claims of an object; return the other objects that name a host whose holder has changed."""
        return self.set_named(key, "", ())

    def holder(self, host: str) -> str:
        """Return the key of the object that has the host; empty if no object names it."""
        claims = self._claims.get(host)
        return claims[0].key if claims else ""

    @property
    def contested(self) -> int:
        """The number of hosts that more than one object names."""
        return sum(len(claims) > 1 for claims in self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)
