"""Where the requests of a Service go, as it is written: our slices, and one label in its selector."""

from __future__ import annotations

from activator.control_plane.reconcile.report import Component, Result
from activator.control_plane.reconcile.traffic_wanted import FrontEndpoint, FrontSlice, Position, position_of
from tests.control_plane.reconcile.reconcile_world import World, world
from tests.control_plane.reconcile.traffic_front import FULL, LABEL, OURS, Front
from tests.kubernetes.fake_cluster import on_a_loop


def outcome(here: World) -> Result:
    return here.reports[-1].outcomes[Component.TRAFFIC].result


@on_a_loop
async def test_in_and_out_are_four_writes() -> None:
    async with world() as here:
        front = Front(here)
        await front.go(Position.OUT)
        assert here.one(*OURS)["endpoints"] in ([], None)
        assert await front.go(Position.BESIDE) == [("patch", "endpointslices")]
        assert await front.go(Position.ALONE) == [("patch", "services")]
        assert here.one("services", "a")["spec"]["selector"] == {"app": "a", LABEL: "only"}
        assert await front.go(Position.BESIDE) == [("patch", "services")]
        assert await front.go(Position.OUT) == [("patch", "endpointslices")]
        assert here.one("services", "a")["spec"] == front.service["spec"]
        for position in (Position.OUT, Position.OUT):
            assert await front.go(position) == [], "as wanted"


@on_a_loop
async def test_a_slice_carries_where_the_activator_is_and_whose_it_is() -> None:
    async with world() as here:
        front = Front(here)
        await front.go(Position.BESIDE)
        thing = here.one(*OURS)
        assert thing["endpoints"] == [
            {
                "addresses": ["10.0.0.9"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": "node-1",
                "zone": "a",
            }
        ]
        assert thing["ports"] == [{"name": "http", "port": 20_001, "protocol": "TCP"}]
        assert thing["metadata"]["labels"] == {
            "kubernetes.io/service-name": "a",
            "endpointslice.kubernetes.io/managed-by": "activator.dev",
        }
        (owner,) = thing["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Service", front.service["metadata"]["uid"])
        assert position_of(front.seen(), (FULL,)) is Position.BESIDE


@on_a_loop
async def test_our_slices_are_written_before_the_pods_go_and_emptied_after_they_are_back() -> None:
    async with world() as here:
        front = Front(here)
        await front.go(Position.OUT)
        assert await front.go(Position.ALONE) == [("patch", "endpointslices"), ("patch", "services")]
        assert await front.go(Position.OUT, has_pods=True) == [("patch", "services")]
        assert outcome(here) is Result.WAITING, "the cluster's slices show no pod yet"
        assert len(here.one(*OURS)["endpoints"]) == 1
        thing = {
            "metadata": {
                "name": "a-x",
                "labels": {
                    "kubernetes.io/service-name": "a",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        }
        here.server.create("endpointslices", thing)
        assert await front.go(Position.OUT, has_pods=True) == [("patch", "endpointslices")]
        assert here.one(*OURS)["endpoints"] in ([], None)


@on_a_loop
async def test_a_selector_that_is_edited_meanwhile_stays_as_it_was_edited() -> None:
    async with world() as here:
        front = Front(here)
        await front.go(Position.ALONE)
        objects = here.server.objects
        collection = here.server.collection("services")
        objects.merge_patch(collection, ("default", "a"), {"spec": {"selector": {"app": "b", "tier": "x"}}}, "kubectl")
        await front.go(Position.BESIDE)
        assert here.one("services", "a")["spec"]["selector"] == {"app": "b", "tier": "x"}


@on_a_loop
async def test_another_service_of_this_name_is_not_touched() -> None:
    async with world() as here:
        front = Front(here)
        desired = front.wanted(Position.ALONE)
        assert desired.traffic is not None
        here.server.delete("services", "a")
        here.server.create(
            "services", {"metadata": {"name": "a"}, "spec": {"selector": {"app": "c"}, "ports": [{"port": 1}]}}
        )
        here.reconciler.want(desired)
        await here.pass_time(0.0)
        assert here.one("services", "a")["spec"]["selector"] == {"app": "c"}
        assert outcome(here) in (Result.FAILED, Result.NOT_FOUND)


@on_a_loop
async def test_a_family_that_is_gone_takes_its_slice_along() -> None:
    async with world() as here:
        front = Front(here)
        six = FrontSlice("a-activator-ipv6", "IPv6", (FrontEndpoint("fd00::9"),), FULL.ports)
        await front.go(Position.BESIDE, (FULL, six))
        assert here.has("endpointslices", "a-activator-ipv6")
        assert await front.go(Position.BESIDE) == [("delete", "endpointslices")]
        assert not here.has("endpointslices", "a-activator-ipv6")
        assert await front.go(Position.BESIDE) == []
