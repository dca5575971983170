"""Checks of `keys` beyond the types of their values. Part of `checks.py`, with its rules."""

from __future__ import annotations

import re
from typing import Final

from activator.config.model.file import Config
from activator.config.model.keys import SHA256, Key
from activator.config.places import Place
from activator.runtime.errors import StartError
from activator.runtime.secret_text import read_secret

KEYS_MAX: Final = 1_000  # each has a time series
KEY_CHARACTERS_MIN: Final = 8  # shorter ones can be guessed

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._@-]{0,61}[A-Za-z0-9])?")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")


def check_keys(root: Place, config: Config) -> None:
    """Check all keys of a file, after its revisions."""
    keys = config.keys
    if len(keys) > KEYS_MAX:
        root["keys"].found(f"at most {KEYS_MAX} keys", str(len(keys)))
        return
    names: dict[str, str] = {}
    secrets: dict[str, str] = {}
    is_closed_list = config.kubernetes is None and not config.containers.discover
    known = {revision.name for revision in config.revisions}
    for at, key in root["keys"].each(keys):
        if _NAME.fullmatch(key.name) is None:
            at["name"].found("a name of at most 63 letters, digits, `-`, `_`, `.` and `@`")
        elif key.name in names:
            at["name"].advise(f"{names[key.name]} has this name, too")
        names.setdefault(key.name, str(at))
        text = "" if key.key is None else _checked_text(at["key"], key)
        if text is not None and text in secrets:
            at.advise(f"{secrets[text]} is for requests {'with the same key' if text else 'without a key'}, too")
        elif text is not None:
            secrets[text] = str(at)
        for place, name in at["revisions"].each(key.revisions or []):
            if is_closed_list and name not in known and "revisions" in root and not root["revisions"].is_unread:
                place.found("the name of a revision of this file")
    for at, revision in root["revisions"].each(config.revisions):
        if revision.queue.discipline == "fair" and not revision.queue.header and not keys:
            at["queue"]["header"].advise(
                "`discipline: fair` requires `header`, the request header with the key, or `keys`",
                at["queue"]["discipline"].where,
            )


def _checked_text(at: Place, key: Key) -> str | None:
    """Return the text of a key; None if it is no key."""
    try:
        text = read_secret(str(key.key), f"key {key.name}")
    except StartError as error:
        at.advise(str(error))
        return None
    if text.startswith(SHA256):
        if _HASH.fullmatch(text.removeprefix(SHA256)) is None:
            at.advise("after `sha256:`, 64 hex digits are required, as `printf %s KEY | sha256sum` prints them")
            return None
        return text.lower()
    if len(text) < KEY_CHARACTERS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        at.advise(f"a key has at least {KEY_CHARACTERS_MIN} ASCII characters without spaces: `openssl rand -hex 16`")
        return None
    return text
