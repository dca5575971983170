"""What the simulation raises where a rule does not hold."""

from __future__ import annotations


class RuleError(AssertionError):
    """A rule does not hold."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise RuleError(what)
