"""How a container is removed: again and again until it is gone, or until the activator has no more time."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.tasks import pause

AWAY_STEP_S: Final = 0.5  # between two tries while the engine is away
REMOVE_TIMEOUT_S: Final = 10.0  # of one try
REMOVE_STEP_S: Final = 0.05  # after the first try to remove a container that failed, doubling up to RETRY_AWAY_S
RETRY_AWAY_S: Final = 2.0  # an engine may be back at any moment: failed starts are repeated at least this often

log = logging.getLogger("activator.container")


async def removed_by_label(
    engine: Engine, labels: list[str], identity: str, is_closing: Callable[[], bool], patience_s: float, now: Now
) -> None:
    """Remove a container that was asked for and may be there, though the engine has not answered. As `removed`."""
    began_s = now()
    names: list[str] | None = None
    while names is None:
        try:
            names = await found_by_label(engine, labels)
        except (EngineAwayError, EngineError) as error:
            if is_closing() and now() - began_s >= patience_s:
                log.error("%s: whether it has a container is not known: %s", identity, error)
                return
            await pause(AWAY_STEP_S)
    for name in names:
        await removed(engine, name, identity, is_closing, patience_s, now)


async def found_by_label(engine: Engine, labels: list[str]) -> list[str]:
    """Return the ids of the containers that have these labels. Raises EngineAwayError, EngineError."""
    query = {"all": "true", "filters": json.dumps({"label": labels})}
    listed = await engine.call("GET", "/containers/json", query, timeout_s=REMOVE_TIMEOUT_S)
    names = [one.get("Id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [name for name in names if isinstance(name, str) and name.isalnum()]


async def removed(
    engine: Engine, container: str, identity: str, is_closing: Callable[[], bool], patience_s: float, now: Now
) -> None:
    """Return when the container is gone; while the activator closes, after `patience_s` at the latest.

    Then the reaper removes it, or the next start does.
    """
    began_s, steps, is_told = now(), Backoff(REMOVE_STEP_S, RETRY_AWAY_S), False
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
        if not is_told and now() - began_s >= patience_s:
            is_told = True
            log.warning("%s: its container %s cannot be removed: %s", identity, container[:12], problem)
        await pause(steps.next_s())
