"""Stories of moments that storms come to too rarely: pods that go while a slot of theirs is lent, members that say
their last word late, and what one member does when the others say just this. Those are played by hand (`Hand`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from activator.config.specs import BalancingSpec, QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.ownership.borrowing import EARLY_S
from activator.data_plane.ownership.lending import NOTHING_YET
from activator.data_plane.ownership.member import EARLY_MAX, UNKNOWN_KEPT_S, Member
from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    HeldSlot,
    MemberMessage,
    Queued,
    Recall,
    Refused,
    Register,
    Registered,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    WaitingRequest,
    Want,
)
from activator.data_plane.ownership.names import MemberName
from activator.data_plane.ownership.view import WORKER_BITS, View
from activator.data_plane.snapshot import waits_for
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from activator.runtime.rendezvous import hash_of, score
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import NOT_READY, READY, RECOVERING, UNLIMITED, PodTracker
from tests.simulation.rules import expect
from tests.simulation.scenarios import KEY, NAME, calm, two
from tests.simulation.world import Node, Pod, Request, Wants, World

_PLACES = sorted(range(4), key=lambda place: -score(hash_of(NAME), place))  # whoever has the first one owns NAME
OWNER, *OTHERS = _PLACES


def tracker_of(node: Node, pod: Pod) -> PodTracker:
    tracker = node.throttlers[KEY].table.find_identity(pod.identity)
    assert tracker is not None
    return tracker


class Hand:
    """One member, number 1, with a real throttler; the other members are the story itself."""

    def __init__(self, seed: int, owns: bool, limit: int = 1, pods: int = 1, number: int = 1) -> None:
        self.world = World(seed, 1, {KEY: (limit, pods)})
        self.world.run(0.2)
        (self.node,) = self.world.live()
        self.said: list[tuple[int, MemberMessage]] = []
        self.dropped: list[int] = []
        self.me = MemberName(number, OWNER if owns else OTHERS[0])
        self.member = Member(number, self._send, self.dropped.append, self.node.now, self.node.later)
        self.node.member = self.member
        self.node.recorder = None

    def _send(self, other: int, message: MemberMessage) -> None:
        self.said.append((other, message))

    @property
    def throttler(self) -> RevisionThrottler:
        return self.node.throttlers[KEY]

    def view(
        self, epoch: int, *others: MemberName, replicas: frozenset[int] = frozenset(), follows: bool = True
    ) -> None:
        self.member.adopt(View(epoch, (self.me, *others), frozenset(), replicas, follows))

    def taken(self) -> list[MemberMessage]:
        """What it has said since the last call."""
        said, self.said = self.said, []
        return [message for _, message in said]

    def grants(self) -> bool:
        return NAME in self.member.owned and self.member.owned[NAME].complete and self.throttler.sharing.source is None

    def pod(self) -> Pod:
        return self.world.here[KEY][0]

    def granted(self, request: int, slot: int, lends: bool = False, number: int = 5) -> None:
        """By the owner, member 2."""
        pod = self.pod()
        epoch = self.member.view.epoch
        self.member.receive(2, Granted(epoch, NAME, request, number, slot, pod.identity, pod.address, lends, False))


def borrowing(seed: int, limit: int = 4, pods: int = 1) -> Hand:
    """Member 1 borrows from member 2, and has registered."""
    hand = Hand(seed, False, limit, pods)
    hand.view(1, MemberName(2, OWNER))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    hand.taken()
    return hand


def owning(seed: int, limit: int = 1, pods: int = 1) -> Hand:
    """Member 1 owns, and member 2 has registered."""
    hand = Hand(seed, True, limit, pods)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    hand.member.receive(2, Registered(1, ""))
    expect(hand.grants(), "it grants")
    hand.taken()
    return hand


def lent_to(seed: int, limit: int, pods: int) -> tuple[World, Node, Node]:
    """Two members, of which the borrower has idle slots."""
    world, owner, borrower = two(seed, limit, pods)
    for _ in range(pods):
        world.ask(borrower, KEY, 0.05)
    world.run(0.3)
    borrowed = borrower.member.borrowed[NAME].borrowing
    expect(bool(borrowed.idle) and borrowed.lends, "nothing is lent")
    return world, owner, borrower


# --- pods that go ---------------------------------------------------------------------------------------------------


def an_idle_slot_of_a_pod_that_leaves_is_not_used(seed: int) -> None:
    world, owner, borrower = lent_to(seed, 5, 2)
    borrowed = borrower.member.borrowed[NAME].borrowing
    leaving = {one.tracker.identity for one in borrowed.idle}
    for pod in [pod for pod in world.here[KEY] if pod.identity in leaving]:
        borrower.remove_pod(KEY, pod)
    asked = world.ask(borrower, KEY, 0.05)
    expect(asked.pod is None, f"it is at {asked.pod and asked.pod.identity}, which leaves")
    world.run(0.05)
    expect(not borrowed.idle, "slots of pods that leave stay away")
    if len(leaving) == 2:  # the owner has them, and knows of nothing: it asks again until it is known
        for pod in world.here[KEY]:
            owner.remove_pod(KEY, pod)
        world.here[KEY].clear()
        world.add_pod(KEY)
    world.run(1.0)
    expect(asked.end == "served", f"it is {asked.end}")


def an_idle_slot_of_a_pod_that_is_not_ready_is_not_used(seed: int) -> None:
    hand = borrowing(seed)
    hand.granted(999_999, 73, lends=True)
    hand.throttler.table.set_state(tracker_of(hand.node, hand.pod()), NOT_READY)
    hand.taken()
    hand.world.ask(hand.node, KEY)
    (returned, want) = hand.taken()
    expect(returned == Returned(1, NAME, (73,)) and isinstance(want, Want), f"{returned} and {want} were said")


def an_idle_slot_of_a_pod_that_takes_no_connections_is_not_used(seed: int) -> None:
    world, owner, borrower = lent_to(seed, 5, 2)
    borrowed = borrower.member.borrowed[NAME].borrowing
    bad = {one.tracker.identity for one in borrowed.idle}
    count = len(borrowed.idle)
    for node in (owner, borrower):
        for identity in bad:
            tracker = node.throttlers[KEY].table.find_identity(identity)
            assert tracker is not None
            node.throttlers[KEY].table.suspect(tracker, node.now() + 0.6)
            node.suspected(KEY, identity)
    asked = world.ask(borrower, KEY, 0.05)
    expect(asked.pod is None or asked.pod.identity not in bad, "it is at a pod that takes no connections")
    world.run(0.1)
    lent = owner.member.owned[NAME].lending.lent()
    expect(count > 0 and lent <= 1, f"{lent} slots stay away")
    world.run(3.0)
    expect(asked.end == "served", f"it is {asked.end}")
    calm(world)


def a_slot_is_not_kept_where_its_pod_leaves_meanwhile(seed: int) -> None:
    world, _, borrower = lent_to(seed, 5, 2)
    borrowed = borrower.member.borrowed[NAME].borrowing
    asked = world.ask(borrower, KEY, 0.05)
    expect(asked.pod is not None, "it has an idle slot")
    assert asked.pod is not None
    pod = asked.pod
    borrower.remove_pod(KEY, pod)
    while not asked.end:
        world.timeline.step()
    expect(all(one.tracker.identity != pod.identity for one in borrowed.idle), "the slot is kept")


def a_pod_that_the_owner_knows_first_is_asked_for_again(seed: int) -> None:
    """And one that the borrower knows at another address, or that is not ready there."""
    for way in ("unknown", "moved", "not ready"):
        world, owner, borrower = two(seed, 1, 1)
        world.ask(owner, KEY, 1000.0)
        world.run(0.1)
        pod = world.new_pod(KEY, 1)
        table = borrower.throttlers[KEY].table
        if way == "moved":
            table.add(pod.identity, "10.9.9.9:80", 1, READY)
        elif way == "not ready":
            table.add(pod.identity, pod.address, 1, NOT_READY)
        owner.add_pod(KEY, pod)
        asked = world.ask(borrower, KEY, 0.05)
        before = world.network.sent
        world.run(0.3)
        expect(asked.pod is None, f"{way}: it is at a pod that is not known")
        said = world.network.sent - before
        expect(10 < said < 400, f"{way}: {said} messages")
        if way == "not ready":
            table.set_state(tracker_of(borrower, pod), READY)
        else:
            if way == "moved":
                borrower.remove_pod(KEY, pod)
                world.run(0.1)
            borrower.add_pod(KEY, pod)
        world.run(0.3)
        expect(asked.end == "served", f"{way}: {asked.end}")
    hand = borrowing(seed)
    hand.world.ask(hand.node, KEY)
    (first,) = [one.waiting for one in hand.taken() if isinstance(one, Want)]
    hand.member.receive(2, Granted(1, NAME, first.request, 5, 73, "pod-77", "10.0.0.77:80", False, False))
    hand.world.run(2.0 * EARLY_S)
    (again,) = [one.waiting for one in hand.taken() if isinstance(one, Want)]
    expect((again.request, again.number, again.failed_at) == (first.request, 5, "pod-77"), f"it wants {again}")


def requests_keep_their_order_at_a_pod_that_the_owner_knows_first(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    world.ask(owner, KEY, 1000.0)
    world.run(0.1)
    first = world.ask(borrower, KEY, 1000.0)
    world.run(0.1)
    second = world.ask(owner, KEY, 1000.0)
    world.run(0.1)
    pod = world.new_pod(KEY, 1)
    owner.add_pod(KEY, pod)
    world.run(0.4 * EARLY_S)
    expect(first.pod is None and second.pod is None, "the slot was granted to the later request")
    borrower.add_pod(KEY, pod)
    world.run(0.1)
    expect((first.pod, second.pod) == (pod, None), "the later request was first")


def with_early_slot(seed: int) -> tuple[Hand, Request]:
    """A request that was granted slot 71 of a pod that is not ready at its member."""
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 1000.0)
    (want,) = hand.taken()
    assert isinstance(want, Want)
    hand.throttler.table.set_state(tracker_of(hand.node, hand.pod()), NOT_READY)
    hand.granted(want.waiting.request, 71)
    return hand, asked


def an_early_slot_is_given_back(seed: int) -> None:
    """As soon as its request has left, the owner takes it back, or the limit goes; nothing comes afterwards."""
    for way in ("left", "revoked", "unlimited"):
        hand, asked = with_early_slot(seed)
        if way == "left":
            asked.leave()
        elif way == "revoked":
            hand.member.receive(2, Revoked(1, NAME, 71, Reason.DRAINING.value, ""))
        else:
            hand.member.limit_removed(NAME)
        said = [type(one) for one in hand.taken()]
        expect(said == [Want if way == "revoked" else Returned], f"{way}: {said}")
        hand.world.run(0.1)
        expect(not hand.taken(), f"{way}: more is said")


def an_early_slot_is_looked_at_again_and_again(seed: int) -> None:
    """Until its time is over; its request is served as soon as the pod is ready."""
    hand, asked = with_early_slot(seed)
    hand.world.run(0.6 * EARLY_S)
    expect(not hand.taken() and asked.pod is None, "it is given up too early")
    hand.throttler.table.set_state(tracker_of(hand.node, hand.pod()), READY)
    hand.world.run(0.3 * EARLY_S)
    expect(asked.pod is not None, "it is served only when the time is over")


def an_early_slot_is_none_of_the_next_registration(seed: int) -> None:
    hand, asked = with_early_slot(seed)
    hand.view(2, MemberName(2, OWNER))
    hand.throttler.table.set_state(tracker_of(hand.node, hand.pod()), READY)
    hand.world.run(0.1)
    expect(asked.pod is None, "it uses a slot that the owner does not know of")


def a_slot_of_an_unknown_pod_that_comes_for_nobody_goes_back(seed: int) -> None:
    hand = borrowing(seed)
    hand.member.receive(2, Granted(1, NAME, 999_999, 5, 73, "pod-77", "10.0.0.77:80", True, False))
    (said,) = hand.taken()
    assert isinstance(said, Returned)
    expect(said.slots == (73,), f"it returns {said.slots}")


def an_idle_slot_is_not_one_of_the_next_pod_in_its_place(seed: int) -> None:
    hand = borrowing(seed)
    hand.granted(0, 71, lends=True)
    (idle,) = hand.member.borrowed[NAME].borrowing.idle
    hand.node.remove_pod(KEY, hand.pod())
    other = hand.world.new_pod(KEY, 4)
    hand.node.add_pod(KEY, other)
    expect(idle.tracker is tracker_of(hand.node, other), "the other pod has another place")
    hand.taken()
    asked = hand.world.ask(hand.node, KEY)
    said = [type(one) for one in hand.taken()]
    expect(asked.pod is None and said == [Returned, Want], f"it says {said}")


def impatient(hand: Hand) -> Request:
    """A request that does not wait (`Prefer: if-available`)."""
    world = hand.world
    world.requests += 1
    request = Request(hand.node, KEY, world.requests, 0.1, 0)
    request.never_waits = True
    world.open[request] = None
    hand.node.run(request.ask)
    return request


def who_does_not_wait_is_refused_without_an_owner(seed: int) -> None:
    hand = borrowing(seed)
    hand.member.unlinked(2)
    asked = impatient(hand)
    hand.world.run(0.01)
    expect(bool(asked.end), "it waits for an owner")


def who_does_not_wait_is_refused_once_the_owner_grants_to_others(seed: int) -> None:
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    first, second = hand.world.ask(hand.node, KEY, 1000.0), impatient(hand)
    hand.member.receive(2, Registered(1, ""))
    hand.world.run(0.01)
    expect(first.pod is not None, "nothing is granted")
    expect(second.pod is None and bool(second.end), "it waits for the first one")


def a_table_that_is_made_anew_gives_idle_slots_back(seed: int) -> None:
    world, owner, borrower = lent_to(seed, 5, 2)
    borrower.rebuild(KEY)
    expect(not borrower.member.borrowed[NAME].borrowing.idle, "slots of the old table are kept")
    world.run(0.1)
    expect(owner.member.owned[NAME].lending.lent() == 0, "they are away")
    calm(world)


# --- slots that come for nobody -------------------------------------------------------------------------------------


def a_slot_for_a_client_that_has_gone_is_kept_where_much_is_free(seed: int) -> None:
    world, owner, borrower = two(seed, 20, 2)
    for _ in range(3):
        world.ask(borrower, KEY).leave()
    world.run(0.3)
    expect(len(borrower.member.borrowed[NAME].borrowing.idle) > 0, "it is not kept")
    world.run(3.0)
    expect(owner.member.owned[NAME].lending.lent() == 0, "it is away for ever")
    calm(world)


def a_slot_for_a_client_that_has_gone_is_given_on_where_others_wait(seed: int) -> None:
    world, owner, borrower = two(seed, 1, 1)
    world.ask(borrower, KEY).leave()
    asked = world.ask(owner, KEY, 0.01)
    world.run(0.2)
    expect(asked.end == "served", "the slot stayed with nobody")
    calm(world)


# --- played by hand: who borrows ------------------------------------------------------------------------------------


def what_is_registered_is_all_that_there_is(seed: int) -> None:
    """Over a new link: nothing is lent, and idle slots are not named and not used."""
    hand = borrowing(seed)
    hand.granted(0, 71, lends=True)
    one = hand.member.borrowed[NAME].borrowing
    expect(len(one.idle) == 1, "it keeps the slot")
    hand.member.unlinked(2)
    hand.member.linked(2)
    expect(not one.idle and not one.lends, "what it did not register is kept")


def a_slot_that_is_taken_back_is_not_used(seed: int) -> None:
    """Whether a request has it, or nothing."""
    hand = borrowing(seed)
    asked = [hand.world.ask(hand.node, KEY, 1.0) for _ in range(2)]
    wants = [message.waiting.request for message in hand.taken() if isinstance(message, Want)]
    hand.granted(wants[0], 71, lends=True)
    hand.granted(wants[1], 72, lends=True)
    hand.granted(999_999, 73, lends=True)
    hand.granted(999_998, 74, lends=True)
    one = hand.member.borrowed[NAME].borrowing
    expect([idle.slot for idle in one.idle] == [73, 74], "two are idle")
    hand.member.receive(2, Revoked(1, NAME, 73, Reason.POD_REMOVED.value, ""))
    expect([idle.slot for idle in one.idle] == [74], f"{[idle.slot for idle in one.idle]} are idle")
    hand.member.receive(2, Revoked(1, NAME, 72, Reason.POD_REMOVED.value, ""))
    expect(not asked[0].end and asked[1].end == Reason.POD_REMOVED.value, f"{asked[0].end}, {asked[1].end}")


def a_limit_that_goes_returns_all_slots(seed: int) -> None:
    """What is in use goes on, and its end is told to nobody."""
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 1.0)
    (want,) = hand.taken()
    assert isinstance(want, Want)
    hand.granted(want.waiting.request, 71, lends=True)
    hand.granted(999_999, 73, lends=True)
    one = hand.member.borrowed[NAME].borrowing
    hand.taken()
    hand.member.limit_removed(NAME)
    expect(hand.taken() == [Returned(1, NAME, (73, 71))], "what is idle or in use is not returned")
    expect(not one.idle and not one.in_use and not one.wanted and not one.epoch, "it goes on to borrow")
    hand.world.run(2.0)
    expect(asked.end == "served" and not hand.said, f"it is {asked.end}, and {hand.said} was said")
    hand = borrowing(seed)
    hand.member.limit_removed(NAME)
    expect(not hand.said, "it has nothing, and returns it")
    hand = borrowing(seed)
    hand.granted(999_999, 73, lends=True)
    hand.member.unlinked(2)
    hand.member.limit_removed(NAME)
    expect(not hand.said, "nobody can hear it")


def requests_that_wait_are_served_when_the_limit_goes(seed: int) -> None:
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 0.1)
    one = hand.member.borrowed[NAME].borrowing
    hand.member.limit_removed(NAME)
    expect(asked.pod is not None, "it waits for nobody")
    expect(not one.wanted, "it is still wanted")
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    asked = hand.world.ask(hand.node, KEY, 0.1)
    hand.member.limit_removed(NAME)
    expect(asked.pod is not None, "it waits for others to register")
    hand = owning(seed)
    hand.world.ask(hand.node, KEY, 0.1)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(5)))
    hand.member.limit_removed(NAME)
    expect(hand.throttler.sharing.lending is None and hand.throttler.sharing.source is None, "it lends without a limit")
    expect(hand.throttler.queue.waiters.length == 0, "the other member's request waits here for ever")


def a_limit_that_went_at_the_owner_alone(seed: int) -> None:
    """The other member has had it all the time, and says again what it has when the limit is back."""
    world, owner, borrower = two(seed, 1, 1)
    holder = world.ask(borrower, KEY, 0.5)
    world.run(0.1)
    waiting = world.ask(borrower, KEY)
    world.run(0.1)
    expect(holder.pod is not None and waiting.pod is None, "the borrower has the only slot")
    owner.set_limit(KEY, 0)
    owner.set_limit(KEY, 1)
    other = world.ask(owner, KEY)
    world.run(0.05)
    world.connect_all()
    world.run(0.1)
    expect(other.pod is None, "the slot that the borrower has is not counted")
    world.run(3.0)
    expect([one.end for one in (holder, waiting, other)] == 3 * ["served"], "a request is forgotten")
    calm(world)

    def limit_went(is_granted: bool = True) -> Hand:
        hand = owning(seed)
        if not is_granted:
            hand.world.ask(hand.node, KEY, 0.1)
        hand.member.receive(2, Want(1, NAME, WaitingRequest(5)))
        hand.member.limit_removed(NAME)
        expect(not hand.dropped, "the limit is not back")
        return hand

    hand = limit_went(is_granted=False)
    hand.member.revision_set(hand.throttler)
    expect(hand.dropped == [2], "a request that waits is forgotten")
    hand = limit_went()
    hand.member.revision_set(hand.throttler)
    expect(hand.dropped == [2] and not hand.member.owned[NAME].complete, "it grants without what the other has")
    hand.member.limit_removed(NAME)
    hand.member.revision_set(hand.throttler)
    expect(hand.dropped == [2], "nothing was known this time")
    hand = limit_went()
    hand.view(2, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    expect(not hand.dropped, "all is said anew in another view")
    hand = limit_went()
    hand.member.unlinked(2)
    hand.member.linked(2)
    hand.member.revision_set(hand.throttler)
    expect(not hand.dropped, "all is said anew over another link")
    hand = limit_went()
    hand.member.revision_dropped(NAME)
    hand.member.revision_set(hand.throttler)
    expect(not hand.dropped, "that was another revision")


def a_grant_that_comes_after_the_limit_went_and_came_back_is_counted(seed: int) -> None:
    """It was under way when the borrower registered anew in the same view: it may be used, so the owner counts it."""
    world, owner, borrower = two(seed, 4, 1)
    gone = world.ask(borrower, KEY)
    gone.leave()
    world.network.stopped_until_s[owner.name.number, borrower.name.number] = world.now() + 0.2
    world.run(0.05)
    borrower.set_limit(KEY, 0)
    borrower.set_limit(KEY, 4)
    world.run(0.1)
    lending = owner.member.owned[NAME].lending
    expect(lending.lent() == 1, f"{lending.lent()} are counted, and one is under way")
    world.run(0.2)
    asked = [world.ask(node, KEY, 0.2) for node in (borrower, owner) for _ in range(4)]
    world.run(0.1)
    expect(sum(one.pod is not None for one in asked) == 4, "the pod is full")
    calm(world)
    hand = owning(seed, 8)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    hand.member.receive(2, Register(1, NAME, (), ()))
    lending = hand.member.owned[NAME].lending
    expect(lending.lent() == 1, "what is under way is forgotten")
    hand.view(2, MemberName(2, OTHERS[0]))
    hand.member.receive(2, Register(2, NAME, (), ()))
    expect(lending.lent() == 0, "what was void in its view is counted")


def an_exempt_request_goes_to_the_owner(seed: int) -> None:
    """It may go beyond a pod's limit, which no lent slot says; the owner counts it apart."""
    hand = borrowing(seed)
    hand.granted(999_999, 73, lends=True)
    wants = Wants(hand.node, KEY)
    wants.exempt = True
    wants.ask()
    (returned, want) = hand.taken()
    expect(returned == Returned(1, NAME, (73,)), f"{returned} was said")
    expect(isinstance(want, Want) and want.waiting.exempt, f"{want} was said")


