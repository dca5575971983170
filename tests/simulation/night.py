"""Storms without end: so many events, from seeds one after the other (`make night`).

    python -m tests.simulation.night --events 1e8 --first 0     from this seed on, until there were so many events
    python -m tests.simulation.night --replay SEED              one of them, with its faults told

Rules
  1. What a seed is follows from the seed alone: how many members, which faults, for how long.
  2. A run that ends early is gone on with: it says with each line which seed it has come to, for `--first`.
  3. A seed that fails is run again and again with fewer faults while it fails: first with the fewest of its first ones,
     then without each. What is told is how to see the short run again.
  4. Each tenth seed is checked event by event (`checker.py`); that takes a fifth of the time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.pool import Pool
from typing import Final, NamedTuple

from tests.simulation.storm import IN_ORDER, KINDS, LIMITS_COME, REVISIONS, REVISIONS_COME, Faults, storm_of
from tests.simulation.world import World

TELL_S: Final = 30.0  # how often it says how far it is
AT_ONCE: Final = 200  # seeds
_CHOICES: Final = (
    *(KINDS, REVISIONS_COME, LIMITS_COME, IN_ORDER),
    *(("rebuild", "kill"), ("kill within",), ("cut", "pause"), ("cut", "kill", "slow"), ("one way", "leave", "join")),
)


class Plan(NamedTuple):
    """Of one seed."""

    seed: int
    members: int
    seconds: float
    suspicions: float
    faults: Faults


class Outcome(NamedTuple):
    """`failed`: what did not hold; empty: all did."""

    seed: int
    events: int
    delivered: int
    failed: str


def plan_of(seed: int) -> Plan:
    chance = random.Random(f"{seed} plan")
    kinds = _CHOICES[seed % len(_CHOICES)]
    faults = Faults(kinds, chance.choice([3.0, 6.0, 12.0]))
    return Plan(seed, chance.randint(2, 7), chance.choice([2.0, 5.0]), chance.choice([0.0, 0.3]), faults)


def run(plan: Plan) -> Outcome:
    """What raises is an outcome: the next seed is run all the same."""
    world = World(plan.seed, plan.members, REVISIONS, checked=plan.seed % 10 == 0)
    failed = ""
    try:
        storm_of(world, plan.seed, plan.seconds, plan.faults, plan.suspicions)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    return Outcome(plan.seed, world.timeline.steps, world.network.delivered, failed)


def run_seed(seed: int) -> Outcome:
    return run(plan_of(seed))


def shrunk(plan: Plan, fails: Callable[[Faults], bool]) -> Faults:
    """Fewer faults with which it still fails, as it does with all of them."""
    faults = plan.faults
    most = int(2 * plan.seconds * faults.a_second) + 20  # more than happen
    faults = next((one for one in (faults._replace(first=first) for first in range(most)) if fails(one)), faults)
    for number in range(min(faults.first, most)):
        fewer = faults._replace(left_out=faults.left_out | {number})
        if fails(fewer):
            faults = fewer
    return faults


def tell_failure(seed: int) -> None:
    plan = plan_of(seed)
    short = shrunk(plan, lambda faults: run(plan._replace(faults=faults)).failed != "")
    left_out = ",".join(map(str, sorted(short.left_out)))
    print(f"    python -m tests.simulation.night --replay {seed}")
    print(
        f"    python -m tests.simulation.night --replay {seed} --faults {short.first} --without '{left_out}'",
        flush=True,
    )


def replay(seed: int, first: int, without: str) -> int:
    plan = plan_of(seed)
    left_out = frozenset(int(number) for number in without.split(",") if number)
    outcome = run(plan._replace(faults=plan.faults._replace(first=first, left_out=left_out, tell=print)))
    print(f"{plan.members} members, {outcome.events} events: {outcome.failed or 'all rules hold'}")
    return 1 if outcome.failed else 0


def _outcomes(pool: Pool, first: int) -> Iterator[Outcome]:
    """Without end; a pool takes all that it is given at once, so it is given some at a time."""
    for begin in count(first, AT_ONCE):
        yield from pool.imap(run_seed, range(begin, begin + AT_ONCE))


def night(first: int, events_wanted: float, jobs: int) -> int:
    """How many seeds failed."""
    began_s = told_s = time.monotonic()
    events = delivered = failures = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for outcome in _outcomes(pool, first):
            events += outcome.events
            delivered += outcome.delivered
            if outcome.failed:
                failures += 1
                print(f"seed {outcome.seed}: {outcome.failed[:500]}")
                tell_failure(outcome.seed)
            now_s = time.monotonic()
            is_over = events >= events_wanted
            if is_over or now_s - told_s >= TELL_S:
                told_s = now_s
                rate = events / (now_s - began_s)
                print(
                    f"seeds {first} to {outcome.seed}: {events:,} events, {delivered:,} of them messages, "
                    f"{rate:,.0f} a second, {failures} failures; go on with --first {outcome.seed + 1}",
                    flush=True,
                )
            if is_over:
                return failures
    raise AssertionError("seeds do not end")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.night")
    parser.add_argument("--events", type=float, default=1e8)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--replay", type=int, default=None, metavar="SEED")
    parser.add_argument("--faults", type=int, default=plan_of(0).faults.first, help="only so many, with --replay")
    parser.add_argument("--without", default="", help="numbers of faults to leave out, with --replay")
    asked = parser.parse_args()
    if asked.replay is not None:
        return replay(asked.replay, asked.faults, asked.without)
    return 1 if night(asked.first, asked.events, asked.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
