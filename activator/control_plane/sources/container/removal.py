"""Removal of containers: retried until the container is gone, or until the activator's own end is due."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.tasks import pause

AWAY_STEP_S: Final = 0.5  # between two attempts while the engine is unreachable
REMOVE_TIMEOUT_S: Final = 10.0  # for one attempt
REMOVE_STEP_S: Final = 0.05  # after the first failed attempt, doubling up to RETRY_AWAY_S
RETRY_AWAY_S: Final = 2.0  # the longest time between attempts: an engine may return at any moment

log = logging.getLogger("activator.container")


async def remove_by_label(
    engine: Engine, labels: list[str], identity: str, is_closing: Callable[[], bool], patience_s: float, now: Now
) -> None:
    """Remove a container that may have been created although the engine has not answered; see `remove`."""
    began_s = now()
    names: list[str] | None = None
    while names is None:
        try:
            names = await found_by_label(engine, labels)
        except (EngineAwayError, EngineError) as error:
            if is_closing() and now() - began_s >= patience_s:
                log.error("%s: it is unknown whether its container exists: %s", identity, error)
                return
            await pause(AWAY_STEP_S)
    for name in names:
        await remove(engine, name, identity, is_closing, patience_s, now)


async def found_by_label(engine: Engine, labels: list[str]) -> list[str]:
    """Return the ids of the containers that have these labels. Raises EngineAwayError, EngineError."""
    query = {"all": "true", "filters": json.dumps({"label": labels})}
    listed = await engine.call("GET", "/containers/json", query, timeout_s=REMOVE_TIMEOUT_S)
    ids = [item.get("Id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return [container_id for container_id in ids if isinstance(container_id, str) and container_id.isalnum()]


async def remove(
    engine: Engine, container: str, identity: str, is_closing: Callable[[], bool], patience_s: float, now: Now
) -> None:
    """Remove a container; while the activator closes, return after `patience_s` at the latest.

    In that case the reaper or the next start removes it.
    """
    began_s, steps, is_logged = now(), Backoff(REMOVE_STEP_S, RETRY_AWAY_S), False
    while True:
        try:
            query = {"force": "true", "v": "true"}
            await engine.call("DELETE", f"/containers/{container}", query, timeout_s=REMOVE_TIMEOUT_S)
            return
        except EngineAwayError as error:
            problem = str(error)
        except EngineError as error:
            if error.status == 404:
                return
            problem = error.message
        if is_closing() and now() - began_s >= patience_s:
            log.error("%s: its container %s is left to the reaper: %s", identity, container[:12], problem)
            return
        if not is_logged and now() - began_s >= patience_s:
            is_logged = True
            log.warning("%s: its container %s cannot be removed: %s", identity, container[:12], problem)
        await pause(steps.next_s())
