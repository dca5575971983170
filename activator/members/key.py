"""The key of a group: who has it may take part."""

from __future__ import annotations

from activator.members.handshake import KEY_BYTES_MIN
from activator.runtime.errors import StartError


def read_key(path: str) -> bytes:
    """White space around it does not count. Raises StartError."""
    try:
        with open(path, "rb") as file:
            key = file.read(65_536).strip()
    except OSError as error:
        raise StartError(f"members: the key file {path} cannot be read: {error.strerror or error}") from error
    if len(key) < KEY_BYTES_MIN:
        raise StartError(
            f"members: the key in {path} has {len(key)} bytes, and at least {KEY_BYTES_MIN} are needed: "
            "`openssl rand -hex 32` makes a good one"
        )
    return key
