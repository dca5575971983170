"""The request that a `ProbeSpec` describes, and the check of the identity in its response.

Both planes use it: the control plane sends it to find out whether a pod accepts requests, the data plane on each new
connection to a pod that states its identity.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.config.model.pods import PROBE_QUEUE_PROXY
from activator.config.specs import ProbeSpec
from activator.runtime.streams import authority_of

# Knative's queue-proxy recognises its callers by these fields, and answers no other caller on this path.
_QUEUE_PATH: Final = "/healthz"
_QUEUE_HEADERS: Final = ((b"User-Agent", b"Knative-Activator-Probe"), (b"K-Network-Probe", b"queue"))
_HTTP_HEADERS: Final = ((b"User-Agent", b"activator-probe"),)


def probe_head(probe: ProbeSpec, address: str, keep_alive: bool = False) -> RequestHead:
    """Return the probe's request; `keep_alive` if other requests follow it on its connection."""
    is_queue = probe.kind == PROBE_QUEUE_PROXY
    host = (probe.host or authority_of(address)).encode()
    headers: Headers = [(b"Host", host), *(_QUEUE_HEADERS if is_queue else _HTTP_HEADERS)]
    if not is_queue and not keep_alive:
        headers.append((b"Connection", b"close"))
    headers.extend((name.encode(), value.encode()) for name, value in probe.headers)
    path = probe.path or (_QUEUE_PATH if is_queue else "/")
    return RequestHead(b"GET", path.encode(), host, Fields.from_pairs(headers), -1, False)


def names_identity(head: ResponseHead, header: str, identity: str) -> bool:
    """Return True if the response's field `header` names this identity."""
    return head.headers.get(header.lower().encode()) == identity.encode()
