"""The client of a running activator's admin port, for `activator status` and the other commands."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from typing import Final

from activator.runtime.errors import StartError
from activator.runtime.unix_address import is_unix, path_of

ANSWER_S: Final = 5.0


class RefusedError(StartError):
    """The refusal of a command by the activator: its `problems`, and the status of its response."""

    def __init__(self, problems: list[str], status: int) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.status = status


def ask(admin: str, method: str, path: str, token: str = "", timeout_s: float = ANSWER_S) -> bytes:
    """Send a request. Return the body of the response.

    Raises StartError if no response comes within `timeout_s`, RefusedError if its status is an error.
    `admin` is a URL, `host:port` or `unix:/path`; `token` is the token of the admin port, if it needs one.
    """
    headers = {"Activator-Admin": "1", **({"Authorization": f"Bearer {token}"} if token else {})}
    if is_unix(admin):
        return _ask_over_unix(admin, method, path, headers, timeout_s)
    url = (admin if "://" in admin else f"http://{admin}").rstrip("/") + path
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise _refusal(url, error.code, error.read()) from error
    except (OSError, ValueError) as error:
        raise StartError(f"{url}: no activator answers there ({error}); name its admin port with --admin") from error


def _ask_over_unix(admin: str, method: str, path: str, headers: dict[str, str], timeout_s: float) -> bytes:
    connection = _UnixConnection(path_of(admin), timeout_s)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise StartError(f"{admin}: no activator answers there ({error}); name its admin port with --admin") from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise _refusal(f"{admin}{path}", answer.status, body)
    return body


def _refusal(url: str, status: int, body: bytes) -> RefusedError:
    """Return the error of a refusal in one line: its `problems`, or its text with the URL if it is no JSON."""
    try:
        return RefusedError(json.loads(body)["problems"], status)
    except (ValueError, KeyError, TypeError):
        return RefusedError([f"{url}: {body.decode('utf-8', 'replace').strip()}"], status)


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over the Unix socket at `path`."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._timeout_s = timeout_s
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)
