"""Return freed memory to the kernel (malloc_trim), and bound what glibc keeps.

Rules
  1. Some megabytes are kept. A read of a large body takes a quarter of a MiB; by default glibc maps such memory for
     each read and unmaps it at once, and the kernel clears every page: 104 us per read, measured, instead of 13.
  2. The rest is returned. By itself glibc returns only memory at the end of the heap, and one small object there
     retains everything below: after 1,000 stalled uploads had ended, 400 MB were never returned.
  3. Memory is returned only after it has been free for a while, so that busy connections can reuse it.
  4. With another C library, nothing is done.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from typing import Final

from activator.runtime.units import MIB

MEMORY_KEPT_BYTES: Final = 16 * MIB  # freed memory that the allocator keeps at the end of the heap
MEMORY_GIVEN_BACK_BYTES: Final = 8 * MIB  # more freed memory than this is returned after MEMORY_CHECKS checks
MEMORY_CHECK_S: Final = 1.0  # the interval between checks
MEMORY_CHECKS: Final = 3  # consecutive checks that must find too much freed memory
MEMORY_MAPPED_ABOVE_BYTES: Final = MIB  # larger blocks are mapped separately, and unmapped when they are freed

# Constants of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class FreedMemory:
    """The freed memory of the process; with an old glibc or another C library, its methods do nothing."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._checks = 0  # consecutive checks that have found too much
        try:
            library = ctypes.CDLL(None)
            library.mallinfo2.restype = _Mallinfo2
            library.mallopt(_M_TRIM_THRESHOLD, MEMORY_KEPT_BYTES)
            library.mallopt(_M_MMAP_THRESHOLD, MEMORY_MAPPED_ABOVE_BYTES)
        except (OSError, AttributeError):
            return
        self._library = library

    def check(self) -> None:
        """Return memory to the kernel if MEMORY_CHECKS checks have found too much. A check takes some microseconds."""
        self._checks = self._checks + 1 if self.free_bytes() > MEMORY_GIVEN_BACK_BYTES else 0
        if self._checks >= MEMORY_CHECKS and self._library is not None:
            self._checks = 0
            self._library.malloc_trim(MEMORY_GIVEN_BACK_BYTES)

    def give_back(self) -> None:
        """Return all freed memory to the kernel."""
        if self._library is not None:
            self._library.malloc_trim(0)

    def free_bytes(self) -> int:
        """Return the bytes that are free in the heap, including pages already returned; 0 if it is unknown."""
        return 0 if self._library is None else int(self._library.mallinfo2().fordblks)


def relax_garbage_collection() -> None:
    """Exclude the present objects from garbage collection and raise the thresholds: requests create no cycles.

    Measured: 2 to 4 of 80 us per request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the kernel does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
