"""Checks of a revision's `queue` beyond the types of its values: keys for each discipline, and rules."""

from __future__ import annotations

from typing import Final

from activator.config.edge_checks import item_at
from activator.config.model.queueing import ADMISSIONS, DISCIPLINES, Queue
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item

FAIR_WEIGHTS_MAX: Final = 512  # configured weights of one revision
QUEUE_RULES_MAX: Final = 32  # per revision: each request may be compared with all of them

# Keys that only some disciplines use: a key that would be ignored is a mistake.
_ONLY_WITH: Final = {"ageing": ("priority",), "default": ("priority",), "weights": ("fair",), "header": DISCIPLINES[1:]}
_DEFAULTS: Final = Queue()


def check_queue(reader: Reader, item: Item, values: Values, path: str) -> None:
    """Check the key `queue`, which is at `path`."""
    discipline = values.get("discipline", "fifo")
    if discipline not in DISCIPLINES:
        reader.found(item_at(item, "discipline"), f"{path}.discipline", "one of " + ", ".join(DISCIPLINES))
        return
    for key, users in _ONLY_WITH.items():
        if values.get(key, getattr(_DEFAULTS, key)) != getattr(_DEFAULTS, key) and discipline not in users:
            needed = " or ".join(f"`discipline: {user}`" for user in users)
            reader.advise(item_at(item, key), f"{path}.{key}", f"`{key}` requires {needed}, and it is {discipline}")
    _check_header(reader, item, values, path, discipline)
    if values.get("ageing", 1) <= 0:
        reader.found(item_at(item, "ageing"), f"{path}.ageing", "more than 0, so that the lowest level is served, too")
    if len(values.get("weights", {})) > FAIR_WEIGHTS_MAX:
        reader.found(
            item_at(item, "weights"), f"{path}.weights", f"at most {FAIR_WEIGHTS_MAX} keys", f"{len(values['weights'])}"
        )
    if values.get("admission", "off") not in ADMISSIONS:
        reader.found(item_at(item, "admission"), f"{path}.admission", "one of " + ", ".join(ADMISSIONS))
    if values.get("request_timeout_max") is not None and not values.get("request_timeout", False):
        place = item_at(item, "request_timeout_max")
        reader.advise(place, f"{path}.request_timeout_max", "`request_timeout_max` requires `request_timeout: true`")
    _check_rules(reader, item, values, path, discipline)


def _check_header(reader: Reader, item: Item, values: Values, path: str, discipline: str) -> None:
    header = values.get("header", "")
    if discipline == "fifo":
        return
    if not header and (not item.entries or "header" not in item.entries or "header" in values):
        what = "level" if discipline == "priority" else "key"
        advice = f"`discipline: {discipline}` requires `header`, the request header with the {what}"
        reader.advise(item, f"{path}.header", advice)
    elif header and TOKEN.fullmatch(header) is None:
        reader.found(item_at(item, "header"), f"{path}.header", "the name of a request header")


def _check_rules(reader: Reader, item: Item, values: Values, path: str, discipline: str) -> None:
    rules = values.get("rules", [])
    rules_item = item_at(item, "rules")
    if len(rules) > QUEUE_RULES_MAX:
        reader.found(rules_item, f"{path}.rules", f"at most {QUEUE_RULES_MAX}", str(len(rules)))
    for place, rule in enumerate(rules):
        if rule is not UNREADABLE and rules_item.elements is not None:
            _check_rule(reader, rules_item.elements[place], rule, f"{path}.rules[{place}]", discipline)


def _check_rule(reader: Reader, item: Item, rule: Values, path: str, discipline: str) -> None:
    prefix = rule.get("path_prefix", "/")
    if not prefix.startswith("/") or "?" in prefix or not prefix.isascii():
        reader.found(item_at(item, "path_prefix"), f"{path}.path_prefix", "the ASCII beginning of a path, from / on")
    for method in rule.get("methods", []):
        if method is not UNREADABLE and (TOKEN.fullmatch(method) is None or method != method.upper()):
            reader.found(
                item_at(item, "methods"), f"{path}.methods", "methods in capital letters such as GET", f'"{method}"'
            )
    if "charge" in rule and (rule.get("exempt", False) or discipline != "fair"):
        advice = f"`charge` requires `discipline: fair`, and it is {discipline}"
        if rule.get("exempt", False):
            advice = "`charge` has no effect with `exempt: true`: remove one of the two"
        reader.advise(item_at(item, "charge"), f"{path}.charge", advice)
    entries = item.entries or {}
    if "charge" not in entries and "exempt" not in entries and not rule.get("exempt", False):
        reader.advise(item, path, "a rule requires `exempt: true` or `charge`")
