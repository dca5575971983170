"""Who waits for a revision at zero, who does not, and what is shown meanwhile."""

from __future__ import annotations

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
    """Requests that wake nothing: probes and monitors. All that is said must match; at least one thing is said.

    While no pod is ready the activator answers them itself. Otherwise they go to a pod, and do not count as activity.
    """

    path: Annotated[str, doc("The target begins with this.", "/healthz")] = ""
    methods: Annotated[list[str], doc("The methods. Empty: all.", ["GET", "HEAD"])] = []
    user_agent: Annotated[str, doc("The field User-Agent begins with this, in any case.", "UptimeRobot/")] = ""
    status: Annotated[Status, doc("The status of the answer while no pod is ready.", 200)] = ASLEEP_STATUS


class WaitingPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page for browsers that come while no pod is ready. It loads itself again, and wakes the revision."""

    refresh: Annotated[Duration, doc("How soon the page loads itself again.", "5s")] = Duration(REFRESH_S)
    file: Annotated[
        str,
        doc(
            "A page of your own (HTML, at most 256 KiB), in which `$name`, `$waited`, `$expected`, `$waiting` and "
            "`$output` are replaced. Not set: a plain page.",
            "wait.html",
        ),
    ] = ""
    output: Annotated[
        bool,
        doc(
            "Whether the page shows the last lines that the program has written since its start began. Anybody who "
            "may open the page reads them. Only with `process` or `container`.",
            True,
        ),
    ] = False


class RespondAsync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients that send `Prefer: respond-async` (RFC 7240) get 202 and the address where the answer will be.

    A request that has no place within these bounds is answered as if it had not said so.
    """

    keep: Annotated[Duration, doc("How long an answer is kept after it is complete.", "1h")] = Duration(300.0)
    requests: Annotated[Positive, doc("The number of requests and kept answers, in each worker.", 1_000)] = 100
    answer_bytes: Annotated[
        Size, doc("The size of one answer. A larger one is not kept: its request fails.", "10MiB")
    ] = Size(MIB)
    bytes: Annotated[Size, doc("The size of all kept answers of the revision, in each worker.", "64MiB")] = Size(
        16 * MIB
    )
    body_bytes: Annotated[
        Size, doc("The body of such a request, which is received first. A larger one is answered at once.", "10MiB")
    ] = Size(MIB)


class Busy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Background work that the program reports: it is asked while no request is here."""

    http_get: Annotated[str, doc("The path that says it.", "/api/status")]
    field: Annotated[
        str,
        doc(
            "The field of the JSON answer, with dots between names. Not set: `busy`, or an answer that is one of the "
            "words `busy` and `idle`.",
            "last_activity",
        ),
    ] = ""
    interval: Annotated[Duration, doc("How often it is asked, at least 1 s.", "30s")] = Duration(10.0)


class Activity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What keeps a program running beside requests, and what does not."""

    websocket: Annotated[
        str, doc("Whether an open WebSocket counts, or one that carries something.", "traffic", words=COUNTS)
    ] = COUNTS_OPEN
    stream: Annotated[str, doc("The same for a response that is an event stream.", "traffic", words=COUNTS)] = (
        COUNTS_OPEN
    )
    quiet_after: Annotated[
        Duration, doc("With `traffic`: how long one that carries nothing still counts, at least 1 s.", "5m")
    ] = Duration(60.0)
    busy: Annotated[
        Busy | None, doc("How the program says that it works without a request. Not set: it is not asked.")
    ] = None


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients that send `Accept: text/event-stream` are told how their request gets on: 200, and comments, until the
    pod answers with an event stream. Any other answer becomes an event `error`.
    """

    after: Annotated[Duration, doc("How long nothing is sent: a quick answer keeps its status.", "0s")] = Duration(1.0)
    interval: Annotated[Duration, doc("The time between two comments, at least 0.5 s.", "15s")] = Duration(5.0)


class Fallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients get in the place of a refusal, when the revision fails or its line is full. One of the three."""

    file: Annotated[str, doc("A file that is sent with the status of the refusal, at most 256 KiB.", "sorry.html")] = ""
    content_type: Annotated[str, doc("The type of the file.", "application/json")] = "text/html; charset=utf-8"
    redirect: Annotated[
        str, doc("An address to which GET and HEAD are redirected (302).", "https://status.example.com/")
    ] = ""
    revision: Annotated[
        str,
        doc(
            "Another revision of this file, by name or namespace/name, that takes requests which can be sent in full.",
            "small-model",
        ),
    ] = ""
    while_starting: Annotated[
        bool,
        doc(
            "With `revision`: whether it takes requests while no pod of this one is ready. They start this one all the "
            "same.",
            True,
        ),
    ] = False