def a_request_that_never_waits_leaves_the_queue_of_the_owner(seed: int) -> None:
    hand = borrowing(seed)
    wants = Wants(hand.node, KEY)
    wants.never_waits = True
    wants.ask()
    (want,) = hand.taken()
    assert isinstance(want, Want)
    hand.member.receive(2, Queued(1, NAME, want.waiting.request, 7))
    expect(hand.taken() == [Cancel(1, NAME, want.waiting.request)], "the owner keeps it in its queue")
    expect(hand.throttler.queue.waiters.length == 0, "it waits here")
    hand.world.run(0.1)
    expect(wants.end == "not_available", f"it is {wants.end}")


def who_waits_alone_asks_for_pods(seed: int) -> None:
    """A revision without pods is started by whichever member has requests of it."""
    hand = borrowing(seed)
    first, second = [hand.world.ask(hand.node, KEY, 1.0) for _ in range(2)]
    wants = [message.waiting.request for message in hand.taken() if isinstance(message, Want)]
    hand.member.receive(2, Queued(1, NAME, wants[0], 7))
    expect((first.arrival_at_owner, second.arrival_at_owner) == (7, 0), "they know their places")
    expect(hand.node.wanted == 0, "two wait: it was asked for when the first one was alone")
    first.leave()
    hand.member.receive(2, Queued(1, NAME, wants[1], 8))
    expect(hand.node.wanted == 1, "the only one that waits asks for pods")


