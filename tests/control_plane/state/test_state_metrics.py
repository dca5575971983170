"""What the control plane counts of itself: each thing once, and in the right place."""

from __future__ import annotations

from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.messages import Change, PodGone, PodStatus, Probed, RevisionSet, SlotDrained
from lb.tracker import STATE_NAMES
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen


def moved(joined: Joined) -> dict[tuple[str, str], int]:
    return {(STATE_NAMES[one], STATE_NAMES[other]): count for (one, other), count in joined.tables.transitions.items()}


def test_the_ways_of_pods() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING), seen("p2"))
    joined.do(seen("p2"), Probed(KEY, "p1"), seen("p1"))
    assert moved(joined) == {("empty", "pending"): 1, ("empty", "ready"): 1, ("pending", "ready"): 1}
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"), PodGone(KEY, "list", "p2"))
    assert moved(joined)["ready", "draining"] == 2
    assert moved(joined)["draining", "empty"] == 1
    request.release()
    (drained,) = [event for event in joined.heard.events if event[0] == "drained"]
    joined.do(SlotDrained(KEY, int(drained[1]), int(drained[2])))
    assert moved(joined)["draining", "empty"] == 2


def test_batches_and_what_waited() -> None:
    joined = Joined()
    joined.worker.submit(RevisionSet(SPEC))
    joined.clock.pass_time(0.5)
    joined.worker.submit(seen("p1"))
    joined.clock.pass_time(0.25)
    assert joined.worker.turn()
    assert joined.worker.queue_wait.buckets()[-1][1] == 1
    assert joined.worker.queue_wait.sum == 0.75, "the oldest counts"
    assert joined.worker.processing.buckets()[-1][1] == joined.worker.batches_total == 1
    assert not joined.worker.turn()
    joined.clock.pass_time(5.0)
    joined.do(seen("p2"))
    assert joined.worker.queue_wait.sum == 0.75, "nobody waited while the queue was empty"
    assert joined.worker.queue_wait.buckets()[-1][1] == 2


def test_as_many_panics_as_changes_that_raise() -> None:
    def fails_for_p3(model: Model, change: Change, now_s: float) -> Reduction:
        if getattr(change, "identity", "") == "p3":
            raise ValueError("p3")
        return reduce(model, change, now_s)

    joined = Joined(fails_for_p3)
    joined.do(RevisionSet(SPEC))
    for panics in range(1, 4):
        joined.do(seen("p3"))
        assert joined.worker.panics_total == panics
        assert joined.worker.processing.buckets()[-1][1] == joined.worker.batches_total
        joined.clock.pass_time(100.0)
        assert not joined.worker.turn()
    joined.do(seen("p1"))
    assert joined.slots() == {"p1": "ready"}
