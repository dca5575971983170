"""The loop that shuffles: seeded, nothing lost, nothing run twice."""

from __future__ import annotations

import asyncio

from tests.shuffled_loop import ShuffledLoop, run_shuffled


def order_of(seed: int, tasks: int = 20, turns: int = 5) -> list[int]:
    """In which order tasks get their turns."""
    order: list[int] = []

    async def one(number: int) -> None:
        for _ in range(turns):
            order.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(tasks)))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShuffledLoop)
        assert loop.shuffled >= turns

    run_shuffled(seed, main)
    return order


def test_every_task_has_its_turns_in_an_order_that_the_seed_decides() -> None:
    first = order_of(1)
    assert sorted(first) == [number for number in range(20) for _ in range(5)]
    assert first == order_of(1)
    assert first != order_of(2)
    assert first[:20] != list(range(20))


def test_turns_stay_turns() -> None:
    """Nobody has a second turn before everybody has had the first."""
    order = order_of(3)
    assert [sorted(order[start : start + 20]) for start in range(0, 100, 20)] == [list(range(20))] * 5


def test_timers_and_threads_work() -> None:
    async def main() -> str:
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(lambda: "from a thread")

    assert run_shuffled(4, main) == "from a thread"
