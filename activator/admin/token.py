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

_SETTING: Final = "admin.token"

log = logging.getLogger("activator")


class AdminToken:
    """The secret that requests must have. A file is read for each request, so that its content can be replaced."""

    def __init__(self, setting: str) -> None:
        """Read the secret. Raises StartError if it cannot be read."""
        self._setting = setting
        read_secret(setting, _SETTING)

    def is_in(self, authorization: str) -> bool:
        """Return True if the header field has the token, as a bearer token or as a Basic password of a browser."""
        if not self._setting:
            return True
        try:
            expected = read_secret(self._setting, _SETTING).encode()
        except StartError as error:
            log.error("%s: all requests to the admin port are refused", error)
            return False
        return hmac.compare_digest(_sent_token(authorization), expected)


def _sent_token(authorization: str) -> bytes:
    """Return the token in an Authorization field; empty if there is none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
