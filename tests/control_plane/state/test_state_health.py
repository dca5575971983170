"""What requests find out of pods, and how pods come back: strikes, the share, trials, restarts, limits, old age."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.control_plane.state.health import POD_STALE_AFTER_S, PUSH_PROVISIONAL_S
from activator.messages import (
    PUSH,
    Change,
    Listed,
    PodRefused,
    PodServed,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionSet,
    StartProbe,
    StopProbe,
    Sweep,
    TrialEnded,
)
from activator.runtime.errors import Reason
from lb.tracker import UNLIMITED
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen


def strike(joined: Joined, identity: str, times: int) -> None:
    for _ in range(times):
        joined.do(PodRefused(KEY, identity, 1, False))


def test_a_request_that_is_answered_resets_the_strikes() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    strike(joined, "p1", 2)
    joined.do(PodServed(KEY, "p1", 1))
    strike(joined, "p1", 2)
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    strike(joined, "p1", 1)
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_the_throttler_tells_of_the_first_answer_after_a_strike_and_of_no_other() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    requests = [joined.ask() for _ in range(2)]
    lease = requests[0].lease
    assert lease is not None
    joined.throttler().pod_failed(lease, Reason.POD_CLOSED)
    requests[0].release(succeeded=False)
    requests[1].release()
    third = joined.ask()
    third.release()
    told = [event[:2] for event in joined.heard.events if event[0] in {"refused", "served"}]
    assert told == [("refused", "p1"), ("served", "p1")]


def test_only_a_share_of_the_pods_is_ejected_for_strikes() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, max_scale=10, ejection_share=0.3)), *(seen(f"p{n}") for n in range(10)))
    for number in range(10):
        strike(joined, f"p{number}", 5)
    assert sorted(joined.slots().values()).count("quarantined") == 3
    assert joined.throttler().table.room == 7, "whoever is not ejected is given back to the picks"
    joined.do(PodRefused(KEY, "p9", 1, True))
    assert joined.slots()["p9"] == "quarantined", "what is known dead is out whatever the share"


def test_the_number_of_strikes_is_the_revisions() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, strikes=5)), seen("p1"), seen("p2"))
    strike(joined, "p1", 4)
    assert joined.slots()["p1"] == "ready"
    strike(joined, "p1", 1)
    assert joined.slots()["p1"] == "quarantined"


def test_a_share_of_nothing_still_ejects_one_and_never_the_last() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, ejection_share=0.0)), seen("p1"), seen("p2"))
    strike(joined, "p1", 3)
    strike(joined, "p2", 9)
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_knowledge_and_inference_in_one_batch_are_not_folded_into_one() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.do(PodRefused(KEY, "p1", 1, True), PodRefused(KEY, "p1", 1, False))
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_a_pod_in_quarantine_keeps_its_ledger_and_comes_back_by_a_single_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    held = joined.ask()
    joined.do(PodRefused(KEY, "p1", 1, True))
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert (int(tracker.in_flight), joined.throttler().table.capacity) == (1, 0)
    joined.do(Probed(KEY, "p1"))
    waiting = [joined.ask() for _ in range(2)]
    assert [request.ends for request in waiting] == [["granted"], []], "one trial, beside what is in flight"
    held.release()
    assert [request.ends for request in waiting] == [["granted"], []]
    joined.do(TrialEnded(KEY, "p1", 1, True))
    assert waiting[1].ends == ["granted"]


@pytest.mark.parametrize("status", [PodStatus.NOT_READY, PodStatus.PENDING, PodStatus.DRAINING])
def test_a_pod_that_nobody_lists_is_removed_however_often_it_repeats_itself(status: PodStatus) -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", status, source=PUSH))
    for _ in range(int(PUSH_PROVISIONAL_S)):
        assert "p1" in joined.worker.model.revisions[KEY].pods
        joined.clock.pass_time(1.0)
        joined.do(seen("p1", status, source=PUSH), Sweep(KEY))
    assert joined.worker.model.revisions[KEY].pods == {} and joined.slots() == {}
    assert joined.worker.model.aging == {KEY}
    joined.do(Sweep(KEY))
    assert joined.worker.model.aging == set(), "a revision in which nothing grows old is not looked at again"


def test_a_listed_pod_that_is_not_ready_for_long_is_asked_again_and_never_dropped_for_its_age() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", probe=True))
    joined.clock.pass_time(POD_STALE_AFTER_S)
    joined.do(seen("p1", PodStatus.NOT_READY, probe=True))  # its age starts here
    joined.clock.pass_time(POD_STALE_AFTER_S - 1.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "not_ready"}
    joined.clock.pass_time(2.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "pending"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(seen("p1", PodStatus.NOT_READY, probe=True))
    assert joined.probes[1:] == [StopProbe(KEY, "p1")], "its source confirms what it said: that counts again"


def test_a_program_started_anew_under_the_same_name_is_asked_again_and_keeps_its_ledger() -> None:
    """As when the events in between were lost: the list that the source makes anew says it."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), Listed(KEY, "list", (seen("p1", restarts=1), seen("p2", restarts=0))))
    held = joined.ask()
    assert held.lease is not None and held.lease.identity == "p1"
    strike(joined, "p1", 2)
    joined.do(Listed(KEY, "list", (seen("p1", restarts=2), seen("p2", restarts=0))))
    assert joined.slots() == {"p1": "pending", "p2": "ready"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None and tracker.in_flight == 1
    joined.do(Listed(KEY, "list", (seen("p1", restarts=2), seen("p2", restarts=0))))
    assert joined.slots()["p1"] == "pending", "said again, it is no news"
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    assert joined.probes[1:] == [StopProbe(KEY, "p1")]
    assert joined.worker.model.revisions[KEY].pods["p1"].strikes == 0, "those were the former program's"
    held.release()
    assert (joined.throttler().table.in_flight, joined.throttler().table.late_releases) == (0, 0)


def test_a_restart_ends_no_quarantine_and_what_a_source_does_not_know_doubts_nobody() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", restarts=1), seen("p2", source="watch"), seen("p2", restarts=7))
    assert joined.slots() == {"p1": "ready", "p2": "ready"}, "the first number is where counting begins"
    joined.do(PodRefused(KEY, "p1", 1, True), seen("p1", restarts=2))
    assert joined.slots()["p1"] == "quarantined"
    joined.do(Probed(KEY, "p1"), seen("p1", restarts=3))
    assert joined.slots()["p1"] == "recovering"
    joined.do(TrialEnded(KEY, "p1", 1, True), seen("p1", restarts=2), seen("p1"))
    assert joined.slots()["p1"] == "ready", "a number that is lower comes late"


def test_a_pod_carries_what_its_source_says_and_else_what_its_revision_does() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2", limit=7), seen("p3", limit=0))
    table = joined.throttler().table
    assert table.capacity == 2 + 7 + 0
    requests = [joined.ask() for _ in range(10)]
    assert [request.ends for request in requests] == [["granted"]] * 9 + [[]], "p3 is not ours"
    joined.do(seen("p3", limit=1))
    assert (requests[9].ends, table.capacity) == (["granted"], 10)
    joined.do(seen("p2", limit=0), seen("p3", limit=0), RevisionSet(replace(SPEC, container_concurrency=5)))
    assert table.capacity == 5, "the revision's limit is that of those who have none of their own"
    joined.do(RevisionBroken(KEY, "as if"))
    table = joined.throttler().table
    limits = {tracker.identity: int(tracker.limit) for tracker in table.slots[:3]}
    assert (limits, table.in_flight) == ({"p1": 5, "p2": 0, "p3": 0}, 10), "a table made anew has them too"
    joined.auditor.look_at(joined.throttler())
    joined.do()
    assert joined.worker.mismatch_totals == {}
    for request in requests:
        request.release()


def test_a_limit_without_bound_is_bounded_and_a_trial_is_one_request() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, container_concurrency=0)), seen("p1", limit=UNLIMITED * 9))
    table = joined.throttler().table
    assert table.capacity == UNLIMITED
    joined.do(PodRefused(KEY, "p1", 1, True), Probed(KEY, "p1"))
    assert (joined.slots(), table.capacity) == ({"p1": "recovering"}, 1)
    joined.do(seen("p1", limit=0))
    assert table.capacity == 0


