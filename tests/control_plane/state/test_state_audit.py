"""The auditor: each kind of mismatch is found, repaired by a change, and counted; what is quiet is not looked at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.config.specs import RevisionSpec
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import PANIC_BACKOFF_MAX_S
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.audit import AUDIT_INTERVAL_S
from activator.data_plane.throttle.lease import Lease
from activator.messages import Change, Effect, PodRefused, RevisionBroken, RevisionSet, SetPod
from activator.runtime.errors import Reason
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
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
    assert joined.auditor.looked_total == 101
    for request in requests:
        request.release()
    joined.tables.loads()
    assert audited(joined) == {}
    looked = joined.auditor.looked_total
    assert looked <= 102
    assert audited(joined) == {}
    assert joined.auditor.looked_total == looked, "nothing has happened: nothing is looked at"


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
    joined, requests = with_requests(5)
    others = [f"ns/other{number}" for number in range(3)]
    joined.do(*(RevisionSet(RevisionSpec(key=key)) for key in others))
    assert audited(joined) == {}
    leases = joined.throttler().leases
    leases[None] = requests[0]  # type: ignore[index]
    for key in (KEY, *others):
        joined.tables.activated(key)
    joined.auditor.expired(joined.clock.now())
    assert KEY in joined.tables.distrusted
    assert requests[4].ends == ["revision_failed"]
    assert joined.auditor.looked_total == 8, "one that raised has not ended the looking"
    del leases[None]  # type: ignore[arg-type]
    joined.do()
    assert (KEY in joined.tables.distrusted, joined.throttler().failure) == (False, None)
    assert audited(joined) == {"invariant": 1}
    assert joined.auditor.looked_total == 12


def test_a_rebuild_that_was_lost_is_asked_for_again() -> None:
    joined, _ = with_requests(1)
    joined.tables.distrust(KEY, "broke")
    joined.hooks.told.clear()
    joined.do()
    assert joined.throttler().failure is not None
    audited(joined)
    assert joined.throttler().failure is None


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
    assert audited(joined) == {"line": 1}
    assert requests[4].ends == ["granted"]


class Losing(Joined):
    """Some effects never arrive, though they are counted as if they had."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = False
        self.worker = StateWorker(self.clock.now, self._lossy, self.probes.extend, self.source_dirty)

    def _lossy(self, effects: list[Effect]) -> None:
        if self.losing:
            for effect in effects:
                self.tables._count(effect)
        else:
            self._send(effects)


def test_a_table_that_is_not_what_the_model_says_is_repaired() -> None:
    joined = Losing()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.losing = True
    joined.do(seen("p3"), PodRefused(KEY, "p1", 1, True))
    del joined.worker.model.revisions[KEY].pods["p2"]
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    joined.losing = False
    assert audited(joined) == {"missing": 1, "state": 1, "surplus": 1}
    assert joined.slots() == {"p1": "quarantined", "p3": "ready"}
    assert audited(joined) == {"missing": 1, "state": 1, "surplus": 1}


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


def test_a_look_at_many_is_cut_into_turns() -> None:
    joined = Joined()
    joined.do(*(RevisionSet(replace(SPEC, key=f"ns/r{number}", max_scale=3000)) for number in range(3)))
    joined.do(*(seen(f"p{pod}", key=f"ns/r{number}") for number in range(3) for pod in range(2500)))
    joined.auditor.expired(joined.clock.now())
    assert joined.auditor.looked_total == 2
    assert joined.clock.turn() == 1
    assert joined.auditor.looked_total == 3


def test_what_is_repaired_is_what_the_model_says() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.tables.apply([SetPod(KEY, "p1", 3, 1, 9)])
    joined.tables.applied[KEY] -= 1
    assert audited(joined) == {"state": 1}
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert (int(tracker.state), int(tracker.limit), int(tracker.weight)) == (2, 2, 1)
