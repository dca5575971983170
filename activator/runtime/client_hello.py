"""The choice of a certificate and the check of protocols when a listener receives a ClientHello.

Rules
  1. The certificate is chosen by the requested name (SNI, RFC 6066 section 3): the first in the list that has the name,
     exactly or by a wildcard for one label (RFC 9525 section 6.3), otherwise the first of all. Certificates for the
     same names with different types of keys are used together, and OpenSSL selects one that the client supports.
  2. A client that offers protocols (ALPN), but none of ours, is refused with the alert `no_application_protocol`
     (RFC 7301 section 3.2). OpenSSL, as configured by Python, would continue without a protocol, and the client would
     wait.
  3. Only the ClientHello is inspected; after it the connection uses a context without callbacks.
  4. A client gets an alert if the handshake fails. The event loop drops OpenSSL's output when the handshake raises an
     error; therefore the error is delayed, and the code that fed the bytes (see `failures`) closes the connection after
     the alert was sent. This applies to all failures, even to input that is not TLS, for which there is no alert.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Failures:
    """The number of failed handshakes.

    If it changes while bytes are passed to a connection, the failure is that connection's. A context variable could not
    show this, because uvloop runs all connections of a listener in the listener's context.
    """

    def __init__(self) -> None:
        self.total = 0


failures: Final = Failures()

_NO_APPLICATION_PROTOCOL: Final = 120  # RFC 7301 section 3.2
_HANDSHAKE: Final = 22  # the content type of a record (RFC 8446 appendix B.1)
_CLIENT_HELLO: Final = 1  # the type of a handshake message (RFC 8446 appendix B.3)
_ALPN: Final = 16  # the number of the extension
_HELLO_RANDOM_END: Final = 4 + 2 + 32  # the header, version and random of a ClientHello


class CertificatePair(NamedTuple):
    """Two files in PEM: a chain and the unencrypted key of its first certificate."""

    certificate: str
    key: str


def listening_context(pairs: list[CertificatePair], min_version: str, protocols: Sequence[str]) -> ssl.SSLContext:
    """Return the context of a listener with these certificates; the first is the default for unknown names.

    `protocols` are for ALPN, the preferred one first.

    Raises OSError, ValueError or ssl.SSLError if the files cannot be used.
    """
    _ignore_undecodable_names()
    choice = _Choice(pairs, min_version, protocols)
    context = _context(min_version, protocols)
    context.load_cert_chain(*pairs[0], password=no_password)
    context.sslobject_class = _ServerTlsObject
    context.sni_callback = choice.choose
    hooks: Any = context
    hooks._msg_callback = _AlpnInspector(protocols)  # Python has no other way to read the offered protocols
    return context


def no_password() -> str:
    """Raise ValueError, as the password function of `load_cert_chain`."""
    raise ValueError("the key is encrypted")  # otherwise OpenSSL would prompt at the terminal


def names_of(pair: CertificatePair) -> frozenset[str]:
    """Return the DNS names of a certificate, lowered. Raises OSError or ssl.SSLError if it cannot be read.

    This uses a private function. A handshake in memory would use only documented ones, but fail for a certificate that
    OpenSSL does not accept for a server, for example because of its extended key usage; clients that do not verify may
    still use such a certificate.
    """
    decoder: Any = ssl
    found = decoder._ssl._test_decode_cert(pair.certificate)
    return frozenset(name.lower() for kind, name in found.get("subjectAltName", ()) if kind == "DNS")


def expiry_of(pair: CertificatePair) -> float:
    """Return when a certificate expires, in Unix seconds. Raises OSError or ssl.SSLError like `names_of`."""
    decoder: Any = ssl
    return float(ssl.cert_time_to_seconds(decoder._ssl._test_decode_cert(pair.certificate)["notAfter"]))


def _ignore_undecodable_names() -> None:
    """Suppress Python's report of a requested name that is not ASCII; the client gets an alert.

    Python decodes the name before it calls the callback, and writes a traceback to stderr for each name that it cannot
    decode, with which any client could fill the log.
    """
    previous = sys.unraisablehook
    if not isinstance(previous, _Unraisable):
        sys.unraisablehook = _Unraisable(previous)


class _Unraisable:
    """A hook for unraisable exceptions that drops those of undecodable names, and passes the others on."""

    def __init__(self, previous: Callable[[sys.UnraisableHookArgs], Any]) -> None:
        self._previous = previous

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, UnicodeDecodeError) and isinstance(unraisable.object, bytes)):
            self._previous(unraisable)


class _ServerTlsObject(ssl.SSLObject):
    """The TLS object of one client connection."""

    offers_other: bool = False  # the client offers protocols, and none of ours
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
            raise ssl.SSLWantReadError("the TLS alert has not been sent yet") from error


class _Choice:
    """The choice between the certificates of one listener."""

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
        """Select the certificate for `name`, or return an alert; this is OpenSSL's callback."""
        if isinstance(connection, _ServerTlsObject) and connection.offers_other:
            return _NO_APPLICATION_PROTOCOL
        connection.context = self._context_for(name)
        return None

    def _context_for(self, name: str | None) -> ssl.SSLContext:
        """Return the context with the certificate for the requested name."""
        if not name:
            return self._default
        name = name.lower().removesuffix(".")  # RFC 6066 forbids the final dot, but some clients send it
        context = self._by_name.get(name)
        if context is None:
            context = self._by_name.get("*." + name.partition(".")[2])
        return self._default if context is None else context


def _context(min_version: str, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[min_version]
    context.set_alpn_protocols([*protocols])
    return context


class _AlpnInspector:
    """A callback that checks whether a ClientHello offers protocols, but none of ours."""

    def __init__(self, protocols: Sequence[str]) -> None:
        self._protocols = frozenset(protocol.encode() for protocol in protocols)

    def __call__(
        self, connection: ssl.SSLObject, direction: str, version: object, content: int, message: int, data: bytes
    ) -> None:
        if content == _HANDSHAKE and message == _CLIENT_HELLO and isinstance(connection, _ServerTlsObject):
            offered = offered_protocols(data)
            connection.offers_other = bool(offered) and self._protocols.isdisjoint(offered)


def offered_protocols(hello: bytes) -> list[bytes]:
    """Return the protocols that a ClientHello offers (RFC 8446 section 4.1.2, RFC 7301 section 3.1).

    The result is empty for a malformed ClientHello, which OpenSSL refuses.
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
    """Return the names in a list, each of which follows a byte with its length."""
    names = []
    position = 0
    while position < len(block):
        length = block[position]
        names.append(block[position + 1 : position + 1 + length])
        position += 1 + length
    return names