def test_a_pod_that_is_not_ours_starts_nothing_and_is_nobodys_company() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", limit=0))
    assert not joined.throttler().was_ready, "who waits still waits for a start"
    joined.do(seen("p2"))
    assert joined.throttler().was_ready
    strike(joined, "p2", 9)
    assert joined.slots()["p2"] == "ready", "the last that may be picked is not ejected"


def test_the_model_keeps_why_a_pod_is_in_quarantine_until_it_has_passed_its_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))

    def cause(*changes: Change) -> str:
        joined.do(*changes)
        return joined.worker.model.revisions[KEY].pods["p1"].cause

    def struck(reason: str) -> PodRefused:
        return PodRefused(KEY, "p1", 1, False, reason)

    for _ in range(2):
        assert cause(struck("pod_closed")) == "", "only suspected"
    assert cause(struck("first_byte_timeout")) == "3 strikes in a row, the last: first_byte_timeout"
    assert cause(struck("connect_timeout")).startswith("3 strikes"), "it is out already"
    assert cause(Probed(KEY, "p1")).startswith("3 strikes"), "it is tried"
    assert cause(struck("connect_timeout")) == "failed its trial: connect_timeout"
    assert cause(TrialEnded(KEY, "p1", 1, False)) == "failed its trial: connect_timeout", (
        "what was told first says more"
    )
    assert cause(Probed(KEY, "p1"), TrialEnded(KEY, "p1", 1, False)) == "failed its trial"
    assert cause(Probed(KEY, "p1"), TrialEnded(KEY, "p1", 1, True)) == ""
    assert cause(PodRefused(KEY, "p1", 1, True, "connect_failed")) == "refused a connection: connect_failed"
    assert cause(seen("p1", address="10.0.0.9:80")) == "", "it is somewhere else, and new there"
    assert cause(PodRefused(KEY, "p1", 2, True)) == "refused a connection"
