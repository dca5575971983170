"""Declared revisions whose objects come, go and change in unfortunate orders: nothing is lost, and nothing is left."""

from __future__ import annotations

import msgspec
import pytest

from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, ConditionSpec
from activator.messages import (
    Change,
    DropRevision,
    ObservedPod,
    PodGone,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from tests.control_plane.sources.activations.activation_fakes import (
    KEY,
    NAME,
    World,
    activation,
    endpoint,
    endpoint_slice,
    pod,
    service,
    waiting,
    workload,
)

BROKEN = [pod(containerStatuses=[waiting("ImagePullBackOff", "not found")])]


def declared(**spec: object) -> World:
    world = World()
    world.deploy(workload())
    world.declare(activation(**spec))  # type: ignore[arg-type]
    world.turn()
    return world


def pods_of(changes: list[Change]) -> list[str]:
    return [one.identity for one in changes if isinstance(one, ObservedPod)]


# --- slices -----------------------------------------------------------------------------------------------------------


def test_slices_that_were_worked_out_before_their_activation_came_count() -> None:
    """A start of the activator lists both at the same time, and either may come first."""
    world = World()
    world.deploy(workload(replicas=1))
    world.slices(endpoint_slice(endpoint(1)))
    assert world.turn() == []
    world.declare(activation())
    changes = world.turn()
    assert pods_of(changes) == ["pod-1"]


def test_an_activation_that_is_made_again_has_the_pods_that_its_slices_still_show() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1)))
    world.turn()
    world.withdraw(activation())
    assert world.turn() == [RevisionGone(KEY)]
    world.declare(activation(uid="another"))
    assert pods_of(world.turn()) == ["pod-1"]


def test_pods_that_went_while_no_activation_was_there_are_not_told() -> None:
    world = declared()
    world.slices(endpoint_slice(endpoint(1), endpoint(2)))
    world.turn()
    world.withdraw(activation())
    world.turn()
    world.slices(endpoint_slice(endpoint(2)))
    world.turn()
    world.declare(activation())
    changes = world.turn()
    assert pods_of(changes) == ["pod-2"]
    assert not any(isinstance(one, PodGone) for one in changes)


# --- the state worker -------------------------------------------------------------------------------------------------


def test_a_revision_ends_although_its_last_pass_failed() -> None:
    world = declared()
    world.breaks.add(NAME)
    world.mark(KEY)
    assert world.turn() == []
    assert world.panics == [KEY]
    world.withdraw(activation())
    assert world.turn() == [RevisionGone(KEY)]


def test_a_revision_ends_although_its_changes_were_lost_in_the_same_turn() -> None:
    world = declared()
    world.relist(KEY)
    world.withdraw(activation())
    assert world.turn() == [RevisionGone(KEY)]


def test_a_recovery_that_was_lost_is_told_again() -> None:
    world = declared()
    world.source.scaled(KEY, 1)
    world.turn()
    world.source.pods_listed(KEY, BROKEN, world.clock.now())
    assert [type(one) for one in world.turn()] == [RevisionFailed]
    world.answers("pod-1")
    assert world.turn() == [RevisionRecovered(KEY)]
    world.relist(KEY)
    assert RevisionRecovered(KEY) in world.turn()


def test_the_late_end_of_the_revision_before_leaves_the_scale_of_this_one() -> None:
    world = declared()
    world.withdraw(activation())
    world.turn()
    world.declare(activation(uid="another"))
    world.turn()
    world.source.scaled(KEY, 1)
    world.source.applied(DropRevision(KEY))
    world.mark(KEY)
    world.turn()
    assert world.desired().replicas == 1


def test_an_activation_that_goes_takes_its_scale_along() -> None:
    world = declared()
    world.source.scaled(KEY, 3)
    world.turn()
    world.withdraw(activation())
    world.turn()
    assert world.source.wanted == {}
    world.declare(activation(uid="another"))
    world.turn()
    assert world.desired().replicas is None, "nobody has decided for this one yet"


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_what_the_autoscaler_said_is_void_once_somebody_else_scales() -> None:
    world = declared()
    world.source.scaled(KEY, 3)
    world.turn()
    assert world.desired().replicas == 3
    world.declare(activation(scaling={"min": 0}, externalScaler=True))
    world.deploy(workload(replicas=7))
    world.turn()
    assert world.desired().replicas is None
    assert (world.desired().wanted, world.source.wanted) == (7, {})


def test_a_failure_of_an_earlier_start_is_not_told_to_the_next_one() -> None:
    world = declared()
    world.source.scaled(KEY, 1)
    world.turn()
    world.source.pods_listed(KEY, BROKEN, world.clock.now())
    assert [type(one) for one in world.turn()] == [RevisionFailed]
    world.source.scaled(KEY, 0)
    assert world.turn() == [RevisionRecovered(KEY)]
    world.source.scaled(KEY, 1)
    assert world.turn() == [], "its image may be there now: whoever looks says so"


