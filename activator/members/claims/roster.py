"""The seats of a group as the API has them: a list, then a watch, and what others may do to a seat with proof.

Rules
  1. Reading only. The one write is `evict`, which its caller decides on; in the steady state nothing is written.
  2. Nothing ends by time. While the API cannot be reached, the last known seats stay, however long that takes.
  3. `changed` is called with all seats, by index, once for all that came in one turn of the loop, and only where they
     differ from what it was called with before. The version of a Lease alone is no difference.
  4. One holder has one seat here: where it has two Leases for a moment (a claim under way) its lowest counts.
  5. `lost` is called once when the own Lease, which was seen before, is there no more: its owner claims anew.
  6. A Lease is deleted only as the one that the seat names (UID and version), never if it has another holder by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, final

from activator.kubernetes.client import KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import KubeError, RefusedError
from activator.kubernetes.listing import Pause
from activator.kubernetes.objects import Key, Lease, Pod
from activator.kubernetes.resources import LEASES, PODS
from activator.kubernetes.watches import KubeWatches
from activator.members.claims.calls import CONFLICT, CountedCalls, is_refusal
from activator.members.claims.leases import leases_of
from activator.members.claims.names import ORIGIN_ANNOTATION, GroupNames
from activator.members.claims.seats import Holder, Seat, seat_of
from activator.runtime.clock import Defer, Now
from activator.runtime.tasks import OnTaskError, pause
from lb.rng import Rng

Seats = tuple[Seat, ...]

ROSTER_RECONCILE_INTERVAL_S: Final = 300.0  # between two comparisons with a list: a watch can be wrong without breaking
EVICT_ATTEMPTS_MAX: Final = 3  # each is refused where somebody has written into the Lease since it was read

log = logging.getLogger("activator.members")


@final
class LeaseRoster:
    """`seats` is what is known, `synced` whether a list has come. `evictions_total` counts Leases that were deleted."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        group: str,
        holder: Holder,
        changed: Callable[[Seats], None],
        lost: Callable[[], None],
        now: Now,
        rng: Rng,
        defer: Defer,
        on_error: OnTaskError,
        pause: Pause = pause,
        origin: str = "",
        reconcile_interval_s: float = ROSTER_RECONCILE_INTERVAL_S,
    ) -> None:
        self.names = GroupNames(group)
        self.namespace = namespace
        self.holder = holder
        self.seats: Seats = ()
        self.evictions_total = 0
        self.origins: set[str] = set()  # of other installations that have members in this group
        self._changed = changed
        self._lost = lost
        self._defer = defer
        self._origin = origin
        self._reconcile_interval_s = reconcile_interval_s
        self._calls = CountedCalls(client)
        self._watches = KubeWatches(client, now, rng, on_error, pause)
        self._leases: Mapping[Key, Lease] = {}
        self._pending = False
        self._told: tuple[tuple[int, Holder, str], ...] | None = None
        self._had_own = False

    async def start(self) -> None:
        """Look once, then watch until `close`. Raises MembershipForbiddenError, KubeError where the API is away."""
        selection = leases_of(self.names, self.namespace)
        await self._calls.list(selection, Decoding(Lease))  # a right that is missing shows here
        reflector, _ = self._watches.add(selection, _Handler(self._touched), self._reconcile_interval_s)
        self._leases = reflector.store

    async def close(self) -> None:
        """Watch no more; the client stays open, the Leases stay."""
        await self._watches.close()

    @property
    def synced(self) -> bool:
        return bool(self._watches.reflectors) and self._watches.synced

    def age_s(self, now_s: float) -> float:
        """How long ago the API last said something; for metrics, nothing depends on it."""
        return self._watches.age_s(now_s)

    # --- what others do to a seat -----------------------------------------------------------------------------------

    async def evict(self, seat: Seat) -> bool:
        """Delete the Lease of a seat whose holder is proven gone.

        True: this holder has the index no more, by this call, another's, or because somebody else has it. False: the
        API could not be asked, or it refused. Raises MembershipForbiddenError.
        """
        try:
            return await self._evicted(seat)
        except KubeError as error:
            log.warning("%s: index %d cannot be evicted: %s", self.names.group, seat.index, error)
            return False

    async def _evicted(self, seat: Seat) -> bool:
        version = seat.resource_version
        path = LEASES.one(self.namespace, self.names.lease(seat.index))
        for _ in range(EVICT_ATTEMPTS_MAX):
            try:
                self.evictions_total += await self._calls.delete(path, seat.lease_uid, version)
                return True
            except RefusedError as error:
                if not is_refusal(error, CONFLICT, "Conflict"):
                    raise
            body = await self._calls.get(path)
            there = None if body is None else Decoding(Lease).object(body)
            if there is None or there.metadata.uid != seat.lease_uid:
                return True
            known = seat_of(there, self.names)
            if known is None or known.holder.uid != seat.holder.uid:
                return False  # not as this seat was read: somebody has written into it
            version = known.resource_version
        return False

    async def pod_is_gone(self, seat: Seat) -> bool | None:
        """Whether the pod of the holder is proven gone: there is none of its name, or another one.

        None: the API does not say. Raises MembershipForbiddenError.
        """
        try:
            body = await self._calls.get(PODS.one(self.namespace, seat.holder.name))
            return body is None or Decoding(Pod).object(body).metadata.uid != seat.holder.uid
        except KubeError as error:
            log.info("%s: the pod %s cannot be asked about: %s", self.names.group, seat.holder.name, error)
            return None

    # --- what the API tells -----------------------------------------------------------------------------------------

    def _touched(self) -> None:
        if not self._pending:
            self._pending = True
            self._defer(self._tell)

    def _tell(self) -> None:
        self._pending = False
        self.seats = self._seats_now()
        self._tell_origins()
        told = tuple((seat.index, seat.holder, seat.lease_uid) for seat in self.seats)
        has_own = any(seat.holder.uid == self.holder.uid for seat in self.seats)
        is_lost = self._had_own and not has_own
        self._had_own = has_own
        if told != self._told:
            self._told = told
            self._changed(self.seats)
        if is_lost:
            log.warning("%s: the own Lease was deleted", self.names.group)
            self._lost()

    def _seats_now(self) -> Seats:
        found = [seat for lease in self._leases.values() if (seat := seat_of(lease, self.names)) is not None]
        seats: dict[str, Seat] = {}
        for seat in sorted(found, key=lambda one: one.index):
            seats.setdefault(seat.holder.uid, seat)
        return tuple(seats.values())

    def _tell_origins(self) -> None:
        for lease in self._leases.values():
            origin = lease.metadata.annotations.get(ORIGIN_ANNOTATION, "")
            if origin != self._origin and origin not in self.origins and seat_of(lease, self.names) is not None:
                self.origins.add(origin)
                log.warning(
                    "%s: %r has members in this group, which is that of %r: two installations share indexes; "
                    "give each a group of its own",
                    self.names.group,
                    origin,
                    self._origin,
                )


@final
class _Handler:
    """Whatever changed, the seats are worked out from the store as a whole."""

    def __init__(self, touched: Callable[[], None]) -> None:
        self._touched = touched

    def changed(self, old: Lease | None, new: Lease) -> None:
        self._touched()

    def gone(self, old: Lease) -> None:
        self._touched()

    def missed(self, new: Lease) -> None:
        self._touched()

    def listed(self, objects: Mapping[Key, Lease]) -> None:
        self._touched()
