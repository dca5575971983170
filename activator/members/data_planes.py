"""What the group and the data planes of its replica say to each other."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod

from activator.data_plane.ownership.view import View
from activator.members.handshake import SessionKeys
from activator.members.lives import Lives
from activator.members.messages import DataPlaneName


class GroupSide(ABC):
    """The group. `replica`: the number of this one; names are as the group has them (numbers.py)."""

    replica: int
    lives: Lives

    @abstractmethod
    def set_data_planes(self, names: tuple[DataPlaneName, ...]) -> None:
        """Those of this replica; what is not named any more has ended."""

    @abstractmethod
    def lives_changed(self) -> None:
        """Effects have been applied."""

    @abstractmethod
    def unlinked(self, own: int, other: int) -> None:
        """A link of a data plane has ended."""


class GroupDataPlanes(ABC):
    """The data planes of one replica."""

    @abstractmethod
    def join(self, group: GroupSide) -> None:
        """They are members of it. To be called before anything is applied."""

    @abstractmethod
    def adopt_view(self, view: View) -> None:
        """The members are these from now on."""

    @abstractmethod
    def link_member(self, own: int, other: int, sock: socket.socket, keys: SessionKeys) -> None:
        """There is a link between this data plane and one of another replica; the socket is given."""

    @abstractmethod
    def allow_grants(self, allowed: bool) -> None:
        """Whether slots are granted of what they own."""

    @abstractmethod
    def ownership(self) -> tuple[int, int]:
        """Return how many revisions they own, and for how many of them they cannot grant slots yet."""
