"""What a policy of a group is told, and what it answers.

Rules
  1. A policy is a pure object: no clock, no I/O, nothing kept between two calls but its settings. Equal views give
     equal plans.
  2. The plan never exceeds the budget: what is granted now fits beside all that still holds something, also beside
     programs that are on their way out.
  3. A program whose turn is over drains: it gets no new requests and finishes what it has.

`tests/control_plane/groups/policy_contract.py` is the contract that every policy passes.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from activator.runtime.clock import NEVER

Amounts = tuple[int, ...]  # of each resource, in the order of the group's budget


class Eviction(Enum):
    """Why a program has to leave; the values are labels of metrics."""

    DEMAND = "demand"  # idle, and another revision has a request
    OVERTAKEN = "overtaken"  # busy, and another revision's request has been passed over for long enough
    SPARE = "spare"  # one of several programs of a revision, and another revision has none
    BUDGET = "budget"  # the budget was lowered below what is loaded
    ASLEEP = "asleep"  # it slept, and what it kept is needed


class Member(NamedTuple):
    """One revision of a group, as it is now."""

    key: str
    needs: Amounts  # of one program that runs, starts or stops
    asleep: Amounts | None = None  # of one that sleeps; None: its programs cannot sleep
    granted: int = 0  # programs that it may run
    started: int = 0  # of these, that exist
    ready: int = 0  # of these, that have been ready
    leaving: int = 0  # that are being stopped, or put to sleep
    falling_asleep: int = 0  # of these, that are being put to sleep
    sleeping: int = 0
    stopping_asleep: int = 0  # that slept and are being stopped
    wanted: int = 0  # programs that its load, its minimum or its schedule calls for
    floor: int = 0  # programs that are not taken away for others
    kept: int = 0  # programs that a minimum, a schedule, a preload or an operator calls for, without a request
    most: int = 0  # `max_scale`; 0: no bound
    busy: bool = False  # has a request at a pod
    since_s: float = NEVER  # when the next request in its line came; NEVER: none waits
    used_s: float = 0.0  # when it last had a request
    start_s: float = 0.0  # how long a start takes
    wake_s: float = 0.0  # how long a wake takes
    may_start: bool = True  # not in the backoff after a failed start


class View(NamedTuple):
    """One group, as it is now. `former`: what programs hold that belong to no member any more, and are leaving."""

    now_s: float
    budget: Amounts
    members: tuple[Member, ...]
    exclusive: bool = False  # one revision at a time, however many programs it has; there is no budget then
    former: Amounts = ()


class WaitsFor(Enum):
    """What a revision waits for that has no program yet."""

    LEAVING = "leaving"  # programs that are on their way out
    TURN = "turn"  # revisions that have work
    BEHIND = "behind"  # a revision whose request came earlier
    BACKOFF = "backoff"  # the time after a failed start


class Wait(NamedTuple):
    """Of one revision; `of`: the keys that it waits for."""

    what: WaitsFor
    of: tuple[str, ...] = ()


class Plan(NamedTuple):
    """What is to be from now on. What is not named stays as it is."""

    grants: dict[str, int]  # programs that each member may run
    stop_asleep: dict[str, int]  # sleeping programs that have to go
    no_sleep: frozenset[str]  # members whose leaving programs are stopped, though they could sleep
    evictions: dict[str, Eviction]
    waits: dict[str, Wait]


class GroupPolicy:
    """Says what to load, what to evict, whom to serve next."""

    name = ""

    def plan(self, view: View) -> Plan:
        raise NotImplementedError
