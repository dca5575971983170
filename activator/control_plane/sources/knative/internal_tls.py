"""Knative's system-internal TLS: the activator's certificate, and the authorities by which it verifies pods.

Rules
  1. Everything comes from a Secret and from ConfigMaps, is replaced while the program runs, and is never written to a
     disk.
  2. A pod must present a certificate for `data-plane.knative.dev` that also has the name of its namespace, so that a
     program of another namespace cannot impersonate it.
  3. A bundle that cannot be read is skipped and logged; the others count. A Secret whose certificate and key do not
     match is being written: it is ignored as a whole, and the former one stays in use, with its authorities.
  4. Without any authority no pod could be reached. If TLS is switched on while requests are served, it begins with the
     first authority. If it is on at the start, the program is not ready before there is one. It never reverts to
     plain.

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

# The sources of authorities, for log lines.
AUTHORITIES: Final = f"ca.crt of the Secret {SECRET} or a ConfigMap labelled {BUNDLE_LABEL}"

_VERSION: Final = "1.3"


class InternalTls:
    """The state of system-internal TLS. `changed` is called if authorities change; `address` is of its listener."""

    def __init__(self, address: str, changed: Callable[[], None], min_version: str = _VERSION) -> None:
        self._changed = changed
        self._bundles: dict[str, str] = {}  # ConfigMap → PEM
        self._authorities = ""  # PEM from the Secret
        self._certificate = MemoryFile("activator-certificate")
        self._key = MemoryFile("activator-key")
        self.has_certificate = False
        self.had_authority = False  # there has been an authority at least once
        self.listener = Listener(address, self._certificate.path, self._key.path, min_version)

    def of(self, namespace: str) -> PodTls:
        """Return how to connect to the pods of a namespace."""
        return PodTls(
            ca=self._all_authorities() or NO_AUTHORITIES,
            server_name=SERVER_NAME,
            san=f"kn-user-{namespace.lower()}",
            min_version=_VERSION,
        )

    def close(self) -> None:
        self._certificate.close()
        self._key.close()

    # --- handlers of the Secret and of the ConfigMaps ---

    def set_secret(self, data: Mapping[str, bytes]) -> None:
        certificate, key = data.get("tls.crt", b""), data.get("tls.key", b"")
        problem = _problem_with_pair(certificate, key)
        if problem:
            log.warning("the Secret %s is ignored: %s", SECRET, problem)
            return
        self._certificate.write(certificate)
        self._key.write(key)
        self.has_certificate = True
        self._authorities = _usable(f"Secret {SECRET}", data.get("ca.crt", b"").decode("latin-1"))
        self._authorities_changed()

    def set_bundle(self, name: str, data: Mapping[str, str]) -> None:
        """Set the content of a ConfigMap with the label; empty: it was removed."""
        usable = "\n".join(_usable(f"ConfigMap {name}", pem) for pem in data.values())
        if usable.strip():
            self._bundles[name] = usable
        elif name in self._bundles:
            del self._bundles[name]
        else:
            return
        self._authorities_changed()

    # --- within ---

    def _all_authorities(self) -> str:
        parts = [self._authorities, *(self._bundles[name] for name in sorted(self._bundles))]
        return "\n".join(pem for pem in parts if pem)

    def _authorities_changed(self) -> None:
        if self._all_authorities():
            self.had_authority = True
        elif self.had_authority:
            log.error("system-internal-tls: no authority is left in %s: no pod can be reached", AUTHORITIES)
        self._changed()


class SecretObjects:
    """The handler of the watch on the Secret."""

    def __init__(self, tls: InternalTls) -> None:
        self._tls = tls

    def changed(self, old: Secret | None, new: Secret) -> None:
        self._tls.set_secret(new.data)

    def removed(self, old: Secret) -> None:
        log.warning("the Secret %s was deleted; its last content stays in use", SECRET)

    def resync(self, new: Secret) -> None:
        """Do nothing: `changed` has already been called with the current state."""

    def listed(self, objects: Mapping[Any, Any]) -> None:
        """Do nothing: the differences have been delivered one by one."""


class BundleObjects:
    """The handler of the watch on the trust bundles."""

    def __init__(self, tls: InternalTls) -> None:
        self._tls = tls

    def changed(self, old: ConfigMap | None, new: ConfigMap) -> None:
        self._tls.set_bundle(new.metadata.name, new.data)

    def removed(self, old: ConfigMap) -> None:
        self._tls.set_bundle(old.metadata.name, {})

    def resync(self, new: ConfigMap) -> None:
        """Do nothing: `changed` has already been called with the current state."""

    def listed(self, objects: Mapping[Any, Any]) -> None:
        """Do nothing: the differences have been delivered one by one."""


def _problem_with_pair(certificate: bytes, key: bytes) -> str:
    """Return why these are not a certificate chain and its key; empty if they are."""
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
    """Return the PEM if it is valid, else an empty text."""
    if not pem.strip():
        return ""
    problem = problem_with_authorities(pem) if is_pem(pem) else "it holds no certificates in PEM"
    if problem:
        log.warning("%s: its authorities are ignored: %s", where, problem)
        return ""
    return pem
