"""The links of a data plane to the others that share quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from activator.data_plane.quotas.messages import QuotaMessage

ALONE: Final = 1  # the number of a single data plane
_NO_MEMBERS: Final[frozenset[int]] = frozenset()


@final
class Links:
    """The number of this data plane, the present view, and the links to the others."""

    def __init__(self) -> None:
        self.number: int = ALONE
        self.epoch: int = 0  # the epoch of the view
        self.others: frozenset[int] = _NO_MEMBERS  # the other members of the view
        self.send: Callable[[int, QuotaMessage], None] = _send_nothing  # to a member, over its link


def _send_nothing(member: int, message: QuotaMessage) -> None:
    raise AssertionError("a single data plane has no members")
