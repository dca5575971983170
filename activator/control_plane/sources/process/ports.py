"""The owner of a configured port: checked before a program starts, and again when its port answers.

Rules
  1. A program is not started while another one listens on its port: it would fail, and requests would reach the other.
  2. The listening socket must belong to the program: it is a descriptor of a process of its group, or of one that
     carries the activator's mark and this port in its environment (a descendant with a session of its own).
  3. If /proc does not show the owner of a socket (another user's program, a sandbox), only rule 1 applies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from activator.control_plane.sources.process.reaper import MARK
from activator.runtime.local_listeners import LOOPBACK_4, LOOPBACK_6, Listening, listening, loopback_inodes
from activator.runtime.proc_listeners import listening_ports, port_listens, socket_listens
from activator.runtime.sockets import split_address
from activator.runtime.unix_listeners import listening_at

PORT_WAIT_S: Final = 1.0  # for a port that the last copy of the program has just released
PORT_STEP_S: Final = 0.01  # between two checks
DESCRIPTORS_MAX: Final = 200_000  # descriptors that are searched for the owner of a socket


def listens(address: str) -> bool:
    """Return True if a program of this machine listens on the address; checked without a connection."""
    host, port = split_address(address)
    state = listening_at(host) if host.startswith("/") else listening(host, port)
    if state is None:
        return socket_listens(host) if host.startswith("/") else port_listens(port)
    return state is Listening.YES


def is_taken(port: int) -> bool:
    """Return True if a program of this machine listens on the port."""
    states = (listening(LOOPBACK_4, port), listening(LOOPBACK_6, port))
    if None not in states:
        return any(state is not Listening.NO for state in states)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            sock.bind((LOOPBACK_4, port))
        except OSError:
            return True
    return False


def holder(port: int) -> str:
    """Return which program listens on a port, for an error text, if /proc shows it."""
    for process in owners(loopback_inodes(port) or frozenset(), _processes()).values():
        return described(process)
    return "another program"


def foreign_holder(port: int, group: int, mark: str) -> str:
    """Return which program listens on the port without belonging to this process group; empty if none is found."""
    sockets = loopback_inodes(port) or frozenset()
    first = [group, *(process for process in _processes() if process != group)]
    for process in owners(sockets, first).values():
        if not _belongs_to_program(process, group, mark, port):
            return described(process)
    return ""


def ports_of(processes: Iterable[int]) -> dict[int, int]:
    """Return the ports on which these processes are seen to listen, each with one of them that does.

    Reads through /proc, which may take some milliseconds.
    """
    ports = listening_ports()
    return {ports[inode]: process for inode, process in owners(frozenset(ports), processes).items()}


def owners(sockets: frozenset[int], processes: Iterable[int]) -> dict[int, int]:
    """Return, for each socket, the first of these processes that has it open; sockets without one are left out."""
    owner_by_socket: dict[int, int] = {}
    examined = 0
    for process in processes:
        if len(owner_by_socket) == len(sockets) or examined > DESCRIPTORS_MAX:
            break
        descriptors = _sockets_of(process, DESCRIPTORS_MAX)
        examined += len(descriptors)
        for inode in sockets & descriptors:
            owner_by_socket.setdefault(inode, process)
    return owner_by_socket


def described(process: int) -> str:
    """Describe a process by the name and number that `ps` shows."""
    try:
        name = Path(f"/proc/{process}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return f"process {process}"
    return f"{name} (process {process})"


def _processes() -> list[int]:
    """Return all processes, the youngest first: descendants of a program that has just started are among them."""
    try:
        return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)
    except OSError:
        return []


def _sockets_of(process: int, limit: int) -> frozenset[int]:
    folder = f"/proc/{process}/fd"
    inodes = set()
    try:
        for name in os.listdir(folder)[:limit]:
            kind, _, inode = os.readlink(f"{folder}/{name}").partition(":")
            if kind == "socket":
                inodes.add(int(inode.strip("[]")))
    except OSError:  # another user's process, or it has ended: the sockets found so far are valid
        return frozenset(inodes)
    return frozenset(inodes)


def _belongs_to_program(process: int, group: int, mark: str, port: int) -> bool:
    try:
        if os.getpgid(process) == group:
            return True
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables and f"PORT={port}".encode() in variables
