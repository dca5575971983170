"""Recognition of other programs' configuration files, so that their users learn what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from activator.config.forms import FILE
from activator.config.tree import Item


def _has(*keys: str) -> Callable[[dict[str, Item]], bool]:
    return lambda entries: any(key in entries for key in keys)


def _is_llama_swap(entries: dict[str, Item]) -> bool:
    models = entries.get("models")
    return models is not None and any("cmd" in (model.entries or {}) for model in (models.entries or {}).values())


def _is_compose(entries: dict[str, Item]) -> bool:
    services = entries.get("services")
    entries_of_services = [] if services is None else (services.entries or {}).values()
    return any(not {"image", "build"}.isdisjoint(service.entries or {}) for service in entries_of_services)


# The program, how its file is recognized, and advice for its user. The first that fits is used.
_PROGRAMS: Final = (
    ("llama-swap", _is_llama_swap, "`activator import llama-swap FILE` converts it"),
    ("Docker Compose", _is_compose, "write each service as one of `revisions`, with its image as `container.image`"),
    (
        "Traefik",
        _has("http", "tcp", "entryPoints", "providers"),
        "write each router as one of `revisions`: its rule as `hosts`, the servers of its service as `pods`",
    ),
    (
        "Envoy",
        _has("static_resources", "dynamic_resources"),
        "write each cluster as one of `revisions`: its domains as `hosts`, its endpoints as `pods`",
    ),
)


# Keys of the file that none of these programs has.
_SHARED_KEYS: Final = {"listen", "log", "metrics", "groups", "models"}
_OWN_KEYS: Final = FILE.keys.keys() - _SHARED_KEYS


def foreign_problem(root: Item) -> str:
    """Return the problem with a file that is another program's configuration; empty if it is not."""
    entries = root.entries or {}
    if not _OWN_KEYS.isdisjoint(entries):
        return ""
    for name, fits, advice in _PROGRAMS:
        if fits(entries):
            return f"{root.where}: this is a file of {name}: {advice} (`activator init` writes an example)"
    return ""


# Files that are not YAML, or one text of YAML: what a line of each has.
_LINE_PATTERNS: Final = (
    (
        "Traefik",
        re.compile(r"^\s*\[(http|tcp|entryPoints|providers)[\].]"),
        "write each router as one of `revisions`: its rule as `hosts`, the servers of its service as `pods`",
    ),
    (
        "nginx",
        re.compile(r"^\s*(server|upstream\s+\S+|location\s.*)\s*\{|^\s*proxy_pass\s"),
        "write each `server` as one of `revisions`: its `server_name` as `hosts`, its `upstream` as `pods`",
    ),
    (
        "Caddy",
        re.compile(r"^\s*reverse_proxy\s"),
        "write each site as one of `revisions`: its address as `hosts`, the upstreams of `reverse_proxy` as `pods`",
    ),
    (
        "HAProxy",
        re.compile(r"^\s*(frontend|backend|listen)\s+\S+\s*$|^\s*mode\s+(http|tcp)\s*$"),
        "write each `backend` as one of `revisions`: the hosts of its rule as `hosts`, its servers as `pods`",
    ),
)
_OWN_LINE: Final = re.compile(r"(revisions|models|kubernetes|listen|admin)\s*:")
_LINES_MAX: Final = 1_000
_LINE_MAX: Final = 200


def foreign_text_problem(text: str, name: str) -> str:
    """Return the problem with a text that is no mapping of YAML but another program's file; empty if it is not."""
    lines = [line[:_LINE_MAX] for line in text.splitlines()[:_LINES_MAX]]
    if any(map(_OWN_LINE.match, lines)):
        return ""
    for program, pattern, advice in _LINE_PATTERNS:
        if any(map(pattern.match, lines)):
            return f"{name}:1: this is a file of {program}: {advice} (`activator init` writes an example)"
    return ""
