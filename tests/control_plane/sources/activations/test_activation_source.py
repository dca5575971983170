"""From the objects of a cluster without Knative to changes for the state worker, and to what is written back."""

from __future__ import annotations

from typing import Any

import pytest

from activator.control_plane.reconcile.desired import ConditionSpec, ObservedScale, PodsService
from activator.messages import (
    Change,
    ObservedPod,
    PodGone,
    PodStatus,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from lb.tracker import NOT_READY
from tests.control_plane.sources.activations.activation_fakes import (
    KEY,
    LABELS,
    NAME,
    World,
    activation,
    endpoint,
    endpoint_slice,
    pod,
    route,
    service,
    waiting,
    workload,
)

BROKEN = [pod(containerStatuses=[waiting("ImagePullBackOff", "not found")])]
UNSCHEDULABLE = [
    pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}])
]


def declared(**spec: Any) -> World:
    """A revision with a target at zero."""
    world = World()
    world.deploy(workload())
    world.declare(activation(**spec))
    return world


def hosts_of(changes: list[Change]) -> tuple[str, ...]:
    (spec,) = [one.spec for one in changes if isinstance(one, RevisionSet)]
    return spec.routing.hosts


def seen(number: int, status: PodStatus = PodStatus.PENDING, probe: bool = True, restarts: int = 0) -> ObservedPod:
    return ObservedPod(KEY, "kubernetes", f"pod-{number}", f"10.0.0.{number}:8080", status, probe, restarts=restarts)


# --- a revision -----------------------------------------------------------------------------------------------------


def test_an_activation_and_its_workload_are_a_revision() -> None:
    world = declared(containerConcurrency=2)
    (change,) = world.turn()
    assert isinstance(change, RevisionSet)
    assert (change.spec.key, change.spec.container_concurrency) == (KEY, 2)
    assert change.spec.routing.hosts == ("hello.example.com",)
    desired = world.desired()
    assert desired.service == PodsService("hello-pods", LABELS, "pods", 8080)
    assert (desired.target.kind, desired.target.name, desired.uid) == ("Deployment", "hello", "uid-hello")
    assert desired.replicas is None, "nobody has decided yet"
    assert desired.observed.scale == ObservedScale(0, "1", "uid-hello")


def test_the_zone_of_an_endpoint_is_submitted_and_its_change_is_too() -> None:
    world = declared(preferZone=True)
    for zone in ("eu-a", "eu-b", None):
        world.slices(endpoint_slice(endpoint(1, zone=zone), endpoint(2, zone="eu-b")))
        found = {one.identity: one.zone for one in world.turn() if isinstance(one, ObservedPod)}
        assert found == {"pod-1": zone or "", **({"pod-2": "eu-b"} if zone == "eu-a" else {})}


def test_what_changes_nothing_submits_nothing() -> None:
    world = declared()
    world.turn()
    world.declare(activation())
    world.deploy(workload())
    assert world.turn() == []
    assert world.wanted[-1] == world.wanted[-2]


def test_many_events_of_one_turn_are_one_pass() -> None:
    world = declared()
    for number in range(100):
        world.slices(endpoint_slice(endpoint(number)))
    changes = world.turn()
    assert [type(one) for one in changes] == [RevisionSet, ObservedPod]
    assert len(world.wanted) == 1


def test_an_activation_that_goes_ends_its_revision_and_what_was_made_for_it() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1)))
    world.turn()
    world.withdraw(activation())
    assert world.turn() == [RevisionGone(KEY)]
    assert (world.desired().present, world.desired().uid) == (False, "uid-hello")
    world.source.slice_objects.removed(endpoint_slice(endpoint(1)))
    world.turn()
    assert world.source.revisions == {}


def test_a_spec_that_is_not_valid_leaves_the_last_valid_one_in_force() -> None:
    world = declared()
    world.turn()
    world.declare(activation(containerConcurrency=-1))
    assert world.turn() == []
    condition = world.condition("Ready")
    assert (condition.status, condition.reason) == ("False", "InvalidSpec")
    assert "spec.containerConcurrency" in condition.message
    assert "the last valid spec stays in force" in condition.message
    world.declare(activation(containerConcurrency=3))
    assert [type(one) for one in world.turn()] == [RevisionSet]
    assert world.condition("Ready").status == "True"


def test_a_spec_that_was_never_valid_is_no_revision() -> None:
    world = World()
    world.declare(activation(policy="best"))
    assert world.turn() == []
    assert world.desired().service is None
    assert world.desired().replicas is None


def test_another_object_of_the_same_name_begins_without_the_first_ones_spec() -> None:
    world = declared()
    world.turn()
    world.declare(activation(uid="another", policy="best"))
    assert world.turn() == [RevisionGone(KEY)]


