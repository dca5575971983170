"""How a call to the Kubernetes API fails. aiohttp's and kubernetes-asyncio's own exceptions never travel further."""

from __future__ import annotations

from typing import Final

GONE: Final = 410
UNAUTHORIZED: Final = 401
TOO_MANY_REQUESTS: Final = 429


class KubeError(Exception):
    """`kind` is a word from a closed set, for metrics; `retry_after_s` what the server asked for, or None."""

    kind = "kube"
    retry_after_s: float | None = None


class RefusedError(KubeError):
    """The server answered, with something else than what was asked for."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason  # the word of the Status object, as "Expired" or "Conflict"; empty without one
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:  # type: ignore[override]
        if self.status in {GONE, UNAUTHORIZED, 403, 404, 409, TOO_MANY_REQUESTS}:
            return str(self.status)
        return "5xx" if self.status >= 500 else "4xx"

    @property
    def gone(self) -> bool:
        """What was referred to is too old: list anew."""
        return self.status == GONE


class UnreachableError(KubeError):
    """No connection, or it broke before the answer was whole."""

    kind = "unreachable"


class CallTimeoutError(UnreachableError):
    """The time for the call is over."""

    kind = "timeout"


class CredentialsError(KubeError):
    """The configuration cannot be read, or its credentials cannot be had."""

    kind = "credentials"


class TooLargeError(KubeError):
    """An answer beyond its bound in bytes, or a list beyond its bound in pages."""

    kind = "too_large"


class LineTooLongError(KubeError):
    """A watch event beyond its bound in bytes."""

    kind = "line_too_long"


class WatchCutError(UnreachableError):
    """A watch ended in the middle of an event, or its connection broke."""

    kind = "cut"


class WatchStalledError(KubeError):
    """A watch was closed by us: nothing came for too long, or it outlived what the server was asked for."""

    kind = "stalled"


class UnreadableError(KubeError):
    """Not the JSON of a list or of a watch event, or in an encoding that cannot be read."""

    kind = "unreadable"


class RelistError(KubeError):
    """A watch was closed by us, to list anew."""

    kind = "relist"
