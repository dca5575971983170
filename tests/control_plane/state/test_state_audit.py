"""The auditor: each kind of mismatch is found, repaired by a change, and counted; what is quiet is not looked at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from activator.config.specs import RevisionSpec
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.repair import COMPARED_AT_ONCE, LOST
from activator.control_plane.state.supervision import PANIC_BACKOFF_MAX_S
from activator.control_plane.state.worker import CONFIRM_WITHIN_S, StateWorker
from activator.data_plane.plane import LOAD_REPORT_INTERVAL_S, _LoadReport
from activator.data_plane.tables.audit import AUDIT_INTERVAL_S, AUDIT_STEPS_PER_TURN, CHECK_STEPS
from activator.data_plane.throttle.leases import Lease
from activator.messages import (
    Change,
    Effect,
    ObservedTable,
    PodGone,
    PodStatus,
    RevisionBroken,
    RevisionGone,
    RevisionSet,
    SetPod,
    SlotView,
)
from activator.runtime.reasons import Reason
from lb.policy import Policy
from lb.tracker import READY
from tests.control_plane.state.state_fakes import KEY, SPEC, Hooks, Joined, balanced, seen
from tests.data_plane.throttle.throttle_fakes import Request


def audited(joined: Joined) -> dict[str, int]:
    """After a look of the auditor and what follows from it: how many mismatches there were so far, by kind."""
    joined.auditor.expired(joined.clock.now())
    while joined.clock.turn():
        pass
    joined.do()
    return joined.worker.mismatch_totals


def with_requests(count: int) -> tuple[Joined, list[Request]]:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    requests = [Request(joined.throttler()) for _ in range(count)]
    for request in requests:
        request.ask(joined.clock.now())
        joined.tables.activated(KEY)
    return joined, requests


def test_where_all_is_well_nothing_is_found_and_the_quiet_are_not_looked_at() -> None:
    joined, requests = with_requests(5)
    for number in range(100):
        joined.do(RevisionSet(RevisionSpec(key=f"ns/quiet{number}")))
    assert audited(joined) == {}
    assert joined.auditor.checked_total == 101
    for request in requests:
        request.release()
    joined.tables.loads()
    assert audited(joined) == {}
    checked = joined.auditor.checked_total
    assert checked <= 102
    assert audited(joined) == {}
    assert joined.auditor.checked_total == checked, "nothing has happened: nothing is checked"


def test_a_slot_that_counts_other_than_its_leases_is_counted_anew() -> None:
    joined, requests = with_requests(3)
    tracker = joined.throttler().table.slots[0]
    joined.throttler().table.release(tracker, tracker.generation, 0.0)
    joined.throttler().table.check_invariants()  # the table is at one with itself: only the leases know better
    waiting = [joined.ask() for _ in range(3)]
    assert audited(joined) == {"ledger": 1}
    table = joined.throttler().table
    assert table.in_flight == len(joined.throttler().leases)
    assert not any("revision_failed" in request.ends for request in waiting), "the line stays"
    for request in requests + waiting:
        if request.lease is not None:
            request.release()
    for request in waiting:
        if request.lease is not None:
            request.release()
    assert (table.in_flight, table.late_releases) == (0, 0)


class Forgetful(Request):
    """Has nothing at its pod any more, and has not given its slot back; `hears`: it does when it is told to."""

    forgets = False
    hears = False

    def is_served(self, lease: Lease) -> bool:
        return not self.forgets

    def revoked(self, reason: Reason, detail: str) -> None:
        if self.hears:
            super().revoked(reason, detail)


class Unreadable(Request):
    """Cannot say whether it is served."""

    def is_served(self, lease: Lease) -> bool:
        raise RuntimeError("injected")


@pytest.mark.parametrize("hears", [False, True])
def test_a_slot_held_for_a_request_that_is_at_no_pod_is_taken_back(hears: bool) -> None:
    joined, requests = with_requests(3)
    forgetful = Forgetful(joined.throttler())
    forgetful.hears = hears
    forgetful.ask(joined.clock.now())
    waiting = Request(joined.throttler())
    waiting.ask(joined.clock.now())
    assert (audited(joined), waiting.ends) == ({}, [])
    forgetful.forgets = True
    assert audited(joined) == {"upstream": 1}
    assert waiting.ends == ["granted"]
    assert forgetful.ends == (["granted", "revoked"] if hears else ["granted"])
    assert joined.throttler().table.in_flight == len(joined.throttler().leases) == 4
    assert audited(joined) == {"upstream": 1}
    for request in (*requests, waiting):
        request.release()
    assert (joined.throttler().table.in_flight, joined.throttler().table.late_releases) == (0, 0)


def test_a_broken_invariant_condemns_the_revision() -> None:
    joined, requests = with_requests(5)
    joined.throttler().table.capacity = 99
    assert audited(joined) == {"invariant": 1}
    assert requests[4].ends == ["revision_failed"]
    assert audited(joined) == {"invariant": 1}
    joined.throttler().table.check_invariants()


def test_a_revision_that_cannot_be_looked_at_is_condemned_and_the_others_go_on_being_looked_at() -> None:
    joined, requests = with_requests(4)
    unreadable = Unreadable(joined.throttler())
    requests.append(Request(joined.throttler()))
    others = [f"ns/other{number}" for number in range(3)]
    joined.do(*(RevisionSet(RevisionSpec(key=key)) for key in others))
    assert audited(joined) == {}
    requests.pop(0).release()
    unreadable.ask(joined.clock.now())
    requests[-1].ask(joined.clock.now())
    assert (unreadable.ends, requests[-1].ends) == (["granted"], [])
    for key in (KEY, *others):
        joined.tables.activated(key)
    joined.auditor.expired(joined.clock.now())
    assert KEY in joined.tables.distrusted
    assert requests[-1].ends == ["revision_failed"]
    assert joined.auditor.checked_total == 8, "one that raised has not ended the checks"
    unreadable.release()
    joined.do()
    assert (KEY in joined.tables.distrusted, joined.throttler().queue.failure) == (False, None)
    assert audited(joined) == {"invariant": 1}
    assert joined.auditor.checked_total == 12


def test_a_rebuild_that_was_lost_is_asked_for_again() -> None:
    joined, _ = with_requests(1)
    joined.tables.distrust(KEY, "broke")
    joined.hooks.told.clear()
    joined.do()
    assert joined.throttler().queue.failure is not None
    audited(joined)
    assert joined.throttler().queue.failure is None


@pytest.mark.parametrize("raises", [False, True], ids=("told again", "set aside, and told again"))
def test_what_the_auditor_found_is_counted_though_the_rebuild_is_asked_for_again_without_saying_why(
    raises: bool,
) -> None:
    joined, _ = with_requests(1)
    failing = [RevisionBroken] if raises else []

    def reduce_or_raise(model: Model, change: Change, now_s: float) -> Reduction:
        if failing and type(change) is failing.pop():
            raise RuntimeError("injected")
        return reduce(model, change, now_s)

    joined.worker._reduce = reduce_or_raise
    joined.worker.submit(RevisionBroken(KEY, "1 leases and 2 in flight", "ledger"))
    if raises:
        assert joined.worker.turn()
    joined.worker.submit(RevisionBroken(KEY, "told again"))
    joined.clock.pass_time(2.0 * PANIC_BACKOFF_MAX_S)
    joined.do()
    assert (joined.worker.parked, joined.worker.mismatch_totals) == ({}, {"ledger": 1})


def test_a_suspect_that_nobody_decides_about_is_given_back() -> None:
    joined, requests = with_requests(1)
    lease = requests[0].lease
    assert lease is not None
    joined.throttler().pod_failed(lease, Reason.CONNECT_TIMEOUT)  # and the message is lost
    assert audited(joined) == {}, "not yet"
    joined.clock.pass_time(2.0 * AUDIT_INTERVAL_S)
    assert lease.tracker.suspect_until_s > 0.0
    assert audited(joined) == {"suspect": 1}
    assert lease.tracker.suspect_until_s == 0.0
    requests[0].release()


def test_a_line_that_nobody_looks_after_is_pumped() -> None:
    joined, requests = with_requests(5)
    assert requests[4].ends == []
    joined.throttler()._pumping = True  # a release that wakes nobody
    requests[0].release()
    joined.throttler()._pumping = False
    assert requests[4].ends == []
    assert audited(joined) == {"queue": 1}
    assert requests[4].ends == ["granted"]


class Losing(Joined):
    """Some effects never arrive, though they are counted as if they had."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False
        self.uncounted = False  # not even that
        self.worker = StateWorker(self.clock.now, self._lossy, self.probes.extend, self.source_dirty)

    def _lossy(self, effects: list[Effect]) -> None:
        if self.losing:
            for effect in effects:
                if not self.uncounted:
                    self.tables._record_for_audit(effect)
        else:
            self._send(effects)