def the_place_in_the_line_is_known_from_the_grant(seed: int) -> None:
    """A request whose pod fails goes back to its place."""
    for known in (True, False):
        hand = borrowing(seed)
        asked = hand.world.ask(hand.node, KEY, 1.0)
        (want,) = hand.taken()
        assert isinstance(want, Want)
        if not known:
            hand.throttler.table.drain(tracker_of(hand.node, hand.pod()))
        hand.granted(want.waiting.request, 71, number=41)
        expect(asked.arrival_at_owner == 41, f"its place is {asked.arrival_at_owner}")


def what_a_borrower_finds_out_while_nobody_hears_it_is_not_said(seed: int) -> None:
    """Nor what is about a slot that it does not have."""
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 9.0)
    (want,) = hand.taken()
    assert isinstance(want, Want)
    one = hand.member.borrowed[NAME].borrowing
    other = Lease(tracker_of(hand.node, hand.pod()), 0.0)
    one.trial_over(other)
    one.suspected(other)
    expect(not hand.taken(), "it is about no slot")
    hand.granted(want.waiting.request, 71, lends=True)
    hand.granted(999_999, 73, lends=True)
    hand.member.unlinked(2)
    assert asked.lease is not None
    one.trial_over(asked.lease)
    one.suspected(asked.lease)
    hand.node.rebuild(KEY)
    expect(not hand.taken(), "it has no link")


def a_slot_for_nobody_goes_back_while_requests_wait(seed: int) -> None:
    """They were asked for when the owner granted it, and much was free there."""
    hand = borrowing(seed)
    hand.world.ask(hand.node, KEY)
    hand.taken()
    hand.granted(999_999, 73, lends=True)
    expect(hand.taken() == [Returned(1, NAME, (73,))], "it is kept")


def an_idle_slot_that_cannot_be_used_goes_back_soon(seed: int) -> None:
    hand = borrowing(seed)
    hand.granted(999_999, 73, lends=True)
    hand.member.tick()
    expect(not hand.taken(), "it has been idle for a moment")
    hand.throttler.table.set_state(tracker_of(hand.node, hand.pod()), NOT_READY)
    hand.member.tick()
    expect(hand.taken() == [Returned(1, NAME, (73,))], "it is kept")


def a_pod_is_not_asked_for_again_where_nobody_wants_it_or_hears_it(seed: int) -> None:
    for way in ("left", "unlinked"):
        hand, asked = with_early_slot(seed)
        if way == "left":
            asked.leave()
        else:
            hand.member.unlinked(2)
        hand.taken()
        hand.world.run(0.1)
        expect(not hand.taken(), f"{way}: it is asked for again")


def a_limit_that_is_set_again_changes_nothing(seed: int) -> None:
    hand = borrowing(seed)
    one = hand.member.borrowed[NAME].borrowing
    hand.member.revision_set(hand.throttler)
    expect(hand.member.borrowed[NAME].borrowing is one and not hand.said, "it has begun anew")
    hand = owning(seed)
    lending = hand.member.owned[NAME].lending
    hand.member.revision_set(hand.throttler)
    expect(hand.member.owned[NAME].lending is lending and not hand.said, "it has begun anew")


# --- played by hand: who owns ---------------------------------------------------------------------------------------


def who_may_have_slots_registers_first(seed: int) -> None:
    """A replica of which it is not certain that it has ended: with none of its members known, nobody can register."""
    other = (7 << WORKER_BITS) + 1
    hand = Hand(seed, True, number=(5 << WORKER_BITS) + 1)
    hand.view(1, replicas=frozenset({7}))
    hand.member.revision_set(hand.throttler)
    expect(not hand.grants(), "it grants, and nobody knows what the other replica has")
    hand.member.linked(other)
    hand.view(2, MemberName(other, OTHERS[0]))
    hand.view(3, replicas=frozenset({7}))
    expect(other in hand.member.peers, "who may live is forgotten")
    hand.member.receive(other, Registered(3, ""))
    expect(hand.grants(), "all have registered")


def who_was_left_out_of_a_view_begins_anew(seed: int) -> None:
    """What others have is what they say; who waits keeps its place, whatever clocks say."""
    world, owner, borrower = two(seed, 1, 1)
    borrower.drift(4.0)
    holder = world.ask(borrower, KEY, 6.0)
    world.run(0.1)
    first = world.ask(owner, KEY, 0.05)
    world.run(0.2)
    second = world.ask(borrower, KEY, 0.05)
    world.run(0.2)
    for node in (owner, borrower):
        view = node.member.view
        node.adopt(View(view.epoch + 1, view.members, follows=False))
    world._epoch += 1
    expect(not owner.member.owned[NAME].complete, "it goes on to grant")
    expect(holder.pod is not None and first.pod is None, "what is used is given on")
    world.run(3.0)
    expect(holder.end == first.end == second.end == "served", f"{holder.end}, {first.end}, {second.end}")
    expect(first.ended_s < second.ended_s, "the line has another order")
    calm(world)


def a_former_owners_line_keeps_its_order(seed: int) -> None:
    """What waits at the former owner has its place by its number, not by the clock of its member."""
    world, owner, borrower = two(seed, 1, 1)
    owner.drift(0.2)
    holder = world.ask(borrower, KEY, 1.0)
    world.run(0.1)
    first = world.ask(owner, KEY, 0.05)
    world.run(0.2)
    second = world.ask(borrower, KEY, 0.05)
    world.run(0.2)
    world.drain(owner, 60.0)
    world.run(3.0)
    expect(holder.end == first.end == second.end == "served", f"{holder.end}, {first.end}, {second.end}")
    expect(first.ended_s < second.ended_s, "the line has another order")
    calm(world)


