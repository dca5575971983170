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

from activator.runtime.reasons import Reason, Verdict


def verdict_of(reason: Reason, on_trial: bool) -> Verdict:
    """Return what a request that failed for `reason` shows about its pod."""
    if reason.verdict is Verdict.STRUCK_ON_TRIAL:
        return Verdict.STRUCK if on_trial else Verdict.NOTHING
    return reason.verdict
