"""The usage of users' quotas in a file (`state`), so that it outlasts the program: an SQLite database with one table.

Rules
  1. It is written every QUOTA_SAVE_INTERVAL_S (quota_state.py) if it has changed, and at the end of the program: a
     crash loses at most the usage of that time.
  2. Times are Unix seconds, because monotonic ones begin again with the machine. A clock that was set back frees
     nothing.
  3. One program uses the file at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from activator.config.specs import QuotaSpec, UserSpec
from activator.runtime.errors import StartError

KEPT_S: Final = 2 * 86_400.0  # older usage has drained; longer than any period

log = logging.getLogger("activator")

_CREATE: Final = "CREATE TABLE IF NOT EXISTS quotas (user TEXT PRIMARY KEY, requests REAL, tokens REAL, unix_s REAL)"

_SELECT: Final = """
    SELECT user, requests, tokens, unix_s FROM quotas
    WHERE typeof(user) = 'text' AND typeof(requests) = 'real' AND typeof(tokens) = 'real' AND typeof(unix_s) = 'real'
"""

Use = Mapping[str, tuple[float, float]]  # used requests and tokens, by the name of the user


class QuotaFile:
    """The database at `path`. Raises StartError if it cannot be used."""

    def __init__(self, path: str, unix_now: Callable[[], float]) -> None:
        self._unix_now = unix_now
        self._saved: dict[str, tuple[float, float]] = {}
        self._writing = asyncio.Lock()
        self._is_closed = False
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # it has the names of users
            self._database = _open(path, unix_now() - KEPT_S)
        except (sqlite3.Error, OSError) as error:
            hint = " (another program uses it)" if "locked" in str(error) else ""
            reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else f"{error}{hint}"
            raise StartError(f"state: the file {path} cannot be used: {reason}") from error

    def with_use(self, users: tuple[UserSpec, ...]) -> tuple[UserSpec, ...]:
        """Return the users with the present usage of their quotas."""
        rows = self._database.execute(_SELECT).fetchall()
        known = {user: (requests, tokens, unix_s) for user, requests, tokens, unix_s in rows}
        now_s = self._unix_now()
        return tuple([
            user
            if user.quota is None or user.name not in known
            else msgspec.structs.replace(user, used=_used(user.quota, *known[user.name], now_s))
            for user in users
        ])  # fmt: skip

    async def save(self, use: Use) -> None:
        """Write the present usage, in a thread; no effect after `close`."""
        async with self._writing:
            changed = {user: used for user, used in use.items() if self._saved.get(user) != used}
            if not changed or self._is_closed:
                return
            unix_s = self._unix_now()
            rows = [(user, requests, tokens, unix_s) for user, (requests, tokens) in changed.items()]
            await asyncio.to_thread(self._write, rows)
            self._saved.update(changed)

    async def close(self, use: Use) -> None:
        """Write the last usage, and close the database."""
        try:
            await self.save(use)
        except sqlite3.Error as error:
            log.error("the usage of quotas at the end could not be written: %s", error)
        async with self._writing:
            self._is_closed = True
            self._database.close()

    def _write(self, rows: list[tuple[str, float, float, float]]) -> None:
        self._database.execute("BEGIN")
        try:
            self._database.executemany("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?, ?)", rows)
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _used(quota: QuotaSpec, requests: float, tokens: float, unix_s: float, now_s: float) -> tuple[float, float]:
    """Return the used requests and tokens that have not drained since `unix_s`."""
    elapsed_s = max(now_s - unix_s, 0.0)
    return (
        max(requests - elapsed_s * quota.requests / quota.requests_period_s, 0.0),
        max(tokens - elapsed_s * quota.tokens / quota.tokens_period_s, 0.0),
    )


def _open(path: str, oldest_unix_s: float) -> sqlite3.Connection:
    """Return the database, without usage from before `oldest_unix_s`. Raises sqlite3.Error."""
    database = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(_CREATE)
        database.execute("DELETE FROM quotas WHERE unix_s < ?", (oldest_unix_s,))
    except sqlite3.Error:
        database.close()
        raise
    return database
