"""A cluster whose clients reach programs by their Services: the proxies of its nodes, and clients that load them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.control_plane.sources.kubernetes.fake_nodes import Settings
from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.kube_proxy import KubeProxy
from tests.e2e.running import PATIENCE_S, Activator

SYSTEM = "activator"
QUICK = {"settle": "50ms", "dwell": "100ms", "lookInterval": "200ms", "afterMistake": "0s"}


class TransparentCluster(ActivationCluster):
    """`nodes`: proxies through which clients reach a Service."""

    def __init__(self, folder: Path, net: int, settings: Settings | None = None) -> None:
        super().__init__(folder, net, settings)
        self.proxies: list[KubeProxy] = []
        self.activators = 0

    def host(self, number: int) -> str:
        """An address for something that is no pod."""
        return f"127.{self.net}.255.{number}"

    def transparent_activator(self, **more: Any) -> Activator:
        """One that its own Service shows."""
        self.activators += 1
        host = self.host(self.activators)
        found = self.activator(listen=f"{host}:0", **more)
        self.show_activator(host)
        return found

    def show_activator(self, *hosts: str) -> None:
        """These are the ready replicas of the activator."""
        endpoints = [
            {"addresses": [host], "conditions": {"ready": True, "serving": True}, "nodeName": "node-0", "zone": "a"}
            for host in hosts
        ]
        thing = {
            "metadata": {"name": "activator-1", "labels": {"kubernetes.io/service-name": "activator"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}],
        }

        def show() -> None:
            if (SYSTEM, "activator-1") in self.api.collection("endpointslices").objects:
                self.api.delete("endpointslices", "activator-1", SYSTEM)
            self.api.create("endpointslices", thing, SYSTEM)

        self.call(show)

    def serve(self, name: str = "hello", annotations: dict[str, str] | None = None, **spec: Any) -> None:
        """The Service of a Deployment, as its user would write it."""
        ports = [{"name": "http", "port": 80, "targetPort": "http"}]
        thing = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"selector": {"app": name}, "ports": ports, "sessionAffinity": "None", **spec},
        }
        self.call(lambda: self.api.create("services", thing))

    def take(self, name: str = "hello", **spec: Any) -> None:
        """A transparent Activation, with times for tests."""
        transparent = {**QUICK, **spec.pop("transparent", {})}
        self.declare(name, hosts=[], port=8080, mode="transparent", transparent=transparent, **spec)

    def proxy(self, name: str = "hello", count: int = 1, delays_s: tuple[float, float] = (0.0, 0.02)) -> None:
        """So many nodes from which the Service is reached."""
        for number in range(count):
            address = (self.host(100 + len(self.proxies)), 8000)
            made = KubeProxy(self.api, name, "http", address, delays_s, seed=number + 1)
            self.do(made.start())
            self.proxies.append(made)

    def address(self, node: int = 0) -> tuple[str, int]:
        return (self.host(100 + node), 8000)

    def selector(self, name: str = "hello") -> dict[str, str]:
        found: dict[str, str] = self.get("services", name)["spec"]["selector"]
        return found

    def slice_endpoints(self, name: str = "hello") -> list[str] | None:
        """The addresses in our slice of a Service; None: there is none."""
        found = self.call(
            lambda: self.api.collection("endpointslices").objects.get(("default", f"{name}-activator-ipv4"))
        )
        return None if found is None else [one["addresses"][0] for one in found.get("endpoints") or ()]

    def position(self, name: str = "hello") -> str:
        """Where the requests of a Service go, by what stands in the cluster."""
        endpoints = self.slice_endpoints(name)
        alone = "activator.dev/in-path" in self.selector(name)
        if endpoints is None:
            return "alone, without a slice" if alone else "untouched"
        return ("alone" if alone else "beside") if endpoints else "out"

    def close(self) -> None:
        for proxy in self.proxies:
            self.do(proxy.stop())
        super().close()


def visit(address: tuple[str, int], path: str = "/", headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """One request on a connection of its own. Raises OSError or HTTPException where it fails."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status == 200 else body.decode()
    finally:
        connection.close()


class Visitors:
    """Clients that ask again and again until `stop`: some on fresh connections, some on kept ones."""

    def __init__(self, cluster: TransparentCluster, fresh: int = 2, kept: int = 1, pause_s: float = 0.005) -> None:
        self._over = threading.Event()
        self._pause_s = pause_s
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        nodes = len(cluster.proxies)
        self._threads = [
            threading.Thread(target=self._fresh, args=(cluster.address(number % nodes),)) for number in range(fresh)
        ]
        self._threads += [
            threading.Thread(target=self._kept, args=(cluster.address(number % nodes),)) for number in range(kept)
        ]
        for one in self._threads:
            one.start()

    def stop(self) -> None:
        self._over.set()
        for one in self._threads:
            one.join(PATIENCE_S)

    def _fresh(self, address: tuple[str, int]) -> None:
        while not self._over.is_set():
            try:
                self._note(*visit(address))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{time.monotonic():.3f} fresh: {error!r}")
            self._over.wait(self._pause_s)

    def _kept(self, address: tuple[str, int]) -> None:
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        while not self._over.is_set():
            try:
                connection.request("GET", "/kept")
                answer = connection.getresponse()
                body = answer.read()
                self._note(answer.status, json.loads(body) if answer.status == 200 else body.decode())
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{time.monotonic():.3f} kept: {error!r}")
                connection.close()
            self._over.wait(self._pause_s)
        connection.close()

    def _note(self, status: int, body: Any) -> None:
        self.answers[str(status)] += 1
        if status != 200:
            self.failures.append(f"{time.monotonic():.3f}: {status} {body}")
