"""Short stories of a few members, each about one rule; what storms meet too rarely."""

from __future__ import annotations

from collections.abc import Callable

from activator.runtime.errors import Reason
from tests.simulation.world import RuleError, World

KEY = "ns/a"
NAME = "ns/a#0"  # what members call it


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise RuleError(what)


def run_all(seed: int) -> None:
    """Each of them, once."""
    for scenario in SCENARIOS:
        scenario(seed)


def calm(world: World) -> None:
    world.calm_down()
    world.check_calm()


def ask_everywhere(world: World, seconds: float) -> None:
    """100 requests a second, at any member."""
    for _ in range(int(seconds * 100)):
        world.ask(world.random.choice(world.serving()), KEY)
        world.run(0.01)


def a_limit_goes_and_comes_back(seed: int) -> None:
    world = World(seed, 3, {KEY: (2, 3)})
    world.run(0.2)
    ask_everywhere(world, 0.5)
    for _ in range(4):
        world.watch(KEY, 1_000_000)
        world.set_limit(KEY, 0)
        ask_everywhere(world, 0.5)
        world.set_limit(KEY, 2)
        ask_everywhere(world, 0.2)  # each member has heard of it …
        world.run(2.0)  # … and what was sent without a limit has ended
        world.watch(KEY, 2)
        ask_everywhere(world, 0.5)
    calm(world)
    expect(world.ends.keys() == {"served"}, f"requests ended otherwise: {world.ends}")


def slots_are_lent_where_much_is_free(seed: int) -> None:
    """A borrower grants again by itself: it asks the owner for a part of its requests only."""
    world = World(seed, 2, {KEY: (20, 2)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    before = world.network.sent
    asked = []
    for _ in range(200):
        asked.append(world.ask(borrower, KEY))
        world.run(0.02)
    said = world.network.sent - before
    calm(world)
    expect(said < 2 * len(asked), f"{len(asked)} requests took {said} messages")


def lent_slots_come_back_when_nobody_uses_them(seed: int) -> None:
    world = World(seed, 2, {KEY: (20, 2)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    for _ in range(10):
        world.ask(borrower, KEY)
    world.run(0.7)
    lent = owner.member.owned[NAME].lending
    expect(lent.lent() > 0, "nothing was lent")
    world.run(3.0)
    expect(lent.lent() == 0, "what nothing used stayed away")
    calm(world)


def lent_slots_come_back_when_a_line_forms(seed: int) -> None:
    world = World(seed, 2, {KEY: (1, 10)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    for _ in range(6):
        world.ask(borrower, KEY)
    world.run(0.8)  # served; some slots stay there
    for _ in range(60):
        world.ask(owner, KEY)
    for _ in range(10):
        world.run(0.01)
        world.check_idle(0.06)
    calm(world)


def what_waits_is_served_when_its_owner_dies(seed: int) -> None:
    world = World(seed, 3, {KEY: (1, 1)})
    world.run(0.2)
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    others = [node for node in world.live() if node is not owner]
    asked = [world.ask(others[number % 2], KEY) for number in range(20)]
    world.run(0.05)
    world.kill(owner)
    calm(world)
    expect(all(one.end == "served" for one in asked), f"{[one.end for one in asked]}")


def a_member_that_dies_gives_its_slots_back(seed: int) -> None:
    world = World(seed, 3, {KEY: (1, 1)})
    world.run(0.2)
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    one, other = [node for node in world.live() if node is not owner]
    holder = world.ask(one, KEY, 1000.0)
    world.run(0.05)
    waiting = world.ask(other, KEY)
    world.run(0.2)
    expect(holder.pod is not None and waiting.pod is None, "one has the slot")
    world.kill(one)
    world.run(2.0)
    expect(waiting.end == "served", "the slot was never given back")
    calm(world)


def a_client_that_goes_frees_its_place(seed: int) -> None:
    world = World(seed, 2, {KEY: (1, 1)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    world.ask(owner, KEY, 0.5)
    world.run(0.05)
    gone = [world.ask(borrower, KEY) for _ in range(5)]
    world.run(0.1)
    expect(owner.throttlers[KEY].line.length == 5, "they stand in the owner's line")
    for one in gone:
        one.leave()
    world.run(0.1)
    expect(owner.throttlers[KEY].line.length == 0, "they stand there no more")
    expect(owner.throttlers[KEY].waiting() == 0 and owner.throttlers[KEY].in_flight() == 1, "what is its own")
    calm(world)


def what_a_member_counts_is_its_own(seed: int) -> None:
    world = World(seed, 2, {KEY: (1, 4)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    asked = [world.ask(node, KEY, 2.0) for node in (borrower, owner, borrower, owner, borrower, borrower, owner)]
    world.run(0.2)
    for node in (borrower, owner):
        throttler = node.throttlers[KEY]
        own = [one for one in asked if one.node is node]
        at_pods = sum(one.pod is not None for one in own)
        expect(throttler.in_flight() == at_pods, f"{node.name}: in flight {throttler.in_flight()}, not {at_pods}")
        expect(throttler.waiting() == len(own) - at_pods, f"{node.name}: waiting {throttler.waiting()}")
        expect(throttler.granted_total == at_pods, f"{node.name}: granted {throttler.granted_total}")
    calm(world)
    for node in (borrower, owner):
        throttler = node.throttlers[KEY]
        count = len([one for one in asked if one.node is node])
        expect(throttler.granted_total == count and throttler.queued_total <= count, "totals are its own")


def a_pod_that_goes_ends_what_it_has_too_long(seed: int) -> None:
    """The owner takes the slot back from a request of another member."""
    world = World(seed, 2, {KEY: (1, 2)})
    world.run(0.2)
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    asked = [world.ask(borrower, KEY, 1000.0) for _ in range(2)]
    world.run(0.1)
    expect(all(one.pod is not None for one in asked), "both are at pods")
    throttler = owner.throttlers[KEY]
    for lease in list(throttler.leases):
        throttler.revoke(lease, Reason.POD_REMOVED, "")
    world.run(0.5)
    expect(all(one.end == Reason.POD_REMOVED.value for one in asked), f"{[one.end for one in asked]}")
    calm(world)


SCENARIOS: list[Callable[[int], None]] = [
    a_limit_goes_and_comes_back,
    slots_are_lent_where_much_is_free,
    lent_slots_come_back_when_nobody_uses_them,
    lent_slots_come_back_when_a_line_forms,
    what_waits_is_served_when_its_owner_dies,
    a_member_that_dies_gives_its_slots_back,
    a_client_that_goes_frees_its_place,
    what_a_member_counts_is_its_own,
    a_pod_that_goes_ends_what_it_has_too_long,
]
