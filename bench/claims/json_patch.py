"""One shared object, JSON Patch: "test that this index has no row" and "add mine" in one call.

Rules
  1. A test for null succeeds if there is no value, in the library of the API server; RFC 6902 leaves that open.
  2. Members that take different indexes do not conflict. Of those that take the same index all but one are refused with
     422 Invalid, which is also the status of a patch that can never work: the next read shows which case it is.
"""

from __future__ import annotations

from typing import Any, Final, final

from activator.kubernetes.errors import RefusedError
from activator.members.claims.calls import CONFLICT, FIELD_MANAGER, is_refusal
from bench.claims.shared import SharedStarter

INVALID: Final = 422

Operation = dict[str, Any]


@final
class JsonPatchStarter(SharedStarter):
    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        if self._last_read is None:
            return await self._created({self._key(index): self._row(index)})
        place = self._place(index)
        operations: list[Operation] = [
            {"op": "test", "path": place, "value": None},
            {"op": "add", "path": place, "value": self._row(index)},
        ]
        if leaving is not None:
            operations += self._removal(leaving)
        return await self._patched(operations)

    async def _give_up_all(self) -> None:
        index = (await self._read_table()).of(self.holder.uid)
        if index is not None and not await self._patched(self._removal(index)):
            raise RefusedError(CONFLICT, "Conflict", f"{self.object_name}: written by others in the meantime")

    def _removal(self, index: int) -> list[Operation]:
        place = self._place(index)
        return [{"op": "test", "path": place, "value": self._row(index)}, {"op": "remove", "path": place}]

    def _place(self, index: int) -> str:
        return f"/data/{self._key(index)}"

    async def _patched(self, operations: list[Operation]) -> bool:
        try:
            await self._calls.counted("patch", self._client.json_patch(self.path, operations, FIELD_MANAGER))
        except RefusedError as error:
            if not is_refusal(error, INVALID, "Invalid") and not is_refusal(error, CONFLICT, "Conflict"):
                raise
            return False
        return True
