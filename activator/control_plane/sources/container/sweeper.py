"""The sweeper: it removes leftover containers, of activators that were killed and of starts without a known outcome.

Rules
  1. Only containers with the activator's labels are considered, and one of another run is removed only if that run is
     proven to have ended (`owner.py`). All others are never touched.
  2. A container of this run is removed if no unit knows its identity in two sweeps in a row.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

from activator.control_plane.sources.container.creation import IDENTITY_LABEL, INSTANCE_LABEL
from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.owner import Run
from activator.control_plane.sources.container.state import state_of
from activator.runtime.tasks import keep_running, pause, wait_for

SWEEP_S: Final = 30.0
SWEEP_AWAY_S: Final = 1.0  # until the first sweep has succeeded

log = logging.getLogger("activator.container")


class Sweeper:
    """The sweeper of one engine for this run of the activator."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self.labels = run.labels
        self._strays: set[str] = set()  # ids of containers that no unit knew in the last sweep
        self._swept_once = asyncio.Event()
        self.removed_total = 0

    def expect(self, identity: str) -> None:
        """Announce that a container with this identity may be created."""
        self._run.known.add(identity)

    def forget(self, identity: str) -> None:
        """Expect this identity no longer: its unit has removed the container."""
        self._run.known.discard(identity)

    async def wait_first_sweep(self, patience_s: float) -> None:
        """Wait for the first sweep, for at most `patience_s`."""
        await wait_for(self._swept_once, patience_s)

    async def run(self) -> None:
        """Sweep periodically."""
        await keep_running(self._sweep_and_pause, self._log_failure)

    async def _sweep_and_pause(self) -> None:
        await self.sweep()
        self._swept_once.set()
        await pause(SWEEP_S)

    def _log_failure(self, error: Exception) -> float:
        """Log a failed sweep; return the pause until the next one, in seconds."""
        if isinstance(error, EngineAwayError):
            log.debug(
                "leftover containers are not removed: the container engine is unreachable: %s; it is tried again", error
            )
        elif isinstance(error, EngineError):
            log.warning("the container engine does not list its containers: %s", error)
        else:  # a bug, or an unexpected answer: the next attempt may succeed
            log.error("the containers could not be swept", exc_info=error)
        return SWEEP_S if self._swept_once.is_set() else SWEEP_AWAY_S

    async def sweep(self) -> None:
        """Remove the leftover containers. Raises EngineAwayError, EngineError."""
        query = {"all": "true", "filters": json.dumps({"label": [INSTANCE_LABEL]})}
        listed = await self._engine.call("GET", "/containers/json", query)
        strays: set[str] = set()
        for container in listed if isinstance(listed, list) else []:
            name, labels = container.get("Id"), container.get("Labels")
            if not isinstance(name, str) or not name.isalnum() or not isinstance(labels, dict):
                continue
            if labels.get(INSTANCE_LABEL) == self._run.instance:
                if labels.get(IDENTITY_LABEL) in self._run.known:
                    continue
                strays.add(name)
                if name in self._strays:
                    await self._remove(name, labels, "whose start was given up")
            elif await self._run.is_leftover(labels, self._is_running):
                await self._remove(name, labels, "of an activator that has ended")
        self._strays = strays

    async def _is_running(self, container: str) -> bool:
        inspected = await self._engine.inspect("containers", container)
        return inspected is not None and state_of(inspected).is_running

    async def _remove(self, name: str, labels: dict[str, Any], origin: str) -> None:
        try:
            await self._engine.call("POST", f"/containers/{name}/kill", {"signal": "SIGKILL"})
        except EngineError as error:
            log.debug("the container %s could not be killed: %s; it is removed all the same", name[:12], error)
        try:
            await self._engine.call("DELETE", f"/containers/{name}", {"force": "true", "v": "true"})
        except EngineError as error:
            if error.status not in (404, 409):
                log.warning("the container %s %s cannot be removed: %s", name[:12], origin, error.message)
            return
        self.removed_total += 1
        log.info("removed the container %s of %s, %s", name[:12], labels.get(IDENTITY_LABEL, "?"), origin)
