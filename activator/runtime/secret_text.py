"""Secrets in the configuration: as plain text, or by reference: `file:/path` or `env:NAME`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from activator.runtime.errors import StartError

FILE: Final = "file:"
ENVIRONMENT: Final = "env:"
SECRET_CHARACTERS_MIN: Final = 4  # shorter texts are not removed from messages, which would become unreadable
SECRET_BYTES_MAX: Final = 65_536
VARIABLES: Final[set[str]] = set()  # names of environment variables that hold secrets


def read_secret(setting: str, what: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the stripped secret; empty for an empty setting. Raises StartError; `what` names the setting in it."""
    if setting.startswith(FILE):
        return _from_file(setting.removeprefix(FILE), what)
    if setting.startswith(ENVIRONMENT):
        name = setting.removeprefix(ENVIRONMENT)
        found = (os.environ if environ is None else environ).get(name, "").strip()
        VARIABLES.add(name)
        if not found:
            raise StartError(f"{what}: the environment variable {name} is not set; put the secret in it")
        return found
    return setting


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a message, for example of a package's exception, with these secrets replaced."""
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
