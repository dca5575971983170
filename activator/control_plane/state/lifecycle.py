"""The states of a pod and every legal transition between them, as one table.

Rules
  1. `TRANSITIONS` is complete: `reduce` calls `is_legal` before it writes a record. A transition that is not in the
     table is a bug: it is refused, counted and logged. (Late reports are recognized before: health.py.)
  2. EMPTY stands for a pod that is not known.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING

# What happens to a pod.
SEEN: Final = "seen"  # a source reports it, or reports a change of it
GONE: Final = "gone"  # a source no longer reports it
ANSWERED: Final = "answered"  # a probe was answered
DEAD: Final = "dead"  # a connection was refused, or health checks have failed
STRUCK: Final = "struck"  # no answer in time, or a broken connection
SERVED: Final = "served"  # a request was answered after strikes
TRIAL_PASSED: Final = "trial passed"
TRIAL_FAILED: Final = "trial failed"
EXPIRED: Final = "expired"  # a pod's own report has expired, or no source has reported it for a long time
OUSTED: Final = "ousted"  # another pod has come to its address
RETURNED: Final = "returned"  # the pod that ousted it has left the address

EVENTS: Final = (SEEN, GONE, ANSWERED, DEAD, STRUCK, SERVED, TRIAL_PASSED, TRIAL_FAILED, EXPIRED, OUSTED, RETURNED)


class Transition(NamedTuple):
    """The legal states after an event in one state."""

    state: int
    event: str
    to: tuple[int, ...]
    why: str


_NEWER: Final = "a newer pod is at its address"
_EJECTED: Final = (QUARANTINED, RECOVERING)  # outlasts other states that sources report in between

TRANSITIONS: Final = (
    Transition(EMPTY, SEEN, (PENDING, READY, NOT_READY, DRAINING), "a new pod"),
    Transition(PENDING, SEEN, (PENDING, READY, NOT_READY, DRAINING), "its source reports more"),
    Transition(READY, SEEN, (READY, PENDING, NOT_READY, DRAINING), "its source withdraws its readiness"),
    Transition(NOT_READY, SEEN, (NOT_READY, READY, PENDING, DRAINING, *_EJECTED), "it is as it was before"),
    Transition(QUARANTINED, SEEN, (QUARANTINED, NOT_READY, PENDING, DRAINING), "no source ends a quarantine"),
    Transition(RECOVERING, SEEN, (RECOVERING, NOT_READY, PENDING, DRAINING), "no source ends a trial"),
    Transition(DRAINING, SEEN, (DRAINING, READY, PENDING, NOT_READY, *_EJECTED), "it flaps; its ledger was kept"),
    Transition(PENDING, GONE, (EMPTY, PENDING, READY, NOT_READY, DRAINING), "the other sources decide"),
    Transition(READY, GONE, (EMPTY, READY, PENDING, NOT_READY, DRAINING), "the other sources decide"),
    Transition(NOT_READY, GONE, (EMPTY, NOT_READY, READY, PENDING, DRAINING, *_EJECTED), "the other sources decide"),
    Transition(QUARANTINED, GONE, (EMPTY, QUARANTINED, PENDING, NOT_READY, DRAINING), "the other sources decide"),
    Transition(RECOVERING, GONE, (EMPTY, RECOVERING, PENDING, NOT_READY, DRAINING), "the other sources decide"),
    Transition(DRAINING, GONE, (EMPTY, DRAINING, READY, PENDING, NOT_READY, *_EJECTED), "the other sources decide"),
    Transition(PENDING, ANSWERED, (READY,), "proven"),
    Transition(QUARANTINED, ANSWERED, (RECOVERING,), "one trial request at a time"),
    Transition(READY, DEAD, (QUARANTINED,), "certain: out at once, also the last one"),
    Transition(RECOVERING, DEAD, (QUARANTINED,), "certain"),
    Transition(
        READY, STRUCK, (READY, QUARANTINED), "inferred: after so many strikes, within the share, never the last"
    ),
    Transition(RECOVERING, STRUCK, (QUARANTINED,), "the trial has failed"),
    Transition(PENDING, SERVED, (PENDING,), "its strikes are forgotten"),
    Transition(READY, SERVED, (READY,), "its strikes are forgotten"),
    Transition(NOT_READY, SERVED, (NOT_READY,), "its strikes are forgotten"),
    Transition(RECOVERING, TRIAL_PASSED, (READY, PENDING), "it takes requests again, unless it reports a start"),
    Transition(RECOVERING, TRIAL_FAILED, (QUARANTINED,), "it is probed again"),
    Transition(PENDING, EXPIRED, (EMPTY, PENDING, READY, NOT_READY), "its own report is old: the other sources decide"),
    Transition(READY, EXPIRED, (EMPTY, READY, PENDING, NOT_READY), "its own report is old: the other sources decide"),
    Transition(
        NOT_READY, EXPIRED, (EMPTY, NOT_READY, READY, PENDING, *_EJECTED), "no source lists it, or its report is old"
    ),
    Transition(
        QUARANTINED, EXPIRED, (EMPTY, QUARANTINED, NOT_READY, PENDING), "no source lists it, or its report is old"
    ),
    Transition(RECOVERING, EXPIRED, (EMPTY, RECOVERING, NOT_READY, PENDING), "its own report is old"),
    Transition(DRAINING, EXPIRED, (EMPTY, DRAINING, READY, PENDING, NOT_READY, *_EJECTED), "its own report is old"),
    *(Transition(state, OUSTED, (DRAINING,), _NEWER) for state in (PENDING, READY, NOT_READY, QUARANTINED, RECOVERING)),
    Transition(DRAINING, OUSTED, (DRAINING,), _NEWER),
    Transition(
        DRAINING, RETURNED, (DRAINING, PENDING, READY, NOT_READY, *_EJECTED), "the newer one has left the address"
    ),
)

_LEGAL: Final = frozenset((row.state, row.event, to) for row in TRANSITIONS for to in row.to)


def is_legal(state: int, event: str, to: int) -> bool:
    """Return True if a pod in `state` may be in the state `to` after `event`; EMPTY stands for an unknown pod."""
    return (state, event, to) in _LEGAL
