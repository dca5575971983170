"""The API's protocol, as the activator relies on it: on the fake server, and on a real one where
there is one (tests/kube/real.py).

What passes on both is what the fake may be trusted with. On a real cluster everything happens in a namespace of its own
that is deleted afterwards; the few cases that need the server's history to be forgotten run on the fake only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from activator.kubernetes.client import (
    KUBE_CALL_TIMEOUT_S,
    ONLY_METADATA,
    WHOLE_OBJECTS,
    KubeClient,
)
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import RefusedError, UnreachableError
from activator.kubernetes.resources import CONFIG_MAPS, LEASES
from tests.kube import real
from tests.kube.api import Api, Json
from tests.kubernetes.fake_api_server import Fault
from tests.kubernetes.fake_cluster import fake_cluster, on_a_loop, run, until
from tests.kubernetes.kube_samples import config_map, endpoint_slice
from tests.manual_clock import ManualClock


@asynccontextmanager
async def real_api() -> AsyncIterator[Api]:
    client = KubeClient(Credentials({"KUBECONFIG": real.kubeconfig()}, ManualClock().now), "activator/conformance")
    api = Api(client, f"activator-test-{uuid.uuid4().hex[:8]}")
    namespaces = "/api/v1/namespaces"
    await api.create({"metadata": {"name": api.namespace}}, namespaces)
    try:
        yield api
    finally:
        await api.call("DELETE", f"{namespaces}/{api.namespace}")
        await client.close()


@asynccontextmanager
async def fake_api(folder: Path) -> AsyncIterator[Api]:
    async with fake_cluster(folder) as cluster:
        yield Api(cluster.client, "default")


Story = Callable[[Api], Awaitable[None]]


@pytest.fixture(params=["fake", "real"] if real.IS_THERE else ["fake"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """`on(story)`: runs it against this parameter's server."""

    def tell(story: Story) -> None:
        async def main() -> None:
            async with real_api() if request.param == "real" else fake_api(tmp_path) as api:
                await story(api)

        run(main)

    return tell


On = Callable[[Story], None]


def test_create_and_get(on: On) -> None:
    async def story(api: Api) -> None:
        made = await api.create(config_map("a", {"l": "1"}, x="1"))
        assert made["metadata"]["uid"] and made["metadata"]["resourceVersion"].isdigit()
        assert made["kind"] == "ConfigMap" and made["metadata"]["namespace"] == api.namespace
        status, got = await api.call("GET", f"{api.maps}/a")
        assert (status, got["data"], got["metadata"]["uid"]) == (200, {"x": "1"}, made["metadata"]["uid"])
        status, refused = await api.call("POST", api.maps, config_map("a"))
        assert (status, refused["kind"], refused["reason"], refused["code"]) == (409, "Status", "AlreadyExists", 409)
        status, refused = await api.call("GET", f"{api.maps}/none")
        assert (status, refused["reason"]) == (404, "NotFound")
        assert (await api.call("GET", "/apis/nothing.example/v1/things"))[0] == 404

    on(story)


def test_versions_grow_with_each_write_that_changes_something(on: On) -> None:
    async def story(api: Api) -> None:
        first = await api.create(config_map("a", x="1"))
        second = await api.create(config_map("b", x="1"))
        _, third = await api.call("PUT", f"{api.maps}/a", {**first, "data": {"x": "2"}})
        versions = [int(one["metadata"]["resourceVersion"]) for one in (first, second, third)]
        assert versions == sorted(set(versions))
        _, same = await api.call("PUT", f"{api.maps}/a", third)
        assert same["metadata"]["resourceVersion"] == third["metadata"]["resourceVersion"]
        assert int(await api.version()) >= versions[2]
        status, refused = await api.call("PUT", f"{api.maps}/a", {**first, "data": {"x": "3"}})
        assert (status, refused["reason"]) == (409, "Conflict")

    on(story)


