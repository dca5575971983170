"""What objects mean to the API, as far as the activator relies on it: custom resources, subresources, owners, events.

As test_conformance.py: on the fake server, and on a real one where ACTIVATOR_TEST_KUBECONFIG names its configuration.
On a real cluster a definition of its own is made, and deleted afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml

from tests.charts.chart_files import CRD_FILE
from tests.kube.api import Api, Json
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import on_a_loop, until
from tests.kubernetes.fake_controllers import ControllerManager, deployment, is_ready
from tests.kubernetes.fake_nodes import FAILURE_ANNOTATION, Failure, Settings
from tests.kubernetes.test_conformance import On, on

__all__ = ["on"]

GROUP = "conformance.activator.dev"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def definition(**schema: Any) -> Json:
    """Of Widgets, which have a spec with these properties."""
    status: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec: Json = {"type": "object", "properties": schema}
    whole = {"type": "object", "properties": {"spec": spec, "status": status}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    scale["labelSelectorPath"] = ".status.words"
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}, "scale": scale}}
    version["schema"] = {"openAPIV3Schema": whole}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version],
        },
    }


def widget(name: str = "w", status: Json | None = None, **spec: Any) -> Json:
    thing: Json = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}
    return thing if status is None else {**thing, "status": status}


class Widgets:
    """Calls about them."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.path = f"/apis/{GROUP}/v1/namespaces/{api.namespace}/widgets"

    async def create(self, thing: Json) -> tuple[int, Json]:
        return await self.api.call("POST", self.path, thing)

    async def refused(self, thing: Json, *words: str) -> None:
        status, said = await self.create(thing)
        assert (status, said["reason"]) == (422, "Invalid"), said
        assert all(word in said["message"] for word in words), said["message"]


def defined(on: On, story: Callable[[Widgets], Awaitable[None]], **schema: Any) -> None:
    """`story` where there are Widgets."""

    async def whole(api: Api) -> None:
        status, said = await api.call("POST", DEFINITIONS, definition(**schema))
        assert status == 201, said
        widgets = Widgets(api)
        try:
            await api.until(widgets.path, lambda status, _: status == 200)
            await story(widgets)
        finally:
            await api.call("DELETE", f"{DEFINITIONS}/widgets.{GROUP}")
            await api.until(f"{DEFINITIONS}/widgets.{GROUP}", lambda status, _: status == 404)  # its objects go first

    on(whole)


