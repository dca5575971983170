"""Ways of claiming with one object that all members write: what they share. The object is a ConfigMap.

A ConfigMap and no annotations of a Lease: its data is a map of strings that server-side apply merges key by key, it may
hold 1 MiB where annotations may hold 256 KiB, and each entry is seen by whoever looks at it with kubectl.

Rules
  1. An entry is one member's row, as JSON. Several groups may have their rows in one object; only rows of this group
     are read as indexes, and only those are ever removed.
  2. The object always has the entry FORMAT_KEY: an empty map is not written by the API, and a JSON Patch cannot add to
     what is not there.
  3. Rows of members that are gone are removed by a whole update with the version that was read. The object has many
     writers, so that is refused again and again: it is read anew each time, with a jittered pause, a bounded number of
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
REMOVE_ATTEMPTS_MAX: Final = 20  # of one removal of rows; each is refused where another member wrote meanwhile
REMOVE_PAUSE_INITIAL_S: Final = 0.01
REMOVE_PAUSE_MAX_S: Final = 0.5
MANAGER_LENGTH_MAX: Final = 128  # of a field manager's name
_DIGEST_LENGTH: Final = 32


def manager_of(name: str) -> str:
    """The field manager of a member: its name, or where that is too long its digest."""
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
    """`object_name` is that of the ConfigMap; by default the group has one of its own."""

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
        self._seen: Json | None = None  # the object as of the last look

    async def remove_gone(self, uids: Collection[str]) -> int:
        """Remove the rows of these UIDs, of this group only; how many. Raises KubeError, MembershipError."""
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

    async def _look(self) -> Table:
        self._seen = await self._get()
        return self._table(self._seen)

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
                f"the ConfigMap {self.namespace}/{self.object_name} has no label {SHARED_LABEL}: it is somebody else's"
            )
        return thing

    def _rows(self, thing: Json) -> dict[str, Row]:
        """The rows of this group, by their keys."""
        rows = {}
        for key, text in thing.get("data", {}).items():
            if key == FORMAT_KEY:
                continue
            try:
                row = msgspec.json.decode(text, type=Row)
            except msgspec.DecodeError as error:
                raise ForeignObjectError(f"the ConfigMap {self.object_name}: {key} is no row: {error}") from error
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
        """Of a row that is found by its index."""
        return f"{index}.{self.names.group}"

    async def _apply(self, wanted: Json) -> Json | None:
        """The object after a server-side apply by this member; None: others have written what it would write."""
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
        """Whether this member made the object; False: another has."""
        try:
            await self._calls.create(CONFIG_MAPS.collection(self.namespace), self._whole(data))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "AlreadyExists"):
                raise
            return False
        return True

    async def _updated(self, thing: Json) -> bool:
        """Write `thing` over the version that it was read as; False: that is no longer the version."""
        try:
            await self._calls.counted("update", self._client.update(self.path, thing, FIELD_MANAGER))
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "Conflict"):
                raise
            return False
        return True
