"""The queue of a revision, buffering, time limits, and cancellation."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Count, Duration, Size, doc
from activator.runtime.units import KIB, MIB

PRIORITY_LEVELS: Final = 8  # levels of the discipline `priority`, from 0
FAIR_WEIGHT_MAX: Final = 1_000
CHARGE_MAX: Final = 1_000
QUEUE_TIMEOUT_S: Final = 60.0  # the queue timeout of a revision that has had a ready pod
# Up to this limit a slow client occupies a large share of a pod, so the defaults below apply.
BUFFERED_CONCURRENCY_MAX: Final = 10
BUFFER_REQUEST_BYTES: Final = 64 * KIB
BUFFER_RESPONSE_BYTES: Final = MIB
ADMISSIONS: Final = ("off", "predictive")
CANCEL_CLOSE: Final = "close"
CANCEL_WAIT: Final = "wait"
CANCEL_TIMEOUT_S: Final = 30.0
CANCEL_MODES: Final = (CANCEL_CLOSE, CANCEL_WAIT)
DISCIPLINES: Final = ("fifo", "priority", "fair", "priority-fair")
Positive = Annotated[int, msgspec.Meta(ge=1)]
Level = Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_LEVELS - 1)]
Charge = Annotated[int, msgspec.Meta(ge=1, le=CHARGE_MAX)]
FairWeight = Annotated[int, msgspec.Meta(ge=1, le=FAIR_WEIGHT_MAX)]


class QueueRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception for some requests. The first rule that matches a request applies."""

    path_prefix: Annotated[str, doc("A prefix of the path, as the client sent it.", "/healthz")] = "/"
    methods: Annotated[list[str], doc("The methods that match. Empty: all.", ["GET", "HEAD"])] = []
    exempt: Annotated[bool, doc("The request does not wait, even if every pod is at its limit.", True)] = False
    charge: Annotated[Charge, doc("The request counts as this many requests of its key.", 5)] = 1


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue of requests that wait for a slot of this revision."""

    depth: Annotated[Count, doc("The requests that may wait. Above: 503 with `Retry-After`. 0: none.", 100)] = 10_000
    bytes: Annotated[
        Size,
        doc("The bodies of these requests. Above: 503. 0: only `limits.held_bytes`.", "64MiB"),
    ] = Size(0)
    timeout: Annotated[
        Duration | None,
        doc(
            "How long a request may wait; then 504. Not set: until a pod of the revision has been ready, "
            f"`timeouts.startup` plus 5 s; after that {QUEUE_TIMEOUT_S:.0f} s.",
            "30s",
        ),
    ] = None
    request_timeout: Annotated[
        bool,
        doc("If true, a client may set this time with `Activator-Queue-Timeout` or `Activator-Deadline`.", True),
    ] = False
    request_timeout_max: Annotated[
        Duration | None,
        doc("The longest time that `Activator-Queue-Timeout` may set. Not set: it can only shorten the time.", "2m"),
    ] = None
    admission: Annotated[
        str,
        doc(
            "`predictive`: reject a request at once if no slot can be free before its deadline.",
            "predictive",
            words=ADMISSIONS,
        ),
    ] = "off"
    target_wait: Annotated[
        Duration,
        doc(
            "When requests have waited without a break for `target_interval`, those that have waited longer than this "
            "are rejected instead of served, except the last one. 0: none.",
            "500ms",
        ),
    ] = Duration(0.0)
    target_interval: Annotated[Duration, doc("See `target_wait`. The time of a start does not count.", "5s")] = (
        Duration(10.0)
    )
    discipline: Annotated[
        str,
        doc(
            "The order of the queue: by arrival, by the level in `header`, in turns between the keys in `header`, or "
            "by level and then in turns.",
            "priority",
            words=DISCIPLINES,
        ),
    ] = "fifo"
    header: Annotated[
        str,
        doc(
            "The request header with the level (`priority`) or the key (`fair`). Without it, `priority` and `name` of "
            "the file's `keys` apply.",
            "X-Priority",
        ),
    ] = ""
    key_header: Annotated[
        str,
        doc(
            "With `discipline: priority-fair`: the request header with the key. Without it, the user's name.",
            "X-Tenant",
        ),
    ] = ""
    ageing: Annotated[
        Duration,
        doc("With levels: a waiting request moves up one level after each such time.", "5s"),
    ] = Duration(10.0)
    default: Annotated[Level, doc("With levels: that of a request without a valid one.", 3)] = 0
    weights: Annotated[
        dict[str, FairWeight],
        doc("The weights of keys. Any other key has weight 1.", {"paying": 3}),
    ] = {}
    rules: Annotated[list[QueueRule], doc("Exceptions for some requests, at most 32.")] = []


class AdaptiveConcurrency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on the requests of a revision at all its pods, which follows their latency."""

    min: Annotated[Positive, doc("The lowest limit, and the first.", 8)] = 4
    max: Annotated[Positive, doc("The highest limit.", 200)] = 1_000


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The buffers that keep slow clients from holding a slot of a pod."""

    request: Annotated[
        Size | None,
        doc(
            "The part of a request body that is received before the request gets a slot. 0: none. Not set: 64KiB if "
            f"`container_concurrency` is 1 to {BUFFERED_CONCURRENCY_MAX}, else 0.",
            "1MiB",
        ),
    ] = None
    response: Annotated[
        Size | None,
        doc(
            "The part of a response that is buffered if its client is slow; the slot is free when the pod has "
            "finished. "
            f"0: none. Not set: 1MiB if `container_concurrency` is 1 to {BUFFERED_CONCURRENCY_MAX}, else 0.",
            "8MiB",
        ),
    ] = None
    file: Annotated[
        Size,
        doc(
            "The size of each that may be buffered beyond that in an unnamed temporary file (in `TMPDIR`).",
            "1GiB",
        ),
    ] = Size(0)


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time limits of a request after it has a slot, and of a start."""

    total: Annotated[Duration, doc("From the slot to the end of the response. Longer: 504. 0: no limit.", "10m")] = (
        Duration(300.0)
    )
    first_byte: Annotated[
        Duration, doc("From the slot to the first byte of the response. Longer: 504. 0: no limit.", "30s")
    ] = Duration(0.0)
    idle: Annotated[
        Duration, doc("Between two parts of the response. Longer: 504, or an aborted response. 0: no limit.", "30s")
    ] = Duration(0.0)
    tunnel_idle: Annotated[
        Duration,
        doc("How long an upgraded connection may be silent in both directions. 0: no limit.", "10m"),
    ] = Duration(3600.0)
    connect: Annotated[Duration, doc("The time of a connection attempt. Longer: another pod is tried.", "1s")] = (
        Duration(5.0)
    )
    unreachable: Annotated[
        Duration,
        doc(
            "How long all fixed pods of a revision may fail to answer. Longer: 503 with the cause, until one answers. "
            "0: requests wait.",
            "30s",
        ),
    ] = Duration(3.0)
    startup: Annotated[Duration, doc("The time limit of a start from zero to the first ready pod.", "10m")] = Duration(
        300.0
    )
