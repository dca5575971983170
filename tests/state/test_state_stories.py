"""What changes come to, seen in the table: the stories of pods."""

from __future__ import annotations

from msgspec.structs import replace

from activator.config import DRAIN_TIMEOUT_S
from activator.state.messages import (
    Listed,
    PodGone,
    PodRefused,
    PodStatus,
    Probed,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
    StartProbe,
    StopProbe,
    TrialEnded,
)
from lb.tracker import UNLIMITED
from tests.state.state_fakes import KEY, SPEC, Joined, seen
from tests.throttle.throttle_fakes import Request


def test_a_ready_pod_takes_who_waits() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = Request(joined.throttler())
    waiting.ask(joined.clock.now())
    joined.do(seen("p1"))
    assert waiting.ends == ["granted"]
    assert joined.slots() == {"p1": "ready"}
    assert joined.throttler().was_ready


def test_an_unproven_pod_is_asked_and_then_ready() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True))
    assert joined.slots() == {"p1": "pending"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "ready"}
    assert joined.probes[1:] == [StopProbe(KEY, "p1")]


def test_a_refused_connection_is_known_dead_and_comes_back_through_a_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
    lease = request.lease
    assert lease is not None
    joined.throttler().pod_refused(lease, True)
    request.release(succeeded=False)
    joined.do(PodRefused(KEY, "p1", lease.generation, True))
    assert joined.slots() == {"p1": "quarantined"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(Probed(KEY, "p1"))
    assert joined.slots() == {"p1": "recovering"}
    trial, second = Request(joined.throttler()), Request(joined.throttler())
    trial.ask(joined.clock.now())
    second.ask(joined.clock.now())
    assert trial.ends == ["granted"]
    assert second.ends == [], "one trial at a time"
    trial.release()
    joined.do(TrialEnded(KEY, "p1", 0, True))
    assert joined.slots() == {"p1": "ready"}
    assert second.ends == ["granted"]


def test_a_failed_trial_goes_back_into_quarantine() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), PodRefused(KEY, "p1", 1, True), Probed(KEY, "p1"))
    joined.do(TrialEnded(KEY, "p1", 1, False))
    assert joined.slots() == {"p1": "quarantined"}
    assert isinstance(joined.probes[-1], StartProbe)


def test_silence_takes_three_strikes_and_never_the_last_pod() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    for _ in range(5):
        joined.do(PodRefused(KEY, "p1", 1, False))
    assert joined.slots() == {"p1": "ready"}
    joined.do(seen("p2"))
    joined.do(PodRefused(KEY, "p1", 1, False))
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_a_suspected_pod_is_given_back_to_the_picks_by_the_worker() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
    assert request.lease is not None
    joined.throttler().pod_refused(request.lease, False)
    waiting = Request(joined.throttler())
    waiting.ask(joined.clock.now())
    assert waiting.ends == []
    joined.do(PodRefused(KEY, "p1", 1, False))
    assert waiting.ends == ["granted"]


def test_a_list_is_mark_and_sweep_for_its_source_only() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), seen("p3", source="other"))
    joined.do(Listed(KEY, "list", (seen("p2"), seen("p4"))))
    assert joined.slots() == {"p2": "ready", "p3": "ready", "p4": "ready"}


def test_a_pod_that_flaps_keeps_its_ledger() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
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
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
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
    assert not joined.throttler().was_ready, "at zero again"


def test_a_drain_that_takes_too_long_ends_what_is_left_of_it() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
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
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
    joined.do(PodGone(KEY, "list", "p1"), seen("q1", address="10.0.0.1:80"))
    assert joined.slots() == {"p1": "draining", "q1": "ready"}
    newest = joined.throttler().table.find("10.0.0.1:80")
    assert newest is not None
    assert newest.identity == "q1"
    assert newest.in_flight == 0


def test_a_changed_limit_reaches_every_live_slot() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    requests = [Request(joined.throttler()) for _ in range(6)]
    for request in requests:
        request.ask(joined.clock.now())
    assert sum(request.ends == ["granted"] for request in requests) == 4
    joined.do(RevisionSet(replace(SPEC, container_concurrency=3)))
    assert sum(request.ends == ["granted"] for request in requests) == 6
    joined.do(RevisionSet(replace(SPEC, container_concurrency=0)))
    assert joined.throttler().table.capacity == 2 * UNLIMITED


def test_a_changed_policy_loses_neither_lease_nor_waiter() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    requests = [Request(joined.throttler()) for _ in range(3)]
    for request in requests:
        request.ask(joined.clock.now())
    joined.do(RevisionSet(replace(SPEC, policy="least-connections")))
    assert joined.throttler().table.in_flight == 2
    requests[0].release()
    assert requests[2].ends == ["granted"]


def test_a_removed_revision_takes_its_pods_and_tells_its_line() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    waiting = Request(joined.throttler())
    waiting.ask(joined.clock.now())
    joined.do(seen("p1", PodStatus.PENDING, probe=True))
    joined.do(RevisionGone(KEY))
    assert waiting.ends == ["revision_removed"]
    assert joined.part.throttlers == {}
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
    waiting = Request(joined.throttler())
    waiting.ask(joined.clock.now())
    joined.do(RevisionFailed(KEY, "exited with code 3: no such model"))
    assert waiting.ends == ["revision_failed"]
    assert joined.throttler().failure == "exited with code 3: no such model"
    joined.do(RevisionRecovered(KEY))
    assert joined.throttler().failure is None


def test_the_weight_of_a_pod_reaches_its_slot_and_changes_live() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, policy="weighted")), seen("p1", weight=3), seen("p2"))
    table = joined.throttler().table
    for weight in (3, 7, 0):
        joined.do(seen("p1", weight=weight))
        tracker = table.find_identity("p1")
        assert tracker is not None
        assert tracker.weight == weight
        table.check_invariants()
    joined.do(Listed(KEY, "list", (seen("p1", weight=9), seen("p2", weight=2))))
    assert [int(tracker.weight) for tracker in table.slots[:2]] == [9, 2]


def test_what_a_revision_says_of_balancing_is_applied_live() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    assert joined.throttler().affinity is None
    table = joined.throttler().table
    joined.do(RevisionSet(replace(SPEC, policy="consistent-hash", slow_start_s=30.0)), seen("p2"))
    affinity = joined.throttler().affinity
    assert affinity is not None
    assert affinity.on_client_ip
    assert [tracker.warming for tracker in table.slots[:2]] == [False, True]
    joined.do(RevisionSet(replace(SPEC, policy="consistent-hash", hash_on="cookie:sid")))
    affinity = joined.throttler().affinity
    assert affinity is not None
    assert not affinity.on_client_ip
    assert not table.slots[1].warming
    joined.do(RevisionSet(SPEC))
    assert joined.throttler().affinity is None
    table.check_invariants()
