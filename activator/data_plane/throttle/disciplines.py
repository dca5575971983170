"""The orders in which waiters are granted slots: the disciplines `fifo`, `priority` and `fair`.

Priority: a request of level n precedes requests of level 0 that arrived up to n x ageing before it: waiters are ordered
by (arrival time - level x ageing). This order does not change while requests wait, so ageing costs nothing. Bound: a
request of level n is never overtaken by one that arrives more than (highest level - n) x ageing after it.

Fair: a deficit round-robin between the keys that have waiting requests. In its turn a key may spend quantum x weight,
and a request costs its charge. A key keeps an unspent remainder for its next turn, unless none of its requests waits
any longer. The quantum is the largest possible charge, so a key can always be served in its turn, and a step never
needs a search.

Rules of `fair`
  1. Every request takes one slot; its charge only determines how soon the next request of its key follows.
  2. A key exists while one of its requests waits. At most `keys_max` keys exist at a time; those with weights always
     have a place, and all keys beyond the bound share one.
  3. A request that rejoins is refunded its charge; if no other request of its key waits, the key has the next turn.
"""

from __future__ import annotations

from typing import Final

from activator.config.model.queueing import PRIORITY_LEVELS
from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.waiters import Lane, Waiter, WaitingLine

FAIR_KEYS_MAX: Final = 1_024  # keys of the discipline `fair` that wait at the same time; further keys share one


