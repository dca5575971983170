"""TLS contexts from files: of listeners, whose certificates may be replaced meanwhile, and of connections to pods.

Rules
  1. A context is tried out before it is used: a certificate that does not fit its key gives one clear line, and the
     one before stays in use.
  2. New files are noticed by looking at them every few seconds (CERTIFICATE_CHECK_S), as cert-manager and certbot
     replace them without a signal; connections that are open keep what they began with.
  3. Only HTTP/1.1 is offered (ALPN); verification of pods is on unless it is switched off.
  4. A listener may have several certificates; client_hello.py says which one a client gets.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

from activator.runtime.client_hello import MINIMUM, CertificatePair, listening_context, no_password
from activator.runtime.errors import StartError

CERTIFICATE_CHECK_S: Final = 2.0  # how often the files are looked at
TLS_CONTEXTS_MAX: Final = 1_000  # TLS settings for pods that are remembered

log = logging.getLogger("activator.certificates")

TLS_VERSIONS: Final = ("1.2", "1.3")
NO_AUTHORITIES: Final = "-----BEGIN NOTHING-----"  # in place of authorities: no peer is trusted


class PemFiles(Protocol):
    """A certificate chain and its key, in PEM."""

    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...


class ServerTls(Protocol):
    """What a listener serves TLS with: one certificate or several, the least version, and the protocols."""

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
    """How to connect to pods over TLS (`config.model.pods.PodTls` says what each means)."""

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


Stamp = tuple[tuple[int, int, int], ...]  # of each file: its inode, size and time of change


class MemoryFile:
    """A file that has no place on any disk, for what takes only files.

    Its `path` is good in every process of the same user, as long as this object is there.
    """

    def __init__(self, name: str) -> None:
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def write(self, content: bytes) -> None:
        """Replace what it holds."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def close(self) -> None:
        os.close(self._descriptor)


class ServerCertificate:
    """The context of one listener. Raises StartError where the files cannot be used."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._pairs = _pairs_of(tls)
        self._seen = _stamp(self._pairs)
        self.reloads_total: int = 0
        self.refused_total: int = 0
        problem = self.problem()
        if problem:
            raise StartError(f"cannot serve TLS on {tls.address}: {problem}")
        self.context = listening_context(self._pairs, tls.min_version, tls.alpn)

    def problem(self) -> str:
        """Why what the files hold by now cannot be used; empty if it can."""
        if not self._pairs:
            return "it has no certificate"
        return next(filter(None, (problem_with(*pair) for pair in self._pairs)), "")

    def look(self) -> None:
        """Use what the files hold by now, if that has changed and is good."""
        stamp = _stamp(self._pairs)
        if stamp == self._seen:
            return
        self._seen = stamp
        problem = self.problem()
        if problem:
            self.refused_total += 1
            log.warning("the new certificate of %s is not used, the old one stays: %s", self._tls.address, problem)
            return
        # A new context: one that serves keeps a certificate for each type of key, so that it would go on with an ECDSA
        # certificate that an RSA one has replaced. Each handshake asks for the context anew.
        try:
            self.context = listening_context(self._pairs, self._tls.min_version, self._tls.alpn)
        except (
            OSError,
            ValueError,
        ) as error:  # replaced once more since they were tried: the next look sees whole files
            self._seen = ()
            self.refused_total += 1
            log.warning(
                "the new certificate of %s could not be read, which is tried again: %s", self._tls.address, error
            )
            return
        self.reloads_total += 1
        log.info("the certificate of %s was replaced", self._tls.address)


def problem_with(certificate: str, key: str) -> str:
    """Why these files cannot be used as a certificate chain and its key; empty if they can."""
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
    """Why this file, or this PEM, cannot be used as the authorities that pods are verified by; empty if it can."""
    try:
        _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path)
    except ssl.SSLError as error:
        return f"{'it' if is_pem(path) else path} holds no certificates in PEM ({error.reason})"
    except OSError as error:
        return f"{path}: {os.strerror(error.errno or 0)}"
    return ""


def pod_context(tls: ClientTls, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
    """For connections to pods; `protocols` are what they are offered (ALPN), the preferred one first.

    Raises OSError or ssl.SSLError where the files have gone since they were checked.
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
    """Certificates themselves, rather than the name of a file that has them."""
    return "-----BEGIN " in text


def _trust(context: ssl.SSLContext, authorities: str) -> None:
    if is_pem(authorities):
        context.load_verify_locations(cadata=authorities)
    else:
        context.load_verify_locations(authorities)


def _checking(san: str) -> type[ssl.SSLObject]:
    """A connection's TLS whose handshake fails where the peer's certificate lacks this name."""

    class NameCheckingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            found = (self.getpeercert() or {}).get("subjectAltName", ())
            if ("DNS", san) not in found:
                raise ssl.SSLCertVerificationError(f"the certificate does not have the name {san}")

    return NameCheckingObject


def _pairs_of(tls: ServerTls) -> list[CertificatePair]:
    own = [CertificatePair(tls.certificate, tls.key)] if tls.certificate else []
    return own + [CertificatePair(one.certificate, one.key) for one in tls.certificates]


def _stamp(pairs: list[CertificatePair]) -> Stamp:
    found = []
    for path in [path for pair in pairs for path in pair]:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
