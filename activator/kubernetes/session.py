"""The connections to the Kubernetes API, made from kubernetes-asyncio's `Configuration`.

Rules
  1. Server, authorities, client certificate, proxy and token are read from the configuration. Its token may change
     while the session lasts; for the others a new session is made.
  2. The library's own client is not used: it writes JSON with Python's encoder and walks through the body and the
     headers, which costs half as much again as the call itself, and looks for a proxy and a netrc file before each
     call, each time in another thread: to take over 500 Activations, with 3,500 calls, cost 6.5 s of CPU with it and
     3.7 s without.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp

from activator.runtime.units import MIB

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

KUBE_CONNECT_TIMEOUT_S: Final = 5.0  # for a connection to the Kubernetes API, TLS included

_NETRC_FILE: Final = "~/.netrc"
_READ_BUFFER_BYTES: Final = 2 * MIB  # as in the library: one event of a watch may be as large as an object
_CONNECT_TIMEOUT: Final = aiohttp.ClientTimeout(sock_connect=KUBE_CONNECT_TIMEOUT_S)  # the caller bounds the rest


class KubeSession:
    """A pool of connections to one API server. Raises OSError or ValueError if the certificates cannot be used."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        options = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=configuration.connection_pool_maxsize, ssl=_tls_of(configuration)),
            trust_env=_has_environment_settings(),
            read_bufsize=_READ_BUFFER_BYTES,
        )

    async def request(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request with the present token; return the response, its body not read and not inflated."""
        token = await self.configuration.get_api_key_with_prefix("BearerToken")
        url = self.configuration.host + path
        return await self._session.request(
            method,
            f"{url}?{urlencode(query)}" if query else url,
            headers={**headers, "Authorization": token} if token else headers,
            data=body,
            timeout=_CONNECT_TIMEOUT,
            auto_decompress=False,
            **self._options,
        )

    async def close(self) -> None:
        """Close the connections; running requests fail."""
        await self._session.close()


def _tls_of(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _has_environment_settings() -> bool:
    """Return True if a proxy or a netrc file is configured in the environment."""
    netrc = os.environ.get("NETRC") or os.path.expanduser(_NETRC_FILE)
    return bool(getproxies()) or os.path.exists(netrc)
