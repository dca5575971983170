"""What raises is set aside, what broke is made anew, and nobody is left waiting for either."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import (
    PANIC_BACKOFF_INITIAL_S,
    PANIC_BACKOFF_MAX_S,
    PANIC_BUDGET,
    PANIC_RESET_AFTER_S,
    TASK,
    WORKER,
    Supervision,
)
from activator.control_plane.state.worker import ChangeOutcome
from activator.messages import (
    Change,
    FailRevision,
    ObservedPod,
    PodGone,
    PodsListed,
    PodStatus,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from activator.runtime.tasks import keep_running
from lb.rng import Rng
from lb.tracker import PodTracker
from tests.conftest import DEEP
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, Pool, seen
from tests.data_plane.throttle.throttle_fakes import Request
from tests.manual_clock import ManualClock
from tests.sources import ROOT

OTHER = "ns/other"


def test_the_backoff_is_right_across_hours_and_days() -> None:
    """The unit bug: the time of a panic, stored in seconds and read in microseconds, made every panic the first."""
    supervision = Supervision()
    now_s = 5.0
    for hour in range(100):
        waits = []
        for _ in range(12):
            waits.append(supervision.panicked(KEY, "a change", "an error", now_s))
            assert supervision.since_last_s(now_s + 1.5) == pytest.approx(1.5)
            now_s += waits[-1]
        assert waits == [min(PANIC_BACKOFF_INITIAL_S * 2.0**n, PANIC_BACKOFF_MAX_S) for n in range(12)], hour
        assert supervision.in_a_row(KEY, now_s) == 12
        assert supervision.next_backoff_s(now_s) == PANIC_BACKOFF_MAX_S
        now_s += 3600.0
        assert supervision.in_a_row(KEY, now_s) == 0
        assert supervision.next_backoff_s(now_s) == 0.0
    assert supervision.panics_total == 1200
    assert len(supervision.dead_letters) == 100


def test_jitter_spreads_the_backoff_and_keeps_its_growth() -> None:
    supervision = Supervision(Rng(3))
    waits = [supervision.panicked(f"ns/{number}", "", "", 1.0) for number in range(100)]
    assert 0.75 * PANIC_BACKOFF_INITIAL_S <= min(waits) < max(waits) < 1.25 * PANIC_BACKOFF_INITIAL_S
    assert len(set(waits)) > 50


def test_the_budget_is_per_owner_and_ends_with_health() -> None:
    supervision = Supervision()
    for number in range(PANIC_BUDGET):
        supervision.panicked(WORKER, "", "", float(number))
        supervision.panicked(KEY, "", "", float(number))
    assert supervision.over_budget(1, 10.0) == []
    supervision.panicked(KEY, "", "", 10.0)
    assert supervision.over_budget(1, 10.0) == [f"the state of {KEY} has failed {PANIC_BUDGET + 1} times in a row"]
    assert supervision.over_budget(1, 10.0 + PANIC_RESET_AFTER_S) == []
    supervision.forget(KEY)
    assert supervision.over_budget(1, 10.0) == []


def test_one_revision_of_many_takes_nobody_out_of_service() -> None:
    supervision = Supervision()

    def fail(key: str) -> None:
        for number in range(PANIC_BUDGET + 1):
            supervision.panicked(key, "", "", float(number))

    fail("ns/a")
    assert supervision.over_budget(3, 10.0) == [], "the other two are served, and every replica meets the same"
    fail("ns/b")
    assert len(supervision.over_budget(3, 10.0)) == 2
    assert supervision.over_budget(1000, 10.0) == []
    fail(WORKER)
    assert supervision.over_budget(1000, 10.0) == [f"the state worker has failed {PANIC_BUDGET + 1} times in a row"]


def test_what_goes_on_failing_beyond_its_budget_is_hopeless_if_enough_depends_on_it() -> None:
    def failing(*keys: str, for_s: float) -> Supervision:
        supervision = Supervision()
        for key in keys:
            for second in range(PANIC_BUDGET + 1):
                supervision.panicked(key, "", "", 1.0 + second)
            supervision.panicked(key, "", "", 1.0 + PANIC_BUDGET + for_s)
        return supervision

    now_s = 100.0
    for key in (WORKER, TASK + "sweeps"):
        assert not failing(key, for_s=59.0).is_hopeless(1000, 60.0, now_s)
        assert failing(key, for_s=60.0).is_hopeless(1000, 60.0, now_s)
    assert not failing("ns/a", for_s=60.0).is_hopeless(3, 60.0, now_s), "the other two are served"
    assert failing("ns/a", "ns/b", for_s=60.0).is_hopeless(3, 60.0, now_s)
    assert failing("ns/a", for_s=60.0).is_hopeless(1, 60.0, now_s)
    cured = failing(WORKER, for_s=1.0)
    assert not cured.is_hopeless(1, 60.0, 1.0 + PANIC_BUDGET + 200.0), "it has not failed since"
    assert not failing(WORKER, for_s=60.0).is_hopeless(1, 60.0, now_s + PANIC_RESET_AFTER_S)


def test_a_task_that_fails_is_run_again_with_a_backoff_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    supervision = Supervision()
    clock = ManualClock()
    waits: list[float] = []
    lives = 0

    async def run() -> None:
        nonlocal lives
        lives += 1
        raise RuntimeError("injected")

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.pass_time(seconds)
        if lives == 8:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_running(run, supervision.error_handler_of_task("sweeps", clock.now), wait=wait))
    assert waits == [PANIC_BACKOFF_INITIAL_S * 2.0**n for n in range(8)]
    assert supervision.over_budget(1, clock.now()) == ["the task sweeps has failed 8 times in a row"]
    assert supervision.in_a_row(WORKER, clock.now()) == 0
    assert [record.getMessage() for record in caplog.records[:2]] == [
        "the task sweeps failed; it restarts in 0.1 s",
        "the task sweeps failed; it restarts in 0.2 s",
    ]
    assert caplog.records[0].exc_info is not None and len(caplog.records) == supervision.panics_total == 8


def busy() -> tuple[Joined, list[Request]]:
    """Two pods with two requests each, and two more that wait."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), RevisionSet(type(SPEC)(key=OTHER)))
    joined.do(seen("o1", key=OTHER))
    requests = [joined.ask() for _ in range(6)]
    return joined, requests


