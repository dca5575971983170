"""One shared object, server-side apply: rows are keyed by index, each owned by the manager of its member.

Rules
  1. The API refuses (409) to apply an index that another manager owns: the rows of two members always differ.
  2. A manager applies all that it owns: a write with a new index also removes the former one.
"""

from __future__ import annotations

from typing import final

from activator.kubernetes.errors import RefusedError
from activator.members.claims.calls import CONFLICT
from bench.claims.shared import SharedStarter


@final
class ApplyByIndexStarter(SharedStarter):
    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        return await self._apply(self._whole({self._key(index): self._row(index)})) is not None

    async def _give_up_all(self) -> None:
        if await self._get() is not None and await self._apply(self._whole({})) is None:
            raise RefusedError(CONFLICT, "Conflict", f"{self.object_name}: repeatedly written by others")
