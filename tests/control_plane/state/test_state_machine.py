"""Four sources that disagree, lose, repeat and reorder what they say, requests all the while, panics and broken tables:
in the end the table is what a world is that was told only the last words, and nothing in flight was ever lost.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from activator.config.specs import DRAIN_TIMEOUT_S
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import PANIC_BACKOFF_MAX_S
from activator.messages import (
    PUSH,
    Change,
    ObservedPod,
    PodGone,
    PodSetAside,
    PodsListed,
    PodStatus,
    PodUnplaced,
    Probed,
    RevisionSet,
    SlotDrained,
    StartProbe,
    Sweep,
)
from activator.runtime.reasons import Reason
from lb.tracker import DRAINING, EMPTY, STATE_NAMES
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced
from tests.data_plane.throttle.throttle_fakes import Request

ZONED = balanced(zone="a")
REASONS = (Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT, Reason.POD_CLOSED, Reason.FIRST_BYTE_TIMEOUT)
LISTING = ("list", "watch", "file")
PODS = [f"p{number}" for number in range(6)]
ADDRESSES = [f"10.0.0.{number}:80" for number in range(4)]  # fewer than pods: addresses are used again


class Trap:
    """`reduce`, that raises when it was told to."""

    def __init__(self) -> None:
        self.armed = 0

    def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
        if self.armed and not isinstance(change, RevisionSet):
            self.armed -= 1
            raise RuntimeError("injected")
        return reduce(model, change, now_s)


class World(Joined):
    """Everything that the data plane tells comes to the worker, as in the program."""

    def __init__(self, trap: Trap) -> None:
        super().__init__(trap)
        self.heard.on_refused = self.tables.suspected
        self.do(RevisionSet(ZONED))

    def settle(self) -> None:
        while True:
            changes = self._told()
            if not changes and not self.worker.turn() and not self.hooks.told:
                return
            self.do(*changes)

    def _told(self) -> list[Change]:
        changes: list[Change] = []
        for name, *rest in self.heard.events:
            if name == "drained":
                changes.append(SlotDrained(KEY, int(rest[0]), int(rest[1])))
        self.heard.events.clear()
        changes.extend(self.heard.reports)
        self.heard.reports.clear()
        changes.extend(SlotDrained(*expired, forced=True) for expired in self.hooks.expired)
        self.hooks.expired.clear()
        changes.extend(PodUnplaced(KEY, identity) for identity in self.hooks.unplaced)
        self.hooks.unplaced.clear()
        return changes

    def prove(self) -> None:
        """Every pod that is asked answers, and every trial passes."""
        for _ in range(3):
            pods = self.worker.model.revisions[KEY].pods.values()
            self.do(*(Probed(KEY, pod.identity) for pod in pods if pod.wants_probe()))
            pods = self.worker.model.revisions[KEY].pods.values()
            self.do(*(report for pod in list(pods) for report in self.found("passed", pod.identity)))
            self.settle()

    def contended(self) -> dict[str, set[str]]:
        """The addresses at which there are several pods that could have them."""
        found: dict[str, set[str]] = {}
        for pod in self.worker.model.revisions[KEY].pods.values():
            if pod.contends():
                found.setdefault(pod.address, set()).add(pod.identity)
        return {address: pods for address, pods in found.items() if len(pods) > 1}

    def live(self) -> set[tuple[str, str, str, int, bool]]:
        table = self.throttler().table
        return {
            (one.identity, one.address, STATE_NAMES[one.state], int(one.own_limit), one.is_far)
            for one in table.slots[: table.length]
            if one.state not in {EMPTY, DRAINING}
        }


class Disagreement(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.trap = Trap()
        self.world = World(self.trap)
        self.truth: dict[str, dict[str, ObservedPod]] = {source: {} for source in (*LISTING, PUSH)}
        self.under_way: list[Change] = []
        self.requests: list[Request] = []

    @initialize()
    def begin(self) -> None:
        self.world.settle()

    # --- sources ---

    @rule(
        source=st.sampled_from([*LISTING, PUSH]),
        pod=st.sampled_from(PODS),
        address=st.sampled_from(ADDRESSES),
        status=st.sampled_from(list(PodStatus)),
        limit=st.sampled_from([-1, -1, -1, 0, 1]),
        restarts=st.sampled_from([-1, 0, 0, 1, 2]),
        zone=st.sampled_from(["", "a", "b"]),
        copies=st.integers(0, 3),
    )
    def says(
        self, source: str, pod: str, address: str, status: PodStatus, limit: int, restarts: int, zone: str, copies: int
    ) -> None:
        """A source has something to say, which is lost, or comes once or several times."""
        if source == PUSH:  # reports have no such words
            limit = restarts = -1
            zone = ""
        probe = source != PUSH
        seen = ObservedPod(KEY, source, pod, address, status, probe, limit=limit, restarts=restarts, zone=zone)
        self.truth[source][pod] = seen
        self.under_way.extend([seen] * copies)

    @rule(source=st.sampled_from([*LISTING, PUSH]), pod=st.sampled_from(PODS), copies=st.integers(0, 2))
    def takes_back(self, source: str, pod: str, copies: int) -> None:
        self.truth[source].pop(pod, None)
        self.under_way.extend([PodGone(KEY, source, pod)] * copies)

    @rule(pod=st.sampled_from(PODS), is_aside=st.booleans(), copies=st.integers(0, 2))
    def sets_aside(self, pod: str, is_aside: bool, copies: int) -> None:
        """An operator takes a pod out of service, or puts it back."""
        self.under_way.extend([PodSetAside(KEY, pod, is_aside)] * copies)

    @rule(source=st.sampled_from(LISTING))
    def relists(self, source: str) -> None:
        self.under_way.append(PodsListed(KEY, source, tuple(self.truth[source].values())))

    @rule(data=st.data(), count=st.integers(1, 8))
    def deliver(self, data: Any, count: int) -> None:
        """Some of what is under way arrives, in any order."""
        for _ in range(min(count, len(self.under_way))):
            self.world.worker.submit(self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1))))
        self.world.settle()

    # --- what we find out ---

    @rule(
        pod=st.sampled_from(PODS),
        kind=st.sampled_from(["dead", "struck", "answered", "passed", "failed", "served"]),
        late=st.booleans(),
    )
    def learns(self, pod: str, kind: str, late: bool) -> None:
        """What is reported is so of the pod as it is now; the report may be read much later, and again."""
        found = [Probed(KEY, pod)] if kind == "answered" else self.world.found(kind, pod)
        self.under_way.extend(found)
        if not late:
            self.world.do(*found)
        self.world.settle()

    # --- requests ---

    @rule()
    def asks(self) -> None:
        request = Request(self.world.throttler())
        self.requests.append(request)
        request.ask(self.world.clock.now())
        self.world.tables.activated(KEY)

    @precondition(lambda self: any(request.lease is not None for request in self.requests))
    @rule(data=st.data(), succeeded=st.booleans())
    def ends(self, data: Any, succeeded: bool) -> None:
        held = [request for request in self.requests if request.lease is not None]
        held[data.draw(st.integers(0, len(held) - 1))].release(succeeded)
        self.world.settle()

    @precondition(lambda self: any(request.lease is not None for request in self.requests))
    @rule(data=st.data(), reason=st.sampled_from([None, *REASONS]), late=st.booleans())
    def fails(self, data: Any, reason: Reason | None, late: bool) -> None:
        """A request at a pod fails, or its answer begins (None); it goes on to hold its slot."""
        held = [request.lease for request in self.requests if request.lease is not None]
        lease = held[data.draw(st.integers(0, len(held) - 1))]
        if reason is not None:
            self.world.throttler().pod_failed(lease, reason)
        elif lease.trial:
            self.world.throttler().trial_answered(lease)
        if late:
            self.under_way.extend(self.world.heard.reports)
            self.world.heard.reports.clear()
        self.world.settle()

    # --- what should not be ---

    @rule()
    def panics(self) -> None:
        self.trap.armed = 1

    @rule()
    def breaks(self) -> None:
        self.world.throttler().table.capacity += 1
        self.world.auditor.check(self.world.throttler())
        self.world.settle()

    @rule(seconds=st.sampled_from([0.2, 5.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.pass_time(seconds)
        self.world.do(Sweep(KEY))
        self.world.settle()

    # --- what must hold ---

    @rule()
    def converges(self) -> None:
        """Everybody says their last word; a world that hears nothing else looks the same."""
        self.trap.armed = 0
        world = self.world
        world.clock.pass_time(max(DRAIN_TIMEOUT_S, PANIC_BACKOFF_MAX_S) + 1.0)
        world.do(*self.under_way)
        self.under_way.clear()
        world.do(*(PodSetAside(KEY, pod, False) for pod in PODS))
        world.settle()
        world.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
        world.do(Sweep(KEY))
        world.settle()
        fresh = World(Trap())
        for one in (world, fresh):
            # One after the other: where they speak of different addresses, the last one counts in both worlds.
            for source in LISTING:
                one.do(PodsListed(KEY, source, tuple(self.truth[source].values())))
            for seen in self.truth[PUSH].values():
                one.do(seen)
            one.settle()
            one.prove()
        # Where several pods are at one address, the newest has it; which one that is the fresh world has not seen.
        contended = fresh.contended()
        assert world.contended() == contended
        for address, identities in contended.items():
            assert len([pod for pod in world.live() if pod[1] == address and pod[0] in identities]) == 1
        left, expected = ({pod for pod in one.live() if pod[1] not in contended} for one in (world, fresh))
        assert left == expected, (left, expected, contended)
        assert not world.throttler().is_stalled()
        asked = {order.identity for order in world.probes if isinstance(order, StartProbe)}
        assert {pod.identity for pod in fresh.worker.model.revisions[KEY].pods.values() if pod.wants_probe()} <= asked

    def teardown(self) -> None:
        self.converges()
        self.adds_up()

    @invariant()
    def adds_up(self) -> None:
        world = self.world
        throttler = world.throttler()
        assert world.worker.illegal_totals == {}, "what is late is recognised before: this is a defect"
        if KEY in world.tables.distrusted:
            return
        throttler.table.check_invariants()
        for tracker in throttler.table.slots[: throttler.table.length]:
            assert 0 <= tracker.in_flight <= SPEC.container_concurrency
        in_flight: dict[str, int] = {}
        for tracker in throttler.table.slots[: throttler.table.length]:
            in_flight[tracker.address] = in_flight.get(tracker.address, 0) + int(tracker.in_flight)
        assert max(in_flight.values(), default=0) <= SPEC.container_concurrency, "of all names of one address"
        for request in self.requests:
            assert len([end for end in request.ends if end not in {"granted", "revoked"}]) <= 1
            if request.lease is not None:
                assert request.lease.tracker.generation == request.lease.generation, "a live lease was lost"
        assert throttler.table.in_flight == sum(request.lease is not None for request in self.requests)
        if KEY not in world.worker.parked and not len(world.worker.queue):
            world.tables._restructured.add(KEY)
            world.auditor.check(throttler)
            found = dict(world.worker.mismatch_totals)
            world.settle()
            assert world.worker.mismatch_totals == found, "the table is not what the model says"


TestDisagreement = Disagreement.TestCase
