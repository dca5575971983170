"""Makes the changes to submit for the pods of a revision: all of them as a list, or the differences of some.

Rules
  1. A list is submitted if the context has changed or a submission may have been lost; otherwise the differences,
     pod by pod.
  2. Of the differences, removed pods come first, then pods that are no longer this activator's, then the others by
     address. So a share is never exceeded, and new pods come in the order in which a list has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from activator.config.cluster_settings import MESH_DISABLED, MESH_ENABLED
from activator.control_plane.sources.cluster.backends import Backend
from activator.control_plane.sources.knative.known_pods import KnownPods
from activator.control_plane.sources.knative.shared_pods import SharedPods
from activator.messages import Change, ObservedPod, PodGone, PodsListed, PodStatus

SOURCE: Final = "kubernetes"
UNLIMITED: Final = -1  # the revision's own limit applies

# The pods of which this activator has a share.
EVERY: Final = "every"  # all of them, whatever other activators there are
NONE: Final = "none"  # none, because its position is not known yet
SOME: Final = "some"


class ReportContext(NamedTuple):
    """The context that applies to all pods.

    `trusts_queue_proxy`: as `revision_specs.trusts_queue_proxy`. `service`: the address that stands for the pods, or
    empty. `share`: the pods of which this activator has a share.
    """

    port_name: str
    with_tls: bool
    mode: str
    trusts_queue_proxy: bool
    service: str
    share: str
    position: tuple[int, ...]  # index, and number of activators; empty unless `share` is SOME


class PodReport:
    """The report of one revision's pods; it keeps the submitted pods."""

    def __init__(self, key: str, pods: KnownPods, shared: SharedPods) -> None:
        self._key = key
        self._pods = pods
        self._shared = shared
        self._submitted: dict[str, ObservedPod] | None = None  # by identity; None: not known

    def forget(self) -> None:
        """Have everything submitted again: some changes were lost."""
        self._submitted = None

    def full_list(self, cluster: list[ObservedPod], context: ReportContext) -> list[Change]:
        """Return the change with all pods as a list, and record it as submitted; empty if nothing differs."""
        pods = list(cluster)
        if context.mode != MESH_ENABLED:
            pods += [self._observed(pod, context) for pod in self._pods.all()]
        submitted = {pod.identity: pod for pod in pods}
        if submitted == self._submitted:
            return []
        self._submitted = submitted
        return [PodsListed(self._key, SOURCE, tuple(pods))]

    def differences(self, touched: Iterable[str], cluster: list[ObservedPod], context: ReportContext) -> list[Change]:
        """Return the changes of these pods, and of the Service in their place; record them as submitted."""
        submitted = self._submitted
        assert submitted is not None, "all pods have been submitted"
        removed: list[Change] = []
        not_ours: list[Change] = []
        others: list[Change] = []
        observed = list(cluster)
        if context.mode != MESH_ENABLED:
            for identity in touched:
                backend = self._pods.get(identity)
                if backend is not None:
                    observed.append(self._observed(backend, context))
                elif submitted.pop(identity, None) is not None:
                    removed.append(PodGone(self._key, SOURCE, identity))
        for pod in observed:
            before = submitted.get(pod.identity)
            if pod != before:
                submitted[pod.identity] = pod
                # A pod that has moved keeps the order of the others: another pod may get its address.
                is_no_longer_ours = before is not None and pod.limit == 0 and pod.address == before.address
                (not_ours if is_no_longer_ours else others).append(pod)
        return removed + not_ours + others

    def _observed(self, pod: Backend, context: ReportContext) -> ObservedPod:
        status, probe = _status(pod, context.mode, context.trusts_queue_proxy)
        is_ours = not context.service and (
            context.share == EVERY or (context.share == SOME and self._shared.is_ours(pod.address))
        )
        limit = UNLIMITED if is_ours else 0
        flips = self._pods.flips(pod.identity)
        return ObservedPod(
            self._key, SOURCE, pod.identity, pod.address, status, probe, limit=limit, restarts=flips, zone=pod.zone
        )


def _status(pod: Backend, mode: str, trusts_queue_proxy: bool) -> tuple[PodStatus, bool]:
    """Return the status that is reported of a pod, and whether it is probed."""
    if pod.terminating:
        return PodStatus.DRAINING, False
    if mode == MESH_DISABLED and pod.ready:
        return PodStatus.READY, False
    if pod.ready or trusts_queue_proxy:
        return PodStatus.PENDING, True
    return PodStatus.NOT_READY, False
