"""The data plane of one worker: listeners, proxy, throttlers, tables and pools.

It receives effects by `apply` and commands by `execute`, and sends only messages of `messages/` by `send`, so that
the control plane may be at the other end of a socket. Listening sockets are passed in.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from activator.config.model.file import Config
from activator.config.model.kubernetes import ACTIVATIONS
from activator.config.model.transparent import ENTRY_PORT_FIRST, ENTRY_PORT_LAST
from activator.data_plane import settings, statistics
from activator.data_plane.captures import CaptureStore
from activator.data_plane.filters.catalogue import FilterCatalogue
from activator.data_plane.hooks import PlaneEvents, PlaneHooks
from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.loads.shared_loads import SharedLoads
from activator.data_plane.overload import Overload
from activator.data_plane.ownership.member import Member
from activator.data_plane.ownership.view import View
from activator.data_plane.proxy.proxy import Proxy
from activator.data_plane.proxy.request_body import BodyBudgets
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.status_exchange import StatusOpener
from activator.data_plane.quotas.links import ALONE
from activator.data_plane.quotas.messages import QuotaMessage
from activator.data_plane.quotas.quotas import Quotas
from activator.data_plane.server.entry_sweep import EntrySweep
from activator.data_plane.server.listener import Server
from activator.data_plane.server.registry import ConnectionRegistry
from activator.data_plane.shown_requests import describe_capture, describe_requests
from activator.data_plane.snapshot import revisions
from activator.data_plane.stored_responses.links import StoredResponseLinks
from activator.data_plane.stored_responses.messages import AnswerMessage
from activator.data_plane.stored_responses.store import ResponseStore
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.tables.audit import Auditor
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.dial import DialContext
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.pool_factory import PoolFactory
from activator.messages import (
    AnnounceDrain,
    Command,
    DataPlaneStatistics,
    Drain,
    Drained,
    Effect,
    EnableKnativeHeaders,
    FailRevision,
    FromData,
    RevisionStatistics,
    SetHealth,
    SetPending,
    SetUsers,
    ShowOutput,
)
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import NEVER, TICK_S, Now, Periodic, TimingWheel, until_next
from activator.runtime.memory import resident_bytes
from activator.runtime.tasks import TaskGroupOwner, pause
from activator.runtime.units import KIB
from lb.rng import Rng

ATTEMPTS_MAX: Final = 3  # pods to which one request may be sent
HELD_BODY_BYTES: Final = 64 * KIB  # read of a request body before its pod is known, and kept for a retry
ANSWER_NAME_BYTES: Final = 16  # random bytes in the name of a stored response
ANSWERS_CHECK_S: Final = 0.02  # how often a drain checks if the last of them is complete
LOAD_REPORT_INTERVAL_S: Final = 0.1  # interval of load reports
# How long idle connections of HTTP/1.1 stay open when others accept new ones. A client may send a request at any time;
# the response then asks it to close.
RETIRE_IDLE_S: Final = 5.0
MEMBER_TICK_S: Final = 0.2  # interval of the checks of slots and quotas that are shared with other data planes

log = logging.getLogger("activator.data")

Send = Callable[[FromData], None]


class DataPlane:
    """The data plane of one worker; only one event loop uses it.

    `logs_limits`: log if the system lowers a limit; of several data planes, only one does so.
    """

    def __init__(
        self, config: Config, now: Now, send: Send, rng: Rng, tasks: TaskGroupOwner, logs_limits: bool = True
    ) -> None:
        loop = asyncio.get_running_loop()
        self._send = send
        self._now = now
        self._tasks = tasks
        self._logs_limits = logs_limits
        self._config = config
        self._health = SetHealth(not_ready="starting")
        self.errors_total: int = 0
        self.pauses_total = 0  # pauses of the event loop for which deadlines were extended
        self.wheel = TimingWheel(now, loop.call_later, self.failed, self._loop_paused)
        batcher = self._batcher = WriteBatcher(loop.call_soon, self.failed)
        self.router = Router(settings.trusts_revision_headers(config))
        self.held = HeldBudget(config.limits.held_bytes, config.limits.held_requests)
        self.files = HeldBudget(config.limits.file_bytes)
        bodies = BodyBudgets(self.held, self.files, HELD_BODY_BYTES, batcher.shares.add)
        send_timeout_s = float(config.limits.send_timeout)
        self.proxy = Proxy(self.router, self.wheel, now, bodies, ATTEMPTS_MAX, self.failed, send_timeout_s)
        answers = self.answers = ResponseStore(
            self.wheel,
            now,
            loop.call_soon,
            config.limits.answer_bytes,
            config.limits.answers,
            partial(secrets.token_hex, ANSWER_NAME_BYTES),
        )
        answers.number = ALONE
        self.answer_links = StoredResponseLinks(answers)
        self.proxy.answers = answers
        self.captures = CaptureStore(self.wheel, now)
        self.quotas = Quotas(now)
        filters_rng = Rng(secrets.randbits(30))
        connections_max = settings.connections_max(config.limits.connections, logs_limits)
        dials = self._dials = DialContext(loop, self.wheel, tasks.start, batcher, connections_max)
        pools = PoolFactory(dials, now)
        self.filters = FilterCatalogue(
            self.wheel, now, answers, self.captures, self.quotas, pools.authoriser_pool, filters_rng, self.failed
        )
        self.filters.set_origins(config.cors.origins)
        self.proxy.filters = self.filters.chain_before_routing()
        self.proxy.open_status = StatusOpener(self.proxy, answers, self.answer_links).open
        self.registry = ConnectionRegistry(
            self.proxy,
            self.wheel,
            now,
            settings.request_limits(config.limits),
            connections_max,
            settings.origins(config.forwarded),
            config.limits.body_rate,
            batcher,
            float(config.limits.idle),
            config.abort_on_half_close,
            config.limits.streams,
        )
        self.registry.entry_first, self.registry.entry_last = _entry_range(config)
        self._entry_sweep = EntrySweep(self.registry)
        self.overload = Overload(loop, now, self.registry, self.held, resident_bytes, config.limits)
        self.server: Server | None = None
        self.member: Member | None = None  # set if several data planes share slots
        self.loads: SharedLoads | None = None  # set if they share loads
        hooks = PlaneHooks(self, pools, rng, send)
        self.tables = RevisionTables(now, self.wheel, loop.call_soon, PlaneEvents(self, send, now), hooks, self.held)
        self._report = _LoadReport(self, now, send)
        self._auditor = Auditor(self.tables, self.wheel, now, send, loop.call_soon)

    def start(self) -> Server:
        """Start the periodic work, and return the server that is to accept."""
        self.server = Server(self.registry, self._tasks.start)
        self._report.arm()
        self._auditor.arm()
        self.overload.start()
        if self.registry.entry_last:
            self._entry_sweep.arm()
        return self.server

    def join(self, member: Member, send: Callable[[int, PodLoads | AnswerMessage | QuotaMessage], None]) -> SharedLoads:
        """Join a group of data planes.

        Its members share the slots of all revisions with a limit and, by `send`, the loads of the other revisions,
        stored responses, and the quotas of users. A data plane that has served alone grants nothing until a view names
        an owner.
        """
        self.member = member
        self.loads = SharedLoads(self.wheel, self._now, send)
        self.answer_links.join(member.number, send)
        self.quotas.join(member.number, send)
        for throttler in self.tables.throttlers.values():
            if throttler.spec.container_concurrency > 0:
                member.revision_set(throttler)
            self.loads.revision_set(throttler)
        self._tasks.repeat("shared limits", MEMBER_TICK_S, self._check_shared_limits)
        return self.loads

    def drain_as_configured(self) -> None:
        """Drain without a command, within the times of the configuration."""
        shutdown = self._config.shutdown
        self.execute(Drain(float(shutdown.timeout), float(shutdown.tunnels)))

    def reject_queued(self, cause: str) -> None:
        """Answer queued and new requests with the cause, because nothing can grant slots or start pods any more."""
        for key, throttler in list(self.tables.throttlers.items()):
            if throttler.spec.container_concurrency > 0 or throttler.table.capacity == 0:
                self.tables.apply([FailRevision(key, cause)])

    def retire(self) -> None:
        """Leave the listening sockets to others, and drain without a time limit."""
        self.registry.idle_until_s = self._now() + RETIRE_IDLE_S
        if self.server is not None:
            self.server.leave()
        self._tasks.start("drain", self._drain(Drain(NEVER, NEVER)))

    def _check_shared_limits(self) -> None:
        """Return unused slots of other members, and reject requests without a decision on their quota."""
        assert self.member is not None, "it has joined"
        self.member.tick()
        self.quotas.tick()

    def adopt(self, view: View) -> None:
        """Apply a view of the group."""
        assert self.member is not None, "it has joined"
        self.member.adopt(view)
        self.quotas.adopt(view)

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid grants by this member."""
        assert self.member is not None, "it has joined"
        self.member.allow_grants(allowed)
        self.quotas.allow_grants(allowed)

    def reconfigure(self, config: Config) -> None:
        """Apply new limits and trust settings (rule 2 of `settings.py`)."""
        limits = config.limits
        self.held.bytes_max, self.held.requests_max = limits.held_bytes, limits.held_requests
        self.files.bytes_max = limits.file_bytes
        self.answers.bytes_max, self.answers.requests_max = limits.answer_bytes, limits.answers
        self.proxy.send_timeout_s = float(limits.send_timeout)
        self.router.trusts_revision_headers = settings.trusts_revision_headers(config)
        registry = self.registry
        if limits.connections != self._config.limits.connections:
            registry.limit_connections(settings.connections_max(limits.connections, self._logs_limits))
            self._dials.connections_max = registry.connections_max
        if config.forwarded != self._config.forwarded:
            registry.origins = settings.origins(config.forwarded)
        registry.limits = settings.request_limits(limits)
        registry.idle_s = float(limits.idle)
        registry.body_rate = limits.body_rate
        registry.streams_max = limits.streams
        self.overload.configure(limits)
        registry.abort_on_half_close = config.abort_on_half_close
        if config.cors != self._config.cors:
            self.filters.set_origins(config.cors.origins)
            self._renew_filters()
        self._config = config

    def apply(self, effects: list[Effect]) -> None:
        """Apply effects of the state worker, in order."""
        self.tables.apply(effects)

    def write_out(self) -> None:
        """Write out buffered data now, before other work delays the end of the turn."""
        self._batcher.end()

    def execute(self, command: Command) -> None:
        """Execute a command of the control plane."""
        if isinstance(command, SetHealth):
            self._health = command
        elif isinstance(command, SetPending):
            self.proxy.is_pending = command.is_pending
        elif isinstance(command, SetUsers):
            self.filters.set_users(command.users)
            self._renew_filters()
        elif isinstance(command, EnableKnativeHeaders):
            if self.filters.speak_knative(command.cluster_domain, command.passes_through, self._unhealthy):
                self._renew_filters()
        elif isinstance(command, ShowOutput):
            throttler = self.tables.throttlers.get(command.key)
            if throttler is not None:
                throttler.queue.start_observers.output = command.lines
        elif isinstance(command, AnnounceDrain):
            self.registry.draining = True
        else:
            self.registry.idle_until_s = 0.0
            self._tasks.start("drain", self._drain(command))

    def statistics(self) -> DataPlaneStatistics:
        """Return the current statistics."""
        registry = self.registry
        closes_kept, no_queueing, no_connections = self.overload.taken()
        return DataPlaneStatistics(
            client_connections=len(registry.connections),
            handshakes=len(registry.handshakes),
            handshakes_closed_total=registry.handshakes_closed_total,
            accepted_total=registry.accepted_total,
            shed_total=registry.shed_total,
            exchanges=self.proxy.active,
            held_bytes=self.held.held_bytes,
            held_requests=self.held.held_requests,
            file_bytes=self.files.held_bytes,
            answers=len(self.answers.kept),
            answer_bytes=self.answers.bytes,
            answer_totals=dict(self.answers.totals),
            https_redirects_total=self.proxy.https_redirects_total,
            refused_requests={reason.value: count for reason, count in self.proxy.refused_requests.items()},
            transitions=dict(self.tables.transitions),
            errors_total=self.errors_total,
            users=self.filters.user_totals(),
            user_use=self.quotas.usage(),
            user_rejections=self.quotas.rejections(),
            certificate_expiries={} if self.server is None else self.server.certificate_expiries(),
            overload=(int(closes_kept), int(no_queueing), int(no_connections)),
            http2=registry.http2_statistics(),
        )

    def revision_statistics(self) -> Iterator[RevisionStatistics]:
        """Return the statistics of each revision, read when it is requested."""
        return statistics.revisions(self.tables, self._config.metrics.pods)

    def throttlers(self) -> list[RevisionThrottler]:
        """Return the throttlers of all revisions, including removed ones with requests in progress."""
        return [*self.tables.throttlers.values(), *self.tables.dropped.values()]

    def statistics_of(self, throttler: RevisionThrottler) -> RevisionStatistics:
        """Return the current statistics of one revision."""
        return statistics.revision(throttler, self._config.metrics.pods)

    def snapshot(self, only: str = "") -> dict[str, dict[str, Any]]:
        """Return the data for `/debug/revisions` by key: of all revisions, or of the one with this key."""
        return revisions(self.tables, self._now(), only)

    def last_requests(self, key: str, count: int) -> dict[str, Any]:
        """Return the last `count` records of this revision, or of all if `key` is empty (shown_requests.py)."""
        throttlers = self.tables.throttlers
        chosen = [*throttlers.values()] if not key else [throttlers[key]] if key in throttlers else []
        return describe_requests(chosen, count, self._now())

    def capture_of(self, number: int) -> dict[str, Any] | None:
        """Return the capture with this number, with its secrets masked; None if there is none."""
        capture = self.captures.find(number)
        throttler = None if capture is None else self.tables.throttlers.get(capture.key)
        record = None if throttler is None else throttler.spec.filters.record
        if capture is None or record is None or record.capture_bytes == 0:  # a reload may have forbidden it
            return None
        return describe_capture(capture)

    def _renew_filters(self) -> None:
        """Apply the filters of all requests from now on."""
        self.proxy.filters = self.filters.chain_before_routing()
        for throttler in self.throttlers():
            throttler.filters = self.filters.chain_of(throttler.key, throttler.spec.filters)
            throttler.queue.weigh_users(self.filters.user_weights)

    def _unhealthy(self, target: bytes) -> str:
        """Return why a kubelet probe fails: the program is not ready or, on the paths of liveness, not alive."""
        health = self._health
        return health.not_alive if target.startswith((b"/healthz", b"/livez")) else health.not_ready

    async def _drain(self, command: Drain) -> None:
        finished = False
        try:
            finished = await self.drain(command.timeout_s, command.tunnels_timeout_s)
        finally:
            self._send(Drained(finished))

    async def drain(self, timeout_s: float, tunnels_timeout_s: float) -> bool:
        """Stop accepting, and let requests in flight finish; return False if some were cut."""
        until_s = self._now() + timeout_s
        self.answers.close()
        finished = (
            True if self.server is None else await self.server.drain(timeout_s, tunnels_timeout_s, self._refuse_queued)
        )
        finished = await self._finish_answers(until_s) and finished
        self.wheel.close()
        self.overload.stop()
        for pool in list(self._dials.pools):
            if isinstance(pool, PodPool):
                pool.close()
        return finished

    def _refuse_queued(self) -> int:
        """Refuse the requests that are still queued when the drain times out, with 503; return their number."""
        count = sum(throttler.queue.drain() for throttler in self.tables.throttlers.values())
        count += sum(connection.refuse_unsent() for connection in list(self.registry.connections))
        if count:
            log.warning("%d queued requests were rejected with 503: `shutdown.timeout` has expired", count)
        return count

    async def _finish_answers(self, until_s: float) -> bool:
        """Wait for asynchronous requests to finish; their responses can no longer be fetched.

        Without a limit (`retire`), wait until they have expired: clients fetch them through the other data planes.
        """
        answers = self.answers
        while (answers.pending or (until_s == NEVER and answers.kept)) and self._now() < until_s:
            await pause(ANSWERS_CHECK_S)
        finished = answers.pending == 0
        answers.cut()
        lost = answers.forget_all()
        if lost:
            log.warning("discarded %d stored responses that no client had fetched", lost)
        return finished

    def _loop_paused(self, pause_s: float) -> None:
        """Count and log a pause of the event loop."""
        self.pauses_total += 1
        log.warning("the process did not run for %.1f s; deadlines of requests are extended by that time", pause_s)

    def failed(self, error: Exception) -> None:
        """Count and log a defect for which no request could be refused."""
        self.errors_total += 1
        log.error("internal error in the data plane", exc_info=error)


def _entry_range(config: Config) -> tuple[int, int]:
    """Return the range of dedicated ports, each of one revision; zeros if there are none."""
    kubernetes = config.kubernetes
    if kubernetes is None or kubernetes.mode != ACTIVATIONS:
        return (0, 0)
    return (ENTRY_PORT_FIRST, ENTRY_PORT_LAST)


class _LoadReport(Periodic):
    """The periodic report of the loads of active revisions, and of removed revisions that have ended."""

    def __init__(self, data: DataPlane, now: Now, send: Send) -> None:
        super().__init__(LOAD_REPORT_INTERVAL_S)
        self._data = data
        self._now = now
        self._send = send

    def arm(self) -> None:
        now_s = self._now()
        due_s = now_s + until_next(LOAD_REPORT_INTERVAL_S, now_s)
        self._data.wheel.arm(self, due_s - TICK_S / 2)  # the wheel expires it at the next tick

    def expired(self, now_s: float) -> None:
        self.arm()  # first, so that an exception does not stop the reports
        for load in self._data.tables.loads():
            self._send(load)
        self._data.tables.end_dropped()
