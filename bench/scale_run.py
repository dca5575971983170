"""One run of `python -m bench scale`: a reconciler, its source and a user with one API server, phase by phase.

Rules
  1. Own CPU is that of the thread with the reconciler and its watches; the user has a separate thread. The rest of a
     phase's wall-clock time is waiting: for the API, for pods, for the user's calls.
  2. A phase ends when the source's watches show its end. Calls to the API are counted in the client.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.watches import KubeWatches
from activator.runtime.controller_counts import Controllers
from bench.api_server import ReadCpu
from bench.processes import BenchError
from bench.scale_source import ScaleSource, Watching
from bench.scale_techniques import MeasuredReconciler, Techniques
from bench.scale_user import User
from lb.rng import Rng

PHASE_TIMEOUT_S = 600.0
SETTLE_S = 30.0  # after the last pod is ready, until other programs have finished their work for it
POLL_S = 0.05  # between two checks for the end of a phase, which count as own CPU
WRITES = frozenset({"create", "update", "patch", "delete"})
PHASES = ("deploy", "pods-ready", "steady", "half", "back", "delete")


class Phase(msgspec.Struct, frozen=True):
    """The results of one phase.

    `calls`: the reconciler's calls by "verb kind". Events are those that the source received, folded and applied.
    `server_cpu_s`: CPU time of the API server's process for all its work; None if it cannot be read.
    """

    name: str
    wall_s: float
    cpu_s: float
    calls: dict[str, int]
    received: int
    folded: int
    applied: int
    server_cpu_s: float | None = None

    @property
    def writes(self) -> int:
        return sum(count for call, count in self.calls.items() if call.partition(" ")[0] in WRITES)


class Size(msgspec.Struct, frozen=True):
    activations: int
    pods_each: int
    concurrency: int
    steady_s: float
    is_settled: bool = False  # in a real cluster: wait before the steady state


class CountingApi:
    """Counts the reconciler's calls by verb and kind."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()

    async def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        return await self._counted("get", path, self._client.get(path, query))

    async def list_page(self, path: str, query: Mapping[str, str]) -> bytes:
        return await self._counted("list", path, self._client.list_page(path, query))

    async def create(self, collection: str, thing: Mapping[str, Any], field_manager: str) -> bytes:
        return await self._counted("create", collection, self._client.create(collection, thing, field_manager))

    async def apply(self, path: str, wanted: Mapping[str, Any], field_manager: str, force: bool = False) -> bytes:
        return await self._counted("patch", path, self._client.apply(path, wanted, field_manager, force))

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes:
        return await self._counted("patch", path, self._client.merge_patch(path, patch, field_manager))

    async def delete(self, path: str, uid: str, resource_version: str = "") -> bytes:
        return await self._counted("delete", path, self._client.delete(path, uid, resource_version))

    async def _counted(self, verb: str, path: str, call: Awaitable[bytes]) -> bytes:
        rest = path.partition("/namespaces/")[2].split("/")[1:]
        self.calls[f"{verb} {'/'.join(rest[:1] + rest[2:])}"] += 1
        return await call


