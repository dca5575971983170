"""One Activation at a time: what is written, what is not, whose it is, and what becomes of refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from activator.control_plane.reconcile.desired import ConditionSpec, Observed, PodsService, TargetReference
from activator.control_plane.reconcile.events import EVENTS_BURST, SERIES_PATCH_S, SERIES_S
from activator.control_plane.reconcile.observed_cache import REMEMBERED_S
from activator.control_plane.reconcile.reads import Reads
from activator.control_plane.reconcile.report import Component, Result
from activator.control_plane.reconcile.scale import TAKE_AGAIN_INITIAL_S
from activator.control_plane.reconcile.writer import CONFLICT_ATTEMPTS_MAX, CONTROLLER
from activator.control_plane.sources.activations.conditions import CONTESTED, note_of
from tests.control_plane.reconcile.reconcile_world import (
    NAMESPACE,
    World,
    activation,
    desired_of,
    event,
    world,
)
from tests.kubernetes.fake_api_server import Fault
from tests.kubernetes.fake_cluster import on_a_loop
from tests.kubernetes.fake_controllers import deployment
from tests.kubernetes.fake_objects import Json, RefusalError

FIRST = Counter(
    {
        ("list", "services"): 1,
        ("create", "services"): 1,
        ("get", "deployments/scale"): 1,
        ("patch", "deployments/scale"): 1,
        ("get", "activations"): 1,
        ("patch", "activations/status"): 1,
        ("create", "events"): 1,
    }
)


def outcome(here: World, component: Component) -> Result:
    return here.reports[-1].outcomes[component].result


def conflicts(here: World) -> dict[str, int]:
    return {kind: count for kind, count in here.controllers.of(CONTROLLER).conflicts.items() if count}


async def wanted(here: World, thing: Json, replicas: int | None = 1, **changes: Any) -> None:
    here.reconciler.want(desired_of(thing, replicas, **changes))
    await here.settle()


@on_a_loop
async def test_a_first_pass_reads_once_and_writes_four_things() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 1, events=(event(),))
        assert here.api.taken() == FIRST, "one list, one get of each object"
        assert here.reports[-1].good
        service = here.one("services", "a-pods")
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"app": "a"}
        assert service["metadata"]["labels"] == {"activator.dev/activation": "a"}
        (owner,) = service["metadata"]["ownerReferences"]
        assert owner["uid"] == thing["metadata"]["uid"] and owner["controller"] is True
        assert here.one("deployments", "a")["spec"]["replicas"] == 1
        status = here.one("activations", "a")["status"]
        assert (status["observedGeneration"], status["wanted"]) == (1, 1)
        assert here.one("activations", "a")["metadata"]["generation"] == 1, "a status is no change of the spec"
        (told,) = here.collection("events").objects.values()
        assert (told["regarding"]["uid"], told["reason"]) == (thing["metadata"]["uid"], "Scaled")


@on_a_loop
async def test_what_is_as_wanted_costs_no_call_and_no_pass() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing)
        here.api.taken()
        passes = len(here.reports)
        for _ in range(3):
            await wanted(here, thing)
        await wanted(here, thing, observed=here.observed("a"))
        assert not here.api.taken() and len(here.reports) == passes
        assert here.reconciler.no_pass_total == 4
        assert here.controllers.of(CONTROLLER).writes["status", "unchanged"] == 4


@on_a_loop
async def test_what_watches_show_is_not_read() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 1, observed=here.observed("a"))
        calls = here.api.taken()
        assert {verb for verb, _ in calls} == {"create", "patch"} and calls.total() == 3


@on_a_loop
async def test_a_watch_that_is_behind_does_not_undo_a_write() -> None:
    async with world() as here:
        thing = here.make("a")
        before = here.observed("a")
        await wanted(here, thing, 1, observed=before)
        here.api.taken()
        await wanted(here, thing, 1, observed=before)
        assert not here.api.taken(), "what the API answered is newer than what the watch shows"


@on_a_loop
async def test_what_is_read_twice_in_a_pass_is_asked_for_once() -> None:
    async with world() as here:
        desired = desired_of(here.make("a"))
        reads = Reads(here.api, desired)
        for _ in range(3):
            assert await reads.activation() is not None
            assert await reads.services() == ()
        assert here.api.taken() == {("get", "activations"): 1, ("list", "services"): 1}
        reads = Reads(here.api, desired)
        assert await reads.get("/apis/apps/v1/namespaces/default/deployments/none") is None
        reads.forget()
        await reads.activation()
        assert reads.calls == {"get": 2}


@on_a_loop
async def test_after_a_while_what_nobody_watches_is_read_again() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing)
        here.api.taken()
        here.server.update("deployments", "a", {"spec": {"replicas": 5}})
        await here.pass_time(31.0)
        await wanted(here, thing)
        assert here.api.taken()["get", "deployments/scale"] == 1
        assert here.one("deployments", "a")["spec"]["replicas"] == 1


# --- ownership ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("owner", [None, "somebody"])
@on_a_loop
async def test_a_service_of_others_is_never_touched(owner: str | None, seen: bool) -> None:
    async with world() as here:
        thing = here.make("a")
        metadata: Json = {"name": "a-pods", "labels": {"activator.dev/activation": "a"}}
        if owner is not None:
            reference = {"apiVersion": "v1", "kind": "X", "name": owner, "uid": owner, "controller": True}
            metadata["ownerReferences"] = [reference]
        spec = {"selector": {"app": "theirs"}, "ports": [{"port": 1}]}
        theirs = here.server.create("services", {"metadata": metadata, "spec": spec})
        observed = here.observed("a") if seen else Observed()
        await wanted(here, thing, 1, observed=observed)
        assert outcome(here, Component.SERVICE) is Result.NOT_OWNED
        assert "a-pods is not of this Activation" in here.reports[-1].outcomes[Component.SERVICE].message
        assert outcome(here, Component.SCALE) is Result.SKIPPED
        assert outcome(here, Component.STATUS) is Result.WRITTEN, "what is told never depends on others"
        assert here.one("services", "a-pods") == theirs
        await wanted(here, thing, 1, service=None, observed=observed)
        assert here.one("services", "a-pods") == theirs


@on_a_loop
async def test_a_name_that_is_taken_between_is_not_taken_over() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing)
        here.api.taken()

        def replace(verb: str, path: str) -> None:
            if verb == "patch" and path.endswith("/services/a-pods"):
                here.api.before = lambda verb, path: None
                here.server.delete("services", "a-pods")
                here.server.create("services", {"metadata": {"name": "a-pods"}, "spec": {"ports": [{"port": 1}]}})

        here.api.before = replace
        await wanted(here, thing, service=PodsService("a-pods", {"app": "a"}, "http", 9090))
        assert outcome(here, Component.SERVICE) is Result.NOT_OWNED
        assert here.one("services", "a-pods")["spec"]["ports"][0]["port"] == 1
        assert conflicts(here) == {"service": 1}


@on_a_loop
async def test_a_service_that_somebody_wrote_or_deleted_is_looked_at_again() -> None:
    """Its content is not handed in; its versions are. What was written by us is no news."""
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing)
        version = here.one("services", "a-pods")["metadata"]["resourceVersion"]
        assert not here.reconciler.service_written("default/a", version, True)
        here.api.taken()
        await wanted(here, thing)
        assert not here.api.taken(), "nothing is read"
        edited = here.server.update("services", "a-pods", {"spec": {"selector": {"app": "other"}}})
        assert here.reconciler.service_written("default/a", edited["metadata"]["resourceVersion"], True)
        await wanted(here, thing)
        mended = here.one("services", "a-pods")
        assert mended["spec"]["selector"] == {"app": "a"}
        assert not here.reconciler.service_written("default/a", mended["metadata"]["resourceVersion"], True)
        here.server.delete("services", "a-pods")
        assert here.reconciler.service_written("default/a", mended["metadata"]["resourceVersion"], False)
        await wanted(here, thing)
        again = here.one("services", "a-pods")["metadata"]["resourceVersion"]
        assert not here.reconciler.service_written("default/a", again, True)
        assert not here.reconciler.service_written("default/b", "999", True), "nobody's"


@on_a_loop
async def test_a_service_that_somebody_writes_during_a_pass_is_looked_at_after_it() -> None:
    async with world() as here:
        thing = here.make("a")

        def edit(verb: str, path: str) -> None:
            if path.endswith("/activations/a/status"):  # the Service has been made in this pass
                here.api.before = lambda verb, path: None
                edited = here.server.update("services", "a-pods", {"spec": {"selector": {"app": "other"}}})
                here.reconciler.service_written("default/a", edited["metadata"]["resourceVersion"], True)

        here.api.before = edit
        await wanted(here, thing)
        assert here.one("services", "a-pods")["spec"]["selector"] == {"app": "a"}


@on_a_loop
async def test_a_service_is_deleted_where_it_is_ours_only() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing)
        await wanted(here, thing, service=None)
        assert outcome(here, Component.SERVICE) is Result.DELETED
        assert not here.has("services", "a-pods")
        await wanted(here, thing)
        uid = here.one("services", "a-pods")["metadata"]["uid"]

        def adopt(verb: str, path: str) -> None:
            if verb == "delete":
                here.api.before = lambda verb, path: None
                here.server.update("services", "a-pods", {"metadata": {"ownerReferences": None}})

        here.api.before = adopt
        await wanted(here, thing, service=None)
        assert here.one("services", "a-pods")["metadata"]["uid"] == uid, "somebody took it over before the call"
        assert outcome(here, Component.SERVICE) is Result.UNCHANGED


@on_a_loop
async def test_a_service_is_not_made_again_for_an_activation_that_is_gone() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 1, observed=here.observed("a"))
        stale = here.observed("a")
        here.server.delete("activations", "a")
        here.server.delete("services", "a-pods")  # the garbage collector, and the watch of Services tells of it first
        here.api.taken()
        behind = msgspec.structs.replace(here.observed("a"), status=stale.status)
        await wanted(here, thing, 1, observed=behind)
        assert not here.has("services", "a-pods")
        assert here.api.taken()["create", "services"] == 0
        assert outcome(here, Component.SERVICE) is Result.NOT_FOUND


@on_a_loop
async def test_a_status_is_not_written_onto_another_activation_of_that_name() -> None:
    async with world() as here:
        thing = here.make("a")
        here.server.delete("activations", "a")
        other = here.server.create(
            "activations", {k: v for k, v in thing.items() if k != "metadata"} | {"metadata": {"name": "a"}}
        )
        old = msgspec.structs.replace(here.observed("a"), status=msgspec.UNSET)
        await wanted(here, thing, 0, observed=old)
        assert outcome(here, Component.STATUS) is Result.NOT_FOUND
        assert "status" not in here.one("activations", "a")
        assert other["metadata"]["uid"] != thing["metadata"]["uid"]
        assert len(here.reconciler) == 0, "it is forgotten"


@on_a_loop
async def test_an_activation_that_is_replaced_before_the_write_keeps_its_own_status() -> None:
    async with world() as here:
        thing = here.make("a")

        def replace(verb: str, path: str) -> None:
            if path.endswith("/status"):
                here.api.before = lambda verb, path: None
                here.server.delete("activations", "a")
                here.server.create("activations", {**thing, "metadata": {"name": "a"}})

        here.api.before = replace
        await wanted(here, thing, 1, observed=here.observed("a"))
        assert "status" not in here.one("activations", "a")
        assert outcome(here, Component.STATUS) is Result.NOT_FOUND and conflicts(here) == {"status": 1}


# --- changes --------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_changes_reach_the_service_and_what_creation_set_goes() -> None:
    async with world() as here:
        thing = here.make("a")
        first = PodsService("a-pods", {"app": "a", "x": "1"}, "http", 8080, "kubernetes.io/h2c")
        await wanted(here, thing, service=first)
        uid = here.one("services", "a-pods")["metadata"]["uid"]
        here.api.taken()
        await wanted(here, thing, service=PodsService("a-pods", {"app": "a"}, "web", "named"))
        service = here.one("services", "a-pods")
        assert service["metadata"]["uid"] == uid
        assert service["spec"]["selector"] == {"app": "a"}
        assert service["spec"]["ports"] == [{"name": "web", "port": 80, "protocol": "TCP", "targetPort": "named"}]
        here.api.taken()
        await wanted(here, thing, service=PodsService("a-pods", {"app": "a"}, "web", "named"))
        assert not here.api.taken()
        await wanted(here, thing, service=PodsService("b-pods", {"app": "a"}, "web", "named"))
        assert here.has("services", "b-pods") and not here.has("services", "a-pods")


@on_a_loop
async def test_times_of_conditions_move_with_their_status_only() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 0, conditions=(ConditionSpec("Ready", "True", "A", "x"),))
        (first,) = here.one("activations", "a")["status"]["conditions"]
        await here.pass_time(10.0)
        await wanted(here, thing, 0, conditions=(ConditionSpec("Ready", "True", "B", "y"),))
        (second,) = here.one("activations", "a")["status"]["conditions"]
        assert second["reason"] == "B" and second["lastTransitionTime"] == first["lastTransitionTime"]
        await wanted(here, thing, 0, conditions=(ConditionSpec("Ready", "False", "B", "y"),))
        (third,) = here.one("activations", "a")["status"]["conditions"]
        assert third["lastTransitionTime"] > first["lastTransitionTime"]
        await wanted(here, thing, 0, conditions=())
        assert not here.one("activations", "a")["status"].get("conditions")


# --- replicas -------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_replicas_of_another_manager_are_taken_counted_and_reported() -> None:
    async with world() as here:
        thing = here.make("a", 3, manager="kubectl-client-side-apply")
        await wanted(here, thing, 1)
        scale = here.reports[-1].outcomes[Component.SCALE]
        assert (scale.result, scale.taken_from) == (Result.WRITTEN, ("kubectl-client-side-apply",))
        assert conflicts(here) == {"scale": 1}
        assert here.controllers.of(CONTROLLER).conflict_managers == {("scale", "kubectl"): 1}
        assert here.one("deployments", "a")["spec"]["replicas"] == 1
        await wanted(here, thing, 2)
        assert here.reports[-1].outcomes[Component.SCALE].taken_from == (), "they are ours now"


def create_deployment(here: World, manager: str, operation: str) -> None:
    """As a tool leaves it: by `create` or client-side apply ("Update"), by server-side apply, or by no manager."""
    objects, deployments = here.server.objects, here.collection("deployments")
    if operation == "Apply":
        whole = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment("a", 3)}
        objects.apply(deployments, (NAMESPACE, "a"), whole, manager, False)
    else:
        objects.create(deployments, NAMESPACE, deployment("a", 3), manager)


def sync_deployment(here: World, manager: str, operation: str) -> None:
    """The tool writes its number again."""
    objects, deployments, key = here.server.objects, here.collection("deployments"), (NAMESPACE, "a")
    if operation == "Apply":
        whole = {"apiVersion": "apps/v1", "kind": "Deployment", **deployment("a", 3)}
        objects.apply(deployments, key, whole, manager, True)
    else:
        objects.merge_patch(deployments, key, {"spec": {"replicas": 3}}, manager or "kubectl-edit", whole=True)


@pytest.mark.parametrize("is_written_at_once", [True, False], ids=["changed", "as it is"])
@pytest.mark.parametrize(
    ("manager", "operation"),
    [
        ("kubectl-create", "Update"),
        ("kubectl-client-side-apply", "Update"),
        ("kubectl", "Apply"),
        ("helm", "Update"),
        ("helm", "Apply"),  # Helm 4
        ("argocd-controller", "Update"),
        ("argocd-controller", "Apply"),
        ("kustomize-controller", "Apply"),
        ("", "Update"),  # the API names it before-first-apply
    ],
)
@on_a_loop
async def test_taking_replicas_over_is_no_contest_until_somebody_takes_them_back(
    manager: str, operation: str, is_written_at_once: bool
) -> None:
    async with world() as here:
        create_deployment(here, manager, operation)
        thing = here.server.create("activations", activation("a"))
        if not is_written_at_once:
            await wanted(here, thing, 3, observed=here.observed("a"))
        for replicas in (1, 0, 2):
            await wanted(here, thing, replicas, observed=here.observed("a"))
            assert here.one("deployments", "a")["spec"]["replicas"] == replicas
            assert note_of(Component.SCALE, here.reports[-1].outcomes[Component.SCALE]) is None
        sync_deployment(here, manager, operation)
        await wanted(here, thing, 2, observed=here.observed("a"))
        note = note_of(Component.SCALE, here.reports[-1].outcomes[Component.SCALE])
        assert note is not None and note.reason == CONTESTED
        assert (manager or "kubectl-edit") in note.message


@on_a_loop
async def test_a_target_that_is_made_again_is_adopted_again() -> None:
    async with world() as here:
        thing = here.make("a", 3, manager="helm")
        await wanted(here, thing, 1, observed=here.observed("a"))
        deployments = here.collection("deployments")
        here.server.objects.delete(deployments, (NAMESPACE, "a"))
        here.server.objects.create(deployments, NAMESPACE, deployment("a", 3), "helm")
        await wanted(here, thing, 1, observed=here.observed("a"))
        scale = here.reports[-1].outcomes[Component.SCALE]
        assert (scale.result, note_of(Component.SCALE, scale)) == (Result.WRITTEN, None)


@on_a_loop
async def test_fields_are_taken_only_from_a_manager_that_was_named() -> None:
    async with world() as here:
        thing = here.make("a", 3, manager="kubectl")

        def once(verb: str, path: str) -> None:
            if verb == "patch":
                here.api.before = lambda verb, path: None
                raise RefusalError(409, "Conflict", "the object has been modified")

        here.api.before = once
        await wanted(here, thing, 1, service=None)
        assert here.controllers.of(CONTROLLER).conflict_managers == {("scale", "none"): 1, ("scale", "kubectl"): 1}
        assert here.reports[-1].outcomes[Component.SCALE].taken_from == ("kubectl",)


@on_a_loop
async def test_who_takes_replicas_back_is_fought_more_and_more_rarely() -> None:
    async with world() as here:
        thing = here.make("a", 3, manager="kubectl")

        def take_back() -> None:
            deployments = here.collection("deployments")
            here.server.objects.merge_patch(
                deployments, (NAMESPACE, "a"), {"spec": {"replicas": 3}}, "kubectl", whole=True
            )

        await wanted(here, thing, 1, observed=here.observed("a"))
        take_back()
        await wanted(here, thing, 1, observed=here.observed("a"))
        contested = here.reports[-1].outcomes[Component.SCALE]
        assert contested.result is Result.CONTESTED and "kubectl sets the replicas" in contested.message
        assert here.reports[-1].retry_in_s == pytest.approx(TAKE_AGAIN_INITIAL_S, rel=0.1)
        assert here.one("deployments", "a")["spec"]["replicas"] == 3
        here.reconciler.want(desired_of(thing, 1, observed=here.observed("a")))
        await here.pass_time(TAKE_AGAIN_INITIAL_S)
        assert here.one("deployments", "a")["spec"]["replicas"] == 1, "after its pause"
        take_back()
        await wanted(here, thing, 1, observed=here.observed("a"))
        retry_s = here.reports[-1].retry_in_s
        assert retry_s is not None and retry_s > 1.5 * TAKE_AGAIN_INITIAL_S
        await wanted(here, thing, 5, observed=here.observed("a"), urgent=True)
        assert here.one("deployments", "a")["spec"]["replicas"] == 5, "another number may start a first pod"


@on_a_loop
async def test_a_target_that_is_not_there_or_cannot_be_scaled() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 1, target=TargetReference("apps/v1", "Deployment", "none"))
        scale = here.reports[-1].outcomes[Component.SCALE]
        assert (scale.result, scale.message) == (Result.NOT_FOUND, "there is no Deployment default/none")
        await wanted(here, thing, 2, target=TargetReference("v1", "Secret", "a"), urgent=True)
        assert "no Secret of v1 that can be scaled" in here.reports[-1].outcomes[Component.SCALE].message
        await wanted(here, thing, 2, target=TargetReference("nothing.dev/v1", "Thing", "a"), urgent=True)
        assert outcome(here, Component.SCALE) is Result.NOT_FOUND
        await wanted(here, thing, None)
        assert here.one("deployments", "a")["spec"]["replicas"] == 0, "somebody else scales"


def define_rollouts(here: World) -> None:
    """A kind of its own, and one of it that has no replicas."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    version = {
        "name": "v1",
        "served": True,
        "subresources": {"scale": scale},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": "rollouts", "kind": "Rollout"}
    spec = {"group": "x.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    here.server.create("customresourcedefinitions", {"metadata": {"name": "rollouts.x.dev"}, "spec": spec}, "")
    here.server.create("rollouts", {"metadata": {"name": "r"}, "spec": {"size": 0}})


@on_a_loop
async def test_a_custom_resource_is_scaled_by_the_catalogue() -> None:
    async with world() as here:
        thing = here.make("a")
        define_rollouts(here)
        await wanted(here, thing, 2, target=TargetReference("x.dev/v1", "Rollout", "r"))
        assert here.one("rollouts", "r")["spec"] == {"size": 2}
        await wanted(here, thing, 3, target=TargetReference("x.dev/v1", "Rollout", "r"))
        assert here.api.taken()["get", "/apis/x.dev/v1"] == 1, "the catalogue is remembered"


@on_a_loop
async def test_who_takes_replicas_of_a_custom_resource_back_is_fought_more_and_more_rarely() -> None:
    """The API names nobody: that they were taken back is seen by their number."""
    async with world() as here:
        thing = here.make("a")
        define_rollouts(here)
        target = TargetReference("x.dev/v1", "Rollout", "r")
        await wanted(here, thing, 2, target=target)
        assert outcome(here, Component.SCALE) is Result.WRITTEN

        async def taken_back(seconds: float) -> Result:
            here.server.update("rollouts", "r", {"spec": {"size": 7}})
            await here.pass_time(seconds)
            await wanted(here, thing, 2, target=target)
            return outcome(here, Component.SCALE)

        assert await taken_back(REMEMBERED_S) is Result.WRITTEN
        assert here.one("rollouts", "r")["spec"] == {"size": 2}
        here.server.update("rollouts", "r", {"spec": {"size": 7}})
        await wanted(here, thing, 3, target=target)
        assert here.one("rollouts", "r")["spec"] == {"size": 3}, "another number is taken at once"


# --- refusals -------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_component_that_fails_stops_no_other_of_its_group() -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.before = _refusing("status", RefusalError(500, "InternalError", "no"))
        await wanted(here, thing, 1, events=(event(),))
        assert outcome(here, Component.STATUS) is Result.FAILED
        assert outcome(here, Component.EVENTS) is Result.WRITTEN
        assert here.reports[-1].retry_in_s is not None
        here.api.before = lambda verb, path: None
        await here.pass_time(1.0)
        assert here.reports[-1].good and here.one("activations", "a")["status"]["wanted"] == 1


@on_a_loop
async def test_conflicts_end_after_a_bounded_number_of_attempts_each_on_a_fresh_copy() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 0)
        here.api.taken()
        here.api.before = _refusing("status", RefusalError(409, "Conflict", "the object has been modified"))
        await wanted(here, thing, 0, ready=7)
        calls = here.api.taken()
        assert calls["patch", "activations/status"] == CONFLICT_ATTEMPTS_MAX
        assert calls["get", "activations"] == CONFLICT_ATTEMPTS_MAX - 1, "it is read again before each"
        assert conflicts(here) == {"status": CONFLICT_ATTEMPTS_MAX}
        assert len(here.pauses) == CONFLICT_ATTEMPTS_MAX - 1 and all(0 < one <= 0.5 for one in here.pauses)
        assert outcome(here, Component.STATUS) is Result.FAILED


