"""What the supervisor knows of one run of a program, whatever it is: a process group (`child.py`), say.

Rules
  1. One task goes through the life of a unit: `start`, `ready`, then `stop`, `end` and `gone`. Only `signal`, `let_go`
     and the questions may come from elsewhere.
  2. A unit that could not start says why with `NotStartedError` or `ConfigError`; other exceptions are errors of ours.
  3. `end` and `gone` follow whatever happened before, also a start that failed halfway: nothing may be left behind.
  4. `claim` names what only one unit can have at a time (a port that the file says). The next one waits until that is
     free.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from activator.config.model.revision import Revision
from activator.control_plane.sources.process.output import OnLine, Output


class NotStartedError(Exception):
    """Why a program could not be started; `for_good`: it would not be otherwise the next time."""

    def __init__(self, cause: str, for_good: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.for_good = for_good


class Unit(ABC):
    """One run of a program."""

    output: Output
    address = ""  # where it is reached; empty: not known yet
    claim = ""
    grace_s = 0.0  # that it has to end, once it was asked to
    left_running = False  # it has ended in order, and processes of its own have not
    is_borrowed = False  # it was there before us, and may be there after us
    retry_max_s: float | None = None  # the longest wait before a failed start is repeated; None: as for all

    @abstractmethod
    async def start(self, stop_asked: asyncio.Event) -> None:
        """Returns when it runs, or early if it is not wanted any more. Raises NotStartedError, ConfigError."""

    @abstractmethod
    async def ready(self, timeout_s: float) -> str:
        """Returns why it does not get ready, or an empty string when it is."""

    @abstractmethod
    async def exited(self) -> None:
        """Returns when it has ended by whatever cause."""

    @abstractmethod
    async def cause(self) -> str:
        """Why it has ended, once it has."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Of the program, once it has ended; None: it is not known."""

    @abstractmethod
    async def run_beside(self, command: Sequence[str], timeout_s: float) -> int | None:
        """Run a command as the program is run; its exit code, None if it took too long or could not be started."""

    @abstractmethod
    async def signal(self, name: str) -> str:
        """Send a signal to all of it; why that did not succeed."""

    @abstractmethod
    async def stop(self) -> None:
        """Ask it to end; returns when that has been said, at the latest after its grace. It may go on nevertheless."""

    async def emptied(self, timeout_s: float) -> None:
        """Return when all of it has ended, or after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.exited()
        except TimeoutError:
            pass  # the caller ends it

    @abstractmethod
    async def end_rest(self) -> None:
        """Ask what a program that has exited left running to end, and return after its grace at the latest."""

    @abstractmethod
    async def end(self) -> None:
        """End it now, and release everything but what `gone` waits for."""

    @abstractmethod
    async def gone(self, is_held: bool, is_closing: Callable[[], bool]) -> None:
        """Returns when nothing is left of it. `is_held`: what it has may be given to others only then."""

    @abstractmethod
    def let_go(self) -> None:
        """It is not ours to stop any more, if it is borrowed."""

    def was_stopped(self) -> bool:
        """Whether somebody else has stopped it in order, so that its end is no failure."""
        return False


class Units(ABC):
    """Makes them."""

    @abstractmethod
    def known(self, revision: Revision) -> None:
        """There is such a revision: what has to be done before its first start may be done now."""

    @abstractmethod
    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        """One more run of the revision's program, which is not started yet; None: another has to end first."""

    @abstractmethod
    def claim_of(self, revision: Revision) -> str:
        """What every unit of the revision needs, and only one can have at a time; empty: nothing."""

    def may_claim(self, revision: Revision, claim: str) -> bool:
        """Whether a unit of the revision may have what this claim of another names."""
        return claim == self.claim_of(revision)

    @abstractmethod
    async def close(self) -> None:
        """Nothing is made any more, and all units have gone."""
