"""Machines of a test: network namespaces on one bridge, between which a network fails in silence, as a real one does.

A link that is cut sends its packets to a hardware address that nobody has: nothing is refused and nothing is closed.
The bridge has two addresses: at one a machine finds the API server, at the other are clients, and pods behind it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable

PREFIX = "203.0.113"  # reserved for documentation (RFC 5737)
CLIENTS = f"{PREFIX}.1"
API = f"{PREFIX}.2"
NOBODY = "02:00:00:00:00:ff"
_NUMBERS = itertools.count()


def why_no_networks() -> str:
    """Empty: they can be made."""
    name = f"act-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"network namespaces cannot be made: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Networks:
    """Of one test, under one name; machines are made as they are asked for."""

    def __init__(self) -> None:
        self._name = f"act{os.getpid() % 100_000}{next(_NUMBERS)}"
        self._machines: dict[str, int] = {}
        _ip("link", "add", self._name, "type", "bridge")
        for address in (CLIENTS, API):
            _ip("address", "add", f"{address}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def address(self, machine: str) -> str:
        if machine not in self._machines:
            self._make(machine)
        return f"{PREFIX}.{10 + self._machines[machine]}"

    def prefix(self, machine: str) -> list[str]:
        """What runs a command on it."""
        self.address(machine)
        return ["ip", "netns", "exec", self._space(machine)]

    def cut(self, machine: str, others: Iterable[str]) -> None:
        """From these addresses, and these from it where they are machines of ours."""
        self._change(machine, others, "replace", "lladdr", NOBODY, "nud", "permanent")

    def mend(self, machine: str, others: Iterable[str]) -> None:
        self._change(machine, others, "delete")

    def close(self) -> None:
        for machine in self._machines:
            subprocess.run(["ip", "netns", "delete", self._space(machine)], check=False)
        subprocess.run(["ip", "link", "delete", self._name], check=False)

    def _change(self, machine: str, others: Iterable[str], what: str, *more: str) -> None:
        here = self.address(machine)
        machines = {self.address(name): name for name in self._machines}
        for other in others:
            self._neighbour(machine, what, other, *more)
            if other in machines:
                self._neighbour(machines[other], what, here, *more)

    def _neighbour(self, machine: str, what: str, address: str, *more: str) -> None:
        _ip("-n", self._space(machine), "neighbour", what, address, *more, "dev", "eth0")

    def _make(self, machine: str) -> None:
        number = self._machines[machine] = len(self._machines)
        space, link = self._space(machine), f"{self._name}v{number}"
        _ip("netns", "add", space)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", link, "master", self._name, "up")
        for words in (
            ("address", "add", f"{PREFIX}.{10 + number}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", CLIENTS),
        ):
            _ip("-n", space, *words)

    def _space(self, machine: str) -> str:
        return f"{self._name}-{machine}"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
