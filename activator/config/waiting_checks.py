"""Checks of `no_wake`, `waiting_page` and `fallback` beyond the types of values, and the files that they name.

Part of `checks.py`, with its rules. Only `text_of` reads files: it is called when the configuration is applied.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from activator.config.edge_checks import check_each, program_key
from activator.config.key_path import KeyPath
from activator.config.model.revision import Revision
from activator.config.model.waiting import COUNTS, Activity, Fallback
from activator.config.specs import key_of
from activator.runtime.errors import ConfigError
from activator.runtime.units import KIB

PAGE_BYTES_MAX: Final = 256 * KIB
# Bounds of intervals, so that pages, queries to programs, connection checks and comments do not become load.
REFRESH_MIN_S: Final = 0.5
CHECK_INTERVAL_MIN_S: Final = 1.0
COMMENTS_MIN_S: Final = 0.5
_STATUS: Final = re.compile(r"[45]([0-9]{2}|xx)")
_NO_OUTPUT: Final = "only a revision with `process` or `container` has output to show"


def check_waiting(at: KeyPath, revision: Revision) -> None:
    """Check the waiting settings of one revision."""
    for entry_at, rule in at["no_wake"].each(revision.no_wake):
        if not (rule.path or rule.methods or rule.user_agent):
            beside = (entry_at["path"], entry_at["methods"], entry_at["user_agent"])
            entry_at.advise("say which requests: path, methods or user_agent", beside=beside)
    page, progress, fallback = revision.waiting_page, revision.progress, revision.fallback
    if page is not None:
        _check_least(at["waiting_page"]["refresh"], page.refresh, REFRESH_MIN_S)
        if page.output and not program_key(at, revision):
            at["waiting_page"]["output"].advise(_NO_OUTPUT)
    _check_activity(at["activity"], revision.activity, bool(program_key(at, revision)))
    if progress is not None:
        _check_least(at["progress"]["interval"], progress.interval, COMMENTS_MIN_S)
    if fallback is not None:
        _check_fallback(at["fallback"], fallback)


def _check_least(at: KeyPath, seconds: float, least: float) -> None:
    if seconds < least:
        at.found(f"at least {least:g}s")


def _check_fallback(at: KeyPath, fallback: Fallback) -> None:
    alternatives = ("file", "redirect", "revision")
    if sum(bool(getattr(fallback, key)) for key in alternatives) != 1:
        at.advise("one of `file`, `redirect` and `revision` is required", beside=tuple(at[key] for key in alternatives))
    if fallback.while_starting and not fallback.revision:
        at["while_starting"].advise("it has no effect without `revision`", beside=(at["revision"],))
    if fallback.any_method and not (fallback.revision and fallback.statuses):
        at["any_method"].advise(
            "it has no effect without `revision` and `statuses`", beside=(at["revision"], at["statuses"])
        )
    check_each(at["statuses"], fallback.statuses, _is_status, "a status from 400 to 599, 4xx or 5xx")
    if fallback.redirect and not _is_target(fallback.redirect):
        at["redirect"].found("an address such as https://status.example.com/, or /path")


def _check_activity(at: KeyPath, activity: Activity, has_program: bool) -> None:
    for key in ("websocket", "stream"):
        if getattr(activity, key) not in COUNTS:
            at[key].found("open or traffic")
    _check_least(at["quiet_after"], activity.quiet_after, CHECK_INTERVAL_MIN_S)
    busy = activity.busy
    if busy is None:
        return
    if not has_program:
        at["busy"].advise("only a revision with `process` or `container` has a program to ask")
    target = busy.http_get
    if not (target.startswith("/") and target.isascii() and _is_target(target)):
        at["busy"]["http_get"].found("a path such as /api/status")
    _check_least(at["busy"]["interval"], busy.interval, CHECK_INTERVAL_MIN_S)


def check_fallbacks(root: KeyPath, revisions: list[Revision]) -> None:
    """Check the fallbacks of all revisions: each named one exists, and none leads back to itself."""
    known: dict[str, tuple[KeyPath, Revision]] = {}
    for entry_at, revision in root["revisions"].each(revisions):
        if not entry_at["name"].is_unread:
            known.setdefault(f"{revision.namespace}/{revision.name}", (entry_at, revision))
    fallbacks: dict[str, str] = {}
    for key, (entry_at, revision) in known.items():
        named = "" if revision.fallback is None else revision.fallback.revision
        if not named:
            continue
        at, target = entry_at["fallback"]["revision"], key_of(named)
        if target not in known:
            at.advise(f'there is no revision "{named}" in this file', beside=(root["revisions"],))
            continue
        fallbacks[key] = target
        loop = _loop(key, fallbacks)
        if loop:
            del fallbacks[key]
            at.advise(f"fallback loop: {' -> '.join(name.removeprefix('default/') for name in loop)}")


def _loop(key: str, fallbacks: dict[str, str]) -> list[str]:
    """Return the fallbacks from a revision back to itself; empty if they end elsewhere."""
    passed = [key]
    while (key := fallbacks.get(key, "")) and key not in passed:
        passed.append(key)
    return [*passed, key] if key == passed[0] else []


def _is_target(text: str) -> bool:
    """Return True if the text can be used in Location as it is."""
    if not (text.isascii() and text.isprintable()) or " " in text:
        return False
    parts = urlsplit(text)
    return (parts.scheme in {"http", "https"} and bool(parts.netloc)) or (text.startswith("/") and not parts.netloc)


def _is_status(text: str) -> bool:
    return _STATUS.fullmatch(text) is not None


def statuses_of(texts: list[str]) -> tuple[int, ...]:
    """Return the statuses that a checked list stands for."""
    statuses: set[int] = set()
    for text in texts:
        first = int(text[0]) * 100
        statuses.update(range(first, first + 100) if text.endswith("xx") else [int(text)])
    return tuple(sorted(statuses))


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
