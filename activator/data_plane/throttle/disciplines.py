"""The orders in which waiters are granted slots: the disciplines `fifo`, `priority`, `fair` and `priority-fair`.

Priority: a request of level n precedes requests of level 0 that arrived up to n x ageing before it: waiters are ordered
by (arrival time - level x ageing). This order does not change while requests wait, so ageing costs nothing. Bound: a
request of level n is never overtaken by one that arrives more than (highest level - n) x ageing after it.

Fair: a deficit round-robin between the keys that have waiting requests. In its turn a key may spend quantum x weight,
and a request costs its charge. A key keeps an unspent remainder for its next turn, unless none of its requests waits
any longer. The quantum is the largest possible charge, so a key can always be served in its turn, and a step never
needs a search.

Rules of `fair`
  1. Every request takes one slot; its charge only determines how soon the next request of its key follows.
  2. A key exists while one of its requests waits. At most `keys_max` keys exist at a time, and users with weights;
     keys with weights always have a place, and all others beyond the bound share one.
  3. A request that rejoins is refunded its charge; if no other request of its key waits, the key has the next turn.
  4. A request that a member registers again (`insert`) is refunded nothing, because this queue has not charged it. Its
     key enters the round before the keys that arrived, or ended a turn, after it. What a former owner has served, or
     this one before the member was away, is unknown: a registration may give a key one turn too early. The position is
     searched among the keys.
  5. If users are the keys, a weight of the revision precedes that of a user, and a changed one applies at once.

Priority-fair: each level has its round of keys, and the level is chosen by the request whose turn it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from activator.config.model.queueing import PRIORITY_LEVELS
from activator.config.specs import QueueSpec
from activator.data_plane.throttle.waiters import SubQueue, Waiter, WaiterQueue

FAIR_KEYS_MAX: Final = 1_024  # keys of the discipline `fair` that wait at the same time; further keys share one


class FifoQueue(WaiterQueue):
    """The discipline `fifo`, or one level of `queue`: waiters in order of arrival."""

    def __init__(self, queue: WaiterQueue | None = None) -> None:
        super().__init__()
        self._sub_queue: SubQueue = SubQueue(self if queue is None else queue)

    def first(self) -> Waiter | None:
        return self._sub_queue.first()

    def join(self, waiter: Waiter) -> None:
        self._sub_queue.add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self.insert(waiter)

    def insert(self, waiter: Waiter) -> None:
        self._sub_queue.add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        self._sub_queue.remove(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self._sub_queue.remove(waiter)
        self.length -= 1

    def ahead_of(self, waiter: Waiter) -> int:
        return self.length

    def by_arrival(self) -> list[Waiter]:
        return sorted_by_arrival(self._sub_queue.waiters())


def sorted_by_arrival(waiters: list[Waiter]) -> list[Waiter]:
    """Return the waiters in order of arrival."""
    return sorted(waiters, key=arrival_of)


def arrival_of(waiter: Waiter) -> int:
    return waiter.arrival


class KeyQueue(SubQueue):
    """The requests of one key, and the position of the key in the round."""

    def __init__(self, queue: WaiterQueue, key: bytes, weight: int, shared: bool, is_plain: bool) -> None:
        super().__init__(queue)
        self.key = key
        self.weight = weight
        self.shared = shared  # it is for all keys beyond the bound
        self.is_plain = is_plain  # counted for the bound of keys without a weight
        self.deficit: int = 0  # the amount that it may still spend
        self.in_turn: bool = False  # it has received its quantum for this turn
        self.had_turn: bool = False  # it has ended a turn, or has the next one because of a request that rejoined
        self.since: int = 0  # the latest arrival at the time when it joined the round or ended its turn
        self.round_next: KeyQueue | None = None
        self.round_prev: KeyQueue | None = None


class FairQueue(WaiterQueue):
    """The discipline `fair`, or one level of `queue`.

    `weights`: the weights of the revision, by key; `charge_max`: the largest possible charge; `users`: the weights of
    users by name, None if the keys are not users.
    """

    def __init__(
        self,
        weights: dict[bytes, int],
        charge_max: int,
        keys_max: int,
        queue: WaiterQueue | None = None,
        users: dict[bytes, int] | None = None,
    ) -> None:
        super().__init__()
        self._queue: WaiterQueue = self if queue is None else queue
        self._weights = weights
        self._users = users
        self._quantum = charge_max
        self._plain_keys_max: int = keys_max - len(weights)
        self._plain_keys: int = 0  # keys without a weight that exist
        self._sub_queues: dict[bytes, KeyQueue] = {}
        self._shared: KeyQueue = KeyQueue(self._queue, b"", 1, True, False)
        self._turn: KeyQueue | None = None  # the head of the round
        self._last: KeyQueue | None = None  # the end of the round
        self._latest: int = 0  # the latest arrival

    @property
    def keys(self) -> int:
        """The number of keys that have waiting requests, including the shared one."""
        return len(self._sub_queues) + (1 if self._shared.length else 0)

    def first(self) -> Waiter | None:
        while True:
            sub_queue = self._turn
            if sub_queue is None:
                return None
            if not sub_queue.in_turn:
                sub_queue.in_turn = True
                sub_queue.deficit += self._quantum * sub_queue.weight
            waiter = sub_queue.first()
            assert waiter is not None, "a key without waiters has a turn"
            if waiter.charge <= sub_queue.deficit:
                return waiter
            sub_queue.in_turn = False
            sub_queue.had_turn = True
            sub_queue.since = self._latest
            self._remove_from_round(sub_queue)
            self._add_to_round(sub_queue, self._last)

    def join(self, waiter: Waiter) -> None:
        if waiter.charge > self._quantum:
            waiter.charge = self._quantum  # the rules by which it was classified have changed
        self._latest = waiter.arrival
        sub_queue = self._sub_queue_of(waiter.share)
        if sub_queue.length == 0:
            sub_queue.since = waiter.arrival
            self._add_to_round(sub_queue, self._last)
        sub_queue.add(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        if waiter.charge > self._quantum:
            waiter.charge = self._quantum
        sub_queue = self._sub_queue_of(waiter.share)
        if sub_queue.length == 0:
            sub_queue.in_turn = True
            sub_queue.had_turn = True  # so that `insert` does not move the key
            sub_queue.since = waiter.arrival
            self._add_to_round(sub_queue, None)
        sub_queue.deficit += waiter.charge
        sub_queue.add_again(waiter)
        self.length += 1

    def insert(self, waiter: Waiter) -> None:
        if waiter.charge > self._quantum:
            waiter.charge = self._quantum
        arrival = waiter.arrival
        self._latest = max(self._latest, arrival)
        sub_queue = self._sub_queue_of(waiter.share)
        is_new = sub_queue.length == 0
        if is_new or (arrival < sub_queue.since and not sub_queue.had_turn):
            if not is_new:
                self._remove_from_round(sub_queue)
            before = self._last
            while before is not None and before.since > arrival:
                before = before.round_prev
            sub_queue.since = arrival
            self._add_to_round(sub_queue, before)
        sub_queue.add_again(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        sub_queue = waiter.sub_queue
        assert isinstance(sub_queue, KeyQueue)
        sub_queue.remove(waiter)
        self.length -= 1
        if sub_queue.length == 0:
            self._remove_key(sub_queue)

    def take(self, waiter: Waiter) -> None:
        sub_queue = waiter.sub_queue
        assert isinstance(sub_queue, KeyQueue)
        sub_queue.deficit -= waiter.charge
        self.leave(waiter)

    def ahead_of(self, waiter: Waiter) -> int:
        sub_queue = self._sub_queues.get(waiter.share)
        return 0 if sub_queue is None else sub_queue.length

    def shares(self) -> dict[str, object]:
        return {"keys_waiting": self.keys, "sharing_one_key": self._shared.length}

    def by_arrival(self) -> list[Waiter]:
        waiters = self._shared.waiters()
        for sub_queue in self._sub_queues.values():
            waiters.extend(sub_queue.waiters())
        return sorted_by_arrival(waiters)

    def weigh_users(self, weights: dict[bytes, int]) -> None:
        if self._users is None:
            return
        self._users = weights
        for sub_queue in self._sub_queues.values():
            weight = max(self._weight_of(sub_queue.key), 1)
            if weight < sub_queue.weight:  # the rest of its turn is no longer than a turn with the new weight
                sub_queue.deficit = min(sub_queue.deficit, self._quantum * weight)
            sub_queue.weight = weight

    # --- keys ---

    def _weight_of(self, key: bytes) -> int:
        """Return the weight of a key; 0 if it has none."""
        weight = self._weights.get(key, 0)
        return self._users.get(key, 0) if weight == 0 and self._users is not None else weight

    def _sub_queue_of(self, key: bytes) -> KeyQueue:
        """Return the sub-queue of a key, created on first use, or the shared one if there are too many keys."""
        sub_queue = self._sub_queues.get(key)
        if sub_queue is not None:
            return sub_queue
        weight = self._weight_of(key)
        is_plain = weight == 0
        if is_plain:
            if self._plain_keys >= self._plain_keys_max:
                return self._shared
            self._plain_keys += 1
            weight = 1
        sub_queue = KeyQueue(self._queue, key, weight, False, is_plain)
        self._sub_queues[key] = sub_queue
        return sub_queue

    def _remove_key(self, sub_queue: KeyQueue) -> None:
        """Remove a key without waiters from the round; the shared one is kept for later."""
        self._remove_from_round(sub_queue)
        sub_queue.deficit = 0
        sub_queue.in_turn = False
        sub_queue.had_turn = False
        if sub_queue.shared:
            return
        del self._sub_queues[sub_queue.key]
        if sub_queue.is_plain:
            self._plain_keys -= 1

    # --- the round ---

    def _add_to_round(self, sub_queue: KeyQueue, before: KeyQueue | None) -> None:
        """Add a key after `before`; None: give it the next turn."""
        after = self._turn if before is None else before.round_next
        sub_queue.round_prev = before
        sub_queue.round_next = after
        if before is None:
            self._turn = sub_queue
        else:
            before.round_next = sub_queue
        if after is None:
            self._last = sub_queue
        else:
            after.round_prev = sub_queue

    def _remove_from_round(self, sub_queue: KeyQueue) -> None:
        before = sub_queue.round_prev
        after = sub_queue.round_next
        if before is None:
            self._turn = after
        else:
            before.round_next = after
        if after is None:
            self._last = before
        else:
            after.round_prev = before
        sub_queue.round_next = None
        sub_queue.round_prev = None


class PriorityQueue(WaiterQueue):
    """The disciplines `priority` and `priority-fair`: a queue for each level from 0 to `levels` - 1.

    `make_level(queue)` returns an empty queue for one level of `queue`. A step asks each level at most once.
    """

    def __init__(self, levels: int, ageing_s: float, make_level: Callable[[WaiterQueue], WaiterQueue]) -> None:
        super().__init__()
        self._ageing_s = ageing_s
        self._levels: list[WaiterQueue] = [make_level(self) for _ in range(levels)]

    def first(self) -> Waiter | None:
        chosen: Waiter | None = None
        chosen_order_s = 0.0
        ahead_s = 0.0
        for level in self._levels:
            if level.length != 0:
                waiter = level.first()
                assert waiter is not None
                order_s = waiter.asked_s - ahead_s
                if chosen is None or order_s <= chosen_order_s:  # at equal times the higher level goes first
                    chosen = waiter
                    chosen_order_s = order_s
            ahead_s += self._ageing_s
        return chosen

    def join(self, waiter: Waiter) -> None:
        self._levels[waiter.level].join(waiter)
        self.length += 1

    def rejoin(self, waiter: Waiter) -> None:
        self._levels[waiter.level].rejoin(waiter)
        self.length += 1

    def insert(self, waiter: Waiter) -> None:
        self._levels[waiter.level].insert(waiter)
        self.length += 1

    def leave(self, waiter: Waiter) -> None:
        self._levels[waiter.level].leave(waiter)
        self.length -= 1

    def take(self, waiter: Waiter) -> None:
        self._levels[waiter.level].take(waiter)
        self.length -= 1

    def ahead_of(self, waiter: Waiter) -> int:
        count = self._levels[waiter.level].ahead_of(waiter)
        for level in self._levels[waiter.level + 1 :]:
            count += level.length
        return count

    def shares(self) -> dict[str, object]:
        shares: dict[str, object] = {"waiting_by_level": [level.length for level in self._levels]}
        keys = [level.keys for level in self._levels if isinstance(level, FairQueue)]
        if keys:
            shares["keys_waiting_by_level"] = keys
        return shares

    def by_arrival(self) -> list[Waiter]:
        waiters: list[Waiter] = []
        for level in self._levels:
            waiters.extend(level.by_arrival())
        return sorted_by_arrival(waiters)

    def weigh_users(self, weights: dict[bytes, int]) -> None:
        for level in self._levels:
            level.weigh_users(weights)


def make_queue(spec: QueueSpec, user_weights: dict[bytes, int] | None = None) -> WaiterQueue:
    """Return an empty queue for the discipline of the revision. `user_weights`: by the name of the user."""
    discipline = spec.discipline
    if discipline.name == "priority":
        return PriorityQueue(PRIORITY_LEVELS, discipline.ageing_s, FifoQueue)
    if discipline.name in {"fair", "priority-fair"}:
        weights = {key.encode(): weight for key, weight in discipline.weights.items()}
        charge_max = max((rule.charge for rule in spec.rules), default=1)
        users = None if discipline.key_header else user_weights or {}
        if discipline.name == "fair":
            return FairQueue(weights, charge_max, FAIR_KEYS_MAX, None, users)
        make_level = partial(FairQueue, weights, charge_max, FAIR_KEYS_MAX, users=users)
        return PriorityQueue(PRIORITY_LEVELS, discipline.ageing_s, make_level)
    assert discipline.name == "fifo", f"no discipline is called {discipline.name}"
    return FifoQueue()
