"""Checks of routing beyond the types of values: the form of rules, and revisions that could never be reached.

Part of `checks.py`, with its rules. A revision is a mistake if an earlier one takes all its requests: it would be
ignored. Several rules that take them only together are detected if they differ in methods or models.
"""

from __future__ import annotations

import re
from typing import Any, Final

from activator.config.edge_checks import element_at, item_at
from activator.config.policy_checks import check_key_source
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item
from activator.runtime.url_path import normal_prefix

MODELS_MAX: Final = 256  # names per revision
MODEL_LENGTH_MAX: Final = 256
MATCH_HEADERS_MAX: Final = 16  # per revision

_NOT_IN_PATH: Final = re.compile(r"[?#;\\\s]|%2f|%5c|%00", re.IGNORECASE)
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_Group = tuple[object, ...]


class Rule:
    """The routing rule of one revision."""

    def __init__(self, item: Item, values: Values, path: str) -> None:
        match = values.get("match") or {}
        self.item = item
        self.path = path
        self.weight: int | None = values.get("weight")
        self.split_on = values.get("split_on")
        self.is_default: bool = values.get("default", False)
        self.prefix = normal_prefix(match.get("path", "")).decode()
        self.methods = frozenset(_readable(match.get("methods", [])))
        self.headers = frozenset(
            (name.lower(), value) for name, value in match.get("headers", {}).items() if value is not UNREADABLE
        )
        models = _readable((match.get("json") or {}).get("model", []))
        aliases = _readable(values.get("aliases", []))
        self.models = [*models, *aliases]
        self.group: _Group = (self.prefix, self.methods, self.headers, frozenset(models), frozenset(aliases))

    def is_every(self) -> bool:
        return not (self.prefix or self.methods or self.headers or self.models)

    def shares_with(self, other: Rule) -> bool:
        """True if the two split their requests."""
        return self.group == other.group and self.weight is not None and other.weight is not None


