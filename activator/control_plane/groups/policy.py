"""The interface of a group's policy: its input and its plan.

Rules
  1. A policy is a pure object: no clock, no I/O, and no state except for its settings. Equal views give equal plans.
  2. The plan never exceeds the budget: a grant fits beside everything that still holds resources, including programs
     that are leaving.
  3. A program whose turn is over drains: it gets no new requests and finishes its present ones.

`tests/control_plane/groups/policy_contract.py` is the contract that every policy passes.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from activator.runtime.clock import NEVER

Amounts = tuple[int, ...]  # by resource, in the order of the group's budget


class Eviction(Enum):
    """The reason of an eviction; the values are labels of metrics."""

    DEMAND = "demand"  # idle, and another revision has a request
    OVERTAKEN = "overtaken"  # busy, and another revision's request has been passed over for long enough
    SPARE = "spare"  # one of several programs of a revision, and another revision has none
    BUDGET = "budget"  # the budget was lowered below the needs of the loaded programs
    ASLEEP = "asleep"  # it slept, and the resources that it held are needed


class RevisionState(NamedTuple):
    """The present state of one revision of a group."""

    key: str
    needs: Amounts  # amounts of one program that runs, starts or stops
    asleep: Amounts | None = None  # amounts of one that sleeps; None: its programs cannot sleep
    granted: int = 0  # programs that it may run
    started: int = 0  # the part of `granted` that exists
    ready: int = 0  # the part of `started` that has been ready
    leaving: int = 0  # being stopped, or put to sleep
    falling_asleep: int = 0  # the part of `leaving` that is being put to sleep
    sleeping: int = 0
    stopping_asleep: int = 0  # slept, and are being stopped
    wanted: int = 0  # programs that its load, minimum or schedule calls for
    floor: int = 0  # programs that are not evicted for others
    kept: int = 0  # programs that a minimum, a schedule, a preload or an operator calls for, without a request
    most: int = 0  # `max_scale`; 0: no bound
    busy: bool = False  # it has a request at a pod, or background work
    since_s: float = NEVER  # when the next request in its queue arrived; NEVER: none waits
    used_s: float = 0.0  # when it last had a request
    start_s: float = 0.0  # how long a start takes
    wake_s: float = 0.0  # how long a wake takes
    may_start: bool = True  # not in the backoff after a failed start


class View(NamedTuple):
    """The present state of one group. `former`: what the leaving programs of former members hold."""

    now_s: float
    budget: Amounts
    members: tuple[RevisionState, ...]
    exclusive: bool = False  # one revision at a time with any number of programs; there is no budget then
    former: Amounts = ()


class WaitsFor(Enum):
    """Why a revision without a loaded program waits."""

    LEAVING = "leaving"  # programs that are leaving
    TURN = "turn"  # revisions that have requests
    BEHIND = "behind"  # a revision whose request came earlier
    BACKOFF = "backoff"  # the time after a failed start


class Wait(NamedTuple):
    """The wait of one revision; `keys`: the revisions that it waits for."""

    reason: WaitsFor
    keys: tuple[str, ...] = ()


class Plan(NamedTuple):
    """The changes to make; members that are not named stay as they are."""

    grants: dict[str, int]  # programs that each member may run
    stop_asleep: dict[str, int]  # sleeping programs to be stopped
    no_sleep: frozenset[str]  # members whose leaving programs are stopped although they could sleep
    evictions: dict[str, Eviction]
    waits: dict[str, Wait]


class GroupPolicy:
    """The policy of a group: which programs to load and to evict, and which revision to serve next."""

    name = ""

    def plan(self, view: View) -> Plan:
        raise NotImplementedError
