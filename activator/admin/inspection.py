"""What `GET /debug/config` and `GET /debug/tasks` show."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from activator.config.model import Config

_HIDDEN = "…"


def configuration(config: Config) -> Any:
    """The configuration in force, defaults included; what may be secret is hidden: values of environment variables."""
    shown = msgspec.to_builtins(config, enc_hook=_plain)
    for revision in shown["revisions"]:
        if revision["process"] is not None:
            environment = revision["process"]["environment"]
            revision["process"]["environment"] = dict.fromkeys(environment, _HIDDEN)
    return shown


def _plain(value: object) -> float | int:
    """Seconds and bytes are numbers with a name."""
    assert isinstance(value, float | int), f"{value!r} is no setting"
    return float(value) if isinstance(value, float) else int(value)


def tasks() -> list[dict[str, str]]:
    """Every task of this event loop, and where it waits."""
    return sorted((_task(task) for task in asyncio.all_tasks()), key=lambda shown: shown["name"])


def _task(task: asyncio.Task[Any]) -> dict[str, str]:
    stack = task.get_stack(limit=1)
    at = f"{stack[0].f_code.co_qualname}, line {stack[0].f_lineno}" if stack else ""
    return {"name": task.get_name(), "coroutine": getattr(task.get_coro(), "__qualname__", ""), "at": at}
