"""Revisions without a reachable fixed pod: their requests are rejected with the cause instead of held.

Rules
  1. Only fixed pods count. Pods of a cluster and local processes are expected to need time until they answer.
  2. A revision is unreachable when none of its pods has answered a probe for `timeouts.unreachable`, or when it has had
     none for that time because their name or file fails. It is reachable again with the first pod that answers, or when
     its pods or its configuration change.
  3. While requests come, its pods are probed frequently (expedited probing), also when the requests are rejected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.probes.prober import Prober
from activator.control_plane.sources.pod_cause_log import PodCauseLog
from activator.control_plane.state.model import Model
from activator.messages import Change, Load, RevisionFailed, RevisionRecovered
from activator.runtime.clock import Now
from lb.tracker import DRAINING

CHECK_INTERVAL_S: Final = 0.1  # bounds the cost for thousands of pods, each probed every few milliseconds

log = logging.getLogger("activator.probing")


class UnreachableRevisions:
    """Judges which revisions are unreachable.

    `patience_s`: how long each pod of a revision may fail to answer (0: without a limit); revisions that are not in it
    are not judged. `no_pods(key)` returns why a revision has no pods; None if no source of pods fails.
    """

    def __init__(
        self,
        submit: Callable[[Change], None],
        prober: Prober,
        model: Model,
        now: Now,
        no_pods: Callable[[str], Failing | None],
    ) -> None:
        self._submit = submit
        self._prober = prober
        self._model = model
        self._now = now
        self.patience_s: dict[str, float] = {}
        self._next_check_s: dict[str, float] = {}  # the earliest time of the next check of a revision's pods
        self.causes: dict[str, str] = {}  # unreachable revisions, by key
        self.pod_causes = PodCauseLog()
        self._no_pods = no_pods

    def pod_failed(self, key: str) -> None:
        """Log pods that do not answer, and reject requests if the revision is unreachable, every CHECK_INTERVAL_S."""
        now_s = self._now()
        if key not in self.patience_s or now_s < self._next_check_s.get(key, 0.0):
            return
        self._next_check_s[key] = now_s + CHECK_INTERVAL_S
        self.pod_causes.report(key, self._prober.failing(key), now_s)
        self._reject_if_unreachable(key)

    def _reject_if_unreachable(self, key: str) -> None:
        """Reject the requests of the revision if it is unreachable for longer than its patience."""
        patience_s = self.patience_s.get(key, 0.0)
        if patience_s > 0.0 and key not in self.causes:
            cause = self._cause(key, patience_s)
            if cause:
                self.causes[key] = cause
                log.warning("%s: %s; its requests are refused until a pod answers", key, cause)
                self._submit(RevisionFailed(key, cause))

    def pods_changed(self, key: str, new_pods: bool) -> None:
        """Recover if there are new pods; else a name or file has failed: reject requests if that lasts for too long."""
        if new_pods:
            self.recover(key)
        else:
            self._reject_if_unreachable(key)

    def recover(self, key: str) -> None:
        """Stop rejecting the revision's requests: a pod has answered, or its pods or its configuration have changed."""
        if self.causes.pop(key, ""):
            log.info("%s can be reached again", key)
            self._submit(RevisionRecovered(key))

    def forget(self, key: str) -> None:
        """Forget a revision that was removed."""
        self.causes.pop(key, None)
        self.patience_s.pop(key, None)
        self._next_check_s.pop(key, None)
        self.pod_causes.forget(key)

    def resubmit(self, key: str) -> None:
        """Submit the state of a revision again after changes were lost."""
        cause = self.causes.get(key, "")
        if cause:
            self._submit(RevisionFailed(key, cause))

    def receive_load(self, load: Load) -> None:
        """Probe the pods of an unreachable revision soon, because requests for it come."""
        if load.key in self.causes:
            self._prober.expedite(load.key)

    def _cause(self, key: str, patience_s: float) -> str:
        """Return why the revision is unreachable, as one line; empty if it may be reachable."""
        revision = self._model.revisions.get(key)
        pods = [] if revision is None else [pod for pod in revision.pods.values() if pod.state() != DRAINING]
        failing = self._prober.failing(key)
        until_s = self._now() - patience_s
        if not pods:
            failure = self._no_pods(key)
            return "" if failure is None or failure.since_s > until_s else f"it has no pods ({failure.cause})"
        if any(pod.identity not in failing or failing[pod.identity].since_s > until_s for pod in pods):
            return ""
        first = pods[0]
        subject = "its pod" if len(pods) == 1 else f"none of its {len(pods)} pods"
        verb = "cannot" if len(pods) == 1 else "can"
        return f"{subject} {verb} be reached ({first.address}: {failing[first.identity].cause})"