def who_never_granted_has_no_numbers_of_places(seed: int) -> None:
    """An owner that has not begun when the next view comes: its arrivals are no places in anybody's line."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.world.ask(hand.node, KEY, 1.0)
    hand.member.linked(2)
    hand.taken()
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    (register, _) = hand.taken()
    assert isinstance(register, Register)
    expect(register.waiting[0].number == 0, f"{register} was said")
    hand = owning(seed)
    holder = hand.world.ask(hand.node, KEY, 9.0)
    waits = hand.world.ask(hand.node, KEY, 1.0)
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    (register, _) = hand.taken()
    assert isinstance(register, Register)
    expect(holder.pod is not None, "one is at the pod")
    expect(register.waiting[0].number == waits.arrival != 0, f"{register} was said")


def who_may_not_grant_does_not_begin_to_when_another_registers(seed: int) -> None:
    hand = owning(seed)
    hand.member.allow_grants(False)
    asked = hand.world.ask(hand.node, KEY, 1.0)
    hand.member.receive(2, Register(1, NAME, (), (WaitingRequest(3),)))
    expect(asked.pod is None, "it grants")
    hand.member.revision_dropped(NAME)
    hand.node.throttlers.pop(KEY)
    hand.world.lives[KEY] = 1
    hand.node.add_revision(KEY, 1, 0)
    hand.node.add_pod(KEY, hand.pod())
    expect(hand.world.ask(hand.node, KEY, 1.0).pod is None, "of a revision that is new as well")


def while_one_registers_nothing_is_granted(seed: int) -> None:
    """A slot that it does not name is free; who gets it is decided when all that it wants are in their places."""
    hand = owning(seed)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    assert isinstance(granted, Granted)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(2)))
    (queued,) = hand.taken()
    assert isinstance(queued, Queued)
    later = hand.world.ask(hand.node, KEY, 1.0)
    hand.member.unlinked(2)
    expect(hand.throttler.queue.waiters.length == 1, "what waits there has no place until it registers")
    hand.member.linked(2)
    hand.taken()
    hand.member.receive(2, Register(1, NAME, (), (WaitingRequest(2, queued.number, 0.1),)))
    expect(later.pod is None, "the one that came later has the slot")
    (granted,) = [one for one in hand.taken() if isinstance(one, Granted)]
    expect(granted.request == 2 and granted.number == queued.number, f"{granted} was said")


def what_is_asked_twice_is_one_request(seed: int) -> None:
    hand = owning(seed)
    hand.world.ask(hand.node, KEY, 9.0)
    for _ in range(3):
        hand.member.receive(2, Want(1, NAME, WaitingRequest(2)))
    expect(hand.throttler.queue.waiters.length == 1, f"{hand.throttler.queue.waiters.length} wait")
    total = hand.throttler.counters.queued_total
    expect(total == 0, f"{total} have waited here")
    hand.member.receive(2, Register(1, NAME, (), (WaitingRequest(2),)))
    expect(hand.throttler.queue.waiters.length == 1, f"{hand.throttler.queue.waiters.length} wait")
    hand.member.receive(2, Register(1, NAME, (), ()))
    expect(hand.throttler.queue.waiters.length == 0, "what it did not register waits")


def who_leaves_takes_its_requests_along(seed: int) -> None:
    """Out of the line, however it goes."""
    ways: list[Callable[[Hand], None]] = [
        lambda hand: hand.member.unlinked(2),
        lambda hand: hand.view(2),
        lambda hand: hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(3, OTHERS[1])))),
    ]
    for leave in ways:
        hand = owning(seed)
        hand.world.ask(hand.node, KEY, 9.0)
        hand.member.receive(2, Want(1, NAME, WaitingRequest(2)))
        lending = hand.member.owned[NAME].lending
        leave(hand)
        expect(hand.throttler.queue.waiters.length == 0, "its request is in the line")
        expect(not any(one.waiters for one in lending.borrowers.values()), "its request is known")


def who_is_lent_slots_is_told_once_that_they_are_recalled(seed: int) -> None:
    hand = owning(seed, 8)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    expect(isinstance(granted, Granted) and granted.lends, f"{granted} was said")
    for _ in range(9):
        hand.world.ask(hand.node, KEY, 9.0)
    recalls = [one for one in hand.taken() if isinstance(one, Recall)]
    expect(len(recalls) == 1, f"{len(recalls)} recalls")
    for waiter in hand.throttler.queue.waiters.by_arrival():
        assert isinstance(waiter, Request)
        waiter.leave()
    hand.world.ask(hand.node, KEY, 9.0)
    expect(hand.throttler.queue.waiters.length == 1, "another line has formed")
    expect(not [one for one in hand.taken() if isinstance(one, Recall)], "it is told again")


def who_registers_anew_is_lent_nothing(seed: int) -> None:
    hand = owning(seed, 8)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    hand.member.receive(2, Register(1, NAME, (), ()))
    hand.taken()
    for _ in range(9):
        hand.world.ask(hand.node, KEY, 9.0)
    expect(not [one for one in hand.taken() if isinstance(one, Recall)], "it is told of what it does not have")


def places_stand_between_those_that_were_given(seed: int) -> None:
    """Numbers go on from the former owner's, and everybody is told its own."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    asked = hand.world.ask(hand.node, KEY, 9.0)  # it has waited for longest, and has no number
    hand.world.run(1.0)
    hand.member.linked(2)
    waiting = (
        WaitingRequest(5, 8_000, 0.5),
        WaitingRequest(6, 0, 0.45),
        WaitingRequest(7, 9_000, 0.4),
        WaitingRequest(8, 0, 0.3),
    )
    held = HeldSlot(2 << 40, hand.pod().identity, hand.pod().address)
    hand.member.receive(2, Register(1, NAME, (held,), waiting))
    hand.taken()
    hand.member.receive(2, Registered(1, ""))
    expect(hand.grants(), "it grants")
    numbers = [one.arrival for one in hand.throttler.queue.waiters.by_arrival()]
    expect(numbers == sorted(set(numbers)) and len(numbers) == 5, f"the places are {numbers}")
    expect(numbers[1::2] == [8_000, 9_000] and 0 < asked.arrival < 8_000, f"the places are {numbers}")
    told = [(one.request, one.number) for one in hand.taken() if isinstance(one, Queued)]
    expect(told == [(6, numbers[2]), (8, numbers[4])], f"{told} were told")
    later = hand.world.ask(hand.node, KEY, 9.0)
    expect(later.arrival > numbers[3], "who comes now comes behind them")


def what_a_request_wants_is_in_its_place_at_the_owner(seed: int) -> None:
    hand = owning(seed, 1, 2)
    pods = hand.world.here[KEY]
    for _ in range(2):
        hand.world.ask(hand.node, KEY, 9.0)
    waiting = WaitingRequest(5, 7_777, 1.0, exempt=True, failed_at=pods[1].identity)
    hand.member.receive(2, Want(1, NAME, waiting))
    (waiter,) = hand.throttler.queue.waiters.by_arrival()
    expect(waiter.exempt and waiter.is_classified, "it is an exempt one")
    expect(waiter.arrival_at_owner == waiter.arrival == 7_777, "it has its place")
    expect(waiter.avoided is not None and waiter.avoided.identity == pods[1].identity, "it avoids the pod")
    hand.member.receive(2, Want(1, NAME, WaitingRequest(6, 7_778, 1.0)))
    following = hand.throttler.queue.waiters.by_arrival()[1]
    expect(following.avoided is None and not following.is_retry, "and the next one none")
    hand.member.receive(2, Want(1, NAME, WaitingRequest(7, 7_779, 1.0, failed_at="gone")))
    retried = hand.throttler.queue.waiters.by_arrival()[2]
    expect(retried.avoided is None and retried.is_retry, "a pod has failed it that is not here any more")


