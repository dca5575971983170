"""Bodies that are held: pieces that a pod has yet to get, and bytes that their reader is not ready for.

`HeldBody` keeps body pieces of one request that no pod has yet, or that may have to be sent once more. They count
against the worker's budget for as long as they are here, and against their revision's once it is known.

`BodyBuffer` keeps bytes that their reader is not ready for: in memory up to a bound, beyond that in an unnamed
temporary file.

Rules of the buffer
  1. First in, first out. While the file holds anything, what comes is added to the file.
  2. `has_room` reserves what one more read can bring, so that no budget is ever exceeded: who gets False pauses the
     writer. What comes all the same, because it was on its way, was reserved before.
  3. Buffers take only what leaves half of a budget free: bodies of requests that wait for a slot need the rest, and a
     request whose body finds no place is refused, where a buffer without room only makes its writer wait.
  4. The file has no name: it ends with the buffer, or with the program. Reads and writes go to the page cache, at most
     one read of a connection in a turn.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import Final

from activator.data_plane.throttle.budget import HeldBudget
from activator.runtime.units import KIB

# Each piece is an object, of which budgets count only the bytes: one of two bytes takes 56. So many in a row, each
# smaller than this, are joined to one; then all take less than twice what is counted.
SMALL_PIECE_BYTES: Final = 512
SMALL_PIECES_MAX: Final = 64

READ_MAX_BYTES: Final = 256 * KIB  # of a connection, in one read: the loop's buffer has 256,000 bytes

_REVISION: Final = "for this revision"


class HeldBody:
    """Pieces in the order they came; `size` in bytes."""

    def __init__(self, budget: HeldBudget) -> None:
        self._budget = budget
        self._of_revision: HeldBudget | None = None
        self.refused_for: str = ""  # whose budget was used up, where it was not the worker's
        self.pieces: list[bytes] = []
        self.size: int = 0
        self._small: int = 0  # how many of the last pieces are small

    def append(self, data: bytes) -> bool:
        """Keep a piece; False, and nothing kept, where the budget does not allow it."""
        if not self._budget.take(len(data)):
            return False
        of_revision = self._of_revision
        if of_revision is not None and not of_revision.take(len(data)):
            self._budget.give_back(len(data))
            self.refused_for = _REVISION
            return False
        pieces = self.pieces
        pieces.append(data)
        self.size += len(data)
        self._small = self._small + 1 if len(data) < SMALL_PIECE_BYTES else 0
        if self._small == SMALL_PIECES_MAX:
            self._small = 0
            pieces[-SMALL_PIECES_MAX:] = [b"".join(pieces[-SMALL_PIECES_MAX:])]
        return True

    def replace(self, start: int, end: int, data: bytes) -> bool:
        """Other bytes in the place of some, before the revision is known; False where the budget does not allow it."""
        more = len(data) - (end - start)
        if more > 0 and not self._budget.take(more):
            return False
        if more < 0:
            self._budget.give_back(-more)
        whole = b"".join(self.pieces)
        self.pieces = [b"%b%b%b" % (whole[:start], data, whole[end:])]
        self.size += more
        self._small = 0
        return True

    def assign(self, of_revision: HeldBudget) -> bool:
        """The revision is known; False where its budget does not allow what is here. To be called once."""
        if not of_revision.take(self.size):
            self.refused_for = _REVISION
            return False
        self._of_revision = of_revision
        return True

    def move(self, of_revision: HeldBudget) -> bool:
        """Another revision's from now on; False, and nothing changed, where its budget does not allow it."""
        if not of_revision.take(self.size):
            return False
        if self._of_revision is not None:
            self._of_revision.give_back(self.size)
        self._of_revision = of_revision
        return True

    def drop(self) -> None:
        """Keep nothing any more; to be called once."""
        self._budget.give_back(self.size)
        if self._of_revision is not None:
            self._of_revision.give_back(self.size)
        self.size = 0
        self.pieces = []


