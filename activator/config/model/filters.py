"""Rules for header fields, injected faults, and filters of your own."""

from typing import Annotated

import msgspec

from activator.config.model.kinds import Duration, Positive, Secret, Share, doc


class FieldRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Edits of the header fields of a message, in the order `remove`, `set`, `append`."""

    remove: Annotated[list[str], doc("The names of fields to remove.", ["Cookie", "X-Debug"])] = []
    set: Annotated[dict[str, Secret], doc("Fields that replace all fields of the same name.", {"X-Tier": "gold"})] = (
        msgspec.field(default_factory=dict)
    )
    append: Annotated[dict[str, Secret], doc("Fields that are added after all others.", {"Via": "1.1 edge"})] = (
        msgspec.field(default_factory=dict)
    )


class HeaderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Edits of the header fields of requests to pods and of their responses."""

    request: Annotated[FieldRules, doc("Edits of requests to pods.")] = FieldRules()
    response: Annotated[FieldRules, doc("Edits of the pods' responses to clients.")] = FieldRules()


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requests that each client address may send; more get 429."""

    requests: Annotated[str, doc("Requests per `s`, `min`, `h` or `day`.", "100/min")]
    burst: Annotated[Positive | None, doc("Requests at once. Not set: those of a period.", 20)] = None


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Injected faults, to test clients."""

    delay: Annotated[Duration, doc("The delay of a request before it needs a slot, at most 10m.", "2s")] = Duration(0.0)
    delay_share: Annotated[Share, doc("The share of requests that are delayed.", 0.1)] = 1.0
    status: Annotated[int | None, doc("The status that clients get instead of a response.", 503)] = None
    status_share: Annotated[Share, doc("The share of requests that get this status.", 0.05)] = 1.0


class ForwardAuth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An HTTP server that decides about each request."""

    url: Annotated[
        str, doc("Its address, asked with GET. 2xx lets the request through.", "http://127.0.0.1:9091/verify")
    ]
    headers: Annotated[
        list[str], doc("Fields of its response that the pod gets; those of clients are removed.", ["Remote-User"])
    ] = []
    cache: Annotated[Duration, doc("How long 2xx holds for requests with the same fields.", "10s")] = Duration(0.0)
    timeout: Annotated[Duration, doc("The time limit of a decision. Then: 503.", "2s")] = Duration(5.0)


class FilterUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter that is not built in."""

    name: Annotated[
        str,
        doc("The name that a package has registered (`activator.filters`), or `package.module:Class`.", "hmac"),
    ]
    options: Annotated[
        dict[str, Secret],
        doc("The options of the filter: texts, which may be `env:NAME` or `file:PATH`.", {"secret": "env:HMAC_KEY"}),
    ] = msgspec.field(default_factory=dict)
