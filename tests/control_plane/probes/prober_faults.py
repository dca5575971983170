"""Raises at every line of the prober in turn, and looks whether every pod is found: run as a program, in plain Python.

    ACTIVATOR_COMPILE=0 python -m tests.control_plane.probes.prober_faults SEED STEP

The story: pods of two revisions are asked, some answer late, requests wait, orders come and go. For each line that it
executes, in the order of execution, the story is told once with an exception at that line. Nothing repeats an order.
Within RECOVERY_S of the prober's own time each pod that answers must have been found, and nothing may be left over.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from types import FrameType
from typing import Any

from activator.control_plane.probes import probed_pod, prober
from activator.control_plane.probes.probe import ProbeOutcome
from activator.messages import SetProbes, StartProbe, StopProbe
from tests.control_plane.probes.test_prober import Probing, turns
from tests.control_plane.state.state_fakes import KEY
from tests.shuffled_loop import run_shuffled

RECOVERY_S = (
    40.0  # three of the longest pauses: until an answer is waited for no more, said again, or a pod asked again
)
FILES = {probed_pod.__file__, prober.__file__}
OTHER = "ns/other"


class InjectedError(RuntimeError):
    """What is raised."""


class Injector:
    """Counts the lines of the prober that run, and raises at the one that it is told; 0: at none."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._local if frame.f_code.co_filename in FILES else None

    def _local(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise InjectedError(self.where)
        return self._local


class Story:
    """What the state worker and the requests do; a caller that meets the exception goes on, as its loop would."""

    def __init__(self) -> None:
        self.probing = Probing()
        self.probing.panicked = lambda key, what, error, now_s: 0.5
        self.probing.found = {
            "0": ProbeOutcome.ANSWERED,
            "1": ProbeOutcome.REFUSED,
            "3": ProbeOutcome.ANSWERED,
            "moved": ProbeOutcome.ANSWERED,
        }
        self.probing.hangs = {"3"}
        self.failed = self.probing.failed

    def order(self, *orders: StartProbe | StopProbe | SetProbes) -> None:
        """Where they raise as a whole, the state worker repeats them."""
        for _ in range(2):
            if self._try(lambda: self.probing.prober.execute(list(orders))):
                return

    def expedite(self, key: str) -> None:
        self._try(lambda: self.probing.prober.expedite(key))

    def _try(self, call: Any) -> bool:
        try:
            call()
        except InjectedError:
            return False
        return True

    async def pass_time(self, seconds: float, step_s: float = 0.05) -> None:
        for _ in range(round(seconds / step_s)):
            self._try(lambda: self.probing.clock.pass_time(step_s))
            await turns(4)

    async def happen(self) -> None:
        self.order(*(StartProbe(KEY, f"p{number}", str(number)) for number in range(4)))
        await self.pass_time(0.2)
        self.expedite(KEY)
        self.order(StartProbe(OTHER, "q0", "0"), StopProbe(KEY, "p2"))
        await self.pass_time(0.2)
        self.order(StartProbe(KEY, "p1", "moved"), SetProbes(OTHER, (StartProbe(OTHER, "q1", "1"),)))
        self.probing.let_go.set()
        self.expedite(KEY)
        await self.pass_time(0.3)
        self.probing.found["1"] = ProbeOutcome.ANSWERED


async def tell(at: int) -> tuple[Story, Injector]:
    story, injector = Story(), Injector(at)
    before = sys.gettrace()
    sys.settrace(injector)
    try:
        await story.happen()
    finally:
        sys.settrace(before)
    await story.pass_time(RECOVERY_S, 0.25)
    return story, injector


def check(story: Story) -> None:
    probing = story.probing
    found = {(change.key, change.identity, change.address) for change in probing.told}  # type: ignore[union-attr]
    expected = {(KEY, "p0", "0"), (KEY, "p1", "moved"), (KEY, "p3", "3"), (OTHER, "q1", "1")}
    assert expected <= found, f"never found: {expected - found}"
    assert found <= {*expected, (OTHER, "q0", "0")}, f"found, and not wanted: {found - expected}"
    assert probing.prober._probed == {}, f"asked for ever: {probing.prober._probed}"
    assert probing.prober._failed == {}, "orders were left over"
    assert probing.at_once == 0, "somebody is still asked"
    assert probing.prober.expedited == 0, "somebody is still expedited"


async def once(at: int) -> tuple[Injector, str]:
    """What is wrong after an exception at this line; empty: nothing."""
    story, injector = await tell(at)
    try:
        check(story)
    except AssertionError as error:
        return injector, str(error)
    finally:
        await story.probing.tasks.close()
    return injector, ""


def main(seed: int, step: int) -> int:
    logging.disable(logging.CRITICAL)
    calm, wrong = run_shuffled(seed, lambda: once(0))
    assert not wrong, wrong
    failed = 0
    for at in range(1, calm.lines + 1, step):
        injector, wrong = run_shuffled(seed, lambda at=at: once(at))  # type: ignore[misc]
        if wrong:
            failed += 1
            print(f"{injector.where}: {wrong}")
    print(f"{calm.lines} lines, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    asyncio.set_event_loop(None)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
