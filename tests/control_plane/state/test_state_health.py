"""What requests find out of pods, and how pods come back: strikes, the share, trials, restarts, limits, old age."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from activator.config.specs import HealthSpec
from activator.control_plane.state.health import PUSH_PROVISIONAL_S
from activator.messages import (
    PUSH,
    Change,
    PodGone,
    PodRefused,
    PodsListed,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionGone,
    RevisionSet,
    SlotDrained,
    StartProbe,
    StopProbe,
    Sweep,
)
from activator.runtime.reasons import Reason
from lb.tracker import UNLIMITED
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen
from tests.data_plane.throttle.throttle_fakes import Request


def strike(joined: Joined, identity: str, times: int) -> None:
    for _ in range(times):
        joined.do(joined.refused(identity, False))


def test_a_request_that_is_answered_resets_the_strikes() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    strike(joined, "p1", 2)
    joined.do(joined.served("p1"))
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
    joined.do(
        RevisionSet(replace(balanced(max_scale=10), health=HealthSpec(ejection_share=0.3))),
        *(seen(f"p{n}") for n in range(10)),
    )
    for number in range(10):
        strike(joined, f"p{number}", 3)
    assert sorted(joined.slots().values()).count("quarantined") == 3
    assert joined.throttler().table.room == 7, "whoever is not ejected is given back to the picks"
    joined.do(joined.refused("p9", True))
    assert joined.slots()["p9"] == "quarantined", "what is known dead is out whatever the share"


def test_the_number_of_strikes_is_the_revisions() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, health=HealthSpec(strikes=5))), seen("p1"), seen("p2"))
    strike(joined, "p1", 4)
    assert joined.slots()["p1"] == "ready"
    strike(joined, "p1", 1)
    assert joined.slots()["p1"] == "quarantined"


def test_a_share_of_nothing_still_ejects_one_and_never_the_last() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, health=HealthSpec(ejection_share=0.0))), seen("p1"), seen("p2"))
    strike(joined, "p1", 3)
    strike(joined, "p2", 9)
    assert joined.worker.stale_total == 0
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_knowledge_and_inference_in_one_batch_are_not_folded_into_one() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.do(joined.refused("p1", True), joined.refused("p1", False))
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_a_pod_in_quarantine_keeps_its_ledger_and_comes_back_by_a_single_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    held = joined.ask()
    joined.do(joined.refused("p1", True))
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert (int(tracker.in_flight), joined.throttler().table.capacity) == (1, 0)
    joined.do(Probed(KEY, "p1"))
    waiting = [joined.ask() for _ in range(2)]
    assert [request.ends for request in waiting] == [["granted"], []], "one trial, beside what is in flight"
    held.release()
    assert [request.ends for request in waiting] == [["granted"], []]
    joined.do(joined.trial("p1", True))
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


@pytest.mark.parametrize("stale_after_s", [SPEC.health.stale_after_s, 30.0])
def test_a_listed_pod_that_is_not_ready_for_long_is_asked_again_and_never_dropped_for_its_age(
    stale_after_s: float,
) -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, health=HealthSpec(stale_after_s=stale_after_s))), seen("p1", probe=True))
    joined.clock.pass_time(stale_after_s)
    joined.do(seen("p1", PodStatus.NOT_READY, probe=True))  # its age starts here
    joined.clock.pass_time(stale_after_s - 1.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "not_ready"}
    joined.clock.pass_time(2.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "pending"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(seen("p1", PodStatus.NOT_READY, probe=True))
    assert joined.probes[1:] == [StopProbe(KEY, "p1")], "its source confirms what it said: that counts again"


def test_with_a_stale_time_of_zero_nothing_is_asked_again_for_its_age() -> None:
    joined = Joined()
    joined.do(
        RevisionSet(replace(SPEC, health=HealthSpec(stale_after_s=0.0))),
        seen("p1", PodStatus.NOT_READY, probe=True),
    )
    joined.clock.pass_time(1e6)
    joined.do(Sweep(KEY))
    assert (joined.slots(), joined.probes) == ({"p1": "not_ready"}, [])


def test_a_program_started_anew_under_the_same_name_is_asked_again_and_keeps_its_ledger() -> None:
    """As when the events in between were lost: the list that the source makes anew says it."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), PodsListed(KEY, "list", (seen("p1", restarts=1), seen("p2", restarts=0))))
    held = joined.ask()
    assert held.lease is not None and held.lease.identity == "p1"
    strike(joined, "p1", 2)
    joined.do(PodsListed(KEY, "list", (seen("p1", restarts=2), seen("p2", restarts=0))))
    assert joined.slots() == {"p1": "pending", "p2": "ready"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None and tracker.in_flight == 1
    joined.do(PodsListed(KEY, "list", (seen("p1", restarts=2), seen("p2", restarts=0))))
    assert joined.slots()["p1"] == "pending", "said again, it is no news"
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    assert joined.probes[1:] == [StopProbe(KEY, "p1")]
    assert joined.worker.model.revisions[KEY].pods["p1"].strikes == 0, "those were the former program's"
    held.release()
    assert (joined.throttler().table.in_flight, joined.throttler().table.late_releases) == (0, 0)


def test_a_source_that_decides_itself_ends_the_doubt_when_it_calls_the_pod_ready_again() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", restarts=0))
    joined.do(seen("p1", PodStatus.NOT_READY, restarts=1))
    assert joined.slots() == {"p1": "not_ready"}
    joined.do(seen("p1", PodStatus.PENDING, restarts=1, probe=True))
    assert joined.slots() == {"p1": "pending"}, "it is to be asked now"
    joined.do(seen("p1", restarts=1, probe=True))
    assert joined.slots() == {"p1": "pending"}, "still"
    joined.do(seen("p1", PodStatus.NOT_READY, restarts=1))
    joined.do(seen("p1", restarts=1))
    assert joined.slots() == {"p1": "ready"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80"), StopProbe(KEY, "p1")]


def test_a_restart_ends_no_quarantine_and_what_a_source_does_not_know_doubts_nobody() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", restarts=1), seen("p2", source="watch"), seen("p2", restarts=7))
    assert joined.slots() == {"p1": "ready", "p2": "ready"}, "the first number is where counting begins"
    joined.do(joined.refused("p1", True), seen("p1", restarts=2))
    assert joined.slots()["p1"] == "quarantined"
    joined.do(Probed(KEY, "p1"), seen("p1", restarts=3))
    assert joined.slots()["p1"] == "recovering"
    joined.do(joined.trial("p1", True), seen("p1", restarts=2), seen("p1"))
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
    joined.auditor.check(joined.throttler())
    joined.do()
    assert joined.worker.mismatch_totals == {}
    for request in requests:
        request.release()


def test_a_limit_without_bound_is_bounded_and_a_trial_is_one_request() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, container_concurrency=0)), seen("p1", limit=UNLIMITED * 9))
    table = joined.throttler().table
    assert table.capacity == UNLIMITED
    joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    assert (joined.slots(), table.capacity) == ({"p1": "recovering"}, 1)
    joined.do(seen("p1", limit=0))
    assert table.capacity == 0


