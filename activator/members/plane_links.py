"""The links between the data planes of this replica and those of the others: which pairs have one, and who dials.

Rules
  1. A pair has a link while both are in the present view and ours is alive. The replica with the higher number dials.
     A replica's number is taken from the number of its data plane, whichever replica has the seat by now.
  2. One dial of a pair is under way at a time. After a failure, and after a link that ended soon, the next dial is
     delayed longer, up to RELINK_MAX_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from activator.data_plane.ownership.view import WORKER_BITS
from activator.members.data_planes import GroupDataPlanes
from activator.members.handshake import HandshakeError
from activator.members.mesh import Connection, Mesh, VacantError
from activator.members.messages import GroupView
from activator.members.numbers import seat_of
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner, pause

RELINK_INITIAL_S: Final = 0.005  # the other side may not have the view yet
RELINK_MAX_S: Final = 0.5
RELINK_STABLE_S: Final = 1.0  # a link that lasted for so long did not fail because of its messages

log = logging.getLogger("activator.members")

Pair = tuple[int, int]  # our data plane, the other one


class PlaneLinks:
    """The links between the data planes of this replica and those of other replicas.

    `address(seat)` returns the address to dial; `met` is called with each connection that was dialled.
    """

    def __init__(
        self,
        replica: int,
        planes: GroupDataPlanes,
        mesh: Mesh,
        address: Callable[[int], str],
        met: Callable[[Connection], None],
        tasks: TaskGroupOwner,
        now: Now,
    ) -> None:
        self.own: set[int] = set()  # data planes of this replica
        self._replica = replica
        self._planes = planes
        self._mesh = mesh
        self._address = address
        self._met = met
        self._tasks = tasks
        self._now = now
        self._seats: dict[Pair, int] = {}  # seat of the other data plane, for each pair that must have a link
        self._dialling: set[Pair] = set()
        self._made: dict[Pair, tuple[float, float]] = {}  # when the last link was made, and the delay of its dial
        self._is_closing = False

    def adopt(self, view: GroupView) -> None:
        """Link the members of this view from now on, and no others."""
        seats: dict[Pair, int] = {}
        for replica in view.replicas:
            if replica.number != self._replica:
                seat = seat_of(replica.number)
                seats.update({(own, one.number): seat for own in self.own for one in replica.data_planes})
        new = seats.keys() - self._seats.keys()
        self._made = {pair: made for pair, made in self._made.items() if pair in seats}
        self._seats = seats
        for pair in new:
            self._dial_later(pair, 0.0)

    def wants(self, own: int, other: int) -> bool:
        """Return True if these two must have a link, and ours is alive."""
        return (own, other) in self._seats and own in self.own

    def hand_to_plane(self, connection: Connection) -> None:
        """Pass a new connection to our data plane, or close it if the pair must have no link."""
        pair = own, other = connection.own, connection.identity.data_plane
        if not self.wants(own, other):  # the view has changed since the handshake
            connection.sock.close()
            return
        self._made[pair] = (self._now(), self._made.get(pair, (0.0, 0.0))[1])
        self._planes.link_member(own, other, connection.sock, connection.keys)

    def unlinked(self, own: int, other: int) -> None:
        """Make a new link, if these two must have one."""
        if (own, other) not in self._seats:
            return
        made_s, delay_s = self._made.get((own, other), (0.0, 0.0))
        is_stable = self._now() - made_s >= RELINK_STABLE_S
        self._dial_later((own, other), 0.0 if is_stable else min(2.0 * delay_s + RELINK_INITIAL_S, RELINK_MAX_S))

    def close(self) -> None:
        """Stop dialling."""
        self._is_closing = True

    # --- internal ---

    def _dial_later(self, pair: Pair, delay_s: float) -> None:
        """Dial this pair after `delay_s`, if this replica is the one that dials (rule 1)."""
        self._made[pair] = (self._made.get(pair, (0.0, 0.0))[0], delay_s)
        if pair[1] >> WORKER_BITS < self._replica and pair not in self._dialling:
            self._dialling.add(pair)
            self._tasks.start("data plane link", self._dial(pair, self._seats[pair], delay_s))

    async def _dial(self, pair: Pair, seat: int, delay_s: float) -> None:
        """Dial until there is a link, first after `delay_s`, then after growing delays."""
        own, other = pair
        backoff = Backoff(min(max(2.0 * delay_s, RELINK_INITIAL_S), RELINK_MAX_S), RELINK_MAX_S)
        try:
            while True:
                await pause(delay_s)
                if self._is_closing or not self.wants(own, other):
                    return
                try:
                    self._met(await self._mesh.dial(self._address(seat), own, other, other >> WORKER_BITS))
                    return
                except (VacantError, HandshakeError, OSError, TimeoutError) as error:
                    log.debug("data plane %d of seat %d is not reached: %s", other, seat, error)
                delay_s = backoff.next_s()
        finally:
            self._dialling.discard(pair)
