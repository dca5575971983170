"""Checks of routing beyond the types of values: the form of rules, and revisions that could never be reached.

Part of `checks.py`, with its rules. A revision is a mistake if an earlier one takes all its requests: it would be
ignored. Several rules that take them only together are detected if they differ in methods or models.
"""

from __future__ import annotations

import re
from typing import Final

from activator.config.edge_checks import check_each, is_method
from activator.config.key_path import KeyPath
from activator.config.model.revision import Revision
from activator.config.model.routing import Match
from activator.config.policy_checks import check_key_source
from activator.config.reader import TOKEN
from activator.runtime.units import KIB
from activator.runtime.url_path import normal_prefix

MODELS_MAX: Final = 256  # names per revision
MODEL_LENGTH_MAX: Final = 256
MATCH_HEADERS_MAX: Final = 16  # per revision
PARAMS_MAX: Final = 64  # per revision, in each of `set_params` and `strip_params`
PARAM_LENGTH_MAX: Final = 256
SET_PARAMS_BYTES_MAX: Final = 16 * KIB  # per revision, as JSON

_NOT_IN_PATH: Final = re.compile(r"[?#;\\\s]|%2f|%5c|%00", re.IGNORECASE)
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_Split = tuple[object, ...]


class Rule:
    """The routing rule of one revision."""

    def __init__(self, at: KeyPath, revision: Revision) -> None:
        match = revision.match or Match()
        self.at = at
        self.path = str(at)
        self.is_model = self.path.startswith("models.")
        self.weight = revision.weight
        self.split_on = revision.split_on
        self.is_default = revision.default
        self.prefix = normal_prefix(match.path).decode()
        self.methods = frozenset(match.methods)
        self.headers = frozenset((name.lower(), value) for name, value in match.headers.items())
        models = [] if match.json is None else match.json.model
        self.models = [*models, *revision.aliases]
        self.count = len(models)  # the other names are aliases
        self.hosts = 0  # the hosts at which its requests have been compared with those of others
        self.takers: dict[int, list[Rule]] = {}  # the rules that take the requests of a name, by its index in `models`
        # Rules with the same key split their requests by weight.
        self.group: _Split = (self.prefix, self.methods, self.headers, frozenset(models), frozenset(revision.aliases))

    def name_at(self, index: int) -> KeyPath:
        """Return the key of one of `models`."""
        if index < self.count:
            return self.at["match"]["json"]["model"][index]
        return self.at["aliases"][index - self.count]

    def is_every(self) -> bool:
        """Return True if the rule matches every request."""
        return not (self.prefix or self.methods or self.headers or self.models)

    def shares_with(self, other: Rule) -> bool:
        """Return True if the two split their requests."""
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
            taker = self._taker_of(rule, model)
            if taker is None:
                return None
        return taker

    def note_takers(self, rule: Rule) -> None:
        """Note the rules that take the requests for some aliases of `rule`, or for a model's own name."""
        rule.hosts += 1
        if any(rule.shares_with(other) for other in self.rules):
            return
        for index, model in enumerate(rule.models):
            if index < rule.count and not rule.is_model:
                continue
            taker = self._taker_of(rule, model)
            if taker is not None:
                rule.takers.setdefault(index, []).append(taker)

    def _taker_of(self, rule: Rule, model: str) -> Rule | None:
        """Return the rule that takes all requests of `rule` for this model, or the last of several that do."""
        taker = None
        for method in rule.methods or [""]:
            taker = self._taker(rule, model, method)
            if taker is None:
                return None
        return taker

    def _taker(self, rule: Rule, model: str, method: str) -> Rule | None:
        for prefix in _with_parents(rule.prefix):
            for name in _names_for(model):
                for other in self._by_model.get((prefix, name), []):
                    covers = (not other.methods or method in other.methods) and other.headers <= rule.headers
                    if covers:
                        return other
        return None