class BodyBuffer:
    """The buffer of one body.

    `memory_max` and `file_max` are bytes; `of_worker` and `of_revision` count the memory, `of_files` the files.
    """

    def __init__(
        self, memory_max: int, file_max: int, of_worker: HeldBudget, of_revision: HeldBudget, of_files: HeldBudget
    ) -> None:
        self._memory_max = memory_max
        self._file_max = file_max
        self._of_worker = of_worker
        self._of_revision = of_revision
        self._of_files = of_files
        self._pieces: deque[bytes] = deque()
        self._small: int = 0  # how many of the last ones are small, at the most
        self._memory: int = 0  # bytes in `pieces` …
        self._memory_reserved: int = 0  # … and as the budgets have it
        self._file: int = -1  # its descriptor; -1: none
        self._read: int = 0  # of the file: what lies before has been taken …
        self._written: int = 0  # … and what lies before this has been added
        self._file_reserved: int = 0
        self._file_failed: bool = False  # no space is left on the device, say: no more is written there
        self._behind: bytes = b""  # what could not be written then, behind what the file holds
        self._is_whole: bool = False  # nothing more will be added

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._memory + self._written - self._read + len(self._behind)

    def in_memory(self) -> bytes | None:
        """Return what is here, which stays; None if a part of it is in a file."""
        return None if self._written > self._read or self._behind else b"".join(self._pieces)

    def has_room(self) -> bool:
        """Whether one more read can be kept; what it may bring is reserved then."""
        if self._written == self._read and self._memory < self._memory_max and self._reserve_memory():
            return True
        return self._written + READ_MAX_BYTES <= self._file_max and not self._file_failed and self._reserve_file()

    def append(self, data: bytes) -> None:
        """Keep what has come, behind what is here. There must have been room for it."""
        in_file = self._written > self._read
        if (in_file or self._memory + len(data) > self._memory_reserved) and self._file_max > 0:
            if not self._file_failed and self._append_to_file(data):
                return
            if in_file:
                self._behind += data  # one read: there is no room from here on
                return
        self._add(data)

    def take(self, bytes_max: int) -> bytes:
        """What comes next: some `bytes_max` bytes, fewer at the end; empty where nothing is here.

        Raises OSError where the file cannot be read.
        """
        pieces = self._pieces
        if not pieces:
            if self._written > self._read:
                return self._take_from_file(bytes_max)
            return b""
        data = pieces.popleft()
        if len(data) < bytes_max and pieces:
            taken = [data]
            count = len(data)
            while pieces and count + len(pieces[0]) <= bytes_max:
                taken.append(pieces.popleft())
                count += len(taken[-1])
            data = b"".join(taken)
        self._memory -= len(data)
        self._trim_memory()
        return data

    def move(self, of_revision: HeldBudget) -> bool:
        """Another revision's from now on; False, and nothing changed, where its budget does not allow it."""
        if not of_revision.take(self._memory_reserved):
            return False
        self._of_revision.give_back(self._memory_reserved)
        self._of_revision = of_revision
        return True

    def ended(self) -> None:
        """Nothing more will be added: give back what was reserved for it."""
        self._is_whole = True
        self._trim_memory()
        self._give_back_file(max(self._file_reserved - self._written, 0))

    def drop(self) -> None:
        """Keep nothing any more."""
        self._pieces.clear()
        self._behind = b""
        self._memory = 0
        self._give_back_memory(self._memory_reserved)
        self._give_back_file(self._file_reserved)
        self._read = self._written = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # --- within ---

    def _add(self, data: bytes) -> None:
        pieces = self._pieces
        pieces.append(data)
        self._memory += len(data)
        self._small = self._small + 1 if len(data) < SMALL_PIECE_BYTES else 0
        if self._small == SMALL_PIECES_MAX:
            self._small = 0
            last = [pieces.pop() for _ in range(min(SMALL_PIECES_MAX, len(pieces)))]  # some may have been taken
            last.reverse()
            pieces.append(b"".join(last))

    def _reserve_memory(self) -> bool:
        wanted = self._memory + READ_MAX_BYTES - self._memory_reserved
        if wanted <= 0:
            return True
        if not self._of_worker.take_spare(wanted):
            return False
        if not self._of_revision.take_spare(wanted):
            self._of_worker.give_back(wanted)
            return False
        self._memory_reserved += wanted
        return True

    def _trim_memory(self) -> None:
        needed = self._memory if self._is_whole else self._memory + READ_MAX_BYTES
        if self._memory_reserved > needed:
            self._give_back_memory(self._memory_reserved - needed)

    def _give_back_memory(self, count: int) -> None:
        self._memory_reserved -= count
        self._of_worker.give_back(count)
        self._of_revision.give_back(count)

    def _reserve_file(self) -> bool:
        wanted = self._written + READ_MAX_BYTES - self._file_reserved
        if wanted > 0:
            if not self._of_files.take(wanted):
                return False
            self._file_reserved += wanted
        return True

    def _give_back_file(self, count: int) -> None:
        self._file_reserved -= count
        self._of_files.give_back(count)

    def _append_to_file(self, data: bytes) -> bool:
        try:
            if self._file < 0:
                self._file = _unnamed_file()
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:] if written else data, self._written + written)
        except OSError:
            self._file_failed = True
            return False
        self._written += len(data)
        return True

    def _take_from_file(self, bytes_max: int) -> bytes:
        data = os.pread(self._file, min(bytes_max, self._written - self._read), self._read)
        if not data:
            raise OSError("a temporary file is shorter than what was written to it")
        self._read += len(data)
        if self._read == self._written:
            os.ftruncate(self._file, 0)
            self._read = self._written = 0
            self._give_back_file(self._file_reserved)
            if self._behind:  # from here on memory may be used again: what comes is to stay behind this
                self._add(self._behind)
                self._behind = b""
        return data


def _unnamed_file() -> int:
    """The descriptor of a new temporary file, in the directory that TMPDIR names."""
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
