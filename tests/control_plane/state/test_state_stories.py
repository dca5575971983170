"""What changes come to, seen in the table: the stories of pods."""

from __future__ import annotations

from msgspec.structs import replace

from activator.config.specs import DRAIN_TIMEOUT_S, ProbeSpec, ProbingSpec
from activator.control_plane.state.reduce import reduce
from activator.messages import (
    FreeSlot,
    ObservedTable,
    PlacePod,
    PodGone,
    PodSetAside,
    PodsListed,
    PodStatus,
    PodUnplaced,
    Probed,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
    SlotView,
    StartProbe,
    StopProbe,
)
from activator.runtime.reasons import Reason
from lb.tracker import READY, UNLIMITED
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen


def test_a_ready_pod_takes_who_waits() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = joined.ask()
    joined.do(seen("p1"))
    assert waiting.ends == ["granted"]
    assert joined.slots() == {"p1": "ready"}
    assert joined.throttler().queue.was_ready


def test_an_unproven_pod_is_asked_and_then_ready() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True))
    assert joined.slots() == {"p1": "pending"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "ready"}
    assert joined.probes[1:] == [StopProbe(KEY, "p1")]


def test_a_pod_that_an_operator_takes_out_of_service_finishes_its_requests() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(PodSetAside(KEY, "p1", True), PodSetAside(KEY, "unknown", True))
    assert joined.slots() == {"p1": "draining"}
    waiting = joined.ask()
    joined.do(seen("p1"), Probed(KEY, "p1"))
    assert waiting.ends == [], "what its source reports does not put it back"
    request.release()
    (drained,) = [event for event in joined.heard.events if event[0] == "drained"]
    joined.do(SlotDrained(KEY, int(drained[1]), int(drained[2])))
    assert joined.slots() == {} and waiting.ends == []
    joined.do(PodSetAside(KEY, "p1", False))
    assert joined.slots() == {"p1": "pending"} and waiting.ends == [], "it is probed: it may have been restarted"
    assert joined.probes[-1] == StartProbe(KEY, "p1", "10.0.0.1:80")
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "ready"} and waiting.ends == ["granted"]
    joined.do(PodSetAside(KEY, "p1", True))
    joined.do(seen("p1", address="10.0.0.9:80"))
    assert set(joined.slots().values()) == {"draining"}, "also at another address"
    joined.do(PodGone(KEY, "list", "p1"))
    joined.do(seen("p1"))
    assert joined.slots() == {"p1": "ready"}, "a pod that its source has removed and reports again is a new one"


def test_a_refused_connection_is_known_dead_and_comes_back_through_a_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    lease = request.lease
    assert lease is not None
    joined.throttler().pod_failed(lease, Reason.CONNECT_FAILED)
    request.release(succeeded=False)
    joined.do(joined.refused("p1", True))
    assert joined.slots() == {"p1": "quarantined"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "recovering"}
    trial, second = joined.ask(), joined.ask()
    assert trial.ends == ["granted"]
    assert second.ends == [], "one trial at a time"
    assert trial.lease is not None
    joined.throttler().trial_answered(trial.lease)
    assert second.ends == ["granted"], "the head of the answer is enough; however long the rest takes"
    joined.do(joined.trial("p1", True))
    assert joined.slots() == {"p1": "ready"}
    trial.release()
    second.release()
    assert joined.slots() == {"p1": "ready"}


def test_what_was_there_before_a_quarantine_neither_bars_its_trial_nor_judges_it() -> None:
    """A stream that outlives a refused dial: 99 places are free, and five quick requests must not wait for its end."""
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, container_concurrency=100)), seen("p1"))
    stream = joined.ask()
    joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    quick = [joined.ask() for _ in range(5)]
    assert [one.ends for one in quick] == [["granted"], [], [], [], []]
    assert stream.lease is not None and quick[0].lease is not None
    joined.throttler().pod_failed(stream.lease, Reason.POD_CLOSED)
    stream.release(succeeded=False)
    joined.do()
    assert joined.slots() == {"p1": "recovering"}, "the end of what it was before says nothing of what it is"
    joined.throttler().trial_answered(quick[0].lease)
    assert [one.ends for one in quick[1:2]] == [["granted"]]
    joined.do(joined.trial("p1", True))
    assert [one.ends for one in quick] == [["granted"]] * 5


