"""Checks of the edge beyond the types of values: listeners, certificates, trusted networks, upgrade protocols.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from activator.config.model.kubernetes import ACTIVATIONS, KNATIVE, KUBERNETES_MODES, SHARING_KNATIVE, SHARINGS
from activator.config.model.listeners import ALPN_PROTOCOLS, FORWARDED_HEADERS, TLS_VERSIONS
from activator.config.model.pods import POD_PROTOCOLS, PROBE_GRPC, PROXY_VERSIONS
from activator.config.model.queueing import CANCEL_CLOSE, CANCEL_MODES, CANCEL_TIMEOUT_S, CANCEL_WAIT
from activator.config.reader import TOKEN, UNREADABLE, Reader, Values
from activator.config.tree import Item
from activator.runtime.unix_address import is_unix

_VIA: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:-]+")  # a pseudonym, or host:port

_MODE: Final = re.compile(r"0?[0-7]{3}")

_NETWORK: Final = "a network such as 10.0.0.0/8 or an address"


class EdgeChecker:
    """Checks what a `Reader` has read: the items together with their values."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def check_listener(self, item: Item, values: Values, path: str) -> None:
        """Check one listener with its own settings."""
        self.check_access(item, values, path)
        self._check_proxies(item, values, path)
        self._check_version(item, values, path)
        self._check_alpn(item, values, path)
        several = values.get("certificates", [])
        if UNREADABLE in (values.get("certificate", ""), values.get("key", ""), several):
            return
        if bool(values.get("certificate")) != bool(values.get("key")):
            self._reader.advise(item, path, "`certificate` and `key` require each other: set both")
        elif values.get("certificate") and several:
            advice = "a listener with TLS requires either `certificate` and `key`, or `certificates`"
            self._reader.advise(item, path, advice)
        elif values.get("certificate"):
            self._check_pair(item, values, path)
        elif not several:
            self._check_plain(item, values, path)
        for place, pair in enumerate(several):
            if pair is not UNREADABLE and UNREADABLE not in (
                pair.get("certificate", UNREADABLE),
                pair.get("key", UNREADABLE),
            ):
                listed = element_at(item_at(item, "certificates"), place)
                self._check_pair(listed, pair, f"{path}.certificates[{place}]")

    def _check_plain(self, item: Item, values: Values, path: str) -> None:
        for key in ("certificates", "min_version", "alpn"):
            if key in values:
                advice = f"`{key}` is for TLS, which requires `certificate` and `key`, or `certificates`"
                self._reader.advise(item_at(item, key), path, advice)

    def check_access(self, item: Item, values: Values, path: str) -> None:
        """Check the permissions of a Unix socket."""
        address, mode = values.get("address", ""), values.get("mode", "")
        for key in ("mode", "owner", "group"):
            if values.get(key) and address and not is_unix(address):
                advice = f"`{key}` is for Unix sockets, and {address} is none: take it out"
                self._reader.advise(item_at(item, key), f"{path}.{key}", advice)
        if mode and mode is not UNREADABLE and _MODE.fullmatch(mode) is None:
            self._reader.found(item_at(item, "mode"), f"{path}.mode", "three octal digits such as 0660")

    def _check_proxies(self, item: Item, values: Values, path: str) -> None:
        said, item = values.get("proxy_protocol"), item_at(item, "proxy_protocol")
        if said is None or said is UNREADABLE:
            return
        path = f"{path}.proxy_protocol"
        networks = said if isinstance(said, list) else said.get("trusted", UNREADABLE)
        listed, at = (item, path) if isinstance(said, list) else (item_at(item, "trusted"), f"{path}.trusted")
        if networks is UNREADABLE:
            return
        if not networks:
            self._reader.found(listed, at, f"{_NETWORK}, or unix", "an empty list")
        for place, text in enumerate(networks):
            if text is not UNREADABLE and not _is_peer(text):
                self._reader.found(element_at(listed, place), f"{at}[{place}]", f"{_NETWORK}, or unix")

    def check_forwarded(self, root: Item, values: Values) -> None:
        forwarded = values.get("forwarded", {})
        item = item_at(root, "forwarded")
        self._check_each(item, forwarded, "forwarded.trust", _is_peer, f"{_NETWORK}, or unix")
        if forwarded.get("headers", "none") not in FORWARDED_HEADERS:
            self._reader.found(item_at(item, "headers"), "forwarded.headers", "one of " + ", ".join(FORWARDED_HEADERS))
        via = forwarded.get("via", "")
        if via and _VIA.fullmatch(via) is None:
            self._reader.found(item_at(item, "via"), "forwarded.via", "one word, such as activator")

    def check_kubernetes(self, root: Item, values: Values) -> None:
        kubernetes = values.get("kubernetes") or {}
        item = item_at(root, "kubernetes")
        self._check_choice(item, kubernetes, "mode", KUBERNETES_MODES)
        self._check_choice(item, kubernetes, "sharing", SHARINGS)
        interval = kubernetes.get("reconcile_interval", 1.0)
        if interval is not UNREADABLE and interval <= 0.0:
            place = item_at(item, "reconcile_interval")
            self._reader.found(place, "kubernetes.reconcile_interval", "a duration above 0, such as 30s")
        self._check_mode(item, kubernetes)
        url = kubernetes.get("autoscaler", "")
        if url and not url.startswith(("ws://", "wss://")):
            self._reader.found(item_at(item, "autoscaler"), "kubernetes.autoscaler", "ws://host:port")

    def _check_mode(self, item: Item, values: Values) -> None:
        """Report keys that the other mode has."""
        mode = values.get("mode", KNATIVE)
        others = {KNATIVE: ("namespace", "service"), ACTIVATIONS: ("autoscaler", "scale_fallback")}.get(mode, ())
        for key in others:
            if values.get(key):
                other = ACTIVATIONS if mode == KNATIVE else KNATIVE
                self._reader.advise(item_at(item, key), f"kubernetes.{key}", f"`{key}` requires `mode: {other}`")
        if mode == ACTIVATIONS and values.get("sharing") == SHARING_KNATIVE:
            advice = f"`sharing: {SHARING_KNATIVE}` requires `mode: {KNATIVE}`; use `exact`, with `members`"
            self._reader.advise(item_at(item, "sharing"), "kubernetes.sharing", advice)
        service = values.get("service", "")
        if service not in ("", UNREADABLE) and (service.count("/") != 1 or not all(service.split("/"))):
            self._reader.found(item_at(item, "service"), "kubernetes.service", "namespace/name")

    def _check_choice(self, item: Item, values: Values, name: str, choices: tuple[str, ...]) -> None:
        found = values.get(name, choices[0])
        if found is not UNREADABLE and found not in choices:
            self._reader.found(item_at(item, name), f"kubernetes.{name}", " or ".join(choices))

    def check_push(self, root: Item, values: Values) -> None:
        push = values.get("push", {})
        item = item_at(root, "push")
        self._check_each(item, push, "push.networks", _is_network, _NETWORK)
        if push.get("token") and push.get("token_file"):
            self._reader.advise(item_at(item, "token"), "push", "set `token` or `token_file`, not both")
        listen = push.get("listen", "")
        if not listen:
            if any(push.get(key) for key in ("token", "token_file", "networks")):
                self._reader.advise(item, "push.listen", "`push` requires `listen`, such as 127.0.0.1:8014")
        elif not is_loopback(listen) and not push.get("token") and not push.get("token_file"):
            advice = f"`listen: {listen}` is not a loopback address: it requires `token` or `token_file`"
            self._reader.advise(item, "push", advice)

    def check_revision(self, item: Item, values: Values, path: str) -> None:
        self._check_each(item, values, f"{path}.upgrades", _is_token, "a protocol such as websocket")
        self._check_protocol(item, values, path)
        self._check_introduction(item, values, path)
        self._check_cancel(item, values, path)
        tls = values.get("tls")
        if tls is not None and tls is not UNREADABLE:
            self._check_pod_tls(item_at(item, "tls"), tls, f"{path}.tls", program_key(item, values))

    def _check_pod_tls(self, item: Item, values: Values, path: str, program: str) -> None:
        if program:
            self._reader.advise(item, path, "`tls` requires `pods`: connections to local programs are without TLS")
        if bool(values.get("certificate")) != bool(values.get("key")):
            self._reader.advise(item, path, "`certificate` and `key` require each other: set both or neither")
        elif values.get("certificate"):
            self._check_pair(item, values, path)
        self._check_version(item, values, path)
        authorities = values.get("ca", "")
        if authorities:
            from activator.runtime.certificates import problem_with_authorities  # ssl: only where TLS is configured

            problem = problem_with_authorities(authorities)
            if problem:
                self._reader.found(item_at(item, "ca"), f"{path}.ca", "a file of certificates in PEM", problem)

    def _check_introduction(self, item: Item, values: Values, path: str) -> None:
        """Check the PROXY protocol for pods, and the keys that it excludes."""
        version = values.get("proxy_protocol", "")
        if version in ("", UNREADABLE):
            return
        where, at = item_at(item, "proxy_protocol"), f"{path}.proxy_protocol"
        if version not in PROXY_VERSIONS:
            self._reader.found(where, at, "one of " + ", ".join(PROXY_VERSIONS))
        if values.get("protocol", "auto") in {"h2c", "h2"}:
            advice = "HTTP/2 carries requests of several clients on one connection: use `protocol: h1`"
            self._reader.advise(where, at, advice)
        if values.get("tls") is not None:
            self._reader.advise(where, at, "it is sent to pods without TLS only: take it or `tls` out")
        probe, program = values.get("probe"), values.get(program_key(item, values))
        if isinstance(probe, dict) and (probe.get("identity_header") or probe.get("kind") == PROBE_GRPC):
            advice = "the probe's `identity_header` and `grpc` have no effect on such pods: take it or them out"
            self._reader.advise(where, at, advice)
        sleep = program.get("sleep") if isinstance(program, dict) else None
        if isinstance(sleep, dict) and sleep.get("http_post"):
            self._reader.advise(where, at, "`sleep.http_post` is sent without it: use `sleep.command` or `signal`")

    def _check_cancel(self, item: Item, values: Values, path: str) -> None:
        """Check the keys for requests that are cancelled."""
        mode, timeout = values.get("on_cancel", CANCEL_CLOSE), values.get("cancel_timeout")
        if mode is not UNREADABLE and mode not in CANCEL_MODES:
            self._reader.found(item_at(item, "on_cancel"), f"{path}.on_cancel", "one of " + ", ".join(CANCEL_MODES))
        elif timeout not in (None, UNREADABLE):
            where, at = item_at(item, "cancel_timeout"), f"{path}.cancel_timeout"
            if mode == CANCEL_CLOSE and timeout != CANCEL_TIMEOUT_S:  # an API server fills defaults in
                self._reader.advise(where, at, f"`cancel_timeout` requires `on_cancel: {CANCEL_WAIT}`")
            elif timeout <= 0:
                self._reader.found(where, at, "more than 0")

    def _check_each(self, item: Item, values: Values, path: str, fits: Callable[[str], bool], expected: str) -> None:
        """Check a list of texts, whose key is the last word of `path`."""
        key = path.rpartition(".")[2]
        listed = item_at(item, key)
        for place, text in enumerate(values.get(key, [])):
            if text is not UNREADABLE and not fits(text):
                self._reader.found(element_at(listed, place), f"{path}[{place}]", expected)

    def _check_protocol(self, item: Item, values: Values, path: str) -> None:
        """Check the protocol for the pods."""
        protocol = values.get("protocol", "auto")
        if protocol is UNREADABLE:
            return
        where, at = item_at(item, "protocol"), f"{path}.protocol"
        tls = values.get("tls")
        if protocol not in POD_PROTOCOLS:
            self._reader.found(where, at, "one of " + ", ".join(POD_PROTOCOLS))
        elif protocol == "h2" and tls is None:
            self._reader.advise(where, at, "`h2` is HTTP/2 over TLS and requires `tls`; without TLS it is `h2c`")
        elif protocol == "h2c" and tls is not None:
            self._reader.advise(where, at, "`h2c` is HTTP/2 without TLS; with `tls` it is `h2`")
        elif protocol in {"h2c", "h2"} and values.get("lenient_pods") is True:
            advice = "`lenient_pods` is about HTTP/1.1, and `protocol` is " + protocol
            self._reader.advise(item_at(item, "lenient_pods"), f"{path}.lenient_pods", advice)

    def _check_alpn(self, item: Item, values: Values, path: str) -> None:
        known = " or ".join(ALPN_PROTOCOLS)
        self._check_each(item, values, f"{path}.alpn", ALPN_PROTOCOLS.__contains__, known)
        if values.get("alpn", ALPN_PROTOCOLS) == []:
            self._reader.found(item_at(item, "alpn"), f"{path}.alpn", f"at least one of {known}", "an empty list")

    def _check_version(self, item: Item, values: Values, path: str) -> None:
        version = values.get("min_version", "1.2")
        if version not in TLS_VERSIONS:
            expected = " or ".join(f'"{known}"' for known in TLS_VERSIONS)
            self._reader.found(item_at(item, "min_version"), f"{path}.min_version", expected)

    def _check_pair(self, item: Item, values: Values, path: str) -> None:
        from activator.runtime.certificates import problem_with  # ssl is imported only if TLS is configured

        problem = problem_with(values["certificate"], values["key"])
        if problem:
            at = item_at(item, "certificate")
            self._reader.found(at, f"{path}.certificate", "a certificate and its key", problem)


def _is_token(text: str) -> bool:
    return TOKEN.fullmatch(text) is not None


def _is_peer(text: str) -> bool:
    """True for a client: a network, or `unix` for the clients of a Unix socket."""
    return text == "unix" or _is_network(text)


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def program_key(item: Item, values: Values) -> str:
    """Return the key of a revision's program: `process`, `container`, or an empty string."""
    for key in ("process", "container"):
        if values.get(key) is not None or (key not in values and key in (item.entries or {})):
            return key
    return ""


def item_at(item: Item, key: str) -> Item:
    """Return the item of a key, or the one that would contain it."""
    return item.entries.get(key, item) if item.entries else item


def element_at(item: Item, place: int) -> Item:
    """Return the item of a list's member, or the list itself if it was given as one text."""
    return item.elements[place] if item.elements else item
