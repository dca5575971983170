"""What is submitted of the pods of a revision: all of them as a list, or what is new of some.

Rules
  1. A list where they are seen under other circumstances than the last time, or where it is not known what was
     submitted; else what is new, pod by pod.
  2. Of what is new first the pods that are gone, then those that are ours no longer, then the others, by their address:
     so a share is not exceeded meanwhile, and those that come do so in the order in which a list has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from activator.config.cluster_settings import MESH_DISABLED, MESH_ENABLED
from activator.control_plane.sources.cluster.backends import Backend
from activator.control_plane.sources.knative.known_pods import KnownPods
from activator.control_plane.sources.knative.shared_pods import SharedPods
from activator.messages import Change, Listed, PodGone, PodSeen, PodStatus

SOURCE: Final = "kubernetes"
UNLIMITED: Final = -1  # as the revision says

# Of which pods this activator has a share.
EVERY: Final = "every"  # it takes all of them, whoever else there is
NONE: Final = "none"  # its place is not known yet
SOME: Final = "some"


class Circumstances(NamedTuple):
    """What all pods are seen under. `service`: the address that stands for them; `share`: of which we have one."""

    port_name: str
    with_tls: bool
    mode: str
    believes: bool
    service: str
    share: str
    place: tuple[int, ...]  # among how many activators that is


class PodReport:
    """Of one revision. It remembers what was submitted."""

    def __init__(self, key: str, pods: KnownPods, shared: SharedPods) -> None:
        self._key = key
        self._pods = pods
        self._shared = shared
        self._said: dict[str, PodSeen] | None = None  # of each pod; None: that is not known

    def forget(self) -> None:
        """Some of it was lost."""
        self._said = None

    def everything(self, cluster: list[PodSeen], now: Circumstances) -> list[Change]:
        """All pods."""
        pods = list(cluster)
        if now.mode != MESH_ENABLED:
            pods += [self._seen(one, now) for one in self._pods.all()]
        said = {one.identity: one for one in pods}
        if said == self._said:
            return []
        self._said = said
        return [Listed(self._key, SOURCE, tuple(pods))]

    def differences(self, touched: Iterable[str], cluster: list[PodSeen], now: Circumstances) -> list[Change]:
        """What is new of these pods, and of the Service in their place."""
        said = self._said
        assert said is not None, "everything has been said"
        gone: list[Change] = []
        not_ours: list[Change] = []
        others: list[Change] = []
        seen = list(cluster)
        if now.mode != MESH_ENABLED:
            for identity in touched:
                one = self._pods.get(identity)
                if one is not None:
                    seen.append(self._seen(one, now))
                elif said.pop(identity, None) is not None:
                    gone.append(PodGone(self._key, SOURCE, identity))
        for pod in seen:
            before = said.get(pod.identity)
            if pod != before:
                said[pod.identity] = pod
                # One that has moved stays in the order of the others: another pod may come to the same address.
                is_left = before is not None and pod.limit == 0 and pod.address == before.address
                (not_ours if is_left else others).append(pod)
        return gone + not_ours + others

    def _seen(self, one: Backend, now: Circumstances) -> PodSeen:
        status, probe = _status(one, now.mode, now.believes)
        is_ours = not now.service and (now.share == EVERY or (now.share == SOME and self._shared.is_ours(one.address)))
        limit = UNLIMITED if is_ours else 0
        flips = self._pods.flips(one.identity)
        return PodSeen(self._key, SOURCE, one.identity, one.address, status, probe, limit=limit, restarts=flips)


def _status(one: Backend, mode: str, believes: bool) -> tuple[PodStatus, bool]:
    """The status that is claimed of a pod, and whether it is to be asked."""
    if one.terminating:
        return PodStatus.DRAINING, False
    if mode == MESH_DISABLED and one.ready:
        return PodStatus.READY, False
    if one.ready or believes:
        return PodStatus.PENDING, True
    return PodStatus.NOT_READY, False
