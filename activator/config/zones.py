"""Zones: the failure domains, such as an availability zone of a cloud, that the activator and its pods are in.

A zone is the value of the label `topology.kubernetes.io/zone` of a node, or any text of that form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from activator.config.key_path import KeyPath
from activator.config.model.file import Config
from activator.config.model.revision import Revision
from activator.runtime.errors import ConfigError
from activator.runtime.secret_text import ENVIRONMENT

ZONE_CHARACTERS_MAX: Final = 63  # as of every label value in Kubernetes
EXPECTED: Final = f"at most {ZONE_CHARACTERS_MAX} letters, digits, dots, dashes and underscores, such as eu-west-1a"

_ZONE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def is_zone(text: str) -> bool:
    """Return True if this can be the name of a zone, or is empty: no zone."""
    return not text or _ZONE.fullmatch(text) is not None


def zone_of(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """Return the zone of this activator; empty: none. Raises ConfigError if its variable is not set or no zone."""
    if not config.zone.startswith(ENVIRONMENT):
        return config.zone
    name = config.zone.removeprefix(ENVIRONMENT)
    value = (os.environ if environ is None else environ).get(name)
    if value is None:
        raise ConfigError([f"zone: the environment variable {name} is not set: set it, empty if there is no zone"])
    zone = value.strip()
    if not is_zone(zone):
        raise ConfigError([f"zone: the environment variable {name} has another value than a zone: expected {EXPECTED}"])
    return zone


def check_zone(at: KeyPath, zone: str) -> None:
    """Check the zone of this activator."""
    name = zone.removeprefix(ENVIRONMENT)
    if name != zone:
        if _VARIABLE.fullmatch(name) is None:
            at.found("env: and the name of an environment variable, such as env:NODE_ZONE")
    elif not is_zone(zone):
        at.found(f"{EXPECTED}, or env:NAME")


def check_zones_of_pods(at: KeyPath, revision: Revision) -> None:
    """Check the zones of a revision's fixed pods, which only `prefer_zone` uses."""
    for entry_at, pod in at["pods"].each(revision.pods):
        if isinstance(pod, str) or not entry_at.sets("zone"):
            continue
        if not is_zone(pod.zone):
            entry_at["zone"].found(EXPECTED)
        elif not revision.prefer_zone:
            entry_at["zone"].advise("`zone` requires `prefer_zone: true`", beside=(at["prefer_zone"],))
            break  # reported once


def check_preference(root: KeyPath, at: KeyPath, revision: Revision) -> None:
    """Check `prefer_zone` of a revision in a file, which is at `root`."""
    if not revision.prefer_zone:
        return
    program = next((key for key in ("process", "container") if key in at), "")
    if program:
        at["prefer_zone"].advise(f"`prefer_zone` is for pods of other machines, and `{program}` has none: remove it")
    elif "zone" not in root:
        at["prefer_zone"].advise("`prefer_zone` requires `zone`, the zone of this activator", beside=(root["zone"],))
