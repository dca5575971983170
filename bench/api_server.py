"""The CPU time of a real API server, if it is a process of this machine that may be inspected.

Reading the server's own metric would take more CPU time than the measured work, because all metrics come together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bench.processes import process_cpu_s

ReadCpu = Callable[[], float | None]
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_LISTENS = "0A"  # a state in /proc/net/tcp


def cpu_reader(kubeconfig: str) -> ReadCpu:
    """Return a function that reads the CPU time; it returns None if the server is elsewhere or cannot be inspected."""
    port = local_port(kubeconfig)
    pid = None if port is None else listener(port)
    return lambda: None if pid is None else process_cpu_s(pid)


def local_port(kubeconfig: str) -> int | None:
    """Return the port of the current context's server, if it is on loopback."""
    document = yaml.safe_load(Path(kubeconfig).read_text("utf-8"))
    contexts = {one["name"]: one["context"] for one in document.get("contexts") or ()}
    clusters = {one["name"]: one["cluster"] for one in document.get("clusters") or ()}
    context = contexts.get(document.get("current-context"), {})
    address = urlsplit(clusters.get(context.get("cluster"), {}).get("server", ""))
    return address.port if address.hostname in LOOPBACK_HOSTS else None


def listener(port: int) -> int | None:
    """Return the process that listens on a TCP port of this machine."""
    wanted = {f"socket:[{inode}]" for file in ("tcp", "tcp6") for inode in _listening(file, port)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and wanted and wanted & set(_sockets(entry)):
            return int(entry.name)
    return None


def _listening(file: str, port: int) -> list[str]:
    """Return the inodes of the listening sockets."""
    try:
        lines = Path("/proc/net", file).read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]


def _sockets(entry: Path) -> list[str]:
    found: list[str] = []
    try:
        found.extend(os.readlink(descriptor) for descriptor in (entry / "fd").iterdir())
    except OSError:
        pass  # the process has ended, or belongs to another user
    return found
