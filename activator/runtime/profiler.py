"""A sampling profiler: a thread records the stacks of all threads every few milliseconds.

The result is a file for speedscope (https://www.speedscope.app), with one profile per thread. Compiled functions have
no frames: their time is attributed to the interpreted function, or the loop, that called them.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, Final

import activator
from activator.runtime.clock import Now

PROFILE_INTERVAL_S: Final = 0.005  # the interval between samples
PROFILE_STACK_MAX: Final = 200  # recorded frames per stack, from the innermost

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"

_Frame = tuple[str, str, int]  # name, file, line


class ProfilerBusyError(Exception):
    """A profile is already being taken."""


class Profiler:
    """A profiler that takes one profile at a time."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._taking = threading.Lock()
        self._stopped = threading.Event()

    def take(self, seconds: float) -> dict[str, Any]:
        """Take a profile for `seconds`, in the calling thread. Raises ProfilerBusyError."""
        if not self._taking.acquire(blocking=False):
            raise ProfilerBusyError
        try:
            self._stopped.clear()
            return self._take(seconds)
        finally:
            self._taking.release()

    def stop(self) -> None:
        """End the profile that is being taken."""
        self._stopped.set()

    def _take(self, seconds: float) -> dict[str, Any]:
        stacks = _Stacks()
        own_thread = threading.get_ident()
        began_s = last_s = self._now()
        while last_s - began_s < seconds and not self._stopped.wait(PROFILE_INTERVAL_S):
            now_s = self._now()
            for thread, frame in sys._current_frames().items():
                if thread != own_thread:
                    stacks.add(thread, frame, now_s - last_s)
            last_s = now_s
        return stacks.speedscope(last_s - began_s)


class _Stacks:
    """The recorded stacks, by thread."""

    def __init__(self) -> None:
        self._frames: dict[_Frame, int] = {}
        self._recorded: dict[int, tuple[list[list[int]], list[float]]] = {}

    def add(self, thread: int, frame: FrameType | None, weight_s: float) -> None:
        """Record a stack of the thread, which stands for `weight_s` seconds."""
        stack: list[int] = []
        while frame is not None and len(stack) < PROFILE_STACK_MAX:
            code = frame.f_code
            key = (code.co_qualname, code.co_filename, code.co_firstlineno)
            stack.append(self._frames.setdefault(key, len(self._frames)))
            frame = frame.f_back
        stack.reverse()
        samples, weights = self._recorded.setdefault(thread, ([], []))
        samples.append(stack)
        weights.append(weight_s)

    def speedscope(self, length_s: float) -> dict[str, Any]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return {
            "$schema": _SCHEMA,
            "name": f"activator, {length_s:.1f} s",
            "exporter": f"activator {activator.__version__}",
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": name, "file": file, "line": line} for name, file, line in self._frames]},
            "profiles": [
                {
                    "type": "sampled",
                    "name": names.get(thread) or f"thread {thread}",
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": samples,
                    "weights": weights,
                }
                for thread, (samples, weights) in sorted(
                    self._recorded.items(), key=lambda one: names.get(one[0]) != "MainThread"
                )
            ],
        }
