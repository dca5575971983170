"""The CPU cost of a slot that another worker grants, by the number of grants per turn of the loop.

Two members with real throttlers, links and frames run in one process and one loop: without HTTP, and without waits of
one process for another. Half of the requests are the owner's, half the borrower's, all wait, and in each turn all
requests at pods end. So a frame has the messages of as many grants as there are pods, on both sides.

Rules
  1. Two baselines are measured: the same requests in one member, and as many empty frames, written and read in the same
     loop. The difference to the first is the cost of the grants; the second is the part of it that the loop causes.
  2. The three measurements alternate, and the figure of each is the best of its rounds, because disturbances can only
     make a round longer.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import NamedTuple

from activator.config.specs import QueueSpec, RevisionSpec
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.reasons import Reason
from activator.runtime.wire import Wire, pair
from activator.workers.peers import Peers
from bench import header, results
from bench.processes import BenchError
from bench.results import Document, Result, figure
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

KEY = "ns/bench"
REQUESTS_PER_ROUND = 8_000
WAITING_PER_POD = 2  # waiting requests per pod and member
_QUEUE = 1_000_000


class _Deaf(SlotEvents):
    """An observer that ignores all events."""

    def activated(self, key: str) -> None:
        pass

    def queue_formed(self, key: str) -> None:
        pass


class _Request(Waiter):
    def __init__(self, side: _Side) -> None:
        super().__init__()
        self.side = side

    def granted(self, lease: Lease) -> None:
        self.side.at_pods.append(lease)

    def refused(self, reason: Reason, detail: str) -> None:
        raise BenchError(f"a request was refused: {reason.value} {detail}")


class _Side:
    """One member and its requests."""

    def __init__(self, number: int, pods: int) -> None:
        loop = asyncio.get_running_loop()
        table = TrackerTable(create("least-connections", Rng(number)), pods)
        for pod in range(pods):
            table.add(f"bench-00001-deployment-{pod:05}", f"10.0.{pod >> 8}.{pod & 255}:8012", 1, READY)
        spec = RevisionSpec(key=KEY, queue=QueueSpec(depth=_QUEUE), container_concurrency=1)
        self.throttler = RevisionThrottler(spec, table, time.monotonic, loop.call_soon, _Deaf(), 256)
        self.at_pods: list[Lease] = []
        self.ended = 0
        self.peers = Peers(lambda number: None, _fail)
        self.member = Member(number, self.peers.send, self.peers.drop, time.monotonic, loop.call_later)
        self.peers.member = self.member

    def ask(self) -> None:
        request = _Request(self)
        lease = self.throttler.try_acquire(request, time.monotonic())
        if lease is not None:
            request.granted(lease)
        elif (reason := self.throttler.queue.enqueue(request)) is not None:
            request.refused(reason, "")

    def turn(self) -> bool:
        """End all requests at pods, and add new ones. Return True if there were any."""
        at_pods, self.at_pods = self.at_pods, []
        for lease in at_pods:
            self.throttler.release(lease, 0.001, True)
            self.ask()
        self.ended += len(at_pods)
        return bool(at_pods)


def _fail(error: Exception) -> None:
    raise error


class _Measurement:
    """One measurement: `turn` is called in each turn of the loop and returns True if it did anything.

    `ended` returns the number of requests, or frames.
    """

    def __init__(self, turn: Callable[[], bool], ended: Callable[[], int], until: int) -> None:
        self._turn = turn
        self._ended = ended
        self._until = until
        self.best_s = float("inf")  # per request or frame
        self.turns = 0  # turns that did something
        self.count = 0

    async def round(self) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        begun = self._ended()

        def step() -> None:
            if self._ended() - begun >= self._until:
                done.set_result(None)
                return
            self.turns += self._turn()
            loop.call_later(0.0, step)  # after the events of the sockets

        began_s = time.process_time()
        loop.call_soon(step)
        await done
        count = self._ended() - begun
        self.best_s = min(self.best_s, (time.process_time() - began_s) / count)
        self.count += count


def _one_member(pods: int) -> _Measurement:
    side = _Side(1, pods)
    for _ in range(2 * WAITING_PER_POD * pods):
        side.ask()
    return _Measurement(side.turn, lambda: side.ended, REQUESTS_PER_ROUND)


async def _two_members(pods: int) -> _Measurement:
    sides = [_Side(number, pods) for number in (1, 2)]
    for side in sides:
        side.member.revision_set(side.throttler)
        side.member.adopt(View(1, (MemberName(1, 0), MemberName(2, 1))))
    for side, other, sock in zip(sides, (2, 1), pair()):
        side.peers.link(other, sock)
    await asyncio.sleep(0.02)
    for _ in range(WAITING_PER_POD * pods):
        for side in sides:
            side.ask()
    await asyncio.sleep(0.02)

    def turn() -> bool:
        done = [side.turn() for side in sides]
        return True in done

    return _Measurement(turn, lambda: sum(side.ended for side in sides), REQUESTS_PER_ROUND)


def _frames_of_nothing() -> _Measurement:
    heard = 0

    def received(data: memoryview, _: list[int]) -> None:
        nonlocal heard
        heard += 1

    wires = [Wire(sock, received, lambda: None, _fail, takes_descriptors=False) for sock in pair()]

    def turn() -> bool:
        for wire in wires:
            wire.send_now(b"")
        return True

    return _Measurement(turn, lambda: heard, REQUESTS_PER_ROUND // 4)


class Costs(NamedTuple):
    """Costs in seconds; `one` and `two` are those of a request with one and two members."""

    one: float
    two: float
    frame: float  # an empty frame
    remote_per_turn: float  # grants to the other member

    @property
    def remote_grant(self) -> float:
        return 2.0 * (self.two - self.one)  # half of the requests are granted by their own member

    @property
    def its_frames(self) -> float:
        return 2.0 * self.frame / self.remote_per_turn  # one frame in each direction per turn


async def _measure(pods: int, rounds: int) -> Costs:
    scenes = [_one_member(pods), await _two_members(pods), _frames_of_nothing()]
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in a worker
    for _ in range(rounds):
        for scene in scenes:
            await scene.round()
    one, two, frame = scenes
    return Costs(one.best_s, two.best_s, frame.best_s, two.count / 2 / two.turns)


def run(pods: list[int], rounds: int, json_path: str | None) -> int:
    """Run `python -m bench grant-costs`."""
    import uvloop

    head = header.collect([])
    print(header.one_line(head))
    rows = []
    found = []
    for count in pods:
        costs = uvloop.run(_measure(count, rounds))
        named = {
            "one": costs.one,
            "two": costs.two,
            "remote_grant": costs.remote_grant,
            "frames": costs.its_frames,
        }
        rows.append(
            [str(count), figure(costs.remote_per_turn, 1), *(figure(value * 1e6, 2) for value in named.values())]
        )
        found += [Result(f"grant_costs.{name}", one * 1e6, "us", True, {"pods": count}) for name, one in named.items()]
    titles = ["pods", "remote grants in a turn", "one member", "two members", "a remote grant", "its frames of nothing"]
    print("\n" + results.table(titles, rows))
    print(
        f"us of CPU; of a request, the best of {rounds} rounds of {REQUESTS_PER_ROUND:,}; a remote grant: twice the "
        "difference, since the other half of the requests is granted by its own member"
    )
    if json_path is not None:
        results.write(json_path, Document(head, found))
    return 0
