"""Knative's metrics of several workers: the same series as of one, summed."""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from activator.config.model.telemetry import KnativeExport
from activator.config.specs import RoutingSpec
from activator.telemetry.metrics.knative_requests import OTHER, Combination, KnativeRequests, RequestSeries
from activator.telemetry.metrics.request_counts import RequestCounter, RequestCounts, WorkersRequests
from activator.telemetry.request_hooks import NoRequests
from activator.workers.messages import RequestsCounted, encode, from_worker
from tests.data_plane.proxy.proxy_fakes import World, request_head

KEY = "ns/app"


def combination(host: str = "app.test", method: bytes = b"GET", status: int = 200) -> Combination:
    return method, False, host.encode(), "HTTP/1.1", status


def counted(number: int, key: str = KEY, of: Combination | None = None) -> RequestCounts:
    """A series of so many requests of 20 ms each."""
    series = RequestSeries(combination() if of is None else of)
    for _ in range(number):
        series.duration.observe(0.02)
        series.request_size.observe(3.0)
        series.response_size.observe(300.0)
    return RequestCounts.of(key, series)


def totals(sums: WorkersRequests, revisions: set[str]) -> dict[tuple[str, str], int]:
    """Requests by revision and host."""
    found: Counter[tuple[str, str]] = Counter()
    for key, one in sums.read(revisions):
        found[key, str(one.attributes()["server.address"])] += one.duration.buckets[-1][1]
        assert one.duration.buckets[-1][1] == one.request_size.buckets[-1][1] == one.response_size.buckets[-1][1]
    return dict(found)


def test_workers_are_added_up_and_what_a_dead_one_had_counted_stays() -> None:
    sums = WorkersRequests()
    sums.received(1, (counted(2), counted(1, of=combination("b.test"))))
    sums.received(2, (counted(5),))
    sums.received(1, (counted(3),))  # all since its start
    assert totals(sums, {KEY}) == {(KEY, "app.test"): 8, (KEY, "b.test"): 1}
    sums.worker_ended(1)
    sums.worker_ended(7)
    sums.received(3, (counted(10),))  # in its place
    assert totals(sums, {KEY}) == {(KEY, "app.test"): 18, (KEY, "b.test"): 1}
    (one,) = [one for _, one in sums.read({KEY}) if one.combination == combination()]
    assert round(one.duration.total, 6) == 18 * 0.02 and one.response_size.total == 18 * 300.0


def test_what_is_gone_is_deleted_and_what_no_revision_was_found_for_stays() -> None:
    sums = WorkersRequests()
    sums.received(1, (counted(2), counted(1, key=""), counted(4, key="ns/b")))
    sums.worker_ended(1)
    sums.received(2, (counted(2),))
    assert totals(sums, {"ns/b"}) == {("", "app.test"): 1, ("ns/b", "app.test"): 4}
    assert totals(sums, {"ns/b", KEY}) == {("", "app.test"): 1, ("ns/b", "app.test"): 4}


def test_the_bounds_are_those_of_one_worker() -> None:
    sums = WorkersRequests(series_max=10, revisions_max=3)
    for worker in range(4):
        for number in range(8):
            sums.received(worker, (counted(1, of=combination(f"h{worker}-{number}.test")),))
    found = totals(sums, {KEY})
    assert sum(found.values()) == 32
    assert found[KEY, OTHER] == 22 and len(found) == 11
    assert totals(sums, {KEY}) == found, "the same ones each time"
    sums.worker_ended(0)
    assert totals(sums, {KEY}) == found
    keys = {f"ns/{number}" for number in range(20)} | {KEY}
    for worker, key in enumerate(sorted(keys - {KEY})):
        sums.received(worker % 3, (counted(1, key),))
    found = totals(sums, keys)
    assert {key for key, _ in found} == {KEY, "ns/0", "ns/1", OTHER}
    assert sum(found.values()) == 52


def test_a_worker_sends_what_has_changed() -> None:
    hooks = NoRequests()
    counter = RequestCounter(hooks, lambda error: None)
    counter.set(KnativeExport("prometheus"))
    assert hooks.measurer is counter.requests
    assert counter.requests.take_changed() == []
    counter.set(KnativeExport())
    assert hooks.measurer is None


def test_the_message() -> None:
    sent = RequestsCounted((counted(3), counted(1, of=combination(method=b"_OTHER", status=0))))
    assert from_worker(encode([sent])) == [sent]
    assert msgspec.msgpack.decode(encode([sent]))


def test_sums_never_fall_while_workers_come_and_go() -> None:
    """And are what was counted, but for what an ended worker had not sent."""
    chance = random.Random(5)
    sums = WorkersRequests(series_max=6)
    counts: dict[int, Counter[Combination]] = {worker: Counter() for worker in range(3)}
    ended = 0
    workers = 3
    before: dict[tuple[str, str], int] = {}
    for _ in range(400):
        worker = chance.choice(list(counts))
        counts[worker][combination(f"h{chance.randrange(9)}.test")] += 1
        if chance.random() < 0.5:
            sums.received(worker, tuple(counted(number, of=of) for of, number in counts[worker].items()))
            now = totals(sums, {KEY})
            assert all(now[name] >= number for name, number in before.items())
            before = now
        if chance.random() < 0.03:
            sums.received(worker, tuple(counted(number, of=of) for of, number in counts[worker].items()))
            ended += counts.pop(worker).total()
            sums.worker_ended(worker)
            counts[workers] = Counter()
            workers += 1
    for worker, of_worker in counts.items():
        sums.received(worker, tuple(counted(number, of=of) for of, number in of_worker.items()))
    assert sum(totals(sums, {KEY}).values()) == 400 == ended + sum(one.total() for one in counts.values())


def test_requests_that_are_counted_are_sent_once() -> None:
    world = World(routing=RoutingSpec(hosts=("*",)))
    requests = KnativeRequests(world.errors.append)
    world.proxy.measurer = requests
    world.pod()
    for _ in range(2):
        exchange, _ = world.begin(request_head())
        world.answer(exchange)
    ((key, series),) = requests.take_changed()
    assert (key, series.duration.buckets()[-1][1]) == (world.throttler.key, 2)
    assert requests.take_changed() == []
    exchange, _ = world.begin(request_head())
    world.answer(exchange)
    ((_, series),) = requests.take_changed()
    assert series.duration.buckets()[-1][1] == 3, "all since the start"
    requests.forget_others({"ns/another"})
    exchange, _ = world.begin(request_head())
    world.answer(exchange)
    ((_, series),) = requests.take_changed()
    assert series.duration.buckets()[-1][1] == 1
    assert world.errors == []
