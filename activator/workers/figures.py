"""The figures of many workers as those of one data plane.

Rules
  1. A revision lives from its `SetRevision` to its `DropRevision`, whatever incarnations the workers give it.
  2. Totals never fall: what a worker reported is kept when it has ended. Its gauges are dropped.
  3. Requests, bytes and connections are summed. All workers have the same table, except for short times: pods, capacity
     and slots are the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeVar

from msgspec.structs import replace

from activator.messages import (
    DataPlaneStatistics,
    DropRevision,
    Effect,
    Http2Statistics,
    RebuildRevision,
    RevisionEnded,
    RevisionStatistics,
    SetRevision,
    TableStatistics,
    TrafficStatistics,
)
from activator.runtime.distribution import Distribution
from activator.workers.messages import WorkerCounts

Key = TypeVar("Key")


class Life:
    """One life of a revision. `number` is its incarnation in the figures."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.of_workers: dict[int, RevisionStatistics] = {}
        self.ended: RevisionStatistics | None = None  # totals of the workers that do not report it any more
        self.leaving: set[int] | None = None  # once it was dropped: workers that may still have requests of it

    def sum(self) -> RevisionStatistics | None:
        """Return the sum over all workers; None if no worker has reported it."""
        parts = [*self.of_workers.values()]
        if self.ended is not None:
            parts.append(self.ended)
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = plus(total, part)
        return replace(total, incarnation=self.number, dropped=self.leaving is not None)

    def worker_ended(self, worker: int) -> None:
        """Keep the totals of a worker that has ended, or has no request of it any more."""
        last = self.of_workers.pop(worker, None)
        if last is not None:
            lasting = totals_of(last)
            self.ended = lasting if self.ended is None else plus(self.ended, lasting)
        if self.leaving is not None:
            self.leaving.discard(worker)


class Figures:
    """The figures of all workers. `ended` is called with the last figures of a revision that was dropped."""

    def __init__(self, ended: Callable[[RevisionStatistics], None]) -> None:
        self._ended = ended
        self._lives: dict[str, Life] = {}
        self._dropped: list[Life] = []
        self._life_of: dict[tuple[int, int], Life] = {}  # by worker and its incarnation
        self._numbers = 0
        self._counts: dict[int, WorkerCounts] = {}
        self._ended_counts = WorkerCounts()

    # --- events ---

    def applied(self, effects: list[Effect], workers: list[int]) -> None:
        """Begin and end lives, after effects were sent to these workers."""
        for effect in effects:
            if type(effect) is SetRevision or type(effect) is RebuildRevision:
                if effect.key not in self._lives:
                    self._numbers += 1
                    self._lives[effect.key] = Life(self._numbers)
            elif type(effect) is DropRevision:
                life = self._lives.pop(effect.key, None)
                if life is not None:
                    life.leaving = set(workers)
                    self._dropped.append(life)

    def reported(self, worker: int, revisions: tuple[RevisionStatistics, ...]) -> None:
        """Take the figures of revisions that a worker has reported."""
        for one in revisions:
            life = self._found(worker, one)
            if life is not None:
                life.of_workers[worker] = one

    def counted(self, worker: int, counts: WorkerCounts) -> None:
        """Take the counts of a worker as a whole."""
        self._counts[worker] = counts

    def revision_ended(self, worker: int, message: RevisionEnded) -> None:
        """Take the last figures of a worker for a dropped revision."""
        statistics = message.statistics
        life = self._found(worker, statistics)
        self._life_of.pop((worker, statistics.incarnation), None)
        if life is not None:
            life.of_workers[worker] = statistics
            life.worker_ended(worker)
            self._conclude(life)

    def worker_ended(self, worker: int) -> None:
        """Keep the totals of a worker that has ended."""
        for life in [*self._lives.values(), *self._dropped]:
            life.worker_ended(worker)
            self._conclude(life)
        for known in [known for known in self._life_of if known[0] == worker]:
            del self._life_of[known]
        counts = self._counts.pop(worker, None)
        if counts is not None:
            data = counts.data
            lasting = DataPlaneStatistics(
                handshakes_closed_total=data.handshakes_closed_total,
                accepted_total=data.accepted_total,
                shed_total=data.shed_total,
                refused_requests=data.refused_requests,
                transitions=data.transitions,
                errors_total=data.errors_total,
                http2=replace(data.http2, connections=0, streams=0),
            )
            counts = replace(counts, data=lasting, resident_bytes=0, owned=0, held=0)
            self._ended_counts = counts_plus(self._ended_counts, counts)

    # --- queries ---

    def revision_keys(self) -> AbstractSet[str]:
        """Return the keys of the revisions that were not dropped."""
        return self._lives.keys()

    def revisions(self) -> Iterator[RevisionStatistics]:
        """Yield the figures of all lives, as they were reported last."""
        for life in [*self._lives.values(), *self._dropped]:
            total = life.sum()
            if total is not None:
                yield total

    def counts(self) -> WorkerCounts:
        """Return the counts of all workers, including those that have ended."""
        total = self._ended_counts
        for counts in self._counts.values():
            total = counts_plus(total, counts)
        return total

    def ownership(self) -> tuple[int, int]:
        """Return how many revisions the workers own, and for how many of them they cannot grant slots yet."""
        return sum(one.owned for one in self._counts.values()), sum(one.held for one in self._counts.values())

    # --- internal ---

    def _found(self, worker: int, statistics: RevisionStatistics) -> Life | None:
        known = self._life_of.get((worker, statistics.incarnation))
        if known is None:
            known = self._guessed(worker, statistics)
            if known is not None:
                self._life_of[worker, statistics.incarnation] = known
        return known

    def _guessed(self, worker: int, statistics: RevisionStatistics) -> Life | None:
        """Return the present life of the key.

        If it was dropped, return the newest dropped life that this worker still has to report.
        """
        if not statistics.dropped:
            return self._lives.get(statistics.key)
        for life in reversed(self._dropped):
            if life.leaving and worker in life.leaving and worker not in life.of_workers:
                return life
        return None

    def _conclude(self, life: Life) -> None:
        if life.leaving is None or life.leaving or life not in self._dropped:
            return
        self._dropped.remove(life)
        total = life.sum()
        if total is not None:
            self._ended(total)