def _refusing(part: str, refusal: RefusalError) -> Any:
    def refuse(verb: str, path: str) -> None:
        if path.endswith(f"/{part}"):
            raise refusal

    return refuse


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER])
@pytest.mark.parametrize("place", range(6))
@on_a_loop
async def test_a_lost_call_is_made_good(fault: Fault, place: int) -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.faults = [None] * place + [fault]
        await wanted(here, thing, 1)
        await here.pass_time(1.0)
        await here.pass_time(2.0)
        assert here.has("services", "a-pods") and here.one("deployments", "a")["spec"]["replicas"] == 1
        assert here.one("activations", "a")["status"]["wanted"] == 1
        assert here.reports[-1].good
        here.api.taken()
        await wanted(here, thing, 1, observed=here.observed("a"))
        assert not here.api.taken()


@on_a_loop
async def test_pauses_grow_while_the_api_is_away() -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.away = True
        await wanted(here, thing, 1)
        waits = []
        for _ in range(12):
            retry_s = here.reports[-1].retry_in_s
            assert retry_s is not None
            waits.append(retry_s)
            await here.pass_time(retry_s)
        assert waits[0] <= 0.25 and 30.0 <= waits[-1] <= 60.0
        here.api.away = False
        await here.pass_time(60.0)
        assert here.reports[-1].good


