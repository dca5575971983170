"""An admin port before a program in any condition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from activator.admin.port import AdminPort
from activator.admin.token import AdminToken
from activator.runtime.errors import NoWorkerError
from activator.runtime.tasks import TaskGroupOwner


class Inside:
    """A program in any condition."""

    log = None

    def __init__(self) -> None:
        self.alive = True
        self.reasons: list[str] = []
        self.needs_restart: list[str] = []

    def is_alive(self) -> bool:
        return self.alive

    def waiting_for(self) -> list[str]:
        return self.reasons

    async def gather_statistics(self) -> None:
        pass

    async def gather_snapshot(self) -> None:
        pass

    def metrics(self, accept: str) -> tuple[Iterator[bytes], str]:
        return iter(()), "text/plain"

    def snapshot(self, only: str = "") -> object:
        return {}

    def overview(self) -> Iterator[bytes]:
        return iter((b"{}",))

    def history(self, keys: list[str]) -> object:
        return {}

    async def last_requests(self, key: str, count: int) -> object:
        return {"requests": [{"of": key, "count": count}]}

    async def capture_of(self, worker: int, number: int) -> object:
        return {"worker": worker, "number": number} if number == 7 else None

    async def snapshot_of(self, worker: int) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    async def tasks_of(self, worker: int) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    async def profile_of(self, worker: int, seconds: float) -> object:
        raise NoWorkerError(f"there is no worker {worker}")

    def set_log_level(self, part: str, level: str) -> None:
        pass

    def configuration(self) -> object:
        return {}

    def program_output(self, key: str, after: int) -> object:
        return None

    def load(self, key: str, seconds: float | None) -> str:
        return ""

    def end_member(self, seat: int) -> str:
        return ""

    def unload(self, key: str) -> str:
        return ""

    def set_aside(self, key: str, pod: str, is_aside: bool) -> str:
        return ""

    def restart(self, key: str) -> str:
        return ""

    def members(self) -> object:
        return {}

    def stop(self) -> None:
        pass

    async def upgrade(self) -> dict[str, Any]:
        return {"problems": []}

    def reload(self) -> list[str]:
        return []


def port(inside: Inside, token: str = "") -> AdminPort:
    """Return a port on a free port of this machine, to be started; a failed task raises in the loop's handler."""

    def failed(name: str, error: BaseException) -> None:
        raise error

    made = AdminPort(inside, lambda: 0.0, TaskGroupOwner(failed), AdminToken(token))
    made.bind("127.0.0.1:0")
    return made
