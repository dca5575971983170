"""The claim of an index by a Lease: there is one Lease for each index, whose name is the claim.

Rules
  1. Creating the Lease claims the index. The API stores one object of a name, so two members never have the same index.
  2. A member creates and deletes only Leases of its own, and deletes with the UID and the version that it has read, so
     that a Lease that has changed since stays.
  3. Nothing is renewed. A Lease does not expire; a member with proof that its holder has ended deletes it
     (`LeaseDirectory.evict`).
  4. An object of the same name that is not of this group ends the claim with ForeignObjectError. It is never deleted.
"""

from __future__ import annotations

from typing import final

from activator.kubernetes.client import KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import RefusedError
from activator.kubernetes.listing import Pause
from activator.kubernetes.objects import Lease
from activator.kubernetes.resources import LEASES, Selection
from activator.members.claims.calls import CONFLICT, is_refusal
from activator.members.claims.errors import ForeignObjectError
from activator.members.claims.names import GROUP_LABEL, GroupNames
from activator.members.claims.seats import Holder, Seat, is_ours, lease_of, seat_of
from activator.members.claims.starter import CLAIM_SPREAD, Starter
from activator.members.claims.table import Choice, Table
from activator.runtime.tasks import pause
from lb.rng import Rng


def leases_of(names: GroupNames, namespace: str) -> Selection[Lease]:
    """Return the selection of the Leases that have the label of the group."""
    return Selection(LEASES, namespace, f"{GROUP_LABEL}={names.label}")


@final
class LeaseStarter(Starter):
    """Claims by Leases. `origin` is "namespace/Deployment", by which two installations in one group are detected."""

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
        origin: str = "",
    ) -> None:
        super().__init__(client, namespace, group, holder, rng, choice, pause, spread)
        self._origin = origin
        self._decoding = Decoding(Lease)
        self._mine: dict[int, Seat] = {}  # seats of this holder, as of the last list
        self._refused: int | None = None  # the index whose name was taken at the last attempt

    async def _read_table(self) -> Table:
        seats = await self._seats()
        table = Table((seat.index, seat.holder.uid) for seat in seats)
        refused, self._refused = self._refused, None
        if refused is not None and refused not in table.taken:
            await self._check_ours(refused)
        if not await self._correct_own_leases():
            return table
        return Table((seat.index, seat.holder.uid) for seat in await self._seats())

    async def _seats(self) -> list[Seat]:
        """Return the seats of the group by a consistent list, and remember those of this holder."""
        leases = await self._calls.list(leases_of(self.names, self.namespace), self._decoding)
        seats = [seat for lease in leases if (seat := seat_of(lease, self.names)) is not None]
        self._mine = {seat.index: seat for seat in seats if seat.holder.uid == self.holder.uid}
        return seats

    async def _check_ours(self, index: int) -> None:
        """Check the object that has the name of this index but is not in the list. Raises ForeignObjectError."""
        body = await self._calls.get(self._path(index))
        if body is None:
            return  # it has been deleted
        lease = self._decoding.object(body)
        if not is_ours(lease, self.names) or seat_of(lease, self.names) is None:
            raise ForeignObjectError(
                f"the Lease {self.namespace}/{lease.metadata.name} is no index of the group {self.names.group} "
                f"(its label {GROUP_LABEL} or its annotations say otherwise): delete it, or use another group name"
            )

    async def _correct_own_leases(self) -> bool:
        """Delete this holder's Leases but the lowest (an answer was lost), and replace a Lease with a former address.

        Return False if there was nothing to correct.
        """
        if not self._mine:
            return False
        lowest, *others = sorted(self._mine)
        for index in others:
            await self._delete(index)
        if self._mine[lowest].holder == self.holder:
            return bool(others)
        await self._delete(lowest)  # the pod got another address with a new sandbox
        await self._claim_index(lowest, None)
        return True

    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        body = lease_of(self.names, index, self.holder, self._origin)
        try:
            created = await self._calls.create(LEASES.collection(self.namespace), body)
        except RefusedError as error:
            if not is_refusal(error, CONFLICT, "AlreadyExists"):
                raise
            self._refused = index
            return False
        seat = seat_of(self._decoding.object(created), self.names)
        if seat is not None:
            self._mine[index] = seat
        if leaving is not None:
            await self._delete(leaving)
        return True

    async def _give_up_all(self) -> None:
        await self._seats()
        for index in list(self._mine):
            await self._delete(index)

    async def _delete(self, index: int) -> None:
        seat = self._mine[index]
        await self._calls.delete(self._path(index), seat.lease_uid, seat.resource_version)
        del self._mine[index]

    def _path(self, index: int) -> str:
        return LEASES.one(self.namespace, self.names.lease(index))
