"""The parts of the activator that process pods, connected as in the program, for `python -m bench pod-flood`."""

from __future__ import annotations

import time

from activator.config.model.file import Config
from activator.config.specs import BalancingSpec, RevisionSpec, RoutingSpec
from activator.control_plane.probes.prober import Prober
from activator.control_plane.probes.tcp_probe import TcpProber
from activator.control_plane.state.supervision import Supervision
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.plane import DataPlane
from activator.data_plane.server.listener import open_socket
from activator.messages import (
    Change,
    Drained,
    Effect,
    FromData,
    Load,
    PlacePod,
    PodDrained,
    PodRefused,
    PodTaken,
    RevisionEnded,
    RevisionSet,
    SetPod,
)
from activator.runtime.tasks import TaskGroupOwner
from bench.processes import BenchError
from lb.rng import Rng
from lb.tracker import READY, RECOVERING

KEY = "default/hello"


class World:
    """The parts that process pods; `routable_s` is the time at which each address could first be picked."""

    def __init__(self, pods: int) -> None:
        self.tasks = TaskGroupOwner(_task_failed)
        rng = Rng(1)
        now = time.monotonic
        self.data = DataPlane(Config(admin=""), now, self._receive, rng, self.tasks)
        supervision = Supervision(rng)
        self.prober = Prober(self.tasks, self._submit, rng, now, self, supervision.panicked, TcpProber(now).probe)
        self.worker = StateWorker(
            now,
            self._apply,
            self.prober.execute,
            lambda source, key: None,
            supervision=supervision,
            before_batch=self.data.write_out,
        )
        self._pods = pods
        self._addresses: dict[str, str] = {}  # by identity
        self.routable_s: dict[str, float] = {}
        self.submitted = self.refused = self.broken = 0

    def pod_failed(self, key: str) -> None:
        """Do nothing: the pods of a flood are asked until they answer."""

    def pod_answered(self, key: str) -> None:
        """Do nothing: a change informs the state worker."""

    async def start(self) -> str:
        self.tasks.start("worker", self.worker.run())
        listener = open_socket("127.0.0.1:0")
        await self.data.start().open(listener)
        spec = RevisionSpec(KEY, routing=RoutingSpec(("hello",)), balancing=BalancingSpec(max_scale=2 * self._pods))
        self.worker.submit(RevisionSet(spec))
        return listener.address

    def source_submits(self, change: Change) -> None:
        self.submitted += 1
        self._submit(change)

    def _submit(self, change: Change) -> None:
        self.worker.submit(change)

    def _receive(self, message: FromData) -> None:
        if isinstance(message, PodRefused):
            if message.dead:
                self.refused += 1
            else:
                self.broken += 1
        if not isinstance(message, Load | PodDrained | PodTaken | Drained | RevisionEnded):
            self._submit(message)

    def _apply(self, effects: list[Effect]) -> None:
        self.data.apply(effects)
        for effect in effects:
            if isinstance(effect, PlacePod):
                self._addresses[effect.identity] = effect.address
            if isinstance(effect, PlacePod | SetPod) and effect.state in {READY, RECOVERING}:
                self.routable_s.setdefault(self._addresses[effect.identity], time.monotonic())


def _task_failed(name: str, error: BaseException) -> None:
    raise BenchError(f"{name} failed: {error!r}")
