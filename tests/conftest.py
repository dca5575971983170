"""What every test shares: the world it runs in, how many examples a property gets, and who may skip.

`--shuffle SEED`: the tests in random order, and every loop that asyncio makes for them one that shuffles its ready
callbacks, in debug mode (`make shuffled`). `--order SEED`: only the order of the tests.

Rules
  1. Same code, same result: examples are derived from the test's name, not from chance. `make deep` tries many more.
  2. A test that needs something of the machine calls `need`. Where that thing must be there (ACTIVATOR_CI=1) its
     absence fails the test: a skipped test proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import warnings
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, settings

from bench.processes import find_program
from tests.shuffled_loop import ShuffledLoop

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"
CI = os.environ.get("ACTIVATOR_CI") == "1"

STORMS = 3  # of each kind, by default


def storms(seeds: Iterable[int]) -> list[int]:
    """Return the seeds of a kind of storm: the first STORMS, or in `make deep` all of them."""
    every = list(seeds)
    return every if DEEP else every[:STORMS]


settings.register_profile(
    "default",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,  # a slow machine is no mistake of the code's
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", parent=settings.get_profile("default"), max_examples=500, derandomize=False)
settings.load_profile("deep" if DEEP else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, metavar="SEED", help="random order of tests")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="random order of tests and of a loop's callbacks")


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # policies are on their way out, from Python 3.14
            asyncio.set_event_loop_policy(_shuffling_policy(seed))


def _shuffling_policy(seed: int) -> asyncio.AbstractEventLoopPolicy:
    class Shuffling(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            loop = ShuffledLoop(seed)
            loop.set_debug(True)
            return loop

    return Shuffling()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is None:
        seed = config.getoption("--order")
    if seed is not None:
        random.Random(seed).shuffle(items)


Need = Callable[[bool, str], None]


@pytest.fixture(scope="session")
def need() -> Need:
    """`need(condition, what)`: goes on where the condition holds; else skips the test, or fails it in CI."""

    def need(condition: bool, what: str) -> None:
        if condition:
            return
        if CI:
            pytest.fail(f"this machine must have {what}", pytrace=False)
        pytest.skip(f"needs {what}")

    return need


@pytest.fixture(scope="session")
def need_program(need: Need) -> Callable[[str], str]:
    """`need_program(name)`: the path of a program, found as `need` does."""

    def find(name: str) -> str:
        path = find_program(name)
        need(path is not None, name)
        assert path is not None
        return path

    return find
