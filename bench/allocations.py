"""The number of blocks and bytes that an operation allocates from Python's allocators (allocs/op and B/op in Go).

tracemalloc reports live memory and its peak, but not the number of allocations. So a small C library
(allocation_counter.c) is installed between Python and its allocators while an operation runs; it is compiled when it is
first used. Without a C compiler, a dash is shown instead of these figures.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("allocation_counter.c")


class Allocations(NamedTuple):
    """The allocations of one operation."""

    blocks: float
    bytes: float


def allocations(operation: Callable[[], object], times: int) -> Allocations | None:
    """Return the allocations of `operation`, divided by `times`; None if they cannot be counted. Warm it up before."""
    counter = _counter()
    if counter is None:
        return None
    nothing = _count(counter, _nothing)
    found = _count(counter, operation)
    return Allocations(
        round((found.blocks - nothing.blocks) / times, 3), round((found.bytes - nothing.bytes) / times, 1)
    )


def _nothing() -> None:
    pass


def _count(counter: ctypes.PyDLL, operation: Callable[[], object]) -> Allocations:
    start, stop = counter.start, counter.stop
    start()
    try:
        operation()
    finally:
        stop()
    return Allocations(counter.counted_blocks(), counter.counted_bytes())


@functools.cache
def _counter() -> ctypes.PyDLL | None:
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        library = Path(folder) / "allocation_counter.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            return None
        found = ctypes.PyDLL(str(library))  # stays loaded when the file is deleted
    for name in ("counted_blocks", "counted_bytes"):
        getattr(found, name).restype = ctypes.c_ulonglong
    return found
