"""The key of a group. A replica that has it may take part."""

from __future__ import annotations

import hashlib
from typing import Final

from activator.members.handshake import KEY_BYTES_MIN
from activator.runtime.errors import StartError

STRETCH_N: Final = 1 << 14  # scrypt (RFC 7914): each guess takes 16 MiB and some 40 ms
STRETCH_R: Final = 8


def stretched(key: bytes, group: str) -> bytes:
    """Return the key that members of this group use. Stretching makes it slow to guess even a weak key from a code."""
    return hashlib.scrypt(key, salt=f"activator-members/{group}".encode(), n=STRETCH_N, r=STRETCH_R, p=1, dklen=32)


def read_key(path: str) -> bytes:
    """Return the key in this file, without the white space around it. Raises StartError."""
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