def a_request_that_is_told_its_place_at_once_is_not_told_again(seed: int) -> None:
    """By a member that knows it from the former owner."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    held = HeldSlot(2 << 40, hand.pod().identity, hand.pod().address)
    hand.member.receive(2, Register(1, NAME, (held,), (WaitingRequest(5, 4_000, 0.5), WaitingRequest(6, 0, 0.4))))
    hand.taken()
    hand.member.receive(2, Registered(1, ""))
    told = [one.request for one in hand.taken() if isinstance(one, Queued)]
    expect(told == [6], f"{told} were told")


def slots_of_pods_that_are_not_here_yet_are_counted_when_they_come(seed: int) -> None:
    """Also where the table is made anew in between, and only of a pod with this address."""
    for by_rebuild in (False, True):
        hand = Hand(seed, True)
        hand.view(1, MemberName(2, OTHERS[0]))
        hand.member.revision_set(hand.throttler)
        hand.member.linked(2)
        later = hand.world.new_pod(KEY, 1)
        held: tuple[HeldSlot, ...] = (HeldSlot(2 << 40, later.identity, later.address),)
        if not by_rebuild:
            held += (HeldSlot((2 << 40) + 1, later.identity, "10.8.8.8:80"),)
        hand.member.receive(2, Register(1, NAME, held, ()))
        hand.member.receive(2, Registered(1, ""))
        lending = hand.member.owned[NAME].lending
        expect(hand.grants() and lending.lent() == 0, "the pod is not here")
        if by_rebuild:
            hand.throttler.table.add(later.identity, later.address, 1, READY)
            hand.node.rebuild(KEY)
        else:
            hand.node.add_pod(KEY, later)
        expect(lending.lent() == 1, f"{lending.lent()} are counted")
        asked = [hand.world.ask(hand.node, KEY, 0.5) for _ in range(3)]
        expect(sum(one.pod is not None for one in asked) == 1, "the other pod alone has a slot")
        hand.member.receive(2, Released(1, NAME, 2 << 40, 0.1, True))
        expect(sum(one.pod is not None for one in asked) == 2, "and then both")
        hand.member.receive(2, Released(1, NAME, (2 << 40) + 1, 0.1, True))
        expect(not lending._unplaced, "what is back is forgotten")


def a_slot_that_is_taken_back_before_its_pod_comes_is_forgotten(seed: int) -> None:
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    held = HeldSlot(2 << 40, "later", "10.8.8.8:80")
    hand.member.receive(2, Register(1, NAME, (held,), ()))
    hand.member.receive(2, Registered(1, ""))
    hand.member.unlinked(2)
    hand.member.linked(2)
    hand.member.receive(2, Register(1, NAME, (), ()))
    expect(not hand.member.owned[NAME].lending._unplaced, "it is kept for ever")


def a_slot_is_of_one_revision(seed: int) -> None:
    """A borrower that drops a revision later than the owner names its slots of the new one: they are counted there."""
    hand = owning(seed, 1, 2)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    assert isinstance(granted, Granted)
    lending = hand.member.owned[NAME].lending
    hand.member.revision_dropped(NAME)
    expect(lending.is_lending() and lending in hand.member._retired, "its slots are counted until they are back")
    hand.node.throttlers.pop(KEY)
    hand.node.add_revision(KEY, 1, 0)
    for pod in hand.world.here[KEY]:
        hand.node.add_pod(KEY, pod)
    held = HeldSlot(granted.slot, granted.identity, granted.address)
    hand.member.receive(2, Register(1, NAME, (held,), ()))
    expect(not lending.is_lending(), "it is counted twice")
    expect(hand.member._lent.waiters[granted.slot].lending is hand.member.owned[NAME].lending, "it is the new one's")
    hand.member.tick()
    expect(lending not in hand.member._retired, "nothing of it is away")


def a_pod_of_one_request_is_not_lent_and_not_taken_twice(seed: int) -> None:
    """What comes back unused may be given to another one; what a request has had may not."""
    hand = owning(seed, 1, 8)
    hand.throttler.reconfigure(RevisionSpec(key=KEY, queue=QueueSpec(depth=9), container_concurrency=1, is_once=True))
    for number, back in ((1, Returned), (2, Released)):
        hand.member.receive(2, Want(1, NAME, WaitingRequest(number)))
        (granted,) = hand.taken()
        assert isinstance(granted, Granted)
        expect(not granted.lends, "it may use the slot again")
        before = len(hand.node.taken)
        if back is Returned:
            hand.member.receive(2, Returned(1, NAME, (granted.slot,)))
        else:
            hand.member.receive(2, Released(1, NAME, granted.slot, 0.1, True))
        expect((len(hand.node.taken) > before) == (back is Released), f"{number}: {hand.node.taken} are over")


def an_exempt_request_of_another_member_is_counted_there(seed: int) -> None:
    hand = owning(seed)
    rules = (RuleSpec(exempt=True),)
    hand.throttler.reconfigure(RevisionSpec(key=KEY, queue=QueueSpec(depth=9, rules=rules), container_concurrency=1))
    for number, exempt in ((1, False), (2, True)):
        hand.member.receive(2, Want(1, NAME, WaitingRequest(number, exempt=exempt)))
        (said,) = hand.taken()
        expect(isinstance(said, Granted), f"{said} was said")
        expect(
            hand.throttler.counters.exempted_total == 0, f"{hand.throttler.counters.exempted_total} are counted here"
        )
        expect(hand.throttler.counters.granted_total == 0, f"{hand.throttler.counters.granted_total} are counted here")


def where_policies_want_keys_nothing_is_lent(seed: int) -> None:
    """A slot that is kept is used for any key."""
    hand = owning(seed, 8)
    table = hand.throttler.table = TrackerTable(create("consistent-hash", Rng(1)), 64, 0.5)
    table.add(hand.pod().identity, hand.pod().address, 8, READY)
    expect(table.policy.wants_key, "it wants keys")
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    expect(isinstance(granted, Granted) and not granted.lends, f"{granted} was said")


def requests_of_one_member_keep_their_order_though_their_times_are_estimates(seed: int) -> None:
    """The messages of many requests are written and read for milliseconds, in which each estimate is another."""
    hand = Hand(seed, True, 1, 1)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    hand.taken()
    estimates = (0.5, 0.503, 0.501, 0.5, 0.499)
    waiting = tuple([WaitingRequest(number, waited_s=waited_s) for number, waited_s in enumerate(estimates, 1)])
    hand.member.receive(2, Register(1, NAME, (), waiting))
    hand.member.receive(2, Registered(1, ""))
    granted = []
    for _ in waiting:
        (grant,) = [one for one in hand.taken() if isinstance(one, Granted)]
        granted.append(grant.request)
        hand.member.receive(2, Released(1, NAME, grant.slot, 0.1, True))
    expect(granted == [1, 2, 3, 4, 5], f"{granted} were granted")


def where_a_zone_is_preferred_nothing_is_lent(seed: int) -> None:
    """A slot that is kept may be one of a far pod, while one near by is free."""
    hand = owning(seed, 8)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    expect(isinstance(granted, Granted) and granted.lends, f"{granted} was said")
    balancing = BalancingSpec(zone="here")
    hand.throttler.reconfigure(
        RevisionSpec(key=KEY, queue=QueueSpec(depth=9), container_concurrency=8, balancing=balancing)
    )
    hand.taken()
    hand.member.receive(2, Want(1, NAME, WaitingRequest(2)))
    (granted,) = hand.taken()
    expect(isinstance(granted, Granted) and not granted.lends, f"{granted} was said")


# --- played by hand: revisions and links ----------------------------------------------------------------------------


def a_revision_that_is_dropped_is_asked_for_no_more(seed: int) -> None:
    """Whoever borrows returns what is idle; what is in use ends in its own time."""
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 0.5)
    (want,) = hand.taken()
    assert isinstance(want, Want)
    hand.granted(want.waiting.request, 71, lends=True)
    hand.granted(999_999, 73, lends=True)
    hand.member.revision_dropped(NAME)
    expect(hand.taken() == [Returned(1, NAME, (73,))], "the idle slot is not returned")
    expect(NAME in hand.member.borrowed, "it still has a slot")
    hand.granted(999_998, 74)
    expect(hand.taken() == [Returned(1, NAME, (74,))], "a late one is not returned")
    hand.world.run(1.0)
    expect(asked.end == "served", f"it is {asked.end}")
    hand.member.tick()
    expect(NAME not in hand.member.borrowed, "it is kept for ever")
    hand.granted(999_997, 75)
    expect(Returned(1, NAME, (75,)) in hand.taken(), "one for nobody is not returned")
    hand = borrowing(seed)
    hand.member.revision_dropped(NAME)
    expect(NAME not in hand.member.borrowed, "it has nothing, and is kept until the next tick")


def what_is_in_use_of_a_dropped_revision_is_registered_with_its_next_owner(seed: int) -> None:
    """The next owner may not have dropped it yet, and would grant the slots of our own requests again."""
    hand = owning(seed, 2)
    asked = hand.world.ask(hand.node, KEY, 0.5)
    expect(asked.pod is not None, "it is at the pod")
    lending = hand.member.owned[NAME].lending
    expect(hand.member.ownership() == (1, 0), f"it owns {hand.member.ownership()}")
    silent = Hand(seed, True)
    silent.view(1, MemberName(2, OTHERS[0]))
    silent.member.revision_set(silent.throttler)
    expect(silent.member.ownership() == (1, 1), "the other has not registered: nothing can be granted")
    hand.member.revision_dropped(NAME)
    expect(hand.member.ownership() == (0, 0), f"it owns {hand.member.ownership()}")
    hand.member.tick()
    expect(hand.member._retired == [lending], "a slot is in use, and forgotten")
    hand.view(2, MemberName(2, OTHERS[0]))
    expect(hand.member._retired == [lending] and NAME not in hand.member.borrowed, "it is still the owner")
    hand.taken()
    hand.member.adopt(View(3, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    (register, _) = hand.taken()
    assert isinstance(register, Register)
    expect(len(register.slots) == 1 and not register.waiting, f"{register} was said")
    expect(hand.throttler.sharing.lending is None, "it lends no more")
    hand.world.run(1.0)
    expect(asked.end == "served", f"it is {asked.end}")
    (released,) = [one for one in hand.taken() if isinstance(one, Released)]
    expect(released.slot == register.slots[0].slot, f"{released} was said")
    hand.member.tick()
    expect(NAME not in hand.member.borrowed, "it is kept for ever")


def what_is_in_use_of_a_dropped_revision_is_no_matter_of_the_one_that_came_after_it(seed: int) -> None:
    for owns in (True, False):
        hand = owning(seed, 2)
        hand.world.ask(hand.node, KEY, 0.5)
        first = hand.member.owned[NAME].lending
        hand.member.revision_dropped(NAME)
        hand.node.throttlers.pop(KEY)
        hand.node.add_revision(KEY, 2, 0)
        for pod in hand.world.here[KEY]:
            hand.node.add_pod(KEY, pod)
        if owns:  # both of them move
            hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
            expect(hand.member.borrowed[NAME].borrowing.throttler is hand.throttler, "it is the old one's")
        else:  # neither does
            hand.view(2, MemberName(2, OTHERS[0]))
            expect(hand.member._retired == [first], "it is forgotten")
            expect(hand.member.owned[NAME].lending.throttler is hand.throttler, "it is the old one's")
    hand = owning(seed, 2)
    hand.world.ask(hand.node, KEY, 0.5)
    hand.member.revision_dropped(NAME)
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    dropped = hand.member.borrowed[NAME]
    hand.member.adopt(View(3, (hand.me, MemberName(2, OTHERS[0]))))
    expect(NAME not in hand.member.owned and NAME not in hand.member.borrowed, "what was dropped is owned again")
    expect(dropped.is_dropped, "it is not dropped")
    hand = owning(seed, 2)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    hand.member.revision_dropped(NAME)
    hand.taken()
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    expect(NAME not in hand.member.borrowed, "only others had slots of it: they register themselves")
    hand = owning(seed, 2)
    hand.member.receive(2, Register(1, NAME, (HeldSlot(71, "not-here-yet", "10.0.0.9:80"),), ()))
    lending = hand.member.owned[NAME].lending
    hand.member.revision_dropped(NAME)
    expect(hand.member._retired == [lending], "a slot of a pod that is not known here is forgotten")


def before_a_view_nothing_that_was_dropped_comes(seed: int) -> None:
    hand = Hand(seed, True)
    hand.member.revision_set(hand.throttler)
    hand.member.revision_dropped(NAME)
    hand.view(1)
    expect(NAME not in hand.member.owned, "it is back")
    hand = Hand(seed, True)
    hand.member.revision_set(hand.throttler)
    asked = hand.world.ask(hand.node, KEY, 1.0)
    expect(asked.pod is None, "there is no view")
    hand.member.limit_removed(NAME)
    expect(asked.pod is not None, "there is no limit")


def what_is_said_of_a_revision_that_is_not_here_yet_is_kept_for_a_while(seed: int) -> None:
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]), MemberName(3, OTHERS[1]))
    hand.member.linked(2)
    hand.member.linked(3)
    hand.member.receive(2, Cancel(1, NAME, 4))
    hand.member.receive(2, Register(1, NAME, (), ()))
    hand.world.run(UNKNOWN_KEPT_S + 1.0)
    hand.member.tick()
    expect(not hand.dropped and not hand.member._unknown, "nobody waits for an answer")
    asks: tuple[MemberMessage, ...] = (Want(1, NAME, WaitingRequest(4)), Register(1, NAME, (), (WaitingRequest(4),)))
    for number, message in enumerate(asks, 2):
        hand.member.receive(number, message)
        hand.world.run(UNKNOWN_KEPT_S - 1.0)
        hand.member.tick()
        expect(not hand.dropped and NAME in hand.member._unknown, "it is kept")
        hand.world.run(2.0)
        hand.member.tick()
        expect(hand.dropped == [number], f"the links of {hand.dropped} have ended: whoever asks says it again")
        expect((hand.member._unknown, hand.member._unknown_count, hand.member._unknown_since_s) == ({}, 0, {}), "kept")
        hand.dropped.clear()


def what_a_member_has_said_of_it_goes_with_the_member(seed: int) -> None:
    ways: list[Callable[[Hand], None]] = [
        lambda hand: hand.member.unlinked(2),
        lambda hand: hand.view(2, MemberName(3, OTHERS[1])),
    ]
    for leave in ways:
        hand = Hand(seed, True)
        hand.view(1, MemberName(2, OTHERS[0]), MemberName(3, OTHERS[1]))
        hand.member.linked(2)
        hand.member.linked(3)
        other = next(f"ns/o-{n}#0" for n in range(99) if hand.member.view.owner_of(f"ns/o-{n}#0") == 1)
        hand.member.receive(2, Want(1, other, WaitingRequest(4)))
        hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
        hand.member.receive(3, Want(1, NAME, WaitingRequest(5)))
        leave(hand)
        kept = hand.member._unknown
        expect([number for number, _ in kept.get(NAME, ())] == [3], f"{kept} is kept")
        expect(other not in kept and hand.member._unknown_since_s.keys() == {NAME}, f"{kept} is kept")
        expect(hand.member._unknown_count == 1, f"{hand.member._unknown_count} are counted")
        hand.member.revision_set(hand.throttler)
        expect(hand.member._unknown_count == 0, f"{hand.member._unknown_count} are counted")
        is_of_this_view = leave is ways[0]
        expect(hand.throttler.queue.waiters.length == is_of_this_view, "what is left of it is not heard")
        hand.member.revision_dropped(other)
        expect(not hand.member._unknown_since_s, "nothing is kept")


def what_was_said_before_another_one_owned_it_is_forgotten(seed: int) -> None:
    """Else what is said when this member owns it again would be kept behind that, and not heard."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.linked(2)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    hand.member.revision_set(hand.throttler)
    expect(NAME in hand.member.borrowed and not hand.member._unknown, "it is kept")
    hand.view(3, MemberName(2, OTHERS[0]))
    held = HeldSlot(2 << 40, hand.pod().identity, hand.pod().address)
    hand.member.receive(2, Register(3, NAME, (held,), ()))
    hand.member.receive(2, Registered(3, ""))
    expect(hand.grants() and hand.member.owned[NAME].lending.lent() == 1, "what it has is not heard")
    expect(hand.world.ask(hand.node, KEY, 1.0).pod is None, "the pod is full")


