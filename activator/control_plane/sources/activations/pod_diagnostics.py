"""Lists the pods of revisions whose pods do not answer, to find out why.

Rules
  1. Pods are listed only while some are wanted and none answers: a revision that serves, or is at zero, costs no call.
  2. At most POD_DIAGNOSES_PER_S revisions are listed a second, the longest waiting first. One revision is listed at
     most every POD_DIAGNOSIS_INTERVAL_S; the interval grows to POD_DIAGNOSIS_INTERVAL_MAX_S.
  3. One page of POD_DIAGNOSIS_PODS_MAX pods is enough, because pods of one template fail for the same reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from activator.control_plane.sources.activations.objects import STARTING_PODS, StartingPod
from activator.kubernetes.client import Query
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import KubeError
from activator.kubernetes.listing import Pause
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from activator.runtime.schedule import Schedule

POD_DIAGNOSES_PER_S: Final = 20.0
POD_DIAGNOSIS_INTERVAL_S: Final = 1.0
POD_DIAGNOSIS_INTERVAL_MAX_S: Final = 10.0
POD_DIAGNOSIS_GROWTH: Final = 1.5
POD_DIAGNOSIS_PODS_MAX: Final = 50

log = logging.getLogger("activator.kubernetes")

Listed = Callable[[str, list[StartingPod], float], None]


class Lists(Protocol):
    """The methods of `KubeClient` that are used here."""

    async def list_page(self, path: str, query: Query) -> bytes:
        """Return one page of a list; raise KubeError on failure."""


class _Diagnosis:
    """The lists of the pods of one revision."""

    def __init__(self, labels: Mapping[str, str], due_s: float) -> None:
        self.labels = labels
        self.due_s = due_s
        self.intervals = Backoff(POD_DIAGNOSIS_INTERVAL_S, POD_DIAGNOSIS_INTERVAL_MAX_S, factor=POD_DIAGNOSIS_GROWTH)


class PodDiagnostics:
    """Lists pods and passes them to `listed(key, pods, now_s)`."""

    def __init__(self, client: Lists, listed: Listed, now: Now, pause: Pause) -> None:
        self._client = client
        self._listed = listed
        self._now = now
        self._pause = pause
        self._decoding = Decoding(StartingPod)
        self._diagnoses: dict[str, _Diagnosis] = {}
        self._due: Schedule[str] = Schedule()
        self.lists_total = 0
        self.errors_total = 0

    def set_labels(self, key: str, labels: Mapping[str, str] | None) -> None:
        """List the pods with these labels in the revision's namespace from now on; None: stop."""
        known = self._diagnoses.get(key)
        if labels is None:
            self._diagnoses.pop(key, None)
            self._due.cancel(key)
        elif known is None or known.labels != labels:
            self._begin(key, labels, self._now() + POD_DIAGNOSIS_INTERVAL_S)

    def expedite(self, key: str) -> None:
        """List the revision's pods again at the short interval: requests have arrived."""
        known = self._diagnoses.get(key)
        if known is not None and known.intervals.failures:
            known.intervals.reset()
            self._plan(key, known, min(known.due_s, self._now() + POD_DIAGNOSIS_INTERVAL_S))

    def __len__(self) -> int:
        return len(self._diagnoses)

    async def step(self) -> None:
        """Wait, then list the pods of the revision that is due, if any."""
        await self._pause(1.0 / POD_DIAGNOSES_PER_S)
        key = self._due.pop(self._now())
        if key is None:
            return
        try:
            await self._diagnose(key)
        except Exception as error:  # a defect: of this revision only
            self.errors_total += 1
            log.error("the pods of %s could not be listed", key, exc_info=error)
            if key in self._diagnoses:
                self._plan(key, self._diagnoses[key], self._now() + POD_DIAGNOSIS_INTERVAL_MAX_S)

    def _begin(self, key: str, labels: Mapping[str, str], due_s: float) -> None:
        diagnosis = self._diagnoses[key] = _Diagnosis(labels, due_s)
        self._plan(key, diagnosis, due_s)

    def _plan(self, key: str, diagnosis: _Diagnosis, due_s: float) -> None:
        diagnosis.due_s = due_s
        self._due.plan(key, due_s)

    async def _diagnose(self, key: str) -> None:
        """List the pods of a revision, and plan the next list."""
        diagnosis = self._diagnoses[key]
        namespace = key.partition("/")[0]
        query = {
            "labelSelector": ",".join(f"{name}={value}" for name, value in diagnosis.labels.items()),
            "limit": str(POD_DIAGNOSIS_PODS_MAX),
        }
        self.lists_total += 1
        try:
            pods = self._decoding.list(await self._client.list_page(STARTING_PODS.collection(namespace), query)).items
        except KubeError as error:
            self.errors_total += 1
            log.warning("the pods of %s could not be listed: %s", key, error)
            pods = None
        if self._diagnoses.get(key) is not diagnosis:
            return  # it serves by now, or was removed
        self._plan(key, diagnosis, self._now() + diagnosis.intervals.next_s())
        if pods is not None:
            self._listed(key, pods, self._now())
