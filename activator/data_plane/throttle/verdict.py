"""Passive health checks: what the end of a request shows about its pod. It is judged here and nowhere else.

| what happened                                   | of a pod in service        | of one on trial             |
|-------------------------------------------------|----------------------------|-----------------------------|
| the head of an answer came                      |                            | passed, at once             |
| a dial was refused                              | dead                       | dead                        |
| a dial was silent, or TLS failed                | unreached: a strike        | unreached: failed           |
| the pod closed under a request                  | a strike                   | failed                      |
| no first byte in time, and the pod had the time | a strike                   | failed                      |
| no answer in all, bytes that are no answer      | nothing                    | failed                      |
| the client left, was too slow, sent nonsense    | nothing                    | nothing                     |
| we ended it (drain, shutdown, a defect)         | nothing                    | nothing                     |

Rules
  1. A trial asks whether the pod answers. The head of the response shows it; how long the rest takes (a WebSocket or a
     stream may take hours) does not count.
  2. An end that shows "nothing" gives the trial back: the next request is the next trial.
  3. Of a pod on trial only its trials count, and dials, which are made now: requests from before its quarantine show
     only what the pod was then.
"""

from __future__ import annotations

from typing import Final

from activator.runtime.errors import Reason

NOTHING: Final = 0
STRUCK: Final = 1  # it took the request, and broke the connection or was silent
UNREACHED: Final = 2  # no connection was made, for no certain reason: no picks until the state worker has decided
DEAD: Final = 3  # no process listens there

_VERDICTS: Final[dict[Reason, int]] = {
    Reason.CONNECT_FAILED: DEAD,
    Reason.CONNECT_TIMEOUT: UNREACHED,
    Reason.TLS_FAILED: UNREACHED,
    Reason.POD_CLOSED: STRUCK,
    Reason.FIRST_BYTE_TIMEOUT: STRUCK,
}
_VERDICTS_ON_TRIAL: Final[dict[Reason, int]] = {
    **_VERDICTS,
    Reason.BAD_RESPONSE: STRUCK,
    Reason.IDLE_TIMEOUT: STRUCK,
    Reason.TOTAL_TIMEOUT: STRUCK,
}


def verdict_of(reason: Reason, on_trial: bool) -> int:
    """What a request that failed for `reason` says of its pod."""
    return (_VERDICTS_ON_TRIAL if on_trial else _VERDICTS).get(reason, NOTHING)
