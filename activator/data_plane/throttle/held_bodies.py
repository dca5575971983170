"""Buffers for request and response bodies.

`HeldBody` keeps the pieces of one request's body that no pod has received yet, or that may have to be sent again. They
count against the worker's budget, and against that of the revision once it is known.

`BodyBuffer` keeps bytes that their reader is not ready for: in memory up to a bound, beyond it in an unnamed temporary
file.

Rules of the buffer
  1. First in, first out. While the file is not empty, new data is appended to it.
  2. `has_room` reserves space for one more read, so that no budget is exceeded; a caller that gets False pauses the
     writer. Data that still arrives after that was reserved before.
  3. Buffers may use only half of a budget. The rest is for the bodies of requests that wait for a slot: such a request
     is refused if its body finds no room, whereas a full buffer only makes its writer wait.
  4. The file has no name, so it is deleted with the buffer or with the process. Reads and writes go to the page cache,
     at most the size of one connection read per turn.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import Final

from activator.data_plane.throttle.budget import HeldBudget
from activator.runtime.units import KIB

# Budgets count only bytes, but each piece is an object: one of 2 bytes takes 56. SMALL_PIECES_MAX consecutive pieces
# below SMALL_PIECE_BYTES are joined, so that memory use stays below twice the counted bytes.
SMALL_PIECE_BYTES: Final = 512
SMALL_PIECES_MAX: Final = 64

READ_MAX_BYTES: Final = 256 * KIB  # the largest read of a connection: the loop's buffer has 256,000 bytes

_REVISION: Final = "for this revision"


class HeldBody:
    """The held pieces of a body, in order; `size` in bytes."""

    def __init__(self, budget: HeldBudget) -> None:
        self._budget = budget
        self._revision_budget: HeldBudget | None = None
        self.refused_for: str = ""  # names the exhausted budget; empty: that of the worker
        self.pieces: list[bytes] = []
        self.size: int = 0
        self._small: int = 0  # how many of the last pieces are small

    def append(self, data: bytes) -> bool:
        """Append a piece; return False and keep nothing if a budget does not allow it."""
        if not self._budget.take(len(data)):
            return False
        revision_budget = self._revision_budget
        if revision_budget is not None and not revision_budget.take(len(data)):
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
        """Replace a range of bytes before the revision is known; return False if the budget is exhausted."""
        growth = len(data) - (end - start)
        if growth > 0 and not self._budget.take(growth):
            return False
        if growth < 0:
            self._budget.give_back(-growth)
        whole = b"".join(self.pieces)
        whole = b"%b%b%b" % (whole[:start], data, whole[end:])
        self.pieces = [whole] if whole else []
        self.size += growth
        self._small = 0
        return True

    def assign(self, revision_budget: HeldBudget) -> bool:
        """Charge the body to the budget of its revision; return False if it is exhausted. Call it once."""
        if not revision_budget.take(self.size):
            self.refused_for = _REVISION
            return False
        self._revision_budget = revision_budget
        return True

    def move(self, revision_budget: HeldBudget) -> bool:
        """Move the body to the budget of another revision; return False and change nothing if it is exhausted."""
        if not revision_budget.take(self.size):
            return False
        if self._revision_budget is not None:
            self._revision_budget.give_back(self.size)
        self._revision_budget = revision_budget
        return True

    def drop(self) -> None:
        """Release all pieces; call it once."""
        self._budget.give_back(self.size)
        if self._revision_budget is not None:
            self._revision_budget.give_back(self.size)
        self.size = 0
        self.pieces = []


class BodyBuffer:
    """The buffer of one body.

    `memory_max` and `file_max` are bytes; `worker_budget` and `revision_budget` count the memory, `files_budget` files.
    """

    def __init__(
        self,
        memory_max: int,
        file_max: int,
        worker_budget: HeldBudget,
        revision_budget: HeldBudget,
        files_budget: HeldBudget,
    ) -> None:
        self._memory_max = memory_max
        self._file_max = file_max
        self._worker_budget = worker_budget
        self._revision_budget = revision_budget
        self._files_budget = files_budget
        self._pieces: deque[bytes] = deque()
        self._small: int = 0  # upper bound of how many of the last pieces are small
        self._memory: int = 0  # bytes in `_pieces`
        self._memory_reserved: int = 0  # bytes taken from the budgets for them
        self._file: int = -1  # file descriptor; -1: none
        self._file_start: int = 0  # offset of the first byte of the file that was not taken
        self._file_end: int = 0  # offset after the last byte that was written
        self._file_reserved: int = 0  # bytes taken from the budget of the files
        self._file_failed: bool = False  # for example, no space left on the device; no more is written
        self._unwritten: bytes = b""  # data that could not be written, after the content of the file
        self._is_whole: bool = False  # no more data will be appended

    @property
    def size(self) -> int:
        """The number of buffered bytes."""
        return self._memory + self._file_end - self._file_start + len(self._unwritten)

    def in_memory(self) -> bytes | None:
        """Return the buffered bytes without removing them; None if a part of them is in a file."""
        return None if self._file_end > self._file_start or self._unwritten else b"".join(self._pieces)

    def has_room(self) -> bool:
        """Return True if the data of one more read can be kept; space for it is reserved then."""
        if self._file_end == self._file_start and self._memory < self._memory_max and self._reserve_memory():
            return True
        return self._file_end + READ_MAX_BYTES <= self._file_max and not self._file_failed and self._reserve_file()

    def append(self, data: bytes) -> None:
        """Append `data`; `has_room` must have returned True before."""
        in_file = self._file_end > self._file_start
        if (in_file or self._memory + len(data) > self._memory_reserved) and self._file_max > 0:
            if not self._file_failed and self._append_to_file(data):
                return
            if in_file:
                self._unwritten += data  # at most one read: `has_room` is False from now on
                return
        self._append_in_memory(data)

    def take(self, bytes_max: int) -> bytes:
        """Remove and return about `bytes_max` bytes, fewer at the end; b"" if the buffer is empty.

        Raises OSError if the file cannot be read.
        """
        pieces = self._pieces
        if not pieces:
            if self._file_end > self._file_start:
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

    def move(self, revision_budget: HeldBudget) -> bool:
        """Move the buffer to the budget of another revision; return False and change nothing if it is exhausted."""
        if not revision_budget.take(self._memory_reserved):
            return False
        self._revision_budget.give_back(self._memory_reserved)
        self._revision_budget = revision_budget
        return True

    def ended(self) -> None:
        """Release the reservation for further data, because no more will be appended."""
        self._is_whole = True
        self._trim_memory()
        self._give_back_file(max(self._file_reserved - self._file_end, 0))

    def drop(self) -> None:
        """Discard everything and release the budgets."""
        self._pieces.clear()
        self._unwritten = b""
        self._memory = 0
        self._give_back_memory(self._memory_reserved)
        self._give_back_file(self._file_reserved)
        self._file_start = self._file_end = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # --- within ---

    def _append_in_memory(self, data: bytes) -> None:
        """Append data in memory; join small pieces."""
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
        """Reserve memory for one more read; return False if a budget does not allow it."""
        missing = self._memory + READ_MAX_BYTES - self._memory_reserved
        if missing <= 0:
            return True
        if not self._worker_budget.take_spare(missing):
            return False
        if not self._revision_budget.take_spare(missing):
            self._worker_budget.give_back(missing)
            return False
        self._memory_reserved += missing
        return True

    def _trim_memory(self) -> None:
        needed = self._memory if self._is_whole else self._memory + READ_MAX_BYTES
        if self._memory_reserved > needed:
            self._give_back_memory(self._memory_reserved - needed)

    def _give_back_memory(self, count: int) -> None:
        self._memory_reserved -= count
        self._worker_budget.give_back(count)
        self._revision_budget.give_back(count)

    def _reserve_file(self) -> bool:
        """Reserve space in the file for one more read; return False if the budget does not allow it."""
        missing = self._file_end + READ_MAX_BYTES - self._file_reserved
        if missing > 0:
            if not self._files_budget.take(missing):
                return False
            self._file_reserved += missing
        return True

    def _give_back_file(self, count: int) -> None:
        self._file_reserved -= count
        self._files_budget.give_back(count)

    def _append_to_file(self, data: bytes) -> bool:
        """Write data to the end of the file; return False if that fails."""
        try:
            if self._file < 0:
                self._file = _unnamed_file()
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:] if written else data, self._file_end + written)
        except OSError:
            self._file_failed = True
            return False
        self._file_end += len(data)
        return True

    def _take_from_file(self, bytes_max: int) -> bytes:
        """Remove and return up to `bytes_max` bytes of the file. Raises OSError."""
        data = os.pread(self._file, min(bytes_max, self._file_end - self._file_start), self._file_start)
        if not data:
            raise OSError("a temporary file is shorter than what was written to it")
        self._file_start += len(data)
        if self._file_start == self._file_end:
            os.ftruncate(self._file, 0)
            self._file_start = self._file_end = 0
            self._give_back_file(self._file_reserved)
            if self._unwritten:  # memory may be used again, after this data
                self._append_in_memory(self._unwritten)
                self._unwritten = b""
        return data


def _unnamed_file() -> int:
    """Return the descriptor of a new temporary file in the directory that TMPDIR names."""
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
