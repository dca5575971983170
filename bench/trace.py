"""`python -m bench trace`: a long random history of one throttler with a check after every step.

The same seed gives the same trace. `--events 10000000` is the long run; a violation ends it and reports the seed and
the number of the event, so that it can be reproduced.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from bench import header, results
from bench.processes import BenchError
from bench.results import Document, Result, Value
from bench.trace_world import DISCIPLINES, FLAPS, HASTY, NORMAL, PUSHING, RAISING, Guest, TraceWorld, ViolationError

DEEP_CHECK_EVERY = 97  # a prime, so that it meets every kind of event
LIFE_EVENTS = 20_000  # then everything ends, nothing may remain, and a new world begins

INVARIANTS = (
    "1  no grant beyond a pod's limit, to a pod that may not be picked, or to a suspected one",
    "2  no request waits while a pod has room (but for hand-overs left to the next turn); the first one is next",
    "3  every lease is released once, every waiter ends once, nothing remains at the end",
    "4  no request joins a full queue or a full process; the held requests are those that wait",
)


class Trace:
    """Draws random events; `counts` has the number of each result."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.events = 0
        choices: list[tuple[int, Callable[[TraceWorld], None]]] = [
            (40, self._arrive),
            (30, self._end),
            (5, self._leave),
            (4, self._try_again),
            (5, self._pod_comes),
            (2, self._pod_drains),
            (3, lambda world: world.free_drained()),
            (3, lambda world: world.flap(self._pod(), self.chance.choice(FLAPS))),
            (2, lambda world: world.limit(self._pod(), self.chance.randrange(5))),
            (3, self._fail_or_recover),
            (1, lambda world: world.reload(self.chance.randrange(len(DISCIPLINES)), self.chance.randrange(21))),
            (4, lambda world: world.pass_time(self.chance.choice((0.05, 0.2, 1.0, 6.0)))),
            (20, lambda world: world.turn()),
        ]
        self._weights = [weight for weight, _ in choices]
        self._choices = [choice for _, choice in choices]

    def run(self, events: int) -> None:
        """Draw this many events. Raises ViolationError."""
        left = events
        while left > 0:
            world = TraceWorld(self.chance.randrange(3), self.chance.randrange(1, 6))
            life = min(left, LIFE_EVENTS)
            left -= life
            for event in self.chance.choices(self._choices, self._weights, k=life):
                self.events += 1
                event(world)
                if self.events % DEEP_CHECK_EVERY == 0:
                    world.check_deeply()
                else:
                    world.check()
            world.finish()
            self.counts.update(world.counts)

    def _pod(self) -> int:
        return self.chance.randrange(1, 5)

    def _arrive(self, world: TraceWorld) -> None:
        chance = self.chance
        manner = chance.choices((NORMAL, HASTY, RAISING, PUSHING), (20, 1, 1, 1))[0]
        path = chance.choices(("/", "/heavy/1", "/healthz"), (8, 2, 1))[0]
        world.arrive(path, chance.randrange(9), chance.choice("abc"), manner, chance.choice(("", "", "300ms", "20s")))

    def _end(self, world: TraceWorld) -> None:
        if world.leased:
            world.end(chosen(self.chance, world.leased))

    def _leave(self, world: TraceWorld) -> None:
        if world.live:
            world.leave(chosen(self.chance, world.live))

    def _try_again(self, world: TraceWorld) -> None:
        if world.leased:
            world.try_again(chosen(self.chance, world.leased))

    def _pod_comes(self, world: TraceWorld) -> None:
        world.pod_comes(self._pod(), self.chance.randrange(1, 4))

    def _pod_drains(self, world: TraceWorld) -> None:
        world.pod_drains(self._pod())

    def _fail_or_recover(self, world: TraceWorld) -> None:
        if world.throttler.queue.failure is not None:
            world.recover()
        elif self.chance.random() < 0.1:
            world.fail()


def chosen(chance: random.Random, among: dict[Guest, None]) -> Guest:
    return chance.choice(list(among))


def run(events: int, seed: int, json_path: str | None) -> int:
    """Run `python -m bench trace`. Raises BenchError when a promise was broken."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    trace = Trace(seed)
    began_s = time.perf_counter()
    try:
        trace.run(events)
    except (ViolationError, AssertionError) as error:
        raise BenchError(f"seed {seed}, event {trace.events}: {error}") from error
    took_s = time.perf_counter() - began_s
    counts = trace.counts
    print(f"\n{events:,} events, seed {seed}, {took_s:.1f} s; 0 violations of\n  " + "\n  ".join(INVARIANTS) + "\n")
    print(results.table(["what", "times"], [[name, f"{counts[name]:,}"] for name in sorted(counts)]))
    if json_path is not None:
        params: dict[str, Value] = {"events": events, "seed": seed, **counts}
        results.write(json_path, Document(head, [Result("trace.violations", 0.0, "violations", True, params)]))
    return 0