def test_a_trial_that_its_client_ends_says_nothing_and_the_next_request_is_the_next_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    first, second, third = joined.ask(), joined.ask(), joined.ask()
    for reason in (Reason.CLIENT_GONE, Reason.REQUEST_TIMEOUT, Reason.BAD_REQUEST, Reason.DRAINING):
        assert first.lease is not None
        joined.throttler().pod_failed(first.lease, reason)
    first.release(succeeded=False)
    joined.do()
    assert joined.slots() == {"p1": "recovering"}
    assert (second.ends, third.ends) == (["granted"], [])
    assert second.lease is not None
    joined.throttler().pod_failed(second.lease, Reason.POD_CLOSED)
    second.release(succeeded=False)
    joined.do(joined.trial("p1", False))
    assert joined.slots() == {"p1": "quarantined"}


def test_a_trial_that_takes_long_keeps_nobody_for_long() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    slow, second, third = joined.ask(), joined.ask(), joined.ask()
    assert slow.lease is not None and (second.ends, third.ends) == ([], [])
    joined.throttler().allow_other_trials(slow.lease)
    joined.throttler().allow_other_trials(slow.lease)
    assert (second.ends, third.ends) == (["granted"], []), "one more, within the limit of two"
    assert second.lease is not None
    joined.throttler().trial_answered(second.lease)
    late = joined.trial("p1", False)
    joined.do(joined.trial("p1", True))
    joined.throttler().pod_failed(slow.lease, Reason.POD_CLOSED)
    slow.release(succeeded=False)
    assert joined.heard.reports[-1] == joined.refused("p1", False, "pod_closed"), "it is no trial any more"
    joined.do(late)
    assert joined.slots() == {"p1": "ready"}, "it was late: a trial had passed"
    assert (joined.worker.stale_total, joined.worker.illegal_totals) == (1, {})
    for one in (second, third):
        one.release()
    joined.slots()


def test_a_failed_trial_goes_back_into_quarantine() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.do(joined.refused("p1", True), Probed(KEY, "p1"))
    joined.do(joined.trial("p1", False))
    assert joined.slots() == {"p1": "quarantined"}
    assert isinstance(joined.probes[-1], StartProbe)


def test_silence_takes_three_strikes_and_never_the_last_pod() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    for _ in range(5):
        joined.do(joined.refused("p1", False))
    assert joined.slots() == {"p1": "ready"}
    joined.do(seen("p2"))
    joined.do(joined.refused("p1", False))
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_a_suspected_pod_is_given_back_to_the_picks_by_the_worker() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    assert request.lease is not None
    joined.throttler().pod_failed(request.lease, Reason.CONNECT_TIMEOUT)
    waiting = joined.ask()
    assert waiting.ends == []
    joined.do(joined.refused("p1", False))
    assert waiting.ends == ["granted"]


def test_a_list_is_mark_and_sweep_for_its_source_only() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), seen("p3", source="other"))
    joined.do(PodsListed(KEY, "list", (seen("p2"), seen("p4"))))
    assert joined.slots() == {"p2": "ready", "p3": "ready", "p4": "ready"}


def test_a_pod_that_flaps_keeps_its_ledger() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    assert joined.slots() == {"p1": "draining"}
    joined.do(seen("p1"))
    assert joined.slots() == {"p1": "ready"}
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert tracker.in_flight == 1
    request.release()
    assert tracker.in_flight == 0
    assert joined.hooks.drained == []


