"""Tables of legal transitions between phases, with a lookup for the hot path.

Rules
  1. Phases are plain numbers below PHASES_MAX, with a table of names, because members of an enum would be looked up by
     name at each use, even in compiled code.
  2. The owner of a phase checks the table before each transition. One that is not in it is an IllegalTransitionError,
     which is reported, and ends the request or connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PHASE_BITS: Final = 4
PHASES_MAX: Final = 1 << PHASE_BITS


class Transition(NamedTuple):
    """A legal transition from one phase to another."""

    phase: int
    to: int
    why: str


class IllegalTransitionError(Exception):
    """A transition of `what`, between the named phases, that is not in the table (a defect)."""

    def __init__(self, what: str, phase: str, to: str) -> None:
        super().__init__(f"{what} that is {phase!r} was to be {to!r}")
        self.phase = phase
        self.to = to


def legal_steps(transitions: Sequence[Transition]) -> bytes:
    """Return a byte per pair of phases, at (phase << PHASE_BITS) | to: 1 if the transition is legal, else 0."""
    legal = {(one.phase, one.to) for one in transitions}
    return bytes([(phase, to) in legal for phase in range(PHASES_MAX) for to in range(PHASES_MAX)])
