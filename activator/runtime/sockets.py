"""Addresses as text, and sockets that listen on them."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from activator.runtime.errors import StartError
from activator.runtime.unix_address import UNIX, is_unix, path_of
from activator.runtime.unix_sockets import SocketAccess, bind_unix

PRIVILEGED_BELOW: Final = 1024  # unless net.ipv4.ip_unprivileged_port_start says otherwise
LISTEN_BACKLOG: Final = 4096
ADMIN_CONNECTIONS_MAX: Final = 32  # of the admin port; then the oldest is closed

_passed: dict[socket.socket, bool] = {}  # sockets that whoever started us has opened → whether we listen on them


def pass_on(sockets: list[socket.socket]) -> None:
    """`bind` uses these for the addresses that they are bound to. They stay open: what waits in their queues is served
    by the next program if not by this one.
    """
    _passed.update(dict.fromkeys(sockets, False))


def unused() -> list[str]:
    """Addresses of sockets that were passed on, and that nothing was bound to."""
    return [address_of(sock) for sock, used in _passed.items() if not used]


def bind(address: str, shared: bool = False, access: SocketAccess | None = None) -> socket.socket:
    """A listening socket on `host:port` or `unix:/path`. Raises StartError with what to do.

    `shared`: beside others of ours on the same port, between which the kernel distributes connections (SO_REUSEPORT).
    `access`: who may connect to a Unix socket.
    """
    if is_unix(address):
        return _passed_at(path_of(address)) or bind_unix(address, access or SocketAccess(), LISTEN_BACKLOG)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, sockaddr = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {os.strerror(error.errno or 0)}") from error
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
        elif error.errno == errno.EACCES and 0 < int(port) < PRIVILEGED_BELOW:
            hint = (
                f"ports below {PRIVILEGED_BELOW} are root's; use another, such as {int(port) + 8000}, or let "
                "`activator install-service` open it by systemd"
            )
        else:
            hint = os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {address}: {hint}") from error
    return sock


def _passed_at(path: str) -> socket.socket | None:
    """The Unix socket that whoever started us has opened there."""
    for passed in _passed:
        if passed.family == socket.AF_UNIX and passed.getsockname() == path:
            _passed[passed] = True
            passed.setblocking(False)
            return passed.dup()
    return None


def address_of(sock: socket.socket) -> str:
    """`host:port` as bound, so that port 0 shows what it became; or `unix:/path`."""
    if sock.family == socket.AF_UNIX:
        return f"{UNIX}{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return join_address(host, port)


def join_address(host: str, port: int) -> str:
    """`10.0.0.1:80`, `[::1]:80`; a path is `unix:/run/app.sock`, without a port."""
    if host.startswith("/"):
        return f"{UNIX}{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """`10.0.0.1:80` and `[::1]:80` taken apart; of `unix:/run/app.sock` the path, and 0."""
    if is_unix(address):
        return path_of(address), 0
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