def what_is_said_of_it_is_forgotten_where_it_is_dropped(seed: int) -> None:
    """And what comes late of it is not kept any more, for a while."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.linked(2)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    hand.member.revision_dropped(NAME)
    expect(not hand.member._unknown, "it is kept")
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    expect(not hand.member._unknown, "it is gone, and nothing more is asked for there")
    hand.world.run(UNKNOWN_KEPT_S - 1.0)
    hand.member.tick()
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    expect(not hand.member._unknown, "it is gone")
    hand.world.run(2.0)
    hand.member.tick()
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    expect(NAME in hand.member._unknown, "it may come again")


def too_much_that_nobody_can_act_on_ends_the_link(seed: int) -> None:
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.linked(2)
    for _ in range(EARLY_MAX):
        hand.member.receive(2, Cancel(1, NAME, 1))
    expect(not hand.dropped, "it may say as much")
    hand.member.receive(2, Cancel(1, NAME, 1))
    expect(hand.dropped == [2] and hand.member._unknown_count == EARLY_MAX, "the link goes on")
    hand.member.unlinked(2)
    hand.member.linked(2)
    for _ in range(EARLY_MAX):
        hand.member.receive(2, Cancel(2, NAME, 1))
    expect(hand.dropped == [2], "it may say as much again")
    hand.member.receive(2, Cancel(2, NAME, 1))
    expect(hand.dropped == [2, 2] and len(hand.member.peers[2].early) == EARLY_MAX, "the link goes on")


def what_concerns_somebody_else_is_not_kept(seed: int) -> None:
    """Of members that are not known, or about revisions that others own; and a late grant is returned at once."""
    hand = Hand(seed, False)
    hand.view(1, MemberName(2, OWNER), MemberName(3, OTHERS[1]))
    hand.member.linked(3)
    hand.member.receive(77, Want(1, NAME, WaitingRequest(4)))
    hand.member.receive(3, Want(1, NAME, WaitingRequest(4)))
    expect(not hand.member._unknown, "it is kept")
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.linked(2)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(4)))
    hand.taken()
    hand.granted(8, 71)
    expect(hand.taken() == [Returned(1, NAME, (71,))], "a grant for nobody is kept")


def what_is_of_a_later_view_is_heard_in_that(seed: int) -> None:
    hand = owning(seed)
    hand.member.receive(2, Registered(2, ""))
    hand.member.receive(2, Want(3, NAME, WaitingRequest(4)))
    hand.view(2, MemberName(2, OTHERS[0]))
    expect(not [one for one in hand.taken() if isinstance(one, Granted)], "it is heard in the view before")
    hand.view(3, MemberName(2, OTHERS[0]))
    expect([one.request for one in hand.taken() if isinstance(one, Granted)] == [4], "it is not heard")


def who_has_left_is_not_registered_with_and_registers_with_all(seed: int) -> None:
    """It may have slots: nothing is granted before it has said so, even where it was never met."""
    hand = owning(seed)
    hand.member.linked(3)
    hand.said.clear()
    hand.member.adopt(View(2, (hand.me, MemberName(3, OTHERS[0])), frozenset({2})))
    expect([number for number, _ in hand.said] == [3], f"{hand.said} was said")
    hand = Hand(seed, True)
    hand.member.adopt(View(1, (hand.me,), frozenset({55})))
    hand.member.revision_set(hand.throttler)
    expect(not hand.grants(), "it does not wait for who was never met")


def a_link_that_ends_takes_what_was_said_along(seed: int) -> None:
    """Of a later view, too; and who has registered over it has not over the next one."""
    hand = owning(seed)
    hand.member.receive(2, Registered(2, ""))
    hand.member.unlinked(2)
    peer = hand.member.peers[2]
    expect((peer.begun, peer.registered, len(peer.early)) == (0, 0, 0), "it has said something")
    hand.member.receive(2, Want(1, NAME, WaitingRequest(9)))
    expect(hand.throttler.queue.waiters.length == 0 and not hand.said, "what comes over no link is heard")
    hand.member.linked(2)
    hand.member.receive(2, Register(1, NAME, (), (WaitingRequest(1),)))
    granted = [one for one in hand.taken() if isinstance(one, Granted)]
    expect(len(granted) == 1, "what it says over the next one is not heard")
    hand.view(2, MemberName(2, OTHERS[0]))
    expect(hand.member.peers[2].registered < 2, "it has registered")


def what_was_said_in_a_view_before_the_owner_began_is_void(seed: int) -> None:
    """Member 1 owns since view 3, and member 2 still speaks of view 2."""
    hand = Hand(seed, True)
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    hand.view(3, MemberName(2, OTHERS[0]))
    hand.member.receive(2, Want(2, NAME, WaitingRequest(8)))
    expect(hand.throttler.queue.waiters.length == 0, "it is asked for again in the next registration")
    hand.member.receive(2, Register(3, NAME, (), ()))
    hand.member.receive(2, Registered(2, ""))
    expect(not hand.grants(), "a registration of before counts")
    hand.member.receive(2, Want(2, NAME, WaitingRequest(8)))
    expect(hand.throttler.queue.waiters.length == 0, "what is older than its registration is heard")
    hand.member.receive(2, Registered(3, ""))
    expect(hand.grants(), "all have registered")


def what_is_older_than_what_a_member_said_last_is_void(seed: int) -> None:
    hand = owning(seed)
    hand.view(2, MemberName(2, OTHERS[0]))
    hand.member.receive(2, Want(2, NAME, WaitingRequest(1)))
    hand.member.receive(2, Want(1, NAME, WaitingRequest(2)))
    expect(hand.throttler.queue.waiters.length == 0, "it is heard")


def of_a_revision_that_is_gone_slots_come_back_with_the_link(seed: int) -> None:
    for way in ("unlinked", "view"):
        hand = owning(seed)
        hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
        throttler = hand.throttler
        hand.member.revision_dropped(NAME)
        expect(len(throttler.leases) == 1, "its slot is counted")
        if way == "unlinked":
            hand.member.unlinked(2)
        else:
            hand.view(2, MemberName(2, OTHERS[0]))
        expect(len(throttler.leases) == 0 and not hand.member._lent.waiters, f"{way}: it is counted for ever")
        if way == "view":
            expect(not hand.member._retired, "it is kept")


def of_a_revision_that_is_gone_nothing_is_kept_where_nothing_is_lent(seed: int) -> None:
    hand = owning(seed)
    hand.member.revision_dropped(NAME)
    expect(not hand.member._retired, "it has lent nothing")


def what_is_said_of_a_slot_that_is_not_known_is_about_none(seed: int) -> None:
    """It is back already, or its pod is not here."""
    hand = owning(seed)
    for address in ("10.8.8.8:80", hand.pod().address):
        held = HeldSlot(2 << 40, hand.pod().identity, address)
        hand.member.unlinked(2)
        hand.member.linked(2)
        hand.member.receive(2, Register(1, NAME, (held,), ()))
        expect(hand.member.owned[NAME].lending.lent() == (address != "10.8.8.8:80"), "it is of another pod")
        for slot in (2 << 40, 999):
            if slot == 999 or address == "10.8.8.8:80":
                hand.member.receive(2, TrialOver(1, NAME, slot))
                hand.member.receive(2, Suspected(1, NAME, slot))
        hand.node.rebuild(KEY)
        expect(hand.member.owned[NAME].lending.lent() == (address != "10.8.8.8:80"), "it is of another pod")
        hand.member.receive(2, Register(1, NAME, (), ()))
        hand.member.receive(2, Returned(1, NAME, (2 << 40,)))
    expect(tracker_of(hand.node, hand.pod()).suspect_until_s == 0.0, "its pod is suspected")


def a_place_is_told_where_there_is_a_line(seed: int) -> None:
    """Not to whom has its slot at once, and not before places are known. What is lent is lent when nobody waits."""
    hand = owning(seed)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(5, 7_777)))
    (granted,) = hand.taken()
    expect(isinstance(granted, Granted), f"{granted} was said")
    hand = Hand(seed, True, 8)
    hand.view(1, MemberName(2, OTHERS[0]))
    hand.member.revision_set(hand.throttler)
    hand.member.linked(2)
    hand.taken()
    hand.member.receive(2, Register(1, NAME, (), (WaitingRequest(5), WaitingRequest(6))))
    expect(not hand.taken(), "places are told before they are known")
    hand.member.receive(2, Registered(1, ""))
    lends = [one.lends for one in hand.taken() if isinstance(one, Granted)]
    expect(lends == [False, True], f"lent is {lends}")


def numbers_of_slots_begin_where_it_is_said(seed: int) -> None:
    """Members of a group have numbers that are too large for that."""
    for first, number in ((7 << 50, (7 << 50) + 1), (0, (3 << 40) + 1)):
        hand = Hand(seed, True)
        hand.member = Member(3, hand._send, hand.dropped.append, hand.node.now, hand.node.later, first)
        hand.me = MemberName(3, OWNER)
        hand.view(1, MemberName(2, OTHERS[0]))
        hand.member.revision_set(hand.throttler)
        hand.member.linked(2)
        hand.member.receive(2, Registered(1, ""))
        hand.member.receive(2, Want(1, NAME, WaitingRequest(5)))
        (granted,) = [one for one in hand.taken() if isinstance(one, Granted)]
        expect(granted.slot == number, f"it is {granted.slot}")


def what_is_said_of_a_slot_of_another_member_is_heard(seed: int) -> None:
    """That its pod takes no connections, and that its trial takes long."""
    hand = owning(seed, 2)
    tracker = tracker_of(hand.node, hand.pod())
    hand.throttler.table.set_state(tracker, RECOVERING)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    (granted,) = hand.taken()
    assert isinstance(granted, Granted)
    expect(granted.trial, "it is a trial")
    other = hand.world.ask(hand.node, KEY, 0.1)
    expect(other.pod is None, "the trial keeps others away")
    hand.member.receive(2, TrialOver(1, NAME, granted.slot))
    expect(other.pod is not None, "the trial keeps others away for ever")
    hand.throttler.table.set_state(tracker, READY)
    hand.member.receive(2, Suspected(1, NAME, granted.slot))
    expect(tracker.suspect_until_s > hand.node.now(), "it is not heard of")


def a_member_that_lies_frees_no_slot_of_another_one(seed: int) -> None:
    """It has the key, releases slots twice, releases those of others, and names them as its own."""
    hand = owning(seed, 1, 2)
    hand.view(2, MemberName(2, OTHERS[0]), MemberName(3, OTHERS[1]))
    hand.member.linked(3)
    for member in (2, 3):
        hand.member.receive(member, Registered(2, ""))
    hand.taken()
    hand.member.receive(2, Want(2, NAME, WaitingRequest(1)))
    honest = next(message for message in hand.taken() if isinstance(message, Granted))
    hand.member.receive(3, Want(2, NAME, WaitingRequest(1)))
    own = next(message for message in hand.taken() if isinstance(message, Granted))
    lending = hand.member.owned[NAME].lending
    waits = hand.world.ask(hand.node, KEY, 0.1)
    for _ in range(2):
        hand.member.receive(3, Released(2, NAME, honest.slot, 0.1, True))
        hand.member.receive(3, Returned(2, NAME, (honest.slot,)))
    expect(waits.pod is None and lending.lent() == 2, "it has freed a slot of another member")
    hand.member.receive(3, Register(2, NAME, (HeldSlot(honest.slot, "nowhere", "10.9.9.9:1"),), ()))
    expect(hand.member._lent.waiters[honest.slot].borrower.number == 2, "it has taken a slot of another member")
    for _ in range(3):
        hand.member.receive(3, Released(2, NAME, own.slot, 0.1, True))
    expect(waits.pod is not None and len(hand.throttler.leases) == 2, "a slot was free twice")
    hand.member.receive(2, Released(2, NAME, honest.slot, 0.1, True))
    expect(honest.slot not in hand.member._lent.waiters, "its own member cannot give it back")


def who_joins_is_known_at_once_and_who_left_no_more(seed: int) -> None:
    hand = owning(seed)
    hand.view(2, MemberName(3, OTHERS[1]))
    expect(hand.member.peers.keys() == {3}, f"{hand.member.peers.keys()} are known")
    hand.member.linked(4)
    hand.view(3, MemberName(3, OTHERS[1]))
    expect(hand.member.peers.keys() == {3, 4}, "who comes in a later view has its link already")
    hand.view(3, MemberName(4, OTHERS[1]))
    hand.view(2, MemberName(4, OTHERS[1]))
    expect(hand.member.view.has(3), "a view is adopted once")
    hand.view(4)
    expect(hand.grants(), "it is alone, and may grant")


def who_is_alone_from_now_on_grants_at_once(seed: int) -> None:
    hand = Hand(seed, False)
    hand.view(1, MemberName(2, OWNER))
    hand.member.revision_set(hand.throttler)
    hand.view(2)
    expect(hand.grants(), "it waits for nobody")


def who_borrows_from_somebody_that_is_not_there_registers_later(seed: int) -> None:
    """With whom there is no link, or who is in no view of this member, nothing is registered."""
    hand = Hand(seed, False)
    hand.view(1, MemberName(2, OWNER))
    hand.member.revision_set(hand.throttler)
    expect(not hand.said and not hand.member.borrowed[NAME].borrowing.epoch, "nobody can hear it")
    hand.member.linked(2)
    expect([type(one) for one in hand.taken()] == [Registered], "it has nothing, and says so")
    hand.member.unlinked(2)
    hand.member.limit_removed(NAME)
    hand.member.revision_set(hand.throttler)
    expect(not hand.said, "nobody can hear it")
    hand.member.linked(2)
    hand.member.limit_removed(NAME)
    hand.taken()
    hand.member.revision_set(hand.throttler)
    expect([type(one) for one in hand.taken()] == [Register], "the owner may keep what was said before")
    hand.member.linked(9)
    expect(not hand.said, "it is in no view")


def a_limit_that_comes_makes_what_is_at_pods_borrowed(seed: int) -> None:
    hand = Hand(seed, False)
    hand.node.set_limit(KEY, 0)
    hand.throttler.sharing.source = hand.throttler.sharing.lending = None
    hand.view(1, MemberName(2, OWNER))
    hand.member.linked(2)
    asked = hand.world.ask(hand.node, KEY, 0.5)
    expect(asked.pod is not None, "there is no limit")
    hand.taken()
    hand.member.revision_set(hand.throttler)
    (register,) = hand.taken()
    assert isinstance(register, Register)
    expect(len(register.slots) == 1, "what is at the pod is not named")
    hand.world.run(1.0)
    expect([type(one) for one in hand.taken()] == [Released], "what it has is not given back")


def who_loses_its_owner_keeps_what_ends_meanwhile_for_its_registration(seed: int) -> None:
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY, 0.1)
    (want,) = hand.taken()
    assert isinstance(want, Want)
    hand.granted(want.waiting.request, 71, lends=True)
    hand.granted(999_999, 73, lends=True)
    hand.member.unlinked(2)
    one = hand.member.borrowed[NAME].borrowing
    expect(not one.epoch, "it is registered with nobody")
    waits = [hand.world.ask(hand.node, KEY, 0.1) for _ in range(2)]
    hand.world.run(0.5)
    expect(asked.end == "served" and not hand.taken(), "nobody can hear it")
    hand.member.linked(2)
    (register, _) = hand.taken()
    assert isinstance(register, Register)
    expect(not register.slots, f"{register.slots} are named, and have ended")
    expect(len(register.waiting) == sum(not one.end for one in waits), "all that wait are named")
    hand.granted(register.waiting[0].request, 81)
    hand.taken()
    hand.view(2, MemberName(3, OWNER))
    hand.world.run(0.5)
    expect(not hand.taken(), "the next owner hears nothing before the registration")


def nobody_else_is_listened_to_as_an_owner(seed: int) -> None:
    hand = borrowing(seed)
    hand.view(2, MemberName(2, OWNER), MemberName(3, OTHERS[1]))
    hand.member.linked(3)
    asked = hand.world.ask(hand.node, KEY, 1.0)
    (want,) = [one for one in hand.taken() if isinstance(one, Want)]
    hand.member.receive(3, Refused(2, NAME, want.waiting.request, Reason.INTERNAL.value, ""))
    hand.member.receive(2, Refused(1, NAME, want.waiting.request, Reason.INTERNAL.value, ""))
    expect(not asked.end, "it is refused by somebody")
    hand.member.receive(2, Refused(2, NAME, want.waiting.request, Reason.QUEUE_FULL.value, ""))
    expect(asked.end == Reason.QUEUE_FULL.value, f"it is {asked.end}")


def who_hands_over_grants_no_more(seed: int) -> None:
    """Not even what comes back while it does; and who takes over waits in its throttler for nobody else."""
    hand = owning(seed)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    asked = hand.world.ask(hand.node, KEY, 1.0)
    hand.member.adopt(View(2, (replace(hand.me, drains=True), MemberName(2, OTHERS[0]))))
    expect(asked.pod is None and hand.throttler.sharing.lending is None, "it grants")
    hand.view(3, MemberName(2, OTHERS[0]))
    expect(NAME not in hand.member.borrowed and hand.throttler.sharing.source is NOTHING_YET, "it borrows, and owns")
    expect(hand.throttler.sharing.lending is hand.member.owned[NAME].lending, "it lends")


def a_limit_that_goes_grants_nothing_to_others(seed: int) -> None:
    """What one member had comes back while another one still waits in the line: its own member grants it now."""
    hand = Hand(seed, True)
    hand.view(1, MemberName(2, OTHERS[0]), MemberName(3, OTHERS[1]))
    hand.member.revision_set(hand.throttler)
    for other in (2, 3):
        hand.member.linked(other)
        hand.member.receive(other, Registered(1, ""))
        hand.member.receive(other, Want(1, NAME, WaitingRequest(1)))
    own = hand.world.ask(hand.node, KEY)
    granted = [to for to, message in hand.said if isinstance(message, Granted)]
    expect(granted == [2], f"{granted} have the slot")
    hand.taken()
    hand.member.limit_removed(NAME)
    expect(not hand.taken(), "another member is granted a slot")
    expect(own.pod is not None and hand.throttler.sharing.source is None, "its own request still waits")


def a_view_without_members_is_nobodys(seed: int) -> None:
    """All that do not leave have ended, and one is told so: requests wait, and nothing is forgotten."""
    hand = Hand(seed, True)
    hand.member.revision_set(hand.throttler)  # before the first view
    asked = hand.world.ask(hand.node, KEY)
    for epoch in (1, 2):
        hand.member.adopt(View(epoch, ()))
        hand.member.revision_set(hand.throttler)
        expect(asked.pod is None and waits_for(hand.throttler) == "the other members of the group", "it is granted")
    hand.view(3)
    expect(asked.pod is not None and hand.grants(), "it is not granted by the only member")
    last = hand.world.ask(hand.node, KEY)
    expect(waits_for(hand.throttler) == "a slot to come free", "it waits for something else")
    hand.member.adopt(View(4, ()))
    hand.world.watch(KEY, UNLIMITED)
    hand.node.set_limit(KEY, 0)
    expect(last.pod is not None, "without a limit nobody is asked")
    hand = owning(seed)
    hand.member.receive(2, Want(1, NAME, WaitingRequest(1)))
    asked = hand.world.ask(hand.node, KEY)
    expect([type(one) for one in hand.taken()] == [Granted], "member 2 has the slot")
    hand.member.adopt(View(2, (), frozenset({2})))
    expect(asked.pod is None and not hand.taken(), "it goes on granting")
    hand.view(3, MemberName(2, OTHERS[0]))
    hand.member.receive(2, Register(3, NAME, (), ()))
    hand.member.receive(2, Registered(3, ""))
    expect(asked.pod is not None, "what waits is forgotten")
    hand = borrowing(seed)
    asked = hand.world.ask(hand.node, KEY)
    hand.taken()
    hand.member.adopt(View(2, (), frozenset({2})))
    later = hand.world.ask(hand.node, KEY)
    expect(not hand.taken(), "something is said to nobody")
    hand.view(3, MemberName(2, OWNER))
    (registered,) = [one for one in hand.taken() if isinstance(one, Register)]
    expect(len(registered.waiting) == 2 and not asked.end and not later.end, "a request is forgotten")


CORNERS: list[Callable[[int], None]] = [
    an_idle_slot_of_a_pod_that_leaves_is_not_used,
    an_idle_slot_of_a_pod_that_is_not_ready_is_not_used,
    an_idle_slot_of_a_pod_that_takes_no_connections_is_not_used,
    a_slot_is_not_kept_where_its_pod_leaves_meanwhile,
    a_pod_that_the_owner_knows_first_is_asked_for_again,
    requests_keep_their_order_at_a_pod_that_the_owner_knows_first,
    an_early_slot_is_given_back,
    a_table_that_is_made_anew_gives_idle_slots_back,
    a_slot_for_a_client_that_has_gone_is_kept_where_much_is_free,
    a_slot_for_a_client_that_has_gone_is_given_on_where_others_wait,
    what_is_registered_is_all_that_there_is,
    a_slot_that_is_taken_back_is_not_used,
    a_limit_that_goes_returns_all_slots,
    requests_that_wait_are_served_when_the_limit_goes,
    a_limit_that_went_at_the_owner_alone,
    a_grant_that_comes_after_the_limit_went_and_came_back_is_counted,
    an_exempt_request_goes_to_the_owner,
    who_waits_alone_asks_for_pods,
    the_place_in_the_line_is_known_from_the_grant,
    what_a_borrower_finds_out_while_nobody_hears_it_is_not_said,
    a_slot_for_nobody_goes_back_while_requests_wait,
    an_idle_slot_that_cannot_be_used_goes_back_soon,
    a_pod_is_not_asked_for_again_where_nobody_wants_it_or_hears_it,
    a_limit_that_is_set_again_changes_nothing,
    who_may_have_slots_registers_first,
    who_was_left_out_of_a_view_begins_anew,
    a_former_owners_line_keeps_its_order,
    who_never_granted_has_no_numbers_of_places,
    who_may_not_grant_does_not_begin_to_when_another_registers,
    while_one_registers_nothing_is_granted,
    what_is_asked_twice_is_one_request,
    who_leaves_takes_its_requests_along,
    who_is_lent_slots_is_told_once_that_they_are_recalled,
    who_registers_anew_is_lent_nothing,
    places_stand_between_those_that_were_given,
    what_a_request_wants_is_in_its_place_at_the_owner,
    a_request_that_is_told_its_place_at_once_is_not_told_again,
    slots_of_pods_that_are_not_here_yet_are_counted_when_they_come,
    a_slot_that_is_taken_back_before_its_pod_comes_is_forgotten,
    a_slot_is_of_one_revision,
    a_pod_of_one_request_is_not_lent_and_not_taken_twice,
    an_exempt_request_of_another_member_is_counted_there,
    where_policies_want_keys_nothing_is_lent,
    where_a_zone_is_preferred_nothing_is_lent,
    requests_of_one_member_keep_their_order_though_their_times_are_estimates,
    a_revision_that_is_dropped_is_asked_for_no_more,
    what_is_in_use_of_a_dropped_revision_is_registered_with_its_next_owner,
    what_is_in_use_of_a_dropped_revision_is_no_matter_of_the_one_that_came_after_it,
    before_a_view_nothing_that_was_dropped_comes,
    what_is_said_of_a_revision_that_is_not_here_yet_is_kept_for_a_while,
    what_a_member_has_said_of_it_goes_with_the_member,
    what_was_said_before_another_one_owned_it_is_forgotten,
    what_is_said_of_it_is_forgotten_where_it_is_dropped,
    too_much_that_nobody_can_act_on_ends_the_link,
    what_concerns_somebody_else_is_not_kept,
    what_is_of_a_later_view_is_heard_in_that,
    who_has_left_is_not_registered_with_and_registers_with_all,
    a_link_that_ends_takes_what_was_said_along,
    what_was_said_in_a_view_before_the_owner_began_is_void,
    what_is_older_than_what_a_member_said_last_is_void,
    of_a_revision_that_is_gone_slots_come_back_with_the_link,
    of_a_revision_that_is_gone_nothing_is_kept_where_nothing_is_lent,
    what_is_said_of_a_slot_that_is_not_known_is_about_none,
    a_place_is_told_where_there_is_a_line,
    numbers_of_slots_begin_where_it_is_said,
    what_is_said_of_a_slot_of_another_member_is_heard,
    a_member_that_lies_frees_no_slot_of_another_one,
    who_joins_is_known_at_once_and_who_left_no_more,
    who_is_alone_from_now_on_grants_at_once,
    who_borrows_from_somebody_that_is_not_there_registers_later,
    a_limit_that_comes_makes_what_is_at_pods_borrowed,
    who_loses_its_owner_keeps_what_ends_meanwhile_for_its_registration,
    nobody_else_is_listened_to_as_an_owner,
    who_hands_over_grants_no_more,
    a_view_without_members_is_nobodys,
    a_request_that_never_waits_leaves_the_queue_of_the_owner,
    an_early_slot_is_looked_at_again_and_again,
    an_early_slot_is_none_of_the_next_registration,
    a_slot_of_an_unknown_pod_that_comes_for_nobody_goes_back,
    an_idle_slot_is_not_one_of_the_next_pod_in_its_place,
    who_does_not_wait_is_refused_without_an_owner,
    who_does_not_wait_is_refused_once_the_owner_grants_to_others,
    a_limit_that_goes_grants_nothing_to_others,
]
