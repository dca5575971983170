"""The worker and its queue: folding, bounds, exceptions, completions."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest
from msgspec.structs import replace

from activator.config.specs import RevisionSpec, RoutingSpec
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.queue import ChangeQueue, FoldKey, fold_key
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import (
    PANIC_BACKOFF_INITIAL_S,
    PANIC_BACKOFF_MAX_S,
    PANIC_BUDGET,
    PANIC_RESET_AFTER_S,
)
from activator.control_plane.state.worker import ChangeOutcome, StateWorker
from activator.messages import (
    Change,
    ObservedPod,
    PodGone,
    PodsListed,
    PodStatus,
    ProbeOrder,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from tests.conftest import DEEP
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, balanced, seen
from tests.manual_clock import ManualClock


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
    listed = PodsListed(KEY, "list", (seen("p9"),))
    queue.put(listed)
    assert queue.take(10) == [seen("p2", source="other"), listed]


def test_a_list_supersedes_what_its_source_said_since_the_list_before() -> None:
    queue = ChangeQueue(100)
    queue.put(PodsListed(KEY, "list", (seen("p1"),)))
    queue.put(seen("p1", PodStatus.NOT_READY))
    queue.put(seen("p2"))
    listed = PodsListed(KEY, "list", (seen("p1"),))
    queue.put(listed)
    assert queue.take(10) == [listed], "or the older word would come after it"


_FIRST = RevisionSpec(key=KEY, routing=RoutingSpec(hosts=("first.test",)))
_SECOND = RevisionSpec(key=KEY, routing=RoutingSpec(hosts=("second.test",)))
_SAID: list[Change] = [
    RevisionSet(_FIRST),
    RevisionSet(_SECOND),
    RevisionGone(KEY),
    RevisionFailed(KEY, "broken"),
    RevisionRecovered(KEY),
    PodsListed(KEY, "list", (seen("p1"),)),
    PodsListed(KEY, "list", (seen("p2"),)),
]


def outcome(joined: Joined) -> object:
    """What routing depends on."""
    throttler = joined.tables.throttlers.get(KEY)
    if throttler is None:
        return None
    return (
        throttler.spec.routing.hosts,
        throttler.queue.failure,
        {name for name, state in joined.slots().items() if state == "ready"},
    )


def is_sensible(said: tuple[Change, ...], existed: bool) -> bool:
    """Sources say nothing of a revision that is not there, but that it is."""
    for change in said:
        if isinstance(change, RevisionSet | RevisionGone):
            existed = isinstance(change, RevisionSet)
        elif not existed:
            return False
    return True


@pytest.mark.parametrize("existed", [False, True])
def test_what_was_said_at_once_ends_as_what_was_said_one_by_one(existed: bool) -> None:
    """Deleted, made anew, deleted: folding must not put what is said of the second before the end of the first."""
    for said in [said for said in itertools.product(_SAID, repeat=4 if DEEP else 3) if is_sensible(said, existed)]:
        at_once, one_by_one = Joined(), Joined()
        for joined in (at_once, one_by_one):
            if existed:
                joined.do(RevisionSet(_FIRST))
        at_once.do(*said)
        for change in said:
            one_by_one.do(change)
        assert outcome(at_once) == outcome(one_by_one), said


def test_a_deletion_settles_what_it_takes_the_place_of() -> None:
    superseded: list[FoldKey] = []
    queue = ChangeQueue(100, superseded.append)
    others = seen("p1", key="ns/other")
    for change in (RevisionSet(_FIRST), others, seen("p1"), RevisionGone(KEY), RevisionSet(_SECOND)):
        assert queue.put(change)
    assert superseded == [fold_key(RevisionSet(_FIRST)), fold_key(seen("p1"))]
    assert queue.take(1) == [others]
    assert queue.take(10) == [RevisionGone(KEY), RevisionSet(_SECOND)]
    assert len(queue) == 0 and queue.take(10) == []


def test_a_full_queue_drops_sightings_but_never_removals_and_drains() -> None:
    queue = ChangeQueue(2)
    assert queue.put(seen("p1"))
    assert queue.put(seen("p2"))
    assert not queue.put(seen("p3"))
    assert queue.put(PodGone(KEY, "list", "p4"))
    assert queue.put(seen("p1", PodStatus.NOT_READY)), "a change that folds needs no room"
    assert queue.put(seen("p5", PodStatus.DRAINING)), "or it would go on getting requests"
    assert len(queue) == 4


class Trap:
    """`reduce`, but for changes of pods called "bad…": they raise."""

    def __init__(self) -> None:
        self.sprung = 0

    def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
        if isinstance(change, ObservedPod) and change.identity.startswith("bad"):
            self.sprung += 1
            raise RuntimeError("sprung")
        return reduce(model, change, now_s)


OTHER = "ns/other"


def other(identity: str) -> ObservedPod:
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


def test_what_finds_a_parked_revisions_queue_full_or_the_queue_after_its_backoff_is_counted_as_dropped() -> None:
    trap = Trap()

    def reduce_with_no_room(model: Model, change: Change, now_s: float) -> Reduction:
        if change == RevisionSet(RevisionSpec(key=OTHER)):  # comes between the panic and the next of the same batch
            joined.worker.parked[KEY].changes._changes_max = 0
        return trap(model, change, now_s)

    joined = Joined(reduce_with_no_room)
    joined.do(RevisionSet(SPEC))
    for change in (seen("bad1"), RevisionSet(RevisionSpec(key=OTHER)), seen("p2")):
        joined.worker.submit(change)
    assert joined.worker.turn()
    assert (joined.worker.dropped_total, joined.dirty) == (1, [("list", KEY)])
    joined.worker.parked[KEY].changes._changes_max = 1
    joined.worker.submit(seen("p3"))
    assert joined.worker.dropped_total == 1
    joined.worker.queue._changes_max = 0
    joined.clock.pass_time(2.0 * PANIC_BACKOFF_INITIAL_S)
    joined.do()
    assert (joined.worker.dropped_total, joined.slots()) == (2, {})
    assert joined.dirty == [("list", KEY)] * 3, "two that were dropped, and what had panicked"


def test_of_a_revision_that_has_gone_no_panic_counts_any_more() -> None:
    joined = Joined(Trap())
    joined.do(RevisionSet(SPEC))
    for number in range(PANIC_BUDGET + 1):
        joined.do(seen(f"bad{number}"))
        joined.clock.pass_time(PANIC_BACKOFF_MAX_S)
        joined.do()
    supervision = joined.worker.supervision
    assert supervision.over_budget(1, joined.clock.now()) != []
    joined.do(RevisionGone(KEY))
    assert supervision.over_budget(1, joined.clock.now()) == []
    assert supervision.next_backoff_s(joined.clock.now()) == 0.0
    joined.do(RevisionSet(SPEC), seen("bad"))
    assert joined.worker.parked[KEY].until_s - joined.clock.now() == pytest.approx(PANIC_BACKOFF_INITIAL_S)


def test_a_batch_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    joined = Joined()
    with caplog.at_level(logging.DEBUG, "activator.state"):
        joined.do(RevisionSet(SPEC), *(seen(f"p{number}") for number in range(50)))
        joined.do(seen("p1"), seen("p2"), PodGone(KEY, "list", "p3"))
    assert [record.getMessage() for record in caplog.records] == ["51 changes, 51 effects", "3 changes, 1 effects"]


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
    async def scenario() -> list[ChangeOutcome]:
        joined = Joined(Trap())
        joined.do(RevisionSet(SPEC))
        first = joined.worker.submit_with_outcome(seen("p1"))
        second = joined.worker.submit_with_outcome(seen("p1", PodStatus.NOT_READY))
        unknown = joined.worker.submit_with_outcome(seen("p1", key="ns/none"))
        joined.do()
        bad = joined.worker.submit_with_outcome(seen("bad1"))
        joined.do()
        running = asyncio.get_running_loop().create_task(joined.worker.run())
        await asyncio.sleep(0)
        parked = joined.worker.submit_with_outcome(seen("p5"))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        late = joined.worker.submit_with_outcome(seen("p6"))
        return [future.result() for future in (first, second, unknown, bad, parked, late)]

    assert asyncio.run(scenario()) == [
        ChangeOutcome.SUPERSEDED,
        ChangeOutcome.APPLIED,
        ChangeOutcome.REFUSED,
        ChangeOutcome.SET_ASIDE,
        ChangeOutcome.SHUT_DOWN,
        ChangeOutcome.SHUT_DOWN,
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


def test_what_requests_have_written_does_not_wait_for_a_batch() -> None:
    order: list[str] = []
    clock = ManualClock()

    def reducing(model: Model, change: Change, now_s: float) -> Reduction:
        order.append("reduced")
        return reduce(model, change, now_s)

    def written_out() -> None:
        order.append("written out")

    worker = StateWorker(
        clock.now,
        lambda effects: order.append("applied"),
        lambda orders: None,
        lambda source, key: None,
        reducing,
        before_batch=written_out,
    )
    assert not worker.turn()
    assert order == [], "there is no batch"
    worker.submit(RevisionSet(SPEC))
    assert worker.turn()
    assert order == ["written out", "reduced", "applied"]


def test_every_change_belongs_to_a_revision() -> None:
    assert RevisionSet(SPEC).key == KEY
    assert seen("p1").key == KEY


def test_a_flood_is_bounded_by_pods_and_costs_one_application_each() -> None:
    """10,000 updates a second over 1,000 pods for ten seconds, looked at ten times a second."""
    joined = Joined()
    joined.do(RevisionSet(balanced(max_scale=1000)))
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


def test_a_revision_whose_every_change_panics_costs_the_others_one_attempt_and_no_wait() -> None:
    """By count, not by the clock: what it costs in time, `python -m bench flood` measures."""
    tried: list[Change] = []

    def counting(model: Model, change: Change, now_s: float) -> Reduction:
        tried.append(change)
        if change.key == KEY and not isinstance(change, RevisionSet):
            raise RuntimeError("injected")
        return reduce(model, change, now_s)

    joined = Joined(counting)
    joined.do(RevisionSet(SPEC), RevisionSet(type(SPEC)(key=OTHER)))
    tried.clear()
    for number in range(400):
        joined.worker.submit(seen(f"bad{number}"))
    joined.worker.submit(other("o1"))
    assert joined.worker.turn()
    assert joined.slots(OTHER) == {"o1": "ready"}, "in the same turn"
    assert len(tried) == 2, "the first of them, and the other's"
    for second in range(120):
        for number in range(10):
            joined.worker.submit(seen(f"worse{second}-{number}"))
        joined.do(other(f"o{second}"))
        joined.clock.pass_time(1.0)
    bad = [change for change in tried if change.key == KEY]
    assert len(bad) <= 12, "the backoff grows: at most one attempt each"
    assert len(joined.worker.parked[KEY].changes) > 1000, "what it has to say is kept, bounded, and in nobody's way"


def test_a_list_in_which_little_is_new_is_read_as_one_in_which_all_is() -> None:
    """What stands in it as the same objects is passed over, unless anything was said of a pod in between."""
    p1, p2, p3 = seen("p1"), seen("p2"), seen("p3")
    joined = Joined()
    joined.do(RevisionSet(SPEC), PodsListed(KEY, "list", (p1, p2)))

    def lists(*pods: ObservedPod, source: str = "list") -> dict[str, str]:
        joined.do(PodsListed(KEY, source, pods))
        return joined.slots()

    model = joined.worker.model
    assert model.lists[KEY].pods == (p1, p2)
    assert lists(p1, replace(p2, status=PodStatus.NOT_READY)) == {"p1": "ready", "p2": "not_ready"}
    assert lists(p1, p2) == {"p1": "ready", "p2": "ready"}
    assert lists(p1, p2, p3) == {"p1": "ready", "p2": "ready", "p3": "ready"}
    assert lists(p3, p1) == {"p1": "ready", "p3": "ready"}
    joined.do(replace(p1, status=PodStatus.NOT_READY))
    assert KEY not in model.lists
    assert lists(p3, p1) == {"p1": "ready", "p3": "ready"}, "the last word counts, also where it is an old one"
    joined.do(PodGone(KEY, "list", "p3"))
    assert lists(p3, p1) == {"p1": "ready", "p3": "ready"}
    other_words = [replace(pod, source="watch", status=PodStatus.NOT_READY) for pod in (p3, p1)]
    assert lists(*other_words, source="watch") == {"p1": "not_ready", "p3": "not_ready"}
    assert lists(p3, p1) == {"p1": "not_ready", "p3": "not_ready"}, "both sources' words count"
    assert lists(source="watch") == {"p1": "ready", "p3": "ready"}
    assert lists(p1, replace(p1, status=PodStatus.NOT_READY)) == {"p1": "not_ready"}
    assert KEY not in model.lists, "a list that contradicts itself is read anew each time"
    joined.do(RevisionGone(KEY))
    assert model.lists == {}
