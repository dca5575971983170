"""The worker and its queue: folding, bounds, exceptions, completions."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from activator.config import PANIC_BACKOFF_INITIAL_S, PANIC_BACKOFF_MAX_S, PANIC_RESET_AFTER_S
from activator.state.messages import Change, Listed, PodGone, PodSeen, PodStatus, ProbeOrder, RevisionSet, SlotDrained
from activator.state.model import Model, Reduction
from activator.state.queue import ChangeQueue
from activator.state.reduce import key_of, reduce
from activator.state.worker import Outcome
from tests.state.state_fakes import KEY, SPEC, Joined, seen
from tests.throttle.throttle_fakes import Request


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


def test_a_flood_is_bounded_by_pods_and_costs_one_application_each() -> None:
    """10,000 updates a second over 1,000 pods for ten seconds, looked at ten times a second."""
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, max_scale=1000)))
    identities = [f"p{number}" for number in range(1000)]
    addresses = [f"10.1.{number // 250}.{number % 250}:80" for number in range(1000)]
    ready = [seen(identity, address=address) for identity, address in zip(identities, addresses)]
    unready = [replace(one, status=PodStatus.NOT_READY) for one in ready]
    joined.do(*ready)
    before = joined.worker.changes_total
    for tenth in range(100):
        for number in range(1000):
            joined.worker.submit(unready[number] if (tenth + number) % 2 else ready[number])
            assert len(joined.worker.queue) <= 1000
        joined.do()
    assert joined.worker.changes_total - before <= 100 * 1000
    joined.do(*(one for _ in range(100) for one in (*unready, *ready)))
    assert joined.worker.changes_total - before <= 101 * 1000, "200,000 of them were folded into 1,000"
    assert joined.worker.dropped_total == 0
    assert set(joined.slots().values()) == {"ready"}
    assert len(joined.slots()) == 1000


def test_a_lease_speaks_of_its_pod_when_the_slot_has_been_given_to_another() -> None:
    """The seed read the slot in the end of a request, when it could be another pod's already."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = Request(joined.throttler())
    request.ask(joined.clock.now())
    lease = request.lease
    assert lease is not None
    joined.do(PodGone(KEY, "list", "p1"))
    joined.do(SlotDrained(KEY, int(lease.tracker.slot), lease.generation, forced=True), seen("p2"))
    assert lease.tracker.identity == "p2", "the slot is another pod's"
    assert (lease.identity, lease.address) == ("p1", "10.0.0.1:80")
    second = Request(joined.throttler())
    second.ask(joined.clock.now())
    request.release()
    table = joined.throttler().table
    assert (table.late_releases, table.in_flight) == (1, 1), "the release of p1 took nothing from p2"
