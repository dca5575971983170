"""A Knative cluster on one machine's loopback: an API server, an autoscaler and pods with a queue-proxy each.

Everything lives on an event loop in a thread of its own; the activator under test is a real process that knows it only
by its environment. What stands in for others keeps to what they say on the wire:
  - the autoscaler (`Autoscaler`) decodes what it is sent and makes pods for a revision that carries something;
  - a pod (`QueueProxy`) of a revision whose port is named h2c listens on 8013, and is a gRPC server that echoes;
  - a pod (`QueueProxy`) answers probes as queue-proxy does (503 until its program listens), refuses to be asked more
    than its limit, and answers requests with who it is and what it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from activator.control_plane.scaling.statistics_pb2 import WireStatMessages
from tests.e2e.http2_pods import PodConnection, PodRecords, PodStream
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import write_config

NAMESPACE = "default"
SYSTEM = "knative-serving"
HTTP2_PORT = 8013

T = TypeVar("T")


class QueueProxy:
    """One pod: its queue-proxy and its program in one server."""

    def __init__(self, cluster: Cluster, revision: str, number: int, limit: int) -> None:
        self.cluster = cluster
        self.revision = revision
        self.uid = f"pod-{revision}-{number}"
        self.limit = limit
        self.host = f"127.{cluster.net}.{number >> 8}.{number & 255}"
        self.listens = False  # the program does …
        self.listens_s = 0.0  # … since then
        self.in_flight = 0
        self.most_in_flight = 0
        self.requests = 0
        self.probes = 0
        self._looking: asyncio.Task[bool] | None = None
        self._program: asyncio.Server | None = None
        self.tls: ssl.SSLContext | None = None  # serves TLS beside, on Knative's port for it
        self.secure_requests = 0
        self._runner: web.AppRunner | None = None
        self.grpc: PodRecords | None = PodRecords(self._echo_grpc) if revision in cluster.http2 else None
        self._both: asyncio.Server | None = None  # HTTP/1.1 and HTTP/2 on one port, as queue-proxy has it

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        if self.grpc is None:
            await web.TCPSite(self._runner, self.host, self.cluster.pod_port).start()
        else:
            loop = asyncio.get_running_loop()
            self._both = await loop.create_server(lambda: _FirstBytes(self), self.host, HTTP2_PORT)
        if self.tls is not None:
            await web.TCPSite(self._runner, self.host, 8112, ssl_context=self.tls).start()
        self._looking = asyncio.get_running_loop().create_task(self._look())  # a kubelet asks as soon as it runs

    async def _is_ready(self) -> bool:
        """queue-proxy looks at once, then every 50 ms for ten seconds; whoever asks meanwhile waits for the same look
        (knative.dev/serving pkg/queue/readiness/probe.go).
        """
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> bool:
        for _ in range(200):
            if self.listens:
                break
            await asyncio.sleep(0.05)
        self._looking = None
        return self.listens

    async def listen(self) -> None:
        """The program begins to listen, on its own port too."""
        self._program = await asyncio.start_server(lambda _, writer: writer.close(), self.host, 8080)
        self.listens = True
        self.listens_s = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._program is not None:
            self._program.close()
        if self._both is not None:
            self._both.close()
        if self.grpc is not None:
            self.grpc.abort()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def speaks_http1(self) -> asyncio.Protocol:
        assert self._runner is not None and self._runner.server is not None
        return self._runner.server()

    async def _echo_grpc(self, stream: PodStream) -> None:
        """A call of any kind: each message goes back as it comes."""
        if not self.listens:
            stream.head(502, end=True)
            return
        stream.head(200, [("content-type", "application/grpc")])
        while (data := await stream.chunk()) is not None:
            await stream.send(data)
        stream.end([("grpc-status", "0")])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("User-Agent", "").startswith("Knative-Activator-Probe"):
            self.probes += 1
            if request.headers.get("K-Network-Probe") != "queue":
                return web.Response(status=400)
            return web.Response(text="queue") if await self._is_ready() else web.Response(status=503)
        if not self.listens:
            return web.Response(status=502, text="the program does not listen")
        if request.query.get("echo"):
            return await _echo(request)
        self.requests += 1
        self.secure_requests += request.secure
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(float(request.query.get("seconds", "0")))
            while request.query.get("held") and not self.cluster.released:  # noqa: ASYNC110 - a plain attribute
                await asyncio.sleep(0.005)
            body = await request.read()
        finally:
            self.in_flight -= 1
        shown = {
            "pod": self.uid,
            "revision": self.revision,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "bytes": len(body),
        }
        return web.json_response(shown)


class _FirstBytes(asyncio.Protocol):
    """Hands a connection to what its first bytes speak."""

    def __init__(self, pod: QueueProxy) -> None:
        self._pod = pod
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None and self._pod.grpc is not None
        is_http2 = data.startswith(b"PRI ")
        protocol = PodConnection(self._pod.grpc) if is_http2 else self._pod.speaks_http1()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)


async def _echo(request: web.Request) -> web.StreamResponse:
    """Sends each piece back as it comes, before the request has ended."""
    response = web.StreamResponse()
    await response.prepare(request)
    async for piece in request.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


class Cluster:
    """`net`: the second number of the pods' addresses, so that clusters of one test run do not meet."""

    def __init__(self, folder: Path, net: int) -> None:
        self.folder = folder
        self.net = net
        self.pod_port = 8012
        self.api = FakeApiServer()
        self.pods: dict[str, list[QueueProxy]] = {}
        self.stats: list[tuple[float, str, float, float]] = []  # (when, key, average, count)
        self.autoscaler_port = 0
        self.limits: dict[str, int] = {}
        self.http2: set[str] = set()  # revisions whose port is named h2c
        self.scales_to = 1  # pods that a poke brings
        self.pod_tls: ssl.SSLContext | None = None
        self.released = False  # until then pods do not answer what is `held`
        self.start_seconds = 0.0  # between the pod's address and its program
        self._numbers = 0
        self._autoscaler: Any = None
        self._scaling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._start())

    # --- from the test's thread ---

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it on the cluster's loop, to its end."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def call(self, what: Callable[[], T]) -> T:
        """The same of something that does not wait."""

        async def run() -> T:
            return what()

        return self.do(run())

    def environment(self) -> dict[str, str]:
        """What Knative's manifest would set, and where this cluster is."""
        return {
            "POD_NAME": "activator-1",
            "POD_IP": "127.0.0.1",
            "SYSTEM_NAMESPACE": SYSTEM,
            "CONFIG_LOGGING_NAME": "config-logging",
            "CONFIG_OBSERVABILITY_NAME": "config-observability",
            "CLUSTER_DOMAIN": "cluster.local",
            "KUBECONFIG": write_config(self.folder, self.api.url, {"token": "t"}),
        }

    def activator(self, **more: str) -> Activator:
        """One that is started as Knative's is, on ports of its own."""
        here = {
            "ACTIVATOR_LISTEN": "[127.0.0.1:0, 127.0.0.2:0]",
            "ACTIVATOR_ADMIN": "127.0.0.1:0",
            "ACTIVATOR_SHUTDOWN__DELAY": "0",
            "ACTIVATOR_LOG__FORMAT": "console",
            "ACTIVATOR_KUBERNETES__AUTOSCALER": f"ws://127.0.0.1:{self.autoscaler_port}",
        }
        return Activator([], self.folder, **{**self.environment(), **here, **more}).wait_serving()

    def revision(self, name: str, limit: int = 0, **spec: Any) -> str:
        """Make one; its key."""
        self.limits[name] = limit
        containers = spec.get("containers") or [{}]
        if [port.get("name") for port in containers[0].get("ports", [])][:1] == ["h2c"]:
            self.http2.add(name)
        port = self._port(name)
        thing = {
            "metadata": {"name": name, "labels": {"serving.knative.dev/service": name.rpartition("-")[0] or name}},
            "spec": {
                "containerConcurrency": limit,
                "timeoutSeconds": 300,
                "containers": [
                    {  # with the probe that Knative's webhook writes where there is none
                        "name": "user-container",
                        "ports": [{"containerPort": 8080}],
                        "readinessProbe": {"successThreshold": 1, "tcpSocket": {"port": 0}},
                    }
                ],
                **spec,
            },
        }
        service = {
            "metadata": {"name": f"{name}-private", "labels": labels("Private", name)},
            "spec": {"clusterIP": "", "ports": [{"name": port["name"], "port": 80, "targetPort": port["port"]}]},
        }

        def make() -> None:
            self.api.create("revisions", thing, NAMESPACE)
            self.api.create("services", service, NAMESPACE)
            self.api.create("endpointslices", self._slice(name), NAMESPACE)

        self.call(make)
        return f"{NAMESPACE}/{name}"

    def scale(self, name: str, count: int) -> list[QueueProxy]:
        """Have so many pods, all of them listening."""
        self.do(self._scale(name, count))
        return list(self.pods.get(name, []))

    def close(self) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # --- on its loop ---

    async def _start(self) -> None:
        await self.api.start()
        await self.start_autoscaler()

    async def start_autoscaler(self) -> None:
        self._autoscaler = await serve(self._listen, "127.0.0.1", self.autoscaler_port)
        self.autoscaler_port = next(iter(self._autoscaler.sockets)).getsockname()[1]

    async def stop_autoscaler(self) -> None:
        self._autoscaler.close(code=1012)
        await self._autoscaler.wait_closed()

    async def _stop(self) -> None:
        for task in list(self._scaling):
            task.cancel()
        await self.stop_autoscaler()
        await self.api.stop()
        for pods in self.pods.values():
            for pod in pods:
                await pod.stop()

    async def _listen(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._hear(connection)

    async def _hear(self, connection: ServerConnection) -> None:
        async for frame in connection:
            assert isinstance(frame, bytes)
            for message in WireStatMessages.FromString(frame).messages:
                stat = message.stat
                key = f"{message.namespace}/{message.name}"
                when = asyncio.get_running_loop().time()
                self.stats.append((when, key, stat.average_concurrent_requests, stat.request_count))
                if stat.average_concurrent_requests > 0 and not self.pods.get(message.name):
                    self._wake(message.name)

    def _wake(self, name: str) -> None:
        self.pods[name] = [self._new_pod(name) for _ in range(self.scales_to)]
        task = self._loop.create_task(self._bring_up(name))
        self._scaling.add(task)
        task.add_done_callback(self._scaling.discard)

    async def _bring_up(self, name: str) -> None:
        """As a cluster does it: an address first, then a server, then a program, then the word that it is ready."""
        for pod in self.pods[name]:
            await pod.start()
        self._tell(name)
        await asyncio.sleep(self.start_seconds)
        for pod in self.pods[name]:
            await pod.listen()

    async def _scale(self, name: str, count: int) -> None:
        pods = self.pods.setdefault(name, [])
        leaving = pods[count:]
        del pods[count:]
        while len(pods) < count:
            pod = self._new_pod(name)
            await pod.listen()
            await pod.start()
            pods.append(pod)
        self._tell(name)
        for pod in leaving:
            while pod.in_flight:  # noqa: ASYNC110 - of a plain attribute
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # queue-proxy goes on for a while after its endpoint has gone
            await pod.stop()

    def _new_pod(self, name: str) -> QueueProxy:
        self._numbers += 1
        pod = QueueProxy(self, name, self._numbers, self.limits.get(name, 0))
        pod.tls = self.pod_tls
        return pod

    def _tell(self, name: str) -> None:
        self.api.update("endpointslices", f"{name}-private-x", self._slice(name), NAMESPACE)

    def _port(self, name: str) -> dict[str, Any]:
        """The one of the pods that requests go to."""
        if name in self.http2:
            return {"name": "http2", "port": HTTP2_PORT}
        return {"name": "http", "port": self.pod_port}

    def _slice(self, name: str) -> dict[str, Any]:
        return {
            "metadata": {"name": f"{name}-private-x", "labels": labels("Private", name)},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [pod.host],
                    "conditions": {"ready": pod.listens, "serving": pod.listens, "terminating": False},
                    "targetRef": {"kind": "Pod", "name": pod.uid, "uid": pod.uid},
                }
                for pod in self.pods.get(name, [])
            ]
            or None,
            "ports": [self._port(name), {"name": "http-autometric", "port": 9090}],
        }


def labels(kind: str, name: str) -> dict[str, str]:
    return {
        "kubernetes.io/service-name": f"{name}-{kind.lower()}",
        "networking.internal.knative.dev/serviceType": kind,
        "serving.knative.dev/revision": name,
        "serving.knative.dev/revisionUID": f"uid-{name}",
    }


def ask(
    activator: Activator, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(activator.host, activator.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def request(activator: Activator, name: str, path: str = "/", **more: Any) -> tuple[int, Any]:
    """A request as the ingress sends it."""
    status, body, _ = ask(
        activator,
        path,
        Host=f"{name}.default.example.com",
        Knative_Serving_Namespace="default",
        Knative_Serving_Revision=name,
        **more,
    )
    return status, json.loads(body) if status == 200 else body


def wait_kubelet(activator: Activator, status: int = 200) -> None:
    eventually(lambda: ask(activator, User_Agent="kube-probe/1.34")[0] == status, "the kubelet's probe")
