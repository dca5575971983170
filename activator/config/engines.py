"""Which container engine there is on this machine: the path of its socket.

Named in the file, else by the variables that Docker's and Podman's own tools read, else the first of the usual places
that there is. A socket is asked here by `activator check` alone, for a moment; a run has a client of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from activator.runtime.errors import ConfigError, one_line
from activator.runtime.units import MIB

DOCKER_SOCKET: Final = "/var/run/docker.sock"
PODMAN_SOCKET: Final = "/run/podman/podman.sock"
VARIABLES: Final = ("DOCKER_HOST", "CONTAINER_HOST")
PREFIX: Final = "unix:"
LOOK_TIMEOUT_S: Final = 3.0
LOOK_BYTES_MAX: Final = MIB


def socket_path(named: str) -> str | None:
    """The path in `unix:/path` or `unix:///path`; None: it is no such address."""
    if not named.startswith(PREFIX):
        return None
    path = named.removeprefix(PREFIX)
    path = path.removeprefix("//") if path.startswith("///") else path
    return path if path.startswith("/") and not path.startswith("//") and "\0" not in path else None


def engine_path(named: str, environ: Mapping[str, str]) -> str:
    """The socket to use; raises ConfigError if what is named is none."""
    for what, value in (("engine", named), *((name, environ.get(name, "")) for name in VARIABLES)):
        if value:
            path = socket_path(value)
            if path is None:
                raise ConfigError([f"{what}: {one_line(value)}: only unix sockets are used: unix:/path/to/docker.sock"])
            return path
    usual = [DOCKER_SOCKET, PODMAN_SOCKET, os.path.join(_runtime_directory(environ), "podman", "podman.sock")]
    return next((path for path in usual if os.path.exists(path)), usual[0])


def _runtime_directory(environ: Mapping[str, str]) -> str:
    return environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"


def hint_for(path: str, error: OSError) -> str:
    """What to do about an engine that cannot be reached."""
    if isinstance(error, PermissionError):
        return "add the user of the activator to the group of the socket (docker), or run it as root"
    if "podman" in path:
        return "start it: systemctl --user enable --now podman.socket (as root without --user)"
    return "start it (systemctl start docker), or name its socket in `containers.engine`"


class EngineLook:
    """One engine, asked at once and blocking."""

    def __init__(self, path: str) -> None:
        self.path = path

    def problem(self) -> str:
        """Why it cannot be used; empty: it can."""
        try:
            status, _ = self._get("/_ping")
        except OSError as error:
            reason = error.strerror or error
            return f"the container engine at {self.path} cannot be reached: {reason}; {hint_for(self.path, error)}"
        except http.client.HTTPException:
            return f"what listens at {self.path} is no container engine: correct `containers.engine`"
        return "" if status == 200 else f"the container engine at {self.path} answers with status {status}"

    def has_image(self, name: str) -> bool:
        return self._get(f"/images/{quote(name, safe='/:@')}/json")[0] == 200

    def has_container(self, name: str) -> bool:
        return self._get(f"/containers/{quote(name, safe='')}/json")[0] == 200

    def _get(self, target: str) -> tuple[int, Any]:
        connection = _UnixConnection(self.path)
        try:
            connection.request("GET", target, headers={"Host": "engine"})
            answer = connection.getresponse()
            data = answer.read(LOOK_BYTES_MAX)
            return answer.status, data
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=LOOK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LOOK_TIMEOUT_S)
        self.sock.connect(self._path)


def labels_filter(*labels: str) -> str:
    """The query value that selects containers with all of these labels."""
    return json.dumps({"label": list(labels)})
