"""The assignment of listening sockets to workers: each has those of its place, the first one also vacant places."""

from __future__ import annotations

import asyncio
import logging
import os

from activator.runtime.clock import Now
from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX
from activator.workers.lifecycle import RETRY_S, WorkerLifecycle
from activator.workers.messages import Listen, SocketGiven
from activator.workers.sockets import PlacedSocket, SharedSockets
from activator.workers.worker_process import WorkerProcess

log = logging.getLogger("activator")


class SocketAssignment:
    """The assignment of listening sockets to workers, which get their descriptors."""

    def __init__(self, sockets: SharedSockets, lifecycle: WorkerLifecycle, now: Now) -> None:
        self._sockets = sockets
        self._lifecycle = lifecycle
        self._now = now
        self._loop = asyncio.get_running_loop()

    def assign(self) -> None:
        """Send each worker that takes part the sockets that it does not have yet, and close those that it must not."""
        workers = self._lifecycle.own()
        if not workers or self._lifecycle.is_ending:
            return
        now_s = self._now()
        vacant = [
            place.index for place in self._lifecycle.places if place.worker is None and place.waits_until_s > now_s
        ]
        for worker in workers:
            places = [worker.place, *(vacant if worker is workers[0] else [])]
            self._assign_to(worker, places)

    def _assign_to(self, worker: WorkerProcess, places: list[int]) -> None:
        """Send a worker the new sockets of these places; it closes those of other places."""
        sockets = self._sockets.of_places(places)
        numbers = {one.number for one in sockets}
        new = [one for one in sockets if one.number not in worker.given]
        if not new and worker.given == numbers:
            return
        for begin in range(0, max(len(new), 1), DESCRIPTORS_AT_ONCE_MAX):
            part = new[begin : begin + DESCRIPTORS_AT_ONCE_MAX]
            try:
                descriptors = _duplicates(part)
            except OSError as error:
                log.error("worker %d cannot be given its sockets, again in %g s: %s", worker.place, RETRY_S, error)
                self._loop.call_later(RETRY_S, self.assign)
                return
            sent = {one.number for one in part}
            worker.given |= sent
            present = [one for one in sockets if one.number in worker.given]
            listed = tuple([SocketGiven(one.number, one.wanted, one.number in sent) for one in present])
            worker.listens_awaited += 1
            worker.listening.clear()
            worker.send(Listen(listed), descriptors)
        worker.given &= numbers


def _duplicates(sockets: list[PlacedSocket]) -> list[int]:
    """Return new descriptors of these sockets; all or none. Raises OSError."""
    made: list[int] = []
    try:
        made.extend(os.dup(one.socket.fileno()) for one in sockets)
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    return made
