"""How many blocks, and bytes, an operation asks Python's allocators for: what Go calls allocs/op and B/op.

tracemalloc knows what is alive and what was at most, not how often something was asked for. So a few lines of C
(allocation_counter.c) stand between Python and its allocators while an operation runs; they are compiled when first
wanted. Where there is no C compiler there are no such figures, and a dash stands in their place.
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
    """Of one operation."""

    blocks: float
    bytes: float


def allocations(operation: Callable[[], object], times: int) -> Allocations | None:
    """What `operation` asks for, divided by `times`; None where it cannot be counted. It should have run before."""
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
        found = ctypes.PyDLL(str(library))  # stays loaded when the file is gone
    for name in ("counted_blocks", "counted_bytes"):
        getattr(found, name).restype = ctypes.c_ulonglong
    return found