def test_a_pod_that_is_not_ours_starts_nothing_and_is_nobodys_company() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", limit=0))
    assert not joined.throttler().queue.was_ready, "who waits still waits for a start"
    joined.do(seen("p2"))
    assert joined.throttler().queue.was_ready
    strike(joined, "p2", 9)
    assert joined.slots()["p2"] == "ready", "the last that may be picked is not ejected"


def test_the_model_keeps_why_a_pod_is_in_quarantine_until_it_has_passed_its_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))

    def cause(*changes: Change) -> str:
        joined.do(*changes)
        return joined.worker.model.revisions[KEY].pods["p1"].cause

    def struck(reason: str) -> PodRefused:
        return joined.refused("p1", False, reason)

    for _ in range(2):
        assert cause(struck("pod_closed")) == "", "only suspected"
    late = struck("connect_timeout")
    assert cause(struck("first_byte_timeout")) == "3 strikes in a row, the last: first_byte_timeout"
    assert cause(late).startswith("3 strikes"), "it is out already"
    assert cause(Probed(KEY, "p1")).startswith("3 strikes"), "it is tried"
    failed = joined.trial("p1", False)
    assert cause(struck("connect_timeout")) == "failed its trial: connect_timeout"
    assert cause(failed) == "failed its trial: connect_timeout", "what was told first says more"
    cause(Probed(KEY, "p1"))
    assert cause(joined.trial("p1", False)) == "failed its trial"
    cause(Probed(KEY, "p1"))
    assert cause(joined.trial("p1", True)) == ""
    assert cause(joined.refused("p1", True, "connect_failed")) == "refused a connection: connect_failed"
    assert cause(seen("p1", address="10.0.0.9:80")) == "", "it is somewhere else, and new there"
    assert cause(joined.refused("p1", True)) == "refused a connection"