def test_a_table_that_is_not_what_the_model_says_is_repaired() -> None:
    joined = Losing()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.losing = True
    joined.do(seen("p3"), joined.refused("p1", True))
    del joined.worker.model.revisions[KEY].pods["p2"]
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    joined.losing = False
    assert audited(joined) == {"missing": 1, "state": 1, "surplus": 1}
    assert joined.slots() == {"p1": "quarantined", "p3": "ready"}
    assert audited(joined) == {"missing": 1, "state": 1, "surplus": 1}


def test_a_large_table_is_compared_with_the_model_in_parts() -> None:
    """What one part repairs ends the comparison: the next look goes on."""
    joined = large()
    pods = joined.worker.model.revisions[KEY].pods
    pods["p5"] = replace(pods["p5"], weight=7)
    pods["p250"] = replace(pods["p250"], weight=7)
    record = joined.worker.model.revisions[KEY]
    record.tally.remove(pods.pop("p300"))
    for number in (0, COMPARED_AT_ONCE + 1, PODS - 1):
        tracker = joined.throttler().table.find_identity(f"p{number}")
        assert tracker is not None
        joined.throttler().table.free(tracker)
    found: dict[str, int] = {}
    for _ in range(5):
        joined.tables._changed.add(KEY)
        joined.tables._restructured.add(KEY)
        found = audited(joined)
    assert found == {"state": 2, "surplus": 1, "missing": 3}
    table = joined.throttler().table
    assert (table.placed, table.find_identity("p300")) == (PODS - 1, None)
    table.check_invariants()