def test_an_annotated_service_declares_the_same() -> None:
    world = World()
    world.deploy(workload())
    said = {
        "activator.dev/enabled": "true",
        "activator.dev/hosts": "a.example.com, b.example.com",
        "activator.dev/container-concurrency": "3",
        "activator.dev/queue": "{depth: 7, timeout: 5s}",
    }
    world.source.service_objects.changed(None, service(annotations=said))
    (change,) = world.turn()
    assert isinstance(change, RevisionSet)
    spec = change.spec
    assert (spec.routing.hosts, spec.container_concurrency) == (("a.example.com", "b.example.com"), 3)
    assert (spec.queue.depth, spec.queue.timeout_s) == (7, 5.0)
    world.source.service_objects.changed(None, service(annotations={**said, "activator.dev/enabled": "false"}))
    assert world.turn() == [RevisionGone(KEY)]


def test_an_activation_goes_before_a_service_of_its_name() -> None:
    world = declared()
    world.source.service_objects.changed(None, service(annotations={"activator.dev/enabled": "true"}))
    assert hosts_of(world.turn()) == ("hello.example.com",)
    world.withdraw(activation())
    assert hosts_of(world.turn()) == ()


@pytest.mark.parametrize(
    ("spec", "ports", "expected"),
    [
        ({}, None, "h1"),
        ({"port": "h2c"}, [{"name": "h2c", "containerPort": 9000}], "h2c"),
        ({"port": 9000}, [{"name": "grpc", "containerPort": 9000}], "h2c"),
        ({"port": 9001}, [{"name": "grpc", "containerPort": 9000}], "h1"),
        ({"protocol": "h1", "port": 9000}, [{"name": "grpc", "containerPort": 9000}], "h2c"),
    ],
)
def test_the_name_of_a_port_says_which_protocol_is_spoken(
    spec: dict[str, Any], ports: list[dict[str, Any]] | None, expected: str
) -> None:
    """Whether a spec that says otherwise counts is for whoever makes the specification."""
    world = World()
    world.deploy(workload(ports=ports))
    world.declare(activation(**spec))
    (change,) = world.turn()
    assert isinstance(change, RevisionSet)
    assert change.spec.connection.protocol == expected


# --- pods -----------------------------------------------------------------------------------------------------------


def test_pods_come_turn_ready_and_go() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1, ready=False)))
    assert world.turn()[1:] == [seen(1, PodStatus.NOT_READY, False)]
    world.slices(endpoint_slice(endpoint(1), endpoint(2, ready=False)))
    assert world.turn() == [seen(1), seen(2, PodStatus.NOT_READY, False)]
    world.slices(endpoint_slice(endpoint(1, terminating=True), endpoint(2)))
    assert world.turn() == [seen(1, PodStatus.DRAINING, False), seen(2)]
    world.slices(endpoint_slice(endpoint(2)))
    assert world.turn() == [PodGone(KEY, "kubernetes", "pod-1")]


def test_a_pod_that_is_not_ready_is_probed_where_the_object_says_how() -> None:
    world = declared(probe={"path": "/healthz"})
    world.slices(endpoint_slice(endpoint(1, ready=False)))
    assert world.turn()[1:] == [seen(1)]


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_pod_that_was_not_ready_for_a_while_is_probed_again(is_folded: bool) -> None:
    world = declared(probe={"path": "/healthz"})
    world.slices(endpoint_slice(endpoint(1), endpoint(2)))
    assert world.turn()[1:] == [seen(1), seen(2)]
    world.slices(endpoint_slice(endpoint(1, ready=False), endpoint(2)))
    if not is_folded:
        assert world.turn() == [seen(1, restarts=1)]
    world.slices(endpoint_slice(endpoint(1), endpoint(2)))
    assert world.turn() == ([seen(1, restarts=1)] if is_folded else [])


def test_pods_whose_events_were_lost_are_probed_again() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1), endpoint(2, ready=False)))
    world.turn()
    world.source.slice_objects.resync(endpoint_slice(endpoint(1), endpoint(2, ready=False)))
    assert world.turn() == [seen(1, restarts=1)]
    assert world.turn() == []


def test_what_was_lost_is_submitted_again() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1), endpoint(2)))
    world.turn()
    world.relist(KEY)
    again = world.turn()
    assert [type(one) for one in again] == [RevisionSet, ObservedPod, ObservedPod]
    world.relist("default/unknown")
    assert world.changes == [*again, RevisionGone("default/unknown")]


