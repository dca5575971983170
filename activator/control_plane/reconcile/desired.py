"""What a source wants of one Activation, and what its watches show of it.

Rules
  1. Everything here is frozen: the source, the queue and a pass share it.
  2. In `Observed`, UNSET means that nothing is watched, None that the watch shows that there is none.
  3. Of what a watch shows and what the API answered to a write, the newer one counts, by resource version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from activator.control_plane.reconcile.traffic_wanted import Traffic, TrafficSeen

ACTIVATION_GROUP: Final = "activator.dev"
ACTIVATION_VERSION: Final = "activator.dev/v1alpha1"
ACTIVATION_KIND: Final = "Activation"
ACTIVATION_LABEL: Final = "activator.dev/activation"  # on our Service, and so on its EndpointSlices
PODS_PORT: Final = 80  # of the private Service; headless, so nobody connects to it


class Owner(msgspec.Struct, frozen=True):
    """What declares a revision, and so owns what is made for it: an Activation, or an annotated Service."""

    api_version: str = ACTIVATION_VERSION
    kind: str = ACTIVATION_KIND

    @property
    def has_status(self) -> bool:
        """The status of a Service is not ours to write: there, events tell."""
        return self.kind == ACTIVATION_KIND


THE_ACTIVATION: Final = Owner()


class TargetReference(msgspec.Struct, frozen=True):
    """What is scaled: anything with a scale subresource, in the namespace of its Activation."""

    api_version: str
    kind: str
    name: str


class PodsService(msgspec.Struct, frozen=True):
    """The private headless Service. `selector` is that of the target, `target_port` the pods' port or its name."""

    name: str
    selector: Mapping[str, str]
    port_name: str
    target_port: int | str
    app_protocol: str = ""  # as "kubernetes.io/h2c"; empty: HTTP/1.1


class ConditionSpec(msgspec.Struct, frozen=True):
    """`status` is "True", "False" or "Unknown"; `reason` one word, `message` one plain sentence."""

    type: str
    status: str
    reason: str
    message: str


class EventSpec(msgspec.Struct, frozen=True):
    """A decision worth telling. Those of one `reason`, `action` and `warning` are one series."""

    reason: str
    action: str
    note: str
    warning: bool = False


# --- what a watch, or an answer of the API, shows -------------------------------------------------------------------


class ServiceSeen(msgspec.Struct, frozen=True):
    """A Service, as far as it matters here. `owner_uid`: of its controller; empty: it has none."""

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


class ScaleSeen(msgspec.Struct, frozen=True):
    """`replicas` of the target's spec; `version` is that of the target itself, which its scale has as well."""

    replicas: int
    version: str
    uid: str = ""


class ConditionSeen(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class StatusSeen(msgspec.Struct, frozen=True):
    """The status of the Activation with this UID."""

    uid: str
    version: str
    observed_generation: int = 0
    ready: int = 0
    wanted: int = 0
    hosts: tuple[str, ...] = ()
    conditions: tuple[ConditionSeen, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """What watches show. `services_version`: the version that the watch of Services is at, for where it shows none."""

    service: ServiceSeen | UnsetType | None = UNSET
    scale: ScaleSeen | UnsetType | None = UNSET
    status: StatusSeen | UnsetType | None = UNSET
    services_version: str = ""
    traffic: TrafficSeen | None = None  # None: the Service is not watched


NOTHING_OBSERVED: Final = Observed()


class Desired(msgspec.Struct, frozen=True):
    """One Activation. `replicas` None: somebody else scales. `service` None: there is to be none of ours.

    `present` False: the Activation is gone, and what was made for it is to be removed; `replicas`, where set, is what
    its target is left with.
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
    traffic: Traffic | None = None  # of a Service in mode transparent; None: nothing is wanted of it
    urgent: bool = False  # jumps the queue, as a change from zero does by itself

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]
