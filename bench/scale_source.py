"""A small source for `python -m bench scale`: it watches Activations and derives a Desired from each.

It has four watches, each as narrow as possible: Activations and Deployments of one namespace, and Services and
EndpointSlices that have our label. An event marks its Activation; marked Activations are evaluated once, in the next
turn of the event loop, independently of the number of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple

from activator.control_plane.reconcile.desired import (
    ACTIVATION_LABEL,
    NOTHING_OBSERVED,
    PODS_PORT,
    ConditionSpec,
    Desired,
    Observed,
    ObservedCondition,
    ObservedScale,
    ObservedService,
    ObservedStatus,
    PodsService,
    TargetReference,
)
from activator.kubernetes.objects import (
    EndpointSlice,
    Key,
    KubeObject,
    KubeStruct,
    Metadata,
    Object,
)
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.resources import ENDPOINT_SLICES, Resource, Selection
from activator.kubernetes.watches import KubeWatches

_EMPTY: Final[dict[str, str]] = {}


class Target(KubeStruct, frozen=True, gc=False):
    name: str = ""


class Scaling(KubeStruct, frozen=True, gc=False):
    min: int = 0


class ActivationSpec(KubeStruct, frozen=True, gc=False):
    """The spec of an Activation; the desired number of pods is the minimum, as nothing is scaled by load here."""

    target: Target = Target()
    port: int | str = 8080
    scaling: Scaling = Scaling()


class ActivationStatus(KubeStruct, frozen=True, gc=False):
    observed_generation: int = 0
    ready: int = 0
    wanted: int = 0
    conditions: list[ObservedCondition] | None = None


class Activation(KubeObject, frozen=True, gc=False):
    spec: ActivationSpec = ActivationSpec()
    status: ActivationStatus = ActivationStatus()


class Selector(KubeStruct, frozen=True, gc=False):
    match_labels: dict[str, str] = _EMPTY


class DeploymentSpec(KubeStruct, frozen=True, gc=False):
    replicas: int = 0
    selector: Selector = Selector()


class Deployment(KubeObject, frozen=True, gc=False):
    spec: DeploymentSpec = DeploymentSpec()


class Owner(KubeStruct, frozen=True, gc=False):
    uid: str = ""
    controller: bool | None = None


class OwnedMetadata(Metadata, frozen=True, gc=False):
    owner_references: list[Owner] | None = None


class Port(KubeStruct, frozen=True, gc=False):
    name: str = ""
    port: int = 0
    target_port: int | str = 0
    app_protocol: str = ""


class PodsServiceSpec(KubeStruct, frozen=True, gc=False):
    selector: dict[str, str] = _EMPTY
    ports: list[Port] | None = None


class OwnedService(KubeObject, frozen=True, gc=False):
    metadata: OwnedMetadata = OwnedMetadata()
    spec: PodsServiceSpec = PodsServiceSpec()


ACTIVATIONS: Final = Resource("activations", "/apis/activator.dev/v1alpha1", Activation)
DEPLOYMENTS: Final = Resource("deployments", "/apis/apps/v1", Deployment)
OWNED_SERVICES: Final = Resource("services", "/api/v1", OwnedService)


class Marks(Generic[Object]):
    """A handler that marks the Activation of an object; `key_of` returns None if there is none."""

    def __init__(self, source: ScaleSource, key_of: Callable[[Object], str]) -> None:
        self._source = source
        self._key_of = key_of

    def changed(self, old: Object | None, new: Object) -> None:
        self._source.mark(self._key_of(new))

    def removed(self, old: Object) -> None:
        self._source.mark(self._key_of(old))

    def resync(self, new: Object) -> None:
        self._source.mark(self._key_of(new))

    def listed(self, objects: Mapping[Key, Object]) -> None:
        pass


class SliceMarks(Marks[EndpointSlice]):
    """A handler that also counts the ready endpoints of each slice."""

    def __init__(self, source: ScaleSource) -> None:
        super().__init__(source, labelled)
        self._slices = source.slices

    def changed(self, old: EndpointSlice | None, new: EndpointSlice) -> None:
        ready = sum(one.conditions.ready is not False for one in new.endpoints or ())
        self._slices.setdefault(labelled(new), {})[new.metadata.name] = ready
        super().changed(old, new)

    def removed(self, old: EndpointSlice) -> None:
        key = labelled(old)
        of_it = self._slices.get(key, {})
        of_it.pop(old.metadata.name, None)
        if not of_it:
            self._slices.pop(key, None)
        super().removed(old)


def named(thing: KubeObject) -> str:
    return f"{thing.metadata.namespace}/{thing.metadata.name}"


def labelled(thing: KubeObject) -> str:
    return f"{thing.metadata.namespace}/{thing.metadata.labels.get(ACTIVATION_LABEL, '')}"


class Watching(NamedTuple):
    """Options of the source.

    `hands_in` False: it passes on nothing of what the watches show, so that the reconciler has to read. `is_narrowed`
    False: the watches include Services and slices without our label.
    """

    hands_in: bool = True
    is_narrowed: bool = True


class ScaleSource:
    """Counts events `received`, events `folded` into a waiting one, and Desired values `applied`."""

    def __init__(
        self,
        namespace: str,
        want: Callable[[Desired], bool],
        watching: Watching = Watching(),  # noqa: B008
    ) -> None:
        self._namespace = namespace
        self._want = want
        self._watching = watching
        self._marked: dict[str, None] = {}
        self._known: dict[str, Desired] = {}
        self.slices: dict[str, dict[str, int]] = {}
        self.received = self.folded = self.applied = 0
        self.activations: Mapping[Key, Activation] = {}
        self.deployments: Mapping[Key, Deployment] = {}
        self.services: Mapping[Key, OwnedService] = {}
        self._services_reflector: Reflector[OwnedService] | None = None

    @property
    def owned_services(self) -> int:
        """Return how many Services of ours exist."""
        if self._watching.is_narrowed:
            return len(self.services)
        return sum(ACTIVATION_LABEL in one.metadata.labels for one in self.services.values())

    def watch(self, watches: KubeWatches) -> None:
        """Use these watches from now on."""
        namespace = self._namespace
        label = ACTIVATION_LABEL if self._watching.is_narrowed else ""
        activations, _ = watches.add(Selection(ACTIVATIONS, namespace), Marks(self, named))
        deployments, _ = watches.add(Selection(DEPLOYMENTS, namespace), Marks(self, named))
        services, _ = watches.add(Selection(OWNED_SERVICES, namespace, label), Marks(self, labelled))
        watches.add(Selection(ENDPOINT_SLICES, namespace, label), SliceMarks(self))
        self.activations, self.deployments, self.services = activations.store, deployments.store, services.store
        self._services_reflector = services

    def mark(self, key: str) -> None:
        """Note that something about this Activation has changed."""
        self.received += 1
        if key in self._marked:
            self.folded += 1
            return
        if not self._marked:
            asyncio.get_running_loop().call_soon(self.flush)
        self._marked[key] = None

    def flush(self) -> None:
        """Submit the Desired of all marked Activations."""
        marked, self._marked = self._marked, {}
        for key in marked:
            desired = self._desired(key)
            if desired is not None:
                self.applied += 1
                self._want(desired)

    def _desired(self, key: str) -> Desired | None:
        namespace, _, name = key.partition("/")
        thing = self.activations.get((namespace, name))
        if thing is None:
            before = self._known.pop(key, None)
            return None if before is None else gone(before, self._observed(key, None))
        target = self.deployments.get((namespace, thing.spec.target.name))
        if target is None:
            return None
        ready = sum(self.slices.get(key, _NO_SLICES).values())
        wanted = thing.spec.scaling.min
        desired = Desired(
            key,
            thing.metadata.uid,
            thing.metadata.generation,
            TargetReference("apps/v1", "Deployment", thing.spec.target.name),
            wanted,
            PodsService(f"{name}-pods", target.spec.selector.match_labels, "http", thing.spec.port),
            conditions_of(wanted, ready),
            wanted,
            ready,
            observed=self._observed(key, thing),
        )
        self._known[key] = desired
        return desired

    def _observed(self, key: str, thing: Activation | None) -> Observed:
        if not self._watching.hands_in:
            return NOTHING_OBSERVED
        namespace, _, name = key.partition("/")
        service = self.services.get((namespace, f"{name}-pods"))
        target = self.deployments.get((namespace, thing.spec.target.name)) if thing is not None else None
        reflector = self._services_reflector
        return Observed(
            None if service is None else service_seen(service),
            None if target is None else scale_seen(target),
            None if thing is None else status_seen(thing),
            "" if reflector is None else reflector.version,
        )


_NO_SLICES: Final[dict[str, int]] = {}
_ALL: Final = {
    (active, full): (
        ConditionSpec("Ready", "True" if full else "False", "Ready" if full else "Starting", "Whether pods are ready."),
        ConditionSpec("Active", "True" if active else "False", "Requested", "Whether pods are wanted."),
        ConditionSpec("ScaledToZero", "False" if active else "True", "Replicas", "Whether there are no pods."),
        ConditionSpec("Degraded", "False", "AsExpected", "Nothing is wrong."),
    )
    for active in (False, True)
    for full in (False, True)
}


def conditions_of(wanted: int, ready: int) -> tuple[ConditionSpec, ...]:
    return _ALL[wanted > 0, ready >= wanted]


def gone(before: Desired, observed: Observed) -> Desired:
    """Return the Desired of a deleted Activation."""
    return Desired(
        before.key,
        before.uid,
        before.generation,
        before.target,
        None,
        None,
        (),
        observed=observed,
        present=False,
    )


def service_seen(service: OwnedService) -> ObservedService:
    metadata = service.metadata
    owner = next((one.uid for one in metadata.owner_references or () if one.controller), "")
    port = next((one for one in service.spec.ports or () if one.port == PODS_PORT), Port())
    return ObservedService(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        owner,
        metadata.labels.get(ACTIVATION_LABEL, ""),
        service.spec.selector,
        True,
        port.name,
        port.target_port,
        port.app_protocol,
    )


def scale_seen(target: Deployment) -> ObservedScale:
    return ObservedScale(target.spec.replicas, target.metadata.resource_version, target.metadata.uid)


def status_seen(thing: Activation) -> ObservedStatus:
    status = thing.status
    return ObservedStatus(
        thing.metadata.uid,
        thing.metadata.resource_version,
        status.observed_generation,
        status.ready,
        status.wanted,
        conditions=tuple(status.conditions or ()),
    )
