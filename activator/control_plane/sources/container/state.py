"""The part of an engine's description of a container that is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from activator.runtime.errors import one_line

BEGAN_CHARS_MAX = 64  # a time of RFC 3339 with nanoseconds and a zone has 35
STOPPED_CODES = frozenset({0, 130, 137, 143})  # ended by itself, or by a signal that asks it to


class ContainerState(NamedTuple):
    """The state of a container.

    `exit_code` is valid if it does not run; `process`, its process ID on the engine's machine, if it does. `began`: the
    time of its start, as the engine writes it; empty if unknown.
    """

    is_running: bool
    is_paused: bool
    is_restarting: bool
    is_oom_killed: bool
    exit_code: int
    error: str
    process: int
    began: str


def state_of(inspected: Mapping[str, Any]) -> ContainerState:
    """Parse an inspected container."""
    state = inspected.get("State")
    state = state if isinstance(state, dict) else {}
    code, process = state.get("ExitCode"), state.get("Pid")
    return ContainerState(
        state.get("Running") is True,
        state.get("Paused") is True,
        state.get("Restarting") is True,
        state.get("OOMKilled") is True,
        code if isinstance(code, int) else 0,
        one_line(str(state.get("Error") or ""))[:300],
        process if isinstance(process, int) else 0,
        str(state.get("StartedAt") or "")[:BEGAN_CHARS_MAX],
    )


def leader_of(state: ContainerState, container: str) -> int:
    """Return the ID of the container's first process; 0 if this machine shows no such process.

    An engine in a virtual machine reports the number that the process has there.
    """
    try:
        with open(f"/proc/{state.process}/cgroup", encoding="utf-8", errors="replace") as file:
            return state.process if container in file.read() else 0
    except OSError:
        return 0


def memory_limit(inspected: Mapping[str, Any]) -> int:
    """Return the memory limit in bytes; 0: none."""
    config = inspected.get("HostConfig")
    limit = config.get("Memory") if isinstance(config, dict) else 0
    return limit if isinstance(limit, int) else 0


def health_test(inspected: Mapping[str, Any]) -> list[str]:
    """Return the command of the HEALTHCHECK; empty if there is none."""
    config = inspected.get("Config")
    check = config.get("Healthcheck") if isinstance(config, dict) else None
    test = check.get("Test") if isinstance(check, dict) else None
    words = [str(word) for word in test] if isinstance(test, list) else []
    if len(words) > 1 and words[0] == "CMD":
        return words[1:]
    if len(words) > 1 and words[0] == "CMD-SHELL":
        return ["/bin/sh", "-c", words[1]]
    return []