def test_a_newer_view_takes_the_place_of_what_is_left_of_an_older_one() -> None:
    joined = large()
    model = joined.worker.model
    pods = model.revisions[KEY].pods
    slots = tuple(
        SlotView(f"p{number}", f"10.0.{number // 250}.{number % 250}:80", READY, 2, 1, pods[f"p{number}"].epoch)
        for number in range(PODS)
    )
    view = ObservedTable(KEY, model.sent[KEY], slots)
    first = reduce(model, view, 0.0).again
    assert isinstance(first, ObservedTable) and (first.compared, first.matched) == (COMPARED_AT_ONCE, COMPARED_AT_ONCE)
    joined.worker.queue.put(view)
    joined.worker.queue.put_rest(first)
    assert joined.worker.queue.take(5) == [view]
    joined.worker.queue.put_rest(first)
    assert joined.worker.queue.take(5) == [first]
    joined.do(seen("p0", PodStatus.NOT_READY, address="10.0.0.0:80"))
    late = reduce(model, first, 0.0)
    assert (late.again, late.mismatches, late.effects) == (None, [], []), "it is not what the model speaks of"


def test_a_view_from_before_effects_that_are_under_way_says_nothing() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.auditor.expired(joined.clock.now())  # the view waits in the queue …
    joined.worker.submit(seen("p2"))
    joined.hooks.told.reverse()
    messages, joined.hooks.told = joined.hooks.told, []
    joined.do(seen("p3"))
    for message in messages:
        joined.worker.submit(message)  # type: ignore[arg-type]
    joined.do()
    assert joined.worker.mismatch_totals == {}
    assert joined.slots() == {"p1": "ready", "p2": "ready", "p3": "ready"}