def test_a_pod_that_goes_while_changes_are_lost_is_gone() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1), endpoint(2)))
    world.turn()
    world.relist(KEY)
    world.slices(endpoint_slice(endpoint(2)))
    assert world.turn()[1:] == [PodGone(KEY, "kubernetes", "pod-1"), seen(2)]


# --- hosts ----------------------------------------------------------------------------------------------------------


def test_of_two_that_claim_one_host_the_older_has_it_and_the_younger_says_so() -> None:
    world = declared(hosts=["shared.example.com", "own.example.com"])
    world.turn()
    older = activation("older", "2025-01-01T00:00:00Z", hosts=["shared.example.com"])
    world.deploy(workload("older"))
    world.declare(older)
    changes = {one.spec.key: one.spec.routing.hosts for one in world.turn() if isinstance(one, RevisionSet)}
    assert changes == {KEY: ("own.example.com",), "default/older": ("shared.example.com",)}
    condition = world.condition("Degraded")
    assert (condition.status, condition.reason) == ("True", "HostTaken")
    assert condition.message == "The host shared.example.com belongs to default/older, which is older."
    world.withdraw(older)
    assert hosts_of(world.turn()) == ("shared.example.com", "own.example.com")
    assert world.condition("Degraded").status == "False"


def test_objects_that_match_different_requests_share_a_host() -> None:
    world = declared(hosts=["shared.example.com"], match={"path": "/v1/"})
    world.deploy(workload("other"))
    world.declare(activation("other", hosts=["shared.example.com"], match={"path": "/v2/"}))
    world.declare(activation("younger", "2027-01-01T00:00:00Z", hosts=["shared.example.com"], match={"path": "/v2/"}))
    hosts = {one.spec.key: one.spec.routing.hosts for one in world.turn() if isinstance(one, RevisionSet)}
    shared = ("shared.example.com",)
    assert hosts == {KEY: shared, "default/other": shared, "default/younger": ()}


def test_objects_that_split_their_requests_share_a_host() -> None:
    world = declared(hosts=["shared.example.com"], weight=90)
    world.declare(activation("other", hosts=["shared.example.com"], weight=10))
    hosts = {one.spec.key: one.spec.routing.hosts for one in world.turn() if isinstance(one, RevisionSet)}
    assert hosts == {KEY: ("shared.example.com",), "default/other": ("shared.example.com",)}


def test_whoever_has_no_host_is_not_ready() -> None:
    world = declared(hosts=[])
    world.turn()
    assert world.condition("Ready").reason == "NoHosts"


def test_the_hosts_of_routes_that_lead_here_are_read() -> None:
    world = declared(hosts=[])
    world.turn()
    world.source.route_objects.changed(None, route("web.example.com"))
    assert hosts_of(world.turn()) == ("web.example.com",)
    world.source.route_objects.changed(route("web.example.com"), route("web.example.com", to=("other", "service")))
    assert hosts_of(world.turn()) == ()
    named = route("x.example.com", name="ingress", annotations={"activator.dev/activation": NAME})
    world.source.route_objects.changed(None, named)
    assert hosts_of(world.turn()) == ("x.example.com",)
    world.source.route_objects.removed(named)
    assert hosts_of(world.turn()) == ()


# --- scaling --------------------------------------------------------------------------------------------------------


def test_what_the_autoscaler_wants_is_written_and_told() -> None:
    world = declared()
    world.turn()
    world.source.scaled(KEY, 2, "2 requests wait.")
    world.turn()
    desired = world.desired()
    assert (desired.replicas, desired.wanted) == (2, 2)
    assert [(one.reason, one.note) for one in desired.events] == [("Scaled", "2 requests wait.")]
    assert world.condition("Ready").reason == "Starting"
    world.source.scaled(KEY, 2, "again")
    world.turn()
    assert world.desired() == desired


def test_the_conditions_follow_the_pods() -> None:
    world = declared()
    world.source.scaled(KEY, 0)
    world.turn()
    assert (world.condition("Ready").reason, world.condition("ScaledToZero").status) == ("AtZero", "True")
    world.source.scaled(KEY, 1)
    world.deploy(workload(replicas=1))
    world.slices(endpoint_slice(endpoint(1)))
    world.turn()
    assert world.condition("ScaledToZero").status == "False"
    world.answers("pod-1")
    world.turn()
    assert (world.condition("Ready").reason, world.condition("Active").status) == ("Serving", "True")
    assert world.desired().ready == 1
    world.fails("pod-1", NOT_READY)
    world.turn()
    assert world.condition("Active").reason == "Starting"


def test_every_pod_that_answers_or_does_no_more_counts() -> None:
    world = declared()
    world.source.scaled(KEY, 3)
    for number, identity in enumerate(("pod-1", "pod-2", "pod-3"), start=1):
        world.answers(identity)
        world.turn()
        assert world.desired().ready == number
    world.fails("pod-2", NOT_READY)
    world.turn()
    assert world.desired().ready == 2