def test_generation_counts_changes_of_the_content(on: On) -> None:
    async def story(api: Api) -> None:
        made = await api.create(slice_of(api, "s", [1, 2]), api.slices)
        path = f"{api.slices}/s"
        assert made["metadata"]["generation"] == 1
        merge = "application/merge-patch+json"
        _, noted = await api.call("PATCH", path, {"metadata": {"annotations": {"new": "1"}}}, merge)
        assert noted["metadata"]["generation"] == 1
        _, labelled = await api.call("PATCH", path, {"metadata": {"labels": {"new": "1"}}}, merge)
        assert labelled["metadata"]["generation"] == 2
        _, changed = await api.call("PATCH", path, {"endpoints": []}, merge)
        assert changed["metadata"]["generation"] == 3
        made = await api.create(config_map("a", x="1"))
        assert "generation" not in made["metadata"]  # what is data only has none

    on(story)


def slice_of(api: Api, name: str, numbers: list[int]) -> Json:
    thing = endpoint_slice(name, numbers)
    del thing["metadata"]["managedFields"], thing["metadata"]["ownerReferences"]
    for endpoint in thing["endpoints"]:
        endpoint["targetRef"]["namespace"] = api.namespace
    return thing


def test_lists_by_selector(on: On) -> None:
    async def story(api: Api) -> None:
        for name, labels in (("a", {"k": "1"}), ("b", {"k": "2"}), ("c", {"k": "1", "l": "x"}), ("d", {})):
            await api.create(config_map(name, {**labels, "ours": "yes"}))

        async def names(labels: str, fields: str = "") -> list[str]:
            query = {"labelSelector": f"ours{',' if labels else ''}{labels}", "fieldSelector": fields}
            _, found = await api.call("GET", api.maps, query=query)
            assert found["kind"] == "ConfigMapList" and "kind" not in found["items"][0]
            return [one["metadata"]["name"] for one in found["items"]]

        assert await names("") == ["a", "b", "c", "d"]
        assert await names("k=1") == ["a", "c"]
        assert await names("k!=1") == ["b", "d"]
        assert await names("k") == ["a", "b", "c"]
        assert await names("!k") == ["d"]
        assert await names("k in (2,3)") == ["b"]
        assert await names("k notin (1,2)") == ["d"]
        assert await names("k=1,l=x") == ["c"]
        assert await names("", "metadata.name=b") == ["b"]
        assert (await api.call("GET", api.maps, query={"fieldSelector": "data.x=1"}))[0] == 400
        assert (await api.call("GET", api.maps, query={"labelSelector": "=,="}))[0] == 400

    on(story)


def test_pages_of_a_list_are_of_one_version(on: On) -> None:
    async def story(api: Api) -> None:
        for number in range(5):
            await api.create(config_map(f"m{number}", {"page": "1"}))
        query = {"limit": "2", "labelSelector": "page"}
        _, first = await api.call("GET", api.maps, query=query)
        assert len(first["items"]) == 2 and first["metadata"]["continue"]
        await api.create(config_map("m9", {"page": "1"}))
        await api.call("DELETE", f"{api.maps}/m4")
        names = [one["metadata"]["name"] for one in first["items"]]
        page = first
        while page["metadata"].get("continue"):
            query["continue"] = page["metadata"]["continue"]
            _, page = await api.call("GET", api.maps, query=query)
            assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            names += [one["metadata"]["name"] for one in page["items"]]
        assert names == ["m0", "m1", "m2", "m3", "m4"]
        assert (await api.call("GET", api.maps, query={"limit": "2", "continue": "nonsense"}))[0] == 400

    on(story)


def test_long_answers_are_compressed_where_the_client_takes_it(on: On) -> None:
    """And what our own client makes of them is what was written."""

    async def story(api: Api) -> None:
        text = "".join(f"line {number} of a long text\n" for number in range(8_000))
        await api.create(config_map("short", x="1"))
        assert await api.encoding(api.maps, "gzip") == "identity"
        await api.create(config_map("long", x=text))
        assert await api.encoding(api.maps, "gzip") == "gzip"
        assert await api.encoding(f"{api.maps}/long", "gzip") == "gzip"
        assert await api.encoding(f"{api.maps}/short", "gzip") == "identity"
        assert await api.encoding(api.maps, "identity") == "identity"
        assert json.loads(await api.client.get(f"{api.maps}/long"))["data"] == {"x": text}
        listed = json.loads(await api.client.list_page(api.maps, {}))["items"]
        assert text in [one["data"].get("x") for one in listed]

    on(story)


