"""The keys of `mode: transparent` of an Activation, and the entry ports of its Services.

Rules
  1. A Service whose requests reach the activator has an entry port of its own. The host of a request does not identify
     the Service: `web` is a name in every namespace, a ClusterIP is not a name, and an Ingress sends its client's host.
"""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, doc

MODE_PROXY: Final = "proxy"
MODE_TRANSPARENT: Final = "transparent"
MODES: Final = (MODE_PROXY, MODE_TRANSPARENT)

TRANSPARENT_SETTLE_S: Final = 5.0
TRANSPARENT_DWELL_S: Final = 10.0
TRANSPARENT_MEASURE_INTERVAL_S: Final = 300.0
TRANSPARENT_AFTER_MISTAKE_S: Final = 3600.0
ALWAYS_IN_PATH: Final = -1  # as a burst capacity

# Below the ports that Linux uses for outgoing connections (32768 to 60999), above those that programs commonly use.
ENTRY_PORT_FIRST: Final = 20_000
ENTRY_PORT_LAST: Final = 29_999


class Transparent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `mode: transparent`: when requests for the Service come through the activator, and when they do not."""

    service: Annotated[
        str,
        doc(
            "The Service whose requests are served, in the same namespace. Empty: the one with the Activation's name.",
            "web",
        ),
    ] = ""
    burst_capacity: Annotated[
        int | None,
        doc(
            "The number of additional requests that the ready pods must be able to take, by `container_concurrency`, "
            "before the activator leaves the path. 0: it leaves when there is a ready pod. -1: it stays. Not set: 0, "
            "or -1 with a limit, because a limit applies only while the activator is in the path.",
            200,
        ),
    ] = None
    settle: Annotated[
        Duration,
        doc(
            "The time after a write within which every proxy of the cluster applies it. During that time the absence "
            "of requests has no effect.",
            "10s",
        ),
    ] = Duration(TRANSPARENT_SETTLE_S)
    dwell: Annotated[
        Duration,
        doc("How long requests have to come, with capacity to spare, before the activator leaves the path."),
    ] = Duration(TRANSPARENT_DWELL_S)
    look_interval: Annotated[
        Duration,
        doc("The time out of the path after which the activator enters it, to see whether there are requests.", "10m"),
    ] = Duration(TRANSPARENT_MEASURE_INTERVAL_S)
    after_mistake: Annotated[
        Duration,
        doc(
            "The longest time for which the activator stays in the path after a request that arrived right after a "
            "scale to zero: its client may have kept a connection to a pod, which the activator cannot see. The first "
            "time it is `look_interval`, and four times as long with each such zero in a row.",
            "6h",
        ),
    ] = Duration(TRANSPARENT_AFTER_MISTAKE_S)
    zero_only: Annotated[
        bool,
        doc(
            "The activator scales from zero to one and back to zero; something else, such as an HPA, scales above.",
            True,
        ),
    ] = False
