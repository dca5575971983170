"""An index of the pods of a revision by address.

Nearly always one pod has an address, so a list is kept only for addresses with several.
"""

from __future__ import annotations

from typing import final


@final
class AddressIndex:
    """Identities by address, in order of arrival."""

    __slots__ = ("_more", "_one")

    def __init__(self) -> None:
        self._one: dict[str, str] = {}
        self._more: dict[str, tuple[str, ...]] = {}

    def is_free(self, address: str) -> bool:
        return address not in self._one and address not in self._more

    def is_shared(self, address: str) -> bool:
        """Return True if more than one pod is at the address."""
        return address in self._more

    def at(self, address: str) -> tuple[str, ...]:
        """Return the pods at the address, the newest last."""
        more = self._more.get(address)
        if more is not None:
            return more
        one = self._one.get(address)
        return () if one is None else (one,)

    def add(self, identity: str, address: str) -> None:
        """Add a pod at an address; no effect if it is there already."""
        if self.is_free(address):
            self._one[address] = identity
            return
        present = self.at(address)
        if identity not in present:
            self._one.pop(address, None)
            self._more[address] = (*present, identity)

    def remove(self, identity: str, address: str) -> None:
        """Remove a pod from an address; no effect if it is not there."""
        if not self.is_shared(address):
            if self._one.get(address) == identity:
                del self._one[address]
            return
        rest = tuple([other for other in self._more[address] if other != identity])
        if len(rest) > 1:
            self._more[address] = rest
        else:
            del self._more[address]
            self._one[address] = rest[0]
