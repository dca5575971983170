"""The worker and its queue: folding, bounds, exceptions, completions."""

from __future__ import annotations

import asyncio

import pytest

from activator.config import PANIC_BACKOFF_INITIAL_S, PANIC_BACKOFF_MAX_S, PANIC_RESET_AFTER_S
from activator.state.messages import Change, Listed, PodGone, PodSeen, PodStatus, ProbeOrder, RevisionSet
from activator.state.model import Model, Reduction
from activator.state.queue import ChangeQueue
from activator.state.reduce import key_of, reduce
from activator.state.worker import Outcome
from tests.state.state_fakes import KEY, SPEC, Joined, seen


def test_a_thousand_updates_of_one_pod_cost_one_application() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    before = joined.worker.changes_total
    joined.do(*[seen("p1", PodStatus.READY if number % 2 else PodStatus.NOT_READY) for number in range(1000)])
    assert joined.worker.changes_total == before + 1
    assert joined.slots() == {"p1": "ready"}
    assert joined.worker.queue.folded_total == 999


def test_a_list_supersedes_what_its_source_said_before() -> None:
    queue = ChangeQueue(100)
    queue.put(seen("p1"))
    queue.put(seen("p2", source="other"))
    queue.put(PodGone(KEY, "list", "p3"))
    listed = Listed(KEY, "list", (seen("p9"),))
    queue.put(listed)
    assert queue.take(10) == [seen("p2", source="other"), listed]


def test_a_full_queue_drops_sightings_but_never_removals_and_marks_the_source() -> None:
    queue = ChangeQueue(2)
    assert queue.put(seen("p1"))
    assert queue.put(seen("p2"))
    assert not queue.put(seen("p3"))
    assert queue.put(PodGone(KEY, "list", "p4"))
    assert queue.put(seen("p1", PodStatus.NOT_READY)), "a change that folds needs no room"
    assert len(queue) == 3


class Trap:
    """`reduce`, but for changes of pods called "bad…": they raise."""

    def __init__(self) -> None:
        self.sprung = 0

    def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
        if isinstance(change, PodSeen) and change.identity.startswith("bad"):
            self.sprung += 1
            raise RuntimeError("sprung")
        return reduce(model, change, now_s)


OTHER = "ns/other"


def other(identity: str) -> PodSeen:
    return seen(identity, key=OTHER)


def test_an_exception_sets_one_change_aside_and_the_others_go_on_at_once() -> None:
    joined = Joined(Trap())
    joined.do(RevisionSet(SPEC), RevisionSet(type(SPEC)(key=OTHER)))
    joined.do(seen("bad1"), seen("p2"), other("o1"))
    assert joined.slots(OTHER) == {"o1": "ready"}
    assert joined.slots() == {}, "the revision is parked"
    joined.do(other("o2"))
    assert len(joined.slots(OTHER)) == 2
    joined.clock.pass_time(PANIC_BACKOFF_INITIAL_S + 0.01)
    joined.do()
    assert joined.slots() == {"p2": "ready"}, "what came meanwhile was kept"
    assert joined.worker.panics_total == 1
    assert "bad1" in joined.worker.supervision.dead_letters[0].change


def test_the_backoff_grows_and_resets_over_hours() -> None:
    """The seed of this project stored this time in one unit and read it in another."""
    joined = Joined(Trap())
    joined.do(RevisionSet(SPEC))
    waits = []
    for number in range(14):
        joined.do(seen(f"bad{number}"))
        waits.append(joined.worker.parked[KEY].until_s - joined.clock.now())
        joined.clock.pass_time(waits[-1] + 0.001)
        joined.do()
        assert KEY not in joined.worker.parked
    expected = [min(PANIC_BACKOFF_INITIAL_S * 2.0**number, PANIC_BACKOFF_MAX_S) for number in range(14)]
    assert waits == pytest.approx(expected)
    joined.clock.pass_time(PANIC_RESET_AFTER_S + 1.0)
    joined.do(seen("bad99"))
    assert joined.worker.parked[KEY].until_s - joined.clock.now() == pytest.approx(PANIC_BACKOFF_INITIAL_S)


def test_whoever_waits_for_a_change_hears_exactly_once() -> None:
    async def scenario() -> list[Outcome]:
        joined = Joined(Trap())
        joined.do(RevisionSet(SPEC))
        first = joined.worker.submit_and_tell(seen("p1"))
        second = joined.worker.submit_and_tell(seen("p1", PodStatus.NOT_READY))
        unknown = joined.worker.submit_and_tell(seen("p1", key="ns/none"))
        joined.do()
        bad = joined.worker.submit_and_tell(seen("bad1"))
        joined.do()
        running = asyncio.get_running_loop().create_task(joined.worker.run())
        await asyncio.sleep(0)
        parked = joined.worker.submit_and_tell(seen("p5"))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        late = joined.worker.submit_and_tell(seen("p6"))
        return [future.result() for future in (first, second, unknown, bad, parked, late)]

    assert asyncio.run(scenario()) == [
        Outcome.SUPERSEDED,
        Outcome.APPLIED,
        Outcome.REFUSED,
        Outcome.SET_ASIDE,
        Outcome.SHUT_DOWN,
        Outcome.SHUT_DOWN,
    ]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_loop_turns_when_nothing_happens() -> None:
    async def scenario() -> int:
        joined = Joined()
        running = asyncio.get_running_loop().create_task(joined.worker.run())
        joined.worker.submit(RevisionSet(SPEC))
        await turns(5)
        assert joined.worker.batches_total == 1
        joined.worker.submit(seen("p1"))
        await turns(5)
        running.cancel()
        await asyncio.wait({running})
        return len(joined.slots())

    assert asyncio.run(scenario()) == 1


def test_a_defect_of_the_loop_itself_does_not_close_the_worker() -> None:
    async def scenario() -> dict[str, str]:
        joined = Joined()
        broken = [True]

        def probe(orders: list[ProbeOrder]) -> None:
            if broken:
                broken.pop()
                raise RuntimeError("broken")

        joined.worker._probe = probe
        joined.worker.submit(RevisionSet(SPEC))
        joined.worker.submit(seen("p1", PodStatus.PENDING, probe=True))
        with pytest.raises(RuntimeError):
            await joined.worker.run()
        running = asyncio.get_running_loop().create_task(joined.worker.run())
        joined.worker.submit(seen("p2"))
        await turns(5)
        running.cancel()
        await asyncio.wait({running})
        return joined.slots()

    assert asyncio.run(scenario()) == {"p1": "pending", "p2": "ready"}


def test_every_change_belongs_to_a_revision() -> None:
    assert key_of(RevisionSet(SPEC)) == KEY
    assert key_of(seen("p1")) == KEY
