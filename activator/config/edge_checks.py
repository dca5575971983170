"""Checks of the edge beyond the types of values: listeners, certificates, trusted networks, upgrade protocols.

Part of `checks.py`, with its rules.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from activator.config.key_path import KeyPath
from activator.config.model.keys import Cors
from activator.config.model.kubernetes import (
    ACTIVATIONS,
    KNATIVE,
    KUBERNETES_MODES,
    SHARING_KNATIVE,
    SHARINGS,
    Kubernetes,
)
from activator.config.model.listeners import (
    ALPN_PROTOCOLS,
    FORWARDED_HEADERS,
    REDIRECT_HTTPS,
    REDIRECT_STATUSES,
    TLS_VERSIONS,
    CertificateFiles,
    Forwarded,
    Listener,
    Redirect,
    SocketFile,
    https_ports,
)
from activator.config.model.pods import POD_PROTOCOLS, PROBE_GRPC, PROXY_VERSIONS, PodTls, Push
from activator.config.model.queueing import CANCEL_CLOSE, CANCEL_MODES, CANCEL_TIMEOUT_S, CANCEL_WAIT
from activator.config.model.revision import Revision
from activator.config.reader import TOKEN
from activator.runtime.networks import canonical
from activator.runtime.unix_address import is_unix

_VIA: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:-]+")  # a pseudonym, or host:port

_MODE: Final = re.compile(r"0?[0-7]{3}")

ORIGINS_MAX: Final = 100

# A scheme, `://`, and an authority in lower case, as browsers send it.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:_\[\]-]+")

NETWORK: Final = "a network such as 10.0.0.0/8 or an address"


def check_listener(at: KeyPath, listener: Listener) -> None:
    """Check one listener with its own settings."""
    check_access(at, listener, listener.address)
    _check_proxies(at, listener)
    _check_version(at, listener)
    _check_alpn(at, listener)
    both, several = bool(listener.certificate), listener.certificates
    tls = (at["certificate"], at["key"], at["certificates"])
    if bool(listener.certificate) != bool(listener.key):
        at.advise("`certificate` and `key` require each other: set both", beside=tls)
    elif both and several:
        at.advise("a listener with TLS requires either `certificate` and `key`, or `certificates`", beside=tls)
    elif both:
        _check_pair(at, listener, tls)
    elif not several:
        for key in ("certificates", "min_version", "alpn"):
            if key in at:
                advice = f"`{key}` is for TLS, which requires `certificate` and `key`, or `certificates`"
                at.advise(advice, at[key].where, beside=(*tls, at[key]))
    for entry_at, pair in at["certificates"].each(several):
        _check_pair(entry_at, pair, (entry_at["certificate"], entry_at["key"]))


def check_redirects(at: KeyPath, listeners: Iterable[tuple[KeyPath, str | Listener]]) -> None:
    """Check the redirects of all listeners. `at`: the path of `listen`."""
    listed = list(listeners)
    ports = https_ports([listener for _, listener in listed])
    for entry_at, listener in listed:
        if isinstance(listener, Listener) and listener.redirect is not None:
            _check_redirect(
                entry_at["redirect"], listener, listener.redirect, ports, (at, entry_at["certificate"], entry_at["key"])
            )


def _check_redirect(
    at: KeyPath, listener: Listener, redirect: str | Redirect, ports: set[int], beside: tuple[KeyPath, ...]
) -> None:
    if isinstance(redirect, str):
        if redirect != REDIRECT_HTTPS:
            at.found(f"{REDIRECT_HTTPS}, or a mapping")
            return
        redirect = Redirect()
    if redirect.status not in REDIRECT_STATUSES:
        at["status"].found("one of " + ", ".join(map(str, REDIRECT_STATUSES)))
    if listener.is_secure():
        at.advise("a listener with TLS cannot redirect to https: remove `redirect`, or the certificate", beside=beside)
    elif redirect.port is None and (len(ports) != 1 or 0 in ports) and at.is_whole:
        found = "no listener has TLS" if not ports else f"the port of https is not clear ({_listed(ports)})"
        at.advise(f"{found}: write it, as in `redirect: {{port: 443}}`", beside=(*beside, at["port"]))


def _listed(ports: set[int]) -> str:
    """Return what the ports of https are, for a message."""
    return ", ".join(str(port) if port else "chosen at the start" for port in sorted(ports))


def check_access(at: KeyPath, socket: SocketFile, address: str) -> None:
    """Check the permissions of a Unix socket."""
    for key in ("mode", "owner", "group"):
        if getattr(socket, key) and address and not is_unix(address):
            at[key].advise(f"`{key}` applies to Unix sockets only, and {address} is not one: remove it")
    if socket.mode and _MODE.fullmatch(socket.mode) is None:
        at["mode"].found("three octal digits such as 0660")


def _check_proxies(at: KeyPath, listener: Listener) -> None:
    proxies = listener.proxy_protocol
    if proxies is None:
        return
    listed = at["proxy_protocol"] if isinstance(proxies, list) else at["proxy_protocol"]["trusted"]
    networks = proxies if isinstance(proxies, list) else proxies.trusted
    if not networks:
        listed.found(f"{NETWORK}, or unix", "an empty list")
    check_each(listed, networks, is_peer, f"{NETWORK}, or unix")


def check_cors(at: KeyPath, cors: Cors) -> None:
    check_each(at["origins"], cors.origins, _is_origin, 'an origin such as https://app.example.com, or "*"')
    if len(cors.origins) > ORIGINS_MAX:
        at["origins"].found(f"at most {ORIGINS_MAX} origins", str(len(cors.origins)))


def _is_origin(text: str) -> bool:
    """Return True if browsers can send this text as `Origin`: without a path, and without the default port."""
    if text == "*":
        return True
    default = {"http": ":80", "https": ":443"}.get(text.partition(":")[0])
    return _ORIGIN.fullmatch(text) is not None and not (default and text.endswith(default))


def check_forwarded(at: KeyPath, forwarded: Forwarded) -> None:
    check_each(at["trust"], forwarded.trust, is_peer, f"{NETWORK}, or unix")
    if forwarded.headers not in FORWARDED_HEADERS:
        at["headers"].found("one of " + ", ".join(FORWARDED_HEADERS))
    if forwarded.via and _VIA.fullmatch(forwarded.via) is None:
        at["via"].found("one word, such as activator")


def check_kubernetes(at: KeyPath, kubernetes: Kubernetes) -> None:
    if kubernetes.mode not in KUBERNETES_MODES:
        at["mode"].found(" or ".join(KUBERNETES_MODES))
    if kubernetes.sharing not in SHARINGS:
        at["sharing"].found(" or ".join(SHARINGS))
    check_positive(at, kubernetes, "reconcile_interval", expected="a duration above 0, such as 30s")
    _check_mode(at, kubernetes)
    if kubernetes.autoscaler and not kubernetes.autoscaler.startswith(("ws://", "wss://")):
        at["autoscaler"].found("ws://host:port")


def _check_mode(at: KeyPath, kubernetes: Kubernetes) -> None:
    """Report keys that the other mode has."""
    mode = kubernetes.mode
    others = {KNATIVE: ("namespace", "service"), ACTIVATIONS: ("autoscaler", "scale_fallback")}.get(mode, ())
    for key in others:
        if getattr(kubernetes, key):
            other = ACTIVATIONS if mode == KNATIVE else KNATIVE
            at[key].advise(f"`{key}` requires `mode: {other}`", beside=(at["mode"],))
    if mode == ACTIVATIONS and kubernetes.sharing == SHARING_KNATIVE:
        at["sharing"].advise(f"`sharing: {SHARING_KNATIVE}` requires `mode: {KNATIVE}`; use `exact`, with `members`")
    service = kubernetes.service
    if service and (service.count("/") != 1 or not all(service.split("/"))):
        at["service"].found("namespace/name")


def check_push(at: KeyPath, push: Push) -> None:
    check_each(at["networks"], push.networks, _is_network, NETWORK)
    tokens = (at["token"], at["token_file"])
    if push.token and push.token_file:
        at.advise("set `token` or `token_file`, not both", at["token"].where, beside=tokens)
    if not push.listen:
        if push.token or push.token_file or push.networks:
            at["listen"].advise("`push` requires `listen`, such as 127.0.0.1:8014", at.where)
    elif not is_loopback(push.listen) and not push.token and not push.token_file:
        advice = f"`listen: {push.listen}` is not a loopback address: it requires `token` or `token_file`"
        at.advise(advice, beside=tokens)


def check_connections(at: KeyPath, revision: Revision) -> None:
    """Check the keys of a revision about the connections to its pods."""
    check_each(at["upgrades"], revision.upgrades, _is_token, "a protocol such as websocket")
    _check_protocol(at, revision)
    _check_proxy_protocol(at, revision)
    _check_cancel(at, revision)
    if revision.tls is not None:
        _check_pod_tls(at["tls"], revision.tls, program_key(at, revision))


def _check_pod_tls(at: KeyPath, tls: PodTls, program: str) -> None:
    pair = (at["certificate"], at["key"])
    if program:
        at.advise("`tls` requires `pods`: connections to local programs are without TLS")
    if bool(tls.certificate) != bool(tls.key):
        at.advise("`certificate` and `key` require each other: set both or neither", beside=pair)
    elif tls.certificate:
        _check_pair(at, tls, pair)
    _check_version(at, tls)
    if tls.ca:
        from activator.runtime.certificates import problem_with_authorities  # ssl: only where TLS is configured

        problem = problem_with_authorities(tls.ca)
        if problem:
            at["ca"].found("a file of certificates in PEM", problem)


def _check_proxy_protocol(revision_at: KeyPath, revision: Revision) -> None:
    """Check the PROXY protocol for pods, and the keys that it excludes."""
    version, at = revision.proxy_protocol, revision_at["proxy_protocol"]
    if not version:
        return
    if version not in PROXY_VERSIONS:
        at.found("one of " + ", ".join(PROXY_VERSIONS))
    if revision.protocol in {"h2c", "h2"}:
        at.advise("HTTP/2 carries requests of several clients on one connection: use `protocol: h1`")
    if revision.tls is not None:
        at.advise("the PROXY protocol header is sent only without TLS: remove `proxy_protocol` or `tls`")
    probe, program = revision.probe, revision.program
    if probe is not None and (probe.identity_header or probe.kind == PROBE_GRPC):
        at.advise("`identity_header` and `grpc` of `probe` have no effect on such pods: remove them")
    if program is not None and program.sleep is not None and program.sleep.http_post:
        at.advise("`sleep.http_post` is sent without a PROXY protocol header: use `sleep.command` or `sleep.signal`")
    if program is not None and any(hook.http_post for hook in program.hooks.all()):
        at.advise("`http_post` of `hooks` is sent without a PROXY protocol header: use `command`")


def _check_cancel(at: KeyPath, revision: Revision) -> None:
    """Check the keys for requests that are cancelled."""
    timeout = revision.cancel_timeout
    if revision.on_cancel not in CANCEL_MODES:
        at["on_cancel"].found("one of " + ", ".join(CANCEL_MODES))
    elif revision.on_cancel == CANCEL_CLOSE and timeout != CANCEL_TIMEOUT_S:  # an API server fills defaults in
        advice = f"`cancel_timeout` requires `on_cancel: {CANCEL_WAIT}`"
        at["cancel_timeout"].advise(advice, beside=(at["on_cancel"],))
    else:
        check_positive(at, revision, "cancel_timeout")


def _check_protocol(at: KeyPath, revision: Revision) -> None:
    """Check the protocol for the pods."""
    protocol, tls = revision.protocol, (at["tls"],)
    if protocol not in POD_PROTOCOLS:
        at["protocol"].found("one of " + ", ".join(POD_PROTOCOLS))
    elif protocol == "h2" and revision.tls is None:
        at["protocol"].advise("`h2` is HTTP/2 over TLS and requires `tls`; without TLS it is `h2c`", beside=tls)
    elif protocol == "h2c" and revision.tls is not None:
        at["protocol"].advise("`h2c` is HTTP/2 without TLS; with `tls` it is `h2`")
    elif protocol in {"h2c", "h2"} and revision.lenient_pods:
        at["lenient_pods"].advise("`lenient_pods` is about HTTP/1.1, and `protocol` is " + protocol)


def _check_alpn(at: KeyPath, listener: Listener) -> None:
    known = " or ".join(ALPN_PROTOCOLS)
    check_each(at["alpn"], listener.alpn, ALPN_PROTOCOLS.__contains__, known)
    if not listener.alpn:
        at["alpn"].found(f"at least one of {known}", "an empty list")


def _check_version(at: KeyPath, tls: Listener | PodTls) -> None:
    if tls.min_version not in TLS_VERSIONS:
        at["min_version"].found(" or ".join(f'"{known}"' for known in TLS_VERSIONS))


def _check_pair(at: KeyPath, pair: Listener | PodTls | CertificateFiles, beside: tuple[KeyPath, ...]) -> None:
    from activator.runtime.certificates import problem_with  # ssl is imported only if TLS is configured

    problem = problem_with(pair.certificate, pair.key)
    if problem:
        at["certificate"].found("a certificate and its key", problem, beside=beside)


# --- for other checks -------------------------------------------------------------------------------------------------


def check_each(at: KeyPath, texts: Iterable[str], fits: Callable[[str], bool], expected: str) -> None:
    """Check each text of a list."""
    for entry_at, text in at.each(texts):
        if not fits(text):
            entry_at.found(expected)


def check_positive(at: KeyPath, group: Any, *keys: str, expected: str = "more than 0") -> None:
    """Check numbers that cannot be 0, if they are set."""
    for key in keys:
        value = getattr(group, key)
        if value is not None and value <= 0:
            at[key].found(expected)


def check_variables(at: KeyPath, environment: Mapping[str, str]) -> None:
    """Check environment variables of a program."""
    for name, value in environment.items():
        if name == "" or "=" in name or "\0" in name or "\0" in value:
            at.found("names of variables", f'"{name}"')


def program_key(at: KeyPath, revision: Revision) -> str:
    """Return the key of a revision's program: `process`, `container`, or an empty string."""
    if revision.process is not None or at["process"].is_unread:
        return "process"
    return "container" if revision.container is not None or at["container"].is_unread else ""


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_method(text: str) -> bool:
    """Return True for the name of a method: capital letters."""
    return _is_token(text) and text == text.upper()


def _is_token(text: str) -> bool:
    return TOKEN.fullmatch(text) is not None


def is_peer(text: str) -> bool:
    """Return True for a client: a network, or `unix` for the clients of a Unix socket."""
    return text == "unix" or _is_network(text)


def _is_network(text: str) -> bool:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return False
    return canonical(network.network_address).version == network.version  # clients at ::ffff:a.b.c.d count as IPv4
