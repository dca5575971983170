"""Single calls: what they send, how they are bounded, how they fail, and whose budget they use."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest

from activator.kubernetes.client import (
    KUBE_INFLATED_PER_TURN_MAX,
    KUBE_LISTS_AT_ONCE_MAX,
    KUBE_WRITES_AT_ONCE_MAX,
    KubeClient,
    _Inflater,
)
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import (
    CallTimeoutError,
    KubeError,
    LineTooLongError,
    RefusedError,
    TooLargeError,
    UnreachableError,
    UnreadableError,
    WatchCutError,
    WatchStalledError,
)
from activator.kubernetes.resources import CONFIG_MAPS, SERVICES, Resource
from activator.kubernetes.watch_lines import LineSplitter
from activator.runtime.units import MIB
from tests.kubernetes.fake_cluster import fake_cluster, on_a_loop, until, write_config
from tests.kubernetes.fake_objects import RefusalError
from tests.kubernetes.kube_samples import config_map
from tests.manual_clock import ManualClock

READ_CONNECTIONS = 100  # kubernetes-asyncio's limit for one client
DEPLOYMENTS = Resource("deployments", "/apis/apps/v1", type(None))  # type: ignore[type-var]


@on_a_loop
async def test_get_patch_and_apply(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        client = cluster.client
        made = cluster.server.create("configmaps", config_map("a", x="1", y="2"))
        path = CONFIG_MAPS.one("default", "a")
        assert json.loads(await client.get(path))["data"] == {"x": "1", "y": "2"}
        patched = json.loads(await client.merge_patch(path, {"data": {"x": None, "z": "3"}}, "activator"))
        assert patched["data"] == {"y": "2", "z": "3"}
        stale_patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
        with pytest.raises(RefusedError) as stale:
            await client.merge_patch(path, stale_patch, "activator")
        assert (stale.value.status, stale.value.reason, stale.value.kind) == (409, "Conflict", "409")
        wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"x": "1"}}
        await client.apply(CONFIG_MAPS.one("default", "b"), wanted, "one")
        with pytest.raises(RefusedError, match="Conflict"):
            await client.apply(CONFIG_MAPS.one("default", "b"), {**wanted, "data": {"x": "2"}}, "two")
        forced = await client.apply(CONFIG_MAPS.one("default", "b"), {**wanted, "data": {"x": "2"}}, "two", True)
        assert json.loads(forced)["data"] == {"x": "2"}
        with pytest.raises(RefusedError) as missing:
            await client.get(CONFIG_MAPS.one("default", "none"))
        assert missing.value.kind == "404"
        assert client.requests_total == {
            ("get", "200"): 1,
            ("get", "404"): 1,
            ("patch", "200"): 2,
            ("patch", "201"): 1,
            ("patch", "409"): 2,
        }


@on_a_loop
async def test_create_update_delete_and_json_patch(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        client = cluster.client
        path, collection = CONFIG_MAPS.one("default", "a"), CONFIG_MAPS.collection("default")
        made = json.loads(await client.create(collection, config_map("a", x="1"), "me"))
        with pytest.raises(RefusedError) as taken:
            await client.create(collection, config_map("a", x="2"), "me")
        assert (taken.value.status, taken.value.reason) == (409, "AlreadyExists")
        changed = json.loads(await client.update(path, {**made, "data": {"x": "2"}}, "me"))
        with pytest.raises(RefusedError) as stale:
            await client.update(path, {**made, "data": {"x": "3"}}, "me")
        assert (stale.value.status, stale.value.reason) == (409, "Conflict")
        operations = [{"op": "test", "path": "/data/x", "value": "2"}, {"op": "add", "path": "/data/y", "value": "1"}]
        patched = json.loads(await client.json_patch(path, operations, "me"))
        assert patched["data"] == {"x": "2", "y": "1"}
        with pytest.raises(RefusedError) as failed:
            await client.json_patch(path, [{"op": "test", "path": "/data/x", "value": "9"}], "me")
        assert (failed.value.status, failed.value.reason) == (422, "Invalid")
        for uid, version in (("another", ""), (made["metadata"]["uid"], changed["metadata"]["resourceVersion"])):
            with pytest.raises(RefusedError, match="Precondition failed"):
                await client.delete(path, uid, version)
        await client.delete(path, made["metadata"]["uid"], patched["metadata"]["resourceVersion"])
        with pytest.raises(RefusedError) as gone:
            await client.delete(path, made["metadata"]["uid"])
        assert (gone.value.status, gone.value.reason) == (404, "NotFound")
        assert client.requests_total == {
            ("create", "201"): 1,
            ("create", "409"): 1,
            ("update", "200"): 1,
            ("update", "409"): 1,
            ("patch", "200"): 1,
            ("patch", "422"): 1,
            ("delete", "409"): 2,
            ("delete", "200"): 1,
            ("delete", "404"): 1,
        }


@on_a_loop
async def test_a_deployments_scale(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("deployments", {"metadata": {"name": "d"}, "spec": {"replicas": 0, "other": 1}})
        path = f"{DEPLOYMENTS.one('default', 'd')}/scale"
        scale = json.loads(await cluster.client.merge_patch(path, {"spec": {"replicas": 1}}, "activator"))
        assert scale["kind"] == "Scale" and scale["spec"] == {"replicas": 1}
        kept = cluster.server.collection("deployments").objects["default", "d"]
        assert kept["spec"] == {"replicas": 1, "other": 1} and kept["metadata"]["generation"] == 2


class SilentServer:
    """Accepts, and never says a word. Leaving it waits until its clients have gone."""

    def __init__(self) -> None:
        self.connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.read(65536):
                pass
        finally:
            writer.close()
            await writer.wait_closed()
            self.connections -= 1

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        await until(lambda: self.connections == 0)


def client_to(folder: Path, url: str, **bounds: float) -> KubeClient:
    credentials = Credentials({"KUBECONFIG": write_config(folder, url)}, ManualClock().now)
    return KubeClient(credentials, "activator/test", **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["get", "list", "watch", "patch", "create", "update", "delete"])
@on_a_loop
async def test_a_server_that_never_answers(tmp_path: Path, verb: str) -> None:
    async with SilentServer() as server:
        client = client_to(tmp_path, server.url, call_timeout_s=0.05)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": lambda: client.get("/api/v1/x"),
            "list": lambda: client.list_page("/api/v1/x", {}),
            "watch": lambda: client.watch("/api/v1/x", {}),
            "patch": lambda: client.merge_patch("/api/v1/x", {}, "me"),
            "create": lambda: client.create("/api/v1/x", {}, "me"),
            "update": lambda: client.update("/api/v1/x", {}, "me"),
            "delete": lambda: client.delete("/api/v1/x", "uid"),
        }
        with pytest.raises(CallTimeoutError, match=r"within 0\.05 s"):
            await calls[verb]()
        assert client.requests_total == {(verb, "timeout"): 1}
        await client.close()


@on_a_loop
async def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else gets the port
        client = client_to(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UnreachableError):
            await client.get("/api/v1/x")
        assert client.requests_total == {("get", "unreachable"): 1}
        await client.close()


@on_a_loop
async def test_an_answer_beyond_its_bound(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path, body_bytes_max=1000) as cluster:
        cluster.server.create("configmaps", config_map("a", x="y" * 2000))
        with pytest.raises(TooLargeError):
            await cluster.client.get(CONFIG_MAPS.one("default", "a"))
        assert cluster.client.requests_total["get", "too_large"] == 1


class RawServer:
    """Answers each request with these bytes, a few at a time, and ends the connection."""

    def __init__(self, head: str, body: bytes, step: int = 1 << 20) -> None:
        self._answer = f"HTTP/1.1 200 OK\r\n{head}Connection: close\r\n\r\n".encode() + body
        self._step = step

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # a client that has had enough
            for start in range(0, len(self._answer), self._step):
                writer.write(self._answer[start : start + self._step])
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *failure: object) -> None:
        self._server.close()
        await self._server.wait_closed()


GZIP = "Content-Encoding: gzip\r\n"
TEXT = "".join(f"line {number}\n" for number in range(400_000)).encode()  # 4.7 MB, so inflated in several turns


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
@pytest.mark.parametrize("text", [b"", b"{}", TEXT, bytes(3 * KUBE_INFLATED_PER_TURN_MAX)])
@on_a_loop
async def test_a_compressed_answer(tmp_path: Path, text: bytes, step: int) -> None:
    body = gzip.compress(text, 1)
    if step == 1 and len(body) > 5_000:
        body = gzip.compress(text[:10_000], 1)
        text = text[:10_000]
    async with RawServer(GZIP, body, step) as url:
        client = client_to(tmp_path, url)
        assert await client.get("/api/v1/x") == text
        await client.close()


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (GZIP, gzip.compress(TEXT, 1)[:-1], "ends early"),
        (GZIP, gzip.compress(TEXT, 1)[:1000], "ends early"),
        (GZIP, gzip.compress(b"{}")[:5], "ends early"),
        (GZIP, gzip.compress(b"{}") + b"x", "after the end"),
        (GZIP, gzip.compress(b"{}") + gzip.compress(b"{}"), "after the end"),
        (GZIP, b"{}", "cannot be read"),
        (GZIP, gzip.compress(TEXT, 1)[:-8] + bytes(8), "cannot be read"),
        ("Content-Encoding: br\r\n", b"{}", "encoding 'br'"),
    ],
    ids=["no trailer", "half", "half a head", "one byte more", "two of them", "plain", "wrong sum", "another encoding"],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
@on_a_loop
async def test_a_compressed_answer_that_is_none(tmp_path: Path, head: str, body: bytes, told: str, step: int) -> None:
    if step == 1 and len(body) > 5_000:
        return
    async with RawServer(head, body, step) as url:
        client = client_to(tmp_path, url)
        with pytest.raises(UnreadableError, match=told):
            await client.get("/api/v1/x")
        assert client.requests_total["get", "unreadable"] == 1
        await client.close()


@on_a_loop
async def test_a_small_answer_that_inflates_beyond_its_bound(tmp_path: Path) -> None:
    """A thousand times its size: no turn of the loop inflates more than its part, and the rest is never made."""
    body = gzip.compress(bytes(200 * MIB), 9)
    assert len(body) < MIB
    stream = _Inflater()
    sizes = [len(part) for part in stream.parts(body)]
    stream.end()
    assert max(sizes) == KUBE_INFLATED_PER_TURN_MAX and sum(sizes) == 200 * MIB
    async with RawServer(GZIP, body) as url:
        client = client_to(tmp_path, url, body_bytes_max=10 * MIB)
        with pytest.raises(TooLargeError):
            await client.get("/api/v1/x")
        await client.close()


@on_a_loop
async def test_a_watch_is_not_asked_for_compressed(tmp_path: Path) -> None:
    async with RawServer(GZIP, gzip.compress(b'{"type": "ADDED"}\n')) as url:
        client = client_to(tmp_path, url)
        with pytest.raises(UnreadableError, match="a watch in the encoding 'gzip'"):
            await client.watch("/api/v1/x", {})
        await client.close()


@on_a_loop
async def test_refusals_say_what_the_server_said(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.refusals = [("get", RefusalError(429, "TooManyRequests", "slow down", retry_after_s=3))]
        with pytest.raises(RefusedError, match="429 TooManyRequests: slow down") as refused:
            await cluster.client.get("/api/v1/namespaces/x/configmaps/y")
        assert refused.value.retry_after_s == 3.0
        with pytest.raises(RefusedError) as unknown:
            await cluster.client.get("/apis/nothing.example/v1/things")  # plain text, no Status
        assert (unknown.value.status, unknown.value.reason) == (404, "")


@on_a_loop
async def test_a_write_waits_neither_for_lists_nor_for_a_free_connection(tmp_path: Path) -> None:
    """Nothing is answered. As many lists as may run at once are asked for, the others wait; watches take all the
    connections that are left for reading; a write goes out all the same."""
    async with SilentServer() as server:
        client = client_to(tmp_path, server.url)
        lists = [client.list_page("/api/v1/x", {}) for _ in range(KUBE_LISTS_AT_ONCE_MAX + 5)]
        calls: list[asyncio.Task[object]] = [asyncio.create_task(call) for call in lists]
        await until(lambda: server.connections == KUBE_LISTS_AT_ONCE_MAX)
        calls += [asyncio.create_task(client.watch("/api/v1/x", {})) for _ in range(READ_CONNECTIONS)]
        await until(lambda: server.connections == READ_CONNECTIONS)
        calls.append(asyncio.create_task(client.merge_patch("/api/v1/x", {}, "me")))
        await until(lambda: server.connections == READ_CONNECTIONS + 1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.close()


@on_a_loop
async def test_writes_of_all_verbs_have_one_budget(tmp_path: Path) -> None:
    async with SilentServer() as server:
        client = client_to(tmp_path, server.url)
        calls = [
            asyncio.create_task(call)
            for _ in range(KUBE_WRITES_AT_ONCE_MAX)
            for call in (
                client.create("/api/v1/x", {}, "me"),
                client.delete("/api/v1/x/y", "uid"),
                client.update("/api/v1/x/y", {}, "me"),
                client.json_patch("/api/v1/x/y", [], "me"),
            )
        ]
        await until(lambda: server.connections == KUBE_WRITES_AT_ONCE_MAX)
        reader = asyncio.create_task(client.get("/api/v1/x/y"))
        await until(lambda: server.connections == KUBE_WRITES_AT_ONCE_MAX + 1)
        for call in [*calls, reader]:
            call.cancel()
        await asyncio.gather(*calls, reader, return_exceptions=True)
        await client.close()


@on_a_loop
async def test_a_watch_that_ends_cleanly_in_the_middle_of_an_event_was_cut(tmp_path: Path) -> None:
    """As by a proxy in between that does not pass the breach on: the body just ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"type": "ADDED"}\n{"type": "MODI')
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = client_to(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    stream = await client.watch("/api/v1/x", {})
    assert await stream.lines() == [b'{"type": "ADDED"}']
    with pytest.raises(WatchCutError, match="in the middle of an event"):
        await stream.lines()
    stream.close()
    await client.close()
    server.close()
    await server.wait_closed()


@on_a_loop
async def test_a_watch_that_is_aborted_ends_its_reader(tmp_path: Path) -> None:
    """Without cancelling anything: the read that waits raises what the abort was given."""
    async with fake_cluster(tmp_path) as cluster:
        stream = await cluster.client.watch(SERVICES.collection(), {"resourceVersion": "100"})
        reader = asyncio.create_task(stream.lines())
        await asyncio.sleep(0)
        assert not reader.done()
        reason = WatchStalledError("because")
        stream.abort(reason)
        stream.abort(WatchStalledError("too late"))
        with pytest.raises(WatchStalledError) as raised:
            await reader
        assert raised.value is reason
        with pytest.raises(WatchStalledError):
            await stream.lines()
        stream.close()


@on_a_loop
async def test_closing_the_client_ends_its_watches(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        stream = await cluster.client.watch(SERVICES.collection(), {"resourceVersion": "100"})
        await cluster.client.close()
        with pytest.raises(KubeError) as raised:
            await stream.lines()
        assert isinstance(raised.value, WatchCutError)
        stream.close()


def test_lines_are_cut_wherever_the_network_does() -> None:
    text = b'{"a":1}\n\n{"bb":22}\r\n{"c":'
    whole = LineSplitter(100).feed(text)
    for size in range(1, len(text)):
        cutter = LineSplitter(100)
        lines = [line for start in range(0, len(text), size) for line in cutter.feed(text[start : start + size])]
        assert lines == whole == [b'{"a":1}', b'{"bb":22}\r']
        assert cutter.pending_bytes == 5


def test_a_line_beyond_its_bound_is_noticed_before_its_end() -> None:
    cutter = LineSplitter(10)
    assert cutter.feed(b"x" * 10) == []
    with pytest.raises(LineTooLongError):
        cutter.feed(b"x")
    with pytest.raises(LineTooLongError):
        LineSplitter(10).feed(b"x" * 11 + b"\n")
    assert LineSplitter(10).feed(b"x" * 10 + b"\n") == [b"x" * 10]
