"""The socket of the container engine of this machine.

It is the configured one, else that of the variables that Docker's and Podman's own tools read, else the first of the
usual paths that exists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from activator.runtime.errors import ConfigError, one_line

DOCKER_SOCKET: Final = "/var/run/docker.sock"
PODMAN_SOCKET: Final = "/run/podman/podman.sock"
VARIABLES: Final = ("DOCKER_HOST", "CONTAINER_HOST")
PREFIX: Final = "unix:"


def socket_path(address: str) -> str | None:
    """Return the path in `unix:/path` or `unix:///path`; None if the address is malformed."""
    if not address.startswith(PREFIX):
        return None
    path = address.removeprefix(PREFIX)
    path = path.removeprefix("//") if path.startswith("///") else path
    return path if path.startswith("/") and not path.startswith("//") and "\0" not in path else None


def engine_path(configured: str, environ: Mapping[str, str]) -> str:
    """Return the path of the socket to use. Raises ConfigError if a configured address is malformed."""
    for origin, value in (("engine", configured), *((name, environ.get(name, "")) for name in VARIABLES)):
        if value:
            path = socket_path(value)
            if path is None:
                raise ConfigError(
                    [f"{origin}: {one_line(value)}: only unix sockets are used: unix:/path/to/docker.sock"]
                )
            return path
    usual = [DOCKER_SOCKET, PODMAN_SOCKET, os.path.join(_runtime_directory(environ), "podman", "podman.sock")]
    return next((path for path in usual if os.path.exists(path)), usual[0])


def _runtime_directory(environ: Mapping[str, str]) -> str:
    return environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"


def hint_for(path: str, error: OSError) -> str:
    """Return what to do about an engine that cannot be reached."""
    if isinstance(error, PermissionError):
        return "add the user of the activator to the group of the socket (docker), or run it as root"
    if "podman" in path:
        return "start it: systemctl --user enable --now podman.socket (as root without --user)"
    return "start it (systemctl start docker), or name its socket in `containers.engine`"
