"""Requests at a rate near what the pods can do, and faults in between."""

from __future__ import annotations

from tests.simulation.world import World

REVISIONS = {"ns/one": (1, 3), "ns/three": (3, 2), "ns/many": (20, 2)}


KINDS = ("cut", "cut", "kill", "pause", "pod", "slow", "join", "leave", "rebuild")
REVISIONS_COME = (*KINDS, "drop")  # requests of those that go are refused
IN_ORDER = ("join", "leave", "pod")  # through these, the order of the line is kept


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
    world = World(seed, members, REVISIONS)
    world.suspicions = suspicions
    world.run(0.2)
    if set(IN_ORDER).issuperset(kinds):
        world.order_bound_s = 4.0 * world.network.slowest_s + 0.15
    random = world.random
    rates = {"ns/one": random.choice([10.0, 55.0, 70.0]), "ns/three": 100.0, "ns/many": random.choice([100.0, 700.0])}
    until_s = world.now() + seconds
    while world.now() < until_s:
        world.run(0.01)
        for key, rate in rates.items():
            for _ in range(int(rate * 0.01 + random.random())):
                ready = [node for node in world.serving() if key in node.throttlers]
                if ready:
                    request = world.ask(random.choice(ready), key)
                    if random.random() < 0.05:
                        request.node.later(random.random() * 0.1, request.leave)
        if random.random() < faults * 0.01:
            fault(world, kinds)
        elif faults == 0.0:
            world.check_idle(0.06)
    world.calm_down()
    world.check_calm()
    return world


def fault(world: World, kinds: tuple[str, ...]) -> None:
    random = world.random
    kind = random.choice(kinds)
    node = random.choice(world.live())
    if kind == "cut" and world.network.links():
        world.network.cut(*random.choice(world.network.links()))
        world.timeline.later(random.random() * 0.2, world._connect_all)
    elif kind == "kill" and len(world.live()) > 1:
        world.kill(node)
    elif kind == "join" and len(world.live()) < 8:
        world.join()
    elif kind == "leave" and len(world.serving()) > 1 and not node.leaves:
        world.leave(node)
    elif kind == "pause" and not node.paused:
        node.pause()
        world.timeline.later(random.random() * 2.0, node.resume)
    elif kind == "pod":
        key = random.choice(list(REVISIONS))
        world.add_pod(key)
        world.remove_pod(key)
    elif kind == "rebuild":
        node.run(lambda: node.rebuild(random.choice(list(REVISIONS))))
    elif kind == "drop":
        world.drop(random.choice(list(REVISIONS)))
    elif kind == "slow":
        world.network.slowest_s = random.choice([0.001, 0.01, 0.2])
