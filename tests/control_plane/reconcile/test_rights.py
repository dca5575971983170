"""Everything that the reconciler does, under exactly the rights of its table; and each of them is needed."""

from __future__ import annotations

import pytest

from activator.control_plane.reconcile.desired import PodsService, TargetReference
from activator.control_plane.reconcile.events import SERIES_PATCH_S
from activator.control_plane.reconcile.report import Component, ComponentResult
from activator.control_plane.reconcile.rights import RIGHTS, rules
from activator.control_plane.reconcile.traffic_wanted import FrontEndpoint, FrontSlice, Position
from tests.control_plane.reconcile.reconcile_world import World, desired_of, event, world
from tests.control_plane.reconcile.traffic_front import FULL, Front
from tests.kubernetes.fake_cluster import on_a_loop
from tests.kubernetes.fake_controllers import deployment

NEEDED = [(right, verb) for right in RIGHTS for verb in right.verbs]


async def story(here: World) -> list[str]:
    """All that it can do; what was forbidden on the way."""
    forbidden: list[str] = []

    a = here.make("a", 2, manager="kubectl")
    here.server.create("statefulsets", deployment("s", 0))
    stateful = TargetReference("apps/v1", "StatefulSet", "s")
    front = Front(here)
    six = FrontSlice("a-activator-ipv6", "IPv6", (FrontEndpoint("fd00::9"),), FULL.ports)
    await front.go(Position.ALONE, (FULL, six))  # create, patch
    await front.go(Position.ALONE)  # delete
    await front.go(Position.OUT, has_pods=True)  # list
    for step in (
        desired_of(a, 1, events=(event(), event())),  # list, create, get, patch, status, event
        desired_of(a, 1, service=PodsService("a-pods", {"app": "a"}, "web", 9090)),  # patch
        desired_of(a, 2, target=stateful),
        desired_of(a, 2, target=stateful, service=None),  # delete
    ):
        here.reconciler.want(step)
        await here.pass_time(0.0)
        await here.pass_time(SERIES_PATCH_S)
    if here.has("services", "a-pods"):
        here.server.delete("services", "a-pods")
    here.server.create("services", {"metadata": {"name": "a-pods"}, "spec": {"ports": [{"port": 1}]}})
    here.reconciler.want(desired_of(a, 2, target=stateful))  # whose is it? get
    await here.pass_time(0.0)
    for report in here.reports:
        for component, outcome in report.outcomes.items():
            forbidden += _forbidden(component, outcome)
    return forbidden


def _forbidden(component: Component, outcome: ComponentResult) -> list[str]:
    return [f"{component.value}: {outcome.message}"] if "forbidden" in outcome.message else []


@on_a_loop
async def test_these_rights_are_enough() -> None:
    async with world() as here:
        here.server.rules = rules()
        assert await story(here) == []
        assert here.has("services", "a-pods")
        assert here.controllers.of("activation").writes["events", "failed"] == 0
        used = {(verb, resource) for verb, resource in here.api.calls}
        used.add(("create", "endpointslices"))  # an apply that makes an object needs this right, too
        assert used == {(verb, right.resource) for right, verb in NEEDED}, "no right that no call uses"


@pytest.mark.parametrize(("resource", "verb"), [(right.resource, verb) for right, verb in NEEDED])
@on_a_loop
async def test_each_of_them_is_needed(resource: str, verb: str) -> None:
    async with world() as here:
        reduced = rules()
        for rule in reduced:
            if rule["resources"] == [resource]:
                rule["verbs"] = [one for one in rule["verbs"] if one != verb]
        here.server.rules = reduced
        forbidden = await story(here)
        failed_events = here.controllers.of("activation").writes["events", "failed"]
        assert forbidden or (resource == "events" and failed_events), (resource, verb)


def test_rules_are_those_of_a_role() -> None:
    (services,) = [rule for rule in rules() if rule["resources"] == ["services"]]
    assert services == {
        "apiGroups": [""],
        "resources": ["services"],
        "verbs": ["get", "list", "create", "patch", "delete"],
    }
    assert {rule["apiGroups"][0] for rule in rules()} == {
        "",
        "apps",
        "activator.dev",
        "discovery.k8s.io",
        "events.k8s.io",
    }
    assert not any("*" in word for rule in rules() for words in rule.values() for word in words)
