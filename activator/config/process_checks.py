"""Checks of `process` beyond the types of values: command, port, number of copies, readiness.

Part of `checks.py`, with its rules. The machine is not examined: a file may be checked on another one.
"""

from __future__ import annotations

import difflib
import re
import signal
from typing import Any, Final

from activator.config.edge_checks import item_at
from activator.config.model.programs import (
    LIFETIME_REQUEST,
    LIFETIME_SERVICE,
    LIFETIMES,
    PORTS_MAX,
    parse_ports,
)
from activator.config.programs import parse_processors
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item
from activator.runtime.units import KIB

LOG_SIZE_MIN_BYTES: Final = 64 * KIB  # smaller files would be renamed continuously

_USED_UP: Final = "to ask a copy would use it up; use `readiness.log`, `readiness.command` or nothing"
_SIGNALS: Final = frozenset(signal.Signals.__members__)


class ProcessChecker:
    """The checks of all revisions of a file: two programs cannot have the same port."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ports: dict[int, str] = {}  # port → its user
        self._sockets: dict[str, str] = {}  # path of a Unix socket → the revision whose program listens on it
        self._files: dict[tuple[str, str], str] = {}  # directory and name of a log → its revision

    def claim(self, port: int, what: str) -> None:
        """Note that another part of the file uses this port."""
        self._ports.setdefault(port, what)

    def check(self, revision: Item, values: Values, path: str) -> None:
        """Check the process of a revision that has one; `path` is the revision's."""
        item, process, at = item_at(revision, "process"), values["process"], f"{path}.process"
        command = process.get("command")
        if command is not None and (not command or command[0] == ""):
            self._reader.found(item_at(item, "command"), f"{at}.command", "a program and its arguments", "none")
        self.check_program(item, process, at)
        if process.get("port") not in (None, UNREADABLE):
            self._check_port(revision, values, path)
        self._check_socket(revision, values, path)
        self._check_lifetime(revision, values, path)
        if process.get("cpus") and process["cpus"] is not UNREADABLE and parse_processors(process["cpus"]) is None:
            self._reader.found(item_at(item, "cpus"), f"{at}.cpus", "numbers and ranges of processors, such as 0-3,6")
        self._check_stop(item_at(item, "stop"), process.get("stop", {}), f"{at}.stop")
        for name, value in process.get("environment", {}).items():
            if name == "" or "=" in name or "\0" in name or (value is not UNREADABLE and "\0" in value):
                self._reader.found(item_at(item, "environment"), f"{at}.environment", "names of variables", f'"{name}"')

    def check_program(self, item: Item, program: Values, path: str) -> None:
        """Check the keys that all kinds of programs have."""
        self._check_scale(item, program, path)
        self._check_readiness(item_at(item, "readiness"), program.get("readiness", {}), f"{path}.readiness")
        self._check_logs(item_at(item, "logs"), program, f"{path}.logs")

    def _check_scale(self, item: Item, process: Values, path: str) -> None:
        least, most = process.get("min_scale", 0), process.get("max_scale", 0)
        if 0 < most < least:
            advice = f"{least} is more than `max_scale: {most}`: lower it, or raise `max_scale`"
            self._reader.advise(item_at(item, "min_scale"), f"{path}.min_scale", advice)

    def _check_port(self, revision: Item, values: Values, path: str) -> None:
        item, process = item_at(revision, "process"), values["process"]
        port, at = process["port"], f"{path}.process.port"
        ports = range(port, port + 1) if isinstance(port, int) else parse_ports(port)
        if ports is None:
            expected = f"a port from 1 to 65535, or a range such as 9000-9010 of at most {PORTS_MAX} ports"
            self._reader.found(item_at(item, "port"), at, expected)
            return
        owners = {one: owner for one in ports if (owner := self._ports.setdefault(one, path)) != path}
        if owners:
            one, owner = next(iter(owners.items()))
            self._reader.advise(item_at(item, "port"), at, f"{one} is the port of {owner} already: use another")
        if len(ports) == 1:
            advice = f"cannot share `process.port: {ports[0]}`: set 1, a range of ports, or leave `port` out"
            advice += " and use {port}"
        else:
            have = f"`process.port: {ports[0]}-{ports[-1]}` has {len(ports)} ports"
            advice = f"are too many, {have}: lower it, or widen the range"
        self._check_copies(revision, values, path, len(ports), advice)

    def _check_copies(self, revision: Item, values: Values, path: str, most: int, advice: str) -> None:
        """Check that no key asks for more than `most` copies; `advice` follows their number in the message."""
        process, scaling = values["process"], values.get("scaling", {})
        for group, keys, where in (
            (process, ("min_scale", "max_scale"), "process"),
            (scaling, ("min", "max", "initial_scale", "activation_scale"), "scaling"),
        ):
            for key in keys:
                if _number(group, key) > most:
                    one_item = item_at(item_at(revision, where), key)
                    self._reader.advise(one_item, f"{path}.{where}.{key}", f"{group[key]} copies {advice}")
        for place, entry in enumerate(scaling.get("schedule", []) if isinstance(scaling, dict) else []):
            if _number(entry, "min") > most:
                one_item = item_at(item_at(revision, "scaling"), "schedule")
                said = f"{entry['min']} copies {advice}"
                self._reader.advise(one_item, f"{path}.scaling.schedule[{place}].min", said)

    def _check_socket(self, revision: Item, values: Values, path: str) -> None:
        """Check whether it listens on a Unix socket or on a port."""
        item, process, at = item_at(revision, "process"), values["process"], f"{path}.process"
        words = [word for word in process.get("command", []) if word is not UNREADABLE]
        named = any("{socket}" in word for word in words)
        if not named and not process.get("socket"):
            return
        given = process.get("socket")
        if isinstance(given, str):
            self._check_socket_path(revision, values, path, given)
        if process.get("port") is not None:
            advice = "a program listens on a Unix socket or on a port: take `port` out, or {socket} and `socket`"
            self._reader.advise(item_at(item, "port"), f"{at}.port", advice)
        for key, commands in (
            ("command", words),
            ("readiness", process.get("readiness", {}).get("command", [])),
            ("stop", process.get("stop", {}).get("command", [])),
        ):
            if any("{port}" in word for word in commands if word is not UNREADABLE):
                advice = "a program that listens on a Unix socket has no {port}: use {socket}"
                self._reader.advise(item_at(item, key), f"{at}.{key}", advice)

    def _check_socket_path(self, revision: Item, values: Values, path: str, given: str) -> None:
        item, at = item_at(item_at(revision, "process"), "socket"), f"{path}.process.socket"
        if not given or given.startswith("@") or given.endswith("/") or not given.isprintable():
            self._reader.found(item, at, "true, or a path such as /run/app/app.sock", f'"{given}"')
            return
        owner = self._sockets.setdefault(given, path)
        if owner != path:
            self._reader.advise(item, at, f"{given} is the socket of {owner} already: use another")
        advice = f"cannot share `process.socket: {given}`: set 1, or leave the path out and use {{socket}}"
        self._check_copies(revision, values, path, 1, advice)

    def _check_lifetime(self, revision: Item, values: Values, path: str) -> None:
        """Check a program that ends after one request: it excludes all other connections, and a second request."""
        item, process = item_at(revision, "process"), values["process"]
        lifetime = process.get("lifetime", LIFETIME_SERVICE)
        if lifetime is not UNREADABLE and lifetime not in LIFETIMES:
            self._reader.found(item_at(item, "lifetime"), f"{path}.process.lifetime", "one of " + ", ".join(LIFETIMES))
        if lifetime != LIFETIME_REQUEST:
            return
        readiness, queue, activity = process.get("readiness", {}), values.get("queue", {}), values.get("activity", {})
        rules = queue.get("rules", []) if isinstance(queue, dict) else []
        found = [
            (_number(values, "container_concurrency") > 1, "container_concurrency", "a copy takes one request: set 1"),
            (process.get("sleep") is not None, "process.sleep", "it ends by itself, and never sleeps"),
            (bool(readiness.get("http_get")), "process.readiness.http_get", _USED_UP),
            (readiness.get("grpc") is not None, "process.readiness.grpc", _USED_UP),
            (isinstance(activity, dict) and bool(activity.get("busy")), "activity.busy", _USED_UP),
            (values.get("waiting_page") is not None, "waiting_page", "a browser that looks again would use up a copy"),
            (
                any(isinstance(rule, dict) and rule.get("exempt") is True for rule in rules),
                "queue.rules",
                "no request is exempted from the limit of one",
            ),
        ]
        for is_so, key, advice in found:
            if is_so:
                where = revision
                for name in key.split("."):
                    where = item_at(where, name)
                self._reader.advise(where, f"{path}.{key}", f"with `lifetime: request`: {advice}")

    def _check_logs(self, item: Item, process: Values, path: str) -> None:
        logs = process.get("logs", {})
        file = logs.get("file", "")
        if isinstance(file, str) and file:
            place = (process.get("directory", ""), file) if not file.startswith(("/", "~", "$")) else ("", file)
            owner = self._files.setdefault(place, path)
            if owner != path:
                advice = f"{file} is written by {owner} already: use another"
                self._reader.advise(item_at(item, "file"), f"{path}.file", advice)
        if 0 <= _number(logs, "max_size") < LOG_SIZE_MIN_BYTES and "max_size" in logs:
            self._reader.found(item_at(item, "max_size"), f"{path}.max_size", "at least 64KiB")

    def _check_stop(self, item: Item, stop: Values, path: str) -> None:
        name = stop.get("signal", "SIGTERM")
        if name not in _SIGNALS:
            word = name.upper().removeprefix("SIG")
            near = difflib.get_close_matches(f"SIG{word}", _SIGNALS, n=1, cutoff=0.8) if word.isalpha() else []
            self._reader.found(item_at(item, "signal"), f"{path}.signal", near[0] if near else "a name such as SIGINT")

    def _check_readiness(self, item: Item, readiness: Values, path: str) -> None:
        if readiness.get("http_get", "/")[:1] not in ("/", ""):
            self._reader.found(item_at(item, "http_get"), f"{path}.http_get", "a path that begins with /")
        if readiness.get("log"):
            self._check_alone(item, readiness, path, "log", "which makes no connection")
            self._check_log(item, readiness, path)
        elif readiness.get("command"):
            self._check_alone(item, readiness, path, "command", "which alone says what is ready")
        if readiness.get("interval", 1) <= 0:
            self._reader.found(item_at(item, "interval"), f"{path}.interval", "more than 0")

    def _check_log(self, item: Item, readiness: Values, path: str) -> None:
        try:
            re.compile(readiness["log"])
        except re.error as error:
            self._reader.found(item_at(item, "log"), f"{path}.log", f"a regular expression ({error})")

    def _check_alone(self, item: Item, readiness: Values, path: str, owner: str, why: str) -> None:
        """Report other readiness checks, which have no effect besides `owner`."""
        others = {"log": ("command", "http_get", "grpc", "interval"), "command": ("http_get", "grpc")}[owner]
        for key in others:
            if readiness.get(key) not in (None, "", []) or (key == "grpc" and readiness.get(key) is not None):
                advice = f"`{key}` has no effect with `{owner}`, {why}: set one of them"
                self._reader.advise(item_at(item, key), f"{path}.{key}", advice)


def _number(values: Any, key: str) -> float:
    found = values.get(key, 0) if isinstance(values, dict) else 0
    return found if isinstance(found, int | float) else 0
