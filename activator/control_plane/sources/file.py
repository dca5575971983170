"""The file as a source: the revisions that it declares, and their fixed pods.

Fixed pods are the addresses that the file lists. They are asserted once and probed until they answer; afterwards their
state is found out by the request path and by probes. A name is resolved once, when the file is read: the pod is the
address that the name had then. Names that have the same address are one pod.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable

from activator.config.model import Config, Revision
from activator.config.specs import RevisionSpec
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.sources.source import Source
from activator.control_plane.sources.unreachable import UnreachableRevisions
from activator.messages import Change, Listed, Load, PodSeen, PodStatus, RevisionGone, RevisionSet
from activator.runtime.errors import ConfigError

SOURCE = "static"

log = logging.getLogger("activator")


def canonical(address: str) -> str:
    """`host:port` with the host as an IP address, IPv6 in brackets. Raises ConfigError for a name that has none."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ConfigError(
            [f"pod {address}: cannot be resolved ({error}); give an address such as 127.0.0.1:9001"]
        ) from error
    ip = str(found[0][4][0])
    if ip.startswith("::ffff:") and "." in ip:  # IPv4 within IPv6: the same address
        ip = ip.removeprefix("::ffff:")
    return f"[{ip}]:{int(port)}" if ":" in ip else f"{ip}:{int(port)}"


def lists(revisions: Iterable[Revision]) -> dict[str, Listed]:
    """The fixed pods of each, by key. Raises ConfigError for a name that has no address."""
    made = [listed(revision) for revision in revisions]
    return {one.key: one for one in made}


def listed(revision: Revision) -> Listed:
    """All fixed pods of a revision, as one full list."""
    key = f"{revision.namespace}/{revision.name}"
    pods: dict[str, PodSeen] = {}
    names: dict[str, str] = {}
    for pod in revision.pods:
        address, weight = (pod, 1) if isinstance(pod, str) else (pod.address, pod.weight)
        known_as = canonical(address)
        if known_as in pods:
            log.warning("%s: %s and %s are one pod, both are %s", key, names[known_as], address, known_as)
            continue
        names[known_as] = address
        pods[known_as] = PodSeen(key, SOURCE, known_as, known_as, PodStatus.PENDING, probe=True, weight=weight)
    return Listed(key, SOURCE, tuple(pods.values()))


class FileSource(Source):
    """The revisions of the file; `processes` runs those that have a command, `unreachable` judges fixed pods."""

    def __init__(
        self, submit: Callable[[Change], None], processes: ProcessSource, unreachable: UnreachableRevisions
    ) -> None:
        self._submit = submit
        self._processes = processes
        self._unreachable = unreachable
        self._declared: dict[str, tuple[RevisionSet, Listed]] = {}  # by key

    def configure(self, config: Config, specs: list[RevisionSpec], lists: dict[str, Listed]) -> None:
        """Make the revisions be what the file says, whatever they were; pods that stay are not touched.

        `lists`: their fixed pods, as `lists()` returns them.
        """
        revisions = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
        declared = {spec.key: (RevisionSet(spec), lists[spec.key]) for spec in specs}
        leaving = [key for key in self._declared if key not in declared]
        others = [key for key, one in declared.items() if self._declared.get(key, one) != one]
        self._declared = declared  # at once: what a full queue drops of the following is resubmitted as it is now
        for key in leaving:
            self._processes.drop_revision(key)
            self._unreachable.forget(key)
            self._submit(RevisionGone(key))
        for key, (revision_set, listed_pods) in declared.items():
            self._submit(revision_set)
            self._processes.set_revision(key, revisions[key])
            self._submit(listed_pods)
            if listed_pods.pods:
                self._unreachable.patience_s[key] = float(revisions[key].timeouts.unreachable)
            else:
                self._unreachable.patience_s.pop(key, None)
        for key in others:
            self._unreachable.recover(key)

    def receive_load(self, load: Load) -> None:
        self._unreachable.receive_load(load)

    def declares(self, key: str) -> bool:
        return key in self._declared

    def resubmit(self, key: str) -> None:
        for change in self._declared[key]:
            self._submit(change)
        self._unreachable.resubmit(key)
        self._processes.resubmit(key)  # behind the revision: pods of an unknown revision are ignored
