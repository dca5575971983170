"""Corrections of unknown keys and malformed values, if the intention is clear."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from typing import Final

import yaml

from activator.config.forms import Choice, Form, Group, Key, Many, Mapping, Scalar
from activator.config.model.kinds import Duration, Secret, Size
from activator.config.tree import Item

LINE_MAX: Final = 200  # longest text that is shown again as a list
# Units that people write, and the ones of the file.
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", re.ASCII)
_COMPOUND: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_DURATION_WORDS: Final = {
    word: unit
    for unit, words in {
        "ms": "ms msec millis millisecond milliseconds",
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
    }.items()
    for word in words.split()
}
_SIZE_WORDS: Final = {
    word: unit
    for unit, words in {
        "KiB": "k kb ki kib kilobytes",
        "MiB": "m mb mi mib megabytes",
        "GiB": "g gb gi gib gigabytes",
        "B": "b byte bytes",
    }.items()
    for word in words.split()
}
# The file's keys, by the words that other programs have for them.
_OTHER_WORDS: Final = {
    word: key
    for key, words in {
        "command": "cmd exec args",
        "container_concurrency": "concurrency max_concurrency max_in_flight parallel",
        "directory": "cwd workdir working_dir working_directory chdir",
        "environment": "env envs env_vars variables",
        "hosts": "host domain domains hostname hostnames server_name",
        "idle": "idle_timeout ttl keep_alive sleep_after",
        "listen": "bind address",
        "max_scale": "replicas max_replicas instances",
        "pods": "backend backends servers upstream upstreams endpoints",
    }.items()
    for word in words.split()
}
_ABBREVIATION_MIN: Final = 3  # least length of an abbreviated key that is recognized


_SECTIONS_MAX: Final = 3  # sections that are named for a key that all of them have


def known_key(name: str, group: Group, entries: dict[str, Item]) -> str:
    """Return the keys that a user may have meant by an unknown one of `group`, for "expected ..."."""
    keys = group.keys
    meant = _OTHER_WORDS.get(name, name)
    completed = [key for key in sorted(keys) if len(name) >= _ABBREVIATION_MIN and key.startswith(name)]
    if completed or meant in keys:
        return " or ".join(f'"{key}"' for key in completed or [meant])
    sections = [key for key in keys.values() if key.group is not None and meant in key.group.keys]
    present = [key for key in sections if key.name in entries]
    if present:
        return f'"{meant}" {_below(present[0])}'
    if 0 < len(sections) <= _SECTIONS_MAX:
        return f'"{meant}" in ' + " or ".join(f'"{key.name}"' for key in sections)
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
    return f'"{near[0]}"' if near else "one of " + ", ".join(sorted(keys))


def _below(section: Key) -> str:
    return f'indented below "{section.name}"' + (', after "- "' if section.is_list else "")


def corrected(item: Item, form: Form, is_secret: bool) -> str:
    """Return how to write a value that a person understands and the file does not; else empty.

    With `is_secret` it shows nothing of the value. Values of variables are never shown.
    """
    match form:
        case Many() if item.entries is not None:
            return _begun_with_dashes(item, form)
        case Many():
            return "" if is_secret else _as_list(item)
        case Mapping():
            return _as_mapping(item, form)
        case Group():
            return ", with `command: [PROGRAM, ARGUMENT]`" if item.text and "command" in form.keys else ""
        case Choice():
            return next(filter(None, (corrected(item, one, is_secret) for one in form.forms)), "")
    return "" if is_secret else _amount(item, form)


def placeholder(item: Item) -> str:
    """Return the placeholder that a user meant by a mapping with one empty entry, such as {port}; else empty."""
    entries = item.entries or {}
    names = [
        key for key, child in entries.items() if child.text is None and child.entries is None and child.elements is None
    ]
    return f"{{{names[0]}}}" if len(entries) == 1 and names else ""


def holds_secret(form: Form) -> bool:
    """Return True if a text in the place of the value may be a secret."""
    match form:
        case Choice():
            return any(map(holds_secret, form.forms))
        case Mapping() | Many():
            return holds_secret(form.of)
        case Group():
            return any(holds_secret(key.form) for key in form.keys.values() if not isinstance(key.form, Group))
    return isinstance(form, Scalar) and form.cls is Secret


def _as_list(item: Item) -> str:
    """Return the list that a user meant by a line of words."""
    if not item.text or len(item.text) > LINE_MAX:
        return ""
    try:
        words = shlex.split(item.text)
    except ValueError:  # unclosed quotes
        words = item.text.split()
    shown = yaml.safe_dump(words, default_flow_style=True, width=math.inf, allow_unicode=True).strip()
    return f": {shown}"


def _begun_with_dashes(item: Item, form: Many) -> str:
    """Return how to begin the elements of a list that was written as a mapping."""
    name = placeholder(item)
    if name:
        return f': [PROGRAM, "{name}"]'
    if not isinstance(form.of, Group):
        return ""
    names = list(item.entries or {})
    if names and names[0] in form.of.keys:
        return f': write "- {names[0]}: ..." in place of "{names[0]}: ..."'
    if names and "name" in form.of.keys:
        return f': write "- name: {names[0]}" in place of "{names[0]}:"'
    return ""


def _as_mapping(item: Item, form: Mapping) -> str:
    """Return how to write names and values that are a list, or a text."""
    if item.text is not None:
        return ", with `NAME: VALUE` in each line" if _ASSIGNMENT.match(item.text) else ""
    first = item.elements[0] if item.elements else None
    if first is None:
        return ""
    if first.text is not None and _ASSIGNMENT.match(first.text):
        name = first.text.partition("=")[0]
        return f", with `{name}: VALUE` in place of `- {name}=VALUE`"
    entries = first.entries or {}
    named = entries.get("name")
    if named is not None and named.text:
        value = " VALUE" if isinstance(form.of, Scalar) else ""
        return f", with `{named.text}:{value}` in place of `- name: {named.text}`"
    if len(entries) == 1:
        name = next(iter(entries))
        return f", with `{name}: VALUE` in place of `- {name}: VALUE`"
    return ""


def _amount(item: Item, form: Form) -> str:
    """Return how to write a duration or a size in the units of the file; empty if it is neither."""
    if not isinstance(form, Scalar) or form.cls not in (Duration, Size) or item.text is None:
        return ""
    text = item.text.strip()
    match = _AMOUNT.fullmatch(text)
    units = _DURATION_WORDS if form.cls is Duration else _SIZE_WORDS
    unit = None if match is None else units.get(match[2].lower())
    suggested = "" if match is None or unit is None else f"{match[1]}{unit}"
    parts = _COMPOUND.fullmatch(text) if form.cls is Duration and len(text) <= LINE_MAX else None
    if not suggested and parts is not None and any(parts.groups()):
        hours, minutes, seconds = (int(one or 0) for one in parts.groups())
        total_s = (hours * 60 + minutes) * 60 + seconds
        suggested = f"{total_s}s" if total_s % 60 else f"{total_s // 60}m"
    return f": write {suggested}" if suggested and form.parse(suggested) is not None else ""
