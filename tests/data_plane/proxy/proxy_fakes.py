"""A proxy between clients and pods that write down what they are told; every turn is made by the test."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from activator.codec.http1.request import RequestLimits, RequestParser, RequestSink
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.config.specs import RevisionSpec, RoutingSpec
from activator.data_plane.captures import CaptureStore
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.catalogue import FilterCatalogue
from activator.data_plane.filters.filter import Filter, FilterChain
from activator.data_plane.proxy.attempt import Attempt
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.proxy import Proxy
from activator.data_plane.proxy.request_body import BodyBudgets
from activator.data_plane.proxy.routing import Router
from activator.data_plane.quotas.quotas import Quotas
from activator.data_plane.stored_responses.store import ResponseStore
from activator.data_plane.streams import ClientStream, PodStream, PodUser
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.pod_figures import PodFigures
from activator.data_plane.upstream.pool import PodPool
from activator.runtime.clock import TimingWheel
from activator.runtime.transitions import IllegalTransitionError
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY, PodTracker
from tests.data_plane.throttle.throttle_fakes import Heard
from tests.manual_clock import ManualClock

SEND_TIMEOUT_S = 30.0  # for which a client may take nothing of its answer


class Client(ClientStream):
    """What one client got."""

    def __init__(self) -> None:
        self.ip = "192.0.2.1"
        self.has_unix_socket = False
        self.status = 0
        self.reason = ""
        self.retry_after = ""
        self.server_timing = ""
        self.fields: dict[str, str] = {}
        self.pairs: Headers = []
        self.interim: list[int] = []
        self.body = b""
        self.ended = False
        self.aborted = False
        self.paused = False
        self.flushes = 0
        self.has_left = False  # the test's own mark
        self.asked_for_body = False
        self.taken = 0
        self.unsent = 0

    def unsent_bytes(self) -> int:
        return self.unsent

    def ask_for_body(self) -> None:
        self.asked_for_body = True

    def taken_bytes(self) -> int:
        return self.taken

    def silent(self) -> bool:
        """Nothing has been said yet. A method, since mypy takes what was asserted of an attribute to stay so."""
        return self.status == 0

    def is_paused(self) -> bool:
        return self.paused

    def is_aborted(self) -> bool:
        return self.aborted

    def has_ended(self) -> bool:
        return self.ended

    def send_interim(self, head: ResponseHead) -> None:
        self.interim.append(head.status)

    def send_head(self, head: ResponseHead) -> None:
        assert self.status == 0, "one head"
        self.status = head.status
        self.reason = (head.headers.get(b"activator-reason") or b"").decode()
        self.retry_after = (head.headers.get(b"retry-after") or b"").decode()
        self.pairs = head.headers.pairs()
        self.fields = {name.decode().lower(): value.decode() for name, value in self.pairs}
        self.server_timing = (head.headers.get(b"server-timing") or b"").decode()

    def send_body(self, data: bytes) -> None:
        assert self.status and not self.ended
        self.body += data

    def send_end(self, trailers: Headers) -> None:
        """In a tunnel this is the end of one direction; the second one ends the other, too."""
        assert not self.aborted and (self.status == 101 or not self.ended), "one end"
        self.ended = True

    def flush(self) -> None:
        self.flushes += 1

    def abort(self) -> None:
        assert not self.aborted and (self.status == 101 or not self.ended), "one end"
        self.aborted = True

    def pause_request(self) -> None:
        self.paused = True

    def resume_request(self) -> None:
        self.paused = False

    def half_closes(self) -> bool:
        return True

    def client_ip(self) -> str:
        return self.ip

    def is_local(self) -> bool:
        return self.has_unix_socket


class Pod(PodStream):
    """One connection to a pod."""

    def __init__(self, reused: bool = False) -> None:
        self.reused = reused
        self.head: RequestHead | None = None
        self.body = b""
        self.trailers: Headers = []
        self.finished = False
        self.ended = False
        self.aborted = False
        self.paused = False

    def is_paused(self) -> bool:
        return self.paused

    def send_request(self, head: RequestHead, body: list[bytes]) -> None:
        assert self.head is None
        self.head = head
        self.body = b"".join(body)

    def send_body(self, data: bytes) -> None:
        self.body += data

    def send_end(self, trailers: Headers) -> None:
        self.ended = True
        self.trailers = trailers

    def abort(self) -> None:
        self.aborted = True

    def half_closes(self) -> bool:
        return True

    def finish(self) -> None:
        assert not self.aborted and not self.finished
        self.finished = True

    def pause_response(self) -> None:
        self.paused = True

    def resume_response(self) -> None:
        self.paused = False


class Pool(Http1Pool):
    """Gives a connection at once while `connects`, else when the test says so."""

    def __init__(self, connects: bool = True) -> None:  # nothing of the real one is used
        self.figures = PodFigures()
        self.connects = connects
        self.gives_reused = False
        self.idle_max_s = -1.0
        self.fresh: list[bool] = []  # what was asked for
        self.asked: list[tuple[PodUser, bool]] = []  # and has not been given yet
        self.pods: list[Pod] = []
        self.makes: type[Pod] = Pod

    def is_closed(self) -> bool:
        return False

    def in_use(self) -> PodPool:
        return self

    def checkout(self, exchange: PodUser, idle_max_s: float, now_s: float) -> PodStream | None:
        ATTEMPTS.append(exchange)
        self.idle_max_s = idle_max_s
        self.fresh.append(idle_max_s == 0.0)
        if self.connects:
            return self._new_pod()
        self.asked.append((exchange, idle_max_s == 0.0))
        return None

    def stop_waiting(self, exchange: PodUser) -> None:
        self.asked = [asked for asked in self.asked if asked[0] is not exchange]

    def statistics(self) -> dict[str, int]:
        return {"open": len(self.pods), "idle": 0, "dialling": 0, "waiting": len(self.asked), "window": 4}

    def count_into(self, totals: list[int]) -> None:
        totals[0] += len(self.pods)
        totals[3] += len(self.asked)

    def connect(self, exchange: PodUser) -> Pod:
        self.stop_waiting(exchange)
        pod = self._new_pod()
        exchange.connected(pod)
        return pod

    def _new_pod(self) -> Pod:
        pod = self.makes(self.gives_reused and self.idle_max_s > 0.0)
        self.pods.append(pod)
        return pod


class _Heads(RequestSink):
    def __init__(self) -> None:
        self.head: RequestHead | None = None

    def request_head(self, head: RequestHead, keep_alive: bool, http_1_0: bool) -> None:
        self.head = head

    def request_body(self, data: bytes) -> None:
        pass

    def request_end(self, trailers: Headers) -> None:
        pass


def request_head(
    method: str = "GET", host: str = "app.test", length: int = -1, chunked: bool = False, **fields: str
) -> RequestHead:
    """As the parser makes it."""
    lines = [f"{method} / HTTP/1.1", f"Host: {host}"]
    if length >= 0:
        lines.append(f"Content-Length: {length}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    sink = _Heads()
    assert RequestParser(sink, RequestLimits()).feed("\r\n".join([*lines, "", ""]).encode()) is None
    assert sink.head is not None
    return sink.head


def response_head(status: int = 200, length: int = 5) -> ResponseHead:
    """As the parser makes it, without fields."""
    from activator.data_plane.refusals import refusal_head
    from activator.runtime.reasons import Reason

    head = refusal_head(Reason.INTERNAL, b"x" * length, 0)
    head.headers = type(head.headers).from_pairs([])
    head.status = status
    return head


class World:
    """One revision behind the proxy."""

    def __init__(self, held_bytes: int = 1000, held_body_bytes: int = 100, file_bytes: int = 0, **spec: Any) -> None:
        self.clock = ManualClock()
        self.heard = Heard()
        self.errors: list[Exception] = []
        self.wheel = TimingWheel(self.clock.now, self.clock.call_later, self.errors.append)
        self.router = Router(False)
        self.held = HeldBudget(held_bytes)
        self.takes_illegal_steps = False  # else one fails the test at once, whatever it is about
        self.files = HeldBudget(file_bytes)
        bodies = BodyBudgets(self.held, self.files, held_body_bytes, self.clock.defer)
        self.proxy = Proxy(self.router, self.wheel, self.clock.now, bodies, 3, self._failed, SEND_TIMEOUT_S)
        self.spec = RevisionSpec(**{"key": "ns/app", "routing": RoutingSpec(("app.test",)), **spec})
        self.table = TrackerTable(create("first-available", Rng(1)), 8, 0.5)
        self.throttler = RevisionThrottler(
            self.spec, self.table, self.clock.now, self.clock.defer, self.heard, 256, self.held
        )
        self.answers: ResponseStore | None = None
        self.shared: tuple[Filter, ...] = ()
        self.authoriser = Pool()
        self.captures = CaptureStore(self.wheel, self.clock.now)
        self.filter(self.throttler)
        self.router.set(self.throttler)

    def filter(self, throttler: RevisionThrottler) -> None:
        """Give a revision the filters of its spec, as the plane does."""
        throttler.filters = self.catalogue().chain_of(throttler.key, throttler.spec.filters)

    def catalogue(self) -> FilterCatalogue:
        made = FilterCatalogue(
            self.wheel,
            self.clock.now,
            self.answers,
            self.captures,
            Quotas(self.clock.now),
            lambda _: self.authoriser,
            Rng(1),
            self.errors.append,
        )
        made.shared = self.shared
        return made

    def share(self, *shared: Filter) -> None:
        """Let all requests meet these filters, as the plane does."""
        self.shared = shared
        self.proxy.filters = FilterChain((), self.shared)
        self.filter(self.throttler)

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        if isinstance(error, IllegalTransitionError) and not self.takes_illegal_steps:
            raise error

    def pod(
        self,
        name: str = "p1",
        limit: int = 1,
        connects: bool = True,
        reused: bool = False,
        makes: type[Pod] = Pod,
    ) -> Pool:
        """A ready pod with a pool of its own."""
        number = int(name[1:])
        tracker = self.table.add(name, f"10.0.0.{number}:80", limit, READY)
        assert tracker is not None
        pool = Pool(connects)
        pool.gives_reused = reused
        pool.makes = makes
        tracker.attachment = pool
        self.throttler.pump()
        return pool

    def tracker(self, name: str) -> PodTracker:
        tracker = self.table.find_identity(name)
        assert tracker is not None
        return tracker

    def begin(
        self, head: RequestHead | None = None, client_ip: str = "192.0.2.1", is_local: bool = False
    ) -> tuple[ProxiedExchange, Client]:
        client = Client()
        client.ip, client.has_unix_socket = client_ip, is_local
        exchange = self.proxy.open(head or request_head(), client)
        if not exchange.head.has_body:
            exchange.request_end([])
        exchange.begin()
        return exchange, client

    def answer(self, exchange: Exchange, status: int = 200, body: bytes = b"hello") -> None:
        """A whole answer in one read."""
        at_pod(exchange).response_head(response_head(status, len(body)))
        at_pod(exchange).response_body(body)
        at_pod(exchange).response_end([])

    def throttler_holder(self) -> Exchange:
        """Whoever holds the one lease that is open."""
        (lease,) = self.throttler.leases
        return holder_of(lease)

    def check_idle(self) -> None:
        """Nothing is left of any request."""
        assert self.table.in_flight == 0
        assert not self.throttler.leases
        assert self.throttler.queue.waiters.length == 0
        assert self.held.held_bytes == self.held.held_requests == self.throttler.held.held_bytes == 0
        assert self.files.held_bytes == 0
        assert self.throttler.gathering == self.throttler.delivering == 0
        assert self.proxy.active == 0
        assert self.wheel.armed == 0
        assert not self.errors
        self.table.check_invariants()


def holder_of(lease: Lease) -> ProxiedExchange:
    """The request that has the slot."""
    assert isinstance(lease.holder, Attempt)
    return lease.holder.exchange


ATTEMPTS: deque[PodUser] = deque(maxlen=1_000)  # that have asked a pool for a connection, the last one at the end


def at_pod(exchange: Exchange) -> PodUser:
    """The last attempt of a request, which may be over."""
    assert isinstance(exchange, ProxiedExchange)
    if exchange.attempt is not None:
        return exchange.attempt
    for attempt in reversed(ATTEMPTS):
        if isinstance(attempt, Attempt) and attempt.exchange is exchange:
            return attempt
    return Attempt(exchange)  # no pod has it


def pool_of(holder: PodTracker | Lease) -> Pool:
    return cast("Pool", holder.attachment)


def check_back_pressure(exchange: ProxiedExchange, client: Client, pod: Pod) -> None:
    """Who is too slow makes the other side pause, and nobody else."""
    at_pod(exchange).pod_blocked()
    assert client.is_paused()
    at_pod(exchange).pod_drained()
    assert not client.is_paused()
    exchange.client_blocked()
    assert pod.is_paused()
    exchange.client_drained()
    assert not pod.is_paused()
