"""Listeners: addresses, certificates, the forwarded header fields, limits of a process, and its shutdown."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Count, Duration, Port, Positive, Secret, Size, doc
from activator.runtime.units import GIB, KIB, MIB
from activator.runtime.unix_address import is_unix
from activator.runtime.unix_sockets import UNIX_SOCKET_MODE, SocketAccess

TLS_VERSIONS: Final = ("1.2", "1.3")
DEFAULT_ADMIN: Final = "127.0.0.1:8008"
ALPN_PROTOCOLS: Final = ("h2", "http/1.1")
REDIRECT_HTTPS: Final = "https"
REDIRECT_STATUSES: Final = (301, 302, 307, 308)
FORWARDED_HEADERS: Final = ("x-forwarded", "forwarded", "both", "x-forwarded-for", "none")


class CertificateFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several certificates of a listener."""

    certificate: Annotated[str, doc("A file with the certificate chain, in PEM.", "a.crt")]
    key: Annotated[str, doc("A file with the private key of the certificate, in PEM.", "a.key")]


class ProxyProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client's address by HAProxy's PROXY protocol (version 1 or 2)."""

    trusted: Annotated[
        list[str],
        doc(
            "Networks of proxies that may send it; `unix`: every client of the Unix socket.",
            ["10.0.0.0/8"],
        ),
    ]
    required: Annotated[
        bool,
        doc(
            "If true, each connection must begin with it, else only those of trusted proxies.",
            True,
        ),
    ] = False


class Redirect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The redirect of a listener to https."""

    port: Annotated[
        Port | None,
        doc("The port. Not set: that of the listeners with TLS.", 443),
    ] = None
    status: Annotated[int, doc("The status: 301, 302, 307 or 308.", 301)] = 308


