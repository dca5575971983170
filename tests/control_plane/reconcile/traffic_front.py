"""The Service of an Activation on a fake cluster, as a source would see it that watches without delay."""

from __future__ import annotations

import msgspec

from activator.control_plane.reconcile.desired import Desired, Observed
from activator.control_plane.reconcile.traffic_wanted import (
    DesiredPath,
    FrontEndpoint,
    FrontPort,
    FrontSlice,
    ObservedTraffic,
    Position,
)
from activator.control_plane.sources.activations.objects import AnnotatedService, FrontSliceRead
from activator.control_plane.sources.activations.service_front import traffic_seen
from tests.control_plane.reconcile.reconcile_world import World, desired_of

ENDPOINT = FrontEndpoint("10.0.0.9", node="node-1", zone="a")
FULL = FrontSlice("a-activator-ipv4", "IPv4", (ENDPOINT,), (FrontPort("http", 20_001),))
EMPTY = msgspec.structs.replace(FULL, endpoints=())
RESOURCES = {"services", "endpointslices"}
LABEL = "activator.dev/in-path"
OURS = ("endpointslices", "a-activator-ipv4")


class Front:
    """The Service of an Activation, watched without delay."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.activation = here.one("activations", "a") if here.has("activations", "a") else here.make("a", 1)
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        thing = {"metadata": {"name": "a"}, "spec": {"selector": {"app": "a"}, "ports": ports}}
        self.service = here.server.create("services", thing)

    def seen(self) -> ObservedTraffic:
        service = msgspec.convert(self.here.one("services", "a"), AnnotatedService, strict=False)
        slices = self.here.server.collection("endpointslices").objects.values()
        ours = [one for one in slices if one["metadata"]["name"].startswith("a-activator")]
        read = [msgspec.convert(one, FrontSliceRead, strict=False) for one in ours]
        return traffic_seen(service, read, str(self.here.server.objects.version))

    def wanted(self, position: Position, slices: tuple[FrontSlice, ...] = (), has_pods: bool = False) -> Desired:
        shown = slices or (EMPTY if position is Position.OUT else FULL,)
        traffic = DesiredPath("a", self.service["metadata"]["uid"], position, shown, has_pods)
        return desired_of(self.activation, 1, observed=Observed(traffic=self.seen()), traffic=traffic)

    async def go(
        self, position: Position, slices: tuple[FrontSlice, ...] = (), has_pods: bool = False
    ) -> list[tuple[str, str]]:
        """The writes of it, by resource."""
        before = len(self.here.api.calls)
        self.here.reconciler.want(self.wanted(position, slices, has_pods))
        await self.here.pass_time(0.5)
        verbs = {"patch", "create", "delete"}
        return [call for call in self.here.api.calls[before:] if call[0] in verbs and call[1] in RESOURCES]
