"""The address of the Kubernetes API and the credentials for it, from kubernetes-asyncio's own configuration.

Rules
  1. The source is that of Knative's programs: the file that KUBECONFIG names, else the pod's service account, else
     ~/.kube/config.
  2. `refresh` runs before each call: it reads files again after a minute, tokens and certificates included, and runs a
     plug-in again when its credentials are about to expire. The library alone would refresh less: the token of a
     service account by a hook, a plug-in by a task that its user must run, and nothing else.
  3. After a 401 everything is read again, at most every KUBE_RENEW_MIN_S. A running watch continues, because the API
     checks credentials only when a request begins.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from activator.kubernetes.errors import CredentialsError
from activator.kubernetes.session import KubeSession
from activator.runtime import lean_import
from activator.runtime.clock import NEVER, Now
from activator.runtime.units import MIB

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

KUBE_CREDENTIALS_TIMEOUT_S: Final = 30.0  # for reading the configuration and running a credential plug-in
KUBE_CREDENTIALS_AGE_S: Final = 60.0  # after which files are read again
KUBE_RENEW_MIN_S: Final = 5.0  # between two reads after a 401

log = logging.getLogger("activator.kubernetes")

_HOME_FILE = "~/.kube/config"
_FILE_BYTES_MAX: Final = 4 * MIB  # a certificate, a key or a bundle of authorities
_TRANSPORT_FIELDS = ("host", "ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
_TRANSPORT_FILES = ("ssl_ca_cert", "cert_file", "key_file")


class Credentials:
    """The configuration of one cluster, kept up to date.

    `renewals_total` counts reads after a refusal, `refresh_failures_total` failed reads before a call.
    `transport_changed`: a new connection would differ from the existing ones, because the server or the certificates
    have changed.
    """

    def __init__(self, environ: Mapping[str, str], now: Now) -> None:
        self._environ = environ
        self.now = self._now = now
        self._lock = asyncio.Lock()
        self._configuration: Configuration | None = None
        self._loader: Any = None  # kubernetes-asyncio's loader of a file
        self._read_s = -NEVER
        self._checked_s = -NEVER
        self._transport: tuple[Any, ...] = ()
        self.renewals_total = 0
        self.refresh_failures_total = 0
        self.transport_changed = False

    async def session(self) -> KubeSession:
        """Return a session with its own connections; raise CredentialsError on failure."""
        async with self._lock:
            if self._configuration is None:
                await self._read_all()
            assert self._configuration is not None
        try:
            self.transport_changed = False
            return KubeSession(self._configuration)
        except (OSError, ValueError) as error:  # unreadable certificates; includes ssl.SSLError
            raise CredentialsError(f"the Kubernetes certificates cannot be used: {error}") from error

    async def refresh(self) -> None:
        """Read again what may have changed; call it before each request. On a failure the former credentials stay."""
        if self._now() - self._checked_s < KUBE_CREDENTIALS_AGE_S or self._configuration is None:
            return
        async with self._lock:
            if self._now() - self._checked_s < KUBE_CREDENTIALS_AGE_S:
                return
            self._checked_s = self._now()
            try:
                await self._refresh(self._configuration)
            except CredentialsError as error:
                self.refresh_failures_total += 1
                log.warning("%s; the previous credentials stay in use until the API rejects them", error)

    async def _refresh(self, configuration: Configuration) -> None:
        """Run the plug-in if its credentials expire, or read the files again."""
        if hasattr(self._loader, "exec_plugin_expiry"):
            await _bounded(self._loader.load_from_exec_plugin())  # does nothing while the credentials are valid
            configuration.api_key["BearerToken"] = self._loader.token
        elif self._loader is None or not _costs_a_call(self._loader):
            await self._read_all()

    async def renew(self) -> bool:
        """Read everything again after a 401; return False if that was done a moment ago. Raise CredentialsError."""
        async with self._lock:
            if self._now() - self._read_s < KUBE_RENEW_MIN_S:
                return False
            await self._read_all()
            self.renewals_total += 1
            return True

    async def _read_all(self) -> None:
        """Read the whole configuration, and use it from now on."""
        lean_import.prepare("kubernetes_asyncio")
        from kubernetes_asyncio.client import Configuration

        self._read_s = self._checked_s = self._now()
        fresh = Configuration()
        fresh.client_side_validation = False
        await _bounded(self._load_into(fresh))
        self._adopt(fresh)

    async def _load_into(self, configuration: Configuration) -> None:
        """Load the configuration from its source (rule 1)."""
        file = self._environ.get("KUBECONFIG", "")
        if not file and self._environ.get("KUBERNETES_SERVICE_HOST"):
            self._load_service_account(configuration)
            return
        await self._load_file(configuration, file or _HOME_FILE)

    def _load_service_account(self, configuration: Configuration) -> None:
        from kubernetes_asyncio.config import load_incluster_config

        load_incluster_config(client_configuration=configuration, environ=self._environ)

    async def _load_file(self, configuration: Configuration, file: str) -> None:
        from kubernetes_asyncio.config import load_kube_config

        if not _any_exists(file):
            raise CredentialsError(
                f"no Kubernetes configuration: {file} does not exist, and the process does not run in a pod"
            )
        self._loader = await load_kube_config(
            config_file=file, client_configuration=configuration, persist_config=False
        )

    def _adopt(self, fresh: Configuration) -> None:
        """Use the configuration that was read."""
        token = fresh.api_key.get("BearerToken")
        if token is not None:
            fresh.api_key["BearerToken"] = token.strip()  # the line end of a file is not part of the token
        transport = _transport_settings(fresh)
        if self._configuration is None:
            self._configuration = fresh
        else:
            self.transport_changed = self.transport_changed or transport != self._transport
            # In place, because sessions hold the object and the library's hooks are bound to it.
            for name in (*_TRANSPORT_FIELDS, "api_key", "refresh_api_key_hook"):
                setattr(self._configuration, name, getattr(fresh, name))
        self._transport = transport


async def _bounded(reading: Awaitable[Any]) -> None:
    """Bound a read in time, and convert the library's exceptions to CredentialsError."""
    try:
        async with asyncio.timeout(KUBE_CREDENTIALS_TIMEOUT_S):
            await reading
    except CredentialsError:
        raise
    except TimeoutError as error:
        raise CredentialsError(f"no Kubernetes credentials within {KUBE_CREDENTIALS_TIMEOUT_S:.0f} s") from error
    except Exception as error:  # ConfigException, or any exception that a malformed file causes
        raise CredentialsError(f"the Kubernetes credentials cannot be obtained: {error}") from error


def _costs_a_call(loader: Any) -> bool:
    """Return True if a new read would run a program or make a call, which is done only after a 401."""
    user = loader._user  # as in the library's own refresh_token
    return loader.provider is not None or (user is not None and "exec" in user)


def _any_exists(files: str) -> bool:
    """Return True if one of the files of a list like KUBECONFIG's exists."""
    return any(os.path.exists(os.path.expanduser(file)) for file in files.split(os.pathsep) if file)


def _transport_settings(configuration: Configuration) -> tuple[Any, ...]:
    """Return the settings of connections and the content of their files.

    The times of files are not used: a kubelet rewrites the authority with each rotation of the token beside it, and the
    library writes inline content of a kubeconfig to new files.
    """
    values = [getattr(configuration, name) for name in _TRANSPORT_FIELDS if name not in _TRANSPORT_FILES]
    return (*values, *(_digest(getattr(configuration, name)) for name in _TRANSPORT_FILES))


def _digest(file: str | None) -> bytes:
    """Return a digest of the file's content; empty if there is none."""
    if not file:
        return b""
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read(_FILE_BYTES_MAX)).digest()
    except OSError:
        return b""  # the code that uses it will report it
