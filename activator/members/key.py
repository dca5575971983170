"""The key of a group: who has it may take part."""

from __future__ import annotations

import hashlib
from typing import Final

from activator.members.handshake import KEY_BYTES_MIN
from activator.runtime.errors import StartError

STRETCH_N: Final = 1 << 14  # of scrypt (RFC 7914): 16 MiB and some 40 ms for each guess
STRETCH_R: Final = 8


def stretched(key: bytes, group: str) -> bytes:
    """Return the key that members of this group use: to guess it from a code takes long even for a poor key."""
    return hashlib.scrypt(key, salt=f"activator-members/{group}".encode(), n=STRETCH_N, r=STRETCH_R, p=1, dklen=32)


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
