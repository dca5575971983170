"""The fallback to a revision's Service where a mesh keeps its pods from being reached by their own addresses.

Rules
  1. In the mode `auto` the fallback requires all of this: Kubernetes reports ready pods; none of them has answered for
     a probe timeout; no pod that is asked gives another status than 502 and 503, which only the pod itself would; and
     the Service's own address, asked at the same time, answers as queue-proxy. A program that has not started therefore
     does not count as a mesh.
  2. The fallback is not permanent: the pods are probed all the time, and from the first answer on requests go to pods
     again. It lasts until then, also while the revision is at zero: at its next start the Service is asked at once,
     beside the pods, and the first to answer gets the requests.
  3. In the mode `enabled` the Service is asked too, and gets no request before it has answered. In the mode
     `disabled`, and where the mesh accepts addresses, pods are always addressed individually.
  4. Only revisions that have changed are checked, a bounded number in each turn of the loop, each at a cost that does
     not depend on its number of pods. MESH_ASKED_AT_ONCE are asked at the same time, the least often asked first, so
     that a network that drops the packets of a thousand revisions does not delay the start of the next one.

Source: knative.dev/serving pkg/activator/net/revision_backends.go, checkDests and probePodIPs (v1.23). There the
fallback is permanent, and the Service is asked after the pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from itertools import islice
from typing import Any, Final

import aiohttp

from activator.config.cluster_settings import MESH_AUTO, MESH_ENABLED
from activator.control_plane.sources.knative.revision_backends import RevisionBackends
from activator.control_plane.sources.knative.source import KnativeSource
from activator.runtime.backoff import grown_s
from activator.runtime.clock import NEVER, Now
from activator.runtime.schedule import Schedule

MESH_PODS_ASKED_MAX: Final = 3  # pods of one revision
MESH_ASKED_AT_ONCE: Final = 32  # revisions
MESH_REVISIONS_PER_TURN: Final = 500  # checked in one turn of the loop
MESH_STEP_MIN_S: Final = 0.02  # pause after the first request to a Service; doubles with each
MESH_STEP_MAX_S: Final = 2.0  # the longest pause

log = logging.getLogger("activator.knative")

_HEADERS: Final = {"User-Agent": "Knative-Activator-Probe", "K-Network-Probe": "queue"}
_MESH_STATUSES: Final = frozenset({0, 502, 503})  # 0: no answer at all
_QUEUE_PROXY: Final = (200, "queue")  # its answer: the program is ready

ProbeStatus = Callable[[str], Awaitable[tuple[int, str]]]
Start = Callable[[str, Coroutine[Any, Any, None]], object]


class StatusProber:
    """Probes an address with queue-proxy's probe."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def probe(self, address: str) -> tuple[int, str]:
        """Return the status and the body; (0, "") without an answer within the timeout."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False)
        try:
            async with asyncio.timeout(self.timeout_s):
                async with self._session.get(f"http://{address}/healthz", headers=_HEADERS) as response:
                    return response.status, (await response.content.read(16)).decode("latin-1")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Unanswered:
    """A revision with pods that are ready for Kubernetes and of which none answers."""

    def __init__(self, key: str, is_behind_mesh: bool) -> None:
        self.key = key
        self.is_behind_mesh = is_behind_mesh  # behind a mesh; if not, the Service is asked only after `patience_s`
        self.asked = 0  # how often the Service has been asked


class MeshFallback:
    """Detects meshes. Call `step` when `has_work` is set, and after as many seconds as it returns.

    `patience_s`: how long ready pods may not answer before a mesh is suspected. `start` runs a coroutine as a task.
    """

    def __init__(self, source: KnativeSource, now: Now, probe: ProbeStatus, patience_s: float, start: Start) -> None:
        self._source = source
        self._answers = source.answers
        self._now = now
        self._probe = probe
        self._patience_s = patience_s
        self._start = start
        self._changed: dict[str, None] = {}  # revisions to check, in order
        self._unanswered: dict[str, _Unanswered] = {}  # by revision
        self._later: Schedule[str] = Schedule()  # when each revision is due
        self._due: Schedule[str] = Schedule()  # due revisions, by how often they were asked
        self._asked_now = 0  # revisions whose Service is being asked
        self.has_work = asyncio.Event()
        self.fallbacks_total = 0

    def mark_changed(self, key: str) -> None:
        """Schedule a check of the revision: something may have changed."""
        self._changed[key] = None
        self.has_work.set()

    def step(self) -> float:
        """Do a bounded part of the work; return the seconds until more is due."""
        self.has_work.clear()
        for key in list(islice(self._changed, MESH_REVISIONS_PER_TURN)):
            del self._changed[key]
            self._plan_or_forget(key)
        now_s = self._now()
        for _ in range(MESH_REVISIONS_PER_TURN):
            due = self._later.pop(now_s)
            if due is None:
                break
            self._due.plan(due, self._unanswered[due].asked)
        self._ask_due()
        if self._changed:
            return 0.0
        # While the limit of requests is reached, the end of each sets `has_work`.
        return max(self._later.next_s() - now_s, 0.0)

    # --- within ---

    def _plan_or_forget(self, key: str) -> None:
        """Plan to ask the revision's Service, or forget the revision if that is not needed."""
        backends = self._source.revisions.get(key)
        if backends is None or not self._must_ask_service(backends):
            self._forget(key)
            return
        is_behind_mesh = backends.by_service or self._source.settings.mesh_mode == MESH_ENABLED
        former = self._unanswered.get(key)
        if former is None or former.is_behind_mesh != is_behind_mesh:
            self._forget(key)
            self._unanswered[key] = _Unanswered(key, is_behind_mesh)
            self._later.plan(key, self._now() + (0.0 if is_behind_mesh else self._patience_s))

    def _forget(self, key: str) -> None:
        self._unanswered.pop(key, None)
        self._later.cancel(key)
        self._due.cancel(key)

    def _must_ask_service(self, backends: RevisionBackends) -> bool:
        """End a fallback that no longer applies; return True if the Service must be asked."""
        settings = self._source.settings
        if settings.mesh_mode == MESH_ENABLED:
            return backends.ready_pods > 0 and not backends.service_answers()
        if settings.mesh_mode != MESH_AUTO or settings.passes_through:
            self._end_fallback(backends)
            return False
        if self._answers.has_pod(backends.key):
            self._end_fallback(backends)
            return False
        return backends.ready_pods > 0 and not (backends.by_service and backends.service_answers())

    def _ask_due(self) -> None:
        while self._asked_now < MESH_ASKED_AT_ONCE:
            key = self._due.pop(NEVER)  # the one asked least often, however often that is
            if key is None:
                break
            self._asked_now += 1
            self._start("mesh", self._ask_service(self._unanswered[key]))

    async def _ask_service(self, unanswered: _Unanswered) -> None:
        key = unanswered.key
        try:
            backends = self._source.revisions.get(key)
            address = "" if backends is None else backends.cluster_address()
            answers = (
                backends is not None and address and await self._only_service_answers(backends, address, unanswered)
            )
            is_current = self._unanswered.get(key) is unanswered and self._source.revisions.get(key) is backends
            if backends is not None and answers and is_current:
                self._use_service(backends, address)
        finally:
            self._asked_now -= 1
            step_s = grown_s(MESH_STEP_MIN_S, unanswered.asked, MESH_STEP_MAX_S)
            unanswered.asked += 1
            if self._unanswered.get(key) is unanswered:
                self._later.plan(key, self._now() + step_s)
            self.has_work.set()

    async def _only_service_answers(self, backends: RevisionBackends, address: str, unanswered: _Unanswered) -> bool:
        """Return True if the Service answers and no pod shows that it could be reached itself."""
        pods: list[str] = []
        if not unanswered.is_behind_mesh:
            pods = list(islice(backends.ready_addresses(), MESH_PODS_ASKED_MAX))
        service, *others = await asyncio.gather(*(self._probe(asked) for asked in (address, *pods)))
        return service == _QUEUE_PROXY and all(status in _MESH_STATUSES for status, _ in others)

    def _use_service(self, backends: RevisionBackends, address: str) -> None:
        """Send the requests to the Service, which has answered at this address, if they still need it."""
        if not self._must_ask_service(backends) or backends.cluster_address() != address:
            return
        if self._source.settings.mesh_mode == MESH_AUTO and not backends.by_service:
            self.fallbacks_total += 1
            log.warning(
                "no pod of %s answers at its address, but its Service does: a mesh is assumed, and requests go to the "
                "Service",
                backends.key,
            )
            backends.by_service = True
        backends.answered_address = address
        self._source.mark(backends.key)

    def _end_fallback(self, backends: RevisionBackends) -> None:
        if backends.by_service:
            backends.by_service = False
            log.info("requests of %s go to its pods again, no longer to its Service", backends.key)
            self._source.mark(backends.key)
