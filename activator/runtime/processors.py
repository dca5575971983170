"""The number of processors that the program may use, by its affinity and by the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: the quota, or `max`, and the period, in microseconds


def processors(quota: Path = _QUOTA) -> int:
    """Return the number of usable processors, at least 1; a part of a processor counts as a whole one."""
    usable = len(os.sched_getaffinity(0))
    try:
        allowed, _, period = quota.read_text("ascii").partition(" ")
        share = math.ceil(int(allowed) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or no quota
        return usable
    return max(min(usable, share), 1)
