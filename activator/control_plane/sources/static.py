"""Fixed pods: the addresses that a file lists.

They are asserted once and asked until they answer; what happens to them afterwards is found out by the request path and
by probes. A name is resolved once, when the file is read: the pod is the address it stood for then.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from activator.config.model import Revision
from activator.messages import Listed, PodSeen, PodStatus
from activator.runtime.errors import ConfigError

SOURCE = "static"


def canonical(address: str) -> str:
    """`host:port` with the host as an IP address, IPv6 in brackets. Raises ConfigError for a name that has none."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ConfigError(
            [f"pod {address}: cannot be resolved ({error}); give an address such as 127.0.0.1:9001"]
        ) from error
    family, _, _, _, sockaddr = found[0]
    ip = str(sockaddr[0])
    return f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}"


def lists(revisions: Iterable[Revision]) -> dict[str, Listed]:
    """The fixed pods of each, by key. Raises ConfigError for a name that has no address."""
    made = [listed(revision) for revision in revisions]
    return {one.key: one for one in made}


def listed(revision: Revision) -> Listed:
    """All fixed pods of a revision, as one full list."""
    key = f"{revision.namespace}/{revision.name}"
    pods = []
    for pod in revision.pods:
        address, weight = (pod, 1) if isinstance(pod, str) else (pod.address, pod.weight)
        known_as = canonical(address)
        pods.append(PodSeen(key, SOURCE, known_as, known_as, PodStatus.PENDING, probe=True, weight=weight))
    return Listed(key, SOURCE, tuple(pods))
