"""The disciplines in their simplest form, with linear searches of lists: the queues are compared with these."""

from __future__ import annotations

from activator.data_plane.throttle.waiters import Waiter


class QueueModel:
    """All waiting requests in one list."""

    def __init__(self) -> None:
        self.waiting: list[Waiter] = []

    def join(self, waiter: Waiter) -> None:
        self.waiting.append(waiter)

    def rejoin(self, waiter: Waiter) -> None:
        self.waiting.append(waiter)

    def insert(self, waiter: Waiter) -> None:
        self.waiting.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        self.waiting = [one for one in self.waiting if one is not waiter]

    def take(self, waiter: Waiter) -> None:
        self.leave(waiter)

    def first(self) -> Waiter | None:
        raise NotImplementedError


class FifoModel(QueueModel):
    def first(self) -> Waiter | None:
        return min(self.waiting, key=lambda waiter: waiter.arrival, default=None)


class PriorityModel(QueueModel):
    def __init__(self, ageing_s: float) -> None:
        super().__init__()
        self.ageing_s = ageing_s

    def first(self) -> Waiter | None:
        def place(waiter: Waiter) -> tuple[float, int, int]:
            return waiter.asked_s - waiter.level * self.ageing_s, -waiter.level, waiter.arrival

        return min(self.waiting, key=place, default=None)


class FairModel(QueueModel):
    """Deficit round-robin over a list of keys, whose first one has its turn."""

    def __init__(self, weights: dict[bytes, int], quantum: int, keys_max: int) -> None:
        super().__init__()
        self.weights = weights
        self.quantum = quantum
        self.keys_max = keys_max
        self.round: list[bytes | None] = []  # None: the shared key
        self.deficit: dict[bytes | None, int] = {}
        self.given: set[bytes | None] = set()
        self.turned: set[bytes | None] = set()  # keys that `insert` does not move
        self.since: dict[bytes | None, int] = {}  # the latest arrival when the key joined the round or ended its turn
        self.latest = 0
        self.key_of: dict[int, bytes | None] = {}  # by arrival

    def of(self, key: bytes | None) -> list[Waiter]:
        return [waiter for waiter in self.waiting if self.key_of[waiter.arrival] == key]

    def _key(self, share: bytes) -> bytes | None:
        plain = [key for key in self.round if key is not None and key not in self.weights]
        if share in self.round or share in self.weights or len(plain) < self.keys_max - len(self.weights):
            return share
        return None

    def join(self, waiter: Waiter) -> None:
        key = self.key_of[waiter.arrival] = self._key(waiter.share)
        self.latest = waiter.arrival
        if key not in self.round:
            self.round.append(key)
            self.deficit[key] = 0
            self.since[key] = waiter.arrival
        super().join(waiter)

    def rejoin(self, waiter: Waiter) -> None:
        key = self.key_of[waiter.arrival] = self._key(waiter.share)
        if key not in self.round:
            self.round.insert(0, key)
            self.deficit[key] = 0
            self.since[key] = waiter.arrival
            self.given.add(key)
            self.turned.add(key)
        self.deficit[key] += waiter.charge
        super().rejoin(waiter)

    def insert(self, waiter: Waiter) -> None:
        key = self.key_of[waiter.arrival] = self._key(waiter.share)
        self.latest = max(self.latest, waiter.arrival)
        if key not in self.round:
            self.deficit[key] = 0
            self._insert_key(key, waiter.arrival)
        elif key not in self.turned and waiter.arrival < self.since[key]:
            self.round.remove(key)
            self._insert_key(key, waiter.arrival)
        super().insert(waiter)

    def _insert_key(self, key: bytes | None, since: int) -> None:
        earlier = [index for index, other in enumerate(self.round, 1) if self.since[other] <= since]
        self.round.insert(max(earlier, default=0), key)
        self.since[key] = since

    def leave(self, waiter: Waiter) -> None:
        super().leave(waiter)
        key = self.key_of[waiter.arrival]
        if not self.of(key):
            self.round.remove(key)
            self.given.discard(key)
            self.turned.discard(key)

    def take(self, waiter: Waiter) -> None:
        self.deficit[self.key_of[waiter.arrival]] -= waiter.charge
        self.leave(waiter)

    def first(self) -> Waiter | None:
        while self.round:
            key = self.round[0]
            if key not in self.given:
                self.given.add(key)
                self.deficit[key] += self.quantum * (1 if key is None else self.weights.get(key, 1))
            waiter = min(self.of(key), key=lambda one: one.arrival)
            if waiter.charge <= self.deficit[key]:
                return waiter
            self.given.discard(key)
            self.turned.add(key)
            self.since[key] = self.latest
            self.round = [*self.round[1:], key]
        return None


class PriorityFairModel(QueueModel):
    """A FairModel for each level."""

    def __init__(self, ageing_s: float, weights: dict[bytes, int], quantum: int, keys_max: int) -> None:
        super().__init__()
        self.ageing_s = ageing_s
        self.levels = [FairModel(weights, quantum, keys_max) for _ in range(8)]

    def join(self, waiter: Waiter) -> None:
        super().join(waiter)
        self.levels[waiter.level].join(waiter)

    def rejoin(self, waiter: Waiter) -> None:
        super().rejoin(waiter)
        self.levels[waiter.level].rejoin(waiter)

    def insert(self, waiter: Waiter) -> None:
        super().insert(waiter)
        self.levels[waiter.level].insert(waiter)

    def leave(self, waiter: Waiter) -> None:
        super().leave(waiter)
        self.levels[waiter.level].leave(waiter)

    def take(self, waiter: Waiter) -> None:
        super().leave(waiter)
        self.levels[waiter.level].take(waiter)

    def first(self) -> Waiter | None:
        def place(waiter: Waiter) -> tuple[float, int]:
            return waiter.asked_s - waiter.level * self.ageing_s, -waiter.level

        firsts = [first for level in self.levels if (first := level.first()) is not None]
        return min(firsts, key=place, default=None)
