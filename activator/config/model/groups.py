"""Groups of revisions that share what the machine has."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, Size, doc

AFFINITY: Final = "affinity"
GROUP_DISCIPLINES: Final = (AFFINITY, "fifo")
OVERTAKEN_AT_MOST_S: Final = 30.0
GPUS: Final = "gpus"  # the resource of a budget that `process.gpus` is counted in


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revisions of which as many are loaded as its budget carries ([groups](groups.md))."""

    name: Annotated[str, doc("The name of the group; unique.", "gpu0")]
    members: Annotated[
        list[str],
        doc("Revisions with `process`: `name`, or `namespace/name`. A revision is in one group at most.", ["a", "b"]),
    ]
    budget: Annotated[
        dict[str, Size],
        doc(
            "How much there is of each resource. The names are yours; `needs` of the members uses them. `gpus` counts "
            "`process.gpus`.",
            {"gpu_memory": "24GiB"},
        ),
    ] = {}
    exclusive: Annotated[
        bool, doc("One revision at a time, in the place of a budget. Programs that sleep do not count.", True)
    ] = False
    discipline: Annotated[
        str,
        doc(
            "Whose turn it is. `affinity`: requests of the loaded revisions together. `fifo`: the revision whose next "
            "request came first.",
            "fifo",
            words=GROUP_DISCIPLINES,
        ),
    ] = AFFINITY
    overtaken_at_most: Annotated[
        Duration,
        doc(
            "With `affinity`: a request is not overtaken by one that came more than this after it and needs the same "
            "budget.",
            "10s",
        ),
    ] = Duration(OVERTAKEN_AT_MOST_S)
    grace: Annotated[
        Duration | None,
        doc(
            "The time that requests may still run when the turn of their revision is over; then its program gets its "
            "stop signal. Not set: as long as their own time limits allow.",
            "2m",
        ),
    ] = None
