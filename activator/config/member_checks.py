"""Checks of `members` beyond the types of its values: keys that require each other."""

from __future__ import annotations

from typing import Final

from activator.config.edge_checks import check_positive
from activator.config.key_path import KeyPath
from activator.config.model.file import Config
from activator.config.model.kubernetes import SHARING_EXACT, SHARING_KNATIVE
from activator.config.model.members import PROOFS, Members

MEMBERS_MAX: Final = 256  # a group has as many seats


def check_members(root: KeyPath, config: Config) -> None:
    """Check `members`, and the key of the cluster that depends on it."""
    at, members, kubernetes = root["members"], config.members, config.kubernetes
    for key, proof in (("on_silence", members.on_silence), ("on_partition", members.on_partition)):
        if proof not in PROOFS:
            at[key].found(" or ".join(PROOFS))
    check_positive(at, members, "silence", "release")
    if kubernetes is not None:
        _check_sharing(root, kubernetes.sharing, members)
    if any(at[key].is_unread for key in ("listen", "address", "peers", "key_file")):
        return
    if not members.listen:
        if members.address or members.peers or members.key_file:
            at["listen"].advise("`members` requires `listen`, such as 0.0.0.0:8015", at.where)
        return
    if not members.key_file:
        at["key_file"].advise("members authenticate each other with a key: set `key_file`", at.where)
    _check_peers(at, members, kubernetes is not None or root["kubernetes"].is_unread)


def _check_peers(at: KeyPath, members: Members, has_cluster: bool) -> None:
    peers, address, listen = members.peers, members.address, members.listen
    if not peers:
        if not has_cluster:
            at["peers"].advise("list all members, this one among them (a cluster finds them itself)", at.where)
        return
    if len(peers) > MEMBERS_MAX:
        at["peers"].found(f"at most {MEMBERS_MAX} members", f"{len(peers)}")
    if len(set(peers)) < len(peers):
        at["peers"].advise("an address is in the list twice: list each member once")
    if address and address not in peers:
        at["address"].advise(f"{address} is not in `peers`: add it there")
        return
    ports = [_port(peer) for peer in peers]
    are_readable = all(port.isdecimal() for port in (*ports, _port(listen)))
    if not address and are_readable and _port(listen) not in ports:
        advice = f"none of the peers has the port of `listen` ({_port(listen)}): add this member, or set `address`"
        at["peers"].advise(advice)


def _check_sharing(root: KeyPath, sharing: str, members: Members) -> None:
    at, listen = root["kubernetes"]["sharing"], (root["members"]["listen"],)
    if sharing == SHARING_EXACT and not members.listen:
        at.advise("`sharing: exact` requires `members`, with `listen` and `key_file`", beside=listen)
    if sharing == SHARING_KNATIVE and members.listen:
        at.advise("`sharing: knative` excludes `members`: use `sharing: exact`")


def _port(address: str) -> str:
    return address.rpartition(":")[2]