@pytest.mark.parametrize("accept", [ONLY_METADATA, WHOLE_OBJECTS])
def test_a_list_of_metadata(on: On, accept: str) -> None:
    """Pages, selectors and versions as in a list of whole objects."""

    async def story(api: Api) -> None:
        made = [await api.create(config_map(name, {"l": name[0]}, x="1")) for name in ("a1", "a2", "a3", "b1")]
        query = {"limit": "2", "labelSelector": "l=a"}
        first = json.loads(await api.client.list_page(api.maps, query, accept))
        query["continue"] = first["metadata"]["continue"]
        second = json.loads(await api.client.list_page(api.maps, query, accept))
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
        assert not second["metadata"].get("continue")
        items = [*first["items"], *second["items"]]
        expected = [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in made[:3]]
        assert [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in items] == expected
        assert all(one["metadata"]["labels"] == {"l": "a"} for one in items)
        is_whole = accept == WHOLE_OBJECTS
        assert first["kind"] == ("ConfigMapList" if is_whole else "PartialObjectMetadataList")
        assert ["data" in one for one in items] == [is_whole] * 3
        none = json.loads(await api.client.list_page(api.maps, {"labelSelector": "l=c"}, accept))
        assert none["items"] == ([] if is_whole else None)

    on(story)


def test_a_watch_from_a_version(on: On) -> None:
    async def story(api: Api) -> None:
        await api.create(config_map("before", {"ours": "1"}))
        version = await api.version()
        made = await api.create(config_map("a", {"ours": "1"}, x="1"))
        async with api.watch(resourceVersion=version, labelSelector="ours") as watch:
            assert await watch.pair() == ("ADDED", "a")
            await api.call("PUT", f"{api.maps}/a", {**made, "data": {"x": "2"}})
            event = await watch.next()
            assert event is not None and event["type"] == "MODIFIED"
            assert event["object"]["kind"] == "ConfigMap" and event["object"]["data"] == {"x": "2"}
            await api.call("DELETE", f"{api.maps}/a")
            gone = await watch.next()
            assert gone is not None and gone["type"] == "DELETED" and gone["object"]["data"] == {"x": "2"}
            versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in (event, gone)]
            assert versions[1] > versions[0] and gone["object"]["metadata"]["uid"] == made["metadata"]["uid"]

    on(story)


@pytest.mark.parametrize("version", ["0", None])
def test_a_watch_from_anywhere_begins_with_what_is_there(on: On, version: str | None) -> None:
    async def story(api: Api) -> None:
        await api.create(config_map("a", {"ours": "1"}))
        await api.create(config_map("b", {"ours": "1"}))
        await api.call("DELETE", f"{api.maps}/a")
        query = {} if version is None else {"resourceVersion": version}
        async with api.watch(labelSelector="ours", **query) as watch:
            told = [await watch.pair()]
            while told[-1] != ("ADDED", "b"):  # from "0" it may be a little of the past
                told.append(await watch.pair())
            await api.create(config_map("c", {"ours": "1"}))
            while told[-1] != ("ADDED", "c"):
                told.append(await watch.pair())

    on(story)


def test_labels_move_objects_into_and_out_of_a_watch(on: On) -> None:
    async def story(api: Api) -> None:
        await api.create(config_map("a", {"ours": "1"}, x="1"))
        version = await api.version()
        async with api.watch(resourceVersion=version, labelSelector="ours=1") as watch:
            path, merge = f"{api.maps}/a", "application/merge-patch+json"
            _, moved = await api.call("PATCH", path, {"metadata": {"labels": {"ours": "2"}}}, merge)
            event = await watch.next()
            assert event is not None and event["type"] == "DELETED"
            assert event["object"]["metadata"]["resourceVersion"] == moved["metadata"]["resourceVersion"]
            await api.call("PATCH", path, {"metadata": {"labels": {"ours": "1"}}}, merge)
            assert await watch.pair() == ("ADDED", "a")
            await api.call("PATCH", path, {"metadata": {"labels": {"other": "1"}}}, merge)
            assert await watch.pair() == ("MODIFIED", "a")

    on(story)


def test_a_watch_ends_after_its_time(on: On) -> None:
    async def story(api: Api) -> None:
        async with api.watch(resourceVersion=await api.version(), timeoutSeconds="1") as watch:
            assert await watch.next() is None

    on(story)