def test_a_withdrawn_pod_is_freed_at_its_last_release_and_told() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    request = joined.ask()
    assert request.lease is not None
    busy = request.lease.identity
    idle = "p2" if busy == "p1" else "p1"
    joined.do(PodGone(KEY, "list", "p1"), PodGone(KEY, "list", "p2"))
    assert joined.hooks.drained == [idle]
    request.release()
    drained = [event for event in joined.heard.events if event[0] == "drained"]
    joined.do(SlotDrained(KEY, int(drained[0][1]), int(drained[0][2])))
    assert joined.slots() == {}
    assert sorted(joined.hooks.drained) == ["p1", "p2"]
    assert not joined.throttler().queue.was_ready, "at zero again"


def test_a_drain_that_takes_too_long_ends_what_is_left_of_it() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S - 1.0)
    assert request.ends == ["granted"]
    joined.clock.pass_time(2.0)
    assert request.ends == ["granted", "revoked"]
    assert len(joined.hooks.expired) == 1
    key, slot, generation = joined.hooks.expired[0]
    joined.do(SlotDrained(key, slot, generation, forced=True))
    assert joined.slots() == {}
    assert joined.hooks.drained == ["p1"]


def test_the_same_address_with_another_identity_gets_a_slot_of_its_own() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.ask()
    joined.do(PodGone(KEY, "list", "p1"), seen("q1", address="10.0.0.1:80"))
    assert joined.slots() == {"p1": "draining", "q1": "ready"}
    newest = joined.throttler().table.find("10.0.0.1:80")
    assert newest is not None
    assert newest.identity == "q1"
    assert newest.in_flight == 0


def test_a_changed_limit_reaches_every_live_slot() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    requests = [joined.ask() for _ in range(6)]
    assert sum(request.ends == ["granted"] for request in requests) == 4
    joined.do(RevisionSet(replace(SPEC, container_concurrency=3)))
    assert sum(request.ends == ["granted"] for request in requests) == 6
    joined.do(RevisionSet(replace(SPEC, container_concurrency=0)))
    assert joined.throttler().table.capacity == 2 * UNLIMITED


def test_a_changed_policy_loses_neither_lease_nor_waiter() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    requests = [joined.ask() for _ in range(3)]
    joined.do(RevisionSet(balanced(policy="least-connections")))
    assert joined.throttler().table.in_flight == 2
    requests[0].release()
    assert requests[2].ends == ["granted"]


def test_a_changed_probe_is_asked_anew_and_who_is_proven_stays_so() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True), seen("p2"))
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    probe = ProbeSpec("http", "/up")
    joined.do(RevisionSet(replace(SPEC, probing=ProbingSpec(probe=probe))))
    assert joined.probes[1:] == [StartProbe(KEY, "p1", "10.0.0.1:80", probe)]
    assert joined.slots() == {"p1": "pending", "p2": "ready"}
    joined.do(RevisionSet(replace(balanced(max_scale=9), probing=ProbingSpec(probe=probe))))
    assert len(joined.probes) == 2


def test_a_removed_revision_takes_its_pods_and_tells_its_line() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = joined.ask()
    joined.do(seen("p1", PodStatus.PENDING, probe=True))
    joined.do(RevisionGone(KEY))
    assert waiting.ends == ["revision_removed"]
    assert joined.tables.throttlers == {}
    assert joined.hooks.routed == []
    assert joined.probes[-1] == StopProbe(KEY, "p1")


def test_what_comes_for_a_revision_that_has_gone_is_refused() -> None:
    joined = Joined()
    joined.do(seen("p1"))
    assert joined.worker.refused_total == 1
    assert joined.hooks.failures == []


def test_failure_and_recovery_reach_the_line() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = joined.ask()
    joined.do(RevisionFailed(KEY, "exited with code 3: no such model"))
    assert waiting.ends == ["revision_failed"]
    assert joined.throttler().queue.failure == "exited with code 3: no such model"
    joined.do(RevisionRecovered(KEY))
    assert joined.throttler().queue.failure is None


