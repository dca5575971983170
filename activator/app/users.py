"""The users of the file and of `keys_file`, as reloads and changes of that file change them."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from activator.config.model.file import Config
from activator.config.specs import UserSpec
from activator.config.user_keys import shared_users, users_in
from activator.messages import Command, SetUsers
from activator.runtime.errors import ActivatorError
from activator.runtime.tasks import TaskGroupOwner, pause

KEYS_FILE_CHECK_S: Final = 1.0  # a file that has not changed between two checks is complete

log = logging.getLogger("activator")

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
        self._users = tuple([msgspec.structs.replace(user, used=None) for user in users])
        self._send(SetUsers(users or None))

    def change(self, users: Users) -> bool:
        """Require the keys of these users after a reload; return False if nothing has changed."""
        before, self._users = self._users, users
        if users == before:
            return False
        if not before:
            self._send(SetUsers(users))
            return True
        if users:
            self._send(SetUsers(shared_users(before, users)))
        self._start_task("users", self._complete())
        return True

    async def _complete(self) -> None:
        await self._settle()
        self._send(SetUsers(self._users or None))


class FileState(NamedTuple):
    """The identity of one version of a file; all zeros if there is no file."""

    inode: int
    size: int
    modified_ns: int
    mode: int


class KeysFile:
    """A watch on `keys_file`. A file with a mistake changes nothing.

    `config` returns the present configuration.
    """

    def __init__(self, config: Callable[[], Config], rights: UserRights) -> None:
        self._config = config
        self._rights = rights
        self._checked_config: Config | None = None  # the configuration at the last check
        self._last_seen: FileState | None = None  # the version at the last check
        self._read_version: FileState | None = None  # the version that was read last
        self._warned_path: str = ""  # the path of a file that others can read

    def watch(self, tasks: TaskGroupOwner) -> None:
        """Check the file from now on."""
        tasks.keep_running("keys file", self._step)

    async def _step(self) -> None:
        await self.check()
        await pause(KEYS_FILE_CHECK_S)

    async def check(self) -> None:
        """Read the file, in a thread, if it has changed and is complete."""
        config = self._config()
        path = config.keys_file
        if config is not self._checked_config:  # a start or a reload has read it, perhaps another version
            self._checked_config, self._last_seen, self._read_version = config, None, None
        if not path:
            return
        state = await asyncio.to_thread(_state_of, path)
        before, self._last_seen = self._last_seen, state
        self._warn_if_readable(path, state)
        if state == self._read_version or state != before:
            return
        try:
            users = await asyncio.to_thread(users_in, config)
        except ActivatorError as error:
            problem, _, more = str(error).partition("\n")
            count = len(more.splitlines())
            log.error("keys_file %s changes nothing: %s%s", path, problem, f" (and {count} more)" if count else "")
            self._read_version = state
            return
        if self._config() is not config or self._checked_config is not config:  # reloaded in the meantime
            return
        self._read_version = state
        if self._rights.change(users):
            log.info("keys_file %s: the keys of %d users are valid now", path, len(users))

    def _warn_if_readable(self, path: str, state: FileState) -> None:
        """Log once that other users of the machine can read the file; again only after they could not."""
        if state.mode & stat.S_IROTH:
            if self._warned_path != path:
                self._warned_path = path
                mode = stat.S_IMODE(state.mode)
                log.warning("keys_file %s can be read by all users of this machine (mode %04o): chmod 600", path, mode)
        else:
            self._warned_path = ""


def _state_of(path: str) -> FileState:
    try:
        status = os.stat(path)
    except OSError:
        return FileState(0, 0, 0, 0)
    return FileState(status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