def test_effects_that_cannot_be_sent_cost_a_rebuild_and_nothing_else() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    send, failures = joined._send, [RuntimeError("a full pipe")]

    def broken(effects: list[Effect]) -> None:
        if failures:
            raise failures.pop()
        send(effects)

    joined.worker._send = broken
    joined.worker.submit(seen("p2"))
    with pytest.raises(RuntimeError, match="a full pipe"):
        joined.worker.turn()
    joined.do()
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    assert audited(joined) == {}


PODS = 3 * AUDIT_STEPS_PER_TURN


def large() -> Joined:
    """One revision that takes several turns to look at, with a request at every third pod."""
    joined = Joined()
    joined.do(RevisionSet(balanced(max_scale=PODS)))
    joined.do(*(seen(f"p{pod}", address=f"10.0.{pod // 250}.{pod % 250}:80") for pod in range(PODS)))
    assert audited(joined) == {}
    return joined


def turns(joined: Joined) -> int:
    """How many a look takes; each message is delivered in the turn after it was sent."""
    joined.tables.activated(KEY)
    joined.auditor.expired(joined.clock.now())
    count = 1
    while joined.clock.turn():
        count += 1
    joined.do()
    return count


def test_a_check_of_a_large_revision_is_cut_into_turns() -> None:
    joined = large()
    assert turns(joined) == 4
    joined.do(seen("p0", PodStatus.NOT_READY, address="10.0.0.0:80"))
    assert turns(joined) == 4
    assert joined.worker.mismatch_totals == {}


def test_a_check_of_many_revisions_is_cut_into_turns() -> None:
    joined = Joined()
    count = AUDIT_STEPS_PER_TURN
    joined.do(*(RevisionSet(replace(SPEC, key=f"ns/r{number}")) for number in range(count)))
    joined.auditor.expired(joined.clock.now())
    per_turn = AUDIT_STEPS_PER_TURN // CHECK_STEPS
    assert joined.auditor.checked_total == per_turn
    assert joined.clock.turn() == 1
    assert joined.auditor.checked_total == 2 * per_turn
    while joined.clock.turn():
        pass
    assert joined.auditor.checked_total == count


@pytest.mark.parametrize("slot", [0, 2 * AUDIT_STEPS_PER_TURN, PODS - 1])
@pytest.mark.parametrize("kind", ["invariant", "ledger", "upstream"])
def test_what_is_wrong_is_found_in_whichever_turn_it_is_met(kind: str, slot: int) -> None:
    joined = large()
    table = joined.throttler().table
    tracker = table.slots[slot]
    other = table.slots[slot - 1 if slot else 1]
    if kind == "invariant":
        table.structure.remove(tracker)
        table.structure.insert(tracker)
        tracker.trials = 1
    elif kind == "ledger":  # in sum it is right
        table.reserve(tracker)
        lease = Lease(other, 0.0)
        joined.throttler().leases.open(lease, Request(joined.throttler()))
    else:
        forgetful = Forgetful(joined.throttler())
        forgetful.forgets = True
        table.reserve(tracker)
        forgetful.granted(Lease(tracker, 0.0))
        assert forgetful.lease is not None
        joined.throttler().leases.open(forgetful.lease, forgetful)
    turns(joined)
    assert joined.worker.mismatch_totals == {kind: 1}
    assert turns(joined) == 4
    assert joined.worker.mismatch_totals == {kind: 1}, "it is repaired"