def test_a_custom_resource_names_its_kind(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        status, said = await widgets.create({"metadata": {"name": "w"}, "spec": {}})
        assert (status, said["reason"]) == (400, "BadRequest") and "Kind" in said["message"]

    defined(on, story, size={"type": "integer"})


# --- schemas --------------------------------------------------------------------------------------------------------


def test_what_a_schema_does_not_have_goes_and_defaults_come(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        _, made = await widgets.create(widget(unknown=1, inner={"known": 1, "unknown": 2}, labels={"a": "b"}))
        assert made["spec"] == {"inner": {"known": 1, "depth": 7}, "labels": {"a": "b"}, "mode": "auto"}
        _, patched = await widgets.api.call("PATCH", f"{widgets.path}/w", {"spec": {"mode": None}}, MERGE)
        assert patched["spec"]["mode"] == "auto", "what is removed has its default again"

    inner = {"type": "object", "properties": {"known": {"type": "integer"}, "depth": {"type": "integer", "default": 7}}}
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    defined(on, story, inner=inner, labels=labels, mode={"type": "string", "default": "auto"})


def test_what_a_schema_forbids_is_refused(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        right: Json = {"word": "abc", "count": 5, "kind": "one", "list": [{"key": "a"}, {"key": "b"}], "port": "http"}
        assert (await widgets.create(widget(**right)))[0] == 201
        assert (await widgets.create(widget("w2", **{**right, "port": 80})))[0] == 201
        for field, value, words in (
            ("word", "ABC", ("spec.word", "should match")),
            ("word", "a" * 20, ("spec.word", "Too long")),
            ("word", 5, ("spec.word", "must be of type string")),
            ("count", 0, ("spec.count", "greater than or equal to 1")),
            ("count", 11, ("spec.count", "less than or equal to 10")),
            ("count", "5", ("spec.count", "must be of type integer")),
            ("kind", "three", ("spec.kind", "Unsupported value", '"one", "two"')),
            ("list", [{"key": "a"}, {"key": "a"}], ("spec.list[1]", "Duplicate value")),
            ("list", [{}], ("spec.list[0].key", "Required value")),
            ("list", [{"key": str(number)} for number in range(4)], ("spec.list", "Too many")),
            ("port", True, ("spec.port",)),
        ):
            await widgets.refused(widget("w3", **{**right, field: value}), *words)
        status, said = await widgets.api.call("PATCH", f"{widgets.path}/w", {"spec": {"count": 0}}, MERGE)
        assert (status, said["reason"]) == (422, "Invalid")

    item = {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}}}
    listed = {"type": "array", "items": item, "maxItems": 3, "x-kubernetes-list-type": "map"}
    defined(
        on,
        story,
        word={"type": "string", "pattern": "^[a-z]+$", "maxLength": 10},
        count={"type": "integer", "minimum": 1, "maximum": 10},
        kind={"type": "string", "enum": ["one", "two"]},
        list={**listed, "x-kubernetes-list-map-keys": ["key"]},
        port={"x-kubernetes-int-or-string": True},
    )


def test_rules_of_a_schema(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        assert (await widgets.create(widget(range={"min": 1, "max": 3, "name": "a"})))[0] == 201
        assert (await widgets.create(widget("w2", range={"name": "a"})))[0] == 201, "absent: has() is false"
        await widgets.refused(widget("w3", range={"min": 3, "max": 1, "name": "a"}), "min is at most max")
        status, said = await widgets.api.call("PATCH", f"{widgets.path}/w", {"spec": {"range": {"name": "b"}}}, MERGE)
        assert status == 422 and "name does not change" in said["message"]

    rules = [
        {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min is at most max"},
        {"rule": "self.name == oldSelf.name", "message": "name does not change"},
    ]
    properties = {"min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 9}}
    ranged = {"type": "object", "properties": properties, "required": ["name"], "x-kubernetes-validations": rules}
    defined(on, story, range=ranged)


def test_a_rule_sees_only_what_is_declared_with_a_type(on: On) -> None:
    async def story(api: Api) -> None:
        loose: Json = {"x-kubernetes-preserve-unknown-fields": True}
        for properties in ({"name": {"type": "string"}}, {"key": loose}):
            rule = {"rule": "!has(self.key) || self.key != 'a'", "message": "no a"}
            field = {"type": "object", "properties": properties, "x-kubernetes-validations": [rule]}
            status, said = await api.call("POST", DEFINITIONS, definition(field=field))
            assert (status, said["reason"]) == (422, "Invalid"), said
            assert "undefined field 'key'" in said["message"]

    on(story)


def test_the_definition_of_activations(on: On) -> None:
    """Of the chart, as it is, and what it refuses."""

    async def story(api: Api) -> None:
        definition_of_chart = yaml.safe_load(CRD_FILE.read_text())
        status, said = await api.call("POST", DEFINITIONS, definition_of_chart)
        assert status == 201 or said["reason"] == "AlreadyExists", said
        path = f"/apis/activator.dev/v1alpha1/namespaces/{api.namespace}/activations"
        await api.until(path, lambda status, _: status == 200)

        async def made(name: str, **spec: Any) -> tuple[int, Json]:
            kind = {"apiVersion": "activator.dev/v1alpha1", "kind": "Activation"}
            return await api.call("POST", path, {**kind, "metadata": {"name": name}, "spec": spec})

        status, right = await made("right", target={"name": "t"}, hosts=["a.test"], hashOn={"header": "x"}, unknown=1)
        assert status == 201, right
        assert (right["spec"]["port"], right["spec"]["patience"]) == (8080, "60s")
        assert "unknown" not in right["spec"] and right["spec"]["hashOn"] == {"header": "x"}
        for field, value, words in (
            ("target", {}, "spec.target.name: Required value"),
            ("port", 0, "port: expected a port from 1 to 65535"),
            ("port", 65536, "port: expected a port from 1 to 65535"),
            ("patience", "soon", "spec.patience"),
            ("hosts", "a.test", "spec.hosts"),
            ("containerConcurrency", -1, "spec.containerConcurrency"),
            ("scaling", {"max": "many"}, "spec.scaling.max"),
        ):
            status, said = await made("wrong", **{"target": {"name": "t"}, field: value})
            assert (status, said["reason"]) == (422, "Invalid"), (field, value, said)
            assert words in said["message"], said["message"]
        assert (await made("named", target={"name": "t"}, port="http"))[0] == 201

    on(story)


def test_a_definition_that_is_no_structural_schema_is_refused(on: On) -> None:
    async def story(api: Api) -> None:
        for wrong in ({"properties": {"x": {"type": "string"}}}, {"type": "array", "items": {}}):
            thing = definition(field=wrong)
            status, said = await api.call("POST", DEFINITIONS, thing)
            assert (status, said["reason"]) == (422, "Invalid"), said
        misnamed = definition(field={"type": "string"})
        misnamed["metadata"]["name"] = f"others.{GROUP}"
        assert (await api.call("POST", DEFINITIONS, misnamed))[0] == 422

    on(story)


# --- subresources ---------------------------------------------------------------------------------------------------


def test_the_status_has_a_life_of_its_own(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        api, path = widgets.api, f"{widgets.path}/w"
        _, made = await widgets.create(widget(status={"given": 1}, size=1))
        assert "status" not in made and made["metadata"]["generation"] == 1
        _, told = await api.call("PATCH", f"{path}/status", {"status": {"a": 1}, "spec": {"size": 9}}, MERGE)
        assert (told["status"], told["spec"]["size"], told["metadata"]["generation"]) == ({"a": 1}, 1, 1)
        _, changed = await api.call("PATCH", path, {"status": {"a": 2}, "spec": {"size": 2}}, MERGE)
        assert (changed["status"], changed["spec"]["size"], changed["metadata"]["generation"]) == ({"a": 1}, 2, 2)
        _, noted = await api.call("PATCH", path, {"metadata": {"annotations": {"x": "1"}}}, MERGE)
        assert noted["metadata"]["generation"] == 2, "the generation counts the spec"
        _, put = await api.call("PUT", f"{path}/status", {**noted, "status": {"b": 1}, "spec": {"size": 7}})
        assert (put["status"], put["spec"]["size"]) == ({"b": 1}, 2)
        status, said = await api.call("PUT", f"{path}/status", {**made, "status": {"c": 1}})
        assert (status, said["reason"]) == (409, "Conflict")

    defined(on, story, size={"type": "integer"})


def test_applying_a_status(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        api, path = widgets.api, f"{widgets.path}/w"
        _, made = await widgets.create(widget(size=1))

        async def apply(
            manager: str, status: Json, uid: str = "", force: str = "false", version: str = ""
        ) -> tuple[int, Json]:
            said = {"uid": uid, "resourceVersion": version}
            metadata = {"name": "w", **{name: value for name, value in said.items() if value}}
            body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": metadata, "status": status}
            query = {"fieldManager": manager, "force": force}
            return await api.call("PATCH", f"{path}/status", body, APPLY, query)

        assert (await apply("one", {"a": 1, "b": 1}, made["metadata"]["uid"]))[0] == 200
        code, said = await apply("two", {"a": 2})
        assert code == 409 and 'conflict with "one"' in said["message"] and ".status.a" in said["message"]
        _, taken = await apply("two", {"a": 2}, force="true")
        assert taken["status"] == {"a": 2, "b": 1} and taken["spec"] == {"size": 1}
        _, less = await apply("one", {})
        assert less["status"] == {"a": 2}, "what is no longer applied goes, but what another owns"
        code, taken = await apply("one", {"x": 1}, "00000000-0000-0000-0000-000000000000")
        assert (code, taken["metadata"]["uid"]) == (200, made["metadata"]["uid"]), "here the UID is not looked at"
        code, said = await apply("one", {"x": 2}, version=made["metadata"]["resourceVersion"])
        assert (code, said["reason"]) == (409, "Conflict"), "so it is the version that tells an object"
        assert (await apply("one", {"x": 2}, version=taken["metadata"]["resourceVersion"]))[0] == 200
        await api.call("DELETE", path)
        code, said = await apply("one", {"x": 1})
        assert (code, said["reason"]) == (404, "NotFound"), "a status makes no object"

    defined(on, story, size={"type": "integer"})


@pytest.mark.parametrize("plural", ["deployments", "statefulsets", "widgets"])
def test_the_scale(on: On, plural: str) -> None:
    async def story(widgets: Widgets) -> None:
        api = widgets.api
        path = widgets.path if plural == "widgets" else f"/apis/apps/v1/namespaces/{api.namespace}/{plural}"
        thing = widget("t", replicas=0) if plural == "widgets" else _workload(plural)
        query = {"fieldManager": "kubectl"}
        status, made = await api.call("POST", path, thing, query=query)
        assert status == 201, made
        _, scale = await api.call("GET", f"{path}/t/scale")
        assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert scale["metadata"]["uid"] == made["metadata"]["uid"] and not scale["spec"].get("replicas")
        _, scaled = await api.call("PATCH", f"{path}/t/scale", {"spec": {"replicas": 2}}, MERGE, query)
        assert scaled["spec"] == {"replicas": 2}
        _, whole = await api.call("GET", f"{path}/t")
        assert whole["spec"]["replicas"] == 2 and whole["metadata"]["generation"] == 2
        status, said = await api.call("PATCH", f"{path}/t/scale", {"spec": {"replicas": -1}}, MERGE)
        assert (status, said["reason"]) == (422, "Invalid")
        status, said = await api.call("PATCH", f"{path}/none/scale", {"spec": {"replicas": 1}}, MERGE)
        assert (status, said["reason"]) == (404, "NotFound")
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"replicas": 5}}
        status, said = await api.call("PATCH", f"{path}/t/scale", stale, MERGE)
        assert (status, said["reason"]) == (409, "Conflict")

    defined(on, story, replicas={"type": "integer"})


@pytest.mark.parametrize("plural", ["deployments", "statefulsets"])
def test_applying_a_scale(on: On, plural: str) -> None:
    async def story(api: Api) -> None:
        path = f"/apis/apps/v1/namespaces/{api.namespace}/{plural}"
        await api.call("POST", path, _workload(plural), query={"fieldManager": "kubectl"})
        await api.call("PATCH", f"{path}/t/scale", {"spec": {"replicas": 2}}, MERGE, {"fieldManager": "kubectl"})
        body: Json = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "t"}}
        body["spec"] = {"replicas": 3}
        ours = {"fieldManager": "activator-scale", "force": "false"}
        status, said = await api.call("PATCH", f"{path}/t/scale", body, APPLY, ours)
        assert status == 409 and 'conflict with "kubectl"' in said["message"] and "replicas" in said["message"]
        _, taken = await api.call("PATCH", f"{path}/t/scale", body, APPLY, {**ours, "force": "true"})
        assert taken["spec"] == {"replicas": 3}
        again = {**body, "spec": {"replicas": 1}}
        assert (await api.call("PATCH", f"{path}/t/scale", again, APPLY, ours))[1]["spec"] == {"replicas": 1}
        status, said = await api.call("PATCH", f"{path}/none/scale", body | {"metadata": {"name": "none"}}, APPLY, ours)
        assert (status, said["reason"]) == (404, "NotFound")

    on(story)


def test_the_scale_of_a_custom_resource_cannot_be_applied(on: On) -> None:
    """An API server of Kubernetes answers 500; a merge patch works, of what has replicas."""

    async def story(widgets: Widgets) -> None:
        api, path = widgets.api, f"{widgets.path}/t/scale"
        await widgets.create(widget("t"))
        status, said = await api.call("GET", path)
        assert status == 500 and 'the spec replicas field ".spec.replicas" does not exist' in said["message"]
        await api.call("PATCH", f"{widgets.path}/t", {"spec": {"replicas": 0}}, MERGE)
        body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "t"}, "spec": {"replicas": 3}}
        ours = {"fieldManager": "activator-scale", "force": "true"}
        status, said = await api.call("PATCH", path, body, APPLY, ours)
        assert status == 500 and "request to convert CR to an invalid group/version" in said["message"]
        patch = {"spec": {"replicas": 3}}
        _, patched = await api.call("PATCH", path, patch, MERGE, {"fieldManager": "me"})
        assert patched["spec"] == {"replicas": 3} and "selector" not in patched["status"]
        await api.call("PATCH", f"{widgets.path}/t/status", {"status": {"words": "app=t"}}, MERGE)
        assert (await api.call("GET", path))[1]["status"]["selector"] == "app=t", "what its controller says"

    defined(on, story, replicas={"type": "integer"})


