"""Several replicas of the activator in one cluster: which objects are this one's, and what all of them carry.

Rules
  1. One replica owns an object (`reconcile/writers.py`): it decides how many pods there are, and writes. The others
     send it what they carry, at once; they neither decide nor write.
  2. The load of a revision is the sum over all replicas. Totals only grow: of each replica what it has added since its
     first report is counted, so that a new owner does not take the past of others for requests of this moment.
  3. What a replica carried goes with it: at once when it has ended, or LOAD_EXPIRES_S after its last report of it.
  4. Alone, a load is passed on as it is.
  5. A peer's report counts only of revisions that are declared here, so it makes nothing grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from activator.messages import Load
from activator.messages.writers import ALONE, Writers
from activator.runtime.clock import Now

LOAD_EXPIRES_S: Final = 10.0  # a replica that carries something says so every 0.1 s


class OtherReplicas(Protocol):
    """The group that this replica is in (`members/shared_writing.py`)."""

    def join(self, changed: Callable[[Writers], None], heard: Callable[[int, Load], None]) -> None: ...

    def set_writes(self, writes: bool) -> None: ...

    def tell(self, seat: int, load: Load) -> None: ...


class _Part:
    """What one replica has said of a revision."""

    __slots__ = ("heard_s", "load")

    def __init__(self, load: Load, heard_s: float) -> None:
        self.load = load
        self.heard_s = heard_s


class RevisionLoads:
    """Of one revision, by replica."""

    __slots__ = ("_parts", "_request_seconds", "_requests_total")

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._requests_total = 0
        self._request_seconds = 0.0

    def put(self, seat: int, load: Load, now_s: float) -> None:
        part = self._parts.get(seat)
        if part is None:
            self._parts[seat] = _Part(load, now_s)
            return
        self._requests_total += max(load.requests_total - part.load.requests_total, 0)
        self._request_seconds += max(load.request_seconds - part.load.request_seconds, 0.0)
        part.load, part.heard_s = load, now_s

    def end(self, seats: set[int]) -> bool:
        """These replicas carry nothing any more. Whether one of them did."""
        ended = [self._parts.pop(seat).load for seat in seats & self._parts.keys()]
        return any(map(_carries, ended))

    def expired(self, own: int, before_s: float) -> set[int]:
        """Other replicas that carried something when they last said anything, which was before this time."""
        return {
            seat
            for seat, part in self._parts.items()
            if seat != own and part.heard_s < before_s and _carries(part.load)
        }

    def of(self, seat: int) -> Load | None:
        part = self._parts.get(seat)
        return None if part is None else part.load

    @property
    def seats(self) -> set[int]:
        return set(self._parts)

    def sum(self, key: str, now_s: float) -> Load:
        loads = [part.load for part in self._parts.values()]
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
    """`uid_of(key)`: of what declares a revision, None where nothing does; `carried(load)`: the load of one of our
    revisions now; `shifted()`: other objects than before may be ours.
    """

    def __init__(
        self,
        uid_of: Callable[[str], str | None],
        carried: Callable[[Load], None],
        shifted: Callable[[], None],
        now: Now,
    ) -> None:
        self._uid_of = uid_of
        self._carried = carried
        self._shifted = shifted
        self._now = now
        self._others: OtherReplicas | None = None
        self._loads: dict[str, RevisionLoads] = {}
        self.writers = ALONE

    def join(self, others: OtherReplicas) -> None:
        """This replica is one of several. Before anything is declared."""
        self._others = others
        others.join(self._set_writers, self._heard)

    def set_writes(self, writes: bool) -> None:
        """Whether objects may be this replica's."""
        if self._others is not None:
            self._others.set_writes(writes)

    # --- whose an object is ---

    def writes(self, uid: str) -> bool:
        return self.writers.writes(uid)

    def is_anothers(self, uid: str) -> bool:
        """Another replica decides on it."""
        return self.writers.owner(uid) not in (None, self.writers.own)

    # --- loads ---

    def receive(self, load: Load) -> None:
        """A load of this replica."""
        if self._others is None:
            self._carried(load)
            return
        uid = self._uid_of(load.key)
        if uid is None:
            return
        own = self.writers.own
        self._of(load.key).put(own, load, self._now())
        owner = self.writers.owner(uid)
        if owner == own:
            self._carried(self.sum(load.key))
        elif owner is not None:
            self._others.tell(owner, load)

    @property
    def is_alone(self) -> bool:
        return self._others is None

    def sum(self, key: str) -> Load:
        """What all replicas carry of a revision, as far as it is known here. Not where this one is alone."""
        return self._of(key).sum(key, self._now())

    def drop_revision(self, key: str) -> None:
        self._loads.pop(key, None)

    def expire(self) -> None:
        """To be called every second or so."""
        before_s = self._now() - LOAD_EXPIRES_S
        for key, loads in self._loads.items():
            expired = loads.expired(self.writers.own, before_s)
            if expired and loads.end(expired):
                self._carried(loads.sum(key, self._now()))

    # --- from the other replicas ---

    def _heard(self, seat: int, load: Load) -> None:
        if self._uid_of(load.key) is not None and seat != self.writers.own:
            self._of(load.key).put(seat, load, self._now())
            self._carried(self.sum(load.key))

    def _set_writers(self, writers: Writers) -> None:
        former, self.writers = self.writers, writers
        now_s = self._now()
        if former.present != writers.present:
            for key, loads in self._loads.items():
                if loads.end(loads.seats - writers.present - {writers.own}):
                    self._carried(loads.sum(key, now_s))
        self._shifted()
        if former.views[:1] != writers.views[:1]:
            self._tell_new_owners(former)

    def _tell_new_owners(self, former: Writers) -> None:
        """What is here does not wait for the next report."""
        assert self._others is not None, "it has joined"
        for key, loads in self._loads.items():
            uid, load = self._uid_of(key), loads.of(self.writers.own)
            if uid is None or load is None or not _carries(load):
                continue
            owner = self.writers.owner(uid)
            if owner not in (None, self.writers.own) and owner != former.owner(uid):
                self._others.tell(owner, replace(load, at_s=self._now()))

    def _of(self, key: str) -> RevisionLoads:
        found = self._loads.get(key)
        if found is None:
            found = self._loads[key] = RevisionLoads()
        return found


def _carries(load: Load) -> bool:
    return load.in_flight + load.queued + load.concurrency > 0
