"""Requests for a revision at zero: which of them wait, their responses, and activity."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, Positive, Size, doc
from activator.runtime.units import MIB

REFRESH_S: Final = 2.0
ASLEEP_STATUS: Final = 503

COUNTS_OPEN: Final = "open"
COUNTS_TRAFFIC: Final = "traffic"
COUNTS: Final = (COUNTS_OPEN, COUNTS_TRAFFIC)

Status = Annotated[int, msgspec.Meta(ge=200, le=599)]


class NoWake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that start no pod: probes and monitors. All keys that are set must match; at least one is needed."""

    path: Annotated[str, doc("A prefix of the request target.", "/healthz")] = ""
    methods: Annotated[list[str], doc("The methods that match. Empty: all.", ["GET", "HEAD"])] = []
    user_agent: Annotated[str, doc("A prefix of the field User-Agent, ignoring case.", "UptimeRobot/")] = ""
    status: Annotated[Status, doc("The status of the response while no pod is ready.", 200)] = ASLEEP_STATUS


class WaitingPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page for browsers while no pod is ready, which starts the revision."""

    refresh: Annotated[Duration, doc("The time after which the page reloads itself.", "5s")] = Duration(REFRESH_S)
    file: Annotated[
        str,
        doc(
            "A page of your own (HTML, at most 256 KiB; [variables](waiting.md#a-page-for-browsers)).",
            "wait.html",
        ),
    ] = ""
    output: Annotated[
        bool,
        doc(
            "With `process` or `container`: it shows the last lines of output since the start, to everybody.",
            True,
        ),
    ] = False


class RespondAsync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients that send `Prefer: respond-async` (RFC 7240) get 202 and the address of the later response."""

    keep: Annotated[Duration, doc("How long a complete response is stored.", "1h")] = Duration(300.0)
    requests: Annotated[Positive, doc("The number of such requests and stored responses, per worker.", 1_000)] = 100
    answer_bytes: Annotated[
        Size, doc("The size of one response. A larger one is not stored: its request fails.", "10MiB")
    ] = Size(MIB)
    bytes: Annotated[Size, doc("The size of all stored responses of the revision, per worker.", "64MiB")] = Size(
        16 * MIB
    )
    body_bytes: Annotated[
        Size,
        doc("The body of such a request.", "10MiB"),
    ] = Size(MIB)


class Busy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Background work that the program reports: it is asked while it has no request."""

    http_get: Annotated[str, doc("The path that reports it.", "/api/status")]
    field: Annotated[
        str,
        doc(
            "The field of the JSON response, with dots between names. Not set: `busy`, or a response that is one of "
            "the words `busy` and `idle`.",
            "last_activity",
        ),
    ] = ""
    interval: Annotated[Duration, doc("The time between two queries, at least 1 s.", "30s")] = Duration(10.0)


class Activity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The activity, besides requests, that keeps a program running."""

    websocket: Annotated[
        str, doc("`open`: an open WebSocket counts. `traffic`: only one with traffic.", "traffic", words=COUNTS)
    ] = COUNTS_OPEN
    stream: Annotated[str, doc("The same for a response that is an event stream.", "traffic", words=COUNTS)] = (
        COUNTS_OPEN
    )
    quiet_after: Annotated[
        Duration, doc("With `traffic`: how long a silent connection still counts, at least 1 s.", "5m")
    ] = Duration(60.0)
    busy: Annotated[Busy | None, doc("How the program reports background work.")] = None


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients that send `Accept: text/event-stream` get 200 and comments with the progress of their request."""

    after: Annotated[Duration, doc("The time before the first comment: a fast response keeps its status.", "0s")] = (
        Duration(1.0)
    )
    interval: Annotated[Duration, doc("The time between two comments, at least 0.5 s.", "15s")] = Duration(5.0)


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The response instead of a rejection: one of `file`, `redirect` and `revision`."""

    file: Annotated[
        str, doc("A file, at most 256 KiB, that is sent with the status of the rejection.", "sorry.html")
    ] = ""
    content_type: Annotated[str, doc("The type of the file.", "application/json")] = "text/html; charset=utf-8"
    redirect: Annotated[
        str, doc("An address to which GET and HEAD are redirected (302).", "https://status.example.com/")
    ] = ""
    revision: Annotated[
        str,
        doc(
            "Another revision of this file, by name or namespace/name, for requests that can still be sent in full.",
            "small-model",
        ),
    ] = ""
    statuses: Annotated[
        list[str],
        doc(
            "Statuses of pods that it replaces, too; `4xx` and `5xx` are all of them.",
            [502, "5xx"],
        ),
    ] = []
    any_method: Annotated[
        bool,
        doc(
            "With `revision` and `statuses`: also for methods such as POST, which both revisions may then process.",
            True,
        ),
    ] = False
    while_starting: Annotated[
        bool,
        doc(
            "With `revision`: it also serves requests while no pod is ready; they start this one.",
            True,
        ),
    ] = False
