"""Checks of `container` and `containers` beyond the types of their values: conflicts, volumes and sockets.

Part of `checks.py`, with its rules. The machine is not examined: a file may be checked on another one.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from activator.config.edge_checks import check_positive, check_variables
from activator.config.engines import socket_path
from activator.config.key_path import KeyPath
from activator.config.model.containers import CONTAINER_ADDRESSES, HOST_NETWORK, PULLS, Container, Containers
from activator.config.model.revision import Revision
from activator.config.model.scaling import Scaling
from activator.config.model.sleep import Sleep
from activator.config.programs import split_volume

MEMORY_MIN_BYTES: Final = 6 * 1024 * 1024  # engines refuse less
STOP_GRACE_MAX_S: Final = 3600.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CREATION_KEYS: Final = (  # keys for the creation of a container; they would be ignored for an existing one
    *("name", "command", "entrypoint", "pull", "environment", "env_file", "volumes", "devices", "directory", "user"),
    *("memory", "cpus", "network", "labels", "init", "gpus"),
)
_EXPECTED_SOCKET: Final = "a unix socket such as unix:/var/run/docker.sock"


def check_containers(at: KeyPath, containers: Containers) -> None:
    """Check the engine of all revisions."""
    _check_engine(at, containers.engine)
    if containers.address not in CONTAINER_ADDRESSES:
        at["address"].found(" or ".join(CONTAINER_ADDRESSES))
    check_positive(at, containers, "patience", "pull_timeout")


def _check_engine(at: KeyPath, engine: str) -> None:
    if engine and socket_path(engine) is None:
        at["engine"].found(_EXPECTED_SOCKET)


class ContainerChecker:
    """The checks of all revisions of a file: two cannot have the same container."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}  # engine and name of a container → the path of its key

    def check(self, revision_at: KeyPath, revision: Revision) -> None:
        """Check the container of a revision, if it has one."""
        container, at = revision.container, revision_at["container"]
        if container is None:
            return
        _check_source(at, container)
        _check_engine(at, container.engine)
        _check_words(at, container)
        self._check_name(at, container)
        _check_copies(revision_at, revision.scaling, container)
        _check_socket(at, container)
        for entry_at, volume in at["volumes"].each(container.volumes):
            if split_volume(volume) is None:
                entry_at.found("SOURCE:/TARGET, or SOURCE:/TARGET:ro")
        for entry_at, device in at["devices"].each(container.devices):
            if not device.startswith("/"):
                entry_at.found("a path such as /dev/dri")
        check_variables(at["environment"], container.environment)
        for name in container.labels:
            if name == "" or name.startswith("activator."):
                advice = f'"{name}": labels that begin with `activator.` are the activator\'s own: use another name'
                at["labels"].advise(advice, at["labels"][name].where)

    def _check_name(self, at: KeyPath, container: Container) -> None:
        for key, name in (("name", container.name), ("existing", container.existing)):
            if not name:
                continue
            if _NAME.fullmatch(name) is None:
                at[key].found("letters, digits, `.`, `_` and `-`, a letter or digit first")
                continue
            owner = self._names.setdefault((container.engine, name), str(at))
            if owner != str(at):
                at[key].advise(f'"{name}" is the container of {owner} already: use another')


def _check_source(at: KeyPath, container: Container) -> None:
    if bool(container.image) == bool(container.existing):
        advice = "set `image`, or `existing` for a container that is there already, not both"
        at.advise(advice, beside=(at["image"], at["existing"]))
    if container.existing:
        for key in _CREATION_KEYS:
            if key in at:
                at[key].advise(f"`{key}` has no effect with `existing`, a container that is made already: remove it")


def _check_words(at: KeyPath, container: Container) -> None:
    """Check the keys that take one of several words, and the bounds of others."""
    if container.pull not in PULLS:
        at["pull"].found(" or ".join(PULLS))
    if container.address not in {"", *CONTAINER_ADDRESSES}:
        at["address"].found(" or ".join(CONTAINER_ADDRESSES))
    if 0 < container.memory < MEMORY_MIN_BYTES:
        at["memory"].found("at least 6MiB, or 0 for no limit")
    if container.stop.signal and container.stop.signal not in signal.Signals.__members__:
        at["stop"]["signal"].found("a name such as SIGINT")
    if container.stop.grace > STOP_GRACE_MAX_S:
        at["stop"]["grace"].found(f"at most {STOP_GRACE_MAX_S / 3600.0:g}h")


def _check_socket(at: KeyPath, container: Container) -> None:
    """Check that `{socket}` is not used: it is for processes; a container is reached at a port."""
    sleep = container.sleep or Sleep()
    wake = sleep.wake if isinstance(sleep.wake, list) else []
    for key, commands in (
        ("command", container.command),
        ("entrypoint", container.entrypoint),
        ("readiness", container.readiness.command),
        ("sleep", [*sleep.command, *wake]),
        ("hooks", container.hooks.words()),
    ):
        if any("{socket}" in word for word in commands):
            at[key].advise("a container is reached at a port, and has no {socket}: use {port}")


def _check_copies(at: KeyPath, scaling: Scaling, container: Container) -> None:
    """Check that a container of which there can be one only is not scaled beyond 1."""
    if container.network == HOST_NETWORK:
        why = "`network: host`"
    else:
        why = next((f"`{key}`, one container" for key in ("existing", "name") if getattr(container, key)), "")
    if not why:
        return
    for group, name, keys in (
        (container, "container", ("min_scale", "max_scale")),
        (scaling, "scaling", ("min", "max", "initial_scale", "activation_scale")),
    ):
        for key in keys:
            if getattr(group, key) > 1:
                at[name][key].advise(f"there cannot be {getattr(group, key)} copies with {why}: set 1")