@on_a_loop
async def test_what_the_api_asks_to_wait_is_waited() -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.before = _refusing("status", RefusalError(429, "TooManyRequests", "busy", retry_after_s=7))
        await wanted(here, thing, 1)
        assert here.reports[-1].retry_in_s == 7.0
        here.api.before = lambda verb, path: None
        here.api.taken()
        await here.pass_time(6.9)
        assert not here.api.taken()
        await here.pass_time(0.2)
        assert here.reports[-1].good


# --- events ---------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_what_is_said_again_is_one_series() -> None:
    async with world() as here:
        thing = here.make("a")
        for _ in range(5):
            await wanted(here, thing, 1, events=(event(), event()))
        (told,) = here.collection("events").objects.values()
        assert "series" not in told
        await here.pass_time(SERIES_PATCH_S)
        (told,) = here.collection("events").objects.values()
        assert told["series"]["count"] == 10
        writes = here.server.objects.version
        await here.pass_time(10 * SERIES_PATCH_S)
        assert here.server.objects.version == writes, "then nothing is written"
        await here.pass_time(SERIES_S)
        await wanted(here, thing, 1, events=(event(),))
        assert len(here.collection("events").objects) == 2, "a new series"


@on_a_loop
async def test_events_are_bounded_and_counted_and_none_of_a_folded_desired_is_lost() -> None:
    async with world() as here:
        thing = here.make("a")
        for number in range(3 * EVENTS_BURST):
            here.reconciler.want(desired_of(thing, 1, events=(event(f"R{number}"),)))
        await here.settle()
        told = here.collection("events").objects
        assert len(told) == EVENTS_BURST and here.reconciler.dropped_events_total == 2 * EVENTS_BURST
        assert {"R0", "R1"} <= {one["reason"] for one in told.values()}


@on_a_loop
async def test_an_event_that_is_refused_harms_nothing() -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.before = _refusing("events", RefusalError(403, "Forbidden", "no"))
        await wanted(here, thing, 1, events=(event(note="x" * 5_000),))
        assert here.reports[-1].good
        assert here.controllers.of(CONTROLLER).writes["events", "failed"] == 1
        here.api.before = lambda verb, path: None
        await wanted(here, thing, 1, events=(event(note="x" * 5_000),))
        assert len(here.collection("events").objects) == 1, "its note is cut to what the API takes"


# --- removal --------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_what_is_gone_is_removed_and_forgotten() -> None:
    async with world() as here:
        thing = here.make("a")
        await wanted(here, thing, 1)
        await wanted(here, thing, 3, present=False)
        assert not here.has("services", "a-pods")
        assert here.one("deployments", "a")["spec"]["replicas"] == 3, "what its target is left with"
        assert len(here.reconciler) == 0
        here.api.taken()
        await wanted(here, thing, None, present=False, observed=here.observed("a"))
        assert not here.api.taken() and len(here.reconciler) == 0
