"""The seats of a group in a cluster: Leases named by index (claims/), and pods, whose end the API proves.

Rules
  1. Each holder of a seat that was seen is remembered with its address, so that the API can be asked whether a former
     holder has ended, by the name and UID of its pod.
  2. Any replica that finds that a holder's pod no longer exists deletes its Lease. It writes nothing else of others.
  3. If another client has deleted the Lease of this replica, the replica claims it again. If its index has been taken
     by then, the program must restart: `displaced` is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import KubeError
from activator.members.claims.directory import LeaseDirectory, Seats
from activator.members.claims.errors import MembershipError, MembershipForbiddenError
from activator.members.claims.leases import LeaseStarter
from activator.members.claims.seats import Holder, Seat
from activator.members.directory import Changed, ForbiddenError, MemberDirectory
from activator.members.mesh import split
from activator.members.numbers import SEATS_MAX
from activator.runtime.clock import Now
from activator.runtime.errors import StartError
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng

HOLDERS_MAX: Final = 4096  # remembered holders; beyond that, the oldest is forgotten
WATCH_RETRY_S: Final = 1.0  # delay before the next try to list the seats, if the API is unreachable at the start
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = logging.getLogger("activator.members")


class PodIdentity:
    """The identity of this pod, from its environment. Raises StartError."""

    def __init__(self, environ: Mapping[str, str], namespace_file: Path = NAMESPACE_FILE) -> None:
        missing = [name for name in ("POD_NAME", "POD_UID", "POD_IP") if not environ.get(name)]
        if missing:
            raise StartError(
                f"members: set {', '.join(missing)} from the Downward API (as the chart does), or list `members.peers`"
            )
        self.name = environ["POD_NAME"]
        self.uid = environ["POD_UID"]
        self.ip = environ["POD_IP"]
        self.namespace = environ.get("POD_NAMESPACE") or environ.get("SYSTEM_NAMESPACE") or _namespace(namespace_file)

    def address(self, listen: str) -> str:
        """Return the address at which the other members reach this pod."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{split(listen)[1]}"


@final
class KubernetesDirectory(MemberDirectory):
    """The roster of a cluster. `displaced` is called when another replica has this one's seat."""

    def __init__(
        self,
        pod: PodIdentity,
        group: str,
        environ: Mapping[str, str],
        displaced: Callable[[], None],
        now: Now,
        rng: Rng,
        tasks: TaskGroupOwner,
    ) -> None:
        self._pod = pod
        self.pod = pod.uid
        self._group = group
        self._client = KubeClient(Credentials(environ, now), "activator-members")
        self._displaced = displaced
        self._now = now
        self._rng = rng
        self._tasks = tasks
        self._holders: dict[tuple[int, str], Seat] = {}  # by index and address, as last seen
        self._current: dict[int, str] = {}  # the present addresses, by index
        self._changed: Changed | None = None
        self._roster: LeaseDirectory | None = None
        self._starter: LeaseStarter | None = None
        self._own = -1

    async def join(self, address: str) -> int:
        """Claim a seat, and return it. Raises ForbiddenError if the program may not use Leases, or StartError."""
        holder = Holder(self._pod.name, self._pod.uid, address)
        origin = f"{self._pod.namespace}/{self._group}"
        self._starter = LeaseStarter(self._client, self._pod.namespace, self._group, holder, self._rng, origin=origin)
        try:
            self._own = await self._starter.claim()
        except MembershipForbiddenError as error:
            await self._client.close()
            raise ForbiddenError(f"members: {error}") from error
        except MembershipError as error:
            await self._client.close()
            raise StartError(f"members: {error}") from error
        if self._own >= SEATS_MAX:
            raise StartError(f"members: index {self._own} of the group; a group has {SEATS_MAX} members at most")
        self._roster = LeaseDirectory(
            self._client,
            self._pod.namespace,
            self._group,
            holder,
            self._set_seats,
            self._lost,
            self._now,
            self._rng,
            asyncio.get_running_loop().call_soon,
            self._tasks.on_error,
            origin=origin,
        )
        self._current = {self._own: address}
        return self._own

    def watch(self, changed: Changed) -> None:
        self._changed = changed
        changed(self._current)
        self._tasks.start("seats", self._watch())

    async def is_gone(self, seat: int, address: str) -> bool:
        holder = self._holders.get((seat, address))
        if holder is None or self._roster is None:
            return False
        try:
            if not await self._roster.pod_is_gone(holder):
                return False
            if self._current.get(seat) == address:
                await self._roster.evict(holder)
        except MembershipForbiddenError as error:
            log.warning("the API cannot be asked whether the pod of seat %d has ended: %s", seat, error)
            return False
        return True

    async def leave(self) -> None:
        if self._roster is not None:
            await self._roster.close()
        if self._starter is not None:
            try:
                await self._starter.release()
            except MembershipError as error:  # the others notice that the pod has ended
                log.warning("the seat could not be given up: %s", error)
        await self._client.close()

    # --- internal ---

    async def _watch(self) -> None:
        """Begin to watch the seats, as soon as the API is reachable."""
        assert self._roster is not None, "it has joined"
        while True:
            try:
                await self._roster.start()
                return
            except KubeError as error:
                log.warning("the seats of the group cannot be listed, again in %g s: %s", WATCH_RETRY_S, error)
            await pause(WATCH_RETRY_S)

    def _set_seats(self, seats: Seats) -> None:
        """Remember the holders, and report the addresses."""
        for seat in seats:
            name = (seat.index, seat.holder.address)
            self._holders.pop(name, None)
            self._holders[name] = seat
        while len(self._holders) > HOLDERS_MAX:
            del self._holders[next(iter(self._holders))]
        self._current = {seat.index: seat.holder.address for seat in seats if seat.index < SEATS_MAX}
        if self._changed is not None:
            self._changed(self._current)

    def _lost(self) -> None:
        """Claim the seat again: the own Lease was deleted."""
        self._tasks.start("seat", self._claim_again())

    async def _claim_again(self) -> None:
        assert self._starter is not None, "it has joined"
        try:
            index = await self._starter.claim()
        except MembershipError as error:
            log.error("the seat of this replica is lost, and cannot be claimed again: %s", error)
            self._displaced()
            return
        if index != self._own:
            log.error("the Lease of seat %d was deleted, and another replica has it: this one must restart", self._own)
            self._displaced()


def _namespace(path: Path) -> str:
    """Return the namespace of this pod, as its service account has it. Raises StartError."""
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise StartError(f"members: POD_NAMESPACE is not set, and {path} cannot be read: {error.strerror}") from error
