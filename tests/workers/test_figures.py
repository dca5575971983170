"""The figures of many workers as those of one: sums, and totals that never fall."""

from __future__ import annotations

import math
import typing
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from activator.config.specs import KnativeSpec, RevisionSpec
from activator.messages import (
    DataPlaneStatistics,
    DropRevision,
    Http2Statistics,
    RevisionEnded,
    RevisionStatistics,
    SetRevision,
    TableStatistics,
    TrafficStatistics,
)
from activator.runtime.distribution import Distribution
from activator.workers.figures import WorkerTotals
from activator.workers.messages import Statistics, WorkerCounts, encode, from_worker
from activator.workers.sums import GAUGES, OF_FIRST, lasting, plus

KEY = "ns/a"


def table(number: int) -> TableStatistics:
    return TableStatistics(
        in_flight=number,
        capacity=number,
        pods=(0, number, 0, 0, 0, 0, 0),
        connections=(number, 0, 0, number),
        length=number,
        slots=number,
        holes=number,
        trailing=number,
        fragmentation=float(number),
        trims=number,
        growths=number,
        full_total=number,
        late_releases=number,
        bad_picks=number,
    )


def revision(number: int, incarnation: int = 1, dropped: bool = False, key: str = KEY) -> RevisionStatistics:
    """Each figure is `number`."""
    took = Distribution(((0.1, number), (math.inf, number)), float(number))
    traffic = TrafficStatistics(took, took, took, {"start": took}, number, number, number, number)
    return RevisionStatistics(
        key=key,
        incarnation=incarnation,
        dropped=dropped,
        knative=KnativeSpec(),
        policy="round-robin",
        requests_total=number,
        responses={200: number},
        grpc_statuses={0: number},
        failures={"timeout": number},
        retries={"refused": number},
        fallbacks={"ns/other": number},
        client_gone_total=number,
        queued=number,
        queue_limit=100,
        gathering=number,
        delivering=number,
        held_bytes=number,
        granted_total=number,
        exempted_total=number,
        errors_total=number,
        cold_starts_total=number,
        cannot_start=False,
        traffic=traffic,
        table=table(number),
        by_pod={"10.0.0.1:80": (number, number, float(number))},
    )


def numbers_of(value: Any) -> list[tuple[str, float]]:
    """Every number in it, with the name of its field."""
    found: list[tuple[str, float]] = []

    def walk(name: str, one: Any) -> None:
        if hasattr(one, "__struct_fields__"):
            for field in one.__struct_fields__:
                walk(f"{name}.{field}", getattr(one, field))
        elif isinstance(one, dict):
            for key, part in one.items():
                walk(f"{name}.{key}", part)
        elif isinstance(one, tuple):
            for place, part in enumerate(one):
                walk(f"{name}.{place}", part)
        elif isinstance(one, int | float) and not isinstance(one, bool):
            found.append((name, float(one)))

    walk("", value)
    return found


def test_every_figure_of_two_is_their_sum_or_the_greater_one() -> None:
    greatest = {"cold_starts_total", "capacity", "length", "slots", "holes", "trailing", "fragmentation"}
    greatest |= {"trims", "growths", "full_total", "pods.1"}
    same = {"queue_limit", "incarnation"}
    for name, value in numbers_of(plus(revision(3), revision(4))):
        if name.endswith((".0.0", ".1.0")) and "buckets" not in name and ("traffic" in name):
            continue  # a bound of a histogram
        field = name.removeprefix(".").removeprefix("table.")
        if field in same or value == 0.0:
            continue
        expected = 4.0 if field in greatest else 7.0
        assert value == expected, name


@given(some.lists(some.integers(0, 50), min_size=1, max_size=6))
def test_sums_are_the_same_in_any_order(numbers: list[int]) -> None:
    forth, back = revision(numbers[0]), revision(numbers[-1])
    for number in numbers[1:]:
        forth = plus(forth, revision(number))
    for number in reversed(numbers[:-1]):
        back = plus(back, revision(number))
    assert forth == back


class Read:
    """Figures, and the last ones of revisions that ended."""

    def __init__(self) -> None:
        self.ended: list[RevisionStatistics] = []
        self.figures = WorkerTotals(self.ended.append)
        self.figures.applied([SetRevision(RevisionSpec(key=KEY))], [1, 2])

    def one(self) -> RevisionStatistics:
        (found,) = self.figures.revisions()
        return found


def test_totals_stay_when_a_worker_ends_and_gauges_go() -> None:
    read = Read()
    read.figures.reported(1, (revision(3),))
    read.figures.reported(2, (revision(4, incarnation=9),))
    both = read.one()
    assert (both.requests_total, both.queued, both.table.in_flight) == (7, 7, 7)
    read.figures.worker_ended(1)
    left = read.one()
    assert (left.requests_total, left.responses, left.queued, left.table.in_flight) == (7, {200: 7}, 4, 4)
    assert left.incarnation == both.incarnation, "the same series"
    read.figures.reported(3, (revision(1, incarnation=1),))  # in its place
    again = read.one()
    assert (again.requests_total, again.queued) == (8, 5)
    assert again.traffic is not None and again.traffic.duration.total == 8.0 and again.traffic.tunnels == 5


