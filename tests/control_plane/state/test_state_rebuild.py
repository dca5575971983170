"""The table of a revision with many pods is made anew in many turns, while requests come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from activator.config.specs import RevisionSpec
from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.model import Model
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.repair import LOST
from activator.control_plane.state.tally import Tally
from activator.control_plane.state.worker import CONFIRM_WITHIN_S
from activator.data_plane.tables.audit import AUDIT_INTERVAL_S
from activator.data_plane.tables.empty_tables import GIVE_BACK_AFTER_S
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.messages import (
    Effect,
    ObservedPod,
    PlacePod,
    PodGone,
    PodsListed,
    PodStatus,
    RebuildPods,
    RebuildRevision,
    RevisionBroken,
    RevisionGone,
    RevisionSet,
    SetProbes,
    SetRevision,
    StartProbe,
    WithdrawPod,
)
from lb.tracker import DRAINING, EMPTY, PENDING, READY, RECOVERING, PodTracker
from tests.control_plane.state.fault_harness import Program
from tests.control_plane.state.state_fakes import KEY, Hooks, Pool, balanced, seen
from tests.data_plane.throttle.throttle_fakes import Request

AT_ONCE = 3
PODS = 10
TURNS = 8  # four in which the pods are counted, and four in which they are sent
LARGE = balanced(max_scale=PODS)


class Counted(Request):
    """Looks at each grant whether the pod may have it; knows its own leases, whatever any table says."""

    def __init__(self, joined: Large) -> None:
        super().__init__(joined.throttler())
        self._joined = joined

    def granted(self, lease: Lease) -> None:
        super().granted(lease)
        pod, wrong = lease.tracker, self._joined.wrong  # what this raised would count as an error of the request's
        here = [one.lease for one in self._joined.requests if one.lease is not None]
        here = [one for one in here if one.address == lease.address]
        if len(here) > pod.own_limit:
            wrong.append(f"{len(here)} requests are at {pod!r}")
        if pod.state not in {READY, RECOVERING}:
            wrong.append(f"a request was given to {pod!r}")
        if sum(one.bars_trials for one in here) > 1:
            wrong.append(f"two trials at once at {pod!r}")


class Large(Program):
    """Has more pods than one turn takes; the worker has one turn in each turn of the loop."""

    def __init__(self, spec: RevisionSpec = LARGE, pods: int = PODS) -> None:
        super().__init__()
        self.worker.model.renewed_at_once = AT_ONCE
        self.requests: list[Counted] = []
        self.wrong: list[str] = []  # with grants
        self.effects: list[Effect] = []
        self.lost: Callable[[Effect], bool] = lambda effect: False
        self.specs[KEY] = spec
        self.pods: dict[str, ObservedPod] = {}
        self.source_dirty("", KEY)
        self.lists_pods(*(pod(number) for number in range(pods)))
        self.finish()

    def _send(self, effects: list[Effect]) -> None:
        self.effects += effects
        super()._send([effect for effect in effects if not self.lost(effect)])

    def lists_pods(self, *pods: ObservedPod) -> None:
        """The list as it was, with these."""
        self.pods.update({one.identity: one for one in pods})
        self.lists[KEY] = PodsListed(KEY, "list", tuple(self.pods.values()))
        self.say(self.lists[KEY])

    def unlists(self, identity: str) -> None:
        self.pods.pop(identity, None)
        self.lists_pods()

    def wants(self, spec: RevisionSpec) -> None:
        self.specs[KEY] = spec
        self.say(RevisionSet(spec))

    def finds(self, kind: str, identity: str) -> None:
        self.say(*self.found(kind, identity))

    def asks(self, count: int = 1) -> list[Counted]:
        asked = [Counted(self) for _ in range(count)]
        for request in asked:
            self.requests.append(request)
            request.ask(self.clock.now())
        return asked

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def turn(self, worker_turns: int = 1) -> None:
        super().turn(worker_turns)
        assert self.aftermath == [], self.aftermath

    def turns_with_all(self, count: int) -> None:
        """In each of them the table that is in use has all pods."""
        for _ in range(count):
            self.turn()
            assert len(self.view()) == len(self.pods)

    def is_calm(self) -> bool:
        worker, tables = self.worker, self.tables
        if tables.distrusted or tables._rebuilds or tables._abandoned or worker.parked or len(worker.queue):
            return False
        return not worker.model.unconfirmed and not worker._resync and self.heard.reports == []

    def finish(self, within_s: float = 120.0) -> None:
        """Until nothing is left to do."""
        until_s = self.clock.now() + within_s
        self.turns(2 * TURNS)
        while not self.is_calm():
            assert self.clock.now() < until_s, "it does not come to rest"
            self.turns(2 * TURNS)
            self.pass_time(0.5)

    def view(self) -> set[tuple[object, ...]]:
        """What the table says of pods that do not drain."""
        return seen_of([one for one in self.slots_held() if one.state != DRAINING])

    def slots_held(self) -> list[PodTracker]:
        table = self.throttler().table
        return [one for one in table.slots[: table.length] if one.state != EMPTY]

    def pools(self) -> dict[str, object]:
        return {one.identity: one.attachment for one in self.slots_held()}

    def check(self) -> None:
        """All is as in a table that was made whole from the model, and every request is where its lease says."""
        throttler = self.throttler()
        throttler.table.check_invariants()
        assert self.wrong == []
        assert throttler.counters.errors_total == 0
        assert self.view() == made_whole(self.worker.model)
        held = [request.lease for request in self.requests if request.lease is not None]
        assert throttler.table.in_flight == len(throttler.leases) == len(held)
        for lease in held:
            assert lease.generation == lease.tracker.generation, "its slot was taken from it"
            assert (lease.tracker.identity, lease.tracker.address) == (lease.identity, lease.address)
        assert throttler.table.late_releases == 0
        for one in self.slots_held():
            if one.state != DRAINING:
                assert isinstance(one.attachment, Pool) and not one.attachment.closed
        assert not throttler.is_stalled()

    def end(self) -> None:
        """Every request ends, once."""
        for request in self.requests:
            if request.lease is not None:
                request.release()
        self.finish()
        for request in self.requests:  # whoever waited has been granted a slot since then, or waits for a pod
            if request.lease is not None:
                request.release()
        self.finish()
        self.check()
        assert self.throttler().table.in_flight == 0
        assert all(one.state != DRAINING for one in self.slots_held()), "a slot was never freed"
        waiting = self.throttler().queue.waiters.length
        assert sum(not request.ends for request in self.requests) == waiting
        assert all(len(request.ends) <= 1 for request in self.requests)


def pod(number: int, status: PodStatus = PodStatus.READY, **more: object) -> ObservedPod:
    return seen(f"p{number}", status, **more)


def seen_of(slots: list[PodTracker]) -> set[tuple[object, ...]]:
    return {
        (one.identity, one.address, int(one.state), int(one.own_limit), int(one.weight), int(one.epoch))
        for one in slots
    }


def made_whole(model: Model) -> set[tuple[object, ...]]:
    """The pods of a table that is made at once, as `view` has them."""
    whole = Model()
    whole.revisions, whole.epoch = model.revisions, model.epoch
    (effect,) = reduce(whole, RevisionBroken(KEY, "compared"), 0.0).effects
    assert isinstance(effect, RebuildRevision) and effect.complete
    return {(one.identity, one.address, one.state, one.limit, one.weight, one.epoch) for one in effect.pods}


def begin(joined: Large, distrusted: bool = False) -> None:
    if distrusted:
        joined.tables.distrust(KEY, "told so")
    else:
        joined.say(RevisionBroken(KEY, "told so"))


either = pytest.mark.parametrize("distrusted", [False, True])


@either
def test_requests_and_connections_go_on_in_the_new_table(distrusted: bool) -> None:
    joined = Large()
    requests = joined.asks(PODS + 5)
    before, pools = joined.throttler().table, joined.pools()
    begin(joined, distrusted)
    joined.turn()
    for turn in range(TURNS):
        assert joined.throttler().table is before and joined.tables.is_rebuilding(KEY)
        assert joined.tables._rebuilds[KEY].table.capacity_slots == 2 * AT_ONCE * max(turn - 4, 0), "some in each turn"
        assert joined.asks()[0].ends == (["revision_failed"] if distrusted else ["granted"] if turn < 5 else [])
        joined.turn()
    table = joined.throttler().table
    assert table is not before and joined.throttler().queue.failure is None
    assert joined.pools() == pools, "the same pools, and none was closed"
    assert [request.ends for request in requests] == [["granted"]] * len(requests)
    assert table.capacity_slots == 2 * PODS
    assert (before.capacity_slots, before.abandoned) == (0, True)
    sent = [len(effect.pods) for effect in joined.effects if isinstance(effect, RebuildPods)]
    assert sent == [3, 3, 3, 1]
    joined.finish()
    joined.check()
    joined.end()


@either
def test_what_is_said_meanwhile_comes_after(distrusted: bool) -> None:
    joined = Large()
    joined.asks(PODS)
    begin(joined, distrusted)
    joined.turns(6)  # some pods are sent, and some are not
    for number in (1, 9):
        joined.unlists(f"p{number}")
        joined.lists_pods(pod(number - 1, PodStatus.NOT_READY), pod(number + 20), pod(number + 1, weight=7))
        joined.finds("dead", f"p{number - 2}") if number > 1 else None
    joined.wants(replace(balanced(policy="least-connections", max_scale=PODS), container_concurrency=5))
    joined.finish()
    assert joined.throttler().table.policy.name == "least-connections"
    states = joined.slots()
    assert [states[name] for name in ("p1", "p9", "p0", "p8")] == ["draining", "draining", "not_ready", "not_ready"]
    assert (states["p21"], states["p29"], states["p7"]) == ("ready", "ready", "recovering")
    joined.check()
    joined.end()


def test_a_revision_that_is_removed_meanwhile_is_gone() -> None:
    joined = Large()
    requests = joined.asks(4)
    throttler = joined.throttler()
    begin(joined)
    joined.turns(6)
    del joined.specs[KEY]
    joined.say(RevisionGone(KEY))
    joined.turns(TURNS)
    assert joined.tables.throttlers == {} and joined.worker.parked == {} and not joined.tables.is_rebuilding(KEY)
    for request in requests:
        request.release()
    assert (throttler.table.in_flight, throttler.table.late_releases) == (0, 0)


def test_slots_that_share_an_address_share_the_limit_in_the_new_table() -> None:
    joined = Large()
    joined.asks(2 * PODS)
    joined.lists_pods(pod(40, address=pod(4).address), pod(5, address=pod(50).address))
    joined.unlists("p6")
    joined.lists_pods(pod(60, address=pod(6).address))
    joined.finish()
    begin(joined)
    joined.turns(4)
    joined.requests[4].release()
    joined.finish()
    for one in joined.slots_held():
        here = [other for other in joined.slots_held() if other.address == one.address and other is not one]
        if one.state != DRAINING:
            assert one.limit == one.own_limit - sum(other.in_flight for other in here)
    assert {one.identity for one in joined.slots_held() if one.state == DRAINING} == {"p4", "p5", "p6"}
    table = joined.throttler().table
    newest = table.find_identity("p5")
    assert newest is not None and newest.address == pod(50).address, "the pod is found where it is now"
    joined.check()
    joined.end()


def test_trials_strikes_and_suspicions_go_on_in_the_new_table() -> None:
    joined = Large(replace(LARGE, container_concurrency=3))
    joined.finds("dead", "p1")
    joined.finish()
    joined.pass_time(0.5)  # it answers, and is on trial
    joined.finish()
    assert joined.slots()["p1"] == "recovering"
    while not any(request.lease is not None and request.lease.identity == "p1" for request in joined.requests):
        joined.asks()
    (trial,) = [one for one in joined.requests if one.lease is not None and one.lease.identity == "p1"]
    begin(joined)
    joined.turns(5)
    throttler = joined.throttler()
    suspect = throttler.table.find_identity("p2")
    assert suspect is not None
    throttler.table.suspect(suspect, joined.clock.now() + SUSPECT_S)
    joined.turns(TURNS)
    table = throttler.table
    assert trial.lease is not None and trial.lease.tracker.trials == 1 and not trial.lease.tracker.has_room
    again = table.find_identity("p2")
    assert again is not None and again is not suspect
    can_be_picked = [again.has_room]
    joined.pass_time(SUSPECT_S + 0.5)
    can_be_picked.append(again.has_room)
    assert can_be_picked == [False, True], "nobody has decided about it"
    throttler.trial_answered(trial.lease)
    joined.finish()
    assert joined.slots()["p1"] == "ready"
    joined.check()
    joined.end()


def test_a_suspicion_whose_time_has_passed_does_not_go_on_in_the_new_table() -> None:
    joined = Large()
    begin(joined, True)
    joined.turns(5)
    throttler = joined.throttler()
    suspect = throttler.table.find_identity("p2")
    assert suspect is not None
    throttler.table.suspect(suspect, joined.clock.now() - 2 * SUSPECT_S)  # it ended while the revision was distrusted
    joined.turns(TURNS)
    again = throttler.table.find_identity("p2")
    assert again is not None and again is not suspect
    assert again.suspect_until_s == 0.0 and again.has_room
    found = dict(joined.worker.mismatch_totals)
    joined.auditor.check(throttler)
    joined.finish()
    assert joined.worker.mismatch_totals == found
    joined.check()
    joined.end()


@either
def test_a_second_one_comes_after_the_first_and_a_backoff(distrusted: bool) -> None:
    joined = Large()
    joined.asks(PODS)
    begin(joined, distrusted)
    joined.turns(6)
    joined.say(RevisionBroken(KEY, "told again"), RevisionBroken(KEY, "told again"))
    joined.turns(2 * TURNS)
    assert joined.tables.distrusted == {} and KEY in joined.worker.parked
    assert joined.worker.rebuilds_total == 2
    joined.finish()
    assert [type(effect) for effect in joined.effects].count(RebuildRevision) == 2
    joined.check()
    joined.end()


class Losing:
    """Loses the effect of this number among those that it is asked about, as if it never arrived."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, effect: Effect) -> bool:
        if not isinstance(effect, RebuildRevision | RebuildPods):
            return False
        self.left -= 1
        return self.left == -1


