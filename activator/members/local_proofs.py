"""Proofs from this machine that replicas have ended: the kernel reports the end of their processes, or a pod restarts.

Rules
  1. The processes of each linked replica on this machine are watched. The watch stays while the replica has a link, and
     END_SETTLE_S longer; then it ends if the replica is alive, because the replica may start processes unseen.
  2. `inquire` checks a replica that another member suspects, or that this one does not reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from activator.members.handshake import PeerIdentity, Process
from activator.members.messages import Replica
from activator.members.proof import EndOfProcesses, have_ended

END_SETTLE_S: Final = 0.3  # after the end of a process, until its workers have noticed it and have ended as well


class LocalProofs:
    """The proofs of one replica, whose process and pod are given.

    `is_linked(seat, number)` is true if this life of the seat has a link. `ended(number)` is called when the end of a
    replica is proven.
    """

    def __init__(
        self, process: Process, pod: str, is_linked: Callable[[int, int], bool], ended: Callable[[int], None]
    ) -> None:
        self._process = process
        self._pod = pod
        self._is_linked = is_linked
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, EndOfProcesses] = {}  # by replica
        self._inquiring: set[int] = set()  # replicas that have ended, less than END_SETTLE_S ago
        self._is_closed = False

    def watch(self, identity: PeerIdentity, planes: tuple[tuple[int, int], ...]) -> None:
        """Watch the processes of a linked replica, if it is on this machine.

        `planes`: PID and start time of each of its data planes that is a process of its own.
        """
        replica, process = identity.replica, identity.process
        if not process.machine or process.machine != self._process.machine:
            return
        watch = self._watches.get(replica)
        if watch is not None and watch.label == planes:
            return
        if watch is not None:
            watch.close()
        processes = [process, *[Process(process.machine, number, started) for number, started in planes]]
        watch = EndOfProcesses(processes, planes, lambda: self._watched_ended(replica))
        if watch.is_watching:
            self._watches[replica] = watch

    def unlinked(self, seat: int, identity: PeerIdentity) -> None:
        """Stop watching a replica that has lost its link, if it is still alive after END_SETTLE_S."""
        if identity.process.machine == self._process.machine:
            self._loop.call_later(END_SETTLE_S, self._stop_watch_if_alive, seat, identity)

    def inquire(self, replica: Replica) -> None:
        """Report a replica as ended if the kernel of this machine, or this pod, proves it.

        The kubelet runs a container of a pod once at a time, so this process proves the end of the former one.
        """
        number = replica.number
        is_former = bool(replica.pod) and replica.pod == self._pod
        is_here = bool(replica.machine) and replica.machine == self._process.machine
        if number in self._inquiring or self._is_closed or not (is_former or is_here):
            return
        if not is_former:
            processes = [Process(replica.machine, replica.process, replica.started)]
            processes += [
                Process(replica.machine, one.process, one.started) for one in replica.data_planes if one.process
            ]
            if not have_ended(processes):
                return
        self._inquiring.add(number)
        self._loop.call_later(END_SETTLE_S, self._report_end, number)

    def close(self) -> None:
        """Close all watches."""
        self._is_closed = True
        for watch in self._watches.values():
            watch.close()

    # --- internal ---

    def _report_end(self, number: int) -> None:
        """Report the end of a replica, END_SETTLE_S after it was found."""
        self._inquiring.discard(number)
        if not self._is_closed:
            self._ended(number)

    def _stop_watch_if_alive(self, seat: int, identity: PeerIdentity) -> None:
        """Stop watching a replica that is alive END_SETTLE_S after it has lost its link."""
        if self._is_closed or self._is_linked(seat, identity.replica):
            return
        watch = self._watches.get(identity.replica)
        if watch is not None and watch.watches(identity.process):
            watch.close()  # the replica is alive, and may start processes that are not announced to this one
            del self._watches[identity.replica]

    def _watched_ended(self, replica: int) -> None:
        self._watches.pop(replica, None)
        self._ended(replica)
