"""Freed memory: how much of it the C library keeps, and when it goes back to the kernel. Of glibc only; else nothing.

Rules
  1. Some megabytes are kept. A read of a large body is a quarter of a MiB; by default glibc asks the kernel for it anew
     each time and gives it back at once, and the kernel clears every page: 104 us a read, measured, instead of 13.
  2. The rest goes back. glibc by itself gives back only what lies at the end of the heap, and one small object there
     keeps all that is below: after 1,000 stalled uploads had gone, 400 MB stayed for good.
  3. What is given back has been free for a while: what busy connections free and take again stays.
"""

from __future__ import annotations

import ctypes
from typing import Final

from activator.runtime.units import MIB

MEMORY_KEPT_BYTES: Final = 16 * MIB  # freed memory that the allocator keeps at the end of the heap
MEMORY_GIVEN_BACK_BYTES: Final = 8 * MIB  # freed memory: when there is more of it for a while, it goes back
MEMORY_LOOK_S: Final = 1.0  # how often that is looked at …
MEMORY_LOOKS: Final = 3  # … and for how many looks it must have been so
MEMORY_MAPPED_ABOVE_BYTES: Final = MIB  # what is larger is mapped by itself, and given back when it is freed

# Of malloc.h.
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
    """Of the process. Where the C library is another, or an old one, nothing is done."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._looks = 0  # in a row that have found too much
        try:
            library = ctypes.CDLL(None)
            library.mallinfo2.restype = _Mallinfo2
            library.mallopt(_M_TRIM_THRESHOLD, MEMORY_KEPT_BYTES)
            library.mallopt(_M_MMAP_THRESHOLD, MEMORY_MAPPED_ABOVE_BYTES)
        except (OSError, AttributeError):
            return
        self._library = library

    def look(self) -> None:
        """Give back what has been free for MEMORY_LOOKS looks. A look takes some microseconds."""
        self._looks = self._looks + 1 if self.free_bytes() > MEMORY_GIVEN_BACK_BYTES else 0
        if self._looks >= MEMORY_LOOKS and self._library is not None:
            self._looks = 0
            self._library.malloc_trim(MEMORY_GIVEN_BACK_BYTES)

    def give_back(self) -> None:
        """All that is free now."""
        if self._library is not None:
            self._library.malloc_trim(0)

    def free_bytes(self) -> int:
        """Freed, and not given back to the kernel (or given back, and still the heap's); 0 where that is not known."""
        return 0 if self._library is None else int(self._library.mallinfo2().fordblks)
