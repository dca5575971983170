"""What the pods of a revision are, worked out from all of its objects each time: what the incremental way is held to.

It is slow, and plain: only what has a history (how often a pod was ready, since when it is silent) is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from activator.config.cluster_settings import MESH_DISABLED, MESH_ENABLED
from activator.control_plane.sources.cluster.backends import Backend, of_endpoints, of_slices
from activator.control_plane.sources.knative.sharing import (
    SHARE_PATIENCE_S,
    UNKNOWN,
    assign_slice,
    infer_index,
    share_of,
)
from activator.messages import ObservedPod, PodStatus
from activator.runtime.clock import NEVER
from activator.runtime.sockets import split_address

UID_LABEL = "serving.knative.dev/revisionUID"


def ready_ips(backends: list[Backend]) -> set[str]:
    """The IP addresses of those that take requests, without their port."""
    return {split_address(one.address)[0] for one in backends if one.ready and not one.terminating}


class WholeSharedPods:
    """Which pods are shared out (sharing.py, rule 4)."""

    def __init__(self) -> None:
        self.due_s = NEVER
        self.leaves_out = False
        self._up_since_s = NEVER
        self._silent_since_s: dict[str, float] = {}

    def of(self, listed: Mapping[str, str], proven: AbstractSet[str], now_s: float) -> list[str]:
        """The addresses of those that are. `listed`: address by identity."""
        silent_since_s = self._silent_since_s
        self._silent_since_s = {one: silent_since_s.get(one, now_s) for one in listed if one not in proven}
        is_up = len(self._silent_since_s) < len(listed)
        self._up_since_s = min(self._up_since_s, now_s) if is_up else NEVER
        self.due_s = NEVER
        self.leaves_out = False
        shared = []
        for identity, address in listed.items():
            until_s = max(self._silent_since_s.get(identity, NEVER), self._up_since_s) + SHARE_PATIENCE_S
            if now_s >= until_s:
                self.leaves_out = True
                continue
            self.due_s = min(self.due_s, until_s)
            shared.append(address)
        return shared


class WholeReading:
    """One revision. Objects are put into `private` and `public` by their kind and name."""

    def __init__(self, key: str, own_ip: str, shares: bool) -> None:
        self.private: dict[str, dict[str, Any]] = {"slices": {}, "endpoints": {}}
        self.public: dict[str, dict[str, Any]] = {"slices": {}, "endpoints": {}}
        self.former: set[str] = set()
        self.due_s = NEVER
        self.shared = WholeSharedPods()
        self.ready_pods = 0
        self._key = key
        self._own_ip = own_ip
        self._shares = shares
        self._flips: dict[str, int] = {}
        self._was_ready: dict[str, bool] = {}
        self._place = (UNKNOWN, 0)
        self._is_alone = False

    def removed(self, uid: str) -> None:
        """The revision of this UID is."""
        self.former.add(uid)
        self.shared = WholeSharedPods()
        self._place = (UNKNOWN, 0)
        self._is_alone = False

    def resync(self, backends: list[Backend]) -> None:
        for one in backends:
            if one.ready and self._was_ready.get(one.identity, False):
                self._flips[one.identity] += 1

    def pods(
        self,
        port_name: str,
        limit: int,
        with_tls: bool,
        mode: str,
        believes: bool,
        service: str,
        proven: AbstractSet[str],
        waiting_since_s: float,
        now_s: float,
    ) -> list[ObservedPod]:
        """`service`: where it answers in place of its pods, if there is a ready one."""
        self.due_s = NEVER
        backends = self._backends(self.private, port_name)
        if with_tls:
            backends = [one._replace(address=f"{one.address.rpartition(':')[0]}:8112") for one in backends]
        self._note_readiness(backends)
        self.ready_pods = sum(one.ready and not one.terminating for one in backends)
        mine = self._mine(backends, port_name, limit, proven, waiting_since_s, now_s)
        cluster = []
        if service and self.ready_pods:
            address = f"{service.rpartition(':')[0]}:443" if with_tls else service
            activators = self._place[1] if self._shares else 1
            share = share_of(self.ready_pods, limit, activators) if mine is None or self._place[0] != UNKNOWN else 0
            whole = -1 if limit == 0 else share
            identity = f"cluster-ip/{address}"
            cluster = [ObservedPod(self._key, "kubernetes", identity, address, PodStatus.READY, limit=whole)]
        if mode == MESH_ENABLED:
            return cluster
        return cluster + [
            ObservedPod(
                self._key,
                "kubernetes",
                one.identity,
                one.address,
                *_status(one, mode, believes),
                limit=-1 if not cluster and (mine is None or one.address in mine) else 0,
                restarts=self._flips[one.identity],
                zone=one.zone,
            )
            for one in backends
        ]

    def _backends(self, side: dict[str, dict[str, Any]], port_name: str) -> list[Backend]:
        slices, endpoints = (
            [one for one in side[form].values() if one.metadata.labels.get(UID_LABEL, "") not in self.former]
            for form in ("slices", "endpoints")
        )
        return of_slices(slices, port_name) if slices else of_endpoints(endpoints, port_name)

    def _note_readiness(self, backends: list[Backend]) -> None:
        flips, ready = {}, {}
        for one in backends:
            known = self._flips.get(one.identity, 0)
            flipped = self._was_ready.get(one.identity, False) and not one.ready and not one.terminating
            flips[one.identity] = known + flipped
            ready[one.identity] = one.ready
        self._flips, self._was_ready = flips, ready

    def _mine(
        self,
        backends: list[Backend],
        port_name: str,
        limit: int,
        proven: AbstractSet[str],
        waiting_since_s: float,
        now_s: float,
    ) -> AbstractSet[str] | None:
        if self._shares:
            place = infer_index(ready_ips(self._backends(self.public, port_name)), self._own_ip)
            if place[0] != UNKNOWN:
                self._place = place
        if not self._shares or limit == 0:
            return None
        if self._place[0] == UNKNOWN:
            until_s = waiting_since_s + SHARE_PATIENCE_S
            self._is_alone = self._is_alone or now_s >= until_s
            self.due_s = NEVER if self._is_alone else until_s
            return None if self._is_alone else frozenset()
        listed = {one.identity: one.address for one in backends if not one.terminating}
        shared = self.shared.of(listed, proven, now_s)
        self.due_s = self.shared.due_s
        return frozenset(assign_slice(list(set(shared)), *self._place))


def _status(one: Backend, mode: str, believes: bool) -> tuple[PodStatus, bool]:
    if one.terminating:
        return PodStatus.DRAINING, False
    if mode == MESH_DISABLED and one.ready:
        return PodStatus.READY, False
    if one.ready or believes:
        return PodStatus.PENDING, True
    return PodStatus.NOT_READY, False
