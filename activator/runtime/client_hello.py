"""What a listener decides when a client's first TLS message has come: its certificate, and whether they can speak.

Rules
  1. The certificate is chosen by the name that the client asks for (SNI, RFC 6066 section 3): the first of the list
     that has it, exactly or by a wildcard for one label (RFC 9525 section 6.3), else the first of all. Certificates for
     the same names with different types of keys serve together, and OpenSSL takes the one that the client can use.
  2. A client that offers protocols (ALPN) and not HTTP/1.1 is refused with the alert `no_application_protocol`
     (RFC 7301 section 3.2). OpenSSL, as Python sets it up, would go on without a protocol, and the client would wait.
  3. Only the first message is looked at: then the connection goes on with a context that has no callbacks.
  4. A client is told by an alert why a handshake fails. The event loop drops what OpenSSL has written when it fails; so
     the failure is kept back, and whoever fed the bytes that failed (`failures`) closes the connection when the alert
     is on its way. It is so for every failure, also where there is no alert: of what is not TLS at all.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Failures:
    """Handshakes that have failed. What changes while bytes are given to a connection is this connection's: a context
    variable would not tell, since uvloop runs all connections of a listener in the listener's context.
    """

    def __init__(self) -> None:
        self.total = 0


failures: Final = Failures()

_NO_APPLICATION_PROTOCOL: Final = 120  # RFC 7301 section 3.2
_HANDSHAKE: Final = 22  # RFC 8446 appendix B.1 and B.3: a record of a handshake …
_CLIENT_HELLO: Final = 1  # … and the first message in it
_ALPN: Final = 16  # the extension's number
_HELLO_RANDOM_END: Final = 4 + 2 + 32  # its header, version and random


class CertificatePair(NamedTuple):
    """Two files in PEM: a chain and the unencrypted key of its first certificate."""

    certificate: str
    key: str


def listening_context(pairs: list[CertificatePair], min_version: str, protocols: Sequence[str]) -> ssl.SSLContext:
    """The context of a listener with these certificates, the first of which is for all names that none has.

    `protocols`: for ALPN, the preferred one first.

    Raises OSError, ValueError or ssl.SSLError where the files cannot be used.
    """
    _bear_with_undecodable_names()
    choice = _Choice(pairs, min_version, protocols)
    context = _context(min_version, protocols)
    context.load_cert_chain(*pairs[0], password=no_password)
    context.sslobject_class = _Greeted
    context.sni_callback = choice.choose
    hooks: Any = context
    hooks._msg_callback = _Look(
        protocols
    )  # without it the offered protocols cannot be seen; the only way that Python has
    return context


def no_password() -> str:
    """For `load_cert_chain`. Raises ValueError."""
    raise ValueError("the key is encrypted")  # or OpenSSL would ask at the terminal, and wait


def names_of(pair: CertificatePair) -> frozenset[str]:
    """The DNS names that a certificate has, lowered. Raises OSError or ssl.SSLError where it cannot be read.

    A handshake in memory would tell them by documented means only, but not of a certificate that OpenSSL would not
    accept of a server, as one whose extended key usage is another: clients that do not verify may use it all the same.
    """
    decoder: Any = ssl
    found = decoder._ssl._test_decode_cert(pair.certificate)
    return frozenset(name.lower() for kind, name in found.get("subjectAltName", ()) if kind == "DNS")


def _bear_with_undecodable_names() -> None:
    """A client that asks for a name that is not ASCII is sent an alert, and nothing is said of it.

    Python decodes the name before it calls us, and writes a traceback to stderr for each that it cannot decode: with
    those any client could fill the log.
    """
    before = sys.unraisablehook
    if not isinstance(before, _Unraisable):
        sys.unraisablehook = _Unraisable(before)


class _Unraisable:
    def __init__(self, before: Callable[[sys.UnraisableHookArgs], Any]) -> None:
        self._before = before

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, UnicodeDecodeError) and isinstance(unraisable.object, bytes)):
            self._before(unraisable)


class _Greeted(ssl.SSLObject):
    """One connection of a client."""

    offers_other: bool = False  # protocols, and HTTP/1.1 is not among them
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failure = error
            failures.total += 1
            raise ssl.SSLWantReadError("an alert is to be sent first") from error


class _Choice:
    """Between the certificates of one listener."""

    def __init__(self, pairs: list[CertificatePair], min_version: str, protocols: Sequence[str]) -> None:
        self._by_name: dict[str, ssl.SSLContext] = {}
        by_names: dict[frozenset[str], ssl.SSLContext] = {}
        for pair in pairs:
            names = names_of(pair) if len(pairs) > 1 else frozenset()
            context = by_names.get(names)
            if context is None:
                context = by_names[names] = _context(min_version, protocols)
            context.load_cert_chain(*pair, password=no_password)
            for name in names:
                self._by_name.setdefault(name, context)
        self._default = next(iter(by_names.values()))

    def choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """OpenSSL's callback: go on with the certificate for `name`, or end with an alert."""
        if isinstance(connection, _Greeted) and connection.offers_other:
            return _NO_APPLICATION_PROTOCOL
        connection.context = self._named(name)
        return None

    def _named(self, name: str | None) -> ssl.SSLContext:
        if not name:
            return self._default
        name = name.lower().removesuffix(".")  # RFC 6066 has names without it, but there are clients that do not know
        context = self._by_name.get(name)
        if context is None:
            context = self._by_name.get("*." + name.partition(".")[2])
        return self._default if context is None else context


def _context(min_version: str, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[min_version]
    context.set_alpn_protocols([*protocols])
    return context


class _Look:
    """Sees each ClientHello, and whether it offers protocols none of which is ours."""

    def __init__(self, protocols: Sequence[str]) -> None:
        self._protocols = frozenset(protocol.encode() for protocol in protocols)

    def __call__(
        self, connection: ssl.SSLObject, direction: str, version: object, content: int, message: int, data: bytes
    ) -> None:
        if content == _HANDSHAKE and message == _CLIENT_HELLO and isinstance(connection, _Greeted):
            offered = offered_protocols(data)
            connection.offers_other = bool(offered) and self._protocols.isdisjoint(offered)


def offered_protocols(hello: bytes) -> list[bytes]:
    """The protocols that a ClientHello offers (RFC 8446 section 4.1.2, RFC 7301 section 3.1); none if it is malformed,
    which OpenSSL will say.
    """
    position = _HELLO_RANDOM_END
    for width in (1, 2, 1):  # session, cipher suites, compression methods
        position += width + int.from_bytes(hello[position : position + width])
    end = min(position + 2 + int.from_bytes(hello[position : position + 2]), len(hello))
    position += 2
    while position + 4 <= end:
        number = int.from_bytes(hello[position : position + 2])
        length = int.from_bytes(hello[position + 2 : position + 4])
        position += 4
        if number == _ALPN:
            return _names_in(hello[position + 2 : min(position + length, end)])
        position += length
    return []


def _names_in(block: bytes) -> list[bytes]:
    names = []
    position = 0
    while position < len(block):
        length = block[position]
        names.append(block[position + 1 : position + 1 + length])
        position += 1 + length
    return names
