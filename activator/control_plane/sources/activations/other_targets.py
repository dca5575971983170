"""Targets whose kind is not watched: any kind with a scale subresource (a Rollout, a custom resource).

Rules
  1. A target is read at once when a revision names it, then every OTHER_TARGET_INTERVAL_S, and every
     OTHER_TARGET_EXPEDITE_S while its revision waits for pods. One call at a time, the most overdue first.
  2. A scale shows the number of replicas and the labels of the pods. It is stored as a workload without a template:
     it does not show whether the pods have a port with the name that the object gives.
  3. A Service supports only selectors of the form `label=value`. A target with another one is stored without labels.

Source: Kubernetes API reference, autoscaling/v1 Scale: `status.selector` is a label selector in its text form.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

import msgspec

from activator.config.activation import Target
from activator.control_plane.reconcile.desired import TargetReference
from activator.control_plane.reconcile.kinds import Kinds, NoScaleError
from activator.control_plane.sources.activations.objects import (
    PodTemplate,
    Selector,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import KubeError, RefusedError
from activator.kubernetes.listing import Pause
from activator.kubernetes.objects import KubeObject, KubeStruct
from activator.runtime.clock import Now
from activator.runtime.schedule import Schedule

OTHER_TARGET_INTERVAL_S: Final = 30.0
OTHER_TARGET_EXPEDITE_S: Final = 1.0  # while its revision waits for pods
OTHER_TARGETS_PER_S: Final = 20.0  # calls

TargetKey = tuple[str, str, str]  # api version and kind as "apps/v1/Deployment", namespace, name
Found = Callable[[TargetKey, Workload | None, str], None]

_EQUALITY: Final = re.compile(r"([^\s=!,()]+)={1,2}([^\s=!,()]*)")
_NOT_FOUND: Final = 404

log = logging.getLogger("activator.kubernetes")


class _ScaleSpec(KubeStruct, frozen=True, gc=False):
    replicas: int = 0


class _ScaleStatus(KubeStruct, frozen=True, gc=False):
    replicas: int = 0
    selector: str = ""


class _Scale(KubeObject, frozen=True, gc=False):
    """A Scale of autoscaling/v1."""

    spec: _ScaleSpec = _ScaleSpec()
    status: _ScaleStatus = _ScaleStatus()


_SCALE: Final = msgspec.json.Decoder(_Scale)


def key_of_target(target: Target, namespace: str) -> TargetKey:
    return (f"{target.api_version}/{target.kind}", namespace, target.name)


class OtherTargets:
    """The reader of targets whose kind is not watched.

    `found(target, workload, problem)` receives each result. `workload` None: there is no object of this name, or
    `problem` is the reason why the object can never be scaled.
    """

    def __init__(self, client: KubeClient, found: Found, now: Now, pause: Pause) -> None:
        self._client = client
        self._found = found
        self._now = now
        self._pause = pause
        self._kinds = Kinds(client, now)
        self._due_s: dict[TargetKey, float] = {}
        self._expedited: set[TargetKey] = set()
        self._unread: set[TargetKey] = set()  # the last call for them failed
        self._schedule: Schedule[TargetKey] = Schedule()

    def follow(self, target: TargetKey) -> None:
        """Read the target from now on: a revision names it."""
        if target not in self._due_s:
            self._plan(target, self._now())

    def forget(self, target: TargetKey) -> None:
        """Stop reading the target: no revision names it any more."""
        self._due_s.pop(target, None)
        self._schedule.cancel(target)
        self._expedited.discard(target)
        self._unread.discard(target)

    def expedite(self, target: TargetKey, waits: bool) -> None:
        """Set whether the target's revision waits for pods, so that the target is read more often."""
        if not waits:
            self._expedited.discard(target)
        elif target in self._due_s and target not in self._expedited:
            self._expedited.add(target)
            self._plan(target, min(self._due_s[target], self._now() + OTHER_TARGET_EXPEDITE_S))

    def wake(self) -> None:
        """Read the targets whose last read failed: the API answers again."""
        for target in self._unread:
            self._plan(target, self._now())

    def __len__(self) -> int:
        return len(self._due_s)

    async def step(self) -> None:
        """Wait, then read the target that is due, if any."""
        await self._pause(1.0 / OTHER_TARGETS_PER_S)
        target = self._schedule.pop(self._now())
        if target is None:
            return
        try:
            await self._read(target)
        except Exception as error:  # a defect: of this target only
            log.error("%s %s/%s could not be read", *target, exc_info=error)
            self._plan_next(target)

    def _plan_next(self, target: TargetKey) -> None:
        """Plan the next read of the target."""
        if target in self._due_s:
            is_expedited = target in self._expedited
            self._plan(target, self._now() + (OTHER_TARGET_EXPEDITE_S if is_expedited else OTHER_TARGET_INTERVAL_S))

    def _plan(self, target: TargetKey, due_s: float) -> None:
        self._due_s[target] = due_s
        self._schedule.plan(target, due_s)

    async def _read(self, target: TargetKey) -> None:
        """Read the target, and pass the result on unless the call failed."""
        workload, problem, is_known = None, "", True
        self._unread.discard(target)
        try:
            workload = await self._read_scale(target)
        except NoScaleError as error:
            problem = str(error)
        except KubeError as error:
            is_known = isinstance(error, RefusedError) and error.status == _NOT_FOUND
            if not is_known:
                self._record_failed_read(target, error)
        except (msgspec.DecodeError, ValueError) as error:  # not a Scale, for example a proxy's error page
            is_known = False
            self._record_failed_read(target, error)
        if target not in self._due_s:
            return  # no revision names it any more
        self._plan_next(target)
        if is_known:
            self._found(target, workload, problem)

    def _record_failed_read(self, target: TargetKey, error: Exception) -> None:
        """Log a failed call; the target is read again when an outage ends."""
        if target in self._due_s:
            self._unread.add(target)
        log.warning("%s %s/%s could not be read: %s", *target, error)

    async def _read_scale(self, target: TargetKey) -> Workload:
        """Read the target's scale; return it as a workload. Raise NoScaleError or KubeError."""
        kind, namespace, name = target
        version, _, kind = kind.rpartition("/")
        path = await self._kinds.scale_path(TargetReference(version, kind, name), namespace)
        scale = _SCALE.decode(await self._client.get(path))
        labels = labels_of(scale.status.selector)
        return Workload(
            scale.metadata,
            WorkloadSpec(scale.spec.replicas, Selector(match_labels=labels), PodTemplate()),
            WorkloadStatus(scale.status.replicas),
        )


def labels_of(selector: str) -> dict[str, str]:
    """Return the labels of a selector in text form; empty if it has anything but equalities."""
    terms = [term.strip() for term in selector.split(",") if term.strip()]
    equalities = [_EQUALITY.fullmatch(term) for term in terms]
    return {one[1]: one[2] for one in equalities if one is not None} if all(equalities) else {}
