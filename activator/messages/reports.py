"""Reports of the data plane other than changes."""

from __future__ import annotations

from typing import Final

from activator.messages.changes import Change
from activator.messages.message import Message
from activator.messages.statistics import RevisionStatistics


class Load(Message, frozen=True, tag=True):
    """The traffic of one revision.

    Sent at once when the first request arrives, and when one is the first to wait; otherwise every
    LOAD_REPORT_INTERVAL_S. `concurrency`: present requests; `request_seconds`: its integral over time until `at_s`;
    `oldest_s`: the arrival of the next request in the queue, 0.0 if none waits.
    """

    key: str
    in_flight: int
    queued: int
    requests_total: int
    concurrency: int = 0
    request_seconds: float = 0.0
    at_s: float = 0.0
    oldest_s: float = 0.0


class PodDrained(Message, frozen=True, tag=True):
    """A withdrawn pod has no request any more: its source may stop it."""

    key: str
    identity: str


class PodTaken(Message, frozen=True, tag=True):
    """A pod that takes one request has got it, and gets no other.

    `is_over`: the request has ended; with a `failure`, the value of a `Reason`, it has failed at the pod.
    """

    key: str
    identity: str
    is_over: bool = False
    failure: str = ""


ToControl = Change | Load | PodDrained | PodTaken


class Drained(Message, frozen=True, tag=True):
    """The data plane has no requests any more; `finished`: False if some had to be aborted."""

    finished: bool


# The outcomes of asynchronous requests (data_plane/stored_responses/store.py).
ANSWER_OUTCOMES: Final = ("accepted", "synchronous", "done", "too_large", "collected", "expired", "deleted", "lost")


class RevisionEnded(Message, frozen=True, tag=True):
    """The last request of a dropped revision has ended; these are its final counts."""

    statistics: RevisionStatistics


FromData = ToControl | Drained | RevisionEnded
