"""Requests at a rate near what the pods can do, and faults in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.simulation.world import Node, World

REVISIONS: Final = {"ns/one": (1, 3), "ns/three": (3, 2), "ns/many": (20, 2)}

KINDS: Final = (
    *("cut", "cut", "one way", "slow", "kill", "kill within", "pause", "drift"),
    *("join", "leave", "pod", "rebuild"),
)
REVISIONS_COME: Final = (*KINDS, "drop")  # requests of those that go are refused
LIMITS_COME: Final = (*KINDS, "limit")
DRAINS_COME: Final = (*KINDS, "drain", "drain")
IN_ORDER: Final = ("join", "leave", "pod")  # through these, the order of the line is kept
DRAINS_IN_ORDER: Final = (*IN_ORDER, "drain", "drain")


class Faults(NamedTuple):
    """Which faults happen. Each has a chance of its own, by the seed and its number: leaving one out changes no other
    one by more than what follows from it.
    """

    kinds: tuple[str, ...] = KINDS
    a_second: float = 6.0
    first: int = 1_000_000_000  # only so many …
    left_out: frozenset[int] = frozenset()  # … without these
    tell: Callable[[str], None] | None = None  # is told of each

    def happens(self, number: int) -> bool:
        return number < self.first and number not in self.left_out


def storm(
    seed: int,
    members: int,
    seconds: float,
    faults: float,
    kinds: tuple[str, ...] = KINDS,
    suspicions: float = 0.0,
) -> World:
    """Requests at a rate near what the pods can do, and so many faults a second.

    `suspicions`: of requests that are tried again, the share whose pod had taken no connection.
    """
    return storm_of(World(seed, members, REVISIONS), seed, seconds, Faults(kinds, faults), suspicions)


def storm_of(world: World, seed: int, seconds: float, faults: Faults, suspicions: float = 0.0) -> World:
    """The same in a world that is there."""
    world.suspicions = suspicions
    world.run(0.2)
    if set(DRAINS_IN_ORDER).issuperset(faults.kinds):
        world.order_bound_s = 4.0 * world.network.slowest_s + 0.15
    chance = world.random
    rates = {"ns/one": chance.choice([10.0, 55.0, 70.0]), "ns/three": 100.0, "ns/many": chance.choice([100.0, 700.0])}
    when = random.Random(f"{seed} faults")
    until_s = world.now() + seconds
    number = 0
    while world.now() < until_s:
        world.run(0.01)
        for key, rate in rates.items():
            _ask(world, key, rate * 0.01)
        if when.random() < faults.a_second * 0.01:
            in_s = when.random() * 0.01  # between any two messages
            if faults.happens(number):
                world.timeline.later(in_s, _Fault(world, faults, seed, number).happen)
            number += 1
        elif faults.a_second == 0.0:
            world.check_idle(0.06)
    world.calm_down()
    world.check_calm()
    return world


def _ask(world: World, key: str, count: float) -> None:
    chance = world.random
    for _ in range(int(count + chance.random())):
        ready = [node for node in world.serving() if key in node.throttlers]
        if ready:
            request = world.ask(chance.choice(ready), key)
            if chance.random() < 0.05:
                request.node.later(chance.random() * 0.1, request.leave)


class _Fault:
    def __init__(self, world: World, faults: Faults, seed: int, number: int) -> None:
        self._world = world
        self._number = number
        self._random = random.Random(f"{seed} fault {number}")
        self._kind = self._random.choice(faults.kinds)
        self._tell = faults.tell

    def happen(self) -> None:
        world = self._world
        if not world.live():
            return  # all were killed in one moment, and nobody has taken a place yet
        node = self._random.choice(world.live())
        if self._tell is not None:
            self._tell(f"{world.now() - 1000.0:8.4f} s: fault {self._number}: {self._kind}, member {node.name.number}")
        if not self._of_links():
            self._of_members(node)

    def _of_links(self) -> bool:
        """False: it is a fault of another kind."""
        world, chance, kind = self._world, self._random, self._kind
        links = world.network.links()
        if kind == "cut" and links:
            world.network.cut(*chance.choice(links))
            world.timeline.later(chance.random() * 0.2, world.connect_all)
        elif kind == "one way" and links:
            sender, receiver = chance.sample(chance.choice(links), 2)
            seconds = chance.random()
            world.network.stopped_until_s[sender, receiver] = world.now() + seconds
            if chance.random() < 0.5:  # it is found out: the link ends
                world.timeline.later(seconds, lambda: world.network.cut(sender, receiver))
                world.timeline.later(seconds + chance.random() * 0.2, world.connect_all)
        elif kind == "slow":
            world.network.slowest_s = chance.choice([0.001, 0.01, 0.2])
        return kind in {"cut", "one way", "slow"}

    def _of_members(self, node: Node) -> None:
        world, chance, kind = self._world, self._random, self._kind
        key = chance.choice(list(world.revisions))
        if kind == "kill" and len(world.live()) > 1:
            world.kill(node)
        elif kind == "kill within" and len(world.live()) > 1:
            node.sends_left = chance.randint(1, 20)
        elif kind == "pause" and not node.paused:
            node.pause()
            world.timeline.later(chance.random() * 2.0, node.resume)
        elif kind == "drift":
            node.drift(chance.choice([0.5, 0.98, 1.0, 1.02, 2.0]))
        elif kind == "join" and len(world.live()) < 8:
            world.join()
        elif kind == "leave" and len(world.serving()) > 1 and not node.leaves:
            world.leave(node)
        elif kind == "drain" and not node.name.drains and not node.leaves:
            world.drain(node, chance.random())
        elif kind == "pod":
            world.add_pod(key)
            world.remove_pod(key)
        elif kind == "rebuild":
            node.run(lambda: node.rebuild(key))
        elif kind == "drop":
            world.drop(key)
        elif kind == "limit":
            world.limit_goes(key, chance.random())
