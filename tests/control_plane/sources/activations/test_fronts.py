"""Services whose requests come to the activator: which can be taken, on which port each is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from activator.config.activation import Activation, Declared, Target
from activator.config.model.revision import Revision
from activator.config.model.transparent import ENTRY_PORT_FIRST, ENTRY_PORT_LAST, MODE_TRANSPARENT, Transparent
from activator.control_plane.reconcile.traffic_wanted import Position
from activator.control_plane.scaling.rule import ScalingRule
from activator.control_plane.sources.activations.fronts import ENTRY_LINGERS_S, ENTRY_RETRY_S, FrontInputs, Fronts
from activator.control_plane.sources.activations.objects import AnnotatedService, FrontSliceRead, Workload
from activator.control_plane.sources.activations.service_front import Refused, missing_family, usable_ports
from tests.manual_clock import ManualClock

HTTP = {"name": "http", "port": 80, "targetPort": "http"}
CONTAINER = {"ports": [{"name": "http", "containerPort": 8080}]}
WORKLOAD = msgspec.convert({"spec": {"template": {"spec": {"containers": [CONTAINER]}}}}, Workload)


def service(name: str = "web", **spec: Any) -> AnnotatedService:
    said = {"selector": {"app": name}, "ports": [HTTP], **spec}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": said}, AnnotatedService)


def declared(**transparent: Any) -> Declared:
    own = Activation(Target("web"), mode=MODE_TRANSPARENT, transparent=Transparent(**transparent))
    return Declared(Revision(name="web", namespace="default"), own)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"type": "ExternalName", "externalName": "example.test"}, "ExternalName"),
        ({"clusterIP": "None"}, "Headless"),
        ({"selector": None}, "NoSelector"),
        ({"selector": {"activator.dev/in-path": "only"}}, "NoSelector"),
        ({"externalTrafficPolicy": "Local"}, "NodeLocal"),
        ({"internalTrafficPolicy": "Local"}, "NodeLocal"),
        ({"ports": [HTTP, {"name": "more", "port": 81}]}, "OtherPorts"),
        ({"ports": [{"name": "more", "port": 81}]}, "PortNotFound"),
        ({"ports": [{**HTTP, "protocol": "UDP"}]}, "PortNotFound"),
    ],
)
def test_what_cannot_be_taken(spec: dict[str, Any], reason: str) -> None:
    found = usable_ports(service(**spec), declared(), WORKLOAD, "default/web")
    assert isinstance(found, Refused)
    assert found.reason == reason


def test_a_port_is_the_same_by_name_and_by_number() -> None:
    for port in (HTTP, {**HTTP, "targetPort": 8080}, {"port": 8080}):
        found = usable_ports(service(ports=[port]), declared(), WORKLOAD, "default/web")
        assert not isinstance(found, Refused), port
    both = [HTTP, {"name": "other", "port": 81, "targetPort": 8080}]
    assert len(usable_ports(service(ports=both), declared(), WORKLOAD, "default/web")) == 2


@pytest.mark.parametrize(
    ("families", "reached", "refused"),
    [
        (["IPv4"], {"IPv4"}, False),
        (["IPv4", "IPv6"], {"IPv4", "IPv6"}, False),
        (["IPv6"], {"IPv4", "IPv6"}, False),
        (["IPv4", "IPv6"], {"IPv4"}, True),
        (["IPv6"], {"IPv4"}, True),
        (["IPv6"], set(), False),  # nothing is known yet
    ],
)
def test_a_family_that_the_activator_is_not_reached_by_is_refused(
    families: list[str], reached: set[str], refused: bool
) -> None:
    found = missing_family(service(ipFamilies=families), reached, "default/web")
    assert (found is not None) == refused
    if found is not None:
        assert found.reason == "AddressFamily" and "IPv6 addresses" in found.message


class Cluster:
    """Fronts with Services and slices as they are put."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.services: dict[str, AnnotatedService] = {}
        self.marked: set[str] = set()
        self.listened: frozenset[int] = frozenset()
        self.taken: frozenset[int] = frozenset()  # by another program
        self.asked = 0
        self.listened_families = frozenset({"IPv4", "IPv6"})
        here = (self._listen, self.clock.now, lambda: "", "10.0.0.9", lambda: self.listened_families)
        self.fronts = Fronts(self.services.get, self.marked.add, *here)
        self.version = 1

    def _listen(self, ports: frozenset[int]) -> frozenset[int]:
        self.asked += 1
        self.listened = ports - self.taken
        return ports & self.taken

    def put(self, one: AnnotatedService) -> None:
        self.services[f"default/{one.metadata.name}"] = one
        self.fronts.service_changed(one)

    def work_out(self, key: str = "default/web", ready: int = 0, is_ours: bool = True) -> Any:
        inputs = FrontInputs(WORKLOAD, ready, ready, ready)
        return self.fronts.decide(key, declared(), ScalingRule(), inputs, is_ours)

    def write(self, outcome: Any) -> None:
        """What is wanted is there."""
        for one in outcome.traffic.slices:
            self.show(outcome.traffic.service, one.name, one.ports[0].number, [one.address for one in one.endpoints])

    def show(self, name: str, slice_name: str, number: int, addresses: list[str]) -> None:
        self.version += 1
        metadata = {
            "name": slice_name,
            "namespace": "default",
            "uid": f"uid-{slice_name}",
            "resourceVersion": str(self.version),
            "labels": {"kubernetes.io/service-name": name},
            "ownerReferences": [{"uid": f"uid-{name}", "controller": True}],
        }
        conditions = {"ready": True, "serving": True, "terminating": False}
        endpoints = [{"addresses": [one], "conditions": conditions} for one in addresses]
        ports = [{"name": "http", "port": number}]
        thing = {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports}
        self.fronts.slice_changed(msgspec.convert(thing, FrontSliceRead))


