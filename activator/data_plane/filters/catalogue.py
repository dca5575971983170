"""The catalogue of all filters, in the order in which they are applied.

`allow`, `rate_limit` and `forward_auth` come first, then the limits of users and filters of packages, so that a request
that they refuse starts no pod. An authoriser is not asked about a request that `allow` or `rate_limit` refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from activator.config.specs import FilterSpec, FiltersSpec, RateLimitSpec, UserSpec
from activator.data_plane.captures import CaptureStore
from activator.data_plane.filters.activity import ActivityTracking
from activator.data_plane.filters.allow import Allow
from activator.data_plane.filters.cors import Cors
from activator.data_plane.filters.fallback import FallbackResponse, FallbackRevision, StatusFallback
from activator.data_plane.filters.fault import Fault
from activator.data_plane.filters.filter import Filter, FilterChain
from activator.data_plane.filters.forward_auth import ForwardAuth, OpenPool
from activator.data_plane.filters.header_rules import HeaderRules
from activator.data_plane.filters.keys import Keys
from activator.data_plane.filters.knative import KnativeFilter
from activator.data_plane.filters.no_wake import NoWake
from activator.data_plane.filters.package_filters import Unusable, make_filter
from activator.data_plane.filters.progress_events import ProgressEvents
from activator.data_plane.filters.quota_limits import QuotaLimits
from activator.data_plane.filters.rate_limit import RateLimit
from activator.data_plane.filters.record import Record
from activator.data_plane.filters.server_timing import ServerTiming
from activator.data_plane.filters.stored_responses import StoredResponses
from activator.data_plane.filters.stream_usage import StreamUsage
from activator.data_plane.filters.waiting_page import WaitingPage
from activator.data_plane.headers.knative import KnativeDialect
from activator.data_plane.quotas.quotas import Quotas
from activator.data_plane.stored_responses.store import ResponseStore
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.plugins import PluginError
from activator.runtime.secret_text import read_secret, without_secrets
from lb.rng import Rng

SEED_BYTES: Final = 16


class FilterCatalogue:
    """The factory of the filters of all revisions of one data plane.

    `open_pool` returns connections to an authoriser. `on_error` is called with the error of a filter that cannot be
    created.
    """

    def __init__(
        self,
        wheel: TimingWheel,
        now: Now,
        response_store: ResponseStore | None,
        captures: CaptureStore,
        quotas: Quotas,
        open_pool: OpenPool,
        rng: Rng,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._wheel = wheel
        self._now = now
        self._response_store = response_store
        self._captures = captures
        self._quotas = quotas
        self._open_pool = open_pool
        self._rng = rng
        self._on_error = on_error
        self._rates: dict[str, RateLimit] = {}  # by revision; kept because a reload does not reset them
        self._seed: bytes = os.urandom(SEED_BYTES)
        self._knative: KnativeFilter | None = None  # set if Knative's components are the peers
        self._cors: Cors | None = None  # set if pages of other origins are allowed
        self._keys: Keys | None = None  # set if there are users
        self._limits: QuotaLimits | None = None  # set if a user has limits
        self.shared: tuple[Filter, ...] = ()  # filters of all requests
        self.user_weights: dict[bytes, int] = {}  # weights other than 1, by user; for queues of `fair`

    def speak_knative(self, cluster_domain: str, passes_through: bool, unhealthy: Callable[[bytes], str]) -> bool:
        """Follow Knative's conventions in all requests (see `KnativeDialect`); return True if that is new."""
        is_new = self._knative is None
        if self._knative is None:
            self._knative = KnativeFilter(KnativeDialect(unhealthy, cluster_domain))
            self._update_shared()
        self._knative.dialect.passes_through = passes_through
        return is_new

    def set_origins(self, origins: list[str]) -> None:
        """Allow pages of these origins to read responses."""
        self._cors = Cors(tuple(origins)) if origins else None
        self._update_shared()

    def set_users(self, specs: tuple[UserSpec, ...] | None) -> None:
        """Require the key of one of these users from each request; None: no keys are required."""
        self._keys = None if specs is None else Keys(specs, {} if self._keys is None else self._keys.totals())
        self.user_weights = {spec.name.encode(): spec.weight for spec in specs or () if spec.weight != 1}
        self._quotas.set_users(specs or ())
        self._limits = QuotaLimits(self._quotas, self._now) if self._quotas.quotas else None
        self._update_shared()

    def user_totals(self) -> dict[str, tuple[int, int, int]]:
        """Return the numbers of admitted requests, prompt tokens and completion tokens, by the name of the user."""
        all_totals = {} if self._keys is None else self._keys.totals()
        return {
            name: (totals.requests, totals.prompt_tokens, totals.completion_tokens)
            for name, totals in all_totals.items()
        }

    def chain_before_routing(self) -> FilterChain | None:
        """Return the filters of requests whose revision is not known yet; None if there are none."""
        return FilterChain((), self.shared) if self.shared else None

    def chain_of(self, key: str, spec: FiltersSpec) -> FilterChain | None:
        """Return the filters of the revision `key`; None if it has none."""
        filters = self._gates_of(key, spec)
        if spec.fault is not None:
            filters.append(Fault(spec.fault, self._wheel, self._now, self._rng))
        if spec.no_wake:
            filters.append(NoWake(key, spec.no_wake))
        if spec.respond_async is not None and self._response_store is not None:
            filters.append(StoredResponses(spec.respond_async, self._response_store))
        if spec.record is not None and spec.record.include_usage:
            filters.append(StreamUsage())
        if spec.progress is not None:
            filters.append(ProgressEvents(spec.progress, self._wheel, self._now))
        if spec.waiting_page is not None:
            filters.append(WaitingPage(key, spec.waiting_page, self._wheel, self._now))
        fallback = spec.fallback
        if fallback is not None and fallback.revision:
            filters.append(FallbackRevision(fallback, self._wheel, self._now))
        if fallback is not None and (fallback.body or fallback.redirect):
            filters.append(FallbackResponse(fallback))
        if fallback is not None and fallback.statuses and (fallback.revision or fallback.body or fallback.redirect):
            filters.append(StatusFallback(fallback))
        if spec.quiet_tunnels_s > 0.0 or spec.quiet_streams_s > 0.0:
            filters.append(ActivityTracking(spec.quiet_tunnels_s, spec.quiet_streams_s, self._wheel, self._now))
        if spec.server_timing:
            filters.append(ServerTiming())
        if spec.headers is not None:
            filters.append(HeaderRules(spec.headers))
        if spec.record is not None:
            filters.append(Record(spec.record, self._captures, self._now))
        return FilterChain(filters, self.shared) if filters or self.shared else None

    def _gates_of(self, key: str, spec: FiltersSpec) -> list[Filter]:
        """Return the filters that decide whether a request may use the revision."""
        filters: list[Filter] = [Allow(spec.allow)] if spec.allow else []
        rate_limit = self._rate_limit_of(key, spec.rate_limit)
        if rate_limit is not None:
            rate_limit.follows_allow = bool(spec.allow)
            filters.append(rate_limit)
        if spec.forward_auth is not None:
            filters.append(ForwardAuth(key, spec.forward_auth, self._open_pool, self._wheel, self._now))
        if self._limits is not None:  # after the others, because it may gather the body, and thereby start a pod
            filters.append(self._limits)
        filters.extend(self._package_filter(package) for package in spec.of_packages)
        return filters

    def revision_dropped(self, key: str) -> None:
        """Release the state of the rate limit of a revision."""
        self._rates.pop(key, None)

    def _rate_limit_of(self, key: str, spec: RateLimitSpec | None) -> RateLimit | None:
        """Return the rate limit of a revision; an unchanged limit keeps its state."""
        limit = self._rates.pop(key, None)
        if spec is None:
            return None
        if limit is None or limit.spec != spec:
            limit = RateLimit(spec, self._seed, self._now)
        self._rates[key] = limit
        return limit

    def _update_shared(self) -> None:
        self.shared = tuple([shared for shared in (self._knative, self._cors, self._keys) if shared is not None])

    def _package_filter(self, spec: FilterSpec) -> Filter:
        """Create a filter of a package; if that fails, return one that refuses all requests."""
        options: dict[str, str] = {}
        try:
            for name, text in spec.options:
                options[name] = read_secret(text, f"option {name}")
            return make_filter(spec.name, options)
        except Exception as error:  # the class may raise anything, with an option in its text
            problem = without_secrets(f"{type(error).__name__}: {error}", options.values())
        self._on_error(PluginError(f"filter {spec.name!r} cannot be created: {problem}"))
        return Unusable(spec.name)