def break_slot(joined: Joined, identity: str) -> PodTracker:
    """Something that no code of ours does: a count that is wrong."""
    tracker = joined.throttler().table.find_identity(identity)
    assert tracker is not None
    tracker.in_flight = 7
    with pytest.raises(AssertionError):
        joined.throttler().table.check_invariants()
    return tracker


def test_a_broken_table_is_made_anew_and_what_is_in_flight_is_counted_in_it() -> None:
    joined, requests = busy()
    old = break_slot(joined, "p1")
    before = joined.throttler().table
    pools = {tracker.identity: tracker.attachment for tracker in before.slots[:2]}
    joined.tables.distrust(KEY, "the table lost count")
    assert [request.ends for request in requests[4:]] == [["revision_failed"]] * 2, "whoever waits hears it at once"
    late = joined.ask()
    assert late.ends == ["revision_failed"], "nobody joins a line that nobody looks after"
    joined.do()
    table = joined.throttler().table
    assert table is not before
    table.check_invariants()
    assert joined.throttler().queue.failure is None
    assert (joined.slots(), table.in_flight) == ({"p1": "ready", "p2": "ready"}, 4)
    assert {tracker.identity: tracker.attachment for tracker in table.slots[:2]} == pools, "connections are kept"
    assert not any(isinstance(pool, Pool) and pool.closed for pool in pools.values())
    assert old.generation < min(int(tracker.generation) for tracker in table.slots[:2])
    waiting = joined.ask()
    assert waiting.ends == [], "the limit holds across the change"
    for request in requests[:4]:
        request.release()
    assert waiting.ends == ["granted"]
    waiting.release()
    assert (table.in_flight, table.late_releases) == (0, 0)
    assert joined.worker.rebuilds_total == 1
    assert joined.slots(OTHER) == {"o1": "ready"}


def test_a_pod_that_leaves_while_its_table_is_broken_drains_in_the_new_one() -> None:
    joined, requests = busy()
    break_slot(joined, "p1")
    joined.tables.distrust(KEY, "lost count")
    del joined.worker.model.revisions[KEY].pods["p1"]  # as if its end had been lost with the table
    joined.do()
    assert joined.slots() == {"p1": "draining", "p2": "ready"}
    for request in requests[:4]:
        request.release()
    assert joined.throttler().table.in_flight == 0
    drained = [event for event in joined.heard.events if event[0] == "drained"]
    assert len(drained) == 1