def test_deletion_waits_for_finalizers(on: On) -> None:
    async def story(api: Api) -> None:
        thing = config_map("a", {"ours": "1"})
        thing["metadata"]["finalizers"] = ["activator.test/hold"]
        await api.create(thing)
        async with api.watch(resourceVersion=await api.version(), labelSelector="ours") as watch:
            await api.call("DELETE", f"{api.maps}/a")
            event = await watch.next()
            assert event is not None and event["type"] == "MODIFIED"
            assert event["object"]["metadata"]["deletionTimestamp"]
            patch = {"metadata": {"finalizers": None}}
            await api.call("PATCH", f"{api.maps}/a", patch, "application/merge-patch+json")
            assert await watch.pair() == ("DELETED", "a")
        assert (await api.call("GET", f"{api.maps}/a"))[0] == 404

    on(story)


def test_a_new_object_of_an_old_name_has_another_uid(on: On) -> None:
    async def story(api: Api) -> None:
        first = await api.create(config_map("a"))
        await api.call("DELETE", f"{api.maps}/a")
        second = await api.create(config_map("a"))
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        body = {"preconditions": {"uid": first["metadata"]["uid"]}}
        status, refused = await api.call("DELETE", f"{api.maps}/a", body)
        assert (status, refused["reason"]) == (409, "Conflict")

    on(story)


def test_merge_patch(on: On) -> None:
    async def story(api: Api) -> None:
        made = await api.create(config_map("a", x="1", y="2"))
        merge = "application/merge-patch+json"
        _, patched = await api.call("PATCH", f"{api.maps}/a", {"data": {"x": None, "z": "3"}}, merge)
        assert patched["data"] == {"y": "2", "z": "3"}
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"y": "9"}}
        assert (await api.call("PATCH", f"{api.maps}/a", stale, merge))[1]["reason"] == "Conflict"
        assert (await api.call("PATCH", f"{api.maps}/none", {"data": {"x": "1"}}, merge))[0] == 404
        assert (await api.call("PATCH", f"{api.maps}/a", {"data": {}}, "application/nonsense+json"))[0] == 415

    on(story)


def test_apply(on: On) -> None:
    async def story(api: Api) -> None:
        def wanted(**data: str) -> Json:
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}

        async def apply(manager: str, force: str = "false", **data: str) -> tuple[int, Json]:
            query = {"fieldManager": manager, "force": force}
            return await api.call("PATCH", f"{api.maps}/a", wanted(**data), "application/apply-patch+yaml", query)

        assert (await apply("one", x="1", y="1"))[0] == 201
        assert (await apply("one", x="1", y="2"))[1]["data"] == {"x": "1", "y": "2"}
        status, refused = await apply("two", y="3", z="3")
        assert (status, refused["reason"]) == (409, "Conflict")
        assert (await apply("two", x="1", z="3"))[1]["data"] == {"x": "1", "y": "2", "z": "3"}  # x: both agree
        assert (await apply("one", y="2"))[1]["data"] == {"x": "1", "y": "2", "z": "3"}  # x: two still wants it
        assert (await apply("two", z="3"))[1]["data"] == {"y": "2", "z": "3"}
        assert (await apply("two", force="true", y="4", z="3"))[1]["data"] == {"y": "4", "z": "3"}
        status, refused = await apply("one", y="2")
        assert (status, refused["reason"]) == (409, "Conflict")
        status, _ = await api.call("PATCH", f"{api.maps}/a", wanted(x="1"), "application/apply-patch+yaml")
        assert status in {400, 422}  # without a manager

    on(story)


def applied(api: Api, name: str, manager: str, **data: str) -> Awaitable[tuple[int, Json]]:
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    query = {"fieldManager": manager, "force": "false"}
    return api.call("PATCH", f"{api.maps}/{name}", wanted, "application/apply-patch+yaml", query)


