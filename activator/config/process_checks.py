"""Checks of `process` beyond the types of values: command, port, number of copies, readiness.

Part of `checks.py`, with its rules. The machine is not examined: a file may be checked on another one.
"""

from __future__ import annotations

import difflib
import re
import signal
from functools import reduce
from typing import Final

from activator.config.edge_checks import check_positive, check_variables
from activator.config.key_path import KeyPath
from activator.config.model.hooks import Hooks
from activator.config.model.programs import (
    LIFETIME_REQUEST,
    LIFETIMES,
    PORTS_MAX,
    Logs,
    Process,
    Program,
    Readiness,
)
from activator.config.model.revision import Revision
from activator.config.model.scaling import Scaling
from activator.config.programs import parse_processors
from activator.runtime.units import KIB

HOOK_TIMEOUT_MAX_S: Final = 1_800.0  # the end of the activator waits for hooks
LOG_SIZE_MIN_BYTES: Final = 64 * KIB  # smaller files would be renamed continuously

_NO_CONNECTION: Final = "to ask a copy would use it up; use `readiness.log`, `readiness.command` or nothing"
_SIGNALS: Final = frozenset(signal.Signals.__members__)


class ProcessChecker:
    """The checks of all revisions of a file: two programs cannot have the same port."""

    def __init__(self) -> None:
        self._ports: dict[int, str] = {}  # port → its user
        self._sockets: dict[str, str] = {}  # path of a Unix socket → the revision whose program listens on it
        self._files: dict[tuple[str, str], str] = {}  # directory and name of a log → its revision

    def claim(self, port: int, user: str) -> None:
        """Record that another part of the file uses this port."""
        self._ports.setdefault(port, user)

    def check(self, revision_at: KeyPath, revision: Revision) -> None:
        """Check the process of a revision, if it has one."""
        process, at = revision.process, revision_at["process"]
        if process is None:
            return
        if not process.command or process.command[0] == "":
            at["command"].found("a program and its arguments", "none")
        self.check_program(at, process, process.directory)
        if process.port is not None:
            self._check_port(revision_at, revision.scaling, process)
        if process.wants_socket():
            self._check_socket(revision_at, revision.scaling, process)
        if process.lifetime not in LIFETIMES:
            at["lifetime"].found("one of " + ", ".join(LIFETIMES))
        elif process.lifetime == LIFETIME_REQUEST:
            _check_lifetime(revision_at, revision, process)
        if process.cpus and parse_processors(process.cpus) is None:
            at["cpus"].found("numbers and ranges of processors, such as 0-3,6")
        _check_signal(at["stop"]["signal"], process.stop.signal)
        check_variables(at["environment"], process.environment)

    def check_program(self, at: KeyPath, program: Program, directory: str) -> None:
        """Check the keys that all kinds of programs have; relative paths begin at `directory`."""
        least, most = program.min_scale, program.max_scale
        if 0 < most < least:
            at["min_scale"].advise(f"{least} is more than `max_scale: {most}`: lower it, or raise `max_scale`")
        _check_readiness(at["readiness"], program.readiness)
        _check_hooks(at["hooks"], program.hooks)
        self._check_logs(at["logs"], program.logs, directory)

    def _check_port(self, revision_at: KeyPath, scaling: Scaling, process: Process) -> None:
        at, revision_path, ports = revision_at["process"]["port"], str(revision_at), process.ports()
        if ports is None:
            at.found(f"a port from 1 to 65535, or a range such as 9000-9010 of at most {PORTS_MAX} ports")
            return
        owners = {
            port: owner for port in ports if (owner := self._ports.setdefault(port, revision_path)) != revision_path
        }
        if owners:
            port, owner = next(iter(owners.items()))
            at.advise(f"{port} is the port of {owner} already: use another")
        if len(ports) == 1:
            advice = f"cannot share `process.port: {ports[0]}`: set 1, a range of ports, or leave `port` out"
            advice += " and use {port}"
        else:
            have = f"`process.port: {ports[0]}-{ports[-1]}` has {len(ports)} ports"
            advice = f"are too many, {have}: lower it, or widen the range"
        _check_copies(revision_at, scaling, process, len(ports), advice)

    def _check_socket(self, revision_at: KeyPath, scaling: Scaling, process: Process) -> None:
        """Check a process that listens on a Unix socket instead of a port."""
        at = revision_at["process"]
        if isinstance(process.socket, str):
            self._check_socket_path(revision_at, scaling, process, process.socket)
        if process.port is not None:
            advice = "a program listens on a Unix socket or on a port: remove `port`, or {socket} and `socket`"
            at["port"].advise(advice)
        for key, command in (
            ("command", process.command),
            ("readiness", process.readiness.command),
            ("stop", process.stop.command),
            ("hooks", process.hooks.words()),
        ):
            if any("{port}" in word for word in command):
                at[key].advise("a program that listens on a Unix socket has no {port}: use {socket}")

    def _check_socket_path(self, revision_at: KeyPath, scaling: Scaling, process: Process, socket_path: str) -> None:
        at, revision_path = revision_at["process"]["socket"], str(revision_at)
        if not socket_path or socket_path.startswith("@") or socket_path.endswith("/") or not socket_path.isprintable():
            at.found("true, or a path such as /run/app/app.sock", f'"{socket_path}"')
            return
        owner = self._sockets.setdefault(socket_path, revision_path)
        if owner != revision_path:
            at.advise(f"{socket_path} is the socket of {owner} already: use another")
        advice = f"cannot share `process.socket: {socket_path}`: set 1, or leave the path out and use {{socket}}"
        _check_copies(revision_at, scaling, process, 1, advice)

    def _check_logs(self, at: KeyPath, logs: Logs, directory: str) -> None:
        if logs.file:
            log_file = ("" if logs.file.startswith(("/", "~", "$")) else directory, logs.file)
            owner = self._files.setdefault(log_file, str(at))
            if owner != str(at):
                at["file"].advise(f"{logs.file} is written by {owner} already: use another")
        if logs.max_size < LOG_SIZE_MIN_BYTES:
            at["max_size"].found("at least 64KiB")