# --- sums -----------------------------------------------------------------------------------------------------------


def plus(one: RevisionStatistics, other: RevisionStatistics) -> RevisionStatistics:
    """Return the sum of both; names and settings are those of the first."""
    return replace(
        one,
        requests_total=one.requests_total + other.requests_total,
        responses=_sums(one.responses, other.responses),
        grpc_statuses=_sums(one.grpc_statuses, other.grpc_statuses),
        failures=_sums(one.failures, other.failures),
        retries=_sums(one.retries, other.retries),
        fallbacks=_sums(one.fallbacks, other.fallbacks),
        client_gone_total=one.client_gone_total + other.client_gone_total,
        queued=one.queued + other.queued,
        gathering=one.gathering + other.gathering,
        delivering=one.delivering + other.delivering,
        held_bytes=one.held_bytes + other.held_bytes,
        granted_total=one.granted_total + other.granted_total,
        exempted_total=one.exempted_total + other.exempted_total,
        errors_total=one.errors_total + other.errors_total,
        cold_starts_total=max(one.cold_starts_total, other.cold_starts_total),
        cannot_start=one.cannot_start or other.cannot_start,
        traffic=_traffic(one.traffic, other.traffic),
        table=_table(one.table, other.table),
    )


def totals_of(one: RevisionStatistics) -> RevisionStatistics:
    """Return the totals, which are kept when the worker has ended, without the gauges."""
    table = TableStatistics(
        in_flight=0,
        capacity=0,
        pods=(0,) * len(one.table.pods),
        connections=(0, 0, 0, 0),
        length=0,
        slots=0,
        holes=0,
        trailing=0,
        fragmentation=0.0,
        trims=one.table.trims,
        growths=one.table.growths,
        full_total=one.table.full_total,
        late_releases=one.table.late_releases,
        bad_picks=one.table.bad_picks,
    )
    traffic = None if one.traffic is None else replace(one.traffic, tunnels=0)
    return replace(
        one,
        queued=0,
        gathering=0,
        delivering=0,
        held_bytes=0,
        cannot_start=False,
        traffic=traffic,
        table=table,
    )