def test_what_happens_between_two_turns_of_a_look_is_no_mismatch() -> None:
    """Requests come and go, pods come and go, and their slots are other pods', in all turns of the look."""
    joined = large()
    held: list[Request] = []
    joined.tables.activated(KEY)
    joined.auditor.expired(joined.clock.now())
    step = 0
    while True:
        for number in range(40):
            pod = (step * 37 + number * 11) % PODS
            address = f"10.0.{pod // 250}.{pod % 250}:80"
            joined.do(PodGone(KEY, "list", f"p{pod}") if number % 3 == 0 else seen(f"p{pod}", address=address))
            held.append(joined.ask())
            if number % 2:
                held.pop((step + number) % len(held)).release()
        step += 1
        if not joined.clock.turn():
            break
    assert step > 3
    joined.do()
    assert joined.worker.mismatch_totals == {} and not joined.tables.distrusted
    assert audited(joined) == {}


def test_a_wrong_sum_is_found_by_the_first_look_that_no_effect_interrupts() -> None:
    joined = large()
    joined.throttler().table.capacity += 1
    joined.tables.activated(KEY)
    joined.auditor.expired(joined.clock.now())
    joined.do(seen("p0", PodStatus.NOT_READY, address="10.0.0.0:80"))
    while joined.clock.turn():
        pass
    joined.do()
    assert joined.worker.mismatch_totals == {}
    turns(joined)
    assert joined.worker.mismatch_totals == {"invariant": 1}
    assert joined.throttler().table.capacity == 2 * (PODS - 1)


def test_a_look_ends_with_the_table_that_it_looked_at() -> None:
    joined = large()
    joined.tables.activated(KEY)
    joined.auditor.expired(joined.clock.now())
    joined.do(RevisionBroken(KEY, "told so"))
    joined.clock.turn()
    joined.do(RevisionSet(replace(SPEC, key="ns/other")))
    assert audited(joined) == {}
    joined.auditor.expired(joined.clock.now())
    joined.do(RevisionGone(KEY))
    while joined.clock.turn():
        pass
    assert joined.worker.mismatch_totals == {}


def test_a_request_that_kept_its_slot_after_its_pod_was_freed_is_no_mismatch() -> None:
    joined, requests = with_requests(3)
    lease = requests[0].lease
    assert lease is not None
    joined.throttler().table.drain(lease.tracker)
    joined.throttler().table.free(lease.tracker)
    joined.do(PodGone(KEY, "list", lease.identity))
    assert audited(joined) == {}
    for request in requests:
        request.release()


def test_what_is_repaired_is_what_the_model_says() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.tables.apply([SetPod(KEY, "p1", 3, 1, 9, joined.epoch("p1"))])
    joined.tables.applied[KEY] -= 1
    assert audited(joined) == {"state": 1}
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert (int(tracker.state), int(tracker.limit), int(tracker.weight)) == (2, 2, 1)