def struck(joined: Joined) -> set[str]:
    """The pods of which the data plane remembers a strike."""
    return {tracker.identity for tracker in joined.throttler().verdicts.struck}


def strike_each(joined: Joined) -> dict[str, Request]:
    """A strike for each pod; its request still holds its slot."""
    requests = {}
    for _ in joined.slots():
        request = joined.ask()
        assert request.lease is not None
        joined.throttler().pod_failed(request.lease, Reason.POD_CLOSED)
        requests[request.lease.identity] = request
    return requests


def test_strikes_go_with_their_pod() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), seen("p3"))
    requests = strike_each(joined)
    requests["p1"].release(succeeded=False)
    assert struck(joined) == {"p1", "p2", "p3"}
    joined.do(PodGone(KEY, "list", "p1"), PodGone(KEY, "list", "p2"))
    assert struck(joined) == {"p2", "p3"}, "p2 has a request still"
    requests["p2"].release(succeeded=False)
    (_, slot, generation) = next(event for event in joined.heard.events if event[0] == "drained")
    joined.do(SlotDrained(KEY, int(slot), int(generation)))
    assert struck(joined) == {"p3"}
    throttler = joined.throttler()
    joined.do(RevisionGone(KEY))
    assert throttler.verdicts.struck == {}


def test_a_late_success_at_a_former_pod_is_no_success_of_the_one_in_its_slot() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    early = joined.ask()
    assert early.lease is not None
    joined.do(PodGone(KEY, "list", "p1"))
    joined.do(SlotDrained(KEY, int(early.lease.tracker.slot), early.lease.generation, forced=True), seen("p2"))
    strike_each(joined)
    early.release()
    assert struck(joined) == {"p2"}
    assert not any(event[0] == "served" for event in joined.heard.events)


def test_the_first_answer_after_a_strike_is_told_though_the_table_was_made_anew() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    requests = strike_each(joined)
    joined.do(PodGone(KEY, "list", "p2"))
    joined.do(RevisionBroken(KEY, "told so"))
    assert struck(joined) == {"p1", "p2"}
    requests["p1"].release()
    assert [event[:2] for event in joined.heard.events if event[0] == "served"] == [("served", "p1")]


def test_a_pod_on_trial_that_says_that_it_starts_is_not_on_trial_for_ever() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(joined.refused("p1", True), seen("p1", PodStatus.PENDING, source=PUSH), Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "recovering"}, "no report ends a quarantine"
    joined.do(joined.trial("p1", True))
    assert (joined.slots(), joined.worker.illegal_totals) == ({"p1": "pending"}, {})
    joined.do(seen("p1", source=PUSH))
    assert joined.slots() == {"p1": "ready"}
