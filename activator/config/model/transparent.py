"""`mode: transparent` of an Activation: its keys, and the ports by which the requests of each Service are known.

Rules
  1. A Service whose requests come here is known by a port of its own. A host does not say which Service is meant: `web`
     is a name in every namespace, a ClusterIP is none, and an Ingress sends the host of its client.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, doc

MODE_PROXY: Final = "proxy"
MODE_TRANSPARENT: Final = "transparent"
MODES: Final = (MODE_PROXY, MODE_TRANSPARENT)

TRANSPARENT_SETTLE_S: Final = 5.0
TRANSPARENT_DWELL_S: Final = 10.0
TRANSPARENT_LOOK_INTERVAL_S: Final = 300.0
TRANSPARENT_AFTER_MISTAKE_S: Final = 3600.0
ALWAYS_IN_PATH: Final = -1  # a burst capacity

# Below the ports that Linux gives to outgoing connections (32768 to 60999), and above what programs are used to.
ENTRY_PORT_FIRST: Final = 20_000
ENTRY_PORT_LAST: Final = 29_999


class Transparent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `mode: transparent`: when requests for the Service come through the activator, and when they do not."""

    service: Annotated[
        str,
        doc(
            "The Service whose requests are meant, of the same namespace. Empty: that of the Activation's name.", "web"
        ),
    ] = ""
    burst_capacity: Annotated[
        int | None,
        doc(
            "The requests that the ready pods have to be able to take beyond those that are there, for the activator "
            "to leave the path, by `container_concurrency`. 0: it leaves when there is a ready pod. -1: it stays. "
            "Unset: 0, and -1 where there is a limit, since a limit holds only while the activator is in the path.",
            200,
        ),
    ] = None
    settle: Annotated[
        Duration,
        doc(
            "The time after a write within which every proxy of the cluster knows of it. While it passes, nothing is "
            "concluded from requests that do not come.",
            "10s",
        ),
    ] = Duration(TRANSPARENT_SETTLE_S)
    dwell: Annotated[
        Duration,
        doc("The time for which requests have to come, with capacity to spare, before the activator leaves the path."),
    ] = Duration(TRANSPARENT_DWELL_S)
    look_interval: Annotated[
        Duration,
        doc("The time out of the path after which the activator steps in, to see whether there are requests.", "10m"),
    ] = Duration(TRANSPARENT_LOOK_INTERVAL_S)
    after_mistake: Annotated[
        Duration,
        doc(
            "The longest time for which the activator stays in the path after a request has come right after the "
            "scale to zero: its client may have kept a connection to a pod, which the activator cannot see. The first "
            "time it is `look_interval`, and four times as long with each such zero in a row.",
            "6h",
        ),
    ] = Duration(TRANSPARENT_AFTER_MISTAKE_S)
    zero_only: Annotated[
        bool,
        doc("The activator scales from zero to one and back to zero; between, others do, such as an HPA.", True),
    ] = False
