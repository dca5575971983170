"""A long random life of a few Activations: others edit, calls are lost, the API is away, things are deleted, made anew.

Whatever happens, when it is quiet the cluster is as wanted, nothing more is written, and nothing of others was touched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.control_plane.reconcile.desired import ConditionSpec, Desired, Observed, PodsService
from activator.control_plane.reconcile.report import Result
from activator.control_plane.reconcile.scale import TAKES_FORGOTTEN_S
from tests.control_plane.reconcile.reconcile_world import NAMESPACE, World, activation, desired_of, event
from tests.kubernetes.fake_api_server import Fault
from tests.kubernetes.fake_controllers import deployment
from tests.kubernetes.fake_objects import Json, RefusalError

NAMES = ("a", "b")
STEPS = (
    *("want", "want", "want", "turn", "turn", "time", "watch", "lost", "cut", "conflict", "away", "back"),
    *("scale_by_others", "edit_service", "strip_label", "delete_service", "foreign_service", "edit_status"),
    *("replace_activation", "delete_target", "make_target", "touch_target"),
)
NEEDS: dict[str, Callable[[str], tuple[str, str]]] = {
    "scale_by_others": lambda name: ("deployments", name),
    "touch_target": lambda name: ("deployments", name),
    "delete_target": lambda name: ("deployments", name),
    "delete_service": lambda name: ("services", f"{name}-pods"),
}
STEP = st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES), st.integers(0, 3))


class Life:
    """`foreign`: objects of others that nobody may touch, as they were made."""

    def __init__(self, watched: bool) -> None:
        self.here = World()
        self.watched = watched
        self.wanted: dict[str, Desired] = {}
        self.shown: dict[str, Observed] = {}  # what the watch shows, which may be behind
        self.foreign: dict[str, str] = {}
        self.stripped: set[str] = set()  # whose Service lost its label
        for name in NAMES:
            self.here.make(name)

    # --- steps ------------------------------------------------------------------------------------------------------

    async def step(self, kind: str, name: str, number: int) -> None:
        if kind == "turn":
            for _ in range(3 * number + 1):
                await asyncio.sleep(0)
        elif kind == "time":
            self.here.clock.pass_time((0.05, 1.0, 31.0, 100.0)[number])
            await asyncio.sleep(0)
        elif kind in NEEDS and not self.here.has(*NEEDS[kind](name)):
            pass
        else:
            getattr(self, kind)(name, number)

    def want(self, name: str, number: int) -> None:
        self._want(name, number)

    def watch(self, name: str, number: int) -> None:
        self._show(name)

    def lost(self, name: str, number: int) -> None:
        self.here.api.faults.append(Fault.LOST_ANSWER)

    def cut(self, name: str, number: int) -> None:
        self.here.api.faults += [None] * number + [Fault.LOST_REQUEST]

    def conflict(self, name: str, number: int) -> None:
        self.here.api.before = _once(self.here, RefusalError((409, 500, 429, 404)[number], "Conflict", "busy"))

    def away(self, name: str, number: int) -> None:
        self.here.api.away = True

    def back(self, name: str, number: int) -> None:
        self.here.api.away = False

    def scale_by_others(self, name: str, number: int) -> None:
        self._edit("deployments", name, {"spec": {"replicas": number}})

    def touch_target(self, name: str, number: int) -> None:
        self._edit("deployments", name, {"spec": {"paused": bool(number % 2)}})

    def delete_target(self, name: str, number: int) -> None:
        self.here.server.delete("deployments", name)

    def make_target(self, name: str, number: int) -> None:
        if not self.here.has("deployments", name):
            self.here.server.create("deployments", deployment(name, number))

    def edit_service(self, name: str, number: int) -> None:
        if self._is_ours(name):
            self._edit("services", f"{name}-pods", {"spec": {"selector": {"app": f"x{number}", "y": "1"}}})

    def strip_label(self, name: str, number: int) -> None:
        if self._is_ours(name):
            self._edit("services", f"{name}-pods", {"metadata": {"labels": None}})
            self.stripped.add(name)

    def delete_service(self, name: str, number: int) -> None:
        self.here.server.delete("services", f"{name}-pods")
        self.foreign.pop(f"{name}-pods", None)

    def foreign_service(self, name: str, number: int) -> None:
        if self.here.has("services", f"{name}-pods"):
            return
        spec = {"selector": {"app": "theirs"}, "ports": [{"port": 80, "name": "x"}]}
        labels = {"activator.dev/activation": name} if number % 2 else {}
        metadata = {"name": f"{name}-pods", "labels": labels}
        made = self.here.server.create("services", {"metadata": metadata, "spec": spec})
        self.foreign[f"{name}-pods"] = json.dumps(made)

    def edit_status(self, name: str, number: int) -> None:
        collection = self.here.collection("activations")
        change = {"status": {"wanted": 90 + number}}
        self.here.server.objects.merge_patch(
            collection, (NAMESPACE, name), change, "kubectl-edit", "status", whole=True
        )

    def replace_activation(self, name: str, number: int) -> None:
        self.here.server.delete("activations", name)
        if self._is_ours(name):
            self.here.server.delete("services", f"{name}-pods")  # as the garbage collector does
        self.here.server.create("activations", activation(name))

    def _edit(self, plural: str, name: str, change: Json) -> None:
        self.here.server.objects.merge_patch(
            self.here.collection(plural), (NAMESPACE, name), change, "kubectl-edit", whole=True
        )

    def _is_ours(self, name: str) -> bool:
        return self.here.has("services", f"{name}-pods") and f"{name}-pods" not in self.foreign

    def _show(self, name: str) -> None:
        observed = self.here.observed(name)
        service = observed.service
        if service is not None and not isinstance(service, msgspec.UnsetType) and service.activation != name:
            observed = msgspec.structs.replace(observed, service=None)  # the watch has a selector by label
        self.shown[name] = observed

    def _want(self, name: str, number: int) -> None:
        thing = self.here.one("activations", name)
        conditions = (
            ConditionSpec("Ready", "True" if number else "False", f"R{number}", "x"),
            ConditionSpec("Active", "Unknown", "Same", "x"),
        )
        service = None if number == 3 else PodsService(f"{name}-pods", {"app": name}, "http", 8080 + number)
        desired = desired_of(thing, number, number, service=service, conditions=conditions[: 1 + number % 2])
        if number == 2:
            desired = msgspec.structs.replace(desired, events=(event(),))
        self.wanted[name] = desired
        self._hand_in(name)

    def _hand_in(self, name: str) -> None:
        desired = self.wanted[name]
        observed = self.shown.get(name, Observed()) if self.watched else Observed()
        self.here.reconciler.want(msgspec.structs.replace(desired, observed=observed))
        self.wanted[name] = msgspec.structs.replace(desired, events=())  # each is handed in once

    # --- quiet ------------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """No more faults: what a source does then is to look, and to say what it wants."""
        here = self.here
        here.api.away, here.api.faults, here.api.before = False, [], lambda verb, path: None
        for name in NAMES:
            if not here.has("deployments", name):
                here.server.create("deployments", deployment(name, 1))
            thing = here.one("activations", name)
            if name not in self.wanted or self.wanted[name].uid != thing["metadata"]["uid"]:
                self._want(name, 1)
            desired = self.wanted[name]
            self.wanted[name] = msgspec.structs.replace(desired, generation=thing["metadata"]["generation"])
        for _ in range(4):
            await here.pass_time(TAKES_FORGOTTEN_S)
            self._collect_garbage()
            for name in NAMES:
                self._show(name)
                self._hand_in(name)
            await here.settle()

    def _collect_garbage(self) -> None:
        """As the cluster does: a pass that was under way may have made a Service for an Activation that was gone."""
        uids = {self.here.one("activations", name)["metadata"]["uid"] for name in NAMES}
        for (_, name), service in list(self.here.collection("services").objects.items()):
            owners = service["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.here.server.delete("services", name)

    async def judge(self) -> None:
        here = self.here
        for name in NAMES:
            desired = self.wanted[name]
            if f"{name}-pods" not in self.foreign or desired.service is None:
                assert here.one("deployments", name)["spec"]["replicas"] == desired.replicas
            status = here.one("activations", name)["status"]
            assert (status["observedGeneration"], status["ready"], status["wanted"]) == (
                desired.generation,
                desired.ready,
                desired.wanted,
            )
            said = [(one["type"], one["status"], one["reason"], one["message"]) for one in status["conditions"]]
            assert sorted(said) == sorted((one.type, one.status, one.reason, one.message) for one in desired.conditions)
            self._judge_service(name, desired)
        for name, made in self.foreign.items():
            assert json.dumps(here.one("services", name)) == made, "an object of others was touched"
        here.api.taken()
        version = here.server.objects.version
        for _ in range(3):
            await here.pass_time(100.0)
            for name in NAMES:
                self._show(name)
                self._hand_in(name)
            await here.settle()
        writes = {call: count for call, count in here.api.taken().items() if call[0] not in {"get", "list"}}
        allowed = {("create", "services")} if self.foreign else set()  # the question whether the name is free
        assert not writes.keys() - allowed, writes
        assert here.server.objects.version == version, "nothing further is written"

    def _judge_service(self, name: str, desired: Desired) -> None:
        here = self.here
        if f"{name}-pods" in self.foreign:
            if desired.service is not None:
                last = [one for one in here.reports if one.key == desired.key][-1]
                assert Result.NOT_OWNED in {one.result for one in last.outcomes.values()}
        elif desired.service is None:
            # One that has lost its label is not found: it goes with its Activation.
            assert not here.has("services", f"{name}-pods") or name in self.stripped
        else:
            there = here.one("services", f"{name}-pods")
            assert there["spec"]["selector"] == desired.service.selector
            (port,) = there["spec"]["ports"]
            assert (port["name"], port["targetPort"]) == (desired.service.port_name, desired.service.target_port)
            assert there["metadata"]["labels"] == {"activator.dev/activation": name}
            (owner,) = there["metadata"]["ownerReferences"]
            assert owner["uid"] == desired.uid and owner["controller"] is True


def _once(here: World, refusal: RefusalError) -> Any:
    def refuse(verb: str, path: str) -> None:
        here.api.before = lambda verb, path: None
        if verb in {"patch", "create", "delete"}:
            raise refusal

    return refuse


async def live(steps: list[tuple[str, str, int]], watched: bool) -> None:
    life = Life(watched)
    try:
        for kind, name, number in steps:
            await life.step(kind, name, number)
        await life.quiet()
        await life.judge()
        assert not life.here.errors
    finally:
        await life.here.reconciler.close()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40), st.booleans())
def test_in_the_end_the_cluster_is_as_wanted(steps: list[tuple[str, str, int]], watched: bool) -> None:
    asyncio.run(live(steps, watched))


@pytest.mark.deep
@settings(max_examples=3_000, deadline=None)
@given(st.lists(STEP, min_size=20, max_size=150), st.booleans())
def test_in_the_end_the_cluster_is_as_wanted_after_longer(steps: list[tuple[str, str, int]], watched: bool) -> None:
    asyncio.run(live(steps, watched))
