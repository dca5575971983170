"""One shared object, server-side apply: each member applies its own row, keyed by its name, with its own manager.

Rules
  1. No two members apply the same field, so the API never refuses: two members may have the same index for a while.
  2. The response to an apply is the object as of that write. Of two rows with one index the later writer saw the other;
     so a member whose response shows its index twice changes its index, and any other member may keep it.
  3. A restarted member that finds its index twice changes it as well: it cannot know whether it was the first.
"""

from __future__ import annotations

from typing import final

from activator.kubernetes.errors import RefusedError
from activator.members.claims.calls import CONFLICT
from bench.claims.shared import SharedStarter


@final
class ApplyByMemberStarter(SharedStarter):
    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        answer = await self._apply(self._whole({self.holder.name: self._row(index)}))
        if answer is None:
            return False
        if not self._table(answer).is_shared(index):
            return True
        self.duplicates += 1
        return False

    async def _give_up_all(self) -> None:
        if await self._get() is not None and await self._apply(self._whole({})) is None:
            raise RefusedError(CONFLICT, "Conflict", f"{self.object_name}: repeatedly written by others")