def test_a_service_gets_a_port_of_its_own_and_keeps_it() -> None:
    here = Cluster()
    here.put(service())
    here.fronts.declare("default/web", declared(), "2026")
    first = here.work_out()
    assert first.traffic.position is Position.OUT
    (number,) = {one.ports[0].number for one in first.traffic.slices}
    assert ENTRY_PORT_FIRST <= number <= ENTRY_PORT_LAST
    assert here.listened == frozenset(), "not before it is written"
    here.write(first)
    assert here.listened == {number}
    assert here.fronts.entries("default/web") == ((number,), True)
    here.work_out()
    here.clock.pass_time(2.0)
    second = here.work_out()
    assert second.traffic.position is Position.BESIDE
    here.write(second)
    assert here.fronts.entries("default/web") == ((number,), False), "its clients come here now"


def own_slice(family: str, *addresses: str) -> FrontSliceRead:
    """Of the activator's own Service."""
    conditions = {"ready": True, "serving": True, "terminating": False}
    endpoints = [{"addresses": [one], "conditions": conditions} for one in addresses]
    thing = {"metadata": {"name": f"activator-{family}", "namespace": "activator"}, "addressType": family}
    return msgspec.convert({**thing, "endpoints": endpoints, "ports": []}, FrontSliceRead)


def test_a_service_of_two_families_has_a_slice_of_each_once_the_activator_has_both() -> None:
    here = Cluster()
    here.put(service(ipFamilies=["IPv4", "IPv6"]))
    here.fronts.declare("default/web", declared(), "2026")
    here.fronts.replica_slice_changed(own_slice("IPv4", "10.0.0.9"))
    outcome = here.work_out()
    assert (outcome.traffic, outcome.condition.reason) == (None, "AddressFamily")
    here.marked.clear()
    here.fronts.replica_slice_changed(own_slice("IPv6"))
    assert here.marked == {"default/web"}
    assert here.work_out().traffic is not None, "no replica has an address yet: that is another thing"
    here.fronts.replica_slice_changed(own_slice("IPv6", "fd00::9"))
    slices = here.work_out().traffic.slices
    assert [(one.address_type, len({port.number for port in one.ports})) for one in slices] == [
        ("IPv4", 1),
        ("IPv6", 1),
    ]
    here.listened_families = frozenset({"IPv4"})
    assert here.work_out().condition.reason == "AddressFamily", "it does not listen there"


def test_two_services_never_share_a_port() -> None:
    here = Cluster()
    numbers = set()
    for count in range(200):
        name = f"web{count}"
        here.put(service(name))
        here.fronts.declare(f"default/{name}", declared(), "2026")
        outcome = here.work_out(f"default/{name}")
        numbers.add(outcome.traffic.slices[0].ports[0].number)
    assert len(numbers) == 200


