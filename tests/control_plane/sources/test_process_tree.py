"""Which processes belong to a program while processes execute other programs, and while further programs are started.

While a process executes another program, the kernel shows an empty environment for some microseconds, and for longer on
a busy machine: neither the mark of a program nor the absence of variables can be seen then.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from activator.control_plane.sources.process.process_tree import ProcessTree
from activator.control_plane.sources.process.reaper import environment, living, stat

MARK = "the mark of this test"
LOOKS = 300

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc here")


@pytest.fixture
def executing(tmp_path: Path) -> Iterator[int]:
    """A process that executes one program after another, each with the mark in its environment."""
    script = tmp_path / "again.sh"
    script.write_text('exec /bin/sh "$0"\n')
    child = subprocess.Popen(["/bin/sh", str(script)], env={"MARK": MARK}, start_new_session=True)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def hidden() -> Iterator[int]:
    """A process without variables in its environment, in a session of its own."""
    child = subprocess.Popen(["/bin/sleep", "60"], env={}, start_new_session=True)
    try:
        while environment(str(child.pid), stat(str(child.pid))) is None:
            pass  # `Popen` returns somewhat earlier
        yield child.pid
    finally:
        child.kill()
        child.wait()


def tree() -> ProcessTree:
    """Of a program that started before all others."""
    return ProcessTree(os.getpid(), "some program")


async def sessions_claimed(others: set[int]) -> set[int]:
    found = tree()
    await found.include_hidden(others)
    return set(await found.living())


def test_a_process_that_executes_another_program_keeps_its_mark(executing: int) -> None:
    for _ in range(LOOKS):
        assert living(set(), MARK.encode()) == [executing]


def test_a_process_that_executes_another_program_is_not_one_without_variables(executing: int) -> None:
    async def check() -> None:
        for _ in range(LOOKS):
            assert executing not in await sessions_claimed(set())

    asyncio.run(check())


def test_an_orphan_without_variables_belongs_to_the_program_that_has_ended(hidden: int) -> None:
    assert hidden in asyncio.run(sessions_claimed(set()))


def test_a_program_that_is_started_during_the_search_does_not(hidden: int) -> None:
    async def check() -> None:
        others: set[int] = set()
        found = tree()
        search = asyncio.create_task(found.include_hidden(others))
        await asyncio.sleep(0)
        others.add(hidden)  # `Popen` has returned only now
        await search
        assert hidden not in await found.living()

    asyncio.run(check())


def test_no_variables_are_a_known_environment(hidden: int) -> None:
    """Nothing waits for processes without variables."""
    assert environment(str(hidden), stat(str(hidden))) == b""
