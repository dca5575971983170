"""Checks of `headers`, `fault` and `filters` beyond the types of their values.

Part of `checks.py`, with its rules. A filter that is not built in is imported and created once, as it will be for the
revision.
"""

from __future__ import annotations

import re
from typing import Final

from activator.config.edge_checks import element_at, item_at
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.specs import FILTER_ENTRY_POINTS
from activator.config.tree import Item
from activator.runtime.errors import StartError
from activator.runtime.plugins import PluginError, load_plugin
from activator.runtime.secret_text import read_secret, without_secrets

DELAY_MAX_S: Final = 600.0
FILTER_MODULE: Final = "activator.data_plane.filters.filter"  # the module of the base class, which is not imported here
# Fields that frame a message, or concern only one connection.
_OURS: Final = frozenset(
    ("connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
_VALUE: Final = re.compile(r"[^\x00\r\n]*")


def check_filters(reader: Reader, item: Item, values: Values, path: str) -> None:
    """Check the filters of one revision."""
    headers = values.get("headers")
    if headers and headers is not UNREADABLE:
        for side in ("request", "response"):
            rules = headers.get(side)
            if rules and rules is not UNREADABLE:
                _check_rules(reader, item_at(item_at(item, "headers"), side), rules, f"{path}.headers.{side}", side)
    fault = values.get("fault")
    if fault and fault is not UNREADABLE:
        _check_fault(reader, item_at(item, "fault"), fault, f"{path}.fault")
    for place, use in enumerate(values.get("filters") or []):
        if use is not UNREADABLE and UNREADABLE not in (use.get("name"), use.get("options")):
            _check_use(reader, element_at(item_at(item, "filters"), place), use, f"{path}.filters[{place}]")


def _check_rules(reader: Reader, item: Item, rules: Values, path: str, side: str) -> None:
    for key in ("remove", "set", "append"):
        named = rules.get(key)
        if not named or named is UNREADABLE:
            continue
        for place, name in enumerate(named):
            found = element_at(item_at(item, key), place) if key == "remove" else item_at(item_at(item, key), name)
            where = f"{path}.{key}[{place}]" if key == "remove" else f"{path}.{key}.{name}"
            if name is UNREADABLE:
                continue
            if TOKEN.fullmatch(name) is None:
                reader.advise(found, where, f"{name!r} is no name of a header field")
            elif name.lower() in _OURS:
                reader.advise(found, where, f"`{name}` belongs to one connection or frames the message: leave it out")
            elif name.lower() == "host" and (side, key) != ("request", "set"):
                reader.advise(found, where, "`Host` can only be set, and only in requests")
            elif key != "remove" and named[name] is not UNREADABLE and _VALUE.fullmatch(named[name]) is None:
                reader.found(found, where, "a value in one line")


def _check_fault(reader: Reader, item: Item, fault: Values, path: str) -> None:
    delay, status = fault.get("delay", 0.0), fault.get("status")
    if isinstance(delay, float) and delay > DELAY_MAX_S:
        reader.found(item_at(item, "delay"), f"{path}.delay", "at most 10m")
    if isinstance(status, int) and not 200 <= status <= 599:
        reader.found(item_at(item, "status"), f"{path}.status", "a status from 200 to 599")
    if not delay and status is None:
        reader.advise(item, path, "say what happens: `delay`, `status` or both")


def _check_use(reader: Reader, item: Item, use: Values, path: str) -> None:
    name = use.get("name", "")
    try:
        found = load_plugin(FILTER_ENTRY_POINTS, name, "filter")
    except PluginError as error:
        reader.advise(item_at(item, "name"), f"{path}.name", str(error))
        return
    bases = found.__mro__ if isinstance(found, type) else ()
    if not isinstance(found, type) or not any(one.__module__ == FILTER_MODULE for one in bases):
        reader.advise(item_at(item, "name"), f"{path}.name", f"{name} is no subclass of activator.filters.Filter")
        return
    try:
        options = {key: read_secret(text, f"option {key}") for key, text in (use.get("options") or {}).items()}
    except StartError as error:
        reader.advise(item_at(item, "options"), f"{path}.options", str(error))
        return
    try:
        found(options)
    except Exception as error:  # a class of a package may raise anything
        problem = without_secrets(f"{type(error).__name__}: {error}", options.values())
        reader.advise(item_at(item, "options"), f"{path}.options", problem)
