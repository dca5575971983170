"""The selection of a revision, and of one of its pods, for a request."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import doc

HASH_ON_CLIENT_IP: Final = "client_ip"


class HashOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a request, for `split_on` and `hash_on`: set either `header` or `cookie`."""

    header: Annotated[str, doc("The request header whose value is the key.", "X-User")] = ""
    cookie: Annotated[str, doc("The cookie whose value is the key.", "session")] = ""


class JsonMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on the request body, a JSON object. The member must be in the first 64 KiB of the body."""

    model: Annotated[
        list[str],
        doc(
            "The values of `model` that match; `name*` matches all values with this prefix.", ["llama-3-8b", "llama-*"]
        ),
    ]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests for its hosts that a revision serves. All keys that are set must match; without any, all do."""

    path: Annotated[
        str, doc("A prefix of the path, in whole segments: `/v1` matches /v1 and /v1/x. Empty: any.", "/v1")
    ] = ""
    strip_path: Annotated[
        bool,
        doc(
            "If true, `path` is removed from the path that the pod gets. `X-Forwarded-Prefix` has the removed part.",
            True,
        ),
    ] = False
    methods: Annotated[list[str], doc("The methods that match. Empty: all.", ["POST"])] = []
    headers: Annotated[
        dict[str, str],
        doc(
            "Request headers and their exact values. If a name occurs twice, the first one counts.",
            {"x-team": "ml"},
        ),
    ] = {}
    json: Annotated[JsonMatch | None, doc("A condition on the request body.")] = None