def _check_copies(at: KeyPath, scaling: Scaling, process: Process, copies_max: int, advice: str) -> None:
    """Check that no key asks for more than `copies_max` copies; `advice` follows their number in the message."""
    for group, name, keys in (
        (process, "process", ("min_scale", "max_scale")),
        (scaling, "scaling", ("min", "max", "initial_scale", "activation_scale")),
    ):
        for key in keys:
            if getattr(group, key) > copies_max:
                at[name][key].advise(f"{getattr(group, key)} copies {advice}")
    schedule = at["scaling"]["schedule"]
    for entry_at, entry in schedule.each(scaling.schedule):
        if entry.min > copies_max:
            entry_at["min"].advise(f"{entry.min} copies {advice}", schedule.where)


def _check_lifetime(at: KeyPath, revision: Revision, process: Process) -> None:
    """Check a program that ends after one request: it excludes all other connections, and a second request."""
    readiness = process.readiness
    for applies, keys, advice in (
        (revision.container_concurrency > 1, ("container_concurrency",), "a copy takes one request: set 1"),
        (process.sleep is not None, ("process", "sleep"), "it ends by itself, and never sleeps"),
        (process.hooks != Hooks(), ("process", "hooks"), "it ends by itself; let it do that, or a program around it"),
        (bool(readiness.http_get), ("process", "readiness", "http_get"), _NO_CONNECTION),
        (readiness.grpc is not None, ("process", "readiness", "grpc"), _NO_CONNECTION),
        (revision.activity.busy is not None, ("activity", "busy"), _NO_CONNECTION),
        (revision.waiting_page is not None, ("waiting_page",), "a browser that polls the page would use up a copy"),
        (
            any(rule.exempt for rule in revision.queue.rules),
            ("queue", "rules"),
            "no request is exempted from the limit of one",
        ),
    ):
        if applies:
            reduce(KeyPath.__getitem__, keys, at).advise(f"with `lifetime: request`: {advice}")


def _check_signal(at: KeyPath, name: str) -> None:
    if name not in _SIGNALS:
        word = name.upper().removeprefix("SIG")
        near = difflib.get_close_matches(f"SIG{word}", _SIGNALS, n=1, cutoff=0.8) if word.isalpha() else []
        at.found(near[0] if near else "a name such as SIGINT")


def _check_hooks(at: KeyPath, hooks: Hooks) -> None:
    for key in ("after_start", "before_stop"):
        for entry_at, hook in at[key].each(getattr(hooks, key)):
            if bool(hook.http_post) == bool(hook.command) and entry_at.is_whole:
                entry_at.found("`http_post` or `command`", "both" if hook.command else "none")
            elif hook.http_post and not hook.http_post.startswith("/"):
                entry_at["http_post"].found("a path that begins with /")
            elif hook.body and not hook.http_post:
                entry_at["body"].advise("`body` has no effect with `command`: remove it")
            check_positive(entry_at, hook, "timeout")
            if hook.timeout > HOOK_TIMEOUT_MAX_S:
                entry_at["timeout"].found(f"at most {HOOK_TIMEOUT_MAX_S / 60.0:g}m")


def _check_readiness(at: KeyPath, readiness: Readiness) -> None:
    if readiness.http_get[:1] not in ("/", ""):
        at["http_get"].found("a path that begins with /")
    if readiness.log:
        _check_alone(at, readiness, "log", ("command", "http_get", "grpc", "interval"), "which makes no connection")
        try:
            re.compile(readiness.log)
        except re.error as error:
            at["log"].found(f"a regular expression ({error})")
    elif readiness.command:
        _check_alone(at, readiness, "command", ("http_get", "grpc"), "which alone says what is ready")
    check_positive(at, readiness, "interval")


def _check_alone(at: KeyPath, readiness: Readiness, owner: str, others: tuple[str, ...], why: str) -> None:
    """Report other readiness checks, which have no effect besides `owner`."""
    for key in others:
        value = getattr(readiness, key)
        if at.sets(key) and (value not in (None, "", []) or (key == "grpc" and value is not None)):
            at[key].advise(f"`{key}` has no effect with `{owner}`, {why}: set one of them")
