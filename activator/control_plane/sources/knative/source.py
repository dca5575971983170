"""Knative's objects, gathered by revision and submitted as changes.

Rules
  1. A handler of a watch only stores the object and marks the revision (object_handlers.py). The changes are
     worked out once per revision at the end of the loop's turn, however many objects arrived in it.
  2. Readiness waits for the first lists of the kinds that routing depends on. Afterwards the last known state is served
     for as long as the API is unreachable.
  3. Settings are applied while running: a changed ConfigMap takes effect on every revision.
  4. An internal error while a revision is worked out affects that revision only. It is counted as a panic, and the work
     is retried with the backoff of the state worker's panics, or at once when another object of the revision arrives.

Source: knative.dev/serving cmd/activator/main.go, pkg/activator/net (v1.23).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from activator.config import cluster_settings
from activator.config.cluster_settings import ClusterSettings
from activator.config.model.pods import PodTls
from activator.config.specs import RevisionSpec
from activator.control_plane.sources.cluster.reconcile_queue import ReconcileQueue
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.object_handlers import (
    ConfigObjects,
    EndpointsObjects,
    RevisionObjects,
    ServiceObjects,
    SliceObjects,
)
from activator.control_plane.sources.knative.revision_backends import RevisionBackends
from activator.control_plane.sources.knative.revision_specs import SpecMaker
from activator.control_plane.sources.pod_answers import PodAnswers
from activator.kubernetes.objects import Revision
from activator.messages import (
    Change,
    DropRevision,
    Effect,
    PlacePod,
    RebuildPods,
    RebuildRevision,
    RevisionGone,
    SetPod,
    WithdrawPod,
)
from activator.runtime.clock import NEVER, Defer, Later
from activator.runtime.controller_counts import Controllers
from lb.tracker import NOT_READY, PENDING

log = logging.getLogger("activator.knative")

# The controllers whose passes are counted.
_REVISION: Final = "revision"
_ENDPOINTS: Final = "endpoints"

_UNPROVEN: Final = frozenset({PENDING, NOT_READY})  # states of pods that do not answer, or are not probed


class KnativeListener(Protocol):
    """Receives what the source reports beside its changes."""

    def settings_changed(self, settings: ClusterSettings) -> None:
        """Handle new settings of the cluster."""

    def pass_done(self, key: str) -> None:
        """Handle a pass of the revision, whose state may have changed."""

    def tls_of(self, namespace: str) -> PodTls | None:
        """Return how to connect to the pods of a namespace; None: without TLS."""


class KnativeSource:
    """The objects of the mode `knative`.

    `submit` takes changes. `defer` runs a callable in the loop's next turn; `later` is the loop's `call_later`.
    `panicked(key, work, error, now_s)` counts an internal error and returns how long to wait, in seconds.
    """

    def __init__(
        self,
        environment: KnativeEnvironment,
        maker: SpecMaker,
        shares: bool,
        submit: Callable[[Change], None],
        defer: Defer,
        listener: KnativeListener,
        controllers: Controllers,
        panicked: Callable[[str, object, object, float], float],
        later: Later,
    ) -> None:
        self._environment = environment
        self._maker = maker
        self._shares = shares
        self._submit = submit
        self._listener = listener
        self._controllers = controllers
        self._panicked = panicked
        for name in (_REVISION, _ENDPOINTS):
            controllers.register(name)
        self.settings = ClusterSettings()
        self.answers = PodAnswers(self._answers_changed)
        self.revisions: dict[str, RevisionBackends] = {}
        self._maps: dict[str, Mapping[str, str]] = {}  # ConfigMaps by name
        self.passes = ReconcileQueue(self._run_pass, self._record_failed_pass, defer, later, controllers)
        self.revision_objects = RevisionObjects(partial(self.get_and_mark, controller=_REVISION), self.revision_gone)
        self.slice_objects = SliceObjects(self.get_and_mark, self.forget_if_empty)
        self.endpoints_objects = EndpointsObjects(self.get_and_mark, self.forget_if_empty)
        self.service_objects = ServiceObjects(self.get_and_mark, self.forget_if_empty)
        self.config_objects = ConfigObjects(self.set_config_map)

    # --- called by handlers ---

    def get_and_mark(self, key: str, controller: str = _ENDPOINTS) -> RevisionBackends:
        """Return the revision's state, created if necessary, and mark it for this controller."""
        backends = self.revisions.get(key)
        if backends is None:
            backends = self.revisions[key] = RevisionBackends(key, self._environment.pod_ip, self._shares)
        self.mark(key, controller)
        return backends

    def mark(self, key: str, controller: str = _ENDPOINTS) -> None:
        """Schedule a pass: something of this revision may have changed."""
        self.passes.mark(key, controller)

    def mark_all(self) -> None:
        for key in self.revisions:
            self.mark(key, _REVISION)

    def is_failing(self, key: str) -> bool:
        """Return True if the conditions of this revision show that it cannot start."""
        backends = self.revisions.get(key)
        return backends is not None and backends.failing

    def is_behind(self) -> bool:
        """Return True if an object has been stored whose changes have not been worked out."""
        return self.passes.is_behind()

    def relist(self, key: str) -> None:
        """Have everything of this revision submitted again: changes of it were lost."""
        backends = self.revisions.get(key)
        if backends is None or backends.revision is None:
            self._submit(RevisionGone(key))
        else:
            backends.forget_submitted()
            self.mark(key)

    def revision_gone(self, key: str) -> None:
        backends = self.revisions.get(key)
        if backends is not None:
            backends.removed()
        self.passes.cancel_later_pass(key)
        self._submit(RevisionGone(key))
        self.forget_if_empty(key)
        self._listener.pass_done(key)

    def forget_if_empty(self, key: str) -> None:
        """Drop the revision's state if nothing of it is left."""
        backends = self.revisions.get(key)
        if backends is not None and backends.is_empty():
            del self.revisions[key]
            self.passes.cancel_later_pass(key)

    def set_config_map(self, name: str, data: Mapping[str, str]) -> None:
        """Apply the content of a ConfigMap."""
        self._maps[name] = data
        self._read_settings()

    def _read_settings(self) -> None:
        """Read all settings again."""
        environment, maps, warn = self._environment, self._maps, log.warning
        settings = self.settings
        settings = cluster_settings.read_network(settings, maps.get(cluster_settings.NETWORK, {}), warn)
        settings = cluster_settings.read_autoscaler(settings, maps.get(cluster_settings.AUTOSCALER, {}), warn)
        settings = cluster_settings.read_observability(settings, maps.get(environment.observability_config, {}), warn)
        settings = cluster_settings.read_logging(settings, maps.get(environment.logging_config, {}), warn)
        if settings != self.settings:
            self.settings = settings
            self._listener.settings_changed(settings)
            self.mark_all()

    def applied(self, effect: Effect) -> None:
        """Record an effect, which has changed the model; mark the revision if that may change its shares."""
        self.answers.applied(effect)
        backends = self.revisions.get(effect.key) if self._shares else None
        if backends is None:
            return
        if type(effect) is SetPod or type(effect) is PlacePod or type(effect) is WithdrawPod:
            backends.answered(effect.identity)
        elif type(effect) is DropRevision:
            backends.answers_lost()
        elif (type(effect) is RebuildRevision or type(effect) is RebuildPods) and effect.complete:
            backends.answers_lost()  # any effect before it may have been lost
            self.mark(effect.key)
        # A pod that stops answering is left out after a while; one that was left out is shared out again.
        if type(effect) is SetPod and (backends.leaves_out or effect.state in _UNPROVEN):
            self.mark(effect.key)

    def requests_wait(self, key: str, waits: bool) -> None:
        """Record whether requests of this revision wait for a pod."""
        backends = self.revisions.get(key)
        if backends is not None and backends.requests_wait(waits, self._controllers.now()):
            self.mark(key)

    # --- changes ---

    def _run_pass(self, key: str) -> float:
        """Submit the revision's changes; return when the next pass is due without an event."""
        backends = self.revisions.get(key)
        if backends is None:
            return NEVER
        mode, now_s = self.settings.mesh_mode, self._controllers.now()
        for change in backends.take_changes(self._make, mode, self.answers, now_s):
            self._submit(change)
        self._listener.pass_done(key)
        return backends.due_s

    def _record_failed_pass(self, key: str, error: Exception) -> float:
        backends = self.revisions.get(key)
        if backends is not None:
            backends.forget_submitted()  # some changes may have been made and not submitted
        backoff_s = self._panicked(key, "what the cluster says of it", error, self._controllers.now())
        log.error("%s: the pass failed; next attempt in %.1f s", key, backoff_s, exc_info=error)
        self._listener.pass_done(key)
        return backoff_s

    def _answers_changed(self, key: str) -> None:
        """Mark a revision whose first pod answers, or whose last one no longer does, if its changes depend on that."""
        backends = self.revisions.get(key)
        if backends is not None and (self._shares or backends.failing):
            self.mark(key)
        self._listener.pass_done(key)

    def _make(self, revision: Revision) -> RevisionSpec:
        return self._maker.make(revision, self.settings, self._listener.tls_of(revision.metadata.namespace))
