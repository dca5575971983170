"""The conversion of a configuration of llama-swap into `models`, with comments on keys without a counterpart.

Rules
  1. No key is dropped silently: it is converted, needless here, or named in a comment.
  2. A value of the wrong kind is a mistake, and nothing is converted: a list of keys that is left out would open the
     endpoint.
  3. Texts of the file stay within their line of the output, also in comments.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from activator.config.llama_swap_tree import (
    GROUPS_IN_ROUTING,
    MODEL_ID,
    PRELOAD,
    aliases_of,
    at,
    groups_of,
    is_matrix_used,
    merge,
    text_of,
    texts,
    wrong_kinds,
)
from activator.config.model.keys import NO_KEY, SHA256
from activator.config.model.models import MODEL_HEALTH_PATH, MODELS_GROUP
from activator.config.model_entries import revision_names
from activator.config.reader import json_of
from activator.config.tree import NULLS, Item, read_tree
from activator.runtime.errors import ConfigError
from activator.runtime.secret_text import ENVIRONMENT, FILE

_NEVER: Final = "24h"  # the idle time of a model that llama-swap keeps until another one needs its place
_STARTUP_S: Final = 120  # llama-swap's default, and its least
_STARTUP_LEAST_S: Final = 15
_MACRO_DEPTH_MAX: Final = 20
_COMMAND_BYTES_MAX: Final = 65_536
_PID: Final = "PID"  # a macro that is only known when the program runs
_FALSE: Final = ("false", "no", "off")
_MACRO: Final = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_ENVIRONMENT_MACRO: Final = re.compile(r"\$\{env\.([^}]+)\}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+-]*")
_NOT_IN_GROUP_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_PROXY: Final = re.compile(r"https?://([^/:]+|\[[^]]+\])(?::([^/]+))?(/.*)?")
_WINDOWS_PATH: Final = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\\w")
_LOOPBACK: Final = ("", "localhost", "127.0.0.1", "[::1]", "0.0.0.0")

# Keys that are only shown, and settings that the activator chooses itself.
_SHOWN: Final = ("name", "description", "metadata", "context", "capabilities")
_NEEDLESS: Final = (
    "startPort", "logTimeFormat", "logToStdout", "metricsMaxInMemory", "performance", "ui", "includeAliasesInList",
)  # fmt: skip
_CONVERTED: Final = (
    "models", "macros", "groups", "routing", "hooks", "apiKeys", "listen", "logLevel", "healthCheckTimeout",
    "globalTTL", "unloadTimeout", *_NEEDLESS,
)  # fmt: skip
_CONVERTED_IN_MODEL: Final = (
    "cmd", "cmdStop", "proxy", "aliases", "env", "checkEndpoint", "ttl", "useModelName", "macros", "unloadTimeout",
    "concurrencyLimit", "filters", *_SHOWN,
)  # fmt: skip
_CONVERTED_FILTERS: Final = ("stripParams", "strip_params", "setParams", "setParamsByID")
# What a text in double quotes cannot have in YAML.
_NOT_IN_YAML: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
_MODEL: Final = "model"  # both programs route by it, so that it stays
# Keys without a counterpart, and their substitutes.
_HINTS: Final = {
    "matrix": "give the group `models` a budget, and each model its `needs` (docs/groups.md)",
    "peers": "add a revision with `pods` and `match: {json: {model: [...]}}` for each peer",
    "profiles": "for names that always lead to the same model use `aliases`",
    "selectors": "for one name of several models use revisions with `weight` (docs/routing.md)",
    "upstream": "requests name their model, and only those start its program",
    "scheduler": "see `discipline` of a group (docs/groups.md)",
    "captureBuffer": "see `record.capture` (docs/records.md)",
    "logRequests": "see `access_log`",
    "sendLoadingState": "see `progress` of a revision (docs/waiting.md)",
    "store": "see `record.requests` (docs/records.md)",
    "concurrencyLimit": "`container_concurrency` lets further requests wait, instead of refusing them",
    "compat": "a WebSocket starts the program, and keeps it",
    "timeouts": "see `timeouts` of a revision",
    "unlisted": "every name of a model is in `/v1/models`",
}
_OFF_IF_FALSE: Final = ("logRequests", "sendLoadingState", "unlisted")
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}


def convert(text: str, name: str, environ: Mapping[str, str]) -> str:
    """Return the file of the activator for the file `name` of llama-swap. Raises ConfigError."""
    problems: list[str] = []
    root = read_tree(text, name, {}, problems)
    if root is None or problems:
        raise ConfigError(problems)
    merge(root)
    if not at(root, "models").entries:
        raise ConfigError([f"{root.where}: found no `models`, expected a configuration of llama-swap"])
    problems = list(wrong_kinds(root))
    if problems:
        raise ConfigError(problems)
    return _Conversion(root, environ).text(name)


class _Conversion:
    """The conversion of one file."""

    def __init__(self, root: Item, environ: Mapping[str, str]) -> None:
        self._root = root
        models = at(root, "models").entries or {}
        self._models = {name: entry for name, entry in models.items() if text_of(at(entry, "cmd"))}
        self._without_command = [name for name in models if name not in self._models]
        self._environ = environ
        self._macros = texts(at(root, "macros"))
        self._lines: list[str] = []
        self._own_groups: list[tuple[str, list[str]]] = []
        self._notes: dict[str, str] = {}  # comment on a model, from its group
        self._not_exclusive: set[str] = set()  # models that may be loaded beside others
        self._owners: dict[str, str] = {}  # the model of each alias: the first that has it
        self._preloaded = self._models_of(at(root, *PRELOAD))

    def text(self, name: str) -> str:
        """Return the activator's file; `name` is the file of llama-swap."""
        self._add(0, f"# Made from {name} by `activator import llama-swap`. Check it: activator check FILE")
        host, _, port = text_of(at(self._root, "listen")).rpartition(":")
        address = f"{host or '0.0.0.0'}:{port}" if port else "127.0.0.1:8080"
        self._add(0, f"listen: {_scalar(address)}")
        level = _LEVELS.get(text_of(at(self._root, "logLevel")).lower(), "info")
        if level != "info":
            self._add(0, f"log: {{level: {level}}}")
        self._add_keys()
        self._add_others(0, self._root, _CONVERTED)
        for path in (GROUPS_IN_ROUTING, PRELOAD):
            self._add_others_beside(path)
        if is_matrix_used(self._root) and at(self._root, *GROUPS_IN_ROUTING).entries:
            self._add(0, "# routing.router.settings.groups: not in use, as there is a matrix")
        self._read_groups()
        self._add(0, "")
        self._add(0, "models:")
        for model, item in self._models.items():
            self._add_model(model, item)
        for model in self._without_command:
            self._add(1, f"# {model} has no `cmd`: add a revision with `pods` and `match: {{json: {{model: [...]}}}}`")
        if self._own_groups:
            own_names = revision_names(self._models)
            self._add(0, "")
            self._add(0, "groups:")
            for group, members in self._own_groups:
                listed = ", ".join(_scalar(own_names[member]) for member in members)
                self._add(1, f"- {{name: {_scalar(group)}, exclusive: true, members: [{listed}]}}")
        return "\n".join(self._lines) + "\n"

    # --- the parts ---

    def _add_keys(self) -> None:
        """Convert `apiKeys`; a key that would be read as a reference is written as its hash."""
        keys = at(self._root, "apiKeys").elements or []
        if keys:
            self._add(0, "keys:")
        for number, item in enumerate(keys, 1):
            variable = _ENVIRONMENT_MACRO.fullmatch(text_of(item))
            key = f"{ENVIRONMENT}{variable[1]}" if variable else self._expanded(1, text_of(item))
            if not variable and (key.startswith((ENVIRONMENT, FILE, SHA256)) or key == NO_KEY):
                key = SHA256 + hashlib.sha256(key.encode()).hexdigest()  # as a text it would mean something else
            self._add(1, f"- {{name: user{number}, key: {json.dumps(key)}}}")

    def _add_model(self, model: str, entry: Item) -> None:
        self._macros = {**texts(at(self._root, "macros")), **texts(at(entry, "macros")), MODEL_ID: model}
        self._add(1, f"{_scalar(model)}:")
        shown = [key for key in _SHOWN if key in (entry.entries or {})]
        if shown:
            self._add(2, f"# not needed: {', '.join(shown)}")
        command, port = self._command_of(entry)
        self._add_command(command)
        if port:
            self._add(2, f"port: {port}")
        self._add_names(model, entry)
        self._add_params(at(entry, "filters"))
        self._add_times(entry)
        self._add_readiness(entry)
        self._add_environment(entry)
        self._add_stop(entry)
        limit = text_of(at(entry, "concurrencyLimit"))
        if limit.isdecimal() and int(limit) > 0:
            self._add_other(2, "concurrencyLimit")
            self._add(2, f"container_concurrency: {limit}")
        if model in self._preloaded:
            self._add(2, "preload: true")
        if model in self._notes:
            self._add(2, f"# {self._notes[model]}")
        if model in self._not_exclusive:
            self._add(2, "exclusive: false")
        self._add_others(2, entry, _CONVERTED_IN_MODEL)

    def _add_names(self, model: str, entry: Item) -> None:
        """Convert `aliases` and `useModelName`; an alias belongs to the first model that has it."""
        aliases = list(dict.fromkeys(self._expanded(2, alias) for alias in aliases_of(model, entry)))
        for alias in aliases:
            owner = alias if alias in self._models else self._owners.setdefault(alias, model)
            if owner != model:
                self._add(2, f"# the alias {alias} is a name of {owner}, which gets its requests")
        aliases = [alias for alias in aliases if self._owners.get(alias) == model]
        received = self._expanded(2, text_of(at(entry, "useModelName")))
        if received and (aliases or received != model):
            self._add(2, f"rewrite_model: {_scalar(received)}")
        if aliases:
            self._add(2, f"aliases: [{', '.join(map(_scalar, aliases))}]")
        for item in at(entry, "aliases").elements or []:
            self._add_others(2, item, ("id", "name"), f"aliases.{text_of(at(item, 'id'))}.")

    def _add_params(self, filters: Item) -> None:
        removed = text_of(at(filters, "stripParams")) or text_of(at(filters, "strip_params"))
        names = [name.strip() for name in self._expanded(2, removed).split(",")]
        names = [name for name in dict.fromkeys(names) if name not in ("", _MODEL)]
        if names:
            self._add(2, f"strip_params: [{', '.join(map(_scalar, names))}]")
        entries = at(filters, "setParams").entries or {}
        added = {name: self._expanded_item(value) for name, value in entries.items() if name not in ("", _MODEL)}
        if added:
            self._add(2, f"set_params: {json_of(Item('', entries=added)).translate(_NOT_IN_YAML)}")
        if "setParamsByID" in (filters.entries or {}):
            self._add(
                2, "# filters.setParamsByID has no counterpart: its names are aliases without parameters of their own"
            )
        self._add_others(2, filters, _CONVERTED_FILTERS, "filters.")

    def _add_command(self, command: str) -> None:
        lines = [line.strip() for line in command.replace("\\\n", "\n").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if _WINDOWS_PATH.search(command) is not None:
            self._add(2, "# write / in place of each backslash of a path: words are split as in a POSIX shell")
        if len(lines) == 1:
            self._add(2, f"command: {json.dumps(lines[0], ensure_ascii=False)}")
            return
        self._add(2, "command: |")
        for line in lines:
            self._add(3, line)

    def _add_times(self, entry: Item) -> None:
        ttl = self._expanded(2, text_of(at(entry, "ttl")))
        if ttl in ("", "-1"):  # -1 is llama-swap's word for the default
            ttl = self._expanded(2, text_of(at(self._root, "globalTTL")))
        if ttl in ("", "0", "-1"):
            self._add(2, f"idle: {_NEVER}  # llama-swap unloads it only for another model")
        else:
            self._add(2, f"idle: {_scalar(ttl)}")
        startup = self._expanded(2, text_of(at(self._root, "healthCheckTimeout"))) or str(_STARTUP_S)
        if startup.isdecimal():
            startup = str(max(int(startup), _STARTUP_LEAST_S))
        self._add(2, f"startup: {_scalar(startup)}")

    def _add_readiness(self, entry: Item) -> None:
        path = self._expanded(2, text_of(at(entry, "checkEndpoint")))
        if path == "none":
            self._add(2, "readiness: {}  # it is ready when its port accepts connections")
        elif path and path != MODEL_HEALTH_PATH:
            self._add(2, f"readiness: {{http_get: {_scalar(path if path.startswith('/') else f'/{path}')}}}")

    def _add_environment(self, entry: Item) -> None:
        pairs = [self._expanded(2, text_of(variable)).partition("=") for variable in at(entry, "env").elements or []]
        variables = {key: value for key, _, value in pairs}  # the last one counts
        kept = {key: value for key, value in variables.items() if not value.startswith((ENVIRONMENT, FILE))}
        for key in variables.keys() - kept.keys():
            self._add(2, f"# env: {key} begins with {ENVIRONMENT} or {FILE}, which is a reference here: use `env_file`")
        if kept:
            self._add(2, "environment:")
        for key, value in kept.items():
            self._add(3, f"{_scalar(key)}: {json.dumps(value, ensure_ascii=False)}")

    def _add_stop(self, entry: Item) -> None:
        grace = text_of(at(entry, "unloadTimeout")) or text_of(at(self._root, "unloadTimeout"))
        parts = []
        command = self._expanded(2, text_of(at(entry, "cmdStop")))
        if f"${{{_PID}}}" in command:
            self._add(2, f"# cmdStop: {command}")
            self._add(2, "# has no counterpart: the program gets SIGTERM; see `stop.signal`")
        elif command:
            try:
                words = shlex.split(command)
            except ValueError:
                self._add(2, f"# cmdStop cannot be read: {command}")
            else:
                parts.append(f"command: [{', '.join(map(_scalar, words))}]")
        if grace and grace != "0":
            parts.append(f"grace: {_scalar(grace)}")
        if parts:
            self._add(2, f"stop: {{{', '.join(parts)}}}")

    def _command_of(self, entry: Item) -> tuple[str, str]:
        """Return the command, and the port of a program that has a fixed one; empty otherwise."""
        command = self._expanded(2, text_of(at(entry, "cmd")))
        proxy = self._expanded(2, text_of(at(entry, "proxy")))
        match = _PROXY.fullmatch(proxy)
        port = ""
        if proxy and match is None:
            self._add(2, f"# proxy: {proxy}: expected http://127.0.0.1:PORT")
        if match is not None:
            if match[1] not in _LOOPBACK:
                self._add(2, f"# proxy: {proxy}: a program must listen on 127.0.0.1")
            if match[3] not in (None, "/"):
                self._add(2, f"# proxy: {proxy}: the path {match[3]} has no counterpart")
            port = match[2] or ""
        if not port.isdecimal() or "{port}" in command:
            return command, ""
        freed = _with_free_port(command, port)
        return (freed, "") if freed != command else (command, port)

    def _read_groups(self) -> None:
        """Convert the groups: to `exclusive` of models, to groups of their own, or to comments."""
        groups = groups_of(self._root)
        grouped = {text_of(member) for item in groups.values() for member in at(item, "members").elements or []}
        # llama-swap puts all other models into one group, which is exclusive.
        unload_others = [name for name, item in groups.items() if _is_on(at(item, "exclusive"))]
        unload_others += [""] if self._models.keys() - grouped else []
        for name, item in groups.items():
            swaps, excludes = (_is_on(at(item, key)) for key in ("swap", "exclusive"))
            persists = text_of(at(item, "persistent")).lower() not in ("", *_FALSE)
            members = self._members_of(name, item)
            self._add_others(0, item, ("swap", "exclusive", "persistent", "members"), f"groups.{name}.")
            if swaps and excludes:  # as all models: one at a time
                if persists:
                    self._note(members, "llama-swap keeps it for models of other groups (`persistent`): see `pinned`")
            elif not swaps and excludes:
                note = f"the group {name}: its models together, and no others: this needs a budget (docs/groups.md)"
                self._add(0, f"# {note}")
            else:
                if not persists and unload_others:
                    self._note(members, "llama-swap unloads it for models of other groups")
                if swaps and len(members) > 1:
                    self._own_groups.append((self._group_name(name), sorted(members, key=list(self._models).index)))
                else:
                    self._not_exclusive.update(members)

    def _members_of(self, name: str, item: Item) -> set[str]:
        listed = {text_of(member) for member in at(item, "members").elements or []}
        for other in sorted(listed - self._models.keys()):
            self._add(0, f"# the group {name}: there is no model {other}")
        taken = {member for _, members in self._own_groups for member in members} | self._not_exclusive
        return listed & (self._models.keys() - taken)

    def _group_name(self, name: str) -> str:
        base = _NOT_IN_GROUP_NAMES.sub("-", name).strip("-._") or "group"
        used = {MODELS_GROUP, *(known for known, _ in self._own_groups)}
        return next(
            candidate
            for candidate in (base, *(f"{base}-{number}" for number in range(2, len(used) + 3)))
            if candidate not in used
        )

    def _note(self, models: Iterable[str], text: str) -> None:
        self._notes.update(dict.fromkeys(models, text))

    def _models_of(self, item: Item) -> set[str]:
        """Return the models that a list names by their names or aliases."""
        named = {text_of(entry_name) for entry_name in item.elements or []}
        return {model for model, entry in self._models.items() if named & {model, *aliases_of(model, entry)}}

    # --- texts ---

    def _expanded(self, level: int, text: str) -> str:
        """Return a text with its macros replaced; unknown ones stay, and are named in a comment."""
        for _ in range(_MACRO_DEPTH_MAX):
            expanded = _MACRO.sub(self._value_of, text)
            if expanded == text or len(expanded) > _COMMAND_BYTES_MAX:
                break
            text = expanded
        for name in dict.fromkeys(_MACRO.findall(text)):
            if name != _PID:
                problem = "is not set" if name.startswith("env.") else "is not defined"
                self._add(level, f"# {name.removeprefix('env.')} {problem}: replace ${{{name}}} below")
        return text

    def _expanded_item(self, item: Item) -> Item:
        """Return a value with its macros replaced. A macro alone keeps the kind of its value."""
        expanded = Item(item.where)
        if item.entries is not None:
            expanded.entries = {name: self._expanded_item(child) for name, child in item.entries.items()}
        elif item.elements is not None:
            expanded.elements = [self._expanded_item(child) for child in item.elements]
        elif item.text is not None:
            expanded.text = self._expanded(2, item.text)
            is_changed = expanded.text != item.text
            expanded.is_quoted = _MACRO.fullmatch(item.text) is None if is_changed else item.is_quoted
        return expanded

    def _value_of(self, match: re.Match[str]) -> str:
        name = match[1]
        if name == "PORT":
            return "{port}"
        if name.startswith("env."):
            return self._environ.get(name.removeprefix("env."), match[0])
        return self._macros.get(name, match[0])

    def _add_others(self, level: int, item: Item, known: Iterable[str], prefix: str = "") -> None:
        """Name the keys that are not in `known` in comments."""
        for key in item.entries or {}:
            if key not in known and not (key in _OFF_IF_FALSE and text_of(at(item, key)).lower() in _FALSE):
                self._add_other(level, key, prefix)

    def _add_others_beside(self, path: tuple[str, ...]) -> None:
        """Name the keys beside those of a path that is converted."""
        for depth in range(1, len(path)):
            known = (path[depth],) if is_matrix_used(self._root) else (path[depth], "use")
            self._add_others(0, at(self._root, *path[:depth]), known, ".".join(path[:depth]) + ".")

    def _add_other(self, level: int, key: str, prefix: str = "") -> None:
        hint = _HINTS.get(key, "")
        self._add(level, f"# {prefix}{key} has no counterpart{': ' + hint if hint else ''}")

    def _add(self, level: int, line: str) -> None:
        if line.startswith("#"):
            line = " ".join(line.split())
        self._lines.append(f"{'  ' * level}{line}" if line else "")


def _with_free_port(command: str, port: str) -> str:
    """Return a command with `{port}` in place of its fixed port; unchanged if it is not clear where that is.

    Of a mapping of ports (`-p 8000:8000`) the port of this machine is meant.
    """
    for pattern in (
        rf"((?:-p|--publish)[ =](?:[\d.]+:)?){port}(?=:\d)",
        rf"(--port[ =]){port}(?![\w.:])",
    ):
        replaced = re.sub(pattern, r"\g<1>{port}", command)
        if replaced != command:
            return replaced
    word = re.compile(rf"(?<![\w.]){port}(?![\w.])")
    return word.sub("{port}", command) if len(word.findall(command)) == 1 else command


def _is_on(item: Item) -> bool:
    """Return True unless the value is false; it is true by default."""
    return text_of(item).lower() not in _FALSE


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted if necessary."""
    return text if _PLAIN.fullmatch(text) and text not in NULLS else json.dumps(text, ensure_ascii=False)