def _workload(plural: str) -> Json:
    thing = deployment("t")
    if plural == "statefulsets":
        thing["kind"] = "StatefulSet"
        thing["spec"]["serviceName"] = "t"
    return thing


def test_the_catalogue_names_what_can_be_scaled(on: On) -> None:
    async def story(widgets: Widgets) -> None:
        _, found = await widgets.api.call("GET", f"/apis/{GROUP}/v1")
        assert found["kind"] == "APIResourceList" and found["groupVersion"] == f"{GROUP}/v1"
        kinds = {one["name"]: one["kind"] for one in found["resources"]}
        assert kinds["widgets"] == "Widget" and kinds["widgets/scale"] == "Scale"
        assert (await widgets.api.call("GET", "/apis/none.activator.dev/v1"))[0] == 404

    defined(on, story, size={"type": "integer"})


# --- Services and events --------------------------------------------------------------------------------------------


def test_a_headless_service_and_the_owners_of_its_fields(on: On) -> None:
    async def story(api: Api) -> None:
        path = f"/api/v1/namespaces/{api.namespace}/services"
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        body: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        body["spec"] = {"clusterIP": "None", "selector": {"a": "1", "b": "2"}, "ports": ports}
        _, made = await api.call("POST", path, body, query={"fieldManager": "ours"})
        assert made["spec"]["clusterIP"] == "None" and made["spec"]["ports"][0]["protocol"] == "TCP"
        ours = {"fieldManager": "ours", "force": "false"}
        changed = copy.deepcopy(body)
        changed["metadata"]["uid"] = made["metadata"]["uid"]
        changed["spec"]["selector"] = {"a": "1"}
        status, said = await api.call("PATCH", f"{path}/s", changed, APPLY, ours)
        assert status == 409 and "selector" in said["message"], "a creation owns its fields as another manager does"
        _, applied = await api.call("PATCH", f"{path}/s", changed, APPLY, {**ours, "force": "true"})
        assert applied["spec"]["selector"] == {"a": "1"}, "a selector is one value"
        changed["spec"]["ports"] = [{"name": "other", "port": 81, "targetPort": 1}]
        _, two = await api.call("PATCH", f"{path}/s", changed, APPLY, {**ours, "force": "true"})
        assert {one["port"] for one in two["spec"]["ports"]} == {80, 81}, "ports are told apart by port and protocol"
        changed["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        for content_type, query in ((APPLY, {**ours, "force": "true"}), (MERGE, {"fieldManager": "ours"})):
            status, said = await api.call("PATCH", f"{path}/s", changed, content_type, query)
            assert (status, said["reason"]) == (422, "Invalid"), "the UID would be changed"
            assert "metadata.uid" in said["message"] and "field is immutable" in said["message"]
        await api.call("DELETE", f"{path}/s")
        status, said = await api.call("PATCH", f"{path}/s", changed, APPLY, {**ours, "force": "true"})
        assert (status, said["reason"]) == (409, "Conflict"), "an apply with a UID makes no object"
        wrong = {**body, "spec": {"ports": [{"port": 0}]}}
        assert (await api.call("POST", path, wrong))[0] == 422

    on(story)


def test_events_and_their_series(on: On) -> None:
    async def story(api: Api) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{api.namespace}/events"
        event: Json = {
            "metadata": {"name": "e.1"},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "activator.dev/activator",
            "reportingInstance": "pod-1",
            "action": "Scale",
            "reason": "Scaled",
            "regarding": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": api.namespace, "name": "a"},
            "note": "from 0 to 1",
            "type": "Normal",
        }
        assert (await api.call("POST", path, event))[0] == 201
        series = {"series": {"count": 3, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
        _, counted = await api.call("PATCH", f"{path}/e.1", series, MERGE)
        assert counted["series"]["count"] == 3
        status, said = await api.call("PATCH", f"{path}/e.1", {"reason": "Other"}, MERGE)
        assert (status, said["reason"]) == (422, "Invalid")
        for field, value in (("type", "Wrong"), ("reportingController", ""), ("action", ""), ("note", "x" * 1025)):
            wrong = {**event, "metadata": {"name": "e.2"}, field: value}
            assert (await api.call("POST", path, wrong))[0] == 422, field

    on(story)


# --- the controller manager of the fake -----------------------------------------------------------------------------


class Shop:
    """A Deployment and a Service of ours on a fake cluster with controllers."""

    def __init__(self, settings: Settings) -> None:
        self.server = FakeApiServer()
        self.manager = ControllerManager(self.server, settings)

    def of(self, plural: str) -> list[Json]:
        return list(self.server.collection(plural).objects.values())

    def serve(self, name: str = "d", replicas: int = 2, annotations: dict[str, str] | None = None) -> None:
        self.server.create("deployments", deployment(name, replicas, annotations=annotations))
        labels = {"activator.dev/activation": name}
        ports = [{"name": "http", "port": 80, "targetPort": "http"}]
        spec = {"clusterIP": "None", "selector": {"app": name}, "ports": ports}
        self.server.create("services", {"metadata": {"name": f"{name}-pods", "labels": labels}, "spec": spec})

    def endpoints(self) -> list[Json]:
        return [one for slice_ in self.of("endpointslices") for one in slice_["endpoints"] or ()]

    def status(self, name: str = "d") -> Json:
        status: Json = self.server.collection("deployments").objects["default", name].get("status") or {}
        return status


@on_a_loop
async def test_pods_become_ready_and_their_slice_mirrors_the_label() -> None:
    shop = Shop(Settings())
    shop.serve(replicas=3)
    await until(lambda: shop.status().get("readyReplicas") == 3 and len(shop.endpoints()) == 3)
    assert (
        all(is_ready(pod) for pod in shop.of("pods")) and len({pod["spec"]["nodeName"] for pod in shop.of("pods")}) == 3
    )
    (one,) = shop.of("endpointslices")
    assert one["metadata"]["labels"]["activator.dev/activation"] == "d"
    assert one["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    await until(lambda: all(one["conditions"]["ready"] for one in shop.endpoints()))
    shop.server.update("deployments", "d", {"spec": {"replicas": 1}})
    await until(lambda: len(shop.endpoints()) == 1 and len(shop.of("pods")) == 1)


@on_a_loop
async def test_a_slice_holds_a_hundred_endpoints() -> None:
    shop = Shop(Settings(nodes=5))
    shop.serve(replicas=250)
    await until(lambda: len(shop.endpoints()) == 250)
    assert sorted(len(one["endpoints"]) for one in shop.of("endpointslices")) == [50, 100, 100]


@on_a_loop
async def test_a_pod_that_ends_is_terminating_first() -> None:
    shop = Shop(Settings(terminate_s=0.05))
    shop.serve(replicas=1)
    await until(lambda: any(one["conditions"]["ready"] for one in shop.endpoints()))
    seen: list[Json] = []
    shop.server.listeners.append(lambda collection, event: seen.append(event.after or {}))
    shop.server.update("deployments", "d", {"spec": {"replicas": 0}})
    await until(lambda: not shop.of("pods") and not shop.endpoints())
    told = [one["endpoints"][0]["conditions"] for one in seen if one.get("endpoints")]
    assert {"ready": False, "serving": True, "terminating": True} in told


@on_a_loop
async def test_what_is_owned_goes_with_its_owner() -> None:
    shop = Shop(Settings())
    shop.serve()
    await until(lambda: len(shop.endpoints()) == 2)
    shop.server.delete("services", "d-pods")
    shop.server.delete("deployments", "d")
    await until(lambda: not shop.of("pods") and not shop.of("endpointslices"))


@pytest.mark.parametrize("failure", list(Failure))
@on_a_loop
async def test_pods_that_cannot_start_say_why(failure: Failure) -> None:
    shop = Shop(Settings(crash=(3, "no such file")))
    shop.serve(replicas=1, annotations={FAILURE_ANNOTATION: failure.value})

    def shown() -> str:
        (pod,) = shop.of("pods") or [{"status": {}}]
        return str(pod["status"])

    words = {
        Failure.IMAGE_PULL: ("'ImagePullBackOff'", "Back-off pulling image"),
        Failure.CRASH_LOOP: ("'state': {'terminated'", "'exitCode': 3", "no such file"),
        Failure.UNSCHEDULABLE: ("'Unschedulable'", "0/3 nodes are available"),
        Failure.INIT_CONTAINER: ("initContainerStatuses", "'CrashLoopBackOff'", "'exitCode': 3"),
        Failure.NOT_READY: ("'ready': False", "'running'"),
    }
    await until(lambda: all(word in shown() for word in words[failure]))
    assert not shop.status().get("readyReplicas")


@on_a_loop
async def test_a_quota_and_full_nodes() -> None:
    shop = Shop(Settings(nodes=1, pods_per_node=2, quotas={"default": 3}))
    shop.serve(replicas=5)
    await until(lambda: shop.status().get("readyReplicas") == 2 and shop.status()["conditions"])
    (condition,) = shop.status()["conditions"]
    assert condition["type"] == "ReplicaFailure" and "exceeded quota" in condition["message"]
    assert len(shop.of("pods")) == 3, "one finds no node"


@on_a_loop
async def test_pods_of_a_stateful_set_come_one_after_the_other() -> None:
    shop = Shop(Settings())
    made: list[str] = []
    shop.server.listeners.append(
        lambda collection, event: (
            made.append(event.after["metadata"]["name"])
            if collection.plural == "pods" and event.before is None and event.after
            else None
        )
    )
    shop.server.create("statefulsets", deployment("s", 3))
    await until(lambda: sum(map(is_ready, shop.of("pods"))) == 3)
    assert made == ["s-0", "s-1", "s-2"]


@on_a_loop
async def test_a_container_that_restarts_is_counted() -> None:
    shop = Shop(Settings())
    shop.serve(replicas=1)
    await until(lambda: any(one["conditions"]["ready"] for one in shop.endpoints()))
    (key,) = shop.server.collection("pods").objects
    shop.manager.nodes.restart(key)
    assert not is_ready(shop.of("pods")[0])
    await until(lambda: is_ready(shop.of("pods")[0]))
    assert shop.of("pods")[0]["status"]["containerStatuses"][0]["restartCount"] == 1
