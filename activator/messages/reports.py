"""What the data plane reports beside changes."""

from __future__ import annotations

from typing import Final

from activator.messages.changes import Change
from activator.messages.message import Message
from activator.messages.statistics import RevisionStatistics


class Load(Message, frozen=True, tag=True):
    """One revision's traffic: sent at once when the first request comes, and when one is the first to wait; every
    LOAD_REPORT_INTERVAL_S otherwise.

    `concurrency`: requests that are here; `request_seconds`: the integral of it over time until `at_s`; `oldest_s`:
    when the request came that is the next in line, 0.0: none waits.
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
    """A withdrawn pod has no request any more: its source may end it."""

    key: str
    identity: str


class PodTaken(Message, frozen=True, tag=True):
    """A pod that takes one request has been given it, and gets no other. `is_over`: it has ended; with a `failure`, the
    value of a `Reason`, it has failed at the pod.
    """

    key: str
    identity: str
    is_over: bool = False
    failure: str = ""


ToControl = Change | Load | PodDrained | PodTaken


class Drained(Message, frozen=True, tag=True):
    """The data plane carries nothing any more; `finished`: False when some requests had to be cut."""

    finished: bool


# What requests come to whose clients do not want to wait (data_plane/answers/store.py).
ANSWER_OUTCOMES: Final = ("accepted", "synchronous", "done", "too_large", "collected", "expired", "deleted", "lost")


class RevisionEnded(Message, frozen=True, tag=True):
    """The last request of a revision that was dropped has ended: what it had counted, for the last time."""

    statistics: RevisionStatistics


FromData = ToControl | Drained | RevisionEnded
