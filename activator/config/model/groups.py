"""Groups of revisions that share the resources of a machine."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, Size, doc

AFFINITY: Final = "affinity"
GROUP_DISCIPLINES: Final = (AFFINITY, "fifo")
OVERTAKEN_AT_MOST_S: Final = 30.0
MEMORY: Final = "memory"  # names of resources that are measured (memory_use.py)
GPU_MEMORY: Final = "gpu_memory"
GPUS: Final = "gpus"  # the resource name of GPUs in a budget


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revisions that share a budget: as many are loaded at a time as fit into it ([groups](groups.md))."""

    name: Annotated[str, doc("The name of the group; unique.", "gpu0")]
    members: Annotated[
        list[str],
        doc("Revisions with `process`: `name`, or `namespace/name`. A revision is in one group at most.", ["a", "b"]),
    ]
    budget: Annotated[
        dict[str, Size],
        doc(
            "The amount of each resource. You choose the names; `needs` of the members refers to them. `gpus` counts "
            "`process.gpus` and `container.gpus`.",
            {"gpu_memory": "24GiB"},
        ),
    ] = {}
    exclusive: Annotated[
        bool, doc("One revision at a time, instead of a budget. Programs that sleep do not count.", True)
    ] = False
    discipline: Annotated[
        str,
        doc(
            "The order of turns. `affinity`: requests of loaded revisions are served together. `fifo`: the revision "
            "with the oldest waiting request is next.",
            "fifo",
            words=GROUP_DISCIPLINES,
        ),
    ] = AFFINITY
    overtaken_at_most: Annotated[
        Duration,
        doc(
            "With `affinity`: a request is not overtaken by one that arrived later by more than this and needs the "
            "same budget.",
            "10s",
        ),
    ] = Duration(OVERTAKEN_AT_MOST_S)
    measured: Annotated[
        bool,
        doc(
            "If true, the most `memory` and `gpu_memory` that a copy was measured to use counts in place of smaller "
            "`needs`, from the next load of its revision on.",
            True,
        ),
    ] = False
    grace: Annotated[
        Duration | None,
        doc(
            "How long requests may run after the turn of their revision, before its program gets its stop signal. Not "
            "set: as their time limits allow.",
            "2m",
        ),
    ] = None
