"""Which filters a revision has: the one list, in the order in which requests meet them."""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.data_plane.answers.store import AnswerStore
from activator.data_plane.filters.activity import ActivityTracking
from activator.data_plane.filters.fallback import FallbackResponse, FallbackRevision
from activator.data_plane.filters.filter import Filter, FilterChain
from activator.data_plane.filters.no_wake import NoWake
from activator.data_plane.filters.progress_events import ProgressEvents
from activator.data_plane.filters.server_timing import ServerTiming
from activator.data_plane.filters.stored_answers import StoredAnswers
from activator.data_plane.filters.waiting_page import WaitingPage
from activator.runtime.clock import Now, TimingWheel


class FilterCatalogue:
    """Makes the filters of the revisions of one data plane."""

    def __init__(self, wheel: TimingWheel, now: Now, answers: AnswerStore | None) -> None:
        self._wheel = wheel
        self._now = now
        self._answers = answers

    def chain_of(self, spec: RevisionSpec) -> FilterChain | None:
        """Return the filters of a revision; None: it has none."""
        filters: list[Filter] = []
        if spec.no_wake:
            filters.append(NoWake(spec))
        if spec.respond_async is not None and self._answers is not None:
            filters.append(StoredAnswers(spec.respond_async, self._answers))
        if spec.progress is not None:
            filters.append(ProgressEvents(spec.progress, self._wheel, self._now))
        if spec.waiting_page_refresh_s > 0.0:
            filters.append(WaitingPage(spec, self._wheel, self._now))
        if spec.fallback_revision:
            filters.append(FallbackRevision(spec, self._wheel, self._now))
        if spec.fallback_body or spec.fallback_redirect:
            filters.append(FallbackResponse(spec))
        if spec.quiet_tunnels_s > 0.0 or spec.quiet_streams_s > 0.0:
            filters.append(ActivityTracking(spec.quiet_tunnels_s, spec.quiet_streams_s, self._wheel, self._now))
        if spec.server_timing:
            filters.append(ServerTiming())
        return FilterChain(filters) if filters else None
