"""A policy that somebody brought along, with a defect: it costs the request it was asked for, and is counted."""

from __future__ import annotations

from activator.codec.message import RequestHead
from activator.config.specs import QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason
from lb.pod_table import PodTable
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import EMPTY, NOT_READY, READY, PodTracker
from tests.data_plane.proxy.proxy_fakes import request_head
from tests.data_plane.throttle.throttle_fakes import Heard, Request
from tests.lb.lb_oracles import ScanningPolicy
from tests.manual_clock import ManualClock


class Defective(ScanningPolicy):
    """Raises where it is told to."""

    name = "defective"

    def __init__(self) -> None:
        super().__init__(Rng(1))
        self.raising: set[str] = set()

    def _maybe(self, what: str) -> None:
        if what in self.raising:
            raise ZeroDivisionError(what)

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        self._maybe("pick")
        return super().pick(table, key, now_s)

    def on_add(self, tracker: PodTracker) -> None:
        self._maybe("add")

    def on_remove(self, tracker: PodTracker) -> None:
        self._maybe("remove")

    def on_reserve(self, tracker: PodTracker) -> None:
        self._maybe("reserve")

    def on_release(self, tracker: PodTracker, latency_s: float) -> None:
        self._maybe("release")


class Exempted(Request):
    def request(self) -> RequestHead:
        return request_head()


class World:
    def __init__(self, pods: int = 2, **spec: object) -> None:
        self.clock = ManualClock()
        self.heard = Heard()
        self.policy = Defective()
        self.table = TrackerTable(self.policy, 4, 0.5)
        for number in range(pods):
            self.table.add(f"p{number}", f"10.0.0.{number}:80", 1, READY)
        revision = RevisionSpec(key="ns/rev", **spec)  # type: ignore[arg-type]
        self.throttler = RevisionThrottler(revision, self.table, self.clock.now, self.clock.defer, self.heard, 256)

    def ask(self, count: int, kind: type[Request] = Request) -> list[Request]:
        requests = [kind(self.throttler) for _ in range(count)]
        for request in requests:
            request.ask(self.clock.now())
        return requests

    def settle(self) -> None:
        while self.clock.turn():
            pass
        self.table.check_invariants()
        assert self.table.in_flight == len(self.throttler.leases)
        assert not self.throttler.is_stalled()

    def told(self) -> int:
        return sum(event[0] == "failed" for event in self.heard.events)


def test_a_pick_that_raises_at_the_hand_over_spoils_neither_the_release_nor_the_next_in_line() -> None:
    world = World()
    held = world.ask(2)
    waiting = world.ask(3)
    world.policy.raising = {"pick"}
    held[0].release()
    world.settle()
    assert [request.ends for request in waiting] == [[Reason.INTERNAL.value]] * 3, "each was asked for, each is told"
    assert (world.throttler.counters.errors_total, world.told()) == (3, 3)
    assert world.table.in_flight == 1 and world.throttler.queue.waiters.length == 0
    world.policy.raising = set()
    (next_one,) = world.ask(1)
    assert next_one.ends == ["granted"]
    held[1].release()
    next_one.release()
    world.settle()


def test_only_who_was_asked_for_hears_of_it() -> None:
    world = World()
    held = world.ask(2)
    waiting = world.ask(2)

    class Once(Policy):
        asked = 0

        def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
            self.asked += 1
            if self.asked == 1:
                raise ZeroDivisionError("once")
            return next((pod for pod in table.slots[: table.length] if pod.has_room), None)

    world.table.set_policy(Once(Rng(1)))
    held[0].release()
    world.settle()
    assert [request.ends for request in waiting] == [["internal"], ["granted"]]
    for request in (held[1], waiting[1]):
        request.release()
    world.settle()