class Run:
    """A reconciler at work; `profiles` is the folder for the profile of each phase (None: no profiles)."""

    def __init__(
        self,
        kubeconfig: str,
        user: User,
        size: Size,
        techniques: Techniques,
        watching: Watching,
        read_cpu: ReadCpu = lambda: None,
    ) -> None:
        self._user = user
        self._read_cpu = read_cpu
        self._size = size
        self.failures: list[BaseException] = []
        self.client = KubeClient(Credentials({"KUBECONFIG": kubeconfig}, time.monotonic), "activator/bench-scale")
        self.api = CountingApi(self.client)
        self.controllers = Controllers(time.monotonic)
        self.reconciler = MeasuredReconciler(
            self.api,
            self.controllers,
            time.monotonic,
            time.time,
            Rng(os.getpid()),
            lambda report: None,
            self._failed,
            passes_max=size.concurrency,
            techniques=techniques,
        )
        self.source = ScaleSource(user.namespace, self.reconciler.want, watching)
        self.watches = KubeWatches(self.client, time.monotonic, Rng(1), self._failed)
        self.names = [f"bench-{number:05d}" for number in range(size.activations)]
        self.profiles: Path | None = None
        self.phases: list[Phase] = []

    def _failed(self, name: str, error: BaseException) -> None:
        self.failures.append(error)

    async def all(self) -> list[Phase]:
        """Run every phase, in order."""
        user, names, each = self._user, self.names, self._size.pods_each
        self.source.watch(self.watches)
        await self._until(lambda: self.watches.synced)
        await self._phase("deploy", lambda: user.deploy(names, each), self._all_written)
        await self._phase("pods-ready", _nothing, lambda: self._all_at(each))
        if self._size.is_settled:
            await asyncio.sleep(SETTLE_S)
        await self._phase("steady", self._steady, lambda: True)
        half = max(each // 2, 1)
        await self._phase("half", lambda: user.scale(names, half), lambda: self._all_at(half))
        await self._phase("back", lambda: user.scale(names, each), lambda: self._all_at(each))
        await self._phase("delete", lambda: user.delete(names), self._all_gone)
        return self.phases

    async def close(self) -> None:
        await self.watches.close()
        await self.reconciler.close()
        await self.client.close()

    # --- ends of phases ---------------------------------------------------------------------------------------------

    def _all_written(self) -> bool:
        """Return True if every Activation has its Service, its replicas and a status of its generation."""
        source = self.source
        return (
            source.owned_services == len(self.names)
            and len(source.activations) == len(self.names)
            and all(one.spec.replicas == self._size.pods_each for one in source.deployments.values())
            and all(one.status.observed_generation == one.metadata.generation for one in source.activations.values())
        )

    def _all_at(self, replicas: int) -> bool:
        source = self.source
        return len(source.activations) == len(self.names) and all(
            one.status.ready == replicas
            and one.status.wanted == replicas
            and one.status.observed_generation == one.metadata.generation
            for one in source.activations.values()
        )

    def _all_gone(self) -> bool:
        source = self.source
        return not (source.activations or source.services or source.slices) and not len(self.reconciler)

    async def _steady(self) -> None:
        """Change one object without a change of its spec, and wait for the length of the steady phase."""
        await self._user.touch(self.names[0], str(time.monotonic()))
        await asyncio.sleep(self._size.steady_s)

    # --- one phase --------------------------------------------------------------------------------------------------

    async def _phase(self, name: str, begin: Callable[[], Awaitable[None]], is_over: Callable[[], bool]) -> None:
        source = self.source
        calls, events = Counter(self.api.calls), (source.received, source.folded, source.applied)
        wall_s, cpu_s, server_s = time.perf_counter(), time.thread_time(), self._read_cpu()
        async with self._profiled(name):
            await begin()
            await self._until(is_over)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        server_after_s = self._read_cpu()
        server_cpu_s = None if server_s is None or server_after_s is None else server_after_s - server_s
        after = (source.received, source.folded, source.applied)
        received, folded, applied = (now - before for now, before in zip(after, events))
        made = dict(sorted((self.api.calls - calls).items()))
        self.phases.append(Phase(name, wall_s, cpu_s, made, received, folded, applied, server_cpu_s))

    @asynccontextmanager
    async def _profiled(self, name: str) -> AsyncIterator[None]:
        if self.profiles is None:
            yield
            return
        profile = cProfile.Profile(time.thread_time)  # the clock of own CPU
        profile.enable()
        try:
            yield
        finally:
            profile.disable()
            profile.dump_stats(self.profiles / f"scale-{name}.prof")

    async def _until(self, is_over: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PHASE_TIMEOUT_S):
                while not (is_over() and self.reconciler.is_quiet):
                    if self.failures:
                        raise BenchError(f"a task failed: {self.failures[0]!r}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise BenchError(f"a phase was not over within {PHASE_TIMEOUT_S:.0f} s") from error


async def _nothing() -> None:
    pass