class RoutingChecker:
    """The checks of all revisions, in the order of the file."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._rules: dict[int, Rule] = {}  # by their identity, in the order of the file

    def check_revision(self, at: KeyPath, revision: Revision) -> Rule:
        """Check a revision by itself."""
        match, aliases = revision.match, revision.aliases
        if match is not None:
            _check_match(at["match"], match, has_aliases=bool(aliases))
        if "hosts" not in at:
            for key in ("match", "default", "weight"):
                if getattr(revision, key) and at[key].item.entries != {}:
                    at[key].advise(f"`{key}` requires `hosts`")
        _check_models(at["aliases"], aliases, allows_star=False)
        if aliases and (match is None or match.json is None) and "json" not in at["match"]:
            advice = "`aliases` are other names of models: they require `match.json.model`"
            at["aliases"].advise(advice, beside=(at["match"],))
        if revision.rewrite_model and not aliases:
            at["rewrite_model"].advise("`rewrite_model` requires `aliases`", beside=(at["aliases"],))
        _check_params(at, revision)
        if revision.split_on is not None:
            if revision.weight is None:
                at["split_on"].advise("`split_on` requires `weight`", beside=(at["weight"],))
            check_key_source(at["split_on"], revision.split_on, "split_on")
        return Rule(at, revision)

    def claim(self, host: str, text: str, at: KeyPath, rule: Rule) -> None:
        """Add a host of the revision; `text` is its spelling in the file."""
        host_rules = self._hosts.setdefault(host, _Host())
        if rule in host_rules.rules or rule is host_rules.default:
            at.advise(f'"{text}" leads to {rule.path} already: use each host once')
            return
        if rule.is_default:
            if host_rules.default is not None and not rule.shares_with(host_rules.default):
                advice = f'"{text}" has a default already, {host_rules.default.path}: use `default` once for each host'
                at.advise(advice)
            host_rules.default = host_rules.default or rule
            if rule.is_every():
                return
        taker = host_rules.taken_by(rule)
        if taker is not None:
            at.advise(_advice_on_unreachable(text, rule, taker))
        else:
            host_rules.note_takers(rule)
            self._rules[id(rule)] = rule
        host_rules.add(rule)

    def finish(self) -> None:
        """Report the mistakes that only all revisions together show."""
        for rule in self._rules.values():
            for index, takers in rule.takers.items():
                if len(takers) == rule.hosts:
                    taken = f'{takers[0].path} takes the requests for "{rule.models[index]}"'
                    rule.name_at(index).advise(f"{taken}: remove one of the two names")
        seen: set[int] = set()
        for host, host_rules in self._hosts.items():
            groups: dict[_Split, list[Rule]] = {}
            for rule in host_rules.rules:
                groups.setdefault(rule.group, []).append(rule)
            taker = next((rule for rule in host_rules.rules if rule.is_every()), None)
            default = host_rules.default
            if default is not None and default.is_every() and taker is not None:
                advice = f'{taker.path} takes every request for "{host}": this default can never match'
                default.at["default"].advise(advice)
            for group in groups.values():
                weighted = [rule for rule in group if rule.weight is not None]
                if len(group) == 1 or len(weighted) > 1:  # else a missing weight has been reported
                    _check_group(weighted, seen)


def _check_match(at: KeyPath, match: Match, has_aliases: bool) -> None:
    if match.path and not _is_prefix(match.path):
        at["path"].found("the beginning of a path, such as /v1, without `.`, `..` and empty segments, ? # ; \\ and %2F")
    if match.strip_path and not match.path.strip("/"):
        at["strip_path"].advise("`strip_path` requires `path`, which is left out", beside=(at["path"],))
    check_each(at["methods"], match.methods, is_method, "a method in capital letters such as GET")
    _check_headers(at["headers"], match.headers)
    if match.json is not None:
        entry_at = at["json"]["model"]
        _check_models(entry_at, match.json.model, allows_star=True)
        if not match.json.model and not has_aliases:
            entry_at.found("at least one name", "an empty list")


def _check_headers(at: KeyPath, headers: dict[str, str]) -> None:
    if len(headers) > MATCH_HEADERS_MAX:
        at.found(f"at most {MATCH_HEADERS_MAX} headers", str(len(headers)))
    if len({name.lower() for name in headers}) < len(headers):
        at.found("each header once", "one in two spellings")
    for name, value in headers.items():
        if TOKEN.fullmatch(name) is None or name.lower() == "host":
            at.found("the name of a request header (for Host there is `hosts`)", f'"{name}"', at[name].where)
        elif _VALUE.fullmatch(value) is None:
            at[name].found("a value of printable ASCII characters")


def _check_models(at: KeyPath, names: list[str], allows_star: bool) -> None:
    if len(names) > MODELS_MAX:
        at.found(f"at most {MODELS_MAX} names", str(len(names)))
    for entry_at, name in at.each(names):
        stem = name.removesuffix("*") if allows_star else name
        if not name or "*" in stem or len(name) > MODEL_LENGTH_MAX:
            expected = f"the name of a model, at most {MODEL_LENGTH_MAX} characters"
            entry_at.found(expected + (", perhaps with * at its end" if allows_star else ", without *"))


def _check_group(rules: list[Rule], seen: set[int]) -> None:
    """Check revisions that split their requests by weight."""
    if not rules or id(rules[0]) in seen:
        return
    seen.update(id(rule) for rule in rules)
    first = rules[0]
    if len(rules) == 1:
        first.at["weight"].advise(
            "`weight` requires another revision with `weight` and the same `hosts`, `match` and `aliases`"
        )
    elif sum(rule.weight or 0 for rule in rules) == 0:
        first.at["weight"].found("a weight above 0 in one of the revisions that share")
    sources = [rule for rule in rules if rule.split_on is not None]
    for rule in sources[1:]:
        if rule.split_on != sources[0].split_on:
            advice = f"`split_on` differs from that of {sources[0].path}, with which it shares its requests"
            rule.at["split_on"].advise(advice)


def _is_prefix(text: str) -> bool:
    if not text.startswith("/") or _NOT_IN_PATH.search(text) is not None:
        return False
    inner = normal_prefix(text).decode()
    segments = text.strip("/").split("/") if text.strip("/") else []
    return not any(segment in {"", ".", ".."} for segment in segments) and inner.count("/") == len(segments)


def _with_parents(prefix: str) -> list[str]:
    """Return the prefix, then each shorter one in whole segments; the last is empty."""
    prefixes = [prefix]
    while prefix:
        prefix = prefix.rpartition("/")[0]
        prefixes.append(prefix)
    return prefixes


def _names_for(model: str) -> list[str]:
    """Return the names of rules that would take this model; the empty name stands for a rule without models."""
    if not model:
        return [""]
    stem = model.removesuffix("*")
    return ["", model, *(f"{stem[:length]}*" for length in range(len(stem) + 1))]


def _advice_on_unreachable(text: str, rule: Rule, taker: Rule) -> str:
    """Return the advice for a rule whose requests at the host `text` all go to `taker`."""
    if rule.group == taker.group:
        correction = "set `weight` in both to share them" if not rule.is_every() else "set `match`, or `weight` in both"
        return f'"{text}" leads to {taker.path} already, which takes the same requests: {correction}'
    correction = "put this one before it"
    if taker.is_every():
        # The revisions of models come after all others.
        correction = f"{'' if rule.is_model else correction + ', or '}set `default: true` in {taker.path}"
    elif rule.is_model:
        correction = "use each name of a model once"
    noun = "model" if rule.is_model else "revision"
    return f'{taker.path} takes all requests for "{text}" that this {noun} matches: {correction}'


def _check_params(at: KeyPath, revision: Revision) -> None:
    added, removed = revision.set_params, revision.strip_params
    for key, names in (("set_params", list(added)), ("strip_params", removed)):
        if len(names) > PARAMS_MAX:
            at[key].found(f"at most {PARAMS_MAX} names", str(len(names)))
        if "model" in names:
            at[key].advise("requests are routed by `model`: see `aliases` and `rewrite_model`")
        wrong = next((name for name in names if not 0 < len(name) <= PARAM_LENGTH_MAX), None)
        if wrong is not None:
            at[key].found(f"names of 1 to {PARAM_LENGTH_MAX} characters", f"one of {len(wrong)}")
    size = sum(len(value) for value in added.values())
    if size > SET_PARAMS_BYTES_MAX:
        at["set_params"].found(f"values of at most {SET_PARAMS_BYTES_MAX} bytes in JSON", f"{size} bytes")
