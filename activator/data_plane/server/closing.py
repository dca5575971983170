"""How a client connection ends: the phases of its life as a checked table, and how long a closing one may take.

Rules
  1. A connection is in exactly one phase. `ClientConnection._enter` (client_connection.py) alone changes it, and asks
     `is_legal` before.
  2. Every connection ends GONE, when the loop has closed it; until then it holds its descriptor.
  3. A client that reads some of what is left to be sent is given more time; one that reads nothing is cut off.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.runtime.transitions import PHASE_BITS, IllegalTransitionError, Transition, legal_steps
from activator.runtime.transport import FLUSH_S

LINGER_S: Final = 30.0  # reading on after an early answer, so that a reset does not destroy it …
LINGER_SILENCE_S: Final = 5.0  # … while the client goes on sending: after such a pause it is taken to have ended
LINGER_SCARCE_S: Final = 2.0  # … and at the most where connections are too many, or the program is to end

OPEN: Final = 0  # requests are read and answered, or it is a tunnel
LINGERING: Final = 1  # its last answer is written; what the client still sends is read and thrown away
CLOSING: Final = 2  # closed by us in order: what was written is on its way, nothing more is sent
CLIENT_ENDED: Final = 3  # closed by the client: what was written is on its way
ABORTED: Final = 4  # cut off: the loop is about to close it
GIVEN_UP: Final = 5  # evicted, and not counted any more
GONE: Final = 6  # closed by the loop

PHASE_NAMES: Final = ("open", "lingering", "closing", "client ended", "aborted", "given up", "gone")

TRANSITIONS: Final = (
    Transition(OPEN, LINGERING, "its last answer is written, and the client may still be sending"),
    Transition(OPEN, CLOSING, "its last answer is written, or it was idle for long"),
    Transition(OPEN, CLIENT_ENDED, "the client has closed"),
    Transition(OPEN, ABORTED, "an answer is cut short, the client has vanished, or the drain is over"),
    Transition(OPEN, GONE, "the connection broke"),
    Transition(LINGERING, CLOSING, "the client has closed too, or over TLS has taken all"),
    Transition(LINGERING, ABORTED, "the client has been silent, or sending, for long enough"),
    Transition(LINGERING, GIVEN_UP, "it is evicted"),
    Transition(LINGERING, GONE, "the connection broke"),
    Transition(CLOSING, ABORTED, "the client takes nothing of what is left"),
    Transition(CLOSING, GIVEN_UP, "it is evicted"),
    Transition(CLOSING, GONE, "all is sent"),
    Transition(CLIENT_ENDED, ABORTED, "the client takes nothing of what is left"),
    Transition(CLIENT_ENDED, GONE, "all is sent"),
    Transition(ABORTED, GIVEN_UP, "it is evicted before the loop has closed it"),
    Transition(ABORTED, GONE, "the loop has closed it"),
    Transition(GIVEN_UP, GONE, "the loop has closed it"),
)

_LEGAL: Final[bytes] = legal_steps(TRANSITIONS)
_NEVER_LOOKED: Final = -(1 << 62)  # less than there is


def is_legal(phase: i64, to: i64) -> bool:
    """Whether a connection in `phase` may go on to `to`."""
    return _LEGAL[(phase << PHASE_BITS) | to] != 0


def illegal(phase: int, to: int) -> IllegalTransitionError:
    """The error that a connection was to go on from `phase` to `to`."""
    return IllegalTransitionError("a client connection", PHASE_NAMES[phase], PHASE_NAMES[to])


@final
class Closing:
    """One connection's way from its last answer to its end.

    `is_whole` False: the last answer is cut short, and is not waited for as long as others are.
    """

    def __init__(self, since_s: float, is_whole: bool) -> None:
        self.since_s: float = since_s
        self.is_whole: bool = is_whole
        self._taken: int = _NEVER_LOOKED  # by the client, at the last look

    def lingers_until_s(self, quiet_since_s: float, is_scarce: bool) -> float:
        """How long to read on from a client, silent since then; `is_scarce`: connections are at their limit."""
        if is_scarce:
            return self.since_s + LINGER_SCARCE_S
        return min(quiet_since_s + LINGER_SILENCE_S, self.since_s + LINGER_S)

    def has_been_looked_at(self) -> bool:
        """The client has been given time to take what is left."""
        return self._taken != _NEVER_LOOKED

    def is_taken(self, unsent: int, taken: int, now_s: float) -> bool:
        """Whether the client has taken some since the last look; `unsent` bytes are left to be sent.

        `taken`: a number that grows with what it takes.
        """
        if unsent > 0 and taken > self._taken and (self.is_whole or now_s - self.since_s < FLUSH_S):
            self._taken = taken
            return True
        return False

    def look_again_s(self) -> float:
        """How long after a look the next one is due."""
        return FLUSH_S if self.is_whole else LINGER_SILENCE_S