@either
@pytest.mark.parametrize("number", range(5))
def test_a_part_that_is_lost_costs_another_table(number: int, distrusted: bool) -> None:
    joined = Large()
    requests = joined.asks(PODS + 2)
    begin(joined, distrusted)
    joined.lost = Losing(number)
    joined.turns_with_all(2 * TURNS)
    joined.finish(2.0 * CONFIRM_WITHIN_S)
    assert joined.worker.mismatch_totals in ({}, {LOST: 1})
    joined.check()
    assert [request.ends for request in requests] == [["granted"]] * len(requests)
    joined.end()


class Unwilling(Hooks):
    """Raises so many times when a pod is placed."""

    times = 0

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        if self.times:
            self.times -= 1
            raise RuntimeError("injected")
        super().pod_placed(tracker, spec)


@either
def test_a_part_that_cannot_be_applied_costs_another_table(distrusted: bool) -> None:
    joined = Large()
    requests = joined.asks(PODS + 2)
    joined.tables._hooks = hooks = Unwilling()
    hooks.told = joined.hooks.told
    begin(joined, distrusted)
    joined.turns(7)
    for tracker in joined.throttler().table.slots:
        tracker.attachment = None  # so each has to be placed
    hooks.times = 2
    joined.turn()
    assert not joined.tables.is_rebuilding(KEY)
    joined.turns_with_all(2 * TURNS)
    joined.finish()
    assert len(hooks.failures) == 2
    joined.check()
    assert [request.ends for request in requests] == [["granted"]] * len(requests)
    joined.end()


