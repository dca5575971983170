"""The request rates of client addresses, in bounded memory.

An address is represented by the time at which all of its requests will have drained (GCRA): one number, of which
several can be combined by their maximum. A full `Bucket` (bucket.py) is the time `burst * period / requests` from now.

Rules
  1. In any interval an address is admitted `burst` requests, and one more for each `period / requests`. A refused
     request changes nothing.
  2. Addresses are kept in two generations, each as long as a full bucket takes to drain. An address that is dropped
     with the older one has drained, and is therefore the same as one that was never seen.
  3. A generation has at most ADDRESSES_MAX addresses, so that many addresses cannot exhaust the memory. The others
     share CELLS_MAX cells: each uses the CELLS_PER_ADDRESS that a keyed hash selects, and the lowest value counts. A
     cell never falls, so no address is admitted more than rule 1 allows. An address is refused early only if others use
     all of its cells: with 10,000 such addresses that concerns about one new address in 20, with 1,000 one in
     80,000. Addresses of the current generation are not affected.
"""

from __future__ import annotations

import hashlib
from typing import Final, final

ADDRESSES_MAX: Final = 16_384  # in each generation; some 2 MiB
CELLS_MAX: Final = 65_536  # some 2 MiB, created on first use
CELLS_PER_ADDRESS: Final = 4
ROUNDING_S: Final = 1e-6  # tolerance of comparisons

_INDEX_BYTES: Final = 4  # bytes of the hash for each cell


@final
class AddressRates:
    """The rates of the addresses that use one revision, in one worker. `seed`: at most 64 random bytes."""

    def __init__(
        self,
        requests: int,
        period_s: float,
        burst: int,
        seed: bytes,
        addresses_max: int = ADDRESSES_MAX,
        cells_max: int = CELLS_MAX,
    ) -> None:
        self._interval_s: float = period_s / requests
        self._slack_s: float = (burst - 1) * self._interval_s
        self._full_s: float = burst * self._interval_s  # how long a full bucket takes to drain
        self._seed = seed
        self._addresses_max = addresses_max
        self._cells_max = cells_max
        self._current: dict[str, float] = {}  # by address: when all of its requests will have drained
        self._previous: dict[str, float] = {}
        self._since_s: float = 0.0  # the beginning of the current generation
        self._cells: list[float] = []  # empty: none is in use
        self._cells_until_s: float = 0.0  # the highest value of all cells

    def admit(self, address: str, now_s: float) -> float:
        """Admit a request and return 0.0, or refuse it and return the time after which one will be admitted."""
        if now_s - self._since_s >= self._full_s:
            self._previous = self._current
            self._current = {}
            self._since_s = now_s
            if self._cells_until_s <= now_s:
                self._cells = []
        is_known = address in self._current
        drained_s = self._current[address] if is_known else self._drained_s(address, now_s)
        wait_s = drained_s - now_s - self._slack_s
        if wait_s > ROUNDING_S:
            return wait_s
        drained_s = max(drained_s, now_s) + self._interval_s
        if is_known or len(self._current) < self._addresses_max:
            self._current[address] = drained_s
        else:
            self._add_to_cells(address, drained_s)
        return 0.0

    def size(self) -> int:
        """Return the number of addresses that are kept."""
        return len(self._current) + len(self._previous)

    # --- within ---

    def _drained_s(self, address: str, now_s: float) -> float:
        """Return the value of an address that is not in the current generation."""
        drained_s = self._previous.get(address, 0.0)
        if self._cells_until_s <= now_s:  # all cells have drained
            return drained_s
        lowest_s = self._cells_until_s
        for index in self._indices(address):
            lowest_s = min(lowest_s, self._cells[index])
        return max(drained_s, lowest_s)

    def _add_to_cells(self, address: str, drained_s: float) -> None:
        """Raise the cells of an address to `drained_s`."""
        if not self._cells:
            self._cells = [0.0] * self._cells_max
        for index in self._indices(address):
            if self._cells[index] < drained_s:
                self._cells[index] = drained_s
        self._cells_until_s = max(self._cells_until_s, drained_s)

    def _indices(self, address: str) -> list[int]:
        size = CELLS_PER_ADDRESS * _INDEX_BYTES
        digest = hashlib.blake2b(address.encode(), digest_size=size, key=self._seed).digest()
        starts = range(0, size, _INDEX_BYTES)
        return [int.from_bytes(digest[start : start + _INDEX_BYTES], "big") % self._cells_max for start in starts]