def test_the_pod_that_is_avoided_is_there_again_when_the_pick_of_another_raises() -> None:
    world = World()
    first, second = world.ask(2)
    lease = first.lease
    assert lease is not None
    second.release()
    world.policy.raising = {"pick"}
    first.lease = None
    assert world.throttler.requeue(first, lease, Reason.CONNECT_FAILED) is None
    world.throttler.release(lease, 0.0, False)
    world.settle()
    assert first.ends[-1] == "internal"
    assert world.table.room == 2


def test_an_exempted_request_that_is_tried_again_ends_and_gives_its_slot_back() -> None:
    world = World(queue=QueueSpec(rules=(RuleSpec(exempt=True),)))
    (request,) = world.ask(1, Exempted)
    lease = request.lease
    assert lease is not None and lease.exempt
    world.policy.raising = {"pick"}
    assert world.throttler.requeue(request, lease, Reason.CONNECT_FAILED) is Reason.INTERNAL
    world.throttler.release(lease, 0.0, False)
    world.settle()
    assert world.table.in_flight == 0


def test_hooks_that_raise_cost_nobody_anything_and_are_counted() -> None:
    world = World(pods=0)
    world.policy.raising = {"add", "remove", "reserve", "release"}
    pods = [world.table.add(f"p{number}", f"10.0.0.{number}:80", 1, READY) for number in range(2)]
    assert world.throttler.counters.errors_total == world.table.hook_errors == 2
    for _ in range(50):
        for request in world.ask(2):
            assert request.ends == ["granted"]
            request.release()
        world.settle()
    assert world.table.hook_errors == 2 + 200
    held, *waiting = world.ask(3)
    waiting[0].release()
    assert waiting[1].ends == ["granted"], "the line goes on"
    held.release()
    waiting[1].release()
    for pod in pods:
        assert pod is not None and world.table.drain(pod)
    world.settle()
    assert world.table.hook_errors == world.throttler.counters.errors_total == 202 + 6 + 2
    assert world.told() == 8, "at 1, 2, 4, … 128: not each time"


class Lying(Policy):
    """Names pods that may not be picked, in turns: full, not ready, an empty slot, another table's, none."""

    name = "lying"

    def __init__(self) -> None:
        super().__init__(Rng(1))
        self.lies = 0
        self.elsewhere = TrackerTable(create("round-robin", Rng(1)), 4)
        self.elsewhere.add("q", "10.0.1.0:80", 1, READY)

    def pick(self, table: PodTable, key: int, now_s: float) -> PodTracker | None:
        self.lies += 1
        slots = table.slots[: table.length]
        kinds = (
            next((pod for pod in slots if pod.state == READY and not pod.has_room), None),
            next((pod for pod in slots if pod.state == NOT_READY), None),
            next((pod for pod in table.slots if pod.state == EMPTY), None),
            self.elsewhere.slots[0],
            None,
        )
        return kinds[self.lies % len(kinds)]


def test_what_a_policy_names_wrongly_is_not_picked_and_nobody_waits_for_it() -> None:
    world = World()
    world.table.add("p2", "10.0.0.2:80", 1, NOT_READY)
    policy = Lying()
    world.table.set_policy(policy)
    served = 0
    for _ in range(40):
        requests = world.ask(4)
        for request in requests:
            world.settle()
            assert request.ends == ["granted"]
            assert all(one.in_flight <= one.limit for one in world.table.slots)
            lease = request.lease
            assert lease is not None and lease.identity in {"p0", "p1"}
            request.release()
            served += 1
        world.settle()
    assert served == 160
    assert policy.elsewhere.in_flight == world.table.in_flight == 0
    assert world.table.bad_picks >= served


def test_a_policy_of_our_own_again_is_not_checked_for_more_than_room() -> None:
    world = World()
    world.table.set_policy(Lying())
    world.table.set_policy(create("least-connections", Rng(1)))
    for request in world.ask(2):
        assert request.ends == ["granted"]
        request.release()
    assert world.table.bad_picks == 0
