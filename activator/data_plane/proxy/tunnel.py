"""Upgraded connections: the protocols that a request may offer to its pod, and the end of the tunnel after a 101.

Rules
  1. Each direction of a tunnel ends separately, and the tunnel ends when both have ended. If one of the two connections
     cannot half-close (TLS), the first end is the end of both.
  2. A tunnel is a request: it holds its slot until it ends.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.config.specs import RevisionSpec
from activator.data_plane.phases import CLIENT_ENDED, LINKED_TUNNEL, OVER, POD_ENDED, TUNNEL
from activator.data_plane.streams import ClientStream, PodStream

# Protocols, without a version, that `"*"` does not include: HTTP in another version (RFC 9113 has retired h2c),
# and TLS. A tunnel of HTTP would carry requests that are not routed, counted or checked.
_NEVER_TUNNELLED: Final = frozenset({b"http", b"http2", b"http3", b"h2", b"h2c", b"h3", b"tls", b"ssl"})
_VERSION: Final = re.compile(rb"[ \t/-]")


def accepted_upgrades(head: RequestHead, spec: RevisionSpec) -> bytes | None:
    """Return the offered protocols that the revision accepts; None if a WebSocket is offered and none is accepted.

    Other offers are declined by removing them (RFC 9110 7.8), which a WebSocket client could not handle.
    """
    offered = head.upgrade.split(b", ")
    allowed = spec.upgrades
    allows_any = "*" in allowed
    accepted = [
        protocol
        for protocol in offered
        if protocol.decode("latin-1") in allowed or (allows_any and _may_be_tunnelled(protocol))
    ]
    return None if not accepted and b"websocket" in offered else b", ".join(accepted)


def _may_be_tunnelled(protocol: bytes) -> bool:
    """Return True if `"*"` includes this protocol; drafts (`h2c-14`) and spellings with spaces count as it."""
    name = _VERSION.split(protocol.lower().strip(b" \t"), maxsplit=1)[0]
    return name not in _NEVER_TUNNELLED


def tunnel_phase(client: ClientStream, pod: PodStream) -> i64:
    """Return the phase after a 101."""
    return TUNNEL if client.half_closes() and pod.half_closes() else LINKED_TUNNEL


def after_end_of_client(phase: i64) -> i64:
    """Return the phase of a tunnel after the client has ended its direction; unchanged if it had ended before."""
    return CLIENT_ENDED if phase in {TUNNEL, CLIENT_ENDED} else OVER


def after_end_of_pod(phase: i64) -> i64:
    """Return the phase of a tunnel after the pod has ended its direction; unchanged if it had ended before."""
    return POD_ENDED if phase in {TUNNEL, POD_ENDED} else OVER
