"""KEDA's external scaler as a source: it receives all revisions and loads, and declares none."""

from __future__ import annotations

import logging

from activator.control_plane.sources.external_scaler.figures import ScalerFigures
from activator.control_plane.sources.external_scaler.service import STREAM_AGAIN_S, ExternalScalerServer
from activator.control_plane.sources.source import Source
from activator.messages import DropRevision, Effect, Load, RebuildRevision, SetRevision
from activator.runtime.clock import Now

log = logging.getLogger("activator.scaling")


class ExternalScalerSource(Source):
    """The source. `listen`: the host and port for KEDA; `again_s`: between two repeated messages of a stream."""

    def __init__(self, listen: str, now: Now, again_s: float = STREAM_AGAIN_S) -> None:
        self._listen = listen
        self._again_s = again_s
        self._figures = ScalerFigures(now)
        self._server: ExternalScalerServer | None = None
        self.address = ""  # as bound

    async def start(self) -> None:
        server = ExternalScalerServer(self._figures, self._again_s)
        self.address = await server.start(self._listen)
        self._server = server
        log.info("the external scaler for KEDA listens on %s", self.address)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def receive_load(self, load: Load) -> None:
        self._figures.load(load)

    def applied(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetRevision | RebuildRevision):
                self._figures.set_revision(effect.key, effect.spec.container_concurrency)
            elif isinstance(effect, DropRevision):
                self._figures.drop_revision(effect.key)
