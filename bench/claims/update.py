"""One shared object, written as a whole with the version that was read (optimistic locking).

Rules
  1. A row's key is its index. A write after another one is refused, whatever both contain; the object is then read
     again.
"""

from __future__ import annotations

from typing import final

from bench.claims.shared import SharedStarter


@final
class UpdateStarter(SharedStarter):
    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        row = {self._key(index): self._row(index)}
        if self._last_read is None:
            return await self._created(row)
        data = {
            key: text for key, text in self._last_read["data"].items() if leaving is None or key != self._key(leaving)
        }
        return await self._updated({**self._last_read, "data": {**data, **row}})

    async def _give_up_all(self) -> None:
        await self.remove_gone({self.holder.uid})