def test_of_two_that_show_one_port_the_second_moves() -> None:
    here = Cluster()
    for name in ("a", "b"):
        here.put(service(name))
        here.fronts.declare(f"default/{name}", declared(), "2026")
        here.show(name, f"{name}-activator-ipv4", 20_005, [])
    assert here.work_out("default/a").traffic.slices[0].ports[0].number == 20_005
    assert here.work_out("default/b").traffic.slices[0].ports[0].number != 20_005


def test_a_port_is_listened_on_for_a_while_after_its_slice_has_gone() -> None:
    here = Cluster()
    here.put(service())
    here.fronts.declare("default/web", declared(), "2026")
    outcome = here.work_out()
    here.write(outcome)
    number = outcome.traffic.slices[0].ports[0].number
    (shown,) = here.fronts.slices_of("default/web")
    here.fronts.slice_gone(shown)
    assert here.listened == {number}
    assert here.fronts.entries("default/web")[0] == (number,)
    assert here.work_out().traffic.slices[0].ports[0].number == number, "made again, it is as it was"
    here.clock.pass_time(ENTRY_LINGERS_S + 1.0)
    here.fronts.expire()
    assert here.listened == frozenset()


def test_who_does_not_decide_follows_the_slices() -> None:
    here = Cluster()
    here.put(service())
    here.fronts.declare("default/web", declared(), "2026")
    here.show("web", "web-activator-ipv4", 20_007, ["10.0.0.9"])
    outcome = here.work_out(is_ours=False)
    assert outcome.traffic is None
    assert here.fronts.entries("default/web") == ((20_007,), False)
    assert here.listened == {20_007}


def test_what_nobody_declares_is_given_back() -> None:
    here = Cluster()
    here.put(service(selector={"app": "web", "activator.dev/in-path": "only"}))
    here.show("web", "web-activator-ipv4", 20_007, ["10.0.0.9"])
    assert here.fronts.to_give_back() == ["default/web"]
    here.fronts.declare("default/web", declared(), "2026")
    here.work_out()
    assert here.fronts.to_give_back() == []
    here.fronts.declare("default/web", None, "")
    assert here.fronts.to_give_back() == ["default/web"]


def test_two_activations_of_one_service_the_older_has_it() -> None:
    here = Cluster()
    here.put(service())
    here.fronts.declare("default/web", declared(), "2026-01-01")
    here.fronts.declare("default/other", declared(service="web"), "2026-01-02")
    assert here.work_out("default/other").condition.reason == "ServiceTaken"
    assert here.work_out("default/web").traffic is not None
    here.fronts.declare("default/web", None, "")
    assert "default/other" in here.marked


def test_a_port_that_cannot_be_bound_is_given_up_for_another() -> None:
    cluster = Cluster()
    cluster.put(service())
    cluster.fronts.declare("default/web", declared(), "1")
    first = cluster.work_out().traffic.slices[0].ports[0].number
    cluster.taken = frozenset({first, first + 1})
    outcome = cluster.work_out()
    for _ in range(3):
        cluster.marked.clear()
        cluster.write(outcome)
        assert "default/web" in cluster.marked
        outcome = cluster.work_out()
    second = outcome.traffic.slices[0].ports[0].number
    assert second not in cluster.taken
    assert cluster.listened == {second}, "a port that was never bound does not linger"
    assert cluster.work_out().traffic.slices[0].ports[0].number == second
    cluster.clock.pass_time(ENTRY_RETRY_S)
    cluster.fronts.expire()
    assert cluster.work_out().traffic.slices[0].ports[0].number == second, "and is not chosen again while this one is"


def test_a_port_that_is_shown_is_tried_again() -> None:
    """By a replica that does not decide."""
    cluster = Cluster()
    cluster.put(service())
    cluster.taken = frozenset({ENTRY_PORT_FIRST})
    cluster.show("web", "web-activator", ENTRY_PORT_FIRST, ["10.0.0.8"])
    assert cluster.listened == frozenset()
    for _ in range(3):
        asked = cluster.asked
        cluster.clock.pass_time(ENTRY_RETRY_S / 2)
        cluster.fronts.expire()
        assert cluster.asked == asked + 1
    cluster.taken = frozenset()
    cluster.fronts.expire()
    assert cluster.listened == {ENTRY_PORT_FIRST}
    asked = cluster.asked
    cluster.fronts.expire()
    assert cluster.asked == asked
