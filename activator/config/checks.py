"""Checks of a configuration beyond the types of its values: addresses, hosts, names, and conflicting keys.

Rules
  1. A check takes a built struct and its `KeyPath`. Where a value could not be read, the struct has a default, and
     `KeyPath` omits messages about it: a check names the other keys that a message depends on.
  2. A key that would be ignored is a mistake.
  3. A message has the found and the expected value, or, if two keys exclude or require each other, the correction.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Set as AbstractSet
from typing import Final

from activator.config.container_checks import ContainerChecker, check_containers
from activator.config.dependency_checks import check_dependencies
from activator.config.edge_checks import (
    check_access,
    check_connections,
    check_cors,
    check_forwarded,
    check_kubernetes,
    check_listener,
    check_positive,
    check_push,
    check_redirects,
    is_loopback,
    program_key,
)
from activator.config.effect_checks import check_effects
from activator.config.filter_checks import authoriser_of, check_filters, check_references
from activator.config.group_checks import GroupChecker
from activator.config.key_path import KeyPath
from activator.config.member_checks import check_members
from activator.config.model.file import Config
from activator.config.model.listeners import AdminListener, Listener, address_of_listener
from activator.config.model.pods import Dns, Pod
from activator.config.model.revision import Revision
from activator.config.model.scaling import STABLE_WINDOW_S
from activator.config.policy_checks import check_policy
from activator.config.probe_checks import check_health, check_probe
from activator.config.process_checks import ProcessChecker
from activator.config.queue_checks import check_adaptive, check_queue
from activator.config.routing_checks import RoutingChecker, Rule
from activator.config.scaling_checks import check_scaling, check_values
from activator.config.specs import key_of
from activator.config.telemetry_checks import check_telemetry
from activator.config.user_keys import check_keys, disciplines_of
from activator.config.waiting_checks import check_fallbacks, check_waiting
from activator.config.zones import check_preference, check_zone, check_zones_of_pods
from activator.runtime.sockets import join_address
from activator.runtime.unix_address import UNIX, is_unix, path_of
from activator.runtime.unix_address import problem_with as problem_with_unix

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def split_address(text: str, lowest_port: int = 1) -> tuple[str, int] | None:
    """Split `host:port` into (host, port), an IPv6 host in brackets; None if it is malformed."""
    host, colon, port_text = text.rpartition(":")
    if not colon or _PORT.fullmatch(port_text) is None or not lowest_port <= int(port_text) <= 65_535:
        return None
    if host.startswith("[") and host.endswith("]"):
        return (host[1:-1], int(port_text)) if _is_ip(host[1:-1], 6) else None
    return (host, int(port_text)) if _is_ip(host, 4) or _is_dns_name(host) else None


def is_same_listener(one: str, other: str) -> bool:
    """Return True if two sockets cannot listen on both addresses."""
    if is_unix(one) or is_unix(other):
        return is_unix(one) and is_unix(other) and path_of(one) == path_of(other)
    first, second = split_address(one), split_address(other)  # port 0: the kernel chooses another each time
    if first is None or second is None or first[1] != second[1]:
        return False
    wildcards = {"0.0.0.0", "::"}
    return _canonical_address(one) == _canonical_address(other) or bool(wildcards & {first[0], second[0]})


def leads_to(pod: str, listener: str) -> bool:
    """Return True if a connection to `pod` certainly reaches `listener` on this machine."""
    target, bound = split_address(pod), split_address(listener)
    if is_unix(pod) or is_unix(listener) or target is None or bound is None:
        return _canonical_address(pod) == _canonical_address(listener)
    if target[1] != bound[1]:
        return False
    if _canonical_address(pod) == _canonical_address(listener):
        return True
    is_local = target[0] == "localhost" or (_is_ip(target[0], 4) and ipaddress.ip_address(target[0]).is_loopback)
    return (is_local or target[0] == "::1") and bound[0] in {"0.0.0.0", "::", "localhost"}


def exposed_admin(admin: str | AdminListener) -> str:
    """Return the configuration to write if other machines could control the activator; empty if they cannot."""
    address = address_of_listener(admin)
    if address == "" or is_unix(address) or is_loopback(address):
        return ""
    if isinstance(admin, AdminListener) and (admin.token or admin.insecure):
        return ""
    safe = f"{{listen: {address}, token: file:/etc/activator/admin-token}}"
    return (
        f'"{address}" lets other machines control the program: write `admin: {safe}`, or `insecure: true` in the place '
        "of the token"
    )


def _canonical_address(text: str) -> str:
    """Return the canonical form of an address; a name is not resolved, and a malformed address not changed."""
    if is_unix(text):
        return f"{UNIX}{path_of(text)}"
    split = split_address(text)
    if split is None:
        return text
    host, port = split
    if ":" in host or _is_ip(host, 4):
        ip = ipaddress.ip_address(host)
        return f"{getattr(ip, 'ipv4_mapped', None) or ip}:{port}"
    return f"{host.lower().removesuffix('.')}:{port}"


def canonical_host(text: str) -> str | None:
    """Return the canonical form of a host: lower case, without a final dot, names in IDNA's ASCII form."""
    host = text
    if host == "*":
        return host
    prefix = "*." if host.startswith("*.") else ""
    host = host.removeprefix(prefix)
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    host = host.lower().removesuffix(".")
    if not prefix and (_is_ip(host, 4) or (host.startswith("[") and host.endswith("]") and _is_ip(host[1:-1], 6))):
        return host
    return prefix + host if _is_dns_name(host) else None