def _http2_plus(a: Http2Statistics, b: Http2Statistics) -> Http2Statistics:
    return Http2Statistics(
        connections=a.connections + b.connections,
        streams=a.streams + b.streams,
        connections_total=a.connections_total + b.connections_total,
        requests_total=a.requests_total + b.requests_total,
        reset_total=a.reset_total + b.reset_total,
        failed_total=a.failed_total + b.failed_total,
        refused_total=a.refused_total + b.refused_total,
        errors=_sums(a.errors, b.errors),
    )


def counts_plus(one: WorkerCounts, other: WorkerCounts) -> WorkerCounts:
    """Return the sum of both."""
    a, b = one.data, other.data
    data = DataPlaneStatistics(
        client_connections=a.client_connections + b.client_connections,
        handshakes=a.handshakes + b.handshakes,
        handshakes_closed_total=a.handshakes_closed_total + b.handshakes_closed_total,
        accepted_total=a.accepted_total + b.accepted_total,
        shed_total=a.shed_total + b.shed_total,
        exchanges=a.exchanges + b.exchanges,
        held_bytes=a.held_bytes + b.held_bytes,
        held_requests=a.held_requests + b.held_requests,
        file_bytes=a.file_bytes + b.file_bytes,
        answers=a.answers + b.answers,
        answer_bytes=a.answer_bytes + b.answer_bytes,
        answer_totals=_sums(a.answer_totals, b.answer_totals),
        refused_requests=_sums(a.refused_requests, b.refused_requests),
        transitions=_greatest(a.transitions, b.transitions),  # each worker counts the same transitions
        errors_total=a.errors_total + b.errors_total,
        http2=_http2_plus(a.http2, b.http2),
    )
    return WorkerCounts(
        data,
        one.lost_log_lines + other.lost_log_lines,
        _sums(one.spans, other.spans),
        one.cpu_s + other.cpu_s,
        one.resident_bytes + other.resident_bytes,
        one.owned + other.owned,
        one.held + other.held,
    )


def _traffic(one: TrafficStatistics | None, other: TrafficStatistics | None) -> TrafficStatistics | None:
    if one is None or other is None:
        return one or other
    cold: dict[str, Distribution] = dict(one.cold)
    for phase, more in other.cold.items():
        cold[phase] = cold[phase].plus(more) if phase in cold else more
    return TrafficStatistics(
        duration=one.duration.plus(other.duration),
        first_byte=one.first_byte.plus(other.first_byte),
        wait=one.wait.plus(other.wait),
        cold=cold,
        request_bytes=one.request_bytes + other.request_bytes,
        response_bytes=one.response_bytes + other.response_bytes,
        tunnels=one.tunnels + other.tunnels,
        tunnels_total=one.tunnels_total + other.tunnels_total,
    )


def _table(one: TableStatistics, other: TableStatistics) -> TableStatistics:
    a, b = one.connections, other.connections
    return TableStatistics(
        in_flight=one.in_flight + other.in_flight,
        capacity=max(one.capacity, other.capacity),
        pods=tuple([max(pair) for pair in zip(one.pods, other.pods)]),
        connections=(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]),
        length=max(one.length, other.length),
        slots=max(one.slots, other.slots),
        holes=max(one.holes, other.holes),
        trailing=max(one.trailing, other.trailing),
        fragmentation=max(one.fragmentation, other.fragmentation),
        trims=max(one.trims, other.trims),
        growths=max(one.growths, other.growths),
        full_total=max(one.full_total, other.full_total),
        late_releases=one.late_releases + other.late_releases,
        bad_picks=one.bad_picks + other.bad_picks,
    )


def _sums(one: dict[Key, int], other: dict[Key, int]) -> dict[Key, int]:
    total = dict(one)
    for key, count in other.items():
        total[key] = total.get(key, 0) + count
    return total


def _greatest(one: dict[Key, int], other: dict[Key, int]) -> dict[Key, int]:
    total = dict(one)
    for key, count in other.items():
        total[key] = max(total.get(key, 0), count)
    return total
