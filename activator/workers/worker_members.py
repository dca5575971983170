"""The workers as members: the links between them, and the views that name them.

Without a group of replicas, the workers are all members, and this module makes the views. In a group, the group makes
them, and needs the names of the workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from activator.data_plane.ownership.names import MemberName
from activator.members.data_planes import GroupSide
from activator.members.numbers import seat_of, worker_place
from activator.members.proof import started_at
from activator.runtime.wire import pair
from activator.workers.lifecycle import RETRY_S
from activator.workers.messages import Link, Members
from activator.workers.worker_process import WorkerProcess

log = logging.getLogger("activator")


class WorkerMembers:
    """The members of one process. `send_all(members)` sends a view to all workers that take part."""

    def __init__(self, send_all: Callable[[Members], None]) -> None:
        self._send_all = send_all
        self._group: GroupSide | None = None
        self.epoch = 0  # epoch of the last view, outside of a group
        self.is_held = False  # views wait until the workers of a former process take part
        self._loop = asyncio.get_running_loop()

    def join(self, group: GroupSide) -> None:
        """Leave the views to this group. To be called before the first worker takes part."""
        self._group = group

    def link(self, one: WorkerProcess, other: WorkerProcess) -> None:
        """Connect two workers by a socket pair, unless one of them has ended."""
        if one.ended.is_set() or other.ended.is_set():
            return
        try:
            end, other_end = pair()
        except OSError as error:  # out of file descriptors: until a retry succeeds, the two cannot reach each other
            log.error("workers %d and %d cannot be linked, again in %g s: %s", one.place, other.place, RETRY_S, error)
            self._loop.call_later(RETRY_S, self.link, one, other)
            return
        one.send(Link(other.member), [end.detach()])
        other.send(Link(one.member), [other_end.detach()])

    def unlinked(self, worker: WorkerProcess, member: int, workers: list[WorkerProcess]) -> None:
        """Repair the link of a worker to another one of `workers`; report a link to another replica to the group."""
        for other in workers:
            if other.member == member:
                self.link(worker, other)
                return
        if self._group is not None:
            self._group.unlinked(worker.member, member)

    def publish(self, workers: list[WorkerProcess]) -> None:
        """Announce the workers that take part: to the group, or else as a new view to the workers."""
        if self._group is not None:
            self._group.set_data_planes(tuple([_name_of(worker, self._group.replica) for worker in workers]))
            return
        if self.is_held:
            return
        self.epoch += 1
        members = tuple([MemberName(one.member, one.place, drains=one.is_former) for one in workers])
        self._send_all(Members(self.epoch, members))


def _name_of(worker: WorkerProcess, replica: int) -> MemberName:
    """Return the name of a worker as a member of this replica."""
    place = worker_place(seat_of(replica), worker.place)
    try:
        started = started_at(worker.process)
    except OSError:  # it has just ended, or the kernel hides its start: other replicas cannot prove its end
        started = 0
    return MemberName(worker.member, place, worker.process, started)
