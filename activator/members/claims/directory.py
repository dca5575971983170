"""The seats of a group as the API has them, by a list and a watch; and the eviction of holders that have ended.

Rules
  1. This module only reads. The one write is `evict`, which its caller decides on; in the steady state there is none.
  2. Seats do not expire. While the API is unreachable, the last known seats stay.
  3. `changed` is called with all seats, by index, once for all events of one turn of the loop, and only if they differ
     from those of the last call. A new version of a Lease alone is no difference.
  4. A holder has one seat here: while it has two Leases (a claim under way), its lowest counts.
  5. `lost` is called once when the own Lease, which was seen before, has been deleted: its owner claims again.
  6. A Lease is deleted only by the UID and the version of the seat, never if it has another holder by then.
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

ROSTER_RECONCILE_INTERVAL_S: Final = (
    300.0  # interval of comparisons with a list: a watch can miss events without an error
)
EVICT_ATTEMPTS_MAX: Final = 3  # an attempt fails if the Lease has changed since it was read

log = logging.getLogger("activator.members")


@final
class LeaseDirectory:
    """The seats of one group. `evictions_total` counts the Leases that were deleted here."""

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
        self.origins: set[str] = set()  # other installations that have members in this group
        self._changed = changed
        self._lost = lost
        self._defer = defer
        self._origin = origin
        self._reconcile_interval_s = reconcile_interval_s
        self._calls = CountedCalls(client)
        self._watches = KubeWatches(client, now, rng, on_error, pause)
        self._leases: Mapping[Key, Lease] = {}
        self._pending = False
        self._reported: tuple[tuple[int, Holder, str], ...] | None = None
        self._had_own = False  # the last report had the own Lease

    async def start(self) -> None:
        """List once, then watch until `close`. Raises MembershipForbiddenError; KubeError if the API is unreachable."""
        selection = leases_of(self.names, self.namespace)
        await self._calls.list(selection, Decoding(Lease))  # raises if a right is missing
        reflector, _ = self._watches.add(selection, _Handler(self._report_soon), self._reconcile_interval_s)
        self._leases = reflector.store

    async def close(self) -> None:
        """Stop watching. The client stays open, and the Leases stay."""
        await self._watches.close()

    @property
    def synced(self) -> bool:
        """True if the first list has arrived."""
        return bool(self._watches.reflectors) and self._watches.synced

    def age_s(self, now_s: float) -> float:
        """Return the time since the last answer or event of the API. For metrics only."""
        return self._watches.age_s(now_s)

    # --- eviction -------------------------------------------------------------------------------------------------

    async def evict(self, seat: Seat) -> bool:
        """Delete the Lease of a seat whose holder has provably ended.

        Return True if this holder does not have the index any more: this call or another one has deleted the Lease.
        Return False if the API could not be asked or refused, or the Lease was changed. Raises
        MembershipForbiddenError.
        """
        try:
            return await self._evicted(seat)
        except KubeError as error:
            log.warning("%s: index %d cannot be evicted: %s", self.names.group, seat.index, error)
            return False

    async def _evicted(self, seat: Seat) -> bool:
        """Delete the Lease, as `evict` does. Raises KubeError, MembershipForbiddenError."""
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
            stored = None if body is None else Decoding(Lease).object(body)
            if stored is None or stored.metadata.uid != seat.lease_uid:
                return True
            known = seat_of(stored, self.names)
            if known is None or known.holder.uid != seat.holder.uid:
                return False  # the Lease has been changed since the seat was read
            version = known.resource_version
        return False

    async def pod_is_gone(self, seat: Seat) -> bool | None:
        """Return True if the pod of the holder has provably ended: no pod has its name, or another one has.

        Return None if the API could not be asked. Raises MembershipForbiddenError.
        """
        try:
            body = await self._calls.get(PODS.one(self.namespace, seat.holder.name))
            return body is None or Decoding(Pod).object(body).metadata.uid != seat.holder.uid
        except KubeError as error:
            log.info("%s: the pod %s cannot be asked about: %s", self.names.group, seat.holder.name, error)
            return None

    # --- events of the API ------------------------------------------------------------------------------------------

    def _report_soon(self) -> None:
        if not self._pending:
            self._pending = True
            self._defer(self._report)

    def _report(self) -> None:
        """Report the seats, if they have changed, and the loss of the own Lease."""
        self._pending = False
        self.seats = self._seats_now()
        self._warn_of_origins()
        reported = tuple((seat.index, seat.holder, seat.lease_uid) for seat in self.seats)
        has_own = any(seat.holder.uid == self.holder.uid for seat in self.seats)
        is_lost = self._had_own and not has_own
        self._had_own = has_own
        if reported != self._reported:
            self._reported = reported
            self._changed(self.seats)
        if is_lost:
            log.warning("%s: the own Lease was deleted", self.names.group)
            self._lost()

    def _seats_now(self) -> Seats:
        """Return the seats of the Leases in the store, one for each holder (rule 4)."""
        found = [seat for lease in self._leases.values() if (seat := seat_of(lease, self.names)) is not None]
        seats: dict[str, Seat] = {}
        for seat in sorted(found, key=lambda one: one.index):
            seats.setdefault(seat.holder.uid, seat)
        return tuple(seats.values())

    def _warn_of_origins(self) -> None:
        """Log each other installation that has members in this group, once."""
        for lease in self._leases.values():
            origin = lease.metadata.annotations.get(ORIGIN_ANNOTATION, "")
            if origin != self._origin and origin not in self.origins and seat_of(lease, self.names) is not None:
                self.origins.add(origin)
                log.warning(
                    "%s: %r has members in this group, which belongs to %r: two installations share one group name; "
                    "set a different group for each",
                    self.names.group,
                    origin,
                    self._origin,
                )


@final
class _Handler:
    """A handler that ignores the kind of event: the seats are computed from the whole store."""

    def __init__(self, report_soon: Callable[[], None]) -> None:
        self._report_soon = report_soon

    def changed(self, old: Lease | None, new: Lease) -> None:
        self._report_soon()

    def removed(self, old: Lease) -> None:
        self._report_soon()

    def resync(self, new: Lease) -> None:
        self._report_soon()

    def listed(self, objects: Mapping[Key, Lease]) -> None:
        self._report_soon()