class Deaf(Hooks):
    """Cannot be told that a revision is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = [RuntimeError("nor that it cannot")]

    def broken(self, key: str, cause: str, kind: str) -> None:
        raise self.failures.pop()


def test_an_auditor_that_raises_in_the_middle_of_a_round_goes_on_with_the_next() -> None:
    joined = Joined()
    keys = [f"ns/r{number}" for number in range(3)]
    joined.do(*(RevisionSet(replace(SPEC, key=key)) for key in keys))
    told, failures = joined.auditor._send, [RuntimeError("what it found cannot be sent")]

    def send(change: Change) -> None:
        if failures:
            raise failures.pop()
        told(change)

    joined.auditor._send = send
    joined.tables._hooks = deaf = Deaf()
    with pytest.raises(RuntimeError, match="nor that it cannot"):
        joined.auditor.expired(joined.clock.now())
    assert (joined.auditor.checked_total, failures) == (1, [])
    deaf.failures.clear()
    joined.tables.distrusted.clear()
    joined.auditor.expired(joined.clock.now())
    assert joined.auditor.checked_total == 3


def test_loads_that_cannot_be_sent_are_sent_the_next_time() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.tables.activated(KEY)
    sent: list[object] = []
    failures = [RuntimeError("injected")]

    def send(message: object) -> None:
        if failures:
            raise failures.pop()
        sent.append(message)

    data = SimpleNamespace(wheel=joined.wheel, tables=joined.tables)
    _LoadReport(data, joined.clock.now, send).arm()  # type: ignore[arg-type]
    request = joined.ask()
    joined.clock.pass_time(LOAD_REPORT_INTERVAL_S + 0.05)
    assert len(joined.errors) == 1 and sent == []
    joined.clock.pass_time(LOAD_REPORT_INTERVAL_S)
    assert len(sent) == 1
    request.release()


@pytest.mark.parametrize("reason", [Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT])
@pytest.mark.parametrize("apart", [False, True], ids=("in one batch", "the second after the decision"))
def test_two_dials_that_fail_at_one_pod_are_no_mismatch(reason: Reason, apart: bool) -> None:
    joined, requests = with_requests(4)
    joined.heard.on_refused = joined.tables.suspected
    failed = [one for one in requests if one.lease is not None and one.lease.identity == "p1"]
    assert len(failed) == 2
    for request in failed:
        assert request.lease is not None
        joined.throttler().pod_failed(request.lease, reason)
        if apart:
            joined.do(*joined.heard.reports)
            joined.heard.reports.clear()
    joined.do(*joined.heard.reports)
    for request in requests:
        request.release(succeeded=False)
    for _ in range(4):
        joined.clock.pass_time(AUDIT_INTERVAL_S)
        joined.tables.activated(KEY)
        assert audited(joined) == {}
    assert joined.slots() == {"p1": "quarantined" if reason is Reason.CONNECT_FAILED else "ready", "p2": "ready"}
    assert joined.worker.illegal_totals == {}


# Effects that were sent and never confirmed.


def with_lost_effects() -> Losing:
    """A pod was placed for the model, and not in the table; nothing else happens."""
    joined = Losing()
    joined.do(RevisionSet(SPEC), seen("p1"))
    assert audited(joined) == {} and joined.worker.model.unconfirmed == {}
    joined.losing = joined.uncounted = True
    joined.do(seen("p2"))
    joined.losing = False
    return joined


def pass_audits(joined: Joined, seconds: float) -> None:
    for _ in range(round(seconds / AUDIT_INTERVAL_S)):
        joined.clock.pass_time(AUDIT_INTERVAL_S)
        audited(joined)
        joined.worker.rebuild_unconfirmed()
        joined.do()


def test_effects_that_were_never_confirmed_cost_a_new_table() -> None:
    joined = with_lost_effects()
    pass_audits(joined, CONFIRM_WITHIN_S - AUDIT_INTERVAL_S)
    assert (joined.slots(), joined.worker.mismatch_totals) == ({"p1": "ready"}, {}), "not yet"
    pass_audits(joined, 2 * AUDIT_INTERVAL_S)
    assert (joined.slots(), joined.worker.mismatch_totals) == ({"p1": "ready", "p2": "ready"}, {LOST: 1})
    pass_audits(joined, 10 * CONFIRM_WITHIN_S)
    assert (joined.worker.mismatch_totals, joined.worker.rebuilds_total) == ({LOST: 1}, 1), "once"


def test_a_table_that_is_changed_all_the_time_is_confirmed_all_the_same() -> None:
    """Each view is older than the effects that are committed before it is read."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    for number in range(60):
        joined.clock.pass_time(AUDIT_INTERVAL_S)
        joined.auditor.expired(joined.clock.now())
        views = [message for message in joined.hooks.told if isinstance(message, ObservedTable)]
        joined.hooks.told.clear()
        joined.do(seen("p1", PodStatus.NOT_READY if number % 2 else PodStatus.READY))
        joined.do(*views)
        joined.worker.rebuild_unconfirmed()
        joined.do()
    assert (joined.worker.rebuilds_total, joined.worker.mismatch_totals) == (0, {})
    assert len(joined.worker.model.unconfirmed) == 1


