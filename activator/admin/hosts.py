"""The hosts that a request to the admin port may name: a browser sends the one of the address bar."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def hostname(host: str) -> str:
    """Return the name or address of a Host field; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets without an IPv6 address
        return ""


def is_own(host: str) -> bool:
    """Return True for an address, or a name that an attacker cannot point to this machine by DNS rebinding."""
    if host == "localhost" or host.endswith((".localhost", ".svc", ".cluster.local")):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