class SocketFile(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions of a Unix socket."""

    mode: Annotated[
        str,
        doc("The octal mode of the socket file; a client needs write permission to connect.", "0666"),
    ] = ""
    owner: Annotated[
        str, doc("The owner of the socket file, a name or a number. Empty: the user of the activator.", "www-data")
    ] = ""
    group: Annotated[str, doc("The group of the socket file. Empty: that of the activator.", "www-data")] = ""

    def access(self, mode: int = UNIX_SOCKET_MODE) -> SocketAccess:
        """Return the permissions; `mode` is the default."""
        return SocketAccess(int(self.mode, 8) if self.mode else mode, self.owner, self.group)


class AdminListener(SocketFile, frozen=True, forbid_unknown_fields=True):
    """The admin port: its address, its token, and the permissions of its Unix socket (0600 by default)."""

    listen: Annotated[
        str,
        doc("The host and port to listen on, or a Unix socket.", "127.0.0.1:8008", "unix:/run/activator/admin.sock"),
    ] = DEFAULT_ADMIN
    address: Annotated[str, doc("A Unix socket, instead of `listen`.", "unix:/run/activator/admin.sock")] = ""
    token: Annotated[
        Secret,
        doc(
            "The bearer token of all requests but `/healthz`, `/readyz` and `/metrics`: the token, `file:/path` (read "
            "for each request) or `env:NAME`. Required if other machines can connect, unless `insecure` is set.",
            "file:/etc/activator/admin-token",
        ),
    ] = Secret("")
    insecure: Annotated[
        bool, doc("If true, other machines may connect without a token and control the activator.", True)
    ] = False


class Listener(SocketFile, frozen=True, forbid_unknown_fields=True):
    """A listener with its own settings. With `certificate` and `key`, or `certificates`, it serves TLS."""

    address: Annotated[
        str, doc("The host and port to listen on, or a Unix socket.", "0.0.0.0:8443", "unix:/run/activator.sock")
    ]
    certificate: Annotated[
        str,
        doc("A file with the certificate chain, in PEM. The files are read again when they change.", "tls.crt"),
    ] = ""
    key: Annotated[str, doc("A file with the private key of the certificate, in PEM.", "tls.key")] = ""
    min_version: Annotated[str, doc("The lowest TLS version that is accepted.", "1.3", words=TLS_VERSIONS)] = "1.2"
    certificates: Annotated[
        list[CertificateFiles],
        doc(
            "Several certificates. A client gets the first for the requested name (SNI), exactly or by a wildcard, "
            "else the first. Two for the same names may have different types of keys.",
            [{"certificate": "a.crt", "key": "a.key"}],
        ),
    ] = []
    alpn: Annotated[
        list[Annotated[str, doc("A protocol.", "h2", words=ALPN_PROTOCOLS)]],
        doc("The protocols that are offered, the preferred one first.", ["http/1.1"]),
    ] = msgspec.field(default_factory=lambda: [*ALPN_PROTOCOLS])
    proxy_protocol: Annotated[
        list[str] | ProxyProtocol | None,
        doc(
            "The networks of proxies that send the PROXY protocol, or a mapping.",
            ["10.0.0.0/8"],
        ),
    ] = None
    redirect: Annotated[
        str | Redirect | None,
        doc("`https`, or a mapping: every request is redirected to https ([listeners](listeners.md)).", REDIRECT_HTTPS),
    ] = None
    keys: Annotated[bool, doc("`false`: requests need none of the `keys`; known ones count.", False)] = True

    def is_secure(self) -> bool:
        """Return True if the listener serves TLS."""
        return bool(self.certificate or self.certificates)


def https_ports(listeners: Iterable[str | Listener]) -> set[int]:
    """Return the ports of the listeners with TLS; 0: the kernel chooses it, or it is a Unix socket."""
    secure = [one.address for one in listeners if isinstance(one, Listener) and one.is_secure()]
    ports = [address.rpartition(":")[2] for address in secure]
    return {int(port) if port.isdecimal() and not is_unix(address) else 0 for port, address in zip(ports, secure)}


def resolve_redirects(listeners: list[str | Listener]) -> list[str | Listener]:
    """Return the listeners of a checked file, with all settings of redirects."""
    ports = https_ports(listeners)
    return [_with_port(one, ports) if isinstance(one, Listener) and one.redirect else one for one in listeners]


def _with_port(listener: Listener, ports: set[int]) -> Listener:
    redirect = listener.redirect if isinstance(listener.redirect, Redirect) else Redirect()
    return msgspec.structs.replace(listener, redirect=Redirect(redirect.port or min(ports), redirect.status))


def address_of_listener(setting: str | Listener | AdminListener) -> str:
    """Return the address to listen on, whichever form the setting has."""
    if isinstance(setting, AdminListener):
        return setting.address or setting.listen
    return setting if isinstance(setting, str) else setting.address


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one process. Requests above one get the status that is given here."""

    header_bytes: Annotated[Size, doc("The request line and all header fields together. Above: 431.", "64KiB")] = Size(
        32 * KIB
    )
    headers: Annotated[Positive, doc("Header fields of a request. Above: 431.", 200)] = 100
    body_bytes: Annotated[Size, doc("The body of a request. Above: 413. 0: no limit.", "10MiB")] = Size(0)
    held_bytes: Annotated[
        Size,
        doc(
            "All bodies that the process holds. Above: 503. Buffers (`buffer`) use at most half of it.",
            "1GiB",
        ),
    ] = Size(256 * MIB)
    held_requests: Annotated[Positive, doc("Waiting requests of all revisions. Above: 503.", 50_000)] = 10_000
    connections: Annotated[
        Positive,
        doc(
            "Client connections. Above: 503, and the connection is closed. At most half of the file descriptors that "
            "the system allows, less 128.",
            20_000,
        ),
    ] = 10_000
    worker_stall: Annotated[
        Duration,
        doc(
            "With several `workers`: one whose event loop has not turned for this time is killed and replaced. 0: "
            "never.",
            "30s",
        ),
    ] = Duration(10.0)
    loop_delay: Annotated[
        Duration,
        doc(
            "How late the event loop of a worker may be in three checks in a row, before it takes [steps against "
            "overload](data-path.md#overload). 0: no limit.",
            "500ms",
        ),
    ] = Duration(2.0)
    memory: Annotated[
        Size,
        doc(
            "The resident memory of a worker, some 60 MiB without load. From 80 % it takes [steps against "
            "overload](data-path.md#overload). 0: no limit.",
            "1GiB",
        ),
    ] = Size(0)
    idle: Annotated[Duration, doc("How long a client connection may stay open without a request.", "5m")] = Duration(
        75.0
    )
    file_bytes: Annotated[Size, doc("All temporary files of requests (`buffer.file`).", "10GiB")] = Size(GIB)
    answer_bytes: Annotated[Size, doc("All stored responses (`respond_async`) of all revisions.", "1GiB")] = Size(
        64 * MIB
    )
    answers: Annotated[Positive, doc("Asynchronous requests and stored responses of all revisions.", 10_000)] = 1_000
    send_timeout: Annotated[
        Duration,
        doc(
            "How long a client may read nothing of a response; then it is aborted. 0: no limit.",
            "5m",
        ),
    ] = Duration(60.0)
    streams: Annotated[
        Positive,
        doc("Open requests on one HTTP/2 connection. Above: REFUSED_STREAM.", 250),
    ] = 128
    body_rate: Annotated[
        Count,
        doc(
            "The lowest rate of a request body, in bytes per second over 5 s, until the response begins. Slower: 408. "
            "0: no limit.",
            1_000,
        ),
    ] = 240


class Forwarded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header fields that report a request's client and origin to pods."""

    trust: Annotated[
        list[str],
        doc(
            "Networks of proxies whose `X-Forwarded-…` and `Forwarded` fields are trusted; `unix`: every client of a "
            "Unix socket.",
            ["10.0.0.0/8"],
        ),
    ] = []
    headers: Annotated[
        str,
        doc(
            "The fields that are written: `X-Forwarded-For`, `-Proto` and `-Host`; `Forwarded` (RFC 7239); both; "
            "`X-Forwarded-For` alone; none.",
            "both",
            words=FORWARDED_HEADERS,
        ),
    ] = "x-forwarded"
    request_id: Annotated[
        bool,
        doc(
            "If true, a request without a valid `X-Request-Id` gets one, else the field is unchanged.",
            False,
        ),
    ] = True
    via: Annotated[str, doc("The name of this proxy in `Via`. Empty: no `Via`.", "activator")] = ""


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The phases after SIGTERM."""

    delay: Annotated[
        Duration,
        doc("How long it still serves while it reports not ready.", "10s"),
    ] = Duration(0.0)
    timeout: Annotated[Duration, doc("After `delay`: the time for requests to end; then they are aborted.", "5m")] = (
        Duration(30.0)
    )
    tunnels: Annotated[
        Duration, doc("After `delay`: the time for upgraded connections to end; then they are closed.", "1m")
    ] = Duration(30.0)
    panic_grace: Annotated[
        Duration,
        doc(
            "If the control plane keeps failing for this time after too many failures in a row, the activator drains "
            "and exits with code 4. 0: never.",
            "5m",
        ),
    ] = Duration(60.0)
