"""Checks of `no_wake`, `waiting_page` and `fallback` beyond the types of values, and the files that they name.

Part of `checks.py`, with its rules. Only `text_of` reads files: it is called when the configuration is applied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from activator.config.edge_checks import element_at, item_at, program_key
from activator.config.model.waiting import COUNTS, COUNTS_OPEN
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item
from activator.runtime.errors import ConfigError
from activator.runtime.units import KIB

PAGE_BYTES_MAX: Final = 256 * KIB
# Bounds of intervals, so that pages, questions to programs, connection checks and comments do not become load.
REFRESH_MIN_S: Final = 0.5
LOOKS_MIN_S: Final = 1.0
COMMENTS_MIN_S: Final = 0.5
_NO_OUTPUT: Final = "only a revision with `process` or `container` has output to show"


def check_waiting(reader: Reader, item: Item, values: Values, path: str) -> None:
    """Check the waiting settings of one revision."""
    for place, rule in enumerate(values.get("no_wake") or []):
        if rule is not UNREADABLE and not (rule.get("path") or rule.get("methods") or rule.get("user_agent")):
            found = element_at(item_at(item, "no_wake"), place)
            reader.advise(found, f"{path}.no_wake[{place}]", "say which requests: path, methods or user_agent")
    page = values.get("waiting_page")
    refresh = page.get("refresh") if page and page is not UNREADABLE else None
    if isinstance(refresh, float) and refresh < REFRESH_MIN_S:
        where = item_at(item_at(item, "waiting_page"), "refresh")
        reader.found(where, f"{path}.waiting_page.refresh", f"at least {REFRESH_MIN_S:g}s")
    if page and page is not UNREADABLE and page.get("output") is True and not program_key(item, values):
        where = item_at(item_at(item, "waiting_page"), "output")
        reader.advise(where, f"{path}.waiting_page.output", _NO_OUTPUT)
    _check_activity(reader, item, values, path)
    progress = values.get("progress")
    interval = progress.get("interval") if progress and progress is not UNREADABLE else None
    if isinstance(interval, float) and interval < COMMENTS_MIN_S:
        where = item_at(item_at(item, "progress"), "interval")
        reader.found(where, f"{path}.progress.interval", f"at least {COMMENTS_MIN_S:g}s")
    fallback = values.get("fallback")
    if fallback is None or fallback is UNREADABLE:
        return
    if sum(bool(fallback.get(key)) for key in ("file", "redirect", "revision")) != 1:
        advice = "one of `file`, `redirect` and `revision` is required"
        reader.advise(item_at(item, "fallback"), f"{path}.fallback", advice)
    if fallback.get("while_starting") is True and not fallback.get("revision"):
        where = item_at(item_at(item, "fallback"), "while_starting")
        reader.advise(where, f"{path}.fallback.while_starting", "it has no effect without `revision`")
    redirect = fallback.get("redirect")
    if redirect and redirect is not UNREADABLE and not _is_target(redirect):
        where = item_at(item_at(item, "fallback"), "redirect")
        reader.found(where, f"{path}.fallback.redirect", "an address such as https://status.example.com/, or /path")


def _check_activity(reader: Reader, item: Item, values: Values, path: str) -> None:
    activity = values.get("activity")
    if not activity or activity is UNREADABLE:
        return
    found = item_at(item, "activity")
    for key in ("websocket", "stream"):
        if activity.get(key, COUNTS_OPEN) not in (*COUNTS, UNREADABLE):
            reader.found(item_at(found, key), f"{path}.activity.{key}", "open or traffic")
    quiet = activity.get("quiet_after")
    if isinstance(quiet, float) and quiet < LOOKS_MIN_S:
        reader.found(item_at(found, "quiet_after"), f"{path}.activity.quiet_after", f"at least {LOOKS_MIN_S:g}s")
    busy = activity.get("busy")
    if not busy or busy is UNREADABLE:
        return
    busy_item = item_at(found, "busy")
    if not program_key(item, values):
        advice = "only a revision with `process` or `container` has a program to ask"
        reader.advise(busy_item, f"{path}.activity.busy", advice)
    target = busy.get("http_get")
    if isinstance(target, str) and not (target.startswith("/") and target.isascii() and _is_target(target)):
        reader.found(item_at(busy_item, "http_get"), f"{path}.activity.busy.http_get", "a path such as /api/status")
    interval = busy.get("interval")
    if isinstance(interval, float) and interval < LOOKS_MIN_S:
        reader.found(item_at(busy_item, "interval"), f"{path}.activity.busy.interval", f"at least {LOOKS_MIN_S:g}s")


def check_fallbacks(reader: Reader, root: Item, values: Values) -> None:
    """Check the fallbacks of all revisions: each named one exists, and none leads back to itself."""
    keys: dict[str, int] = {}
    for place, revision in enumerate(values.get("revisions", [])):
        if revision is not UNREADABLE and isinstance(revision.get("name"), str):
            keys.setdefault(f"{revision.get('namespace', 'default')}/{revision['name']}", place)
    following: dict[str, str] = {}
    for key, place in keys.items():
        fallback = values["revisions"][place].get("fallback")
        named = fallback.get("revision") if isinstance(fallback, dict) else None
        if not isinstance(named, str) or not named:
            continue
        path = f"revisions[{place}].fallback.revision"
        revision_item = element_at(item_at(root, "revisions"), place)
        where = item_at(item_at(revision_item, "fallback"), "revision")
        target = key_of(named)
        if target not in keys:
            reader.advise(where, path, f'there is no revision "{named}" in this file')
            continue
        following[key] = target
        circle = _circle(key, following)
        if circle:
            del following[key]
            reader.advise(where, path, f"a circle: {' -> '.join(one.removeprefix('default/') for one in circle)}")


def _circle(key: str, following: dict[str, str]) -> list[str]:
    """Return the path from a revision back to itself; empty if it ends elsewhere."""
    passed = [key]
    while (key := following.get(key, "")) and key not in passed:
        passed.append(key)
    return [*passed, key] if key == passed[0] else []


def key_of(name: str) -> str:
    """Return the namespace/name of a revision given by name or namespace/name."""
    return name if "/" in name else f"default/{name}"


def _is_target(text: str) -> bool:
    """True if it can be used in Location as it is."""
    if not (text.isascii() and text.isprintable()) or " " in text:
        return False
    parts = urlsplit(text)
    return (parts.scheme in {"http", "https"} and bool(parts.netloc)) or (text.startswith("/") and not parts.netloc)


def text_of(file: str) -> str:
    """Return the text of a page. Raises ConfigError."""
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(PAGE_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text"]) from error
    if len(data) > PAGE_BYTES_MAX:
        raise ConfigError([f"{file}: is larger than {PAGE_BYTES_MAX // KIB} KiB"])
    return text
