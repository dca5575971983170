"""Commands: what the control plane asks of the data plane as a whole."""

from __future__ import annotations

from activator.messages.message import Message


class AnnounceDrain(Message, frozen=True, tag=True):
    """Go on serving, and ask clients with each answer not to use their connection again."""


class Drain(Message, frozen=True, tag=True):
    """Stop accepting and let what is in flight finish, within these times; `Drained` is the answer."""

    timeout_s: float
    tunnels_timeout_s: float


class SpeakKnative(Message, frozen=True, tag=True):
    """Knative's components are the peers (data_plane/headers/knative.py); `passes_through`: a mesh needs it."""

    cluster_domain: str
    passes_through: bool = False


class SetHealth(Message, frozen=True, tag=True):
    """What a kubelet that asks on a serving port is answered; each is a reason, empty: all is well."""

    not_alive: str = ""
    not_ready: str = ""


class SetPending(Message, frozen=True, tag=True):
    """Report whether a source has yet to list its revisions. Until then no request may be refused for good because no
    revision serves it: it is answered 503 with Retry-After.
    """

    is_pending: bool


class ShowOutput(Message, frozen=True, tag=True):
    """The last lines that the program of a revision has written since its start began, for the waiting page; empty:
    there is nothing to show any more.
    """

    key: str
    lines: tuple[str, ...]


Command = AnnounceDrain | Drain | SpeakKnative | SetHealth | SetPending | ShowOutput
