"""The hooks of a program: requests to it and commands beside it, when it has become ready and before it is stopped."""

from __future__ import annotations

import json
import logging

from activator.config.model.hooks import Hook
from activator.control_plane.sources.process.sleep import post, run
from activator.control_plane.sources.process.unit import Unit

log = logging.getLogger("activator.process")


async def run_hooks(unit: Unit, identity: str, key: str, hooks: list[Hook]) -> None:
    """Run the hooks under `hooks.KEY` in order, each within its `timeout`; log those that fail."""
    for hook in hooks:
        problem = await _run_hook(unit, hook)
        if problem:
            log.warning("%s: `hooks.%s`: %s", identity, key, problem)


async def _run_hook(unit: Unit, hook: Hook) -> str:
    """Run one hook; return why it failed, or an empty string."""
    timeout_s = float(hook.timeout)
    if hook.command:
        return await run(unit, hook.command, timeout_s)
    members = ",".join(f"{json.dumps(name)}:{value}" for name, value in hook.body.items())
    return await post(unit.address, hook.http_post, timeout_s, f"{{{members}}}".encode() if members else b"", True)