@either
def test_a_part_that_cannot_be_made_is_made_later_and_what_waits_is_kept(distrusted: bool) -> None:
    joined = Large()
    requests = joined.asks(PODS + 2)
    begin(joined, distrusted)
    joined.turns(6)
    renewal = joined.worker.parked[KEY].renewal
    assert renewal is not None
    renewal.identities = (*renewal.identities[: renewal.sent], "nobody")
    joined.unlists("p3")
    joined.turn()
    assert joined.worker.parked[KEY].renewal is None and joined.worker.panics_total == 2
    joined.finish(10.0)
    assert joined.slots()["p3"] == "draining"
    joined.check()
    assert [request.ends for request in requests] == [["granted"]] * len(requests)
    joined.end()


@either
def test_the_auditor_asks_again_only_where_nothing_comes_any_more(distrusted: bool) -> None:
    joined = Large()
    begin(joined, distrusted)
    joined.turns(6)
    checked = joined.auditor.checked_total
    joined.tables._changed.add(KEY)
    joined.auditor.expired(joined.clock.now())
    joined.clock.turn()
    assert joined.hooks.told == [] and joined.auditor.checked_total == checked, "it is under way"
    joined.turn()
    joined.auditor.expired(joined.clock.now())
    assert joined.hooks.told == [], "another part has come"
    joined.auditor.expired(joined.clock.now())
    assert len(joined.hooks.told) == (1 if distrusted else 0)
    joined.turns(TURNS)
    joined.finish()
    joined.check()


