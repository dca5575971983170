"""Requests near what the pods can do, faults of all kinds in between, and times in which nothing fails.

python -m tests.members.whole_storm FIRST LAST [closes]    run these seeds; say which fail, and how fast it goes
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from typing import Final

from activator.members.contacts import GroupRules
from activator.members.local_proofs import END_SETTLE_S
from tests.members.whole_world import WholeWorld, ask_somewhere

REVISIONS: Final = {"ns/one": (1, 3), "ns/three": (3, 2)}
RATES: Final = {"ns/one": 45.0, "ns/three": 80.0}
IDLE_BOUND_S: Final = 0.15  # messages to the owner and back, and the tick of what is lent

STRICT: Final = GroupRules()
PROMPT: Final = GroupRules(release_s=5.0, releases_silent=True)
ALONE: Final = GroupRules(grants_alone=True)

FAULTS: Final = (
    "kill",
    "pause",
    "cut",
    "part",
    "lose",
    "start",
    "leave",
    "pod",
    "drop",
    "limit",
    "slow",
    "heal",
)
CLOSES: Final = (*FAULTS, "close", "close", "close")  # and somebody on the way who ends links of members that live


class Storm:
    """Of one seed."""

    def __init__(self, seed: int, rules: GroupRules, seats: int, faults: tuple[str, ...] = FAULTS) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.world = WholeWorld(seed, seats, REVISIONS, rules)
        self.world.loads_formed = True
        self.world.settle_s = END_SETTLE_S * (1.0 + self.random.random())
        self.said: list[str] = []

    def run(self, rounds: int, seconds: float) -> WholeWorld:
        self.world.run(5.0)
        for _ in range(rounds):
            self.rage(seconds)
            self.world.settle()
            self.quiet()
        self.world.calm_down()
        self.world.check_calm()
        return self.world

    def rage(self, seconds: float) -> None:
        rate = self.random.choice([0.5, 2.0, 6.0])
        until_s = self.world.now() + seconds
        while self.world.now() < until_s:
            self._step(0.02, 1.0)
            if self.random.random() < rate * 0.02:
                self._fault()

    def quiet(self) -> None:
        """Nothing fails: after a while all are in one view, and no slot is free while somebody waits for long."""
        world = self.world
        world.streams.slowest_s = 0.01
        world.run(1.0)  # what was slow has come
        until_s = world.now() + 30.0
        while world.now() < until_s and (len(world.open) > 3 or not world.is_ready()):
            world.run(0.1)
        world.check_view()
        until_s = world.now() + 1.0
        while world.now() < until_s:
            self._step(0.02, 0.8)
            world.check_idle(IDLE_BOUND_S)
        world.check_view()

    def _step(self, seconds: float, load: float) -> None:
        for key, rate in RATES.items():
            count = int(rate * load * seconds + self.random.random())
            for _ in range(count):
                request = ask_somewhere(self.world, key)
                if request is not None and self.random.random() < 0.05:
                    request.node.later(self.random.random() * 0.3, request.leave)
        self.world.run(seconds)

    def _fault(self) -> None:
        kind = self.random.choice(self.faults)
        self.said.append(f"{self.world.now():.3f} {kind}")
        getattr(self, f"_{kind}")()

    def _seat(self) -> int:
        return self.random.randrange(self.world.seats)

    def _kill(self) -> None:
        proof = self.random.choice(["end", "end", "told", "none"])
        self.world.kill_seat(self._seat(), proof)

    def _pause(self) -> None:
        node = self.world.at[self._seat()]
        if node.alive and not node.paused:
            node.pause()
            self.world.timeline.later(self.random.choice([0.1, 0.5, 1.5, 2.5, 7.0, 30.0]), node.resume)

    def _cut(self) -> None:
        one, other = self._seat(), self._seat()
        if one != other:
            both = self.random.random() < 0.6
            self.world.streams.cut |= {(one, other), (other, one)} if both else {(one, other)}

    def _part(self) -> None:
        seats = range(self.world.seats)
        side = {seat for seat in seats if self.random.random() < 0.5}
        rest = set(seats) - side
        ways = {(one, far) for one in side for far in rest}
        both = self.random.random() < 0.7
        self.world.streams.cut |= ways | {(far, one) for one, far in ways} if both else ways

    def _heal(self) -> None:
        self.world.streams.heal(0.5)

    def _lose(self) -> None:
        streams = self.world.streams.open()
        if streams:
            self.random.choice(streams).lose()

    def _close(self) -> None:
        """Somebody on the way closes connections of members that live, in order: each end sees the other's FIN."""
        for stream in self.world.streams.open():
            if self.random.random() < 0.3:
                stream.close_in_order()

    def _start(self) -> None:
        self.world.start(self._seat())

    def _leave(self) -> None:
        node = self.world.at[self._seat()]
        if node.alive and not node.leaves:
            self.world.leave_seat(node.seat)

    def _pod(self) -> None:
        key = self.random.choice(list(REVISIONS))
        if self.world.is_ready():  # a pod is of one life of its revision
            self.world.add_pod(key)
            self.world.remove_pod(key)

    def _drop(self) -> None:
        self.world.drop_key(self.random.choice(list(REVISIONS)), self.random.random() < 0.5)

    def _limit(self) -> None:
        self.world.lift_limit(self.random.choice(list(REVISIONS)), self.random.choice([0.3, 2.0]))

    def _slow(self) -> None:
        self.world.streams.slowest_s = self.random.choice([0.001, 0.01, 0.2])


def storm(
    seed: int, rules: GroupRules = STRICT, rounds: int = 2, seconds: float = 8.0, faults: tuple[str, ...] = FAULTS
) -> WholeWorld:
    """Run a storm with 2 to 5 seats."""
    return Storm(seed, rules, 2 + seed % 4, faults).run(rounds, seconds)


def main(first: int, last: int, faults: tuple[str, ...] = FAULTS) -> None:
    begun_s, events, failed = time.perf_counter(), 0, []
    for seed in range(first, last):
        rules = [STRICT, STRICT, PROMPT, ALONE][seed // 4 % 4]
        try:
            events += storm(seed, rules, faults=faults).events
        except Exception as error:
            failed.append(seed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{seed} {rules}: {error!r:.300} in {where.name}", flush=True)
    took_s = time.perf_counter() - begun_s
    print(f"{last - first} storms, failed: {failed}; {events} events, {events / took_s:.0f} a second, {took_s:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), CLOSES if sys.argv[3:] == ["closes"] else FAULTS)
