"""Checks of a configuration beyond the types of its values: addresses, hosts, names, and conflicting keys.

Rules
  1. A check skips keys that could not be read, so that each mistake is reported once.
  2. A key that would be ignored is a mistake.
  3. A message has the found and the expected value, or, if two keys exclude or require each other, the correction.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Set as AbstractSet
from typing import Any, Final

from activator.config.container_checks import ContainerChecker, check_containers
from activator.config.edge_checks import EdgeChecker, element_at, is_loopback, item_at, program_key
from activator.config.filter_checks import check_filters
from activator.config.group_checks import GroupChecker
from activator.config.member_checks import check_members
from activator.config.model.file import DEFAULT_LISTEN
from activator.config.model.listeners import DEFAULT_ADMIN
from activator.config.model.scaling import STABLE_WINDOW_S
from activator.config.policy_checks import PolicyChecker
from activator.config.probe_checks import check_health, check_probe
from activator.config.process_checks import ProcessChecker
from activator.config.queue_checks import check_queue
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.routing_checks import RoutingChecker, Rule
from activator.config.scaling_checks import check_scaling, check_values
from activator.config.telemetry_checks import check_telemetry
from activator.config.tree import Item
from activator.config.waiting_checks import check_fallbacks, check_waiting
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
    """True if two sockets cannot listen on both addresses."""
    if is_unix(one) or is_unix(other):
        return is_unix(one) and is_unix(other) and path_of(one) == path_of(other)
    found, beside = split_address(one), split_address(other)  # port 0: the kernel chooses another each time
    if found is None or beside is None or found[1] != beside[1]:
        return False
    wild = {"0.0.0.0", "::"}
    return _canonical_address(one) == _canonical_address(other) or bool(wild & {found[0], beside[0]})


def leads_to(pod: str, listener: str) -> bool:
    """True if a connection to `pod` certainly reaches `listener` on this machine."""
    if is_unix(pod) or is_unix(listener) or _canonical_address(pod) == _canonical_address(listener):
        return _canonical_address(pod) == _canonical_address(listener)
    target, found = split_address(pod), split_address(listener)
    if target is None or found is None or target[1] != found[1]:
        return False
    is_local = target[0] == "localhost" or (_is_ip(target[0], 4) and ipaddress.ip_address(target[0]).is_loopback)
    return (is_local or target[0] == "::1") and found[0] in {"0.0.0.0", "::", "localhost"}


def _admin_address(admin: Any) -> Any:
    """Return the address of the admin port, whichever form `admin` has; UNREADABLE if it could not be read."""
    if not isinstance(admin, dict):
        return admin
    return admin.get("address") or admin.get("listen", DEFAULT_ADMIN)


def exposed_admin(address: Any, values: Values) -> str:
    """Return the configuration to write if other machines could control the activator; empty if they cannot."""
    if address in ("", UNREADABLE) or is_unix(address) or is_loopback(address):
        return ""
    if values.get("token") or values.get("insecure") is True:
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
    found = split_address(text)
    if found is None:
        return text
    host, port = found
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
    """Checks what a `Reader` has read: the items together with their values."""

    def __init__(self, reader: Reader, policy_names: AbstractSet[str] | None) -> None:
        self._reader = reader
        self._edge = EdgeChecker(reader)
        self._policies = PolicyChecker(reader, policy_names)
        self._takes_reports = False  # pods report themselves: a revision needs neither pods nor a process
        self._listeners: list[tuple[str, str]] = []  # own listeners: key and address
        self._names: dict[str, str] = {}  # namespace/name → path of the revision
        self._routing = RoutingChecker(reader)
        self._processes = ProcessChecker(reader)
        self._containers = ContainerChecker(reader)

    def check(self, root: Item, values: Values) -> None:
        self._check_listeners(root, values)
        self._check_admin(root, values)
        self._claim_ports(root, values)
        check_telemetry(self._reader, root, values)
        self._edge.check_forwarded(root, values)
        self._check_address(item_at(root, "push"), values.get("push", {}), "listen", "push.", allow_empty=True)
        self._edge.check_push(root, values)
        self._check_members(root, values)
        self._edge.check_kubernetes(root, values)
        scaler = (values.get("kubernetes") or {}).get("external_scaler", {})
        scaler_item = item_at(item_at(root, "kubernetes"), "external_scaler")
        self._check_address(scaler_item, scaler, "listen", "kubernetes.external_scaler.", allow_empty=True)
        self._check_dns(root, values)
        self._check_positive(root, values, "limits", "limits", ("header_bytes", "held_bytes"))
        check_containers(self._reader, item_at(root, "containers"), values.get("containers", {}))
        finds_containers = values.get("containers", {}).get("discover", False) is True
        declares_others = values.get("kubernetes") is not None or finds_containers
        revisions = values.get("revisions", [])
        revisions_item = root.entries.get("revisions") if root.entries else None
        if revisions_item is None or revisions_item.elements is None:
            if revisions_item is None and not declares_others:
                self._reader.advise(root, "revisions", "at least one revision is required, or `kubernetes`")
            return
        if not revisions_item.elements and not declares_others:
            self._reader.advise(revisions_item, "revisions", "at least one revision is required, or `kubernetes`")
        trusts_headers = values.get("trust_revision_headers", False)
        self._takes_reports = bool(values.get("push", {}).get("listen", ""))
        for place, (item, revision) in enumerate(zip(revisions_item.elements, revisions)):
            if revision is not UNREADABLE:
                self._check_revision(item, revision, f"revisions[{place}]", trusts_headers)
        self._routing.finish()
        GroupChecker(self._reader).check(root, values)
        check_fallbacks(self._reader, root, values)

    def _check_admin(self, root: Item, values: Values) -> None:
        problems = len(self._reader.problems)
        admin = values.get("admin", "")
        item = item_at(root, "admin")
        if isinstance(admin, dict):
            if "listen" in admin and "address" in admin:
                self._reader.advise(item_at(item, "address"), "admin", "set `listen` or `address`, not both")
            elif "address" in admin and not is_unix(admin["address"]):
                self._reader.found(item_at(item, "address"), "admin.address", "a Unix socket; others are `listen`")
            elif "address" in admin or admin.get("listen"):
                key = "address" if "address" in admin else "listen"
                self._check_is_address(item_at(item, key), admin[key], f"admin.{key}", 0, or_unix=True)
            self._edge.check_access(item, {"address": _admin_address(admin), **admin}, "admin")
        elif admin not in ("", UNREADABLE):
            self._check_is_address(item, admin, "admin", 0, or_unix=True)
        problem = exposed_admin(_admin_address(admin), admin if isinstance(admin, dict) else {})
        if problem and len(self._reader.problems) == problems:  # only a valid address can be exposed
            self._reader.advise(item, "admin", problem)

    def _claim_ports(self, root: Item, values: Values) -> None:
        """Claim the ports of own listeners: programs cannot have them, nor may `admin` be one of `listen`."""
        listen = values.get("listen", DEFAULT_LISTEN)
        listeners = listen if isinstance(listen, list) else [listen]
        addresses = [one.get("address", "") if isinstance(one, dict) else one for one in listeners]
        admin = _admin_address(values.get("admin", DEFAULT_ADMIN))
        for key, address in [("listen", one) for one in addresses] + [("admin", admin)]:
            found = None if address is UNREADABLE or is_unix(address) else split_address(address)
            if found is not None:
                self._processes.claim(found[1], f"`{key}`")
        self._listeners = [("listen", one) for one in addresses if one not in ("", UNREADABLE)]
        scaler = (values.get("kubernetes") or {}).get("external_scaler", {})
        others = {"admin": admin, "kubernetes.external_scaler": scaler.get("listen", "")}
        others |= {name: values.get(name, {}).get("listen", "") for name in ("push", "members")}
        self._listeners += [(name, one) for name, one in others.items() if one not in ("", UNREADABLE)]
        for address in addresses:
            if UNREADABLE not in (address, admin) and is_same_listener(address, admin):
                item = item_at(root, "admin" if "admin" in (root.entries or {}) else "listen")
                advice = f'"{admin}" cannot be listened on beside `listen`, which has "{address}": use another port'
                self._reader.advise(item, "admin", advice)

    def _check_dns(self, root: Item, values: Values) -> None:
        item = item_at(root, "dns")
        self._check_positive(root, values, "dns", "dns", ("timeout",))
        for place, server in enumerate(values.get("dns", {}).get("servers", [])):
            if server is UNREADABLE or _is_ip(server, 4) or _is_ip(server, 6):
                continue
            found = split_address(server)
            if found is None or not (_is_ip(found[0], 4) or _is_ip(found[0], 6)):
                one = element_at(item_at(item, "servers"), place)
                self._reader.found(one, f"dns.servers[{place}]", "an IP address such as 10.0.0.2 or 10.0.0.2:5353")

    def _check_members(self, root: Item, values: Values) -> None:
        item, members = item_at(root, "members"), values.get("members", {})
        for key in ("listen", "address"):
            self._check_address(item, members, key, "members.", allow_empty=True)
        peers = members.get("peers", [])
        for place, peer in enumerate(peers):
            if peer is not UNREADABLE:
                self._check_is_address(element_at(item_at(item, "peers"), place), peer, f"members.peers[{place}]")
        check_members(self._reader, root, values)

    def _check_listeners(self, root: Item, values: Values) -> None:
        if "listen" not in values:
            return
        item = item_at(root, "listen")
        is_list = item.elements is not None
        items = item.elements if item.elements is not None else [item]
        listeners = values["listen"] if is_list else [values["listen"]]
        if not items:
            self._reader.found(item, "listen", "at least one address", "an empty list")
        seen: set[str] = set()
        for place, (one, value) in enumerate(zip(items, listeners)):
            path = f"listen[{place}]" if is_list else "listen"
            if isinstance(value, dict):
                if "address" in value:
                    where = item_at(one, "address")
                    self._check_is_address(where, value["address"], f"{path}.address", 0, or_unix=True)
                self._edge.check_listener(one, value, path)
            elif value is not UNREADABLE:
                self._check_is_address(one, value, path, 0, or_unix=True)
                if value in seen:
                    self._reader.advise(one, path, f'"{value}" is in the list already: use each address once')
                seen.add(value)

    def check_declared(self, item: Item, values: Values, path: str) -> None:
        """Check a revision that a cluster declares: its name, its pods and possibly its hosts come from elsewhere."""
        self._check_hosts(item, values, path, True, self._routing.check_revision(item, values, path))
        self._check_keys(item, values, path)
        scaling = values.get("scaling")
        if isinstance(scaling, dict):
            check_values(self._reader, item_at(item, "scaling"), scaling, f"{path}.scaling", STABLE_WINDOW_S)

    def _check_revision(self, item: Item, values: Values, path: str, trusts_headers: bool) -> None:
        self._check_name(item, values, path)
        self._check_hosts(item, values, path, trusts_headers, self._routing.check_revision(item, values, path))
        self._check_pods(item, values, path)
        self._check_keys(item, values, path)
        if values.get("process") is not None:
            self._processes.check(item, values, path)
        if values.get("container") is not None:
            self._processes.check_program(item_at(item, "container"), values["container"], f"{path}.container")
            self._containers.check(item, values, path)
        check_scaling(self._reader, item, values, f"{path}.scaling")
        check_waiting(self._reader, item, values, path)
        check_filters(self._reader, item, values, path)

    def _check_keys(self, item: Item, values: Values, path: str) -> None:
        """Check the keys of a revision that do not depend on where it is declared."""
        self._edge.check_revision(item, values, path)
        self._policies.check_revision(item, values, path)
        check_probe(self._reader, item, values, f"{path}.probe")
        check_health(self._reader, item, values, f"{path}.health")
        check_queue(self._reader, item_at(item, "queue"), values.get("queue", {}), f"{path}.queue")
        self._check_positive(item, values, "timeouts", f"{path}.timeouts", ("connect", "startup"))

    def _check_name(self, item: Item, values: Values, path: str) -> None:
        readable = True
        for key in ("name", "namespace"):
            if key in values and _NAME.fullmatch(values[key]) is None:
                readable = False
                self._reader.found(item_at(item, key), f"{path}.{key}", "letters, digits, dots and dashes")
        if not readable or "name" not in values:
            return
        key = f"{values.get('namespace', 'default')}/{values['name']}"
        if key in self._names:
            advice = f'"{key}" is the name of {self._names[key]} already: use each name once in a namespace'
            self._reader.advise(item_at(item, "name"), f"{path}.name", advice)
        self._names.setdefault(key, path)

    def _check_hosts(self, item: Item, values: Values, path: str, trusts_headers: bool, rule: Rule) -> None:
        if "hosts" not in values:
            if not trusts_headers and "hosts" not in (item.entries or {}):
                advice = '`hosts` is required: the hosts that lead to this revision, or ["*"] for all'
                self._reader.advise(item, f"{path}.hosts", advice)
            return
        hosts_item = item_at(item, "hosts")
        if not values["hosts"] and not trusts_headers:
            self._reader.found(hosts_item, f"{path}.hosts", "at least one host", "an empty list")
        for place, text in enumerate(values["hosts"]):
            if text is UNREADABLE:
                continue
            one = element_at(hosts_item, place)
            at = f"{path}.hosts[{place}]"
            host = canonical_host(text)
            if host is None:
                self._reader.found(one, at, "a host name without a port, *.suffix or *")
            else:
                self._routing.claim(host, text, one, at, rule)

    def _check_pods(self, item: Item, values: Values, path: str) -> None:
        entries = item.entries or {}
        has_pods = bool(values["pods"]) if "pods" in values else "pods" in entries
        has_pods = has_pods or bool(values.get("pods_file", ""))
        program = program_key(item, values)
        other = "container" if program == "process" and values.get("container") is not None else "pods"
        if program and (has_pods or other != "pods"):
            self._reader.advise(item, path, f"set `{other}` or `{program}`, not both")
        elif not has_pods and not program and not self._takes_reports:
            advice = "set `pods`, `process` or `container`, or `push.listen` for pods that report themselves"
            self._reader.advise(item, path, advice)
        seen: set[str] = set()
        for place, pod in enumerate(values.get("pods", [])):
            pods_item = item_at(item, "pods")
            if pod is UNREADABLE or pods_item.elements is None:
                continue
            entry, at = pods_item.elements[place], f"{path}.pods[{place}]"
            if isinstance(pod, dict) and not self._is_address_pod(entry, pod, at):
                continue
            address = pod["address"] if isinstance(pod, dict) else pod
            one = item_at(entry, "address")
            at += ".address" if isinstance(pod, dict) else ""
            self._check_is_address(one, address, at, or_unix=True)
            key = next((key for key, listener in self._listeners if leads_to(address, listener)), "")
            if key:
                why = "requests would come back without end" if key == "listen" else "clients would reach that port"
                self._reader.advise(one, at, f'"{address}" is the address of `{key}`: {why}')
            known_as = _canonical_address(address)
            if known_as in seen:
                self._reader.advise(one, at, f'"{address}" is in the list already: list each pod once')
            seen.add(known_as)

    def _is_address_pod(self, item: Item, pod: Values, path: str) -> bool:
        """True if it has an address to be checked; otherwise it has `srv`, or is a mistake."""
        entries = item.entries or {}
        if "srv" in entries and "address" in entries:
            self._reader.advise(item_at(item, "srv"), f"{path}.srv", "set `address` or `srv`, not both")
        elif pod.get("srv", ""):
            if not _is_dns_name(pod["srv"]):
                self._reader.found(item_at(item, "srv"), f"{path}.srv", "a name such as _http._tcp.model.internal")
        elif not entries.keys() & {"srv", "address"}:
            self._reader.found(item, path, 'the key "address", or "srv"', "neither")
        else:
            return "address" in pod
        return False

    def _check_positive(self, item: Item, values: Values, group: str, path: str, keys: tuple[str, ...]) -> None:
        for key in keys:
            if values.get(group, {}).get(key, 1) <= 0:
                self._reader.found(item_at(item_at(item, group), key), f"{path}.{key}", "more than 0")

    def _check_address(self, item: Item, values: Values, key: str, prefix: str, allow_empty: bool = False) -> None:
        if key in values and not (allow_empty and values[key] == ""):
            self._check_is_address(item_at(item, key), values[key], prefix + key, lowest_port=0)

    def _check_is_address(
        self, item: Item, address: str, path: str, lowest_port: int = 1, or_unix: bool = False
    ) -> None:
        if or_unix and is_unix(address):
            problem = problem_with_unix(address)
            if problem:
                self._reader.advise(item, path, f'"{address}": {problem}')
        elif split_address(address, lowest_port) is None:
            whole = f"127.0.0.1:{address.removeprefix(':')}"
            expected = "host:port such as 127.0.0.1:8080 or [::1]:8080"
            if split_address(whole, lowest_port) is not None:
                expected = f"{whole}, or another host before the port"
            self._reader.found(item, path, f"{expected}, or unix:/path" if or_unix else expected)