def test_the_weight_of_a_pod_reaches_its_slot_and_changes_live() -> None:
    joined = Joined()
    joined.do(RevisionSet(balanced(policy="weighted")), seen("p1", weight=3), seen("p2"))
    table = joined.throttler().table
    for weight in (3, 7, 0):
        joined.do(seen("p1", weight=weight))
        tracker = table.find_identity("p1")
        assert tracker is not None
        assert tracker.weight == weight
        table.check_invariants()
    joined.do(PodsListed(KEY, "list", (seen("p1", weight=9), seen("p2", weight=2))))
    assert [int(tracker.weight) for tracker in table.slots[:2]] == [9, 2]


def test_a_pod_that_moves_before_it_has_answered_is_asked_where_it_is_now() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True))
    joined.do(seen("p1", PodStatus.PENDING, probe=True, address="10.0.1.1:80"))
    assert joined.probes == [
        StartProbe(KEY, "p1", "10.0.0.1:80"),
        StopProbe(KEY, "p1"),
        StartProbe(KEY, "p1", "10.0.1.1:80"),
    ]


def test_a_pod_without_a_slot_gets_the_next_that_comes_free() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), PodUnplaced(KEY, "p2"))
    model = joined.worker.model
    applied = model.sent[KEY]
    one = SlotView("p1", "10.0.0.1:80", READY, 2, 1, joined.epoch("p1"))
    assert reduce(model, ObservedTable(KEY, applied, (one,)), 0.0).mismatches == [], "that it has none is known"
    rebuild = reduce(model, RevisionBroken(KEY, "lost count"), 0.0)
    assert {name: pod is not None and pod.unplaced for name, pod in rebuild.pods.items()} == {(KEY, "p2"): False}
    placed = PlacePod(KEY, "p2", "10.0.0.2:80", READY, 2, 1, joined.epoch("p2"))
    assert reduce(model, SlotDrained(KEY, 9, 9), 0.0).effects == [FreeSlot(KEY, 9, 9), placed]
    joined.do(SlotDrained(KEY, 9, 9))
    assert reduce(model, SlotDrained(KEY, 9, 9), 0.0).effects == [FreeSlot(KEY, 9, 9)], "it has one now"
    assert reduce(model, ObservedTable(KEY, model.sent[KEY], (one,)), 0.0).mismatches == [("missing", "p2 has no slot")]


def test_a_new_max_scale_sizes_the_table_that_is_there() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    table = joined.throttler().table
    assert table.capacity_slots == 2 * SPEC.balancing.max_scale
    joined.do(RevisionSet(balanced(max_scale=50)))
    assert joined.throttler().table is table and table.capacity_slots == 100


def test_a_start_from_zero_knows_when_there_was_a_pod_and_when_it_was_ready() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = joined.ask()
    start = joined.throttler().queue.start
    assert start is not None
    joined.clock.pass_time(2.0)
    joined.do(seen("p1", PodStatus.PENDING, probe=True))
    joined.clock.pass_time(3.0)
    joined.do(Probed(KEY, "p1"))
    assert waiting.ends == ["granted"]
    assert (start.placed_s - start.wanted_s, start.ready_s - start.wanted_s) == (2.0, 5.0)


def test_what_a_revision_says_of_balancing_is_applied_live() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    assert joined.throttler().affinity is None
    table = joined.throttler().table
    joined.do(RevisionSet(balanced(policy="consistent-hash", slow_start_s=30.0)), seen("p2"))
    affinity = joined.throttler().affinity
    assert affinity is not None
    assert affinity.on_client_ip
    assert [tracker.warming for tracker in table.slots[:2]] == [False, True]
    joined.do(RevisionSet(balanced(policy="consistent-hash", hash_on="cookie:sid")))
    affinity = joined.throttler().affinity
    assert affinity is not None
    assert not affinity.on_client_ip
    assert not table.slots[1].warming
    joined.do(RevisionSet(SPEC))
    assert joined.throttler().affinity is None
    table.check_invariants()
