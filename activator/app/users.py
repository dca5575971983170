"""The users of the file, as reloads change them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from activator.config.specs import UserSpec
from activator.config.user_keys import shared_users
from activator.messages import Command, SetUsers

Users = tuple[UserSpec, ...]


class UserRights:
    """The users whose keys are required now.

    Rights that a reload takes away end at once. Rights that it grants begin when its revisions are in effect: otherwise
    a revision that it removes would be open to others for a moment.

    `settle` waits until the revisions of a reload are in effect.
    """

    def __init__(
        self,
        send: Callable[[Command], None],
        settle: Callable[[], Coroutine[Any, Any, None]],
        start_task: Callable[[str, Coroutine[Any, Any, None]], Any],
    ) -> None:
        self._send = send
        self._settle = settle
        self._start_task = start_task
        self._users: Users = ()

    def begin(self, users: Users) -> None:
        """Require the keys of these users from the start."""
        self._users = users
        self._send(SetUsers(users or None))

    def change(self, users: Users) -> None:
        """Require the keys of these users after a reload."""
        before, self._users = self._users, users
        if users == before:
            return
        if not before:
            self._send(SetUsers(users))
            return
        if users:
            self._send(SetUsers(shared_users(before, users)))
        self._start_task("users", self._complete())

    async def _complete(self) -> None:
        await self._settle()
        self._send(SetUsers(self._users or None))
