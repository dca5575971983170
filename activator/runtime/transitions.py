"""Tables of legal steps between phases: how one is written down, and how it is looked up on the hot path.

Rules
  1. Phases are plain numbers below PHASES_MAX, with a table of names: an enum's members would be looked up by name at
     each use, also from compiled code.
  2. The owner of a phase looks into the table before each step. A step that is not in it is an IllegalTransitionError,
     which is reported, and ends the request or connection that was to take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PHASE_BITS: Final = 4
PHASES_MAX: Final = 1 << PHASE_BITS


class Transition(NamedTuple):
    """From one phase to another."""

    phase: int
    to: int
    why: str


class IllegalTransitionError(Exception):
    """A step that is not in the table: a defect of ours. `what` was to take it, between these names of phases."""

    def __init__(self, what: str, phase: str, to: str) -> None:
        super().__init__(f"{what} that is {phase!r} was to be {to!r}")
        self.phase = phase
        self.to = to


def legal_steps(transitions: Sequence[Transition]) -> bytes:
    """A byte for each pair of phases, at (phase << PHASE_BITS) | to: 1 where the step is in the table, else 0."""
    legal = {(one.phase, one.to) for one in transitions}
    return bytes([(phase, to) in legal for phase in range(PHASES_MAX) for to in range(PHASES_MAX)])