def test_a_look_that_is_under_way_ends_when_the_table_is_about_to_be_replaced() -> None:
    joined = Large()
    joined.tables.pop_restructured(KEY)
    joined.tables._restructured.add(KEY)
    look = joined.auditor._begin(joined.throttler())
    assert look is not None
    begin(joined)
    joined.turns(2)
    assert joined.auditor._continue_check(look) is None and look.slot == 0
    assert joined.hooks.told == []


def test_any_other_effect_gives_the_new_table_up() -> None:
    """The worker has given it up: it sends nothing else in between."""
    joined = Large()
    tables = joined.tables
    before = joined.throttler().table
    tables.apply([RebuildRevision(LARGE, (), "", complete=False), SetRevision(LARGE), RebuildPods(KEY, (), 0, True)])
    assert joined.throttler().table is before and joined.view() != set()
    tables.apply([RebuildRevision(LARGE, (), "", complete=False), RebuildPods(KEY, (), 0, True)])
    assert joined.throttler().table is not before and joined.view() == set()


def test_no_slot_of_the_new_table_has_a_generation_of_the_old_one_or_of_one_that_was_given_up() -> None:
    joined = Large()
    highest = max(one.generation for one in joined.throttler().table.slots)
    begin(joined)
    joined.turns(7)
    given_up = joined.tables._rebuilds[KEY].table
    joined.say(RevisionBroken(KEY, "again"))
    joined.tables._abandon_rebuild(KEY)
    joined.finish()
    lowest = min(one.generation for one in joined.slots_held())
    assert lowest > given_up.generation > highest


