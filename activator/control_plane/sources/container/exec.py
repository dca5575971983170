"""Commands that are run within a container."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError

_READ_BYTES = 16 * 1024


class CommandError(Exception):
    """The reason for which a command has no exit code."""


async def run_command(engine: Engine, container: str, command: Sequence[str], timeout_s: float) -> int:
    """Run a command and return its exit code; its output is discarded.

    Raises CommandError, also after `timeout_s`: the command then continues, because engines cannot end it.
    """
    body = {"Cmd": list(command), "AttachStdout": True, "AttachStderr": True}
    try:
        async with asyncio.timeout(timeout_s):
            created = await engine.call("POST", f"/containers/{container}/exec", body=body)
            name = created.get("Id") if isinstance(created, dict) else None
            if not isinstance(name, str) or not name.isalnum():
                raise CommandError("the engine does not name it")
            start = {"Detach": False, "Tty": False}
            async with engine.streamed("POST", f"/exec/{name}/start", body=start) as content:
                while await content.read(_READ_BYTES):
                    pass
            inspected = await engine.call("GET", f"/exec/{name}/json")
    except TimeoutError:
        raise CommandError(f"it took longer than {timeout_s:g} s") from None
    except EngineAwayError as error:
        raise CommandError(str(error)) from None
    except EngineError as error:
        raise CommandError(error.message) from None
    code = inspected.get("ExitCode") if isinstance(inspected, dict) else None
    if not isinstance(code, int):
        raise CommandError("it has no exit code yet")
    return code