def test_a_pod_that_left_while_its_table_was_broken_and_carried_nothing_is_let_go() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    pools = {tracker.identity: tracker.attachment for tracker in joined.throttler().table.slots[:2]}
    break_slot(joined, "p1")
    joined.tables.distrust(KEY, "lost count")
    del joined.worker.model.revisions[KEY].pods["p1"]
    joined.do()
    assert (joined.slots(), joined.hooks.drained) == ({"p2": "ready"}, ["p1"]), "whoever runs it may end it"
    assert {name: isinstance(pool, Pool) and pool.closed for name, pool in pools.items()} == {"p1": True, "p2": False}


def test_why_a_revision_cannot_start_outlives_its_table_and_no_word_of_its_source_ends_its_condemnation() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), RevisionFailed(KEY, "no image"))
    joined.tables.distrust(KEY, "lost count")
    joined.tables.apply([FailRevision(KEY, "")])
    assert "lost count" in (joined.throttler().queue.failure or "")
    joined.do()
    assert joined.throttler().queue.failure == "no image"
    joined.do(RevisionRecovered(KEY))
    assert joined.throttler().queue.failure is None


def test_a_condemned_revision_that_goes_takes_its_condemnation_along() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.tables.distrust(KEY, "lost count")
    joined.hooks.told.clear()
    joined.do(RevisionGone(KEY))
    assert (joined.tables.distrusted, joined.tables.applied) == ({}, {})
    joined.do(RevisionSet(SPEC), seen("p1"))
    checked = joined.auditor.checked_total
    joined.auditor.expired(joined.clock.now())
    assert joined.auditor.checked_total == checked + 1
    assert joined.hooks.told == [] or not any(isinstance(one, RevisionBroken) for one in joined.hooks.told)
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
    assert request.ends == ["granted"]


def test_an_effect_that_raises_condemns_its_revision_only() -> None:
    joined, requests = busy()
    tracker = joined.throttler().table.find_identity("p2")
    assert tracker is not None
    tracker.attachment = "no pool"  # closing it raises
    joined.do(seen("o2", key=OTHER), PodGone(KEY, "list", "p2"))
    assert [request.ends for request in requests[4:]] == [["revision_failed"]] * 2
    assert len(joined.hooks.failures) == joined.worker.rebuilds_total == 1
    assert joined.slots() == {"p1": "ready", "p2": "draining"}
    assert set(joined.slots(OTHER)) == {"o1", "o2"}
    joined.throttler().table.check_invariants()
    for request in requests[:4]:
        if request.lease is not None:
            request.release()
    assert joined.throttler().table.in_flight == 0


def test_a_table_that_breaks_again_and_again_is_made_anew_less_and_less_often() -> None:
    joined, _ = busy()
    joined.do(RevisionBroken(KEY, "once"))
    assert joined.worker.parked == {}
    gaps = []
    for _ in range(4):
        joined.tables.distrust(KEY, "again")
        joined.do()
        assert joined.throttler().queue.failure is not None, "told to everyone meanwhile"
        gaps.append(joined.worker.parked[KEY].until_s - joined.clock.now())
        joined.clock.pass_time(gaps[-1] + 0.001)
        joined.do()
        assert joined.throttler().queue.failure is None
    assert gaps == pytest.approx([PANIC_BACKOFF_INITIAL_S * 2.0**n for n in range(1, 5)])
    joined.tables.distrust(KEY, "again")
    assert joined.worker.supervision.over_budget(1, joined.clock.now()) == []
    joined.do()
    assert joined.worker.supervision.over_budget(1, joined.clock.now()) != []


class FaultPoint:
    """Raises at the nth of the calls that it stands in front of."""

    def __init__(self, inner: Callable[[Model, Change, float], Reduction]) -> None:
        self._inner = inner
        self.left = 0
        self.sprung = 0

    def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
        self.left -= 1
        if self.left == 0:
            self.sprung += 1
            raise RuntimeError("injected")
        return self._inner(model, change, now_s)