class FifoLine(WaitingLine):
    """The discipline `fifo`: waiters in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._lane: Lane = Lane(self)

    def first(self) -> Waiter | None:
        return self._lane.first()

    def join(self, waiter: Waiter) -> None:
        self._lane.add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self._lane.add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        self._lane.remove(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self._lane.remove(waiter)
        self.length -= 1

    def ahead_of(self, waiter: Waiter) -> int:
        return self.length

    def waiters(self) -> list[Waiter]:
        return by_arrival(self._lane.waiters())


def by_arrival(waiters: list[Waiter]) -> list[Waiter]:
    """Return the waiters in order of arrival."""
    return sorted(waiters, key=arrival_of)


def arrival_of(waiter: Waiter) -> int:
    return waiter.arrival


class Level(Lane):
    """The requests of one level, and their advantage over level 0 in seconds."""

    def __init__(self, line: WaitingLine, ahead_s: float) -> None:
        super().__init__(line)
        self.ahead_s = ahead_s


class PriorityLine(WaitingLine):
    """The discipline `priority`, for levels from 0 to `levels` - 1. Each step inspects at most one waiter per level."""

    def __init__(self, levels: int, ageing_s: float) -> None:
        super().__init__()
        self._lanes: list[Level] = [Level(self, level * ageing_s) for level in range(levels)]

    def first(self) -> Waiter | None:
        chosen: Waiter | None = None
        chosen_at_s = 0.0
        for lane in self._lanes:
            if lane.length == 0:
                continue
            waiter = lane.first()
            assert waiter is not None
            at_s = waiter.asked_s - lane.ahead_s
            if chosen is None or at_s <= chosen_at_s:  # at equal times the higher level goes first
                chosen = waiter
                chosen_at_s = at_s
        return chosen

    def join(self, waiter: Waiter) -> None:
        self._lanes[waiter.level].add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self._lanes[waiter.level].add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        lane = waiter.lane
        assert lane is not None
        lane.remove(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self.leave(waiter)

    def ahead_of(self, waiter: Waiter) -> int:
        count = 0
        for lane in self._lanes[waiter.level :]:
            count += lane.length
        return count

    def shares(self) -> dict[str, object]:
        return {"waiting_by_level": [lane.length for lane in self._lanes]}

    def waiters(self) -> list[Waiter]:
        found: list[Waiter] = []
        for lane in self._lanes:
            found.extend(lane.waiters())
        return by_arrival(found)


class KeyLane(Lane):
    """The requests of one key, and the position of the key in the round."""

    def __init__(self, line: WaitingLine, key: bytes, weight: int, shared: bool) -> None:
        super().__init__(line)
        self.key = key
        self.weight = weight
        self.shared = shared
        self.deficit: int = 0
        self.in_turn: bool = False  # it has received its quantum for this turn
        self.round_next: KeyLane | None = None
        self.round_prev: KeyLane | None = None


class FairLine(WaitingLine):
    """The discipline `fair`. `weights`: of keys whose weight is not 1; `charge_max`: the largest possible charge."""

    def __init__(self, weights: dict[bytes, int], charge_max: int, keys_max: int) -> None:
        super().__init__()
        self._weights = weights
        self._quantum = charge_max
        self._plain_keys_max: int = keys_max - len(weights)
        self._plain_keys: int = 0
        self._lanes: dict[bytes, KeyLane] = {}
        self._shared: KeyLane = KeyLane(self, b"", 1, True)
        self._turn: KeyLane | None = None  # the head of the round
        self._last: KeyLane | None = None

    @property
    def keys(self) -> int:
        """The number of keys that have waiting requests, including the shared one."""
        return len(self._lanes) + (1 if self._shared.length else 0)

    def first(self) -> Waiter | None:
        while True:
            lane = self._turn
            if lane is None:
                return None
            if not lane.in_turn:
                lane.in_turn = True
                lane.deficit += self._quantum * lane.weight
            waiter = lane.first()
            assert waiter is not None, "a key without waiters has a turn"
            if waiter.charge <= lane.deficit:
                return waiter
            lane.in_turn = False
            self._drop(lane)
            self._append(lane)

    def join(self, waiter: Waiter) -> None:
        if waiter.charge > self._quantum:
            waiter.charge = self._quantum  # classified by rules that have changed since
        lane = self._lane_of(waiter.share)
        if lane.length == 0:
            self._append(lane)
        lane.add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        if waiter.charge > self._quantum:
            waiter.charge = self._quantum
        lane = self._lane_of(waiter.share)
        if lane.length == 0:
            lane.in_turn = True
            self._prepend(lane)
        lane.deficit += waiter.charge
        lane.add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        lane = waiter.lane
        assert isinstance(lane, KeyLane)
        lane.remove(waiter)
        self.length -= 1
        if lane.length == 0:
            self._forget(lane)

    def take(self, waiter: Waiter) -> None:
        lane = waiter.lane
        assert isinstance(lane, KeyLane)
        lane.deficit -= waiter.charge
        self.leave(waiter)

    def ahead_of(self, waiter: Waiter) -> int:
        lane = self._lanes.get(waiter.share)
        return 0 if lane is None else lane.length

    def shares(self) -> dict[str, object]:
        return {"keys_waiting": self.keys, "sharing_one_key": self._shared.length}

    def waiters(self) -> list[Waiter]:
        found = self._shared.waiters()
        for lane in self._lanes.values():
            found.extend(lane.waiters())
        return by_arrival(found)

    # --- keys ---

    def _lane_of(self, key: bytes) -> KeyLane:
        lane = self._lanes.get(key)
        if lane is not None:
            return lane
        weight = self._weights.get(key)
        if weight is None:
            if self._plain_keys >= self._plain_keys_max:
                return self._shared
            self._plain_keys += 1
            weight = 1
        lane = KeyLane(self, key, weight, False)
        self._lanes[key] = lane
        return lane

    def _forget(self, lane: KeyLane) -> None:
        self._drop(lane)
        lane.deficit = 0
        lane.in_turn = False
        if lane.shared:
            return
        del self._lanes[lane.key]
        if lane.key not in self._weights:
            self._plain_keys -= 1

    # --- the round ---

    def _append(self, lane: KeyLane) -> None:
        last = self._last
        lane.round_prev = last
        lane.round_next = None
        if last is None:
            self._turn = lane
        else:
            last.round_next = lane
        self._last = lane

    def _prepend(self, lane: KeyLane) -> None:
        first = self._turn
        lane.round_next = first
        lane.round_prev = None
        if first is None:
            self._last = lane
        else:
            first.round_prev = lane
        self._turn = lane

    def _drop(self, lane: KeyLane) -> None:
        before = lane.round_prev
        after = lane.round_next
        if before is None:
            self._turn = after
        else:
            before.round_next = after
        if after is None:
            self._last = before
        else:
            after.round_prev = before
        lane.round_next = None
        lane.round_prev = None


def make_line(spec: RevisionSpec) -> WaitingLine:
    """Return an empty queue for the discipline of the revision."""
    discipline = spec.discipline
    if discipline.name == "priority":
        return PriorityLine(PRIORITY_LEVELS, discipline.ageing_s)
    if discipline.name == "fair":
        weights = {key.encode(): weight for key, weight in discipline.weights.items()}
        charge_max = max((rule.charge for rule in spec.queue_rules), default=1)
        return FairLine(weights, charge_max, FAIR_KEYS_MAX)
    assert discipline.name == "fifo", f"no discipline is called {discipline.name}"
    return FifoLine()
