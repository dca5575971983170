"""A program of a revision that is not started: what its supervisor would know of it."""

from __future__ import annotations

import time

from activator.config.model.revision import Revision
from activator.control_plane.sources.process.addresses import ProgramAddress
from activator.control_plane.sources.process.child import ChildProcess, ChildProcesses
from activator.control_plane.sources.process.fleet import LocalProcess
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.tasks import TaskGroupOwner


def unstarted(key: str, revision: Revision) -> LocalProcess:
    """Within a running loop."""
    tasks = TaskGroupOwner(lambda name, error: None)
    owner = ChildProcesses(tasks, time.monotonic, Reaping(None, ""))
    identity = f"{key}#1"
    unit = ChildProcess(owner, revision, identity, ProgramAddress(1), (), lambda stream, data: None)
    return LocalProcess(key, identity, unit, 1.0, None)
