"""Programs that end by themselves after one request (`lifetime: request`).

Rules
  1. No copy gets a second request: when the data plane grants it the first, it excludes the copy from balancing and
     reports the grant. From then on the copy is no longer a pod, and its request continues (`PodTaken`, `PodGone`).
  2. Nothing connects to a copy before its request: the kernel shows whether it listens, or a line of its output does,
     or a command. Where the kernel's socket query fails, /proc is read.
  3. After its request, from the end of the response to the client, a copy may take `stop.grace` to end by itself.
     During that time the copy counts against `max_scale`, but not among the wanted copies.
  4. The end of such a copy is not a crash, whatever its exit code; if the request failed, the reason is logged.
     A copy that ends before its request is a failed start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from activator.control_plane.sources.process.fleet import LocalProcess
from activator.runtime.tasks import wait_for

VERDICT_S: Final = 1.0  # within this time the data plane reports the end of a request whose copy has ended

log = logging.getLogger("activator.process")


async def until_request_over(
    process: LocalProcess, exited: asyncio.Future[None], stop_requested: asyncio.Future[Any]
) -> bool:
    """Wait until the copy has received its request, and that is over; False if it exits or is to be stopped first."""
    limit_s = process.drain_timeout_s
    for event, timeout_s in ((process.taken, None), (process.drained, limit_s)):
        occurred = asyncio.ensure_future(event.wait())  # noqa: TID251 - cancelled below
        try:
            awaited: set[asyncio.Future[Any]] = {occurred, exited, stop_requested}
            await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            occurred.cancel()
        if exited.done() or stop_requested.done():
            return False
    return True


async def until_exited(
    process: LocalProcess, exited: asyncio.Future[None], stop_requested: asyncio.Future[Any]
) -> None:
    """Wait until the copy has ended by itself, for its grace at most."""
    either: set[asyncio.Future[Any]] = {exited, stop_requested}
    grace_s = process.unit.grace_s
    await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    if not exited.done() and not stop_requested.done():
        log.warning("%s did not exit within %g s after its request; stopping it", process.identity, grace_s)


async def cause_if_failed_start(process: LocalProcess) -> str:
    """Log the end of a copy that was ready; return its cause if the copy had no request: then it is a failed start."""
    await wait_for(process.drained, VERDICT_S)  # a request that was sent, or has failed, has been reported by then
    cause = await process.unit.cause()
    if not process.taken.is_set():
        return f"it ended before a request came: {cause}"
    if process.failed_for:
        log.warning("%s failed during its request (%s): %s", process.identity, process.failed_for, cause)
    elif process.unit.exit_code:
        log.warning("%s finished its request, then failed: %s", process.identity, cause)
    else:
        log.info("%s finished its request and exited", process.identity)
    return ""