def test_a_failure_ends_at_zero_where_somebody_else_scales() -> None:
    world = World()
    world.deploy(workload(replicas=1))
    world.declare(activation(externalScaler=True))
    world.turn()
    world.source.pods_listed(KEY, BROKEN, world.clock.now())
    assert [type(one) for one in world.turn()] == [RevisionFailed]
    world.deploy(workload(replicas=0))
    assert world.turn() == [RevisionRecovered(KEY)]


def test_a_failure_of_one_target_is_not_the_next_ones() -> None:
    world = declared()
    world.source.scaled(KEY, 1)
    world.turn()
    world.source.pods_listed(KEY, BROKEN, world.clock.now())
    world.turn()
    world.deploy(workload("other", replicas=1))
    world.declare(activation(target={"name": "other"}))
    assert RevisionRecovered(KEY) in world.turn()
    assert world.desired().target.name == "other"


# --- what is written --------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_it_is_known_whether_the_target_is_there() -> None:
    """A restart that hears of the Activation first is not to delete the private Service of its pods."""
    world = World()
    world.source.workloads_known = False
    world.declare(activation())
    assert [type(one) for one in world.turn()] == [RevisionSet]
    assert world.wanted == []
    world.source.workloads_known = True
    world.deploy(workload())
    world.turn()
    assert world.desired().service is not None


def test_an_activation_that_goes_before_the_workloads_are_known_is_removed_later() -> None:
    world = World()
    world.source.workloads_known = False
    world.declare(activation())
    world.turn()
    world.withdraw(activation())
    assert world.turn() == [RevisionGone(KEY)]
    assert world.source.revisions == {}


# --- churn ------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_names_that_came_and_went() -> None:
    world = World()
    for number in range(1_000):
        name = f"a-{number}"
        key = f"default/{name}"
        one = activation(name, hosts=["shared.example.com", f"{name}.example.com"])
        world.deploy(workload(name))
        world.declare(one)
        world.slices(endpoint_slice(endpoint(1), name=name))
        world.turn()
        world.source.scaled(key, 1)
        world.answers("pod-1", key)
        world.source.pods_listed(key, BROKEN, world.clock.now())
        world.source.record_notes(key, (ConditionSpec("Degraded", "True", "NotOwned", "It is."),))
        world.turn()
        world.withdraw(one)
        world.turn()
        world.source.workload_objects("Deployment").removed(workload(name))
        world.source.record_notes(key, (ConditionSpec("Degraded", "True", "CannotWrite", "The removal failed."),))
        world.source.applied(DropRevision(key))
        world.source.slice_objects.removed(endpoint_slice(endpoint(1), name=name))
        world.turn()
    held = {name: len(one) for name, one in vars(world.source).items() if isinstance(one, dict) and one}
    assert held == {}
    assert len(world.source.hosts) == 0
    assert world.clock.pending() == 0


# --- names and texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1abc", "a.b", "x" * 64])
def test_a_name_that_no_service_may_have_is_told(name: str) -> None:
    world = World()
    world.deploy(workload(name))
    world.declare(activation(name, hosts=["a.example.com"]))
    assert world.turn() == []
    condition = world.condition("Ready", f"default/{name}")
    assert condition.reason == "InvalidSpec"
    assert f'metadata.name: found "{name}"' in condition.message


@pytest.mark.parametrize(
    "annotations",
    [
        {"activator.dev/hosts": "a\nERROR forged"},
        {"activator.dev/target": "Deploy\nment/x"},
        {"activator.dev/target": "a\u2028b"},
        {"activator.dev/target": "x" * 100_000},
        {"activator.dev/ho\nsts": "a"},
    ],
)
def test_what_an_author_wrote_is_told_in_one_short_line(annotations: dict[str, str]) -> None:
    world = World()
    world.source.service_objects.changed(None, service(annotations={"activator.dev/enabled": "true", **annotations}))
    assert world.turn() == []
    message = world.condition("Ready").message
    assert world.condition("Ready").reason == "InvalidSpec"
    assert message.isprintable()
    assert len(message) < 400


def test_a_label_of_ours_on_an_activation_means_nothing() -> None:
    """On a slice it says whose it is; a user may put it on anything."""
    world = declared()
    broken = activation(containerConcurrency=-1)
    labelled = msgspec.structs.replace(
        broken, metadata=msgspec.structs.replace(broken.metadata, labels={ACTIVATION_LABEL: "other"})
    )
    world.source.activation_objects.changed(activation(), labelled)
    assert world.turn() == []
    assert "the last valid spec stays in force" in world.condition("Ready").message


def test_what_was_made_for_a_service_goes_before_it_is_made_for_an_activation_of_its_name() -> None:
    """Each owns its private Service, and neither may take the other's."""
    world = World()
    world.deploy(workload())
    world.source.service_objects.changed(None, service())
    world.turn()
    assert (world.desired().owner.kind, world.desired().present) == ("Service", True)
    world.declare(activation(uid="of-the-activation"))
    world.turn()
    assert (world.desired().owner.kind, world.desired().present) == ("Service", False)
    world.clock.pass_time(1.0)
    world.turn()
    assert (world.desired().owner.kind, world.desired().uid) == ("Activation", "of-the-activation")
    assert world.desired().present
