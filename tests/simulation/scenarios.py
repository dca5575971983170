"""Short stories of a few members, each about one rule; what storms meet too rarely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from activator.data_plane.ownership.member import EARLY_MAX, Member
from activator.data_plane.ownership.messages import Cancel, WaitingRequest, Want
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import View
from activator.runtime.reasons import Reason
from lb.tracker import RECOVERING
from tests.simulation.rules import expect
from tests.simulation.world import Node, Wants, World

KEY = "ns/a"
NAME = "ns/a#0"  # what members call it


def run_all(scenarios: Sequence[Callable[[int], None]], seed: int) -> None:
    """Each of them, once."""
    for scenario in scenarios:
        scenario(seed)


def calm(world: World) -> None:
    world.calm_down()
    world.check_calm()


def ask_everywhere(world: World, seconds: float) -> None:
    """100 requests a second, at any member."""
    for _ in range(int(seconds * 100)):
        world.ask(world.random.choice(world.serving()), KEY)
        world.run(0.01)


def two(seed: int, limit: int, pods: int) -> tuple[World, Node, Node]:
    """A world of two members: the owner of the revision, and the other one."""
    world = World(seed, 2, {KEY: (limit, pods)})
    world.run(0.2)
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    (borrower,) = [node for node in world.live() if NAME in node.member.borrowed]
    return world, owner, borrower


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
    expect(owner.throttlers[KEY].queue.waiters.length == 5, "they stand in the owner's line")
    for one in gone:
        one.leave()
    world.run(0.1)
    expect(owner.throttlers[KEY].queue.waiters.length == 0, "they stand there no more")
    expect(owner.throttlers[KEY].queue.waiting() == 0 and owner.throttlers[KEY].in_flight() == 1, "what is its own")
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
        expect(throttler.queue.waiting() == len(own) - at_pods, f"{node.name}: waiting {throttler.queue.waiting()}")
        expect(throttler.counters.granted_total == at_pods, f"{node.name}: granted {throttler.counters.granted_total}")
    calm(world)
    for node in (borrower, owner):
        throttler = node.throttlers[KEY]
        count = len([one for one in asked if one.node is node])
        expect(
            throttler.counters.granted_total == count and throttler.counters.queued_total <= count, "totals are its own"
        )


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


def what_was_registered_before_the_limit_went_is_forgotten(seed: int) -> None:
    """A registration reaches the next owner when that has no limit any more; it keeps it for when the limit is back."""
    world = World(seed, 3, {KEY: (1, 1)})
    world.run(0.2)
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    others = [node for node in world.live() if node is not owner]
    view = View(9, tuple(node.name for node in others))
    heir, borrower = sorted(others, key=lambda node: node.name.number != view.owner_of(NAME))
    holder = world.ask(borrower, KEY, 0.3)
    world.run(0.1)
    expect(holder.pod is not None, "the borrower has the slot")
    world.network.stopped_until_s[borrower.name.number, heir.name.number] = world.now() + 0.4
    world.leave(owner)
    world.run(0.1)
    world.limit_goes(KEY, 1.0)
    world.run(2.0)
    expect(holder.end == "served", "it ended while there was no limit")
    waiting = world.ask(heir, KEY)
    world.run(1.0)
    expect(waiting.end == "served", "the slot of a request that has ended is counted")
    calm(world)


def what_a_request_wants_is_known_to_the_owner(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    world.ask(owner, KEY, 1.0)
    world.run(0.1)
    asked = world.ask(borrower, KEY)
    asked.leave()
    world.run(0.1)
    wants = Wants(borrower, KEY)
    wants.stand_in_line()
    world.run(0.1)
    (waiter,) = owner.throttlers[KEY].queue.waiters.by_arrival()
    for name in ("pick_key", "level", "share", "charge", "own_timeout_s", "own_deadline_s", "is_classified"):
        expect(getattr(waiter, name) == getattr(wants, name), f"{name} is {getattr(waiter, name)} at the owner")
    expect(abs(waiter.asked_s - owner.now() + borrower.now() - wants.asked_s) < 0.05, "it has waited for as long")
    expect(wants.arrival_at_owner == waiter.arrival, "it knows its place")
    borrower.throttlers[KEY].queue.cancel(wants)
    calm(world)


def a_pod_that_takes_no_connections_is_left_alone_by_the_owner(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    asked = world.ask(borrower, KEY, 2.0)
    world.run(0.1)
    expect(asked.lease is not None and asked.pod is not None, "it is at the pod")
    assert asked.lease is not None and asked.pod is not None
    borrower.throttlers[KEY].pod_failed(asked.lease, Reason.CONNECT_FAILED)
    world.run(0.1)
    tracker = owner.throttlers[KEY].table.find_identity(asked.pod.identity)
    expect(tracker is not None and tracker.suspect_until_s > owner.now(), "the owner has not heard of it")
    calm(world)


def a_pod_on_trial_is_tried_by_another_request_when_the_first_takes_long(seed: int) -> None:
    world, owner, borrower = two(seed, 2, 1)
    for node in (owner, borrower):
        table = node.throttlers[KEY].table
        table.set_state(table.slots[0], RECOVERING)
    asked = world.ask(borrower, KEY, 2.0)
    world.run(0.1)
    other = world.ask(owner, KEY, 0.1)
    world.run(0.1)
    expect(asked.pod is not None and other.pod is None, "the trial keeps the other one away")
    assert asked.lease is not None
    expect(asked.lease.bars_trials, "it is a trial")
    borrower.throttlers[KEY].allow_other_trials(asked.lease)
    world.run(0.3)
    expect(other.end == "served", "the owner has not heard of it")
    calm(world)


def a_revision_that_fails_refuses_requests_of_all(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    holder = world.ask(owner, KEY, 1.0)
    world.run(0.1)
    waiting = world.ask(borrower, KEY)
    world.run(0.1)
    owner.throttlers[KEY].queue.fail("no such program")
    world.run(0.1)
    later = world.ask(borrower, KEY)
    world.run(0.1)
    for one in (waiting, later):
        expect(one.end == Reason.REVISION_FAILED.value, f"it ended otherwise: {one.end}")
    owner.throttlers[KEY].recover()
    world.run(1.0)
    expect(holder.end == "served", "what was at the pod goes on")
    calm(world)


def slots_that_others_have_are_known_by_pod(seed: int) -> None:
    world, owner, borrower = two(seed, 2, 2)
    asked = [world.ask(borrower, KEY, 1.0) for _ in range(3)]
    world.ask(owner, KEY, 1.0)
    world.run(0.2)
    by_pod = {tracker.identity: count for tracker, count in owner.member.owned[NAME].lending.lent_by_pod().items()}
    at_pods = Counter(one.pod.identity for one in asked if one.pod is not None)
    expect(by_pod == at_pods and sum(at_pods.values()) == 3, f"{by_pod} are lent, and {at_pods} are there")
    throttler = owner.throttlers[KEY]
    expect(throttler.unserved_leases() == [], "all slots are in use")
    calm(world)


def a_member_that_says_too_much_too_early_loses_its_link(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    mine, other = owner.member, borrower.name.number
    early = Cancel(mine.view.epoch + 1, NAME, 1)
    unknown = Want(mine.view.epoch, owned_key(mine), WaitingRequest(1))
    for message in (early, unknown):
        world.run(0.5)
        before = world.network.delivered
        for _ in range(EARLY_MAX):
            mine.receive(other, message)
        expect(len(world.network.links()) == 1, "it may say as much")
        mine.receive(other, message)
        expect(not world.network.links(), "the link goes on")
        world.run(0.5)
        expect(before == world.network.delivered and not mine.peers[other].early, "what it has said is forgotten")
        world.connect_all()
    calm(world)


def owned_key(member: Member) -> str:
    """The name of a revision that it would own, and that is not here."""
    return next(
        key for key in (f"ns/none-{number}#0" for number in range(99)) if member.view.owner_of(key) == member.number
    )


def what_is_said_twice_changes_nothing(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    holder = world.ask(borrower, KEY, 0.5)
    world.run(0.1)
    waiting = world.ask(borrower, KEY)
    world.run(0.1)
    for node in (owner, borrower):
        lending = node.member.owned.get(NAME)
        node.member.revision_set(node.throttlers[KEY])
        node.adopt(View(1, (owner.name,)))
        node.adopt(View(0, ()))
        expect(node.member.owned.get(NAME) is lending, "it has begun anew")
        expect(len(node.member.view.members) == 2, "the view is an older one")
    world.run(1.0)
    expect(holder.end == waiting.end == "served", f"{holder.end}, {waiting.end}")
    calm(world)


def a_request_that_was_never_in_line_has_its_place_by_its_age(seed: int) -> None:
    """The owner ends; what waits at others keeps its order, whether the former owner had seen it or not."""
    world = World(seed, 3, {KEY: (1, 1)})
    world.run(0.2)
    (owner,) = [node for node in world.live() if NAME in node.member.owned]
    one, other = [node for node in world.live() if node is not owner]
    world.ask(owner, KEY, 5.0)
    world.run(0.1)
    world.network.stopped_until_s[other.name.number, owner.name.number] = world.now() + 9.0
    asked = []
    for number in range(12):
        asked.append(world.ask((one, other)[number % 2], KEY, 0.02))
        world.run(0.2)  # more than views and messages take: ages are as exact as that
    world.kill(owner)
    calm(world)
    ended = sorted(asked, key=lambda request: request.ended_s)
    expect(ended == asked, f"they were served in the order {[asked.index(request) for request in ended]}")


def an_owner_that_may_not_grant_grants_nothing_until_it_may(seed: int) -> None:
    """As one that does not reach a majority. What is at pods ends as it would."""
    world, owner, borrower = two(seed, 2, 1)
    first = world.ask(owner, KEY, 0.1)
    world.run(0.05)
    owner.member.allow_grants(False)
    waiting = [world.ask(node, KEY, 0.01) for node in (owner, borrower, owner, borrower)]
    world.run(0.5)
    expect(first.end == "served", f"the first one has {first.end}")
    expect(all(not request.end for request in waiting), "a slot was granted")
    owner.member.allow_grants(True)
    world.run(0.5)
    expect([request.end for request in waiting] == ["served"] * 4, f"{[request.end for request in waiting]}")
    calm(world)


def who_begins_to_own_while_it_may_not_grant_waits_as_well(seed: int) -> None:
    world, owner, borrower = two(seed, 2, 1)
    borrower.member.allow_grants(False)
    world.kill(owner)
    world.run(0.02)
    request = world.ask(borrower, KEY, 0.01)
    world.run(1.0)
    if NAME in borrower.member.owned:
        expect(not request.end, "a slot was granted")
    borrower.member.allow_grants(True)
    calm(world)


def before_the_first_view_nothing_is_granted(seed: int) -> None:
    """And a limit may go and come meanwhile."""
    world = World(seed, 1, {KEY: (1, 1)})
    world.run(0.2)
    (node,) = world.live()
    throttler = node.throttlers[KEY]
    fresh = Member(77, lambda number, message: None, lambda number: None, world.now, node.later)
    fresh.revision_set(throttler)
    expect(throttler.sharing.source is not None, "it could grant")
    fresh.limit_removed(NAME)
    expect(throttler.sharing.source is None, "it has no limit, and waits")
    fresh.revision_set(throttler)
    fresh.adopt(View(1, (MemberName(77, 0),)))
    expect(throttler.sharing.source is None and NAME in fresh.owned, "it does not grant in its view")


def an_owner_that_drains_hands_over_at_once(seed: int) -> None:
    """It goes on as a borrower with what it has, and with what waits there; nobody waits for its end."""
    world, owner, borrower = two(seed, 1, 2)
    held = world.ask(owner, KEY, 5.0)
    world.run(0.1)
    expect(held.pod is not None, "one pod has its request")
    waiting = [world.ask(owner, KEY, 0.05) for _ in range(5)]
    world.drain(owner, 60.0)
    world.run(0.3)
    expect(NAME in borrower.member.owned and borrower.member.owned[NAME].complete, "the other one grants")
    expect(NAME in owner.member.borrowed and not owner.member.owned, "and this one borrows")
    began_s = world.now()
    later = [world.ask(node, KEY, 0.05) for node in (owner, borrower, owner, borrower)]
    while not all(one.end for one in (*waiting, *later)):
        expect(world.now() - began_s < 2.0, "they are served by the pod that is free")
        world.run(0.01)
    expect(all(one.end == "served" for one in (*waiting, *later)), f"{world.ends}")
    expect(max(one.ended_s for one in waiting) < min(one.ended_s for one in later), "in their order")
    expect(not held.end, "all of that while it has its first request")
    calm(world)


def requests_flow_while_one_after_the_other_drains(seed: int) -> None:
    world = World(seed, 4, {KEY: (1, 4)})
    world.run(0.2)
    for node in world.live()[:3]:
        ask_everywhere(world, 0.3)
        world.drain(node, 0.5)
        for _ in range(70):
            world.ask(world.random.choice(world.serving()), KEY, 0.02)
            world.run(0.01)
            world.check_idle(0.2)  # the view reaches all within 50 ms, and then they register
    calm(world)
    expect(world.ends.keys() == {"served"}, f"{world.ends}")


def where_all_drain_they_go_on_as_before(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    world.drain(owner, 60.0)
    world.drain(borrower, 60.0)
    world.run(0.3)
    expect(NAME in owner.member.owned and owner.member.owned[NAME].complete, "there is nobody else")
    ask_everywhere(world, 0.2)
    calm(world)
    expect(world.ends.keys() == {"served"}, f"{world.ends}")


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
    what_was_registered_before_the_limit_went_is_forgotten,
    what_a_request_wants_is_known_to_the_owner,
    a_pod_that_takes_no_connections_is_left_alone_by_the_owner,
    a_pod_on_trial_is_tried_by_another_request_when_the_first_takes_long,
    a_revision_that_fails_refuses_requests_of_all,
    slots_that_others_have_are_known_by_pod,
    a_member_that_says_too_much_too_early_loses_its_link,
    what_is_said_twice_changes_nothing,
    a_request_that_was_never_in_line_has_its_place_by_its_age,
    an_owner_that_may_not_grant_grants_nothing_until_it_may,
    who_begins_to_own_while_it_may_not_grant_waits_as_well,
    before_the_first_view_nothing_is_granted,
    an_owner_that_drains_hands_over_at_once,
    requests_flow_while_one_after_the_other_drains,
    where_all_drain_they_go_on_as_before,
]