def test_each_manager_applies_rows_of_its_own(on: On) -> None:
    """By name nobody is refused; what a manager no longer applies is gone; an update takes rows from their owners."""

    async def story(api: Api) -> None:
        assert (await applied(api, "a", "one", row_1="0"))[0] == 201
        status, both = await applied(api, "a", "two", row_2="0")
        assert (status, both["data"]) == (200, {"row_1": "0", "row_2": "0"})
        _, moved = await applied(api, "a", "two", row_3="1")
        assert moved["data"] == {"row_1": "0", "row_3": "1"}
        changed = {**moved, "data": {"row_3": "1"}}
        status, removed = await api.call("PUT", f"{api.maps}/a", changed, query={"fieldManager": "cleaner"})
        assert (status, removed["data"]) == (200, {"row_3": "1"})
        assert (await applied(api, "a", "three", row_1="7"))[0] == 200  # nobody owns it any more
        status, refused = await applied(api, "a", "one", row_1="0")
        assert (status, refused["reason"]) == (409, "Conflict")

    on(story)


def test_what_an_update_changed_is_owned_by_its_manager(on: On) -> None:
    async def story(api: Api) -> None:
        _, made = await applied(api, "a", "one", x="1", y="1")
        await api.call("PUT", f"{api.maps}/a", {**made, "data": {"x": "2", "y": "1"}}, query={"fieldManager": "two"})
        status, refused = await applied(api, "a", "one", x="1", y="1")
        assert (status, refused["reason"]) == (409, "Conflict")
        assert (await applied(api, "a", "one", x="2", y="2"))[0] == 200

    on(story)


def test_the_name_of_a_manager_has_a_bound(on: On) -> None:
    async def story(api: Api) -> None:
        assert (await applied(api, "a", "m" * 128, x="1"))[0] == 201
        assert (await applied(api, "b", "m" * 129, x="1"))[0] == 422

    on(story)


def test_json_patch(on: On) -> None:
    async def story(api: Api) -> None:
        made = await api.create(config_map("a", x="1"))
        kind = "application/json-patch+json"

        async def patch(*operations: Json) -> tuple[int, Json]:
            return await api.call("PATCH", f"{api.maps}/a", list(operations), kind)  # type: ignore[arg-type]

        nothing = {"op": "test", "path": "/data/y", "value": None}  # passes where there is nothing
        add = {"op": "add", "path": "/data/y", "value": "2"}
        assert (await patch(nothing, add))[1]["data"] == {"x": "1", "y": "2"}
        status, refused = await patch(nothing, add)
        assert (status, refused["kind"], refused["reason"]) == (422, "Status", "Invalid")
        assert (await patch({"op": "add", "path": "/data/z", "value": "3"}, nothing))[0] == 422
        _, there = await api.call("GET", f"{api.maps}/a")
        assert there["data"] == {"x": "1", "y": "2"}  # all or none
        test = {"op": "test", "path": "/data/y", "value": "2"}
        assert (await patch(test, {"op": "remove", "path": "/data/y"}))[1]["data"] == {"x": "1"}
        assert (await patch({"op": "remove", "path": "/data/y"}))[0] == 422
        assert (await patch({"op": "replace", "path": "/data/x", "value": "9"}))[1]["data"] == {"x": "9"}
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]}
        assert (await patch(version, add))[0] == 422
        assert (await api.call("PATCH", f"{api.maps}/a", {"op": "add"}, kind))[0] == 400
        assert (await api.call("PATCH", f"{api.maps}/none", [add], kind))[0] == 404  # type: ignore[arg-type]
        await api.create(config_map("empty"))
        status, _ = await api.call("PATCH", f"{api.maps}/empty", [add], kind)  # type: ignore[arg-type]
        assert status == 422  # a map without entries is not there

    on(story)


def test_deletion_with_preconditions(on: On) -> None:
    async def story(api: Api) -> None:
        made = await api.create(config_map("a", x="1"))
        _, changed = await api.call("PUT", f"{api.maps}/a", {**made, "data": {"x": "2"}})
        uid, version = made["metadata"]["uid"], changed["metadata"]["resourceVersion"]
        for wrong in ({"uid": "0" * 36}, {"uid": uid, "resourceVersion": made["metadata"]["resourceVersion"]}):
            status, refused = await api.call("DELETE", f"{api.maps}/a", {"preconditions": wrong})
            assert (status, refused["reason"]) == (409, "Conflict")
        right = {"preconditions": {"uid": uid, "resourceVersion": version}}
        assert (await api.call("DELETE", f"{api.maps}/a", right))[0] == 200
        status, refused = await api.call("DELETE", f"{api.maps}/a", right)
        assert (status, refused["reason"]) == (404, "NotFound")

    on(story)


