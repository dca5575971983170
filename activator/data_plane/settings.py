"""Settings of the data plane from the configuration: limits, and the origin fields for pods.

Rules
  1. All of them can change while the program serves (`DataPlane.reconfigure`).
  2. A connection keeps its settings (limits of its requests, trust in its peer) from its acceptance. Other settings
     apply at once, also to requests in flight.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import resource
from typing import Final

from activator.codec.http1.chunks import CHUNK_OVERHEAD_BYTES_MAX
from activator.codec.http1.framing import TRAILERS_BYTES_MAX
from activator.codec.http1.request import TARGET_BYTES_MAX, RequestLimits
from activator.config.model.file import Config
from activator.config.model.listeners import Forwarded, Limits
from activator.data_plane.headers.forwarding import FOR_ONLY, FORWARDED, X_FORWARDED, Origins
from activator.data_plane.server.proxy_greeting import UNIX_PEERS
from activator.data_plane.server.registry import SHED_MAX
from activator.runtime.sockets import ADMIN_CONNECTIONS_MAX

# For listeners, pipes of programs and files; for the admin port; for shed connections.
_DESCRIPTORS_RESERVED: Final = 64 + ADMIN_CONNECTIONS_MAX + SHED_MAX

log = logging.getLogger("activator.data")


def request_limits(limits: Limits) -> RequestLimits:
    """Return the limits of one request."""
    return RequestLimits(
        header_bytes=limits.header_bytes,
        headers=limits.headers,
        body_bytes=limits.body_bytes,
        target_bytes=TARGET_BYTES_MAX,
        chunk_overhead_bytes=CHUNK_OVERHEAD_BYTES_MAX,
        trailers_bytes=TRAILERS_BYTES_MAX,
    )


def connections_max(configured: int, logs_limits: bool) -> int:
    """Return the limit of client connections: at most half of the descriptors, because each request uses two.

    `logs_limits`: log a limit below `configured`.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return configured
    possible = max((allowed - min(_DESCRIPTORS_RESERVED, allowed // 2)) // 2, 1)
    if possible < configured and logs_limits:
        log.log(
            logging.DEBUG if configured == Limits().connections else logging.WARNING,
            "limits.connections is %d instead of %d: only %d open files are allowed (ulimit -n)",
            possible,
            configured,
            allowed,
        )
    return min(possible, configured)


def trusts_revision_headers(config: Config) -> bool:
    """Return True if a request may name its revision."""
    return config.trust_revision_headers or config.kubernetes is not None


def origins(forwarded: Forwarded) -> Origins:
    """Return the settings of the fields that describe clients to pods."""
    writes = {"x-forwarded": X_FORWARDED, "forwarded": FORWARDED, "both": X_FORWARDED | FORWARDED, "none": 0}
    writes["x-forwarded-for"] = FOR_ONLY
    return Origins(
        tuple(ipaddress.ip_network(network) for network in forwarded.trust if network != UNIX_PEERS),
        writes[forwarded.headers],
        forwarded.request_id,
        forwarded.via.encode(),
        int.from_bytes(os.urandom(8), "big"),
        UNIX_PEERS in forwarded.trust,
    )