def test_what_writers_have_met_is_told() -> None:
    world = declared()
    world.turn()
    world.source.record_notes(KEY, (ConditionSpec("Degraded", "True", "NotOwned", "Somebody else owns it."),))
    world.turn()
    assert world.condition("Degraded").reason == "NotOwned"
    world.source.record_notes(KEY, ())
    world.turn()
    assert world.condition("Degraded").status == "False"


# --- what cannot start ----------------------------------------------------------------------------------------------


def failing(world: World, pods: list[Any]) -> list[Change]:
    world.source.scaled(KEY, 1)
    world.turn()
    world.source.pods_listed(KEY, pods, world.clock.now())
    return world.turn()


def test_a_certain_failure_is_told_at_once_and_ends_with_the_first_pod() -> None:
    world = declared()
    cause = "the image of its container main cannot be pulled: not found"
    assert failing(world, BROKEN) == [RevisionFailed(KEY, cause)]
    assert (world.condition("Ready").reason, world.condition("Ready").message) == ("ImagePullBackOff", cause)
    world.answers("pod-1")
    assert world.turn() == [RevisionRecovered(KEY)]


def test_a_failure_that_may_pass_is_told_after_the_patience() -> None:
    world = declared(patience="30s")
    assert failing(world, UNSCHEDULABLE) == []
    assert world.condition("Ready").reason == "Unschedulable", "whoever looks at the object sees it at once"
    world.clock.pass_time(29.9)
    assert world.turn() == []
    world.clock.pass_time(0.2)
    assert world.turn() == [RevisionFailed(KEY, "no node takes its pod: no GPU")]


def test_the_patience_begins_anew_when_the_failure_has_passed() -> None:
    world = declared(patience="30s")
    failing(world, UNSCHEDULABLE)
    world.clock.pass_time(20.0)
    world.source.pods_listed(KEY, [pod()], world.clock.now())
    world.turn()
    world.source.pods_listed(KEY, UNSCHEDULABLE, world.clock.now())
    world.turn()
    world.clock.pass_time(20.0)
    assert world.turn() == []


def test_at_zero_a_failure_is_forgotten_so_that_the_next_request_tries_again() -> None:
    world = declared()
    failing(world, BROKEN)
    world.source.scaled(KEY, 0)
    assert world.turn() == [RevisionRecovered(KEY)]


@pytest.mark.parametrize(
    ("deployed", "spec", "reason", "cause"),
    [
        (None, {}, "TargetNotFound", "its target Deployment/hello does not exist"),
        (
            workload(),
            {"target": {"name": "hello", "kind": "StatefulSet"}},
            "TargetNotFound",
            "its target StatefulSet/hello does not exist",
        ),
        (
            workload(),
            {"port": "metrics"},
            "PortNotFound",
            'no container of its target Deployment/hello has a port named "metrics"',
        ),
        (
            workload(selector={"matchLabels": LABELS, "matchExpressions": [{"key": "a", "operator": "Exists"}]}),
            {},
            "SelectorNotSupported",
            "the selector of its target Deployment/hello has to consist of matchLabels alone",
        ),
    ],
)
def test_a_target_that_cannot_serve_is_told(deployed: Any, spec: dict[str, Any], reason: str, cause: str) -> None:
    world = World()
    if deployed is not None:
        world.deploy(deployed)
    world.declare(activation(**spec))
    assert world.turn()[1:] == [RevisionFailed(KEY, cause)]
    assert world.condition("Ready").reason == reason


def test_before_the_workloads_have_been_listed_none_is_missing() -> None:
    world = World()
    world.source.workloads_known = False
    world.declare(activation())
    assert [type(one) for one in world.turn()] == [RevisionSet]
    world.source.workloads_known = True
    world.mark(KEY)
    assert [type(one) for one in world.turn()] == [RevisionFailed]
    world.deploy(workload())
    assert world.turn() == [RevisionRecovered(KEY)]


# --- defects --------------------------------------------------------------------------------------------------------


def test_a_defect_costs_its_own_revision_only_and_is_tried_again() -> None:
    world = declared()
    world.breaks.add(NAME)
    world.deploy(workload("other"))
    world.declare(activation("other"))
    assert [one.spec.key for one in world.turn() if isinstance(one, RevisionSet)] == ["default/other"]
    assert world.panics == [KEY]
    world.breaks.clear()
    world.clock.pass_time(1.0)
    assert [one.spec.key for one in world.turn() if isinstance(one, RevisionSet)] == [KEY]