def test_the_pools_of_a_table_that_is_given_up_are_closed() -> None:
    """Those made for it; a pod that the old table has keeps its pool."""
    joined = Large()
    kept = joined.pools()
    tables = joined.tables
    added = PlacePod(KEY, "new", "10.9.9.9:80", READY, 1, 1, 1)
    tables.apply([RebuildRevision(LARGE, (added,), "", complete=False)])
    (tracker,) = tables._rebuilds[KEY].placed
    assert isinstance(tracker.attachment, Pool) and not tracker.attachment.closed
    pool = tracker.attachment
    tables.apply([SetRevision(LARGE)])
    assert pool.closed and joined.pools() == kept


def test_what_is_counted_is_counted_anew() -> None:
    joined = Large()
    joined.lists_pods(pod(40, address=pod(4).address))
    joined.finish()
    (revision,) = joined.worker.model.revisions.values()
    broken = replace(revision, tally=Tally(), addresses=AddressIndex())
    joined.worker.model.revisions[KEY] = broken
    begin(joined)
    joined.finish()
    healed = joined.worker.model.revisions[KEY]
    assert vars_of(healed.tally) == vars_of(Tally.of(healed.pods.values()))
    assert vars_of(healed.tally) == vars_of(revision.tally)
    for one in healed.pods.values():
        assert one.identity in healed.addresses.at(one.address)
    assert healed.addresses.at(pod(4).address) == ("p4", "p40")
    joined.check()


def test_addresses_that_nobody_has_settled_are_settled() -> None:
    joined = Large()
    (revision,) = joined.worker.model.revisions.values()
    shared = {f"p{number}": f"10.9.0.{number // 2}:80" for number in range(PODS)}
    for identity, address in shared.items():  # written without anybody looking who is there
        revision.pods[identity] = replace(revision.pods[identity], address=address)
    for identity, address in shared.items():
        joined.pods[identity] = replace(joined.pods[identity], address=address)
    joined.lists_pods()
    begin(joined)
    joined.finish()
    states = {identity: record.ousted_by for identity, record in joined.worker.model.revisions[KEY].pods.items()}
    assert states == {f"p{number}": f"p{number + 1}" if number % 2 == 0 else "" for number in range(PODS)}
    joined.check()


