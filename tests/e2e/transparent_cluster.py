"""A cluster whose clients reach programs by their Services: the proxies of its nodes, and clients that load them."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any

from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.kube_proxy import KubeProxy
from tests.e2e.real_activation_cluster import RealActivationCluster
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.e2e.slice_feeds import FakeSlices, Json, RealSlices, SliceFeed
from tests.e2e.story_cluster import StoryCluster
from tests.kube import real
from tests.kubernetes.fake_nodes import Settings

QUICK = {"settle": "50ms", "dwell": "100ms", "lookInterval": "200ms", "afterMistake": "0s"}
PORTS = [{"name": "http", "port": 80, "targetPort": "http"}]  # of a Service, as its user would write it
OWN_SLICE = "activator-1"


class TransparentCluster(StoryCluster):
    """`proxies`: nodes through which clients reach a Service."""

    proxies: list[KubeProxy]
    activators = 0  # so many have been started
    _is_shown = False

    # --- what each kind of cluster does its own way ---

    @abstractmethod
    def host(self, number: int) -> str:
        """An address for something that is no pod."""

    @abstractmethod
    def feed(self) -> SliceFeed:
        """What one proxy hears."""

    # --- the activator ---

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
            "metadata": {"name": OWN_SLICE, "labels": {"kubernetes.io/service-name": "activator"}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}],
        }
        if self._is_shown:
            self.delete("endpointslices", OWN_SLICE, self.system)
        self.create("endpointslices", thing, self.system)
        self._is_shown = True

    # --- programs, and the way to them ---

    def serve(self, name: str = "hello", annotations: dict[str, str] | None = None, **spec: Any) -> None:
        """The Service of a Deployment."""
        thing = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"selector": {"app": name}, "ports": PORTS, "sessionAffinity": "None", **spec},
        }
        self.create("services", thing)

    def take(self, name: str = "hello", **spec: Any) -> None:
        """A transparent Activation, with times for tests."""
        transparent = {**QUICK, **spec.pop("transparent", {})}
        self.declare(name, hosts=[], port=8080, mode="transparent", transparent=transparent, **spec)

    def proxy(
        self, name: str = "hello", count: int = 1, delays_s: tuple[float, float] = (0.0, 0.02), port: str = "http"
    ) -> None:
        """So many nodes from which this port of the Service is reached."""
        for number in range(count):
            address = (self.host(100 + len(self.proxies)), 8000)
            made = KubeProxy(self.feed(), name, port, address, delays_s, seed=number + 1)
            self.do(made.start())
            self.proxies.append(made)

    def asleep(self, **service: Any) -> None:
        """A Deployment at zero with its Service, and a node from which it is reached."""
        self.deploy()
        self.serve(**service)
        self.proxy()

    def awake(self, pods: int = 1, nodes: int = 1, delays_s: tuple[float, float] = (0.0, 0.02), **service: Any) -> None:
        """The same with pods, that are reached from each node."""
        self.deploy(replicas=pods)
        self.serve(**service)
        self.proxy(count=nodes, delays_s=delays_s)
        self.wait_pods(pods)
        eventually(lambda: all(one.is_serving for one in self.seen), "the pods listen")
        eventually(lambda: all(len(proxy.endpoints.ready) == pods for proxy in self.proxies), "the nodes know them")

    def address(self, node: int = 0) -> tuple[str, int]:
        return (self.host(100 + node), 8000)

    def leads_to(self, node: int = 0) -> list[str]:
        """Where a node sends connections of the Service now."""
        return [host for host, _ in self.proxies[node].endpoints.ready]

    # --- what stands in the cluster ---

    def selector(self, name: str = "hello") -> dict[str, str]:
        found: dict[str, str] = self.get("services", name)["spec"]["selector"]
        return found

    def front_slice(self, name: str = "hello") -> Json | None:
        """Our slice of a Service."""
        try:
            return self.get("endpointslices", f"{name}-activator-ipv4")
        except KeyError:
            return None

    def slice_endpoints(self, name: str = "hello") -> list[str] | None:
        """The addresses in our slice of a Service; None: there is none."""
        found = self.front_slice(name)
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


class FakeTransparentCluster(TransparentCluster, ActivationCluster):
    """On the fake API server."""

    def __init__(self, folder: Path, net: int, settings: Settings | None = None) -> None:
        ActivationCluster.__init__(self, folder, net, settings)
        self.proxies = []

    def host(self, number: int) -> str:
        return f"127.{self.net}.255.{number}"

    def feed(self) -> SliceFeed:
        return FakeSlices(self.api)


class RealTransparentCluster(TransparentCluster, RealActivationCluster):
    """On a real one; with a control plane of its own the activator sees all namespaces, by the chart's ClusterRole."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        RealActivationCluster.__init__(self, folder, settings, whole=not real.NAMED)  # it would scale those of others
        self.proxies = []

    def host(self, number: int) -> str:
        return f"198.19.{200 + os.getpid() % 50}.{number}"

    def feed(self) -> SliceFeed:
        return RealSlices(self._api)


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
