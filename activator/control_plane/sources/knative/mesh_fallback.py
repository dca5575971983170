"""Pods that cannot be reached by their own addresses, since a mesh stands before them: then their Service as a whole.

Rules
  1. Only where Kubernetes says that pods are ready, none of them has answered for MESH_WAIT_S, none of those asked
     gives an answer that no mesh gives (any status but 502 and 503), and the Service's own address does answer as
     queue-proxy. So one unlucky round, or a program that has not started, is no mesh.
  2. Never for good: the pods are still asked, and with the first that answers requests go to pods again.
  3. Not in the modes `enabled` (it is always so) and `disabled` (it is never so), nor where the mesh takes addresses.

Source: knative.dev/serving pkg/activator/net/revision_backends.go, checkDests (v1.23), whose fallback is for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from activator.control_plane.sources.knative.cluster_settings import MESH_AUTO
from activator.control_plane.sources.knative.revision_backends import RevisionBackends
from activator.control_plane.sources.knative.source import KnativeSource
from activator.runtime.clock import Now
from activator.runtime.tasks import pause

MESH_WAIT_S: Final = 2.0  # pods are said to be ready and none answers: is there a mesh?
MESH_TIMEOUT_S: Final = 0.3
MESH_ASKED_MAX: Final = 3  # pods of a revision that are asked for it
MESH_REVISIONS_MAX: Final = 32  # revisions that are looked at so at the same time

log = logging.getLogger("activator.knative")

_HEADERS: Final = {"User-Agent": "Knative-Activator-Probe", "K-Network-Probe": "queue"}
_REVISIONS_PER_TURN: Final = 100
_MESH_STATUSES: Final = frozenset({0, 502, 503})  # 0: no answer at all

AskStatus = Callable[[str], Awaitable[tuple[int, str]]]


class StatusAsker:
    """What one address answers to queue-proxy's probe: (status, body); (0, "") is nothing."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, address: str) -> tuple[int, str]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False)
        try:
            async with asyncio.timeout(MESH_TIMEOUT_S):
                async with self._session.get(f"http://{address}/healthz", headers=_HEADERS) as response:
                    return response.status, (await response.content.read(16)).decode("latin-1")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class MeshFallback:
    """Looks, when `look` is called, at the revisions of which no pod answers, some at a time."""

    def __init__(
        self, source: KnativeSource, healthy: Callable[[str], frozenset[str]], now: Now, ask: AskStatus
    ) -> None:
        self._source = source
        self._healthy = healthy
        self._now = now
        self._ask = ask
        self._unanswered_since_s: dict[
            str, float
        ] = {}  # by revision: since when pods are said to be ready and none answers
        self.fallbacks_total = 0

    async def look(self) -> None:
        """One round."""
        settings = self._source.settings
        applies = settings.mesh_mode == MESH_AUTO and not settings.passes_through
        unanswered: list[RevisionBackends] = []
        for number, backends in enumerate(list(self._source.revisions.values()), 1):
            if number % _REVISIONS_PER_TURN == 0:
                await pause(0.0)
            if not applies:
                self._end(backends)
            elif self._is_unanswered(backends):
                unanswered.append(backends)
        # A network that drops packets drops those of all pods: one after the other, a thousand would take ten minutes.
        for begin in range(0, len(unanswered), MESH_REVISIONS_MAX):
            await asyncio.gather(*(self._judge(one) for one in unanswered[begin : begin + MESH_REVISIONS_MAX]))
        self._unanswered_since_s = {
            key: since_s for key, since_s in self._unanswered_since_s.items() if key in self._source.revisions
        }

    def _is_unanswered(self, backends: RevisionBackends) -> bool:
        """Pods are ready, Kubernetes says, and none has answered for a while; ends what is no longer so."""
        key = backends.key
        if not backends.backends and not backends.by_service:
            self._unanswered_since_s.pop(key, None)
            return False
        ready = any(one.ready and not one.terminating for one in backends.backends)
        answered = any(one.identity in self._healthy(key) for one in backends.backends)
        if not ready or answered:
            self._unanswered_since_s.pop(key, None)
            self._end(backends)
            return False
        since_s = self._unanswered_since_s.setdefault(key, self._now())
        return self._now() - since_s >= MESH_WAIT_S

    async def _judge(self, backends: RevisionBackends) -> None:
        address = backends.cluster_address()
        if backends.by_service or not address:
            return
        asked = [one.address for one in backends.backends if one.ready and not one.terminating][:MESH_ASKED_MAX]
        answers = await asyncio.gather(*(self._ask(one) for one in asked))
        if any(status not in _MESH_STATUSES for status, _ in answers):
            return
        status, body = await self._ask(address)
        if status != 200 or body != "queue" or not self._is_unanswered(backends):
            return
        self.fallbacks_total += 1
        log.warning("no pod of %s can be reached by its address, but its Service can: a mesh", backends.key)
        backends.by_service = True
        self._source.mark(backends.key)

    def _end(self, backends: RevisionBackends) -> None:
        if backends.by_service:
            backends.by_service = False
            log.info("a pod of %s answers at its address: no longer by its Service", backends.key)
            self._source.mark(backends.key)
