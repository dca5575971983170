"""The table of transitions: what `reduce` keeps to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.control_plane.state.difference import put
from activator.control_plane.state.lifecycle import (
    EVENTS,
    SEEN,
    TRANSITIONS,
    TRIAL_PASSED,
    is_legal,
)
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import Change, PodGone, PodStatus, Probed, RevisionSet
from activator.runtime.reasons import Reason
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen

STATES = (EMPTY, PENDING, READY, NOT_READY, RECOVERING, QUARANTINED, DRAINING)


def test_the_table_says_each_thing_once_and_knows_every_event() -> None:
    pairs = [(one.state, one.event) for one in TRANSITIONS]
    assert len(set(pairs)) == len(pairs)
    assert {one.event for one in TRANSITIONS} == set(EVENTS)
    assert not any(to == EMPTY for one in TRANSITIONS if one.event == SEEN for to in one.to)


RECORD = PodRecord("p1", "10.0.0.1:80", {"list": PodStatus.READY}, False)
RECORDS: dict[int, PodRecord | None] = {
    EMPTY: None,
    PENDING: replace(RECORD, claims={"list": PodStatus.PENDING}),
    READY: RECORD,
    NOT_READY: replace(RECORD, claims={"list": PodStatus.NOT_READY}),
    RECOVERING: replace(RECORD, recovering=True),
    QUARANTINED: replace(RECORD, quarantined=True),
    DRAINING: replace(RECORD, claims={"list": PodStatus.DRAINING}),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("before", STATES)
def test_what_is_not_in_the_table_is_refused_and_writes_nothing(before: int, event: str) -> None:
    for after in STATES:
        old, new = RECORDS[before], RECORDS[after]
        pods = {} if old is None else {"p1": old}
        reduction = Reduction()
        put(RevisionRecord(SPEC, pods), old, new, event, 5.0, reduction)
        if is_legal(before, event, after):
            assert (reduction.illegal, reduction.refused, len(reduction.pods)) == ([], False, 1)
        else:
            assert (reduction.illegal, reduction.refused) == ([(before, event, after)], True)
            assert (reduction.pods, reduction.effects, reduction.probes) == ({}, [], [])


MEANWHILE: dict[str, list[Change]] = {
    "gone": [PodGone(KEY, "list", "p1")],
    "back": [PodGone(KEY, "list", "p1"), seen("p1")],
    "moved": [seen("p1", address="10.0.9.1:80")],
    "moved and back": [seen("p1", address="10.0.9.1:80"), seen("p1")],
    "not ready": [seen("p1", PodStatus.NOT_READY)],
    "ready again": [seen("p1", PodStatus.NOT_READY), seen("p1")],
    "draining": [seen("p1", PodStatus.DRAINING)],
}


@pytest.mark.parametrize("recovering", [False, True], ids=["of a ready pod", "of one on trial"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_comes_late_is_stale_and_no_transition(meanwhile: str, recovering: bool) -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    if recovering:
        joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    late: list[Change] = [joined.refused("p1", True), joined.refused("p1", False), joined.served("p1")]
    late.extend([joined.trial("p1", passed) for passed in (True, False)])
    for change in MEANWHILE[meanwhile]:
        joined.do(change)
    slots = joined.slots()
    for report in late:
        joined.do(report)
    assert joined.slots() == slots
    worker = joined.worker
    assert (worker.stale_total, worker.refused_total, worker.illegal_totals) == (len(late), 0, {})


def test_of_several_reports_of_one_state_the_first_counts_and_the_others_are_stale() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    dead = joined.refused("p1", True)
    for _ in range(3):
        joined.do(dead)
    assert (joined.slots(), joined.worker.stale_total) == ({"p1": "quarantined", "p2": "ready"}, 2)
    answer = Probed(KEY, "p1", "10.0.0.1:80")
    joined.do(answer)
    joined.do(answer, dead)
    assert (joined.slots(), joined.worker.stale_total) == ({"p1": "recovering", "p2": "ready"}, 4)
    passed, failed = joined.trial("p1", True), joined.trial("p1", False)
    for report in (passed, failed, passed):
        joined.do(report)
    assert (joined.slots(), joined.worker.stale_total) == ({"p1": "ready", "p2": "ready"}, 6)
    joined.do(answer)
    assert (joined.worker.stale_total, joined.worker.illegal_totals) == (7, {})


def test_a_refusal_that_comes_late_says_nothing_of_the_pod_where_it_is_now() -> None:
    """A dial to its former address is refused, the pod moves, and then the report is read."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    request = joined.ask()
    assert request.lease is not None and request.lease.identity == "p1"
    joined.throttler().pod_failed(request.lease, Reason.CONNECT_FAILED)
    (report,) = joined.heard.reports
    joined.do(seen("p1", address="10.0.9.1:80"), report)
    assert joined.worker.model.revisions[KEY].pods["p1"].state() == READY
    assert joined.worker.stale_total == 1
    table = joined.throttler().table
    assert all(tracker.suspect_until_s == 0.0 for tracker in table.slots[: table.length] if tracker.is_routable())


def test_a_report_that_is_not_late_and_makes_no_sense_is_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(joined.trial("p1", True))
    assert joined.worker.illegal_totals == {(READY, TRIAL_PASSED, READY): 1}
    assert (joined.worker.refused_total, joined.worker.stale_total) == (1, 0)
    assert "led to an illegal transition, which was rejected: (2, 'trial passed', 2)" in caplog.text
    assert joined.slots() == {"p1": "ready"}
