"""The user of `python -m bench scale`: it creates, changes and deletes Activations in a thread with its own event loop.

Its CPU time belongs to its thread and is therefore not part of the activator's figure.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from activator.config.crd import make_definition
from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.errors import KubeError, RefusedError
from bench.processes import BenchError
from tests.control_plane.reconcile.reconcile_world import activation
from tests.kube.simulated_nodes import as_simulated
from tests.kubernetes.fake_controllers import deployment

TRIGGER = "activator.dev/reconcile-trigger"
MANAGER = "bench-user"
CALL_TIMEOUT_S = 300.0
POLL_S = 0.1
ACTIVATIONS = "activator.dev/v1alpha1"


def own_service(name: str) -> dict[str, Any]:
    """Return the Service of a user's Deployment; headless, since clusters for tests may have few addresses."""
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {"metadata": {"name": name}, "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": ports}}


class User:
    """The user; methods return when the API has answered all calls, and are called from the measuring loop."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self.namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bench user", daemon=True)
        self._client: KubeClient | None = None
        self._thread.start()

    async def prepare(self) -> None:
        """Create the definition and the namespace if they do not exist; return when the kind is served."""
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await self._run(self._made(definitions, make_definition()))
        await self._run(self._made("/api/v1/namespaces", {"metadata": {"name": self.namespace}}))
        await self._run(self._until(self._path(ACTIVATIONS, "activations"), lambda found: True))

    async def settle(self) -> None:
        """Wait until the garbage collector has removed all dependent objects."""
        await self._run(self._until(self._path("v1", "pods"), lambda found: not found["items"]))

    async def deploy(self, names: list[str], replicas: int) -> None:
        async def one(client: KubeClient, name: str) -> None:
            target = deployment(name)
            target["spec"]["template"] = as_simulated(target["spec"]["template"])
            await client.create(self._path("apps/v1", "deployments"), target, MANAGER)
            await client.create(self._path("v1", "services"), own_service(name), MANAGER)
            thing = activation(name, scaling={"min": replicas})
            await client.create(self._path(ACTIVATIONS, "activations"), thing, MANAGER)

        await self._each(names, one)

    async def scale(self, names: list[str], replicas: int) -> None:
        await self._each(
            names, lambda client, name: self._patched(client, name, {"spec": {"scaling": {"min": replicas}}})
        )

    async def touch(self, name: str, value: str) -> None:
        patch = {"metadata": {"annotations": {TRIGGER: value}}}
        await self._each([name], lambda client, name: self._patched(client, name, patch))

    async def delete(self, names: list[str]) -> None:
        async def one(client: KubeClient, name: str) -> None:
            for version, plural in ((ACTIVATIONS, "activations"), ("v1", "services"), ("apps/v1", "deployments")):
                path = f"{self._path(version, plural)}/{name}"
                thing = json.loads(await client.get(path))
                await client.delete(path, thing["metadata"]["uid"])

        await self._each(names, one)

    def close(self) -> None:
        async def end() -> None:
            if self._client is not None:
                await self._client.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(CALL_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on its thread ----------------------------------------------------------------------------------------------

    def _path(self, version: str, plural: str) -> str:
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{prefix}/namespaces/{self.namespace}/{plural}"

    async def _patched(self, client: KubeClient, name: str, patch: dict[str, Any]) -> None:
        await client.merge_patch(f"{self._path(ACTIVATIONS, 'activations')}/{name}", patch, MANAGER)

    async def _made(self, collection: str, thing: dict[str, Any]) -> None:
        try:
            await self._at().create(collection, thing, MANAGER)
        except RefusedError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _until(self, path: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until `holds` is true for a list of the API."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                try:
                    if holds(json.loads(await self._at().list_page(path, {"limit": "1"}))):
                        return
                except RefusedError as error:
                    if error.status != 404:
                        raise
                await asyncio.sleep(POLL_S)

    def _at(self) -> KubeClient:
        if self._client is None:
            self._client = KubeClient(Credentials({"KUBECONFIG": self._kubeconfig}, time.monotonic), "activator/bench")
        return self._client

    async def _each(self, names: list[str], call: Callable[[KubeClient, str], Awaitable[None]]) -> None:
        async def all_of_them() -> None:
            client = self._at()
            await asyncio.gather(*(call(client, name) for name in names))

        await self._run(all_of_them())

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        except KubeError as error:
            raise BenchError(f"the API refuses the user: {error}") from error
