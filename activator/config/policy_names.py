"""The names of the policies of this machine, as the checks of the configuration use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cached_property

from lb.registry import ALIASES, BUILT_IN, names


class PolicyNames(AbstractSet[str]):
    """The names. Those of packages are looked up once, for the first name that is not built in (25 ms and 2 MB)."""

    def __init__(self, search: Callable[[], Iterable[str]] = names) -> None:
        self._search = search

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in ALIASES or name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(self._search())
