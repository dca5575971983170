"""Knative's system-internal TLS: the activator's own certificate, and the authorities by which it verifies pods.

Rules
  1. Everything comes from a Secret and from ConfigMaps, is replaced while the program runs, and never touches a disk.
  2. A pod must show a certificate for `data-plane.knative.dev` that is also for its namespace's own name: a program of
     another namespace cannot stand in for it.
  3. A bundle that cannot be read is left out and logged; the others count. A Secret whose certificate does not fit its
     key is being written: all of it is ignored, and the former one stays in use, with its authorities.
  4. Without any authority no pod could be reached. Switched on while requests are served, TLS begins with the first
     authority; on at the start, the program is not ready before there is one. Once begun it never goes back to plain.

Source: knative.dev/serving pkg/activator/certificate, knative.dev/networking pkg/certificates (v1.23).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from activator.config.model.listeners import Listener
from activator.config.model.pods import PodTls
from activator.kubernetes.objects import ConfigMap, Secret
from activator.runtime.certificates import NO_AUTHORITIES, MemoryFile, is_pem, problem_with, problem_with_authorities

log = logging.getLogger("activator.knative")

SECRET: Final = "routing-serving-certs"
BUNDLE_LABEL: Final = "networking.knative.dev/trust-bundle"
SERVER_NAME: Final = "data-plane.knative.dev"

# Where authorities come from, for readers of the log.
AUTHORITIES: Final = f"ca.crt of the Secret {SECRET} or a ConfigMap labelled {BUNDLE_LABEL}"

_VERSION: Final = "1.3"


class InternalTls:
    """`changed` is called when the authorities have changed; `address` is where to serve TLS."""

    def __init__(self, address: str, changed: Callable[[], None], min_version: str = _VERSION) -> None:
        self._changed = changed
        self._bundles: dict[str, str] = {}  # ConfigMap → PEM
        self._authorities = ""  # of the Secret
        self._certificate = MemoryFile("activator-certificate")
        self._key = MemoryFile("activator-key")
        self.has_certificate = False
        self.has_believed = False  # there was an authority, at least once
        self.listener = Listener(address, self._certificate.path, self._key.path, min_version)

    def of(self, namespace: str) -> PodTls:
        """How the pods of a namespace are connected to."""
        return PodTls(
            ca=self._believed() or NO_AUTHORITIES,
            server_name=SERVER_NAME,
            san=f"kn-user-{namespace.lower()}",
            min_version=_VERSION,
        )

    def close(self) -> None:
        self._certificate.close()
        self._key.close()

    # --- what the Secret and the ConfigMaps say ---

    def secret(self, data: Mapping[str, bytes]) -> None:
        certificate, key = data.get("tls.crt", b""), data.get("tls.key", b"")
        problem = _problem_with_pair(certificate, key)
        if problem:
            log.warning("the Secret %s is not used as it is now: %s", SECRET, problem)
            return
        self._certificate.write(certificate)
        self._key.write(key)
        self.has_certificate = True
        self._authorities = _usable(f"Secret {SECRET}", data.get("ca.crt", b"").decode("latin-1"))
        self._learnt()

    def bundle(self, name: str, data: Mapping[str, str]) -> None:
        """A ConfigMap with the label contains this; empty: it is gone."""
        known = "\n".join(_usable(f"ConfigMap {name}", pem) for pem in data.values())
        if known.strip():
            self._bundles[name] = known
        elif name in self._bundles:
            del self._bundles[name]
        else:
            return
        self._learnt()

    # --- within ---

    def _believed(self) -> str:
        known = [self._authorities, *(self._bundles[name] for name in sorted(self._bundles))]
        return "\n".join(pem for pem in known if pem)

    def _learnt(self) -> None:
        if self._believed():
            self.has_believed = True
        elif self.has_believed:
            log.error("system-internal-tls: no authority is left in %s: no pod can be reached", AUTHORITIES)
        self._changed()


class SecretObjects:
    """The handler of the watch on the Secret."""

    def __init__(self, tls: InternalTls) -> None:
        self._tls = tls

    def changed(self, old: Secret | None, new: Secret) -> None:
        self._tls.secret(new.data)

    def gone(self, old: Secret) -> None:
        log.warning("the Secret %s is gone; what it held goes on being used", SECRET)

    def missed(self, new: Secret) -> None:
        """Its current state has been delivered, and that is enough."""

    def listed(self, objects: Mapping[Any, Any]) -> None:
        """The differences have been delivered one by one."""


class BundleObjects:
    """The handler of the watch on the trust bundles."""

    def __init__(self, tls: InternalTls) -> None:
        self._tls = tls

    def changed(self, old: ConfigMap | None, new: ConfigMap) -> None:
        self._tls.bundle(new.metadata.name, new.data)

    def gone(self, old: ConfigMap) -> None:
        self._tls.bundle(old.metadata.name, {})

    def missed(self, new: ConfigMap) -> None:
        """Its current state has been delivered, and that is enough."""

    def listed(self, objects: Mapping[Any, Any]) -> None:
        """The differences have been delivered one by one."""


def _problem_with_pair(certificate: bytes, key: bytes) -> str:
    """Why these are no certificate chain and its key; empty if they are."""
    if not certificate or not key:
        return "it holds no certificate and key"
    files = MemoryFile("certificate-to-try"), MemoryFile("key-to-try")
    try:
        for file, content in zip(files, (certificate, key), strict=True):
            file.write(content)
        problem = problem_with(files[0].path, files[1].path)
        return problem.replace(files[0].path, "tls.crt").replace(files[1].path, "tls.key")
    finally:
        for file in files:
            file.close()


def _usable(where: str, pem: str) -> str:
    """The PEM if it can be used, else nothing."""
    if not pem.strip():
        return ""
    problem = problem_with_authorities(pem) if is_pem(pem) else "it holds no certificates in PEM"
    if problem:
        log.warning("%s: its authorities are left out: %s", where, problem)
        return ""
    return pem
