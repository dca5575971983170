"""Checks of `container` and `containers` beyond the types of their values: conflicts, volumes and sockets.

Part of `checks.py`, with its rules. The machine is not examined: a file may be checked on another one.
"""

from __future__ import annotations

import re
import signal
from typing import Any, Final

from activator.config.edge_checks import element_at, item_at
from activator.config.engines import socket_path
from activator.config.model.containers import CONTAINER_ADDRESSES, HOST_NETWORK, PULLS
from activator.config.programs import split_volume
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item

MEMORY_MIN_BYTES: Final = 6 * 1024 * 1024  # engines refuse less
STOP_GRACE_MAX_S: Final = 3600.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_MADE: Final = (  # keys for the creation of a container; they would be ignored for an existing one
    *("name", "command", "entrypoint", "pull", "environment", "env_file", "volumes", "devices", "directory", "user"),
    *("memory", "cpus", "network", "labels", "init", "gpus"),
)
_SOCKET: Final = "a unix socket such as unix:/var/run/docker.sock"


def check_containers(reader: Reader, item: Item, values: Values) -> None:
    """Check the engine of all revisions."""
    _check_engine(reader, item, values, "containers")
    if values.get("address", CONTAINER_ADDRESSES[0]) not in CONTAINER_ADDRESSES:
        reader.found(item_at(item, "address"), "containers.address", " or ".join(CONTAINER_ADDRESSES))
    for key in ("patience", "pull_timeout"):
        if values.get(key, 1.0) <= 0:
            reader.found(item_at(item, key), f"containers.{key}", "more than 0")


def _check_engine(reader: Reader, item: Item, values: Values, path: str) -> None:
    engine = values.get("engine", "")
    if engine and socket_path(engine) is None:
        reader.found(item_at(item, "engine"), f"{path}.engine", _SOCKET)


class ContainerChecker:
    """The checks of all revisions of a file: two cannot have the same container."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._names: dict[tuple[str, str], str] = {}  # engine and name of a container → its revision

    def check(self, revision: Item, values: Values, path: str) -> None:
        """Check the container of a revision that has one; `path` is the revision's."""
        item, container, at = item_at(revision, "container"), values["container"], f"{path}.container"
        self._check_source(item, container, at)
        _check_engine(self._reader, item, container, at)
        self._check_words(item, container, at)
        self._check_name(item, container, at)
        self._check_copies(revision, values, path)
        self._check_socket(item, container, at)
        for place, volume in enumerate(container.get("volumes", [])):
            if volume is not UNREADABLE and split_volume(volume) is None:
                one = element_at(item_at(item, "volumes"), place)
                self._reader.found(one, f"{at}.volumes[{place}]", "SOURCE:/TARGET, or SOURCE:/TARGET:ro")
        for place, device in enumerate(container.get("devices", [])):
            if device is not UNREADABLE and not device.startswith("/"):
                one = element_at(item_at(item, "devices"), place)
                self._reader.found(one, f"{at}.devices[{place}]", "a path such as /dev/dri")
        for name, value in container.get("environment", {}).items():
            if name == "" or "=" in name or "\0" in name or (value is not UNREADABLE and "\0" in value):
                self._reader.found(item_at(item, "environment"), f"{at}.environment", "names of variables", f'"{name}"')
        for name in container.get("labels", {}):
            if name == "" or name.startswith("activator."):
                advice = f'"{name}": labels that begin with `activator.` are the activator\'s own: use another name'
                self._reader.advise(item_at(item_at(item, "labels"), name), f"{at}.labels", advice)

    def _check_source(self, item: Item, container: Values, path: str) -> None:
        image, existing = container.get("image", ""), container.get("existing", "")
        unread = {"image", "existing"} & ((item.entries or {}).keys() - container.keys())
        if not unread and bool(image) == bool(existing):
            advice = "set `image`, or `existing` for a container that is there already, not both"
            self._reader.advise(item, path, advice)
        if existing:
            for key in _MADE:
                if key in (item.entries or {}):
                    advice = f"`{key}` has no effect with `existing`, a container that is made already: remove it"
                    self._reader.advise(item_at(item, key), f"{path}.{key}", advice)

    def _check_words(self, item: Item, container: Values, path: str) -> None:
        if container.get("pull", PULLS[0]) not in PULLS:
            self._reader.found(item_at(item, "pull"), f"{path}.pull", " or ".join(PULLS))
        if container.get("address", "") not in {"", *CONTAINER_ADDRESSES}:
            self._reader.found(item_at(item, "address"), f"{path}.address", " or ".join(CONTAINER_ADDRESSES))
        if 0 < container.get("memory", 0) < MEMORY_MIN_BYTES:
            self._reader.found(item_at(item, "memory"), f"{path}.memory", "at least 6MiB, or 0 for no limit")
        stop = container.get("stop", {})
        name = stop.get("signal", "")
        if name and name not in signal.Signals.__members__:
            self._reader.found(item_at(item_at(item, "stop"), "signal"), f"{path}.stop.signal", "a name such as SIGINT")
        if stop.get("grace", 0.0) > STOP_GRACE_MAX_S:
            where = item_at(item_at(item, "stop"), "grace")
            self._reader.found(where, f"{path}.stop.grace", f"at most {STOP_GRACE_MAX_S / 3600.0:g}h")

    def _check_name(self, item: Item, container: Values, path: str) -> None:
        for key in ("name", "existing"):
            name = container.get(key, "")
            if not name:
                continue
            if _NAME.fullmatch(name) is None:
                self._reader.found(item_at(item, key), f"{path}.{key}", "letters, digits, dots and dashes")
                continue
            owner = self._names.setdefault((container.get("engine", ""), name), path)
            if owner != path:
                advice = f'"{name}" is the container of {owner} already: use another'
                self._reader.advise(item_at(item, key), f"{path}.{key}", advice)

    def _check_socket(self, item: Item, container: Values, path: str) -> None:
        """Check that `{socket}` is not used: it is for processes; a container is reached at a port."""
        readiness, sleep = container.get("readiness", {}), container.get("sleep") or {}
        wake = sleep.get("wake", "")
        for key, commands in (
            ("command", container.get("command", [])),
            ("entrypoint", container.get("entrypoint", [])),
            ("readiness", readiness.get("command", [])),
            ("sleep", [*sleep.get("command", []), *(wake if isinstance(wake, list) else [])]),
        ):
            if any("{socket}" in word for word in commands if word is not UNREADABLE):
                advice = "a container is reached at a port, and has no {socket}: use {port}"
                self._reader.advise(item_at(item, key), f"{path}.{key}", advice)

    def _check_copies(self, revision: Item, values: Values, path: str) -> None:
        container = values["container"]
        if container.get("network") == HOST_NETWORK:
            why = "`network: host`"
        else:
            why = next((f"`{key}`, one container" for key in ("existing", "name") if container.get(key)), "")
        if not why:
            return
        groups: tuple[tuple[Any, tuple[str, ...], str], ...] = (
            (container, ("min_scale", "max_scale"), "container"),
            (values.get("scaling", {}), ("min", "max", "initial_scale", "activation_scale"), "scaling"),
        )
        for group, keys, where in groups:
            for key in keys:
                found = group.get(key, 0) if isinstance(group, dict) else 0
                if isinstance(found, int) and found > 1:
                    advice = f"there cannot be {found} copies with {why}: set 1"
                    self._reader.advise(item_at(item_at(revision, where), key), f"{path}.{where}.{key}", advice)
