"""The table of transitions: it is what the documentation shows, and what `reduce` keeps to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.control_plane.state.difference import put
from activator.control_plane.state.lifecycle import (
    ANSWERED,
    DEAD,
    EVENTS,
    SEEN,
    STRUCK,
    TRANSITIONS,
    TRIAL_PASSED,
    is_legal,
    with_table,
)
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import PodRefused, PodStatus, Probed, RevisionSet, TrialEnded
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.sources import ROOT

STATES = (EMPTY, PENDING, READY, NOT_READY, RECOVERING, QUARANTINED, DRAINING)
PAGE = ROOT / "docs" / "state-worker.md"


def test_the_documentation_shows_the_table() -> None:
    page = PAGE.read_text("utf-8")
    assert with_table(page) == page, "run `make docs`"
    with pytest.raises(ValueError, match="the page has no"):
        with_table("nothing")


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


def test_what_comes_too_late_is_refused_and_counted_as_illegal() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(Probed(KEY, "p1"), TrialEnded(KEY, "p1", 1, True), PodRefused(KEY, "p2", 1, True))
    assert joined.worker.refused_total == 3
    assert joined.worker.illegal_totals == {(READY, ANSWERED, READY): 1, (READY, TRIAL_PASSED, READY): 1}
    joined.do(seen("p1", PodStatus.NOT_READY), PodRefused(KEY, "p1", 1, True), PodRefused(KEY, "p1", 1, False))
    assert joined.worker.illegal_totals[NOT_READY, DEAD, NOT_READY] == 1
    assert joined.worker.illegal_totals[NOT_READY, STRUCK, NOT_READY] == 1
    assert joined.slots() == {"p1": "not_ready"}
    joined.do(seen("p1"))
    assert joined.slots() == {"p1": "ready"}, "nothing of it was kept"
