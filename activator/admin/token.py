"""The bearer token of the admin port."""

from __future__ import annotations

import base64
import hmac
import logging
from typing import Final

from activator.runtime.errors import StartError
from activator.runtime.secret_text import read_secret

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})  # for kubelets and Prometheus: they need no token
CHALLENGE: Final = 'Bearer realm="activator", Basic realm="activator"'

_WHAT: Final = "admin.token"

log = logging.getLogger("activator")


class AdminToken:
    """The secret that requests must carry. A file is read for each request: its content can be replaced."""

    def __init__(self, said: str) -> None:
        """Raises StartError if there is no such secret."""
        self._said = said
        read_secret(said, _WHAT)

    def is_in(self, authorization: str) -> bool:
        """True if the header field has the token: as a bearer token, or as a browser sends a password."""
        if not self._said:
            return True
        try:
            wanted = read_secret(self._said, _WHAT).encode()
        except StartError as error:
            log.error("%s: nobody is let in", error)
            return False
        return hmac.compare_digest(_given(authorization), wanted)


def _given(authorization: str) -> bytes:
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
