"""Programs that end by themselves after one request (`lifetime: request`).

Rules
  1. No copy is sent a second request: the data plane takes it out of the picks with the grant, and says so; then it is
     no pod any more, and what it carries goes on (`PodTaken`, `PodGone`).
  2. Nothing connects to a copy before its request: whether it listens is asked of the kernel, or shown by a line of its
     output or by a command. Where the kernel does not answer, /proc shows it.
  3. A copy that has had its request may take `stop.grace` to end by itself, from when its client has all of the answer.
     Meanwhile it counts among the `max_scale` copies that there are, and not among those that are wanted.
  4. The end of such a copy is no crash, whatever its exit code: the request has failed or not, and the log says why.
     A copy that ends before a request has come is a failed start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from activator.control_plane.sources.process.fleet import LocalProcess
from activator.runtime.tasks import wait_for

VERDICT_S: Final = 1.0  # the data plane reports within so long that a copy which has ended carries nothing

log = logging.getLogger("activator.process")


async def until_over(process: LocalProcess, exited: asyncio.Future[None], asked: asyncio.Future[Any]) -> bool:
    """Wait for its request and for the end of that; False: it has exited, or is to be stopped, before."""
    limit_s = process.drain_timeout_s
    for event, timeout_s in ((process.taken, None), (process.drained, limit_s)):
        waits = asyncio.ensure_future(event.wait())  # noqa: TID251 - cancelled below
        try:
            both: set[asyncio.Future[Any]] = {waits, exited, asked}
            await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()
        if exited.done() or asked.done():
            return False
    return True


async def until_ended(process: LocalProcess, exited: asyncio.Future[None], asked: asyncio.Future[Any]) -> None:
    """Give it the time to end by itself."""
    waits: set[asyncio.Future[Any]] = {exited, asked}
    grace_s = process.unit.grace_s
    await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    if not exited.done() and not asked.done():
        log.warning(
            "%s has not ended by itself within %g s after its request, and is stopped", process.identity, grace_s
        )


async def verdict_on(process: LocalProcess) -> str:
    """Of a copy that was ready and has exited: why that is a failed start; empty: it is none."""
    await wait_for(process.drained, VERDICT_S)  # what was taken or has failed is known by then
    cause = await process.unit.cause()
    if not process.taken.is_set():
        return f"it ended before a request came: {cause}"
    if process.failed_for:
        log.warning("%s has not answered its request (%s): %s", process.identity, process.failed_for, cause)
    elif process.unit.exit_code:
        log.warning("%s has answered its request, and then: %s", process.identity, cause)
    else:
        log.info("%s has answered its request and ended", process.identity)
    return ""
