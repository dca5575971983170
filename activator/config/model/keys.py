"""The keys of users, and the origins of pages."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Positive, Secret, doc
from activator.config.model.queueing import FairWeight, Level

NO_KEY: Final = "none"  # in place of a key
SHA256: Final = "sha256:"  # prefix of a key of which only the hash is known


class Cors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pages of other origins."""

    origins: Annotated[
        list[str],
        doc(
            'Origins whose pages may send requests and read responses; `"*"`: all.',
            ["https://app.example.com"],
        ),
    ] = []


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a user, over all its requests."""

    concurrency: Annotated[Positive | None, doc("Requests at the same time; more are refused.", 2)] = None
    requests: Annotated[
        str | None, doc("Requests per `s`, `min`, `h` or `day`. They become free again evenly.", "60/min")
    ] = None
    tokens: Annotated[
        str | None, doc("Tokens of prompts and responses per period; `k` and `M` multiply.", "1M/day")
    ] = None
    response_tokens: Annotated[
        Positive, doc("Reserved for a response if the request has no `max_tokens`; settled at its end.", 500)
    ] = 1_000


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's key, and the revisions that it may use."""

    name: Annotated[str, doc("The name of the user in logs and metrics, and its share with `fair`.", "alice")]
    key: Annotated[
        Secret,
        doc(
            "The key: `env:NAME`, `file:PATH`, `sha256:` and the hash in hex, or the text itself. `none`: requests "
            "without a key.",
            "env:ALICE_KEY",
        ),
    ]
    revisions: Annotated[
        list[str] | None, doc("The revisions that it may use, as `name` or `namespace/name`. Not set: all.", ["llama"])
    ] = None
    priority: Annotated[
        Level | None,
        doc("With `queue.discipline: priority`: the level of its requests. Not set: that of the header.", 5),
    ] = None
    weight: Annotated[
        FairWeight,
        doc("With `queue.discipline: fair`: its weight, unless `queue.weights` has one for it.", 3),
    ] = 1
    limits: Annotated[KeyLimits | None, doc("Its quota, which holds over all workers and replicas.")] = None
    more_keys: Annotated[
        list[Secret],
        doc("More keys of the user, such as one for each member of a team.", ["env:ANN_KEY", "env:BEN_KEY"]),
    ] = []
