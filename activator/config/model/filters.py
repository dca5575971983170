"""Rules for header fields, injected faults, and filters of your own."""

from __future__ import annotations

from typing import Annotated

import msgspec

from activator.config.model.kinds import Duration, Secret, Share, doc


class FieldRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Edits of the header fields of a message, in this order: `remove`, `set`, `append`."""

    remove: Annotated[list[str], doc("The names of fields that are removed.", ["Cookie", "X-Debug"])] = []
    set: Annotated[dict[str, str], doc("Fields that replace all fields of the same name.", {"X-Tier": "gold"})] = (
        msgspec.field(default_factory=dict)
    )
    append: Annotated[dict[str, str], doc("Fields that are added behind all others.", {"Via": "1.1 edge"})] = (
        msgspec.field(default_factory=dict)
    )


class HeaderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Edits of header fields on the way to the pods and back."""

    request: Annotated[FieldRules, doc("What pods are sent.")] = FieldRules()
    response: Annotated[FieldRules, doc("What clients are sent of a pod's response.")] = FieldRules()


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that are delayed or refused on purpose, to test what their clients do."""

    delay: Annotated[Duration, doc("How long a request waits before it asks for a pod, at most 10m.", "2s")] = Duration(
        0.0
    )
    delay_share: Annotated[Share, doc("The share of requests that are delayed, chosen at random.", 0.1)] = 1.0
    status: Annotated[
        int | None, doc("The status that clients get in the place of a response. Not set: none.", 503)
    ] = None
    status_share: Annotated[Share, doc("The share of requests that get it, chosen at random.", 0.05)] = 1.0


class FilterUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter that is not built in."""

    name: Annotated[
        str,
        doc("The name that a package has registered (`activator.filters`), or `package.module:Class`.", "hmac"),
    ]
    options: Annotated[
        dict[str, Secret],
        doc("What the filter is made with: texts, which may be `env:NAME` or `file:PATH`.", {"secret": "env:HMAC_KEY"}),
    ] = msgspec.field(default_factory=dict)
