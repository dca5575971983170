"""The desired state of one Activation, and the observed state from the watches.

Rules
  1. Everything here is frozen, because the source, the queue and a pass share it.
  2. In `Observed`, UNSET means that nothing is watched; None means that the watch shows that there is no object.
  3. Of the watch's state and the API's answer to a write, the newer one counts, by resource version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile.traffic_wanted import DesiredPath, ObservedTraffic

ACTIVATION_GROUP: Final = "activator.dev"
ACTIVATION_VERSION: Final = "activator.dev/v1alpha1"
ACTIVATION_KIND: Final = "Activation"
ACTIVATION_LABEL: Final = "activator.dev/activation"  # on our Service, and therefore on its EndpointSlices
PODS_PORT: Final = 80  # The port of the private Service. It is headless, so no client connects to it.


class Owner(msgspec.Struct, frozen=True):
    """The kind that declares a revision and owns the objects made for it: an Activation, or an annotated Service."""

    api_version: str = ACTIVATION_VERSION
    kind: str = ACTIVATION_KIND

    @property
    def has_status(self) -> bool:
        """True for an Activation. The activator does not write the status of a Service, and reports by events."""
        return self.kind == ACTIVATION_KIND


THE_ACTIVATION: Final = Owner()


class TargetReference(msgspec.Struct, frozen=True):
    """The scaled object: any kind with a scale subresource, in the namespace of its Activation."""

    api_version: str
    kind: str
    name: str


class PodsService(msgspec.Struct, frozen=True):
    """The private headless Service. `selector` is that of the target, `target_port` the pods' port or its name."""

    name: str
    selector: Mapping[str, str]
    port_name: str
    target_port: int | str
    app_protocol: str = ""  # such as "kubernetes.io/h2c"; empty: HTTP/1.1


class ConditionSpec(msgspec.Struct, frozen=True):
    """A condition. `status` is "True", "False" or "Unknown"; `reason` one word, `message` one sentence."""

    type: str
    status: str
    reason: str
    message: str


class EventSpec(msgspec.Struct, frozen=True):
    """A decision to report as an event. Events with equal `reason`, `action` and `warning` form a series."""

    reason: str
    action: str
    note: str
    warning: bool = False


# --- observed by a watch, or in an answer of the API -----------------------------------------------------------------


class ObservedService(msgspec.Struct, frozen=True):
    """The used fields of a Service. `owner_uid`: of its controller; empty: it has none."""

    name: str
    uid: str
    version: str
    owner_uid: str
    activation: str  # the value of ACTIVATION_LABEL
    selector: Mapping[str, str]
    headless: bool
    port_name: str
    target_port: int | str
    app_protocol: str


class ObservedScale(msgspec.Struct, frozen=True):
    """The scale of a target. `replicas` is from the spec; `version` is that of the target, which its scale shares."""

    replicas: int
    version: str
    uid: str = ""


class ObservedCondition(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class ObservedStatus(msgspec.Struct, frozen=True):
    """The status of the Activation with this UID."""

    uid: str
    version: str
    observed_generation: int = 0
    ready: int = 0
    wanted: int = 0
    hosts: tuple[str, ...] = ()
    conditions: tuple[ObservedCondition, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """The state that watches show. `services_version`: the version of the watch of Services, in case it shows none."""

    service: ObservedService | UnsetType | None = UNSET
    scale: ObservedScale | UnsetType | None = UNSET
    status: ObservedStatus | UnsetType | None = UNSET
    services_version: str = ""
    traffic: ObservedTraffic | None = None  # None: the Service is not watched


NOTHING_OBSERVED: Final = Observed()


class Desired(msgspec.Struct, frozen=True):
    """The desired state of one Activation.

    `replicas` None: another component scales. `service` None: no Service is to exist.

    `present` False: the Activation was deleted, and its objects are to be removed; `replicas`, if set, is the final
    number of its target.
    """

    key: str  # "namespace/name"
    uid: str
    generation: int
    target: TargetReference
    replicas: int | None
    service: PodsService | None
    conditions: tuple[ConditionSpec, ...]
    wanted: int = 0
    ready: int = 0
    hosts: tuple[str, ...] = ()
    owner: Owner = THE_ACTIVATION
    events: tuple[EventSpec, ...] = ()
    observed: Observed = NOTHING_OBSERVED
    present: bool = True
    traffic: DesiredPath | None = None  # mode transparent; None: leave the Service's traffic alone
    urgent: bool = False  # jumps the queue; a change from zero always does

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]
