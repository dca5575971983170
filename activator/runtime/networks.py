"""Networks of IP addresses, as settings name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def canonical(address: Address) -> Address:
    """Return an IPv4-mapped address (::ffff:192.0.2.1) as IPv4, and any other as it is."""
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def is_within(ip: str, networks: Iterable[Network]) -> bool:
    """Return True if the address (IPv4-mapped: as IPv4) is in one of the networks; False if it is no address."""
    try:
        address = canonical(ipaddress.ip_address(ip.partition("%")[0]))
    except ValueError:
        return False
    return any(address.version == network.version and address in network for network in networks)
