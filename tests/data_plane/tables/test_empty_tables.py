"""A revision at zero: what it keeps, for how long, and what a flap costs."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from msgspec.structs import replace

from activator.config.specs import DRAIN_TIMEOUT_S
from activator.data_plane.tables.empty_tables import GIVE_BACK_AFTER_S
from activator.messages import PodGone, RevisionGone, RevisionSet, SlotDrained
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen

MAX_SCALE = 1_000


def woken(max_scale: int = MAX_SCALE) -> Joined:
    joined = Joined()
    joined.do(RevisionSet(balanced(max_scale=max_scale)))
    joined.do(seen("p1"))
    return joined


def slots(joined: Joined) -> int:
    return joined.throttler().table.capacity_slots


def test_a_revision_that_flaps_between_zero_and_one_keeps_its_slots() -> None:
    joined = woken()
    first = joined.throttler().table.slots[0]
    for _ in range(10):
        joined.do(PodGone(KEY, "list", "p1"))
        joined.clock.pass_time(GIVE_BACK_AFTER_S - 1.0)
        assert slots(joined) == 2 * MAX_SCALE
        joined.do(seen("p1"))
        joined.clock.pass_time(1.5)
    assert joined.throttler().table.slots[0] is first
    joined.clock.pass_time(2.0 * GIVE_BACK_AFTER_S)
    assert slots(joined) == 2 * MAX_SCALE, "it is not at zero"


@pytest.mark.parametrize("carries", [False, True])
def test_a_minute_after_the_last_pod_has_left_the_slots_are_given_back(carries: bool) -> None:
    joined = woken()
    request = joined.ask() if carries else None
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S - 1.0 if carries else 0.0)
    assert slots(joined) == 2 * MAX_SCALE
    if request is not None:
        lease = request.lease
        assert lease is not None
        request.release()
        joined.do(SlotDrained(KEY, lease.tracker.slot, lease.generation))
    joined.clock.pass_time(GIVE_BACK_AFTER_S - 1.0)
    assert slots(joined) == 2 * MAX_SCALE
    joined.clock.pass_time(1.5)
    assert slots(joined) == 0
    joined.throttler().table.check_invariants()
    joined.do(seen("p1"))
    assert (joined.slots(), slots(joined)) == ({"p1": "ready"}, 2 * MAX_SCALE)
    assert joined.ask().ends == ["granted"]


def test_a_revision_that_was_removed_meanwhile_is_left_alone() -> None:
    joined = woken()
    joined.do(PodGone(KEY, "list", "p1"), RevisionGone(KEY))
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.clock.pass_time(GIVE_BACK_AFTER_S + 1.0)
    assert joined.slots() == {"p1": "ready"}
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(GIVE_BACK_AFTER_S + 1.0)
    assert slots(joined) == 0


@pytest.mark.parametrize("max_scale", [0, MAX_SCALE])
def test_a_revision_at_zero_takes_the_memory_of_one_that_never_woke(max_scale: int) -> None:
    """But for its counters: bytes by tracemalloc, of ten revisions each."""
    count = 10
    joined = Joined()

    def pass_through_a_pod(key: str) -> None:
        joined.do(seen("p1", key=key))
        request = joined.ask(key)
        request.release()
        joined.do(PodGone(key, "list", "p1"))

    keys = [f"ns/r{number}" for number in range(count)]
    joined.do(*(RevisionSet(replace(balanced(max_scale=max_scale), key=key)) for key in (KEY, *keys)))
    pass_through_a_pod(KEY)  # what is made once in a process
    joined.clock.pass_time(GIVE_BACK_AFTER_S + 1.0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for key in keys:
            pass_through_a_pod(key)
        gc.collect()
        at_zero = tracemalloc.get_traced_memory()[0] - before
        joined.clock.pass_time(GIVE_BACK_AFTER_S + 1.0)
        gc.collect()
        given_back = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert at_zero / count > 14_000
    assert given_back / count < 2_000, f"{at_zero / count:.0f} bytes at zero, {given_back / count:.0f} a minute later"
