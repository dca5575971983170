"""The mode `knative`, in which this program replaces Knative's activator: connects its sources, reports and probes.

    watches ──► KnativeSource ──► changes ──► state worker
    loads ──► ConcurrencyReporter ──► AutoscalerStream
    (the autoscaler is unreachable while requests wait) ──► ScaleFallback ──► the revision's Deployment

The mode is part of the control plane: it exists once, whatever the number of workers. `tests/knative_contract.md`
has the contract, item by item.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.kubernetes import SHARING_KNATIVE, Kubernetes
from activator.config.model.listeners import Listener
from activator.config.model.pods import PodTls
from activator.config.policy_names import PolicyNames
from activator.config.zones import zone_of
from activator.control_plane.scaling.autoscaler_stream import AutoscalerStream
from activator.control_plane.scaling.concurrency import ConcurrencyReporter
from activator.control_plane.scaling.scale_fallback import ScaleFallback
from activator.control_plane.sources.cluster.cluster_mode import ClusterMode, is_refused
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.internal_tls import (
    AUTHORITIES,
    BUNDLE_LABEL,
    SECRET,
    BundleObjects,
    InternalTls,
    SecretObjects,
)
from activator.control_plane.sources.knative.mesh_fallback import MeshFallback, StatusProber
from activator.control_plane.sources.knative.object_handlers import PRIVATE, REVISION_LABEL, SERVICE_TYPE
from activator.control_plane.sources.knative.revision_specs import SpecMaker
from activator.control_plane.sources.knative.source import KnativeSource
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    REVISIONS,
    SECRETS,
    SERVICES,
    Selection,
)
from activator.messages import Change, DropRevision, Effect, Load
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import TaskGroupOwner, pause, wait_for
from lb.registry import default_name
from lb.rng import Rng

CONCURRENCY_REPORT_S: Final = 1.0  # between two reports to Knative's autoscaler
SCALE_CHECK_S: Final = 1.0  # between two checks for an unreachable autoscaler while requests wait
MESH_CHECK_S: Final = 60.0  # the longest time between two checks for meshes
MESH_REPAIR_S: Final = 1.0  # the pause after an internal error in such a check

log = logging.getLogger("activator.knative")

_AUTOSCALER_PORT: Final = 8080
_TLS_PORT: Final = 8112


class KnativeMode(ClusterMode):
    """The source of the mode `knative`.

    `submit` takes changes for the state worker. `expedite` has a revision's pods probed at once. `on_settings` receives
    new settings. `serve_tls` opens a listener, and is called again when its certificate changes. `panicked` is as for
    the source.
    """

    pod_label = REVISION_LABEL

    def __init__(
        self,
        environment: KnativeEnvironment,
        config: Config,
        submit: Callable[[Change], None],
        expedite: Callable[[str], None],
        now: Now,
        rng: Rng,
        tasks: TaskGroupOwner,
        controllers: Controllers,
        on_settings: Callable[[ClusterSettings], None],
        serve_tls: Callable[[Listener], None],
        panicked: Callable[[str, object, object, float], float],
    ) -> None:
        kubernetes = config.kubernetes or Kubernetes()
        super().__init__(kubernetes, now, rng, tasks)
        self.environment = environment
        self._shares = kubernetes.sharing == SHARING_KNATIVE
        self._expedite = expedite
        self._host = _host_of(config)
        self._on_settings = on_settings
        self._serve_tls = serve_tls
        self.tls: InternalTls | None = None
        self._tls_at_start = False  # on in the first list of settings: all pods are connected to over TLS
        self._tls_reflectors: list[Reflector[Any]] = []  # for TLS that was switched on while serving
        maker = self._maker = SpecMaker(
            environment.cluster_domain,
            config.trailing_fragmentation_threshold,
            config.health,
            default_name,
            PolicyNames(),
            zone_of(config),
        )
        loop = asyncio.get_running_loop()
        self.source = KnativeSource(
            environment,
            maker,
            self._shares,
            submit,
            loop.call_soon,
            self,
            controllers,
            panicked,
            loop.call_later,
        )
        self._endpoints: list[Reflector[Any]] = []
        self._settings: Reflector[Any] | None = None
        url = kubernetes.autoscaler or (
            f"ws://autoscaler.{environment.system_namespace}.svc.{environment.cluster_domain}:{_AUTOSCALER_PORT}"
        )
        self._prober = StatusProber(environment.probe_timeout_s)
        self.fallback = MeshFallback(
            self.source, now, self._prober.probe, environment.probe_timeout_s, self._tasks.start
        )
        self.stream = AutoscalerStream(url, environment.pod_name, self._report_current_loads, now, rng, tasks.on_error)
        self.reporter = ConcurrencyReporter(now, self.stream.send)
        self.scale_fallback = ScaleFallback(
            self.client,
            float(kubernetes.scale_fallback),
            self.stream.unreachable_for_s,
            now,
            self._tasks.start,
            controllers,
        )

        self.client.outage.on_end(self.scale_fallback.allow_attempts)

    # --- life ---

    def configure(self, config: Config) -> None:
        """Apply a new configuration: all specifications are made again."""
        self._maker.configure(config.trailing_fragmentation_threshold, config.health, zone_of(config))
        self.source.mark_all()

    async def start(self) -> None:
        """Start the watches and the reports."""
        namespace = self.environment.system_namespace
        self._settings, _ = self._watch(Selection(CONFIG_MAPS, namespace), self.source.config_objects)
        self._watch(Selection(REVISIONS), self.source.revision_objects)
        slices = self._watch(Selection(ENDPOINT_SLICES, labels=SERVICE_TYPE), self.source.slice_objects)
        endpoints = self._watch(Selection(ENDPOINTS, labels=SERVICE_TYPE), self.source.endpoints_objects)
        self._endpoints, self._pod_relisters = [slices[0], endpoints[0]], [slices[1], endpoints[1]]
        self._watch(Selection(SERVICES, labels=f"{SERVICE_TYPE}={PRIVATE}"), self.source.service_objects)
        self._tasks.start("autoscaler", self.stream.run())
        self._start_checks()

    async def close(self) -> None:
        await self._tasks.close()
        await self.watches.close()
        await self._prober.close()
        if self.tls is not None:
            self.tls.close()
        await self.client.close()

    def pending(self) -> list[str]:
        waiting = super().pending()
        if self.tls is not None and self._tls_at_start:
            if not self.tls.has_certificate:
                waiting.append(f"a certificate in the Secret {SECRET}")
            if not self.tls.had_authority:
                waiting.append(f"an authority for pods' certificates: {AUTHORITIES}")
        return waiting

    def _may_do_without(self, reflector: Reflector[Any]) -> bool:
        """Return True if the reflector is synced, or refused while the other of EndpointSlices and Endpoints is synced.

        Also True for objects of TLS that is switched on while serving: until they arrive, pods are reached without TLS.
        Knative's own role has no right to EndpointSlices, and newer clusters may have no Endpoints.
        """
        if reflector.synced or reflector in self._tls_reflectors:
            return True
        return is_refused(reflector) and reflector in self._endpoints and any(one.synced for one in self._endpoints)

    def _is_behind(self) -> bool:
        return self.source.is_behind()

    # --- from the control plane ---

    def receive_load(self, load: Load) -> None:
        """Report a load to the autoscaler; while requests wait or are refused, have pods probed and compared sooner."""
        self.reporter.load(load)
        if self.source.is_failing(load.key):
            self._expedite(load.key)  # requests arrive, although they are refused
        if self._shares:
            self.source.requests_wait(load.key, load.queued > 0)
        waits = load.queued > 0 and not self.source.answers.has_answer(load.key)
        if waits != (load.key in self._awaited):
            self._await_pods(load.key, waits)
            if waits:
                self.reporter.poke(load.key)

    def applied(self, effects: list[Effect]) -> None:
        """Handle effects; a dropped revision's reports are forgotten here, because no further load of it can arrive."""
        for effect in effects:
            self.source.applied(effect)
            if isinstance(effect, DropRevision):
                self.reporter.drop_revision(effect.key)
                if effect.key in self._awaited:
                    self._await_pods(effect.key, False)

    def resubmit(self, key: str) -> None:
        self.source.relist(key)

    # --- from the source (`KnativeListener`) ---

    def pass_done(self, key: str) -> None:
        self.fallback.mark_changed(key)

    def settings_changed(self, settings: ClusterSettings) -> None:
        if settings.internal_tls and self.tls is None:
            self._begin_tls()
        self._on_settings(settings)

    def _begin_tls(self) -> None:
        """Connect to pods over TLS, from now on or from the first authority on, and never without it again."""
        self._tls_at_start = self._settings is None or not self._settings.synced
        if not self._tls_at_start:
            log.info("system-internal-tls: pods are reached without TLS until there is an authority in %s", AUTHORITIES)
        namespace = self.environment.system_namespace
        if self.environment.tls_ignored:
            names = ", ".join(self.environment.tls_ignored)
            log.warning("these variables are set and have no effect: %s; remove them (docs/knative.md)", names)
        self.tls = InternalTls(f"{self._host}:{_TLS_PORT}", self._tls_changed, self.environment.tls_min_version)
        secrets = Selection(SECRETS, namespace, fields=f"metadata.name={SECRET}")
        bundles = Selection(CONFIG_MAPS, namespace, labels=BUNDLE_LABEL)
        watches = (self._watch(secrets, SecretObjects(self.tls)), self._watch(bundles, BundleObjects(self.tls)))
        if not self._tls_at_start:
            self._tls_reflectors = [reflector for reflector, _ in watches]

    def _tls_changed(self) -> None:
        tls = self.tls
        if tls is not None and tls.has_certificate:
            self._serve_tls(tls.listener)
        self.source.mark_all()

    def tls_of(self, namespace: str) -> PodTls | None:
        tls = self.tls
        return tls.of(namespace) if tls is not None and (self._tls_at_start or tls.had_authority) else None

    def _report_current_loads(self) -> None:
        self.reporter.connected()

    def _start_checks(self) -> None:
        tasks = self._tasks
        tasks.repeat("reports", CONCURRENCY_REPORT_S, self.reporter.report, retry_max_s=CONCURRENCY_REPORT_S)
        tasks.repeat("scale fallback", SCALE_CHECK_S, self._check_autoscaler, retry_max_s=SCALE_CHECK_S)
        tasks.keep_running("mesh", self._detect_meshes, Backoff(MESH_REPAIR_S, MESH_REPAIR_S))

    async def _detect_meshes(self) -> None:
        due_s = self.fallback.step()
        if due_s > 0.0:
            await wait_for(self.fallback.has_work, min(due_s, MESH_CHECK_S))
        else:
            await pause(0.0)

    def _check_autoscaler(self) -> None:
        self.scale_fallback.start_attempts(list(self._awaited))


def _host_of(config: Config) -> str:
    """Return the host of the first listener, which the other listeners use too."""
    first = config.listen[0] if isinstance(config.listen, list) else config.listen
    address = first if isinstance(first, str) else first.address
    return address.rpartition(":")[0]
