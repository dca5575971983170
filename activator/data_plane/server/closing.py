"""The end of a client connection: the phases of its life as a checked table, and the time limits of closing.

Rules
  1. A connection is in exactly one phase. Only `ClientConnection._enter` (client_connection.py) changes it, after
     checking `is_legal`.
  2. Every connection ends in GONE, when the loop has closed it; until then it holds its descriptor.
  3. A client that reads some of the remaining data gets more time; one that reads nothing is aborted.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.runtime.transitions import PHASE_BITS, IllegalTransitionError, Transition, legal_steps
from activator.runtime.transport import FLUSH_S

LINGER_S: Final = 30.0  # the longest time to read on after an early response, so that a reset does not destroy it
LINGER_SILENCE_S: Final = 5.0  # a lingering client that is silent for this time is taken to have ended
LINGER_SCARCE_S: Final = 2.0  # replaces both when connections are scarce or the program drains

OPEN: Final = 0  # requests are read and answered, or it is a tunnel
LINGERING: Final = 1  # the last response is written; further data from the client is read and discarded
CLOSING: Final = 2  # closed in order by this side; written data is still being sent
CLIENT_ENDED: Final = 3  # closed by the client; written data is still being sent
ABORTED: Final = 4  # reset; the loop is about to close it
GIVEN_UP: Final = 5  # evicted, and no longer counted
GONE: Final = 6  # closed by the loop

PHASE_NAMES: Final = ("open", "lingering", "closing", "client ended", "aborted", "given up", "gone")

TRANSITIONS: Final = (
    Transition(OPEN, LINGERING, "its last response is written, and the client may still be sending"),
    Transition(OPEN, CLOSING, "its last response is written, or its idle timeout has expired"),
    Transition(OPEN, CLIENT_ENDED, "the client has closed"),
    Transition(OPEN, ABORTED, "a response is cut short, the client has disappeared, or the drain has timed out"),
    Transition(OPEN, GONE, "the connection broke"),
    Transition(LINGERING, CLOSING, "the client has closed, too, or over TLS has taken all data"),
    Transition(LINGERING, ABORTED, "the time to linger is over"),
    Transition(LINGERING, GIVEN_UP, "it is evicted"),
    Transition(LINGERING, GONE, "the connection broke"),
    Transition(CLOSING, ABORTED, "the client has stopped reading"),
    Transition(CLOSING, GIVEN_UP, "it is evicted"),
    Transition(CLOSING, GONE, "all is sent"),
    Transition(CLIENT_ENDED, ABORTED, "the client has stopped reading"),
    Transition(CLIENT_ENDED, GONE, "all is sent"),
    Transition(ABORTED, GIVEN_UP, "it is evicted before the loop has closed it"),
    Transition(ABORTED, GONE, "the loop has closed it"),
    Transition(GIVEN_UP, GONE, "the loop has closed it"),
)

_LEGAL: Final[bytes] = legal_steps(TRANSITIONS)
_NEVER_CHECKED: Final = -(1 << 62)  # less than any count


def is_legal(phase: i64, to: i64) -> bool:
    """Return True if the table has a step from `phase` to `to`."""
    return _LEGAL[(phase << PHASE_BITS) | to] != 0


def illegal(phase: int, to: int) -> IllegalTransitionError:
    """Return the error for a step from `phase` to `to`."""
    return IllegalTransitionError("a client connection", PHASE_NAMES[phase], PHASE_NAMES[to])


@final
class Closing:
    """The state of one connection that closes, from its last response to its end.

    `is_whole` is False if the last response was cut short; the connection then gets less time.
    """

    def __init__(self, since_s: float, is_whole: bool) -> None:
        self.since_s: float = since_s
        self.is_whole: bool = is_whole
        self._checked_taken: int = _NEVER_CHECKED  # value of `taken` at the last check

    def lingers_until_s(self, quiet_since_s: float, is_scarce: bool) -> float:
        """Return the time until which to read from a client that has been silent since `quiet_since_s`.

        `is_scarce`: connections are at their limit, or the program drains.
        """
        if is_scarce:
            return self.since_s + LINGER_SCARCE_S
        return min(quiet_since_s + LINGER_SILENCE_S, self.since_s + LINGER_S)

    def has_been_checked(self) -> bool:
        """Return True if the client has been given time to take the remaining data."""
        return self._checked_taken != _NEVER_CHECKED

    def is_taken(self, unsent: int, taken: int, now_s: float) -> bool:
        """Return True if the client has taken some of the `unsent` bytes since the last check.

        `taken`: a counter that grows with the bytes that the client takes.
        """
        if unsent > 0 and taken > self._checked_taken and (self.is_whole or now_s - self.since_s < FLUSH_S):
            self._checked_taken = taken
            return True
        return False

    def recheck_s(self) -> float:
        """Return the delay until the next check."""
        return FLUSH_S if self.is_whole else LINGER_SILENCE_S
