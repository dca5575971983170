"""TLS contexts from files, for listeners, whose certificates may be replaced, and for connections to pods.

Rules
  1. A context is validated before it is used: if a certificate does not match its key, one line is logged and the
     previous certificate stays in use.
  2. The files are checked every few seconds (CERTIFICATE_CHECK_S), because cert-manager and certbot replace them
     without a signal; open connections are not affected.
  3. Pods are offered HTTP/1.1 by default (ALPN), and verified unless verification is switched off.
  4. A listener may have several certificates; client_hello.py selects one for each client.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

from activator.runtime.client_hello import MINIMUM, CertificatePair, expiry_of, listening_context, no_password
from activator.runtime.errors import StartError

CERTIFICATE_CHECK_S: Final = 2.0  # the interval between checks of the files
TLS_CONTEXTS_MAX: Final = 1_000  # cached TLS contexts for pods

log = logging.getLogger("activator.certificates")

TLS_VERSIONS: Final = ("1.2", "1.3")
NO_AUTHORITIES: Final = "-----BEGIN NOTHING-----"  # a value for `ca` with which no peer is trusted


class PemFiles(Protocol):
    """A certificate chain and its key, in PEM."""

    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...


class ServerTls(Protocol):
    """The TLS settings of a listener: one certificate or several, the minimum version, and the protocols (ALPN)."""

    @property
    def address(self) -> str: ...
    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def certificates(self) -> Sequence[PemFiles]: ...
    @property
    def min_version(self) -> str: ...
    @property
    def alpn(self) -> Sequence[str]: ...


class ClientTls(Protocol):
    """The TLS settings of connections to pods; `config.model.pods.PodTls` describes the fields."""

    @property
    def ca(self) -> str: ...
    @property
    def san(self) -> str: ...
    @property
    def verify(self) -> bool: ...
    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def min_version(self) -> str: ...


Stamp = tuple[tuple[int, int, int], ...]  # inode, size and modification time of each file


class MemoryFile:
    """A file in memory, for libraries that accept only files.

    Its `path` is valid in all processes of the same user until `close`.
    """

    def __init__(self, name: str) -> None:
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def write(self, content: bytes) -> None:
        """Replace the content."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def close(self) -> None:
        os.close(self._descriptor)


class ServerCertificate:
    """The TLS context of one listener, which is replaced when its files change."""

    def __init__(self, tls: ServerTls) -> None:
        """Load the files. Raises StartError if they cannot be used."""
        self._tls = tls
        self._pairs = _pairs_of(tls)
        self._loaded = _stamp(self._pairs)
        self.reloads_total: int = 0
        self.refused_total: int = 0
        problem = self.problem()
        if problem:
            raise StartError(f"cannot serve TLS on {tls.address}: {problem}")
        self.context = listening_context(self._pairs, tls.min_version, tls.alpn)
        self.expires_unix_s: float = _expiry(self._pairs)  # the earliest expiry of its certificates

    def problem(self) -> str:
        """Return why the current content of the files cannot be used; empty if it can."""
        if not self._pairs:
            return "it has no certificate"
        return next(filter(None, (problem_with(*pair) for pair in self._pairs)), "")

    def check(self) -> None:
        """Load the files if they have changed and are valid."""
        stamp = _stamp(self._pairs)
        if stamp == self._loaded:
            return
        self._loaded = stamp
        problem = self.problem()
        if problem:
            self.refused_total += 1
            log.warning("the new certificate of %s is not used, the old one stays: %s", self._tls.address, problem)
            return
        # A new context is needed, because a context keeps one certificate per type of key: it would continue to serve
        # an ECDSA certificate that an RSA certificate has replaced. Each handshake reads the current context.
        try:
            self.context = listening_context(self._pairs, self._tls.min_version, self._tls.alpn)
        except (
            OSError,
            ValueError,
        ) as error:  # the files changed again after their validation; the next check will read complete files
            self._loaded = ()
            self.refused_total += 1
            log.warning(
                "the new certificate of %s could not be read and will be tried again: %s", self._tls.address, error
            )
            return
        self.expires_unix_s = _expiry(self._pairs)
        self.reloads_total += 1
        log.info("the certificate of %s was replaced", self._tls.address)


def _expiry(pairs: list[CertificatePair]) -> float:
    """Return when the first of the certificates expires; 0.0 if that cannot be read."""
    try:
        return min(expiry_of(pair) for pair in pairs)
    except (OSError, ValueError):  # replaced in this moment, or dates that Python cannot read
        return 0.0


def problem_with(certificate: str, key: str) -> str:
    """Return why these files cannot be used as a certificate chain and its key; empty if they can."""
    for path in (certificate, key):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            return f"{path}: {os.strerror(error.errno or 0)}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        return f"{certificate} and {key} are no certificate and its unencrypted key, both in PEM ({reason})"
    return ""


def problem_with_authorities(path: str) -> str:
    """Return why this file, or this PEM text, cannot be used as authorities to verify pods; empty if it can."""
    try:
        _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path)
    except ssl.SSLError as error:
        return f"{'it' if is_pem(path) else path} holds no certificates in PEM ({error.reason})"
    except OSError as error:
        return f"{path}: {os.strerror(error.errno or 0)}"
    return ""


def pod_context(tls: ClientTls, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
    """Return a context for connections to pods, which offers `protocols` (ALPN), the preferred one first.

    Raises OSError or ssl.SSLError if the files were removed after they had been checked.
    """
    if tls.ca == NO_AUTHORITIES:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    elif is_pem(tls.ca):
        context = ssl.create_default_context(cadata=tls.ca)
    else:
        context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.san:
        context.sslobject_class = _checking(tls.san)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key, password=no_password)
    context.minimum_version = MINIMUM[tls.min_version]
    context.set_alpn_protocols([*protocols])
    return context


def is_pem(text: str) -> bool:
    """Return True if the text is PEM itself, and not the name of a file."""
    return "-----BEGIN " in text


def _trust(context: ssl.SSLContext, authorities: str) -> None:
    """Load authorities into the context, from a file or a PEM text. Raises OSError or ssl.SSLError."""
    if is_pem(authorities):
        context.load_verify_locations(cadata=authorities)
    else:
        context.load_verify_locations(authorities)


def _checking(san: str) -> type[ssl.SSLObject]:
    """Return a class of TLS objects whose handshake fails if the peer's certificate lacks this name."""

    class NameCheckingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            found = (self.getpeercert() or {}).get("subjectAltName", ())
            if ("DNS", san) not in found:
                raise ssl.SSLCertVerificationError(f"the certificate does not have the name {san}")

    return NameCheckingObject


def _pairs_of(tls: ServerTls) -> list[CertificatePair]:
    """Return all certificates of a listener, the default one first."""
    own = [CertificatePair(tls.certificate, tls.key)] if tls.certificate else []
    return own + [CertificatePair(one.certificate, one.key) for one in tls.certificates]


def _stamp(pairs: list[CertificatePair]) -> Stamp:
    """Return the state of the files; zeros for one that cannot be read."""
    found = []
    for path in [path for pair in pairs for path in pair]:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