def test_a_lease_is_taken_once_and_updated_with_a_version_only(on: On) -> None:
    async def story(api: Api) -> None:
        path = LEASES.collection(api.namespace)
        lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "one"}}
        made = await api.create(lease, path)
        status, refused = await api.call("POST", path, lease)
        assert (status, refused["reason"]) == (409, "AlreadyExists")
        assert (await api.call("PUT", f"{path}/a", lease))[0] == 422
        changed = {**made, "spec": {"holderIdentity": "two"}}
        assert (await api.call("PUT", f"{path}/a", changed))[1]["spec"]["holderIdentity"] == "two"
        assert (await api.call("PUT", f"{path}/a", changed))[1]["reason"] == "Conflict"

    on(story)


def test_names_and_labels_have_their_bounds(on: On) -> None:
    async def story(api: Api) -> None:
        await api.create(config_map("a" * 253, {"l": "v" * 63}))
        for name, labels in (("a" * 254, {}), ("A", {}), ("a_b", {}), ("b", {"l": "v" * 64}), ("b", {"l": "-"})):
            status, refused = await api.call("POST", api.maps, config_map(name, labels))
            assert (status, refused["reason"]) == (422, "Invalid")
        big = config_map("b")
        big["metadata"]["annotations"] = {"a": "x" * (256 << 10)}
        assert (await api.call("POST", api.maps, big))[0] == 422

    on(story)


@pytest.mark.parametrize("fault", Fault)
@on_a_loop
async def test_faults_of_the_fake(tmp_path: Path, fault: Fault) -> None:
    bound_s = 1.0 if fault is Fault.NO_ANSWER else KUBE_CALL_TIMEOUT_S  # a busy machine has to do it within that
    async with fake_cluster(tmp_path, call_timeout_s=bound_s) as cluster:
        cluster.server.faults = [("create", fault)]
        with pytest.raises(UnreachableError):
            await cluster.client.create(CONFIG_MAPS.collection("default"), config_map("a"), "me")
        assert len(cluster.server.collection("configmaps").objects) == (fault is not Fault.LOST_REQUEST)
        await cluster.client.create(CONFIG_MAPS.collection("default"), config_map("b"), "me")
        assert cluster.server.writes == 2


def test_a_version_that_is_not_there_yet(on: On) -> None:
    async def story(api: Api) -> None:
        ahead = str(int(await api.version()) + 1_000_000)
        status, refused = await api.call("GET", api.maps, query={"resourceVersion": ahead})
        assert (status, refused["reason"]) == (504, "Timeout")
        status, _ = await api.call("GET", api.maps, query={"resourceVersion": "nonsense"})
        assert status == 400

    on(story)


@on_a_loop
async def test_what_the_history_has_forgotten_is_410(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server, api = cluster.server, Api(cluster.client, "default")
        for number in range(3):
            server.create("configmaps", config_map(f"m{number}"))
        version = await api.version()
        _, page = await api.call("GET", api.maps, query={"limit": "1"})
        server.create("configmaps", config_map("later"))
        server.compact("configmaps")
        async with api.watch(resourceVersion=version) as watch:
            event = await watch.next()
            assert event is not None and event["type"] == "ERROR"
            assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
            assert await watch.next() is None
        rest = {"limit": "1", "continue": page["metadata"]["continue"]}
        status, refused = await api.call("GET", api.maps, query=rest)
        assert (status, refused["reason"]) == (410, "Expired")
        server.gone_by_status = True
        with pytest.raises(RefusedError, match="410 Expired"):
            await cluster.client.watch(api.maps, {"resourceVersion": version})


@on_a_loop
async def test_bookmarks(tmp_path: Path) -> None:
    """A real server sends one a minute, which no test waits for."""
    async with fake_cluster(tmp_path) as cluster:
        api = Api(cluster.client, "default")
        async with api.watch(resourceVersion="100", allowWatchBookmarks="true") as watch:
            cluster.server.create("services", {"metadata": {"name": "elsewhere"}})
            await until(lambda: cluster.server.watchers)
            cluster.server.bookmark()
            event = await watch.next(bookmarks=True)
            assert event is not None and event["type"] == "BOOKMARK" and event["object"]["kind"] == "ConfigMap"
            assert event["object"]["metadata"]["resourceVersion"] == "101"
