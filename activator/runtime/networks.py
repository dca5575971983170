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
    """True if the address is in one of the networks, an IPv4-mapped one as IPv4; False if it is not an address."""
    try:
        address = canonical(ipaddress.ip_address(ip.partition("%")[0]))
    except ValueError:
        return False
    return any(address.version == network.version and address in network for network in networks)
