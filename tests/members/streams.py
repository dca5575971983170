"""Connections between replicas as TCP makes them, in one time: in order each way, or ended; with partitions.

Rules
  1. What is under way when a connection is lost does not arrive. Each side notices at a time of its own.
  2. A way that is cut holds what is sent there; what is held for USER_TIMEOUT_S ends the connection.
  3. Who is paused is still sent to: its kernel takes what comes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from tests.simulation.network import Timeline

USER_TIMEOUT_S: Final = 10.0

Taken = Callable[[], None]


class Host(Protocol):
    """What has ends of connections."""

    seat: int

    def run(self, happens: Callable[[], None]) -> None: ...


class End:
    """One side. `received(data)` and `ended(in_order)` are set by whoever uses it."""

    def __init__(self, stream: Stream, index: int, host: Host) -> None:
        self.host = host
        self.is_open = True
        self.received: Callable[[object], None]
        self.ended: Callable[[bool], None]
        self._stream = stream
        self._index = index

    @property
    def far(self) -> Host:
        return self._stream.ends[1 - self._index].host

    def send(self, data: object) -> None:
        if self.is_open:
            self._stream.send(self._index, partial(self._stream.ends[1 - self._index].take, data))

    def close(self, in_order: bool) -> None:
        """The other side sees an end, or a failure."""
        if self.is_open:
            self.is_open = False
            self._stream.send(self._index, partial(self._stream.ends[1 - self._index].take_end, in_order))

    def take(self, data: object) -> None:
        if self.is_open:
            self.received(data)

    def take_end(self, in_order: bool) -> None:
        if self.is_open:
            self.is_open = False
            self.ended(in_order)


class Stream:
    """One connection."""

    def __init__(self, streams: Streams, one: Host, other: Host) -> None:
        self._streams = streams
        self.ends = (End(self, 0, one), End(self, 1, other))
        self._under_way: tuple[deque[Taken], deque[Taken]] = (deque(), deque())  # by receiver
        self._free_s = [0.0, 0.0]
        self._held: list[deque[Taken]] = [deque(), deque()]  # on a way that is cut
        self.is_lost = False

    def is_cut(self, sender: int) -> bool:
        return (self.ends[sender].host.seat, self.ends[1 - sender].host.seat) in self._streams.cut

    def is_over(self) -> bool:
        return self.is_lost or not (self.ends[0].is_open or self.ends[1].is_open)

    def send(self, sender: int, taken: Taken) -> None:
        if self.is_lost:
            return
        if self.is_cut(sender) or self._held[1 - sender]:
            if not self._held[1 - sender]:
                self._streams.timeline.later(USER_TIMEOUT_S, partial(self._give_up, 1 - sender, taken))
            self._held[1 - sender].append(taken)
        else:
            self._carry(1 - sender, taken)

    def heal(self) -> None:
        """Ways that are not cut any more take what was held."""
        for receiver in (0, 1):
            if not self.is_cut(1 - receiver):
                held, self._held[receiver] = self._held[receiver], deque()
                for taken in held:
                    self._carry(receiver, taken)

    def lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for end in self.ends:
            self._streams.timeline.later(
                self._streams.delay_s(),
                lambda end=end: end.host.run(lambda: end.take_end(False)),  # type: ignore[misc]
            )

    def close_in_order(self) -> None:
        """Have each end see an end in order, as if the other one had closed."""
        if self.is_lost:
            return
        self.is_lost = True
        for end in self.ends:
            self._streams.timeline.later(
                self._streams.delay_s(),
                lambda end=end: end.host.run(lambda: end.take_end(True)),  # type: ignore[misc]
            )

    def _carry(self, receiver: int, taken: Taken) -> None:
        timeline = self._streams.timeline
        arrives_s = max(self._free_s[receiver], timeline.now_s + self._streams.delay_s())
        self._free_s[receiver] = arrives_s
        timeline.at(arrives_s, lambda: self._arrive(receiver, taken))

    def _arrive(self, receiver: int, taken: Taken) -> None:
        if not self.is_lost:
            self.ends[receiver].host.run(taken)

    def _give_up(self, receiver: int, taken: Taken) -> None:
        if self._held[receiver] and self._held[receiver][0] is taken:
            self.lose()


class Streams:
    """All of them. `cut`: ways between seats, from and to, that nothing gets through."""

    def __init__(self, timeline: Timeline, random_: random.Random) -> None:
        self.timeline = timeline
        self.cut: set[tuple[int, int]] = set()
        self.slowest_s: float = 0.01
        self._random = random_
        self._all: list[Stream] = []

    def delay_s(self) -> float:
        return self._random.random() ** 3 * self.slowest_s

    def connect(self, one: Host, other: Host) -> Stream:
        self._all = [stream for stream in self._all if not stream.is_over()]
        stream = Stream(self, one, other)
        self._all.append(stream)
        return stream

    def open(self) -> list[Stream]:
        return [stream for stream in self._all if not stream.is_over()]

    def of(self, host: Host) -> list[Stream]:
        return [stream for stream in self._all if not stream.is_lost and host in (end.host for end in stream.ends)]

    def is_cut(self, one: int, other: int) -> bool:
        """One of the two ways: nobody can connect."""
        return (one, other) in self.cut or (other, one) in self.cut

    def heal(self, breaks: float) -> None:
        """`breaks`: the share of connections that had something held, and do not go on."""
        self.cut.clear()
        for stream in self.open():
            if self._random.random() < breaks:
                stream.lose()
            else:
                stream.heal()
