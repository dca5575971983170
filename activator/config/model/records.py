"""Records of requests: tokens, the last requests, and captures."""

from typing import Annotated

import msgspec

from activator.config.model.kinds import Count, Duration, Size, doc
from activator.runtime.units import KIB


class CaptureRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Heads and bodies of requests and responses are kept in memory. Secrets in them are masked when they are shown."""

    bytes: Annotated[Size, doc("How much is kept of each body, from its beginning; at most 64KiB.", "64KiB")] = Size(
        16 * KIB
    )
    keep: Annotated[Duration, doc("The time for which a capture is kept, at most 24h.", "1h")] = Duration(600.0)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records of the requests of a revision."""

    tokens: Annotated[
        bool,
        doc("Whether tokens are counted, as model servers report them, and `Activator-Queue-Time` is sent.", False),
    ] = True
    include_usage: Annotated[
        bool,
        doc(
            "Let servers with OpenAI's API report the tokens of all streams. Clients see only the reports that they "
            "have asked for.",
            True,
        ),
    ] = False
    requests: Annotated[
        Count, doc("The number of last requests that each worker remembers, at most 1000. 0: none.", 20)
    ] = 100
    capture: Annotated[CaptureRule | None, doc("Keep heads and bodies. Not set: none.")] = None