def _is_ip(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _is_dns_name(text: str) -> bool:
    # A last label of digits only is a mistyped IPv4 address, not a name.
    if len(text) > 253 or _DNS_NAME.fullmatch(text.lower()) is None:
        return False
    return not text.rstrip(".").rpartition(".")[2].isdecimal()


class Checker:
    """The checks of one file. `policy_names`: the available policies; None: any name is accepted."""

    def __init__(self, root: KeyPath, policy_names: AbstractSet[str] | None) -> None:
        self._root = root
        self._policy_names = policy_names
        self._takes_reports = False  # pods report themselves: a revision needs neither pods nor a process
        self._trusts_headers = False  # a revision needs no host
        self._are_several = False  # several data planes send requests to the same pods
        self._sorts_by_key: frozenset[str] | None = None  # disciplines that need no header; None: not in a file
        self._dependencies: frozenset[str] = frozenset()  # revisions that others depend on: they need no host
        self._listeners: list[tuple[str, str]] = []  # own listeners: key and address
        self._names: dict[str, str] = {}  # namespace/name → path of the revision
        self._routing = RoutingChecker()
        self._processes = ProcessChecker()
        self._containers = ContainerChecker()

    def check(self, config: Config) -> None:
        root = self._root
        _check_listeners(root["listen"], config.listen)
        _check_admin(root["admin"], config.admin)
        self._claim_ports(config)
        check_telemetry(root, config)
        check_forwarded(root["forwarded"], config.forwarded)
        check_cors(root["cors"], config.cors)
        _check_address(root["push"]["listen"], config.push.listen, lowest_port=0, or_empty=True)
        check_push(root["push"], config.push)
        _check_address(root["members"]["listen"], config.members.listen, lowest_port=0, or_empty=True)
        _check_address(root["members"]["address"], config.members.address, lowest_port=0, or_empty=True)
        for entry_at, peer in root["members"]["peers"].each(config.members.peers):
            _check_address(entry_at, peer)
        check_members(root, config)
        if config.kubernetes is not None:
            at = root["kubernetes"]
            check_kubernetes(at, config.kubernetes)
            scaler = config.kubernetes.external_scaler.listen
            _check_address(at["external_scaler"]["listen"], scaler, lowest_port=0, or_empty=True)
        _check_dns(root["dns"], config.dns)
        check_zone(root["zone"], config.zone)
        check_positive(root["limits"], config.limits, "header_bytes", "held_bytes")
        check_containers(root["containers"], config.containers)
        has_models = "models" in root and (bool(root["models"].item.entries) or root["models"].is_unread)
        has_other_sources = config.kubernetes is not None or config.containers.discover or has_models
        if not config.revisions and not has_other_sources:
            beside = (root["kubernetes"], root["containers"]["discover"])
            root["revisions"].advise("at least one revision is required, or `kubernetes`", beside=beside)
        check_keys(root, config)
        if "revisions" not in root:
            return
        self._trusts_headers = config.trust_revision_headers
        self._takes_reports = bool(config.push.listen)
        self._sorts_by_key = disciplines_of(config)
        self._are_several = config.workers != 1 or bool(config.members.listen)
        self._dependencies = frozenset(key_of(name) for one in config.revisions for name in one.depends_on)
        for entry_at, revision in root["revisions"].each(config.revisions):
            self._check_revision(entry_at, revision)
        check_dependencies(root, config)
        self._routing.finish()
        GroupChecker(root, config).check()
        check_effects(root, config)
        check_fallbacks(root, config.revisions)

    def _claim_ports(self, config: Config) -> None:
        """Claim the ports of own listeners: programs cannot have them, nor may `admin` be one of `listen`."""
        listeners = config.listen if isinstance(config.listen, list) else [config.listen]
        addresses = [address_of_listener(listener_address) for listener_address in listeners]
        admin = config.admin_address
        for key, address in [("listen", listener_address) for listener_address in addresses] + [("admin", admin)]:
            found = None if is_unix(address) else split_address(address)
            if found is not None:
                self._processes.claim(found[1], f"`{key}`")
        scaler = "" if config.kubernetes is None else config.kubernetes.external_scaler.listen
        own = [("listen", listener_address) for listener_address in addresses]
        own += [("admin", admin), ("kubernetes.external_scaler", scaler)]
        own += [("push", config.push.listen), ("members", config.members.listen)]
        self._listeners = [(key, address) for key, address in own if address]
        for address in addresses:
            if is_same_listener(address, admin):
                entry_at, listen = self._root["admin"], self._root["listen"]
                advice = f'"{admin}" cannot be listened on beside `listen`, which has "{address}": use another port'
                entry_at.advise(advice, "" if "admin" in self._root else listen.where, beside=(listen,))

    def check_declared(self, at: KeyPath, revision: Revision) -> None:
        """Check a revision that a cluster declares: its name, its pods and possibly its hosts come from elsewhere."""
        before = at.problem_count
        self._trusts_headers = True
        self._check_hosts(at, revision, self._routing.check_revision(at, revision))
        self._check_keys(at, revision)
        check_references(at, revision)
        if at.problem_count == before:
            check_filters(at, revision)
        check_values(at["scaling"], revision.scaling, STABLE_WINDOW_S)

    def _check_revision(self, at: KeyPath, revision: Revision) -> None:
        self._check_name(at, revision)
        self._check_hosts(at, revision, self._routing.check_revision(at, revision))
        self._check_source(at, revision)
        self._check_pods(at["pods"], revision.pods)
        check_preference(self._root, at, revision)
        check_zones_of_pods(at, revision)
        self._check_keys(at, revision)
        self._processes.check(at, revision)
        if revision.container is not None:
            self._processes.check_program(at["container"], revision.container, revision.container.directory)
        self._containers.check(at, revision)
        check_scaling(at, revision)
        check_waiting(at, revision)
        check_adaptive(at["adaptive_concurrency"], revision, self._root["workers"], self._are_several)
        check_filters(at, revision)
        self._check_authoriser(at["forward_auth"]["url"], revision)

    def _check_authoriser(self, at: KeyPath, revision: Revision) -> None:
        """Report an authoriser that is a listener of the activator, where the question would lead to the revision."""
        authoriser = None if revision.forward_auth is None else authoriser_of(revision.forward_auth.url)
        if authoriser is None:
            return
        host, port = authoriser[:2]
        is_own = host in revision.hosts or "*" in revision.hosts
        if is_own and any(
            key == "listen" and leads_to(join_address(host, port), address) for key, address in self._listeners
        ):
            at.advise("it is the address of `listen`, and leads to this revision: its questions would have no end")

    def _check_keys(self, at: KeyPath, revision: Revision) -> None:
        """Check the keys of a revision that do not depend on where it is declared."""
        check_connections(at, revision)
        check_policy(at, revision, self._policy_names)
        check_probe(at, revision)
        check_health(at, revision)
        check_queue(at["queue"], revision.queue, self._sorts_by_key)
        check_positive(at["timeouts"], revision.timeouts, "connect", "startup")

    def _check_name(self, at: KeyPath, revision: Revision) -> None:
        is_valid = True
        for key, text in (("name", revision.name), ("namespace", revision.namespace)):
            if _NAME.fullmatch(text) is None:
                is_valid = False
                at[key].found("letters, digits, `.`, `_` and `-`, at both ends a letter or digit")
        if not is_valid:
            return
        name = f"{revision.namespace}/{revision.name}"
        if name in self._names:
            advice = f'"{name}" is the name of {self._names[name]} already: use each name once in a namespace'
            at["name"].advise(advice)
        self._names.setdefault(name, str(at))

    def _check_hosts(self, at: KeyPath, revision: Revision, rule: Rule) -> None:
        is_dependency = f"{revision.namespace}/{revision.name}" in self._dependencies
        if not revision.hosts and not self._trusts_headers and not is_dependency:
            if "hosts" in at:
                at["hosts"].found("at least one host", "an empty list")
            else:
                at["hosts"].advise('`hosts` is required: the hosts that lead to this revision, or ["*"] for all')
        for entry_at, text in at["hosts"].each(revision.hosts):
            host = canonical_host(text)
            if host is None:
                entry_at.found("a host name without a port, *.suffix or *")
            else:
                self._routing.claim(host, text, entry_at, rule)

    def _check_source(self, at: KeyPath, revision: Revision) -> None:
        """Check that exactly one key defines the pods."""
        has_pods = bool(revision.pods or revision.pods_file) or at["pods"].is_unread
        program = program_key(at, revision)
        other = "container" if program == "process" and revision.container is not None else "pods"
        if program and (has_pods or other != "pods"):
            at.advise(f"set `{other}` or `{program}`, not both")
        elif not has_pods and not program and not self._takes_reports:
            advice = "set `pods`, `process` or `container`, or `push.listen` for pods that report themselves"
            at.advise(advice, beside=(at["pods_file"], self._root["push"]["listen"]))

    def _check_pods(self, at: KeyPath, pods: list[str | Pod]) -> None:
        """Check that each pod has a valid address, is listed once, and is no listener of the activator."""
        seen: set[str] = set()
        for entry, pod in at.each(pods):
            if isinstance(pod, Pod) and not _is_address_pod(entry, pod):
                continue
            entry_at, address = (entry["address"], pod.address) if isinstance(pod, Pod) else (entry, pod)
            _check_address(entry_at, address, or_unix=True)
            owner = next((key for key, listener in self._listeners if leads_to(address, listener)), "")
            if owner:
                why = "requests would come back without end" if owner == "listen" else "clients would reach that port"
                entry_at.advise(f'"{address}" is the address of `{owner}`: {why}')
            known_as = _canonical_address(address)
            if known_as in seen:
                entry_at.advise(f'"{address}" is in the list already: list each pod once')
            seen.add(known_as)


def _check_listeners(at: KeyPath, listen: str | Listener | list[str | Listener]) -> None:
    if not isinstance(listen, list):
        _check_listener(at, listen)
        check_redirects(at, [(at, listen)])
        return
    if not listen:
        at.found("at least one address", "an empty list")
    seen: set[str] = set()
    for entry_at, listener in at.each(listen):
        _check_listener(entry_at, listener)
        if isinstance(listener, str):
            if listener in seen:
                entry_at.advise(f'"{listener}" is in the list already: use each address once')
            seen.add(listener)
    check_redirects(at, at.each(listen))


def _check_listener(at: KeyPath, listener: str | Listener) -> None:
    if isinstance(listener, str):
        _check_address(at, listener, lowest_port=0, or_unix=True)
    else:
        _check_address(at["address"], listener.address, lowest_port=0, or_unix=True)
        check_listener(at, listener)


def _check_admin(at: KeyPath, admin: str | AdminListener) -> None:
    problems_before = at.problem_count
    address = address_of_listener(admin)
    if isinstance(admin, AdminListener):
        if "listen" in at and "address" in at:
            at.advise("set `listen` or `address`, not both", at["address"].where, beside=(at["listen"], at["address"]))
        elif at.sets("address") and not is_unix(admin.address):
            at["address"].found("a Unix socket; write HOST:PORT as `listen`")
        else:
            entry_at = at["address" if "address" in at else "listen"]
            _check_address(entry_at, address, lowest_port=0, or_unix=True, or_empty=True)
        check_access(at, admin, address)
    else:
        _check_address(at, admin, lowest_port=0, or_unix=True, or_empty=True)
    problem = exposed_admin(admin)
    if problem and at.problem_count == problems_before:  # only a valid address can be exposed
        at.advise(problem, beside=(at["token"], at["insecure"]))


def _check_dns(at: KeyPath, dns: Dns) -> None:
    check_positive(at, dns, "timeout")
    for entry_at, server in at["servers"].each(dns.servers):
        split = None if _is_ip(server, 4) or _is_ip(server, 6) else split_address(server)
        host = server if split is None else split[0]
        if not (_is_ip(host, 4) or _is_ip(host, 6)):
            entry_at.found("an IP address such as 10.0.0.2 or 10.0.0.2:5353")


def _is_address_pod(at: KeyPath, pod: Pod) -> bool:
    """Return True if the pod has an address to be checked; otherwise it has `srv`, or is a mistake."""
    if "srv" in at and "address" in at:
        at["srv"].advise("set `address` or `srv`, not both")
    elif pod.srv:
        if not _is_dns_name(pod.srv):
            at["srv"].found("a name such as _http._tcp.model.internal")
    elif "srv" not in at and "address" not in at:
        at.found('the key "address", or "srv"', "neither")
    else:
        return at.sets("address")
    return False


def _check_address(
    at: KeyPath, address: str, lowest_port: int = 1, or_unix: bool = False, or_empty: bool = False
) -> None:
    """Check `host:port`, or also `unix:/path` with `or_unix`; with `or_empty`, no address is valid."""
    if or_empty and not address:
        return
    if or_unix and is_unix(address):
        problem = problem_with_unix(address)
        if problem:
            at.advise(f'"{address}": {problem}')
    elif split_address(address, lowest_port) is None:
        whole = f"127.0.0.1:{address.removeprefix(':')}"
        _, scheme, rest = address.partition("://")
        expected = "host:port such as 127.0.0.1:8080 or [::1]:8080"
        if split_address(whole, lowest_port) is not None:
            expected = f"{whole}, or another host before the port"
        elif scheme and split_address(rest.rstrip("/"), lowest_port) is not None:
            expected = rest.rstrip("/")
        at.found(f"{expected}, or unix:/path" if or_unix else expected)
