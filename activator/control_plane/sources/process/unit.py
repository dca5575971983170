"""The interface between the supervisor and one run of a program of any kind, for example a process group (`child.py`).

Rules
  1. One task calls the methods of a unit in the order of its life: `start`, `ready`, then `stop`, `end` and `remove`.
     Only `signal`, `disown` and the queries may be called by other tasks.
  2. A unit that cannot start raises `NotStartedError` or `ConfigError`; other exceptions are bugs of the activator.
  3. `end` and `remove` are always called, also after a start that failed halfway: nothing may be left behind.
  4. `claim` names a resource that only one unit can have at a time (a configured port). The next one waits until it is
     free.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from activator.config.model.revision import Revision
from activator.control_plane.sources.process.handed import HandedProgram, HandedPrograms
from activator.control_plane.sources.process.output import OnLine, Output

PROCESS: Final = "process"
CONTAINER: Final = "container"


class UnitState(NamedTuple):
    """The state of a program that is handed over, as its supervisor has it."""

    gpus: tuple[str, ...]
    started_s: float
    is_ready: bool
    is_asleep: bool


class NotStartedError(Exception):
    """The cause of a failed start; `for_good`: it would fail again the same way."""

    def __init__(self, cause: str, for_good: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.for_good = for_good


class Unit(ABC):
    """One run of a program."""

    kind = PROCESS  # the key of the configuration that declares it
    output: Output
    address = ""  # empty until it is known
    claim = ""
    grace_s = 0.0  # how long it may take to end after it was asked to
    left_running = False  # it has exited with 0, and processes of its own have not ended
    is_borrowed = False  # it existed before the activator, and may continue after it
    leader = 0  # the ID of its first process; 0: unknown, or not on this machine
    retry_max_s: float | None = None  # the longest wait before a failed start is repeated; None: the supervisor's

    @abstractmethod
    async def start(self, stop_asked: asyncio.Event) -> None:
        """Start it; return when it runs, or early if `stop_asked` is set. Raises NotStartedError, ConfigError."""

    @abstractmethod
    async def ready(self, timeout_s: float) -> str:
        """Wait until it is ready; return why it does not get ready, or an empty string."""

    def hint(self) -> str:
        """Return why it is probably not ready yet; empty if it is ready, or no cause is known."""
        return ""

    @abstractmethod
    async def exited(self) -> None:
        """Return when it has ended, for whatever cause."""

    @abstractmethod
    async def cause(self) -> str:
        """Return why it has ended; to be called after its end."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """The exit code of a program that has ended; None if it is not known."""

    @abstractmethod
    async def run_beside(self, command: Sequence[str], timeout_s: float) -> int | None:
        """Run a command as the program is run; return its exit code, None if it took too long or could not start."""

    @abstractmethod
    async def signal(self, name: str) -> str:
        """Send a signal to all of its processes; return why that failed, or an empty string."""

    @abstractmethod
    async def stop(self) -> None:
        """Ask it to end; return when the request is sent, after its grace at the latest. It may still run then."""

    async def until_empty(self, timeout_s: float) -> None:
        """Return when all of its processes have ended, or after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.exited()
        except TimeoutError:
            pass  # the caller ends it

    @abstractmethod
    async def end_rest(self) -> None:
        """Ask the processes that an exited program left running to end; return after its grace at the latest."""

    @abstractmethod
    async def end(self) -> None:
        """End it now, and release everything except what `remove` waits for."""

    @abstractmethod
    async def remove(self, holds_resources: bool, is_closing: Callable[[], bool]) -> None:
        """Return when no process of it is left. `holds_resources`: others get its budget or GPUs only then."""

    @abstractmethod
    def disown(self) -> None:
        """Stop managing an existing container, which the activator then does not stop; no effect on other units."""

    def is_foreign(self) -> bool:
        """Return True if it runs, and a former process of the activator may keep it: nothing is done to it here."""
        return False

    def unsettled(self) -> str:
        """Return why it cannot be handed over to another process of the activator now; empty if it can."""
        return "programs of its kind cannot be handed over"

    def hand_over(self, state: UnitState) -> tuple[HandedProgram, list[int]]:
        """Return it for another process of the activator, with descriptors (`handed.py`). Raises OSError.

        Its output is not read until `resume`.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Continue after `hand_over`: the other process did not take it."""
        raise NotImplementedError

    def detach(self) -> None:
        """Leave it to the process that has taken it: nothing is done to it any more, whatever is called."""
        raise NotImplementedError

    def was_stopped(self) -> bool:
        """Return True if another program has stopped it properly, so that its end is not a failure."""
        return False


class Units(ABC):
    """A factory of units."""

    @abstractmethod
    def prepare(self, revision: Revision) -> None:
        """Prepare for the first start of the revision, as far as that is possible now."""

    @abstractmethod
    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        """Create a unit for one more run of the program, not started yet; None if another has to end first."""

    def take_over(self, revision: Revision, program: HandedProgram, descriptors: list[int], on_line: OnLine) -> Unit:
        """Create the unit of a program that a former process of the activator hands over; `start` continues it."""
        raise NotImplementedError

    def with_shared_state(self, programs: HandedPrograms) -> HandedPrograms:
        """Return the programs with the state that all of them share."""
        raise NotImplementedError

    def restore_shared(self, programs: HandedPrograms) -> None:
        """Restore the state that all programs share, before any unit is created."""
        raise NotImplementedError

    def take_ownership(self, former: Iterable[int]) -> None:
        """Own the programs that were handed over by these processes: until then nothing here ends them."""
        raise NotImplementedError

    def detach(self) -> None:
        """Leave what all programs share to the process that has taken them."""
        raise NotImplementedError

    @abstractmethod
    def claim_of(self, revision: Revision) -> str:
        """Return the claim that every unit of the revision has; empty if none."""

    def may_claim(self, revision: Revision, claim: str) -> bool:
        """Return True if a unit of the revision may need what this claim of another unit names."""
        return claim == self.claim_of(revision)

    @abstractmethod
    async def close(self) -> None:
        """Free everything; all units have ended, and none is created after this."""