def test_a_report_replaces_the_one_before() -> None:
    read = Read()
    read.figures.reported(1, (revision(3),))
    read.figures.reported(1, (revision(5),))
    assert read.one().requests_total == 5


def test_a_revision_that_comes_back_is_another_one() -> None:
    read = Read()
    for worker in (1, 2):
        read.figures.reported(worker, (revision(3),))
    first = read.one().incarnation
    read.figures.applied([DropRevision(KEY), SetRevision(RevisionSpec(key=KEY))], [1, 2])
    for worker in (1, 2):
        read.figures.reported(worker, (revision(4, incarnation=1, dropped=True), revision(1, incarnation=2)))
    old, new = sorted(read.figures.revisions(), key=lambda one: one.incarnation)
    assert (old.incarnation, old.requests_total, old.dropped) == (first, 8, True)
    assert (new.requests_total, new.dropped) == (2, False)
    read.figures.revision_ended(1, RevisionEnded(revision(5, incarnation=1, dropped=True)))
    assert read.ended == []
    read.figures.revision_ended(2, RevisionEnded(revision(6, incarnation=1, dropped=True)))
    assert [(one.incarnation, one.requests_total) for one in read.ended] == [(first, 11)]
    assert read.one().requests_total == 2


def test_a_dropped_revision_ends_with_its_last_worker() -> None:
    read = Read()
    read.figures.reported(1, (revision(3),))
    read.figures.applied([DropRevision(KEY)], [1, 2])
    read.figures.revision_ended(1, RevisionEnded(revision(3, dropped=True)))
    read.figures.worker_ended(2)
    assert [one.requests_total for one in read.ended] == [3]
    assert list(read.figures.revisions()) == []


def test_counts_of_the_whole() -> None:
    read = Read()
    one = WorkerCounts(
        DataPlaneStatistics(
            client_connections=2, accepted_total=5, transitions={(1, 2): 3}, answer_totals={"delivered": 1}
        ),
        1,
        {"sent": 4},
    )
    read.figures.counted(1, one)
    read.figures.counted(2, one)
    assert read.figures.counts() == plus(one, one)
    assert read.figures.counts().data.transitions == {(1, 2): 3}, "the same pods in each"
    read.figures.worker_ended(1)
    counts = read.figures.counts()
    assert (counts.data.client_connections, counts.data.accepted_total, counts.spans) == (2, 10, {"sent": 8})
    assert counts.data.answer_totals == {"delivered": 2}


def test_what_stays_has_no_gauges() -> None:
    kept = lasting(revision(5))
    assert kept.traffic is not None
    gauges = (kept.queued, kept.held_bytes, kept.table.in_flight, kept.table.pods, kept.traffic.tunnels)
    assert gauges == (0, 0, 0, (0,) * 7, 0)
    assert (kept.requests_total, kept.table.late_releases) == (5, 5)


def test_a_report_crosses_the_wire() -> None:
    counts = WorkerCounts(DataPlaneStatistics(transitions={(1, 2): 3}), 1, {"sent": 4})
    message = Statistics(1, (revision(3),), complete=True, counts=counts)
    assert from_worker(encode([message])) == [message]


def test_a_number_is_a_total_or_a_gauge() -> None:
    """A gauge that is not named would stay in the sums when its worker has ended."""
    totals = {
        "trims", "growths", "late_releases", "bad_picks", "request_bytes", "response_bytes", "lost_log_lines", "cpu_s",
    }  # fmt: skip
    for struct in (
        RevisionStatistics,
        TableStatistics,
        TrafficStatistics,
        DataPlaneStatistics,
        Http2Statistics,
        WorkerCounts,
    ):
        for field in msgspec.structs.fields(struct):
            if field.type in (int, float, bool) or typing.get_origin(field.type) is tuple:
                is_total = field.name.endswith("_total") or field.name in totals
                assert is_total != (field.name in GAUGES | OF_FIRST), f"{struct.__name__}.{field.name}"


def test_the_figures_of_a_pod_are_kept_as_long_as_a_worker_has_the_pod() -> None:
    ended: list[RevisionStatistics] = []
    totals = WorkerTotals(ended.append)
    totals.applied([SetRevision(RevisionSpec(KEY))], [0, 1])

    def report(worker: int, **pods: int) -> None:
        by_pod = {name: (count, 0, float(count)) for name, count in pods.items()}
        totals.reported(worker, (replace(revision(1, incarnation=worker + 1), by_pod=by_pod),))

    def counts() -> dict[str, int]:
        (total,) = totals.revisions()
        return {name: figures[0] for name, figures in total.by_pod.items()}

    report(0, a=1, b=2)
    report(1, a=10, b=20)
    assert counts() == {"a": 11, "b": 22}
    totals.worker_ended(0)
    assert counts() == {"a": 11, "b": 22}
    report(1, a=11, c=5)
    assert counts() == {"a": 12, "c": 5}, "`b` has gone"
    report(2, a=0, c=1)
    totals.worker_ended(1)
    assert counts() == {"a": 12, "c": 6}
    totals.worker_ended(2)
    assert counts() == {}
    report(3, a=1, c=0)
    assert counts() == {"a": 13, "c": 6}
    for number in range(100):
        report(3, **{str(number): 1})
        assert counts() == {str(number): 1}
