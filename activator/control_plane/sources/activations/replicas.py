"""Several replicas of the activator in one cluster: the owner of each object, and the load over all replicas.

Rules
  1. One replica owns an object (`messages/writers.py`): it decides how many pods there are, and writes. The others
     send it their loads at once; they neither decide nor write.
  2. The load of a revision is the sum over all replicas. Totals only grow: each replica's increase since its first
     report is counted, so that a new owner does not count the requests of the past as present ones.
  3. The load of a replica is removed with it: at once when it ends, or LOAD_EXPIRES_S after its last report.
  4. A single replica passes on its loads unchanged.
  5. A peer's report counts only if its revision is declared here, so reports cannot grow the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from activator.messages import Load
from activator.messages.writers import ALONE, Writers
from activator.runtime.clock import Now

LOAD_EXPIRES_S: Final = 10.0  # a replica with requests reports them every 0.1 s


class OtherReplicas(Protocol):
    """The group of this replica (`members/shared_writing.py`)."""

    def join(self, changed: Callable[[Writers], None], received: Callable[[int, Load], None]) -> None: ...

    def set_writes(self, writes: bool) -> None: ...

    def report(self, seat: int, load: Load) -> None: ...


class _Report:
    """The last report of one replica about one revision."""

    __slots__ = ("load", "received_s")

    def __init__(self, load: Load, received_s: float) -> None:
        self.load = load
        self.received_s = received_s


class RevisionLoads:
    """The loads of one revision, by replica."""

    __slots__ = ("_reports", "_request_seconds", "_requests_total")

    def __init__(self) -> None:
        self._reports: dict[int, _Report] = {}
        self._requests_total = 0
        self._request_seconds = 0.0

    def put(self, seat: int, load: Load, now_s: float) -> None:
        """Record the load of a replica; only the increase of its totals counts."""
        report = self._reports.get(seat)
        if report is None:
            self._reports[seat] = _Report(load, now_s)
            return
        self._requests_total += max(load.requests_total - report.load.requests_total, 0)
        self._request_seconds += max(load.request_seconds - report.load.request_seconds, 0.0)
        report.load, report.received_s = load, now_s

    def remove(self, seats: set[int]) -> bool:
        """Remove the loads of these replicas; return True if one of them was not empty."""
        ended = [self._reports.pop(seat).load for seat in seats & self._reports.keys()]
        return any(map(_has_requests, ended))

    def expired(self, own: int, before_s: float) -> set[int]:
        """Return the other replicas whose last report is from before this time, and was not empty."""
        return {
            seat
            for seat, report in self._reports.items()
            if seat != own and report.received_s < before_s and _has_requests(report.load)
        }

    def of(self, seat: int) -> Load | None:
        """Return the last load of a replica; None: it has reported none."""
        report = self._reports.get(seat)
        return None if report is None else report.load

    @property
    def seats(self) -> set[int]:
        return set(self._reports)

    def sum(self, key: str, now_s: float) -> Load:
        loads = [report.load for report in self._reports.values()]
        return Load(
            key,
            sum(load.in_flight for load in loads),
            sum(load.queued for load in loads),
            self._requests_total,
            sum(load.concurrency for load in loads),
            self._request_seconds,
            now_s,
        )


class Replicas:
    """The replicas of the activator, with the owner of each object and the loads.

    `uid_of(key)` returns the UID of the object that declares a revision; None: there is none. `load_changed(load)`
    receives the present load of a revision. `writers_changed()` is called when the owners of objects may have changed.
    """

    def __init__(
        self,
        uid_of: Callable[[str], str | None],
        load_changed: Callable[[Load], None],
        writers_changed: Callable[[], None],
        now: Now,
    ) -> None:
        self._uid_of = uid_of
        self._load_changed = load_changed
        self._writers_changed = writers_changed
        self._now = now
        self._others: OtherReplicas | None = None
        self._loads: dict[str, RevisionLoads] = {}
        self.writers = ALONE

    def join(self, others: OtherReplicas) -> None:
        """Make this replica one of several. Call it before anything is declared."""
        self._others = others
        others.join(self._set_writers, self._receive_report)

    def set_writes(self, writes: bool) -> None:
        """Set whether this replica may own objects."""
        if self._others is not None:
            self._others.set_writes(writes)

    # --- whose an object is ---

    def writes(self, uid: str) -> bool:
        return self.writers.writes(uid)

    def is_anothers(self, uid: str) -> bool:
        """Return True if another replica decides on the object."""
        return self.writers.owner(uid) not in (None, self.writers.own)

    # --- loads ---

    def receive(self, load: Load) -> None:
        """Record a load of this replica, and report it to the owner of the revision, if another replica is that."""
        if self._others is None:
            self._load_changed(load)
            return
        uid = self._uid_of(load.key)
        if uid is None:
            return
        own = self.writers.own
        self._loads_of(load.key).put(own, load, self._now())
        owner = self.writers.owner(uid)
        if owner == own:
            self._load_changed(self.sum(load.key))
        elif owner is not None:
            self._others.report(owner, load)

    @property
    def is_alone(self) -> bool:
        return self._others is None

    def sum(self, key: str) -> Load:
        """Return the load of a revision over all replicas, as far as it is known. Only where there are several."""
        return self._loads_of(key).sum(key, self._now())

    def drop_revision(self, key: str) -> None:
        self._loads.pop(key, None)

    def expire(self) -> None:
        """Remove expired loads; call it about once a second."""
        before_s = self._now() - LOAD_EXPIRES_S
        for key, loads in self._loads.items():
            expired = loads.expired(self.writers.own, before_s)
            if expired and loads.remove(expired):
                self._load_changed(loads.sum(key, self._now()))

    # --- from the other replicas ---

    def _receive_report(self, seat: int, load: Load) -> None:
        if self._uid_of(load.key) is not None and seat != self.writers.own:
            self._loads_of(load.key).put(seat, load, self._now())
            self._load_changed(self.sum(load.key))

    def _set_writers(self, writers: Writers) -> None:
        former, self.writers = self.writers, writers
        now_s = self._now()
        if former.present != writers.present:
            for key, loads in self._loads.items():
                if loads.remove(loads.seats - writers.present - {writers.own}):
                    self._load_changed(loads.sum(key, now_s))
        self._writers_changed()
        if former.views[:1] != writers.views[:1]:
            self._report_to_new_owners(former)

    def _report_to_new_owners(self, former: Writers) -> None:
        """Report the present loads of this replica to the new owners at once, before the next report is due."""
        assert self._others is not None, "it has joined"
        for key, loads in self._loads.items():
            uid, load = self._uid_of(key), loads.of(self.writers.own)
            if uid is None or load is None or not _has_requests(load):
                continue
            owner = self.writers.owner(uid)
            if owner not in (None, self.writers.own) and owner != former.owner(uid):
                self._others.report(owner, replace(load, at_s=self._now()))

    def _loads_of(self, key: str) -> RevisionLoads:
        """Return the loads of a revision, created if necessary."""
        loads = self._loads.get(key)
        if loads is None:
            loads = self._loads[key] = RevisionLoads()
        return loads


def _has_requests(load: Load) -> bool:
    return load.in_flight + load.queued + load.concurrency > 0
