"""The blocking queries of a container engine for `activator check`; a run has a client of its own."""

from __future__ import annotations

import http.client
import socket
from typing import Final
from urllib.parse import quote

from activator.config.engines import hint_for
from activator.runtime.units import MIB

INSPECTION_TIMEOUT_S: Final = 3.0
INSPECTION_BYTES_MAX: Final = MIB


class EngineInspection:
    """One engine, queried with blocking calls."""

    def __init__(self, path: str) -> None:
        self.path = path

    def problem(self) -> str:
        """Return why the engine cannot be used; empty if it can."""
        try:
            status, _ = self._get("/_ping")
        except OSError as error:
            reason = error.strerror or error
            return f"the container engine at {self.path} cannot be reached: {reason}; {hint_for(self.path, error)}"
        except http.client.HTTPException:
            return f"the server at {self.path} is not a container engine: correct `containers.engine`"
        return "" if status == 200 else f"the container engine at {self.path} answers with status {status}"

    def has_image(self, name: str) -> bool:
        return self._get(f"/images/{quote(name, safe='/:@')}/json")[0] == 200

    def has_container(self, name: str) -> bool:
        return self._get(f"/containers/{quote(name, safe='')}/json")[0] == 200

    def _get(self, target: str) -> tuple[int, bytes]:
        connection = _UnixConnection(self.path)
        try:
            connection.request("GET", target, headers={"Host": "engine"})
            answer = connection.getresponse()
            data = answer.read(INSPECTION_BYTES_MAX)
            return answer.status, data
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over the Unix socket at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=INSPECTION_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(INSPECTION_TIMEOUT_S)
        self.sock.connect(self._path)
