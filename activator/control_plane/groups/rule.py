"""The rule of one group, with all defaults resolved."""

from __future__ import annotations

from typing import Final

import msgspec

from activator.control_plane.groups.policy import Amounts, GroupPolicy
from activator.control_plane.groups.turns import Affinity, Fifo

FIFO: Final = "fifo"


class MemberRule(msgspec.Struct, frozen=True):
    """The rule of one revision; amounts in the order of the group's resources."""

    needs: Amounts
    asleep: Amounts | None = None  # None: its programs cannot sleep
    min: int = 0  # programs that it always has
    pinned: bool = False  # a loaded program stays
    most: int = 0  # the largest number of programs (`max_scale`); 0: no bound


class GroupRule(msgspec.Struct, frozen=True):
    """The rule of one group; `members` by key of the revision."""

    name: str
    resources: tuple[str, ...]
    budget: Amounts
    members: dict[str, MemberRule]
    exclusive: bool = False
    discipline: str = Affinity.name
    overtaken_at_most_s: float = 30.0

    def policy(self) -> GroupPolicy:
        return Fifo() if self.discipline == FIFO else Affinity(self.overtaken_at_most_s)
