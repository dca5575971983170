"""The sources beside the file: each is a folder of the control plane, and a line here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from activator.app.listening import ServedAddresses
from activator.config.model.file import Config
from activator.config.model.kubernetes import ACTIVATIONS, Kubernetes
from activator.control_plane.plane import ControlPlane
from activator.messages import Command, EnableKnativeHeaders
from activator.runtime.clock import Now
from activator.runtime.extras import need
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng

if TYPE_CHECKING:
    from activator.config.cluster_settings import ClusterSettings
    from activator.control_plane.sources.activations.mode import ActivationsMode
    from activator.control_plane.sources.external_scaler.source import ExternalScalerSource
    from activator.control_plane.sources.knative.mode import KnativeMode
    from activator.control_plane.sources.push.source import PushSource
    from activator.members.membership import Membership

log = logging.getLogger("activator")


class Sources:
    """The sources beside the file.

    `send_command` sends to the data plane; `settled(settings)` receives the settings of a cluster with Knative.
    """

    def __init__(
        self,
        config: Config,
        control: ControlPlane,
        served: ServedAddresses,
        now: Now,
        rng: Rng,
        tasks: TaskGroupOwner,
        send_command: Callable[[Command], None],
        settled: Callable[[ClusterSettings], None],
    ) -> None:
        self._config = config
        self._control = control
        self._served = served
        self._now = now
        self._rng = rng
        self._tasks = tasks
        self._send_command = send_command
        self._settled = settled
        self.cluster_domain = ""  # the domain of a cluster with Knative
        self.push: PushSource | None = None
        self.knative: KnativeMode | None = None
        self.activations: ActivationsMode | None = None

    @property
    def cluster(self) -> KnativeMode | ActivationsMode | None:
        """The source of a cluster, if there is one."""
        return self.knative or self.activations

    async def start(self, membership: Membership | None) -> None:
        """Start the sources that the configuration asks for. Raises StartError."""
        kubernetes = self._config.kubernetes
        if kubernetes is not None and kubernetes.mode == ACTIVATIONS:
            self.activations = self._make_activations()
            if membership is not None:
                self.activations.join(membership.writing)
        elif kubernetes is not None:
            self.knative = self._make_knative()
        if self.cluster is not None:
            await self._control.start_source(self.cluster)
        if kubernetes is not None and kubernetes.external_scaler.listen:
            await self._control.start_source(self._make_external_scaler(kubernetes))
        if self._config.push.listen:
            self.push = self._make_push()
            await self._control.start_source(self.push)

    def configure(self, config: Config) -> None:
        """Apply a changed file to the source of a cluster."""
        self._config = config
        if self.cluster is not None:
            self.cluster.configure(config)

    def _make_push(self) -> PushSource:
        from activator.control_plane.sources.push.source import PushSource  # aiohttp: only where pods report themselves

        worker = self._control.worker
        return PushSource(self._config.push, worker.submit_with_outcome, worker.model, self._control.own_ports.is_own)

    def _make_activations(self) -> ActivationsMode:
        need("kubernetes", "kubernetes mode")
        from activator.control_plane.sources.activations.mode import ActivationsMode

        control = self._control
        return ActivationsMode(
            self._config,
            control.submit,
            self._now,
            time.time,
            self._rng,
            self._tasks,
            control.controllers,
            control.worker.supervision.panicked,
            self._served.serve_entries,
            self._served.families,
        )

    def _make_external_scaler(self, kubernetes: Kubernetes) -> ExternalScalerSource:
        need("kubernetes", "the external scaler")  # gRPC, with threads: only where KEDA asks
        from activator.control_plane.sources.external_scaler.source import ExternalScalerSource

        return ExternalScalerSource(kubernetes.external_scaler.listen, self._now)

    def _make_knative(self) -> KnativeMode:
        # Kubernetes' client and protobuf: only where there is a cluster.
        need("kubernetes", "kubernetes mode")
        from activator.control_plane.sources.knative.environment import read_environment
        from activator.control_plane.sources.knative.mode import KnativeMode

        environment = read_environment(os.environ)
        self.cluster_domain = environment.cluster_domain
        self._send_command(EnableKnativeHeaders(environment.cluster_domain))
        control = self._control
        return KnativeMode(
            environment,
            self._config,
            control.submit,
            control.prober.expedite,
            self._now,
            self._rng,
            self._tasks,
            control.controllers,
            self._settled,
            self._served.serve_tls,
            control.worker.supervision.panicked,
        )
