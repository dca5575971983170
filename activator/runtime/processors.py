"""How many processors the program may use: by its affinity, and by the quota of its control group (of a container)."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of version 2: the quota and the period in microseconds, or `max`


def processors(quota: Path = _QUOTA) -> int:
    """At least 1; a part of a processor counts as a whole one."""
    usable = len(os.sched_getaffinity(0))
    try:
        said, _, period = quota.read_text("ascii").partition(" ")
        share = math.ceil(int(said) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no version 2, or no quota
        return usable
    return max(min(usable, share), 1)
