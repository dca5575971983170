"""The conversion of a configuration of llama-swap into `models`, with comments on keys without a counterpart."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Final

from activator.config.model_entries import revision_names
from activator.config.tree import Item, read_tree
from activator.runtime.errors import ConfigError

_NEVER: Final = "24h"  # the idle time of a model that llama-swap keeps until another one needs its place
_MACRO_DEPTH_MAX: Final = 20
_COMMAND_BYTES_MAX: Final = 65_536
_MACRO: Final = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+-]*")
_PROXY: Final = re.compile(r"https?://([^/:]+|\[[^]]+\])(?::([^/]+))?(/.*)?")
_LOOPBACK: Final = ("", "localhost", "127.0.0.1", "[::1]", "0.0.0.0")

# Keys that are only shown, and settings that the activator chooses itself.
_SHOWN: Final = ("name", "description", "metadata", "context", "capabilities", "unlisted")
_NEEDLESS: Final = (
    "startPort", "logTimeFormat", "logToStdout", "metricsMaxInMemory", "performance", "ui", "includeAliasesInList",
)  # fmt: skip
# Keys without a counterpart, and their substitutes.
_OTHERS: Final = {
    "matrix": "give the group `models` a budget, and each model its `needs` (docs/groups.md)",
    "peers": "add a revision with `pods` and `match: {json: {model: [...]}}` for each peer",
    "profiles": "use `aliases`",
    "captureBuffer": "requests are not captured",
    "sendLoadingState": "see `progress` of a revision (docs/waiting.md)",
    "store": "there is no log of activity; see `access_log`",
    "filters": "parameters of requests are not changed: set them in the client, or as options of the program",
    "concurrencyLimit": "`container_concurrency` lets further requests wait, instead of refusing them",
    "timeouts": "see `timeouts` of a revision",
}
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}


def convert(text: str, name: str, environ: Mapping[str, str]) -> str:
    """Return the file of the activator for the file `name` of llama-swap. Raises ConfigError."""
    problems: list[str] = []
    root = read_tree(text, name, {}, problems)
    if root is None or problems:
        raise ConfigError(problems)
    models = (root.entries or {}).get("models")
    if models is None or not models.entries:
        raise ConfigError([f"{root.where}: found no `models`, expected a configuration of llama-swap"])
    return _Conversion(root, environ).text(name)


class _Conversion:
    """The conversion of one file."""

    def __init__(self, root: Item, environ: Mapping[str, str]) -> None:
        self._root = root
        self._models = _at(root, "models").entries or {}
        self._environ = environ
        self._macros = _texts(_at(self._root, "macros"))
        self._lines: list[str] = []
        self._own_groups: list[tuple[str, list[str]]] = []
        self._beside: dict[str, str] = {}  # models that are loaded beside others, and why a comment is needed
        self._names = self._names_of_models()

    def text(self, name: str) -> str:
        self._read_groups()
        host, _, port = _text(_at(self._root, "listen")).rpartition(":")
        self._add(0, f"# Made from {name} by `activator import llama-swap`. Check it: activator check FILE")
        address = f"{host or '0.0.0.0'}:{port}" if port else "127.0.0.1:8080"
        self._add(0, f"listen: {_scalar(address)}")
        level = _LEVELS.get(_text(_at(self._root, "logLevel")).lower(), "info")
        if level != "info":
            self._add(0, f"log: {{level: {level}}}")
        self._add_keys()
        known = {"models", "macros", "groups", "routing", "hooks", "apiKeys", "listen", "logLevel", *_NEEDLESS}
        known |= {"healthCheckTimeout", "globalTTL", "unloadTimeout"}
        for key in self._root.entries or {}:
            if key not in known:
                self._no_counterpart(0, key)
        self._add(0, "")
        self._add(0, "models:")
        for model, item in self._models.items():
            self._add_model(model, item)
        if self._own_groups:
            self._add(0, "")
            self._add(0, "groups:")
            own_names = revision_names(self._names.values())
            for group, members in self._own_groups:
                listed = ", ".join(_scalar(own_names[self._names[one]]) for one in members)
                self._add(1, f"- {{name: {_scalar(group)}, exclusive: true, members: [{listed}]}}")
        return "\n".join(self._lines) + "\n"

    # --- the parts ---

    def _add_keys(self) -> None:
        keys = _at(self._root, "apiKeys").elements or []
        if not keys:
            return
        self._add(0, "keys:")
        for number, item in enumerate(keys, 1):
            key = _text(item)
            variable = re.fullmatch(r"\$\{env\.([^}]+)\}", key)
            text = f"env:{variable[1]}" if variable else key
            self._add(1, f"- {{name: user{number}, key: {json.dumps(text)}}}")

    def _add_model(self, model: str, entry: Item) -> None:
        self._macros = {**_texts(_at(self._root, "macros")), **_texts(_at(entry, "macros")), "MODEL_ID": model}
        name = self._names[model]
        self._add(1, f"{_scalar(name)}:")
        given = entry.entries or {}
        shown = [key for key in _SHOWN if key in given]
        if shown:
            self._add(2, f"# not needed: {', '.join(shown)}")
        command, port = self._command_of(entry)
        self._add_command(command)
        if port:
            self._add(2, f"port: {port}")
        aliases = [_text(one) for one in _at(entry, "aliases").elements or []]
        aliases = list(dict.fromkeys(one for one in aliases if one not in (name, model)))
        if name != model:
            aliases.insert(0, model)
            self._add(2, f"rewrite_model: {_scalar(name)}")
        if aliases:
            self._add(2, f"aliases: [{', '.join(map(_scalar, aliases))}]")
        self._add_times(entry)
        self._add_readiness(entry)
        self._add_environment(entry)
        self._add_stop(entry)
        limit = _text(_at(entry, "concurrencyLimit"))
        if limit and limit != "0":
            self._no_counterpart(2, "concurrencyLimit")
            self._add(2, f"container_concurrency: {limit}")
        if model in self._preloaded():
            self._add(2, "preload: true")
        if model in self._beside:
            if self._beside[model]:
                self._add(2, f"# {self._beside[model]}")
            self._add(2, "exclusive: false")
        known = {"cmd", "cmdStop", "proxy", "aliases", "env", "checkEndpoint", "ttl", "useModelName", "macros"}
        known |= {"unloadTimeout", "concurrencyLimit", *_SHOWN}
        for key in given:
            if key not in known:
                self._no_counterpart(2, key)

    def _add_command(self, command: str) -> None:
        lines = [line.strip() for line in command.replace("\\\n", "\n").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if len(lines) == 1:
            self._add(2, f"command: {json.dumps(lines[0], ensure_ascii=False)}")
            return
        self._add(2, "command: |")
        for line in lines:
            self._add(3, line)

    def _add_times(self, entry: Item) -> None:
        ttl = _text(_at(entry, "ttl")) or _text(_at(self._root, "globalTTL"))
        if ttl and ttl not in ("0", "-1"):
            self._add(2, f"idle: {_scalar(ttl)}")
        else:
            self._add(2, f"idle: {_NEVER}  # llama-swap unloads it only for another model")
        startup = _text(_at(self._root, "healthCheckTimeout")) or "120"
        self._add(2, f"startup: {_scalar(startup)}")

    def _add_readiness(self, entry: Item) -> None:
        path = _text(_at(entry, "checkEndpoint"))
        if path == "none":
            self._add(2, "readiness: {}  # it is ready when its port accepts connections")
        elif path and path != "/health":
            self._add(2, f"readiness: {{http_get: {_scalar(path)}}}")

    def _add_environment(self, entry: Item) -> None:
        pairs = [self._expanded(_text(one)).partition("=") for one in _at(entry, "env").elements or []]
        if pairs:
            self._add(2, "environment:")
            for key, _, value in pairs:
                self._add(3, f"{_scalar(key)}: {json.dumps(value, ensure_ascii=False)}")

    def _add_stop(self, entry: Item) -> None:
        grace = _text(_at(entry, "unloadTimeout")) or _text(_at(self._root, "unloadTimeout"))
        parts = []
        command = self._expanded(_text(_at(entry, "cmdStop")))
        if "${PID}" in command:
            self._add(2, f"# cmdStop: {' '.join(command.split())}")
            self._add(2, "# has no counterpart: the program gets SIGTERM; see `stop.signal`")
        elif command:
            try:
                words = shlex.split(command)
            except ValueError:
                self._add(2, f"# cmdStop cannot be read: {' '.join(command.split())}")
            else:
                parts.append(f"command: [{', '.join(map(_scalar, words))}]")
        if grace and grace != "0":
            parts.append(f"grace: {_scalar(grace)}")
        if parts:
            self._add(2, f"stop: {{{', '.join(parts)}}}")

    def _command_of(self, entry: Item) -> tuple[str, str]:
        """Return the command, and the port of a program that has a fixed one; empty otherwise."""
        command = self._expanded(_text(_at(entry, "cmd")))
        proxy = self._expanded(_text(_at(entry, "proxy")))
        match = _PROXY.fullmatch(proxy)
        port = ""
        if match is not None:
            if match[1] not in _LOOPBACK:
                self._add(2, f"# proxy: {proxy}: a program must listen on 127.0.0.1")
            if match[3] not in (None, "/"):
                self._add(2, f"# proxy: {proxy}: the path {match[3]} has no counterpart")
            port = match[2] or ""
        if not port.isdecimal() or "{port}" in command:
            return command, ""
        found = re.compile(rf"(?<![\w.]){port}(?![\w.])")
        if found.search(command):
            return found.sub("{port}", command), ""  # a free port: two models may have had the same
        return command, port

    def _read_groups(self) -> None:
        groups = _at(self._root, "groups").entries or {}
        groups = groups or _at(self._root, "routing", "router", "settings", "groups").entries or {}
        for name, item in groups.items():
            swaps, excludes = (_text(_at(item, key)).lower() != "false" for key in ("swap", "exclusive"))
            members = [_text(one) for one in _at(item, "members").elements or []]
            members = [one for one in members if one in self._models]
            persistent = _text(_at(item, "persistent")).lower() == "true"
            if swaps and excludes:
                continue  # as all models: one at a time
            if not swaps and excludes:
                what = f"the group {name}: its models together, and no others: this needs a budget (docs/groups.md)"
                self._add(0, f"# {what}")
            elif swaps and len(members) > 1:
                self._own_groups.append((name, members))
            else:
                why = "" if persistent else "llama-swap unloads it for models of other groups"
                self._beside.update(dict.fromkeys(members, why))

    def _preloaded(self) -> set[str]:
        return {_text(one) for one in _at(self._root, "hooks", "on_startup", "preload").elements or []}

    def _names_of_models(self) -> dict[str, str]:
        """Return the name of each model for its program; by default, that of the model."""
        wanted = {model: _text(_at(item, "useModelName")) or model for model, item in self._models.items()}
        uses = list(wanted.values())
        return {model: name if uses.count(name) == 1 else model for model, name in wanted.items()}

    # --- texts ---

    def _expanded(self, text: str) -> str:
        """Return a text with its macros replaced; unknown ones stay."""
        for _ in range(_MACRO_DEPTH_MAX):
            expanded = _MACRO.sub(self._value_of, text)
            if expanded == text or len(expanded) > _COMMAND_BYTES_MAX:
                break
            text = expanded
        return text

    def _value_of(self, match: re.Match[str]) -> str:
        name = match[1]
        if name == "PORT":
            return "{port}"
        if name.startswith("env."):
            value = self._environ.get(name.removeprefix("env."))
            if value is None:
                self._warn(f"{name.removeprefix('env.')} is not set: replace {match[0]} below")
            return match[0] if value is None else value
        return self._macros.get(name, match[0])

    def _warn(self, text: str) -> None:
        if f"# {text}" not in (line.strip() for line in self._lines[-5:]):
            self._add(2, f"# {text}")

    def _no_counterpart(self, level: int, key: str) -> None:
        hint = _OTHERS.get(key, "")
        self._add(level, f"# {key} has no counterpart{': ' + hint if hint else ''}")

    def _add(self, level: int, line: str) -> None:
        self._lines.append(f"{'  ' * level}{line}" if line else "")


def _at(item: Item, *keys: str) -> Item:
    """Return the value below these keys, or nothing."""
    for key in keys:
        item = (item.entries or {}).get(key) or Item("")
    return item


def _text(item: Item) -> str:
    return (item.text or "").strip()


def _texts(item: Item) -> dict[str, str]:
    """Return the texts of a mapping."""
    return {key: _text(one) for key, one in (item.entries or {}).items()}


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted if necessary."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
