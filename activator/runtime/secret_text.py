"""Secrets that a key gives as they are, or by the place where they stand: `file:/path` or `env:NAME`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from activator.runtime.errors import StartError

FILE: Final = "file:"
ENVIRONMENT: Final = "env:"
SECRET_CHARACTERS_MIN: Final = 4  # a shorter text is no secret, and a message without it cannot be read
SECRET_BYTES_MAX: Final = 65_536
VARIABLES: Final[set[str]] = set()  # names of environment variables that held secrets of ours


def read_secret(said: str, what: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret, without white space around it; empty if `said` is. Raises StartError, naming `what`."""
    if said.startswith(FILE):
        return _from_file(said.removeprefix(FILE), what)
    if said.startswith(ENVIRONMENT):
        name = said.removeprefix(ENVIRONMENT)
        found = (os.environ if environ is None else environ).get(name, "").strip()
        VARIABLES.add(name)
        if not found:
            raise StartError(f"{what}: the environment variable {name} is not set; put the secret in it")
        return found
    return said


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a message, such as that of an exception of a package, without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "…")
    return text


def _from_file(path: str, what: str) -> str:
    try:
        with open(path, "rb") as file:
            found = file.read(SECRET_BYTES_MAX).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        raise StartError(f"{what}: the file {path} cannot be read: {error}") from error
    if not found:
        raise StartError(f"{what}: the file {path} is empty; put the secret in it")
    return found
