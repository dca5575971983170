"""The keys of users."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Secret, doc
from activator.config.model.queueing import Level

NO_KEY: Final = "none"  # in place of a key
SHA256: Final = "sha256:"  # prefix of a key of which only the hash is known


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's key, and the revisions that it may use. With any keys, each request needs one."""

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