def test_a_thousand_panics_disturb_nobody_else() -> None:
    """Spread over revisions while requests come and go: every one of them is answered, whatever raised."""
    trap = FaultPoint(reduce)
    joined = Joined(trap)
    keys = [f"ns/rev{number}" for number in range(20)]
    for key in keys:
        joined.do(RevisionSet(type(SPEC)(key=key, container_concurrency=1)), seen("p1", key=key))
    served = 0
    for number in range(1000):
        key = keys[number % 20]
        request, second = joined.ask(key), joined.ask(key)
        trap.left = 1
        joined.do(seen("p1", PodStatus.NOT_READY, key=key))  # raises; the pod stays as it was
        request.release()
        second.release()
        served += (request.ends == ["granted"]) + (second.ends == ["granted"])
        joined.clock.pass_time(PANIC_BACKOFF_MAX_S / 16.0)
        joined.do()
    assert (trap.sprung, served, joined.worker.panics_total) == (1000, 2000, 1000)
    assert all(joined.slots(key) == {"p1": "ready"} for key in keys)


def test_an_exception_at_any_change_leaves_the_model_as_it_was() -> None:
    story: list[Change] = [
        RevisionSet(SPEC),
        seen("p1", PodStatus.PENDING, probe=True),
        seen("p2"),
        PodsListed(KEY, "list", (seen("p2"), seen("p3"))),
        seen("p3", PodStatus.NOT_READY),
        PodGone(KEY, "list", "p2"),
    ]
    for place in range(1, len(story) + 1):
        trap = FaultPoint(reduce)
        joined = Joined(trap)
        trap.left = place
        for change in story:
            joined.do(change)
            joined.clock.pass_time(PANIC_BACKOFF_INITIAL_S + 0.01)
        joined.do()
        repeated = Joined()
        for number, change in enumerate(story, 1):
            if number != place:
                repeated.do(change)
        if place > 1:  # without the revision there is nothing to compare
            assert joined.slots() == repeated.slots()
            assert joined.worker.model.revisions[KEY].pods.keys() == repeated.worker.model.revisions[KEY].pods.keys()
        assert trap.sprung == 1


def test_nobody_waits_for_a_change_that_a_list_or_a_full_queue_swallowed() -> None:
    async def scenario() -> list[ChangeOutcome]:
        joined = Joined()
        joined.do(RevisionSet(SPEC))
        swallowed = joined.worker.submit_with_outcome(seen("p1"))
        joined.worker.submit(PodsListed(KEY, "list", (seen("p2"),)))
        joined.worker.queue._changes_max = 0
        dropped = joined.worker.submit_with_outcome(seen("p9"))
        assert joined.dirty == [("list", KEY)]
        assert joined.worker.dropped_total == 1
        return [await asyncio.wait_for(future, 60.0) for future in (swallowed, dropped)]

    assert asyncio.run(scenario()) == [ChangeOutcome.SUPERSEDED, ChangeOutcome.REFUSED]


def test_whoever_waits_for_a_parked_change_hears_in_the_end() -> None:
    class Once:
        left = 1

        def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
            if isinstance(change, ObservedPod) and self.left:
                self.left = 0
                raise RuntimeError("once")
            return reduce(model, change, now_s)

    async def scenario() -> list[ChangeOutcome]:
        joined = Joined(Once())
        joined.do(RevisionSet(SPEC))
        first = joined.worker.submit_with_outcome(seen("p1"))
        joined.do()
        parked = joined.worker.submit_with_outcome(seen("p2"))
        listed = joined.worker.submit_with_outcome(PodsListed(KEY, "list", (seen("p3"),)))
        joined.do()
        assert first.done()
        assert not listed.done()
        joined.clock.pass_time(PANIC_BACKOFF_MAX_S)
        joined.do()
        return [future.result() for future in (first, parked, listed)]

    assert asyncio.run(scenario()) == [ChangeOutcome.SET_ASIDE, ChangeOutcome.SUPERSEDED, ChangeOutcome.APPLIED]


def test_an_exception_at_any_line_of_the_worker_and_of_apply_disturbs_nobody() -> None:
    """In a process of its own and in plain Python, where a tracer sees every line; `make deep` takes each of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.control_plane.state.fault_harness", "1" if DEEP else "29"],
        cwd=ROOT,
        env={**os.environ, "ACTIVATOR_COMPILE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines, _, verdict = done.stdout.strip().splitlines()[-1].partition(" lines, ")
    assert (verdict, done.returncode) == ("0 failed", 0), done.stdout + done.stderr
    assert int(lines) > 5000
