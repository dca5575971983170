"""One shared object, server-side apply: each member applies its own row, keyed by its name, with its own manager.

Rules
  1. No two members apply the same field, so the API never refuses: two members may have the same index for a while.
  2. The answer to an apply is the object as of that write. Of two rows with one index the one that was written later
     saw the other; so a member whose answer shows its index twice moves, and one whose answer does not may stay.
  3. A member that begins anew and finds its index twice moves as well: it cannot know whether it was the first.
"""

from __future__ import annotations

import hashlib
from typing import Final, final

import msgspec

from activator.control_plane.sources.kubernetes.errors import RefusedError
from activator.members.claims.calls import CONFLICT, is_refusal
from activator.members.claims.shared import Json, SharedStarter

MANAGER_LENGTH_MAX: Final = 128  # of a field manager's name
_DIGEST_LENGTH: Final = 32


def manager_of(name: str) -> str:
    """The field manager of a member: its name, or where that is too long its digest."""
    manager = f"activator/{name}"
    if len(manager) <= MANAGER_LENGTH_MAX:
        return manager
    return f"activator/{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]}"


@final
class ApplyByMemberStarter(SharedStarter):
    async def _take(self, index: int, leaving: int | None) -> bool:
        answer = await self._apply(self._whole({self.holder.name: self._row(index)}))
        if answer is None:
            return False
        if not self._table(answer).is_shared(index):
            return True
        self.duplicates += 1
        return False

    async def _leave(self) -> None:
        if await self._get() is not None and await self._apply(self._whole({})) is None:
            raise RefusedError(CONFLICT, "Conflict", f"{self.object_name}: written by others again and again")

    async def _apply(self, wanted: Json) -> Json | None:
        """None: the server has tried again and again, and others were always faster."""
        try:
            body = await self._calls.apply(self.path, wanted, manager_of(self.holder.name))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "Conflict"):
                raise
            return None
        answer: Json = msgspec.json.decode(body)
        return answer
