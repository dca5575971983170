"""Commands from the control plane to the data plane as a whole."""

from __future__ import annotations

from activator.config.specs import UserSpec
from activator.messages.message import Message


class AnnounceDrain(Message, frozen=True, tag=True):
    """Continue to serve, and ask clients with each response to close their connection."""


class Drain(Message, frozen=True, tag=True):
    """Stop accepting and let requests in flight finish within these times; `Drained` is the answer."""

    timeout_s: float
    tunnels_timeout_s: float


class EnableKnativeHeaders(Message, frozen=True, tag=True):
    """Enable Knative's headers (data_plane/headers/knative.py); `passes_through`: required by a mesh."""

    cluster_domain: str
    passes_through: bool = False


class SetHealth(Message, frozen=True, tag=True):
    """The answers to kubelet probes on a serving port; each is a reason, or empty if all is well."""

    not_alive: str = ""
    not_ready: str = ""


class SetPending(Message, frozen=True, tag=True):
    """Set whether a source has yet to list its revisions.

    Until then a request without a revision is answered 503 with Retry-After instead of a permanent error.
    """

    is_pending: bool


class SetUsers(Message, frozen=True, tag=True):
    """Replace the users: each request needs the key of one that may use its revision. None: no keys are required."""

    users: tuple[UserSpec, ...] | None


class ShowOutput(Message, frozen=True, tag=True):
    """The last lines of a starting program, for the waiting page of its revision; empty: nothing is shown."""

    key: str
    lines: tuple[str, ...]


Command = AnnounceDrain | Drain | EnableKnativeHeaders | SetHealth | SetPending | SetUsers | ShowOutput
