"""The usage of quotas in the file `state`, from the start of the program to its end or an upgrade."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from activator.config.specs import UserSpec
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.workers.workers import Workers

if TYPE_CHECKING:
    from activator.app.quota_file import QuotaFile, Use

QUOTA_SAVE_INTERVAL_S: Final = 2.0  # between two writes of the use of quotas


class QuotaState:
    """The usage of quotas, which is kept in the file at `path`; with an empty path, its methods do nothing."""

    def __init__(self, path: str, workers: Workers) -> None:
        self._path = path
        self._workers = workers
        self._file: QuotaFile | None = None

    def open(self) -> None:
        """Open the file, unless it is open. Raises StartError."""
        if self._path and self._file is None:
            from activator.app.quota_file import QuotaFile  # SQLite takes memory

            self._file = QuotaFile(self._path, time.time)

    def with_use(self, users: tuple[UserSpec, ...]) -> tuple[UserSpec, ...]:
        """Return the users with the usage that the file has."""
        return users if self._file is None else self._file.with_use(users)

    def keep(self, tasks: TaskGroupOwner) -> None:
        """Write the usage repeatedly from now on."""
        if self._path:
            tasks.keep_running("state", self._save)

    async def close(self) -> None:
        """Write the usage, and close the file; `open` may follow."""
        file, self._file = self._file, None
        if file is not None:
            await file.close(await self._use())

    async def _save(self) -> None:
        await pause(QUOTA_SAVE_INTERVAL_S)
        use = await self._use()
        if self._file is not None:
            await self._file.save(use)

    async def _use(self) -> Use:
        await self._workers.gather_statistics()
        return self._workers.counts().data.user_use
