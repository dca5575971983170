"""The membership of this replica in its group: its seat, its links to the others, and the views that it adopts.

Rules
  1. Each pair of replicas has one link for the group itself; each pair of their data planes has one for slots. For the
     first kind both sides dial (the link of the higher number stays), for the second the higher number.
  2. The port is bound first, and closed last, because others take a refused connection as a sign of a vacant seat.
  3. A replica has ended when the kernel of its machine reports the end of its processes, when the roster reports it,
     when it has sent `Leave` (in a frame signed with the keys of the link), or when the operator declares it. The end
     of a connection proves nothing, however it came about: anyone on the path can cause one.
  4. Members that are not on the machine of a silent replica ask one that is, for instance its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from activator.config.model.members import Members
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.members.contacts import GroupRules
from activator.members.data_planes import GroupDataPlanes, GroupSide
from activator.members.directory import MemberDirectory
from activator.members.group import Group
from activator.members.handshake import Greeting, HandshakeError, NotWantedError, PeerIdentity, Process, Seal
from activator.members.lives import Lives
from activator.members.local_proofs import LocalProofs
from activator.members.mesh import Connection, Mesh, VacantError
from activator.members.messages import (
    LOADS_PROTOCOL,
    GroupMessage,
    GroupView,
    Loads,
    RevisionLives,
    decode,
    encode,
)
from activator.members.numbers import epoch_count, follows_on, replica_number, seat_of
from activator.members.plane_links import PlaneLinks
from activator.members.proof import this_process
from activator.members.shared_writing import LOADS_BACKLOG_BYTES_MAX, SharedWriting
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner, keep_running, pause
from activator.runtime.wire import Wire
from activator.telemetry.metrics.member_families import MemberFigures
from lb.rng import Rng

TICK_S: Final = 0.05
REDIAL_S: Final = 0.2  # delay after a dial that failed
OWNED_INTERVAL_S: Final = 1.0  # interval at which `ownership` of the data planes is read
UNPROVEN_LOG_S: Final = 5.0  # silence after which the log asks the operator
UNPROVEN_LOG_INTERVAL_S: Final = 60.0  # time between two such lines
FORM_SLACK_S: Final = 1.0  # in addition to the longest time that a group needs to agree on its first view
ADDRESSES_MAX: Final = 4096  # remembered addresses of replicas; beyond that, the oldest is forgotten
FAILED_INTERVAL_S: Final = 1.0  # between two reports of defects
GONE_INTERVAL_S: Final = 1.0  # interval at which the coordinator asks the roster about silent replicas
GONE_INTERVAL_OTHERS_S: Final = 5.0  # the same at other replicas, in case the coordinator cannot reach the API

log = logging.getLogger("activator.members")


class SeatLink:
    """The link to the replica that has a seat."""

    def __init__(self, wire: Wire, identity: PeerIdentity, is_dialled: bool, version: int) -> None:
        self.wire = wire
        self.identity = identity
        self.is_dialled = is_dialled
        self.version = version


class Membership(GroupSide):
    """The membership of one run of the program. `seat` is the result of `roster.join`.

    `displaced` is called when this replica must end and start again with another number. `process` identifies the
    process by which other members can prove the end of this replica; by default this one.
    """

    def __init__(
        self,
        config: Members,
        key: bytes,
        roster: MemberDirectory,
        address: str,
        seat: int,
        planes: GroupDataPlanes,
        tasks: TaskGroupOwner,
        displaced: Callable[[], None],
        now: Now,
        rng: Rng,
        process: Process | None = None,
    ) -> None:
        self._config = config
        self._displaced = displaced
        self._roster = roster
        self._address = address
        self.lives = Lives()
        self._lives_announced = 0  # the value of `Lives.changes` at the last announcement
        self._data_planes = planes
        self._tasks = tasks
        self._now = now
        self.replica = replica_number(seat, rng)
        rules = GroupRules(
            float(config.silence),
            float(config.release),
            config.on_silence == "prompt",
            config.on_partition == "prompt",
        )
        self._process: Process = process or this_process()
        self._proofs = LocalProofs(self._process, roster.pod, self._is_linked, self._report_proven_end)
        self.group = Group(
            self.replica, rules, self.send, self._adopt, self._allow, self._learn, self._proofs.inquire, self._died, now
        )
        self.writing = SharedWriting(self.group, self, now)
        self.group.set_process(self._process.machine, self._process.process, self._process.started, roster.pod)
        self._addresses: dict[int, str] = {}  # by seat
        self._links: dict[int, SeatLink] = {}  # by seat
        self._dialling: set[int] = set()  # seats
        self._addresses_of: dict[int, str] = {}  # by replica, also of replicas that are no longer linked
        self._unproven_s: dict[int, float] = {}  # by replica, when it became unproven
        self._unproven_logged_s = float("-inf")
        self._waiting_logged = ""
        self._is_closing = False
        self._running: list[asyncio.Task[None]] = []
        self._is_draining = False
        self._names: tuple[MemberName, ...] = ()  # the data planes of this replica
        self._formed = asyncio.Event()
        self._mesh = Mesh(key, config.group, self._identity, self._check_greeting, self._met, now, tasks)
        self._plane_links = PlaneLinks(
            self.replica, planes, self._mesh, lambda seat: self._addresses.get(seat, ""), self._met, tasks, now
        )
        self._epoch = 0  # epoch of the present view
        self._failed_s = float("-inf")
        self._owned_s = float("-inf")  # when `ownership` of the data planes was last read
        self.views_total = 0

    # --- life ---

    def listen(self) -> None:
        """Bind the port. Raises StartError."""
        self._mesh.listen(self._config.listen)

    async def start(self) -> None:
        """Join the others, and wait for the first view, for the longest time that it can need if they are running."""
        self._roster.watch(self._set_addresses)
        self.group.set_lives(self.lives.announced())
        self._running = [
            self._tasks.start("group", keep_running(self._turn, self._turn_failed)),
            self._tasks.start("silent members", keep_running(self._watch_silent, self._watch_failed)),
        ]
        limit_s = 2.0 * float(self._config.silence) + FORM_SLACK_S
        try:
            async with asyncio.timeout(limit_s):
                await self._formed.wait()
        except TimeoutError:
            log.warning("%s; requests to revisions with a limit wait until then", self.group.waiting_for())

    async def close(self) -> None:
        """Leave the group. To be called when all requests here have ended."""
        self._is_closing = True
        for task in self._running:
            task.cancel()
        self._plane_links.close()
        self.group.leave()
        for link in self._links.values():
            link.wire.flush()
            link.wire.close()
        self._links.clear()
        self._proofs.close()
        await self._roster.leave()
        self._mesh.close()

    # --- reports of the data planes ---

    def set_data_planes(self, names: tuple[MemberName, ...]) -> None:
        """Set the data planes of this replica. A data plane that is no longer named has ended."""
        self._plane_links.own = {name.number for name in names}
        self._names = names
        self.group.set_data_planes(tuple([replace(name, drains=self._is_draining) for name in names]))

    def drain_begins(self) -> None:
        """Own no revision from the next view on. This replica continues as a borrower until its end."""
        self._is_draining = True
        self.writing.set_writes(False)
        self.set_data_planes(self._names)

    def lives_changed(self) -> None:
        """Announce the lives of revisions, if they have changed."""
        if self.lives.changes != self._lives_announced:
            self._lives_announced = self.lives.changes
            self.group.set_lives(self.lives.announced())

    def unlinked(self, own: int, other: int) -> None:
        """Make a new link between these two data planes, if they must have one."""
        self._plane_links.unlinked(own, other)

    # --- figures and descriptions ---

    def figures(self) -> MemberFigures:
        """Return the figures of the metrics."""
        group = self.group
        states = Counter(str(one["state"]) for one in group.describe())
        epoch = epoch_count(group.effective.epoch)
        unproven = len(group.effective.unproven)
        return MemberFigures(
            *(dict(states), unproven, epoch, self.views_total, group.may_grant, dict(self._mesh.refused_total)),
            self.writing.totals(),
        )

    def describe(self) -> dict[str, Any]:
        """Return the state of the group, for the admin API."""
        view = self.group.effective
        seats = [{**one, "address": self._addresses.get(int(str(one["seat"])), "")} for one in self.group.describe()]
        return {
            "group": self._config.group,
            "seat": self.group.seat,
            "epoch": epoch_count(view.epoch),
            "members": [seat_of(replica.number) for replica in view.replicas],
            "unproven": sorted({seat_of(number) for number in view.unproven}),
            "grants": self.group.may_grant,
            "writers": list(self.writing.writers.views[0]) if self.writing.writers.views else [],
            "writes": self.writing.writers.is_allowed,
            "seats": seats,
            "refused": dict(self._mesh.refused_total),
        }

    def waiting_for(self) -> str:
        """Return why this replica cannot serve revisions with a limit; empty if it can."""
        reason = self.group.waiting_for()
        return f"members: {reason}" if reason else ""

    # --- the group ---

    async def _turn(self) -> None:
        """Send heartbeats, dial missing links, and log why requests wait."""
        await pause(TICK_S)
        if self._now() - self._owned_s >= OWNED_INTERVAL_S:
            self._owned_s = self._now()
            self.group.set_owned(*self._data_planes.ownership())
        self.group.tick()
        self.writing.update()
        self._redial()
        self._log_waiting()

    async def _watch_silent(self) -> None:
        """Ask about silent replicas, in a task of its own: an answer may take long, and heartbeats must not wait."""
        await pause(GONE_INTERVAL_S if self.group.coordinator() == self.group.seat else GONE_INTERVAL_OTHERS_S)
        await self._ask_about_silent()

    def _turn_failed(self, error: Exception) -> float:
        self._failed(error)
        return 0.0  # A turn begins with its pause; without heartbeats, this replica would hold up all others.

    def _watch_failed(self, error: Exception) -> float:
        self._failed(error)
        return TICK_S

    def _log_waiting(self) -> None:
        """Log why requests wait, and what to do: each reason once; unproven members in intervals."""
        reason = self.group.waiting_for() if self.group.effective.epoch else ""
        if reason != self._waiting_logged:
            self._waiting_logged = reason
            if reason and self.group.may_grant:
                log.warning("%s; requests to revisions with a limit may wait until then", reason)
        now_s = self._now()
        unproven = self.group.unproven() if self.group.effective.epoch else []
        self._unproven_s = {number: self._unproven_s.get(number, now_s) for number in unproven}
        late = [number for number, since_s in self._unproven_s.items() if now_s - since_s > UNPROVEN_LOG_S]
        if late and now_s - self._unproven_logged_s > UNPROVEN_LOG_INTERVAL_S:
            self._unproven_logged_s = now_s
            seats = sorted({seat_of(number) for number in late})
            log.warning(
                "members at seats %s are unreachable and not proven to have ended; requests to the revisions that they "
                "owned are queued until they are reachable. If they have certainly ended, run "
                "`activator member-ended SEAT` (%s)",
                seats,
                ", ".join(f"{seat}: {self._addresses.get(seat, 'no address')}" for seat in seats),
            )

    def end_seat(self, seat: int) -> str:
        """Declare the silent replicas of this seat ended, by the word of the operator; return an error, or empty."""
        if seat == self.group.seat:
            return "that is the seat of this replica itself"
        numbers = [number for number in self.group.contacts.silent() if seat_of(number) == seat]
        for number in numbers:
            log.warning("the operator has declared that replica %d of seat %d has ended", number, seat)
            self.group.ended(number)
        is_vacant = self.group.declare_vacant(seat)
        if is_vacant:
            log.warning("the operator has declared that seat %d is vacant", seat)
        if not numbers and not is_vacant:
            return "no replica of this seat is silent"
        coordinator = self.group.coordinator()
        if is_vacant and coordinator != self.group.seat:
            return f"run this at seat {coordinator} ({self._addresses.get(coordinator)}), which decides on the view"
        return ""

    def _died(self) -> None:
        log.error(
            "the other members have declared this replica ended and may have reassigned its slots; exiting (restart "
            "the replica)"
        )
        self._displaced()

    def _set_addresses(self, addresses: Mapping[int, str]) -> None:
        self._addresses = dict(addresses)
        for seat in [seat for seat in self._links if seat not in addresses]:
            self._drop_link(seat)
        self.group.set_roster(set(addresses))

    def can_take_loads(self, seat: int) -> bool:
        """Return True if there is a link whose other end supports `Loads` and has not fallen behind."""
        link = self._links.get(seat)
        return (
            link is not None and link.version >= LOADS_PROTOCOL and link.wire.backlog_bytes <= LOADS_BACKLOG_BYTES_MAX
        )

    def send(self, seat: int, message: GroupMessage) -> None:
        """Send a message to the holder of this seat, if there is a link."""
        link = self._links.get(seat)
        if link is not None:
            link.wire.send(encode(message))

    def _learn(self, lives: RevisionLives) -> None:
        """Take over the numbers of revisions from another replica, and log those that it has and this one lacks."""
        for key in self.lives.learn(lives):
            log.error(
                "revision %s was removed and added again at other members but not at this replica: until it is "
                "restarted, it does not share the limit of this revision with them",
                key,
            )

    def _allow(self, allowed: bool) -> None:
        if allowed:
            log.info("a majority of the group is reached again: slots are granted")
        else:
            log.warning("no majority of the group is reached: this replica grants no slots of revisions with a limit")
        self._data_planes.allow_grants(allowed)

    def _is_linked(self, seat: int, number: int) -> bool:
        link = self._links.get(seat)
        return link is not None and link.identity.replica == number

    def _report_proven_end(self, number: int) -> None:
        self.group.ended(number)

    def _adopt(self, view: GroupView) -> None:
        """Pass a view to the data planes and their links."""
        self.views_total += 1
        seats = [seat_of(replica.number) for replica in view.replicas]
        unproven = sorted({seat_of(number) for number in view.unproven})
        shown = f"; not known to have ended: {unproven}" if unproven else ""
        log.info("view %d of the group: members %s%s", epoch_count(view.epoch), seats, shown)
        names = [name for replica in view.replicas for name in replica.data_planes]
        is_next = follows_on(self._epoch, view.epoch)
        follows = is_next or self._config.on_silence != "prompt"
        self._epoch = view.epoch
        unproven_replicas = frozenset(view.unproven)
        self._data_planes.adopt_view(View(view.epoch, tuple(names), frozenset(), unproven_replicas, follows, is_next))
        self._plane_links.adopt(view)
        self._formed.set()

    async def _ask_about_silent(self) -> None:
        """Ask the roster whether unreachable replicas have ended; it removes the seats of those that have."""
        for number in self.group.contacts.silent():
            address = self._addresses_of.get(number, "")
            if address and await self._roster.is_gone(seat_of(number), address):
                self.group.ended(number)
                del self._addresses_of[number]
        for seat in self.group.contacts.unreached():
            await self._roster.is_gone(seat, self._addresses.get(seat, ""))

    # --- links of the group ---

    def _redial(self) -> None:
        for seat in self._addresses:
            if seat != self.group.seat and seat not in self._links and seat not in self._dialling:
                self._dialling.add(seat)
                self._tasks.start("member link", self._dial_seat(seat))

    async def _dial_seat(self, seat: int) -> None:
        try:
            self._met(await self._mesh.dial(self._addresses.get(seat, ""), 0, 0))
        except VacantError:
            self.group.refused(seat)
            await pause(REDIAL_S)
        except (HandshakeError, OSError, TimeoutError) as error:
            log.debug("seat %d at %s is not reached: %s", seat, self._addresses.get(seat), error)
            await pause(REDIAL_S)
        finally:
            self._dialling.discard(seat)

    def _identity(self, data_plane: int) -> PeerIdentity:
        """Return the identity of a data plane of this replica; 0: of the replica as a whole."""
        return PeerIdentity(self._config.group, self.replica, data_plane, self._address, self._process)

    def _check_greeting(self, greeting: Greeting) -> None:
        """Check that the greeting's replica may have this connection. Raises HandshakeError."""
        identity = greeting.identity
        seat = seat_of(identity.replica)
        known = self._addresses.get(seat)
        if identity.replica == self.replica:
            raise HandshakeError("that is this replica itself")
        if seat == self.group.seat:
            raise HandshakeError(f"seat {seat} is taken: two replicas have {identity.address}, or their peers differ")
        if known != identity.address:
            raise HandshakeError(
                f"seat {seat} has {known or 'no address'} here, not {identity.address}: are the peers the same?"
            )
        if greeting.wanted and not self._plane_links.wants(greeting.wanted, identity.data_plane):
            raise NotWantedError("not in this view")
        if self.group.contacts.is_taken(seat, identity.replica):
            raise HandshakeError(
                f"seat {seat} has another replica, which is reached: two replicas have the address {identity.address}; "
                "end one, or give it an address and a place in the peers of its own"
            )
        link = self._links.get(seat)
        is_ours = link is not None and link.identity.replica == identity.replica and link.is_dialled
        if not greeting.wanted and is_ours and identity.replica < self.replica:
            raise NotWantedError("there is a link already")

    def _met(self, connection: Connection) -> None:
        """Use an authenticated connection, or close it if it is not needed any more."""
        identity = connection.identity
        seat = seat_of(identity.replica)
        is_taken = self.group.contacts.is_taken(seat, identity.replica)
        if self._is_closing or self._addresses.get(seat) != identity.address or is_taken:
            connection.sock.close()
        elif connection.own:
            self._plane_links.hand_to_plane(connection)
        else:
            self._link_seat(seat, connection)

    def _link_seat(self, seat: int, connection: Connection) -> None:
        """Make the connection the link to this seat, unless another link of the same replicas stays (rule 1)."""
        former = self._links.get(seat)
        if former is not None:
            is_second = connection.is_dialled and not former.is_dialled
            if is_second and former.identity.replica == connection.identity.replica > self.replica:
                connection.sock.close()  # the link of the replica with the higher number stays
                return
            self._drop_link(seat)
        wire = Wire(
            connection.sock,
            lambda data, _: self._received(seat, wire, data),
            lambda: self._lost(seat, wire),
            self._failed,
            Seal(connection.keys),
        )
        self._links[seat] = SeatLink(wire, connection.identity, connection.is_dialled, connection.version)
        self._addresses_of[connection.identity.replica] = connection.identity.address
        if len(self._addresses_of) > ADDRESSES_MAX:
            del self._addresses_of[next(iter(self._addresses_of))]
        self.group.linked(seat, connection.identity.replica)

    def _drop_link(self, seat: int) -> None:
        link = self._links.pop(seat)
        link.wire.reset()
        self.group.unlinked(seat)
        self._proofs.unlinked(seat, link.identity)

    def _received(self, seat: int, wire: Wire, data: memoryview) -> None:
        """Process a message of the link to this seat; a malformed one ends the link."""
        link = self._links.get(seat)
        if link is None or link.wire is not wire:
            return
        try:
            message = decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._failed(error)
            self._drop_link(seat)
            return
        if isinstance(message, Loads):
            self.writing.receive(seat, message)
            return
        self.group.receive(seat, message)
        self.writing.update()
        self._proofs.watch(link.identity, self.group.contacts.processes_of(seat))

    def _failed(self, error: Exception) -> None:
        """Count and log a defect, at most once in FAILED_INTERVAL_S: it may happen again in each turn."""
        if self._now() - self._failed_s >= FAILED_INTERVAL_S:
            self._failed_s = self._now()
            self._tasks.on_error("members", error)

    def _lost(self, seat: int, wire: Wire) -> None:
        link = self._links.get(seat)
        if link is None or link.wire is not wire:
            return
        del self._links[seat]
        self.group.unlinked(seat)
        self._proofs.unlinked(seat, link.identity)
