"""Listening sockets, and addresses as text."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from activator.runtime.errors import StartError
from activator.runtime.unix_address import UNIX, is_unix, path_of
from activator.runtime.unix_sockets import SocketAccess, bind_unix

PRIVILEGED_BELOW: Final = 1024  # the default of net.ipv4.ip_unprivileged_port_start
LISTEN_BACKLOG: Final = 4096
ADMIN_CONNECTIONS_MAX: Final = 32  # connections of the admin port; above it, the oldest is closed

_inherited: dict[str, deque[list[socket.socket]]] = {}
_passed: dict[socket.socket, bool] = {}  # sockets passed by systemd → whether `bind` has used them


def pass_on(sockets: list[socket.socket]) -> None:
    """Make `bind` use these sockets for the addresses that they are bound to.

    They stay open, so that connections in their queues are served by the next program if not by this one.
    """
    _passed.update(dict.fromkeys(sockets, False))


def unused() -> list[str]:
    """Return the addresses of passed sockets that `bind` has not used."""
    return [address_of(sock) for sock, used in _passed.items() if not used]


def inherit(groups: Iterable[tuple[str, list[socket.socket]]]) -> None:
    """Keep listening sockets of a former process of the activator for `inherited`: groups, each with its name.

    They become non-blocking as objects, too: `dup` of one that is not would set the flag that both processes share, and
    the other one would block in `accept` while this one takes the connection.
    """
    for name, group in groups:
        for sock in group:
            sock.setblocking(False)
        _inherited.setdefault(name, deque()).append(group)


def inherited(name: str) -> list[socket.socket]:
    """Return the first group of this name; empty if there is none left. The sockets belong to the caller."""
    groups = _inherited.get(name)
    return groups.popleft() if groups else []


def close_inherited() -> None:
    """Close the groups that nothing has used."""
    for groups in _inherited.values():
        for group in groups:
            for sock in group:
                sock.close()
    _inherited.clear()


def bind(address: str, shared: bool = False, access: SocketAccess | None = None) -> socket.socket:
    """Return a listening socket on `host:port` or `unix:/path`. Raises StartError, whose text states what to do.

    `shared`: other processes of the program listen on the same port, and the kernel distributes the connections
    (SO_REUSEPORT). `access` are the permissions of a Unix socket.
    """
    if is_unix(address):
        return _passed_at(path_of(address)) or bind_unix(address, access or SocketAccess(), LISTEN_BACKLOG)
    try:
        family, sockaddr = _resolved(address)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {os.strerror(error.errno or 0)}") from error
    _, port = split_address(address)
    for passed in _passed:
        if passed.family == family and passed.getsockname()[:2] == sockaddr[:2]:
            sock.close()
            if shared:
                hint = "it cannot be shared by several workers; remove its socket unit, or set `workers: 1`"
                raise StartError(f"cannot listen on {address}: systemd has opened it, and {hint}")
            _passed[passed] = True
            passed.setblocking(False)
            return passed.dup()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(sockaddr)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            hint = "the port is in use; stop the other program or choose another address"
        elif error.errno == errno.EACCES and 0 < port < PRIVILEGED_BELOW:
            hint = (
                f"ports below {PRIVILEGED_BELOW} are root's; use another, such as {port + 8000}, or let "
                "`activator install-service` open it by systemd"
            )
        elif error.errno == errno.EADDRNOTAVAIL:
            hint = "this machine has no such address; `ip address` shows those it has"
        else:
            hint = os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {address}: {hint}") from error
    return sock


def is_bound_to(sock: socket.socket, address: str) -> bool:
    """Return True if the address names this listening socket. Port 0 names every port of its host."""
    if is_unix(address) or sock.family == socket.AF_UNIX:
        return is_unix(address) and address_of(sock) == f"{UNIX}{path_of(address)}"
    try:
        family, sockaddr = _resolved(address)
    except OSError:
        return False
    host, port = sock.getsockname()[:2]
    return sock.family == family and host == sockaddr[0] and sockaddr[1] in {0, port}


def _resolved(address: str) -> tuple[int, Any]:
    """Return the family of `host:port`, and the address as the kernel takes it. Raises OSError."""
    host, port = split_address(address)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, sockaddr = found[0]
    return family, sockaddr


def _passed_at(path: str) -> socket.socket | None:
    """Return the Unix socket that systemd has opened at `path`, if there is one."""
    for passed in _passed:
        if passed.family == socket.AF_UNIX and passed.getsockname() == path:
            _passed[passed] = True
            passed.setblocking(False)
            return passed.dup()
    return None


def address_of(sock: socket.socket) -> str:
    """Return `host:port` as bound, with the actual port if port 0 was requested, or `unix:/path`."""
    if sock.family == socket.AF_UNIX:
        return f"{UNIX}{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return join_address(host, port)


def join_address(host: str, port: int) -> str:
    """Return an address such as `10.0.0.1:80` or `[::1]:80`; for a path, `unix:/run/app.sock` without a port."""
    if host.startswith("/"):
        return f"{UNIX}{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Split `10.0.0.1:80` or `[::1]:80` into host and port; `unix:/run/app.sock` into the path and 0."""
    if is_unix(address):
        return path_of(address), 0
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
