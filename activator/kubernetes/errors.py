"""The failures of calls to the Kubernetes API. Exceptions of aiohttp and kubernetes-asyncio are converted to them."""

from __future__ import annotations

from typing import Final

GONE: Final = 410
UNAUTHORIZED: Final = 401
TOO_MANY_REQUESTS: Final = 429


class KubeError(Exception):
    """A failed call. `kind` is from a closed set, for metrics; `retry_after_s` is the server's value, or None."""

    kind = "kube"
    retry_after_s: float | None = None


class RefusedError(KubeError):
    """The server answered with an error status or an ERROR event."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason  # the reason of the Status object, such as "Expired" or "Conflict"; empty without one
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:  # type: ignore[override]
        if self.status in {GONE, UNAUTHORIZED, 403, 404, 409, TOO_MANY_REQUESTS}:
            return str(self.status)
        return "5xx" if self.status >= 500 else "4xx"

    @property
    def is_expired(self) -> bool:
        """True if the resource version has expired (410 Gone), so that a new list is needed."""
        return self.status == GONE


class UnreachableError(KubeError):
    """There was no connection, or it broke before the response was complete."""

    kind = "unreachable"


class CallTimeoutError(UnreachableError):
    """The call's timeout has expired."""

    kind = "timeout"


class CredentialsError(KubeError):
    """The configuration cannot be read, or its credentials cannot be obtained."""

    kind = "credentials"


class TooLargeError(KubeError):
    """A response exceeds its bound in bytes, or a list its bound in pages."""

    kind = "too_large"


class LineTooLongError(KubeError):
    """A watch event exceeds its bound in bytes."""

    kind = "line_too_long"


class WatchCutError(UnreachableError):
    """A watch ended in the middle of an event, or its connection broke."""

    kind = "cut"


class WatchStalledError(KubeError):
    """The client closed a watch that was silent for too long or that the server did not end in time."""

    kind = "stalled"


class UnreadableError(KubeError):
    """The data is not the JSON of a list or of a watch event, or its encoding is unknown."""

    kind = "unreadable"


class RelistError(KubeError):
    """The client closed a watch in order to list again."""

    kind = "relist"