def vars_of(tally: Tally) -> tuple[object, ...]:
    return (tally.known, tally.ready, tally.out, tally.unplaced)


def test_all_probes_are_ordered_anew() -> None:
    joined = Large()
    joined.silent = {f"p{number}" for number in range(20)}
    joined.lists_pods(*(pod(number, PodStatus.PENDING, probe=True) for number in range(10, 15)))
    joined.turns(2)
    wanted = dict(joined.asked)
    assert len(wanted) == 5
    joined.asked.clear()
    joined.asked[KEY, "stranger"] = StartProbe(KEY, "stranger", "10.0.9.9:80")
    begin(joined)
    orders: list[object] = []
    order = joined.worker._probe
    joined.worker._probe = lambda some: (orders.extend(some), order(some))[1]  # type: ignore[func-returns-value]
    joined.finish()
    assert joined.asked == wanted
    assert [type(one) for one in orders] == [StartProbe] * 5 + [SetProbes]


def test_a_table_that_is_made_anew_without_pods_has_no_slots_and_gives_them_back_as_any_other() -> None:
    joined = Large()
    for number in range(PODS):
        joined.lists_pods(pod(number, PodStatus.DRAINING))
    joined.finish()
    begin(joined)
    joined.finish()
    assert joined.throttler().table.capacity_slots == 0
    for number in range(PODS):
        joined.lists_pods(pod(number + 20))
    joined.finish()
    request = joined.asks()[0]
    for number in range(PODS):
        joined.unlists(f"p{number + 20}")
    joined.turns(3)
    begin(joined)
    joined.finish()
    request.release()
    joined.finish()
    assert joined.throttler().table.capacity_slots == 2 * PODS
    joined.clock.pass_time(GIVE_BACK_AFTER_S + 1.0)
    assert joined.throttler().table.capacity_slots == 0


def test_old_tables_are_disposed_of_in_turns_and_one_that_raises_holds_none_up() -> None:
    joined = Large(balanced(max_scale=2_000))
    tables = joined.tables
    joined.say(RevisionBroken(KEY, "told so"))
    while not tables._abandoned:
        joined.turn()
    assert tables._abandoned[0].capacity_slots == 2_000
    tables._abandoned[0].abandoned = False  # so it raises
    with pytest.raises(AssertionError, match="in use"):
        joined.clock.turn()
    assert not tables._abandoned
    joined.clock.pass_time(1000.0)
    joined.say(RevisionBroken(KEY, "told so"))
    joined.finish()
    assert not tables._abandoned and not tables._disposing


