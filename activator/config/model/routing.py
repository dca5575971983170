"""Which revision, and which of its pods, a request means."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import doc

HASH_ON_CLIENT_IP: Final = "client_ip"


class HashOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a request for `policy: consistent-hash`. Exactly one of the two."""

    header: Annotated[str, doc("The request header whose value is the key.", "X-User")] = ""
    cookie: Annotated[str, doc("The cookie whose value is the key.", "session")] = ""


class JsonMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a member of the request body, a JSON object, must be. It must stand in the first 64 KiB of the body."""

    model: Annotated[
        list[str],
        doc("The values of `model` that match; `name*` matches all that begin so.", ["llama-3-8b", "llama-*"]),
    ]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests for its hosts a revision takes. All keys that are set must match; without any, all requests do."""

    path: Annotated[
        str, doc("A beginning of the path, in whole segments: `/v1` matches /v1 and /v1/x. Empty: any.", "/v1")
    ] = ""
    strip_path: Annotated[
        bool,
        doc("Whether the pod gets the path without `path`. `X-Forwarded-Prefix` tells it what was left out.", True),
    ] = False
    methods: Annotated[list[str], doc("The methods that match. Empty: all methods.", ["POST"])] = []
    headers: Annotated[
        dict[str, str],
        doc(
            "Request headers and their exact values; all must match. Of several of one name the first counts.",
            {"x-team": "ml"},
        ),
    ] = {}
    json: Annotated[JsonMatch | None, doc("What the request body must say. Not set: it is not looked at.")] = None
