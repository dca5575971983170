"""An event loop that runs its ready callbacks in an order drawn from a seed: for tests of what must hold in any order.

asyncio promises first in, first out, and code comes to lean on it without anybody's notice. Here all callbacks that are
ready when a turn begins are shuffled; what becomes ready meanwhile waits for the next turn, as always. Timers and
sockets join the turn after the one that found them due.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class ShuffledLoop(asyncio.SelectorEventLoop):
    """`shuffled` counts the turns in which there was something to shuffle."""

    _ready: deque[asyncio.Handle]  # of asyncio.BaseEventLoop, as is `_run_once`

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.shuffled = 0

    def _run_once(self) -> None:
        ready = list(self._ready)
        if len(ready) > 1:
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
            self.shuffled += 1
        super()._run_once()  # type: ignore[misc]


def run_shuffled(seed: int, main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """`asyncio.run(main())` on a shuffled loop."""
    with asyncio.Runner(loop_factory=lambda: ShuffledLoop(seed)) as runner:
        return runner.run(main())