def test_a_table_that_is_changed_in_each_turn_of_each_look_is_confirmed_all_the_same() -> None:
    joined = large()
    number = 0
    for _ in range(20):
        more = True
        while more:
            number += 1
            status = PodStatus.NOT_READY if number % 2 else PodStatus.READY
            joined.do(seen("p0", status, address="10.0.0.0:80"))
            more = bool(joined.clock.turn())
        joined.clock.pass_time(AUDIT_INTERVAL_S)
        joined.auditor.expired(joined.clock.now())
        joined.worker.rebuild_unconfirmed()
        joined.do()
    assert number > 60
    assert (joined.worker.rebuilds_total, joined.worker.mismatch_totals) == (0, {})


def test_effects_that_are_lost_while_others_arrive_are_noticed_when_it_is_quiet() -> None:
    joined = with_lost_effects()
    for number in range(20):
        joined.do(seen("p1", PodStatus.NOT_READY if number % 2 else PodStatus.READY))
        pass_audits(joined, AUDIT_INTERVAL_S)
    pass_audits(joined, 2 * CONFIRM_WITHIN_S)
    assert (joined.slots(), joined.worker.mismatch_totals) == ({"p1": "not_ready", "p2": "ready"}, {LOST: 1})


def test_a_parked_revision_is_given_time_to_confirm() -> None:
    joined = with_lost_effects()
    failing = [True]

    def reduce_or_raise(model: Model, change: Change, now_s: float) -> Reduction:
        if failing:
            failing.pop()
            raise RuntimeError("injected")
        return reduce(model, change, now_s)

    joined.worker._reduce = reduce_or_raise
    joined.do(seen("p1", PodStatus.NOT_READY))
    joined.worker.parked[KEY].until_s = joined.clock.now() + 2.0 * CONFIRM_WITHIN_S
    pass_audits(joined, 1.5 * CONFIRM_WITHIN_S)
    assert joined.worker.rebuilds_total == 0, "nothing could be done"
    pass_audits(joined, 2.5 * CONFIRM_WITHIN_S)
    assert joined.slots() == {"p1": "ready", "p2": "ready"} and joined.worker.mismatch_totals == {LOST: 1}


def test_a_revision_that_comes_back_is_counted_from_the_beginning_by_both() -> None:
    """Also where it could not be made at all the first time: counts that differ would blind the auditor for good."""
    joined = Joined()
    refusing = [True, True, True]

    class Refusing(Hooks):
        def make_policy(self, name: str) -> Policy:
            if refusing:
                refusing.pop()
                raise ValueError("no such policy")
            return super().make_policy(name)

    joined.tables._hooks = hooks = Refusing()
    joined.do(RevisionSet(SPEC), seen("p1"))
    assert joined.tables.throttlers == {} and hooks.failures
    joined.do(RevisionGone(KEY))
    assert (joined.tables.applied, joined.worker.model.sent, joined.worker.model.unconfirmed) == ({}, {}, {})
    refusing.clear()
    joined.do(RevisionSet(SPEC), seen("p1"))
    assert joined.tables.applied == joined.worker.model.sent
    audited(joined)
    assert joined.worker.model.unconfirmed == {}


def test_a_revision_whose_end_was_lost_is_dropped_when_it_is_seen() -> None:
    joined = Losing()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.losing = joined.uncounted = True
    joined.do(RevisionGone(KEY))
    joined.losing = False
    assert joined.slots() == {"p1": "ready"} and joined.hooks.routed == [KEY]
    joined.tables.activated(KEY)
    joined.tables._restructured.add(KEY)
    audited(joined)
    assert (joined.tables.throttlers, joined.hooks.routed, joined.worker.model.sent) == ({}, [], {})


def test_the_end_of_a_drain_that_nobody_heard_of_is_reported_again() -> None:
    joined, requests = with_requests(1)
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(60.0)
    audited(joined)
    requests[0].release()
    joined.tables.loads()  # its last load: from now on it is quiet
    assert joined.slots() == {"p1": "draining", "p2": "ready"}
    audited(joined)
    assert joined.slots() == {"p2": "ready"}
    assert joined.worker.mismatch_totals == {}
