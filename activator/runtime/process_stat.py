"""Reading of /proc/PID/stat (proc(5))."""

from __future__ import annotations

from typing import Final

STATE: Final = 0  # positions of fields behind the command, which is in brackets and may contain any characters
PARENT: Final = 1
GROUP: Final = 2
STARTED: Final = 19  # in clock ticks since the boot
ENV_END: Final = 48  # the last one that is used here

READS_MAX: Final = 3


def stat_fields(process: int | str) -> list[bytes]:
    """Return the fields behind the command. Raises OSError if there is no such process.

    While a process ends, the kernel may return only a part of the line; then the file is read again.
    """
    for _ in range(READS_MAX):
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if len(fields) > ENV_END:
            return fields
    raise ProcessLookupError(f"process {process} ends")
