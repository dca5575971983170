"""Checks of `members` beyond the types of its values: keys that require each other."""

from __future__ import annotations

from typing import Final

from activator.config.edge_checks import item_at
from activator.config.model.kubernetes import SHARING_EXACT, SHARING_KNATIVE
from activator.config.model.members import PROOFS, STRICT
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item

MEMBERS_MAX: Final = 256  # a group has as many seats


def check_members(reader: Reader, root: Item, values: Values) -> None:
    """Check `members`; `root` and `values` are those of the whole file."""
    members = values.get("members", {})
    item = item_at(root, "members")
    kubernetes = values.get("kubernetes")
    for key in ("on_silence", "on_partition"):
        if members.get(key, STRICT) not in (*PROOFS, UNREADABLE):
            reader.found(item_at(item, key), f"members.{key}", " or ".join(PROOFS))
    for key in ("silence", "release"):
        if members.get(key) is not UNREADABLE and members.get(key, 1.0) <= 0.0:
            reader.found(item_at(item, key), f"members.{key}", "more than 0")
    _check_sharing(reader, root, members, kubernetes)
    if UNREADABLE in members.values():
        return
    listen = members.get("listen", "")
    if not listen:
        if any(members.get(key) for key in ("address", "peers", "key_file")):
            reader.advise(item, "members.listen", "`members` requires `listen`, such as 0.0.0.0:8015")
        return
    if not members.get("key_file"):
        reader.advise(item, "members.key_file", "members make sure of each other by a key: set `key_file`")
    _check_peers(reader, item, members, bool(kubernetes))


def _check_peers(reader: Reader, item: Item, members: Values, has_cluster: bool) -> None:
    peers, address, listen = members.get("peers", []), members.get("address", ""), members["listen"]
    place = item_at(item, "peers")
    if not peers:
        if not has_cluster:
            reader.advise(item, "members.peers", "list all members, this one among them (a cluster finds them itself)")
        return
    if len(peers) > MEMBERS_MAX:
        reader.found(place, "members.peers", f"at most {MEMBERS_MAX} members", f"{len(peers)}")
    if len(set(peers)) < len(peers):
        reader.advise(place, "members.peers", "an address is in the list twice: list each member once")
    if address and address not in peers:
        reader.advise(item_at(item, "address"), "members.address", f"{address} is not in `peers`: add it there")
        return
    ports = [_port(peer) for peer in peers]
    are_readable = all(port.isdecimal() for port in (*ports, _port(listen)))
    if not address and are_readable and _port(listen) not in ports:
        advice = f"none of the peers has the port of `listen` ({_port(listen)}): add this member, or set `address`"
        reader.advise(place, "members.peers", advice)


def _check_sharing(reader: Reader, root: Item, members: Values, kubernetes: Values | None) -> None:
    if not kubernetes:
        return
    sharing = kubernetes.get("sharing", "")
    item = item_at(item_at(root, "kubernetes"), "sharing")
    listens = bool(members.get("listen", ""))
    if sharing == SHARING_EXACT and not listens:
        reader.advise(item, "kubernetes.sharing", "`sharing: exact` requires `members`, with `listen` and `key_file`")
    if sharing == SHARING_KNATIVE and listens:
        reader.advise(item, "kubernetes.sharing", "`sharing: knative` excludes `members`: use `sharing: exact`")


def _port(address: str) -> str:
    return address.rpartition(":")[2]
