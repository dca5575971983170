"""The names of the policies of this machine, as the checks of the configuration use them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from lb.registry import ALIASES, BUILT_IN, names


class PolicyNames(AbstractSet[str]):
    """The names. Those of other packages are looked up only if a name is not built in: that takes 25 ms and 2 MB."""

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in ALIASES or name in names()

    def __iter__(self) -> Iterator[str]:
        return iter(names())

    def __len__(self) -> int:
        return len(names())
