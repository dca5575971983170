"""The parts that the modes of a cluster share: client, watches, readiness, and reconciliation for waiting requests."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from activator.config.model.kubernetes import Kubernetes
from activator.control_plane.sources.source import Source
from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.object_store import Handler
from activator.kubernetes.objects import Object
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.relister import Relister
from activator.kubernetes.resources import Scope, Selection
from activator.kubernetes.watches import KubeWatches
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng

_REFUSED: Final = frozenset({"403", "404"})  # kinds of errors: no right, or no such kind in this cluster


class ClusterMode(Source):
    """A source whose revisions are objects of a cluster.

    Every revision is the cluster's: a revision that the cluster does not have is removed.
    """

    pod_label: ClassVar[str]  # the label of a pod's slices that holds the name of its revision

    def __init__(self, kubernetes: Kubernetes, now: Now, rng: Rng, tasks: TaskGroupOwner) -> None:
        self._now = now
        self._tasks = TaskGroupOwner(tasks.on_error)
        self._reconcile_interval_s = float(kubernetes.reconcile_interval)
        self.client = KubeClient(Credentials(os.environ, now), "activator")
        self.watches = KubeWatches(self.client, now, rng, tasks.on_error)
        self._pod_relisters: list[Relister[Any]] = []  # for the objects that hold pods' addresses
        self._awaited: dict[str, Scope] = {}  # revisions whose requests wait for a pod

    def view_age_s(self) -> float:
        """Return the age of the oldest watch's state, in seconds."""
        return self.watches.age_s(self._now())

    def pending(self) -> list[str]:
        """Return the inputs of routing that have not been received yet."""
        waiting = [
            f"the first list of {watch.name}" for watch in self.watches.reflectors if not self._may_do_without(watch)
        ]
        if self._is_behind():
            waiting.append("the listed objects have not been submitted yet")
        return waiting

    def declares(self, key: str) -> bool:
        return True

    def _watch(
        self, selection: Selection[Object], handler: Handler[Object]
    ) -> tuple[Reflector[Object], Relister[Object]]:
        return self.watches.add(selection, handler, self._reconcile_interval_s)

    def _await_pods(self, key: str, waits: bool) -> None:
        """Compare the pods of the revision with the API every second while requests wait for one."""
        scope = self._awaited.pop(key, None)
        if waits:
            namespace, _, name = key.partition("/")
            scope = self._awaited[key] = Scope(namespace, ((self.pod_label, name),))
        if scope is not None:
            for relister in self._pod_relisters:
                if waits:
                    relister.expedite(scope)
                else:
                    relister.relax(scope)

    def _may_do_without(self, reflector: Reflector[Any]) -> bool:
        """Return True if the reflector is synced or the program serves without it."""
        return reflector.synced

    def _is_behind(self) -> bool:
        """Return True if an object has been received whose changes have not been submitted."""
        raise NotImplementedError


def is_refused(reflector: Reflector[Any]) -> bool:
    """Return True if the API has refused the watch: the program has no right to it, or the cluster lacks the kind."""
    return any(kind in _REFUSED for kind in reflector.errors_total)
