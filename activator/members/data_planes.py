"""The interfaces between a group and the data planes of its replica."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod

from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.members.handshake import SessionKeys
from activator.members.lives import Lives


class GroupSide(ABC):
    """The group, for its data planes. `replica` is the number of this replica (numbers.py)."""

    replica: int
    lives: Lives

    @abstractmethod
    def set_data_planes(self, names: tuple[MemberName, ...]) -> None:
        """Set the data planes of this replica. A data plane that is no longer named has ended."""

    @abstractmethod
    def lives_changed(self) -> None:
        """Announce `lives` if applied effects have changed them."""

    @abstractmethod
    def unlinked(self, own: int, other: int) -> None:
        """Handle the end of the link between these two data planes."""


class GroupDataPlanes(ABC):
    """The data planes of one replica."""

    @abstractmethod
    def join(self, group: GroupSide) -> None:
        """Make the data planes members of this group. To be called before any effect is applied."""

    @abstractmethod
    def adopt_view(self, view: View) -> None:
        """Replace the view."""

    @abstractmethod
    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        """Give the data plane `own` a link to `other`, of another replica; `own` owns the socket from then on."""

    @abstractmethod
    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid the data planes to grant slots of the revisions that they own."""

    @abstractmethod
    def ownership(self) -> tuple[int, int]:
        """Return how many revisions the data planes own, and for how many of these they cannot grant slots yet."""
