"""The keys of clients."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Secret, doc

SHA256: Final = "sha256:"  # prefix of a key of which only the hash is known


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's key, and the revisions that it may use. If there are any, each request needs one."""

    name: Annotated[str, doc("The name of the client in logs and metrics, and its share with `fair`.", "alice")]
    key: Annotated[
        Secret | None,
        doc(
            "The key: `env:NAME`, `file:PATH`, `sha256:` and the hash in hex, or the text itself. Not set: requests "
            "without a key.",
            "env:ALICE_KEY",
        ),
    ] = None
    revisions: Annotated[list[str] | None, doc("The revisions that it may use. Not set: all.", ["llama", "qwen"])] = (
        None
    )