numbers = st.integers(0, PODS + 4)
happenings: st.SearchStrategy[Any] = st.one_of(
    st.builds(pod, numbers, st.sampled_from(list(PodStatus)), probe=st.booleans()),
    st.builds(pod, numbers, address=st.sampled_from(["10.0.9.1:80", "10.0.9.2:80", pod(1).address]), limit=numbers),
    st.tuples(st.just("unlists"), numbers.map(lambda number: f"p{number}")),
    st.tuples(st.sampled_from(["dead", "struck", "served", "passed"]), numbers.map(lambda number: f"p{number}")),
    st.tuples(st.sampled_from(["ask", "ask", "end", "turn", "turn", "turn", "turn"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["break", "distrust", "lose", "audit", "pass", "resync"]), numbers),
    st.sampled_from(
        [
            balanced(policy="least-connections", max_scale=PODS),
            replace(LARGE, container_concurrency=1),
            LARGE,
        ]
    ),
)


@given(st.booleans(), st.lists(happenings, min_size=5, max_size=40))
def test_whatever_happens_meanwhile_the_table_becomes_what_the_model_says(distrusted: bool, told: list[Any]) -> None:
    joined = Large()
    joined.asks(12)
    begin(joined, distrusted)
    joined.turns(2)
    for one in told:
        happen(joined, one)
        if KEY not in joined.tables.distrusted:
            joined.throttler().table.check_invariants()
    joined.lost = lambda effect: False
    joined.finish(200.0)
    joined.check()
    joined.end()


def happen(joined: Large, one: Any) -> None:
    if isinstance(one, ObservedPod):
        joined.lists_pods(one)
    elif isinstance(one, RevisionSpec):
        joined.wants(one)
    else:
        what, value = one
        _DOES[what](joined, value) if what in _DOES else joined.finds(what, value)


def end_some(joined: Large, step: int) -> None:
    held = [request for request in joined.requests if request.lease is not None]
    for request in held[:: step + 1]:
        request.release()


_DOES: dict[str, Callable[[Large, Any], object]] = {
    "unlists": Large.unlists,
    "ask": Large.asks,
    "end": end_some,
    "turn": Large.turns,
    "break": lambda joined, _: joined.say(RevisionBroken(KEY, "told so")),
    "distrust": lambda joined, _: joined.tables.distrust(KEY, "told so"),
    "lose": lambda joined, number: setattr(joined, "lost", Losing(number)),
    "audit": lambda joined, _: joined.auditor.expired(joined.clock.now()),
    "pass": lambda joined, _: joined.pass_time(0.5),
    "resync": lambda joined, _: joined.worker._schedule_resync(KEY, RuntimeError("told so")),
}


def test_a_pod_that_left_the_model_while_it_was_counted_is_not_missed() -> None:
    """As after an exception that hit a commit: the records are what counts."""
    joined = Large()
    begin(joined)
    joined.turns(2)
    joined.say(PodGone(KEY, "list", "p9"))
    del joined.pods["p9"]
    joined.lists[KEY] = PodsListed(KEY, "list", tuple(joined.pods.values()))
    assert "p9" in joined.worker.model.revisions[KEY].pods, "its changes wait"
    joined.finish()
    assert "p9" not in joined.slots()
    joined.pass_time(AUDIT_INTERVAL_S)
    joined.check()
    assert PENDING not in {one.state for one in joined.slots_held()}


@either
def test_a_change_that_is_set_aside_meanwhile_takes_nothing_along(distrusted: bool) -> None:
    """It could not even be put with those that wait."""
    joined = Large()
    before = joined.throttler().table
    begin(joined, distrusted)
    joined.turns(6)
    joined.unlists("p3")
    joined.worker._set_aside(pod(4), RuntimeError("injected"), joined.clock.now())
    joined.finish(10.0)
    assert "p3" not in joined.slots() and joined.throttler().table is not before
    joined.check()


def test_who_was_first_at_an_address_stays_first() -> None:
    joined = Large()
    joined.lists_pods(pod(40, address=pod(4).address))
    joined.lists_pods(pod(4, address=pod(50).address))
    joined.turns(2)
    joined.lists_pods(pod(4))
    joined.finish()
    for _ in range(2):
        assert joined.worker.model.revisions[KEY].addresses.at(pod(4).address) == ("p40", "p4")
        begin(joined)
        joined.finish()
    joined.check()


def test_a_pod_that_is_no_more_is_gone_with_the_old_table() -> None:
    joined = Large()
    joined.asks(PODS)
    pools = joined.pools()
    joined.lost = lambda effect: isinstance(effect, WithdrawPod)
    for name in ("p3", "p5"):
        joined.unlists(name)
    joined.turns(2)
    (request,) = [one for one in joined.requests if one.lease is not None and one.lease.identity == "p3"]
    request.release()
    begin(joined)
    joined.finish()
    assert joined.hooks.drained == ["p3"], "nothing is in flight there"
    for name in ("p3", "p5"):
        pool = pools[name]
        assert isinstance(pool, Pool) and pool.closed
    assert {one.identity for one in joined.slots_held() if one.state == DRAINING} == {"p5"}
    joined.check()
    joined.end()
    assert joined.hooks.drained == ["p3", "p5"]


def test_a_pod_whose_old_slot_drains_has_a_new_pool_and_its_drain_is_over() -> None:
    joined = Large()
    requests = joined.asks(PODS)
    throttler = joined.throttler()
    before = throttler.table.find_identity("p3")
    assert before is not None
    joined.tables._drain(throttler, before, 60.0)
    begin(joined)
    joined.turns(2 * TURNS)
    assert list(joined.tables._drains._armed) == []
    joined.check()
    assert [request.ends for request in requests] == [["granted"]] * PODS
    joined.end()
