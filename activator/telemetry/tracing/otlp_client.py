"""A client of OTLP over HTTP, which sends one body to a collector and retries if the standard allows it.

OpenTelemetry's own variables define the address, headers, certificates and compression (OTEL_EXPORTER_OTLP_… and
OTEL_EXPORTER_OTLP_TRACES_…); proxies are those of the environment.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final

import requests
from opentelemetry.util.re import parse_env_headers

TRACE_TIMEOUT_S: Final = 10.0  # per call, unless OpenTelemetry's variables set it
TRACE_ATTEMPTS_MAX: Final = 4  # attempts to send the same spans, after 1, 2 and 4 s or the collector's Retry-After
TRACE_RETRY_MAX_S: Final = 30.0  # the longest wait before an attempt

log = logging.getLogger("activator.tracing")

_BASE: Final = "http://localhost:4318"
_PATH: Final = "v1/traces"
_RETRIABLE: Final = frozenset({429, 502, 503, 504})
_PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda body: gzip.compress(body, compresslevel=1),
    "deflate": lambda body: zlib.compress(body, level=1),
}


class OtlpClient:
    """A blocking client for one thread."""

    def __init__(self, endpoint: str, environ: Mapping[str, str], wait: Callable[[float], bool] | None = None) -> None:
        """Read the environment. Raises ValueError or OSError if a variable is not valid.

        `wait` waits between two attempts, in seconds; it returns True if there must be no other attempt.
        """
        self.endpoint = endpoint or _endpoint(environ)
        self._expedited = Event()
        self._wait = wait or self._expedited.wait
        self._timeout_s = float(_setting(environ, "TIMEOUT") or TRACE_TIMEOUT_S)
        self._session = requests.Session()
        # Passed to each call, because environment variables of requests override the session's setting.
        self._verify = _file(environ, "CERTIFICATE") or True
        certificate, key = _file(environ, "CLIENT_CERTIFICATE"), _file(environ, "CLIENT_KEY")
        if certificate:
            self._session.cert = (certificate, key) if key else certificate
        headers = dict(parse_env_headers(_setting(environ, "HEADERS"), liberal=True))
        compression = _setting(environ, "COMPRESSION").lower() or "none"
        if compression != "none" and compression not in _PACKERS:
            raise ValueError(f"compression is none, gzip or deflate, not {compression}")
        self._pack = _PACKERS.get(compression)
        if self._pack is not None:
            headers["content-encoding"] = compression
        headers["content-type"] = "application/x-protobuf"
        self._session.headers.update(headers)

    def post(self, body: bytes) -> bool:
        """Send a body. Return True if the collector has accepted it; otherwise the cause is logged."""
        packed = body if self._pack is None else self._pack(body)
        pause_s = 0.0
        cause = ""
        for attempt in range(TRACE_ATTEMPTS_MAX):
            if attempt and self._wait(min(pause_s, TRACE_RETRY_MAX_S)):
                break
            pause_s = float(2**attempt)
            try:
                response = self._session.post(
                    self.endpoint, data=packed, timeout=self._timeout_s, verify=self._verify, allow_redirects=False
                )
            except requests.RequestException as error:
                cause = str(error)
                continue
            if 200 <= response.status_code < 300:
                return True
            cause = f"{response.status_code} {response.reason}"
            if response.status_code not in _RETRIABLE:
                break
            pause_s = _retry_after_s(response.headers.get("Retry-After", ""), pause_s)
        log.warning("spans could not be sent: %s", cause)
        return False

    def expedite(self) -> None:
        """Send each body once, without waiting, from now on. May be called from another thread."""
        self._expedited.set()

    def close(self) -> None:
        self._session.close()


def _setting(environ: Mapping[str, str], suffix: str) -> str:
    """Return the variable for traces, or else the one for all signals."""
    for_traces = environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{suffix}", "").strip()
    return for_traces or environ.get(f"OTEL_EXPORTER_OTLP_{suffix}", "").strip()


def _endpoint(environ: Mapping[str, str]) -> str:
    """Return the URL for traces that the variables define."""
    own = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or _BASE
    return own or f"{base.rstrip('/')}/{_PATH}"


def _file(environ: Mapping[str, str], suffix: str) -> str:
    """Return the path of a file that can be read; empty if the variable is not set. Raises OSError."""
    path = _setting(environ, suffix)
    if path:
        with open(path, "rb"):  # fails now instead of at each call
            pass
    return path


def _retry_after_s(value: str, default_s: float) -> float:
    """Return the seconds of a Retry-After field; a date is ignored."""
    return float(value) if value.isdecimal() else default_s
