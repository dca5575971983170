"""Links between members: each delivers in order or ends, as TCP does; delays, breaks and pauses come from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count

from activator.data_plane.ownership.messages import MemberMessage
from activator.workers.frames import pack, unpack


class Timeline:
    """What happens when. `now_s` is the time of what happens now."""

    def __init__(self) -> None:
        self.now_s: float = 1000.0
        self.steps = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._numbers), happens))

    def later(self, delay_s: float, happens: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, happens)

    def step(self) -> bool:
        """The next thing that happens; False: nothing will."""
        if not self._due:
            return False
        self.steps += 1
        time_s, _, happens = heapq.heappop(self._due)
        self.now_s = max(self.now_s, time_s)
        happens()
        return True

    def next_s(self) -> float:
        """When that is."""
        return self._due[0][0] if self._due else float("inf")


class Link:
    """One connection between two members, both ways."""

    def __init__(self, network: Network, ends: tuple[int, int]) -> None:
        self.network = network
        self.ends = ends
        self.alive = True
        self._free_s = dict.fromkeys(ends, 0.0)  # by receiver: when what was sent last arrives

    def send(self, receiver: int, message: MemberMessage) -> None:
        """Lost where the link has ended, whether the sender knows or not."""
        if not self.alive:
            return
        self.network.sent += 1
        data = pack([message])  # what cannot be sent through a socket is found here
        timeline = self.network.timeline
        sender = self.ends[0] if receiver == self.ends[1] else self.ends[1]
        stopped_s = self.network.stopped_until_s.get((sender, receiver), 0.0)
        arrives_s = max(self._free_s[receiver], stopped_s, timeline.now_s + self.network.delay_s())
        self._free_s[receiver] = arrives_s
        timeline.at(arrives_s, lambda: self._deliver(sender, receiver, data))

    def _deliver(self, sender: int, receiver: int, data: bytes) -> None:
        if self.alive:
            for message in unpack(data):
                self.network.delivered += 1
                self.network.deliver(receiver, sender, message)


class Network:
    """All links. `deliver(receiver, sender, message)`, `linked(member, other)` and `unlinked(member, other)` are the
    world's.
    """

    def __init__(self, timeline: Timeline, random_: random.Random) -> None:
        self.sent = 0  # messages, …
        self.delivered = 0  # … of which so many arrived
        self.timeline = timeline
        self.slowest_s: float = 0.01
        self.stopped_until_s: dict[tuple[int, int], float] = {}  # by sender and receiver: nothing arrives before
        self._random = random_
        self._links: dict[frozenset[int], Link] = {}
        self.deliver: Callable[[int, int, MemberMessage], None]
        self.linked: Callable[[int, int, Link], None]
        self.unlinked: Callable[[int, int], None]

    def delay_s(self) -> float:
        return self._random.random() ** 3 * self.slowest_s

    def connect(self, one: int, other: int) -> None:
        ends = frozenset((one, other))
        if ends not in self._links:
            link = self._links[ends] = Link(self, (one, other))
            self.linked(one, other, link)
            self.linked(other, one, link)

    def cut(self, one: int, other: int) -> None:
        """The connection ends; each side notices after a while of its own, and what was under way is lost."""
        ends = frozenset((one, other))
        link = self._links.get(ends)
        if link is None or not link.alive:
            return
        link.alive = False
        unaware = set(ends)

        def notices(member: int, peer: int) -> None:
            unaware.discard(member)
            self.unlinked(member, peer)
            if not unaware:
                del self._links[ends]

        for member, peer in ((one, other), (other, one)):
            self.timeline.later(self.delay_s(), partial(notices, member, peer))

    def links(self) -> list[tuple[int, int]]:
        """Those that have not ended."""
        return [link.ends for link in self._links.values() if link.alive]
