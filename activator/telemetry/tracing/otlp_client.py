"""OTLP over HTTP: one body to a collector, tried again where the standard says that it may be.

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

TRACE_TIMEOUT_S: Final = 10.0  # of one call of the collector, likewise
TRACE_ATTEMPTS_MAX: Final = 4  # to send the same spans: after 1, 2 and 4 s, or as the collector says, …
TRACE_RETRY_MAX_S: Final = 30.0  # … but no later than that

log = logging.getLogger("activator.tracing")

_BASE: Final = "http://localhost:4318"
_PATH: Final = "v1/traces"
_MAY_BE_TRIED_AGAIN: Final = frozenset({429, 502, 503, 504})
_PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda body: gzip.compress(body, compresslevel=1),
    "deflate": lambda body: zlib.compress(body, level=1),
}


class OtlpClient:
    """Blocks; for one thread. `wait` passes the time between two attempts; True: there is none left.

    Raises ValueError or OSError where a variable says what cannot be.
    """

    def __init__(self, endpoint: str, environ: Mapping[str, str], wait: Callable[[float], bool] | None = None) -> None:
        self.endpoint = endpoint or _endpoint(environ)
        self._hurried = Event()
        self._wait = wait or self._hurried.wait
        self._timeout_s = float(_setting(environ, "TIMEOUT") or TRACE_TIMEOUT_S)
        self._session = requests.Session()
        # Said at each call: a session's gives way to other variables.
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
        """Whether the collector has taken it; where it has not, the log says why."""
        packed = body if self._pack is None else self._pack(body)
        pause_s = 0.0
        said = ""
        for attempt in range(TRACE_ATTEMPTS_MAX):
            if attempt and self._wait(min(pause_s, TRACE_RETRY_MAX_S)):
                break
            pause_s = float(2**attempt)
            try:
                answer = self._session.post(
                    self.endpoint, data=packed, timeout=self._timeout_s, verify=self._verify, allow_redirects=False
                )
            except requests.RequestException as error:
                said = str(error)
                continue
            if 200 <= answer.status_code < 300:
                return True
            said = f"{answer.status_code} {answer.reason}"
            if answer.status_code not in _MAY_BE_TRIED_AGAIN:
                break
            pause_s = _retry_after_s(answer.headers.get("Retry-After", ""), pause_s)
        log.warning("spans could not be sent: %s", said)
        return False

    def hurry(self) -> None:
        """From another thread: each body once, from now on, and no waiting."""
        self._hurried.set()

    def close(self) -> None:
        self._session.close()


def _setting(environ: Mapping[str, str], what: str) -> str:
    """Of traces, else of all signals."""
    said = environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{what}", "").strip()
    return said or environ.get(f"OTEL_EXPORTER_OTLP_{what}", "").strip()


def _endpoint(environ: Mapping[str, str]) -> str:
    own = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or _BASE
    return own or f"{base.rstrip('/')}/{_PATH}"


def _file(environ: Mapping[str, str], what: str) -> str:
    path = _setting(environ, what)
    if path:
        with open(path, "rb"):  # checked when it is set, rather than at each call
            pass
    return path


def _retry_after_s(said: str, otherwise_s: float) -> float:
    """A date is not looked at."""
    return float(said) if said.isdecimal() else otherwise_s