class _Host:
    """The rules of one host so far, by path prefix and model."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.default: Rule | None = None
        self._by_model: dict[tuple[str, str], list[Rule]] = {}

    def add(self, rule: Rule) -> None:
        self.rules.append(rule)
        for model in rule.models or [""]:
            self._by_model.setdefault((rule.prefix, model), []).append(rule)

    def taken_by(self, rule: Rule) -> Rule | None:
        """Return the rule that takes all requests of `rule`, or the last of several that do; None if some are left."""
        if any(rule.shares_with(other) for other in self.rules):
            return None  # it shares the requests of the first of them
        taker = None
        for model in rule.models or [""]:
            for method in rule.methods or [""]:
                taker = self._taker(rule, model, method)
                if taker is None:
                    return None
        return taker

    def _taker(self, rule: Rule, model: str, method: str) -> Rule | None:
        for prefix in _with_parents(rule.prefix):
            for name in _names_for(model):
                for other in self._by_model.get((prefix, name), []):
                    is_met = (not other.methods or method in other.methods) and other.headers <= rule.headers
                    if is_met:
                        return other
        return None


class RoutingChecker:
    """The checks of all revisions, in the order of the file."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._hosts: dict[str, _Host] = {}

    def check_revision(self, item: Item, values: Values, path: str) -> Rule:
        """Check a revision by itself."""
        match = values.get("match")
        if match is not None and match is not UNREADABLE:
            self._check_match(item_at(item, "match"), match, f"{path}.match")
        if not values.get("hosts") and "hosts" not in (item.entries or {}):
            self._requires_hosts(item, values, path)
        aliases = values.get("aliases", [])
        self._check_models(item_at(item, "aliases"), aliases, f"{path}.aliases", False)
        json = (match or {}).get("json")
        if aliases and json is None and "json" not in (item_at(item, "match").entries or {}):
            advice = "`aliases` are other names of models: they require `match.json.model`"
            self._reader.advise(item_at(item, "aliases"), f"{path}.aliases", advice)
        if values.get("rewrite_model", "") and not aliases:
            place = item_at(item, "rewrite_model")
            self._reader.advise(place, f"{path}.rewrite_model", "`rewrite_model` requires `aliases`")
        split_on = values.get("split_on")
        if split_on is not None and split_on is not UNREADABLE:
            place = item_at(item, "split_on")
            if values.get("weight") is None:
                self._reader.advise(place, f"{path}.split_on", "`split_on` requires `weight`")
            check_key_source(self._reader, place, split_on, f"{path}.split_on", "split_on")
        return Rule(item, values, path)

    def claim(self, host: str, text: str, item: Item, at: str, rule: Rule) -> None:
        """Add a host of the revision; `text` is its spelling in the file."""
        known = self._hosts.setdefault(host, _Host())
        if rule in known.rules or rule is known.default:
            self._reader.advise(item, at, f'"{text}" leads to {rule.path} already: use each host once')
            return
        if rule.is_default:
            if known.default is not None and not rule.shares_with(known.default):
                advice = f'"{text}" has a default already, {known.default.path}: use `default` once for each host'
                self._reader.advise(item, at, advice)
            known.default = known.default or rule
            if rule.is_every():
                return
        taker = known.taken_by(rule)
        if taker is not None:
            self._reader.advise(item, at, _never(text, rule, taker))
        known.add(rule)

    def finish(self) -> None:
        """Report the mistakes that only all revisions together show."""
        seen: set[int] = set()
        for host, known in self._hosts.items():
            groups: dict[_Group, list[Rule]] = {}
            for rule in known.rules:
                groups.setdefault(rule.group, []).append(rule)
            taker = next((rule for rule in known.rules if rule.is_every()), None)
            default = known.default
            if default is not None and default.is_every() and taker is not None:
                advice = f'{taker.path} takes every request for "{host}": this default can never match'
                self._reader.advise(item_at(default.item, "default"), f"{default.path}.default", advice)
            for group in groups.values():
                weighted = [rule for rule in group if rule.weight is not None]
                if len(group) == 1 or len(weighted) > 1:  # else a missing weight has been reported
                    self._check_group(weighted, seen)

    # --- within ---

    def _check_match(self, item: Item, match: Values, path: str) -> None:
        prefix = match.get("path", "")
        if prefix and not _is_prefix(prefix):
            expected = "the beginning of a path, such as /v1, without `.`, `..` and empty segments, ? # ; \\ and %2F"
            self._reader.found(item_at(item, "path"), f"{path}.path", expected)
        if match.get("strip_path", False) and not prefix.strip("/"):
            advice = "`strip_path` requires `path`, which is left out"
            self._reader.advise(item_at(item, "strip_path"), f"{path}.strip_path", advice)
        for place, method in enumerate(match.get("methods", [])):
            if method is not UNREADABLE and (TOKEN.fullmatch(method) is None or method != method.upper()):
                one = element_at(item_at(item, "methods"), place)
                self._reader.found(one, f"{path}.methods[{place}]", "a method in capital letters such as GET")
        self._check_headers(item_at(item, "headers"), match.get("headers", {}), f"{path}.headers")
        json = match.get("json")
        if json is not None and json is not UNREADABLE:
            place_of = item_at(item_at(item, "json"), "model")
            self._check_models(place_of, json.get("model", []), f"{path}.json.model", True)
            if "model" in json and not json["model"]:
                self._reader.found(place_of, f"{path}.json.model", "at least one name", "an empty list")

    def _check_headers(self, item: Item, headers: Values, path: str) -> None:
        if len(headers) > MATCH_HEADERS_MAX:
            self._reader.found(item, path, f"at most {MATCH_HEADERS_MAX} headers", str(len(headers)))
        if len({name.lower() for name in headers}) < len(headers):
            self._reader.found(item, path, "each header once", "one in two spellings")
        for name, value in headers.items():
            at = item_at(item, name)
            if TOKEN.fullmatch(name) is None or name.lower() == "host":
                self._reader.found(at, path, "the name of a request header (for Host there is `hosts`)", f'"{name}"')
            elif value is not UNREADABLE and _VALUE.fullmatch(value) is None:
                self._reader.found(at, f"{path}.{name}", "a value of printable ASCII characters")

    def _check_models(self, item: Item, names: list[Any], path: str, allows_star: bool) -> None:
        if len(names) > MODELS_MAX:
            self._reader.found(item, path, f"at most {MODELS_MAX} names", str(len(names)))
        for place, name in enumerate(names):
            if name is UNREADABLE:
                continue
            stem = name.removesuffix("*") if allows_star else name
            if not name or "*" in stem or len(name) > MODEL_LENGTH_MAX:
                expected = f"the name of a model, at most {MODEL_LENGTH_MAX} characters"
                expected += ", perhaps with * at its end" if allows_star else ", without *"
                self._reader.found(element_at(item, place), f"{path}[{place}]", expected)

    def _requires_hosts(self, item: Item, values: Values, path: str) -> None:
        for key in ("match", "default", "weight"):
            if values.get(key):
                self._reader.advise(item_at(item, key), f"{path}.{key}", f"`{key}` requires `hosts`")

    def _check_group(self, rules: list[Rule], seen: set[int]) -> None:
        """Check revisions that split their requests by weight."""
        if not rules or id(rules[0]) in seen:
            return
        seen.update(id(rule) for rule in rules)
        first = rules[0]
        weight = item_at(first.item, "weight")
        if len(rules) == 1:
            advice = "`weight` requires another revision with `weight` and the same `hosts`, `match` and `aliases`"
            self._reader.advise(weight, f"{first.path}.weight", advice)
        elif sum(rule.weight or 0 for rule in rules) == 0:
            self._reader.found(weight, f"{first.path}.weight", "a weight above 0 in one of the revisions that share")
        sources = [rule for rule in rules if rule.split_on is not None]
        for rule in sources[1:]:
            if rule.split_on != sources[0].split_on:
                advice = f"`split_on` differs from that of {sources[0].path}, with which it shares its requests"
                self._reader.advise(item_at(rule.item, "split_on"), f"{rule.path}.split_on", advice)


def _readable(texts: list[Any]) -> list[str]:
    return [text for text in texts if text is not UNREADABLE]


def _is_prefix(text: str) -> bool:
    if not text.startswith("/") or _NOT_IN_PATH.search(text) is not None:
        return False
    inner = normal_prefix(text).decode()
    segments = text.strip("/").split("/") if text.strip("/") else []
    return not any(one in {"", ".", ".."} for one in segments) and inner.count("/") == len(segments)


def _with_parents(prefix: str) -> list[str]:
    found = [prefix]
    while prefix:
        prefix = prefix.rpartition("/")[0]
        found.append(prefix)
    return found


def _names_for(model: str) -> list[str]:
    """Return the names of rules that would take this model; the empty name stands for a rule without models."""
    if not model:
        return [""]
    stem = model.removesuffix("*")
    return ["", model, *(f"{stem[:length]}*" for length in range(len(stem) + 1))]


def _never(text: str, rule: Rule, taker: Rule) -> str:
    if rule.group == taker.group:
        way = "set `weight` in both to share them" if not rule.is_every() else "set `match`, or `weight` in both"
        return f'"{text}" leads to {taker.path} already, which takes the same requests: {way}'
    return f'{taker.path} takes all requests for "{text}" that this revision matches: put this one before it'
