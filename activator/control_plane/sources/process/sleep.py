"""Sleep and wake of a program: by a request to it, a command beside it, or a signal to all of its processes.

Both happen while it has no request, and within `sleep.timeout`. A failure is returned as one line.
"""

from __future__ import annotations

from activator.config.model.sleep import Sleep
from activator.control_plane.sources.process.program_client import query_program
from activator.control_plane.sources.process.unit import Unit


def stops_by_signal(sleep: Sleep) -> bool:
    """Return True if a signal puts the program to sleep: SIGCONT must precede any other signal."""
    return bool(sleep.signal)


async def put_to_sleep(unit: Unit, sleep: Sleep) -> str:
    """Put a program to sleep; return why that failed, or an empty string."""
    timeout_s = float(sleep.timeout)
    if sleep.signal:
        return await unit.signal(sleep.signal)
    if sleep.http_post:
        return await post(unit.address, sleep.http_post, timeout_s)
    return await run(unit, sleep.command, timeout_s)


async def wake(unit: Unit, sleep: Sleep) -> str:
    """Wake a program; return why that failed, or an empty string."""
    timeout_s = float(sleep.timeout)
    if sleep.signal:
        return await unit.signal("SIGCONT")
    if isinstance(sleep.wake, str):
        return await post(unit.address, sleep.wake, timeout_s)
    return await run(unit, sleep.wake, timeout_s)


async def post(address: str, path: str, timeout_s: float, body: bytes = b"", discards: bool = False) -> str:
    """Send a POST, with a body of JSON or none; return why it was not answered with 2xx, or an empty string.

    `discards`: the program is done when its response has ended, not when it begins.
    """
    kind = "Content-Type: application/json\r\n" if body else ""
    head = f"POST {path} HTTP/1.1\r\n{kind}Content-Length: {len(body)}\r\n"
    reply = await query_program(address, head, timeout_s, body=body, discards=discards)
    if reply.problem:
        return f"POST {path}: {reply.problem}"
    return "" if 200 <= reply.status < 300 else f"POST {path} was answered with {reply.status}"


async def run(unit: Unit, command: list[str], timeout_s: float) -> str:
    """Run a command beside the program; return why it did not succeed, or an empty string."""
    code = await unit.run_beside(command, timeout_s)
    if code == 0:
        return ""
    if code is None:
        return f"{command[0]} did not end within {timeout_s:g} s, or could not be started"
    return f"{command[0]} ended with exit code {code}"
