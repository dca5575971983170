"""Ways of claiming with one object that all members write: their common part. The object is a ConfigMap.

Reasons for a ConfigMap instead of annotations of a Lease: its data is a map of strings that server-side apply merges
key by key, it may have 1 MiB where annotations may have 256 KiB, and kubectl shows each entry.

Rules
  1. An entry is one member's row, as JSON. Several groups may have their rows in one object; only the rows of this
     group are read as indexes, and only those are ever removed.
  2. The object always has the entry FORMAT_KEY: the API does not write an empty map, and a JSON Patch cannot add to a
     map that does not exist.
  3. Rows of removed members are deleted by an update of the whole object with the version that was read. The object has
     many writers, so that this is often refused: the object is read again after a jittered pause, a bounded number of
     times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, Final

import msgspec

from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import RefusedError
from activator.kubernetes.listing import Pause
from activator.kubernetes.resources import CONFIG_MAPS
from activator.members.claims.calls import CONFLICT, FIELD_MANAGER, is_refusal
from activator.members.claims.errors import ClaimFailedError, ForeignObjectError
from activator.members.claims.names import NAME_LENGTH_MAX, shortened
from activator.members.claims.seats import Holder
from activator.members.claims.starter import CLAIM_SPREAD, Starter
from activator.members.claims.table import Choice, Table
from activator.runtime.backoff import Backoff
from activator.runtime.tasks import pause
from lb.rng import Rng

Json = dict[str, Any]

SHARED_LABEL: Final = "activator.dev/shared-claims"
FORMAT_KEY: Final = "format"
FORMAT: Final = "1"
REMOVE_ATTEMPTS_MAX: Final = 20  # to remove rows; an attempt is refused if another member wrote meanwhile
REMOVE_PAUSE_INITIAL_S: Final = 0.01
REMOVE_PAUSE_MAX_S: Final = 0.5
MANAGER_LENGTH_MAX: Final = 128  # limit of the API for the name of a field manager
_DIGEST_LENGTH: Final = 32


def manager_of(name: str) -> str:
    """Return the field manager of a member: its name, or a digest of a name that is too long."""
    manager = f"activator/{name}"
    if len(manager) <= MANAGER_LENGTH_MAX:
        return manager
    return f"activator/{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]}"


class Row(msgspec.Struct, frozen=True):
    """One member's entry."""

    group: str
    index: int
    name: str
    uid: str
    address: str


class SharedStarter(Starter):
    """The common part; `object_name` is that of the ConfigMap, by default a separate one for each group."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        group: str,
        holder: Holder,
        rng: Rng,
        choice: Choice = Choice.RANDOM,
        pause: Pause = pause,
        spread: int = CLAIM_SPREAD,
        object_name: str = "",
    ) -> None:
        super().__init__(client, namespace, group, holder, rng, choice, pause, spread)
        self.object_name = object_name or shortened(f"{group}-members", NAME_LENGTH_MAX)
        self.path = CONFIG_MAPS.one(namespace, self.object_name)
        self._client = client
        self._last_read: Json | None = None  # the object as of the last read

    async def remove_gone(self, uids: Collection[str]) -> int:
        """Remove the rows of these UIDs from this group only. Raises KubeError or MembershipError.

        Returns the number of removed rows.
        """
        conflicts = Backoff(REMOVE_PAUSE_INITIAL_S, REMOVE_PAUSE_MAX_S, self._rng)
        for _ in range(REMOVE_ATTEMPTS_MAX):
            thing = await self._get()
            if thing is None:
                return 0
            gone = [key for key, row in self._rows(thing).items() if row.uid in uids]
            if not gone:
                return 0
            for key in gone:
                del thing["data"][key]
            if await self._updated(thing):
                return len(gone)
            self.conflicts += 1
            await self._pause(conflicts.next_s())
        raise ClaimFailedError(f"{self.object_name}: written by others at each of {REMOVE_ATTEMPTS_MAX} attempts")

    # --- for the ways -----------------------------------------------------------------------------------------------

    async def _read_table(self) -> Table:
        self._last_read = await self._get()
        return self._table(self._last_read)

    def _table(self, thing: Json | None) -> Table:
        rows = {} if thing is None else self._rows(thing)
        return Table((row.index, row.uid) for row in rows.values())

    async def _get(self) -> Json | None:
        body = await self._calls.get(self.path)
        if body is None:
            return None
        thing: Json = msgspec.json.decode(body)
        if thing["metadata"].get("labels", {}).get(SHARED_LABEL) != "true":
            raise ForeignObjectError(
                f"the ConfigMap {self.namespace}/{self.object_name} has no label {SHARED_LABEL}: it belongs to others"
            )
        return thing

    def _rows(self, thing: Json) -> dict[str, Row]:
        """Return the rows of this group by their keys."""
        rows = {}
        for key, text in thing.get("data", {}).items():
            if key == FORMAT_KEY:
                continue
            try:
                row = msgspec.json.decode(text, type=Row)
            except msgspec.DecodeError as error:
                raise ForeignObjectError(f"the ConfigMap {self.object_name}: {key} is not a row: {error}") from error
            if row.group == self.names.group:
                rows[key] = row
        return rows

    def _whole(self, data: dict[str, str]) -> Json:
        metadata = {"name": self.object_name, "labels": {SHARED_LABEL: "true"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {FORMAT_KEY: FORMAT, **data}}

    def _row(self, index: int) -> str:
        row = Row(self.names.group, index, *self.holder)
        return msgspec.json.encode(row).decode()

    def _key(self, index: int) -> str:
        """Return the key of a row, if rows are keyed by index."""
        return f"{index}.{self.names.group}"

    async def _apply(self, wanted: Json) -> Json | None:
        """Apply the member's fields (server-side apply); return the object, or None if others own them."""
        manager = manager_of(self.holder.name)
        try:
            body = await self._calls.counted("patch", self._client.apply(self.path, wanted, manager))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "Conflict"):
                raise
            return None
        answer: Json = msgspec.json.decode(body)
        return answer

    async def _created(self, data: dict[str, str]) -> bool:
        """Create the object; return False if another member has created it."""
        try:
            await self._calls.create(CONFIG_MAPS.collection(self.namespace), self._whole(data))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "AlreadyExists"):
                raise
            return False
        return True

    async def _updated(self, thing: Json) -> bool:
        """Write `thing` if its version is still the current one; return False otherwise."""
        try:
            await self._calls.counted("update", self._client.update(self.path, thing, FIELD_MANAGER))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "Conflict"):
                raise
            return False
        return True
