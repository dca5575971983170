"""The Services of mode transparent: whether the activator is in the path of each, and on which port.

Rules
  1. Each Service has a port of its own at the activator. The port is stored in *our slices*: those that the activator
     writes for the Service. So every replica listens on it, whichever wrote them, and a new replica finds it. If two
     Services have the same port, the first by name keeps it.
  2. One replica decides on a Service: the one that writes for its Activation (`path.py`). The others follow the slices.
  3. A port that the slices no longer show is listened on for another ENTRY_LINGERS_S, because proxies may still use it.
  4. A port that this replica cannot bind is no longer shown: the deciding replica chooses another one, and does not
     choose this one again within ENTRY_RETRY_S.
  5. A Service that is no longer declared, or was never declared to this process, is given back (`give_back.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from activator.config.activation import Declared
from activator.config.model.transparent import (
    ALWAYS_IN_PATH,
    ENTRY_PORT_FIRST,
    ENTRY_PORT_LAST,
    MODE_TRANSPARENT,
    Transparent,
)
from activator.control_plane.reconcile.desired import ConditionSpec
from activator.control_plane.reconcile.traffic_wanted import (
    SERVICE_NAME_LABEL,
    DesiredPath,
    FrontEndpoint,
    FrontSlice,
    ObservedTraffic,
    Position,
    position_of,
)
from activator.control_plane.scaling.rule import ScalingRule
from activator.control_plane.sources.activations.hosts import HostClaims
from activator.control_plane.sources.activations.objects import AnnotatedService, FrontSliceRead, Workload
from activator.control_plane.sources.activations.path import ObservedPath, PathRule, PathState, decide
from activator.control_plane.sources.activations.path_conditions import in_path, refused
from activator.control_plane.sources.activations.service_front import (
    FAMILIES,
    Refused,
    front_slices,
    is_labelled,
    missing_family,
    replicas_in,
    service_of,
    traffic_seen,
    usable_ports,
)
from activator.messages import Load
from activator.runtime.clock import NEVER, Now

ENTRY_LINGERS_S: Final = 60.0  # how long a port is served after our slices have stopped showing it
ENTRY_RETRY_S: Final = 60.0  # A port that could not be bound is not chosen again within this time.
_ENTRIES: Final = ENTRY_PORT_LAST - ENTRY_PORT_FIRST + 1
_JITTER: Final = 0.2  # Share of the measurement interval, so that measurements of many Services are spread over time.


class FrontOutcome(NamedTuple):
    """The decision on one Service.

    `traffic`: what to write; `seen`: what the watches show. `keeps_pods`: the number of pods must not be lowered.
    `writes_replicas`: False while no number of pods may be written. `due_s`: when to decide again, monotonic seconds.
    """

    traffic: DesiredPath | None
    seen: ObservedTraffic | None
    condition: ConditionSpec
    keeps_pods: bool
    writes_replicas: bool
    due_s: float


class FrontInputs(NamedTuple):
    """The state of the revision beside its Service; `wanted` -1: not decided."""

    workload: Workload | None
    ready: int
    replicas: int
    wanted: int


class _Front:
    """The Service of one revision."""

    def __init__(self, service: str, created: str) -> None:
        self.service = service
        self.created = created
        self.load: Load | None = None
        self.state: PathState | None = None  # None: another replica decides, or none has yet
        self.is_active = False  # its Service can be used, and no other revision has it


class Fronts:
    """All Services of mode transparent.

    `find_service(key)` returns the Service of this namespace/name. `mark(key)` schedules a pass of the revision.
    `listen(ports)` serves on exactly these ports and returns those that could not be bound. `listened()` returns the
    address families of the listener.
    """

    def __init__(
        self,
        find_service: Callable[[str], AnnotatedService | None],
        mark: Callable[[str], None],
        listen: Callable[[frozenset[int]], frozenset[int]],
        now: Now,
        slices_version: Callable[[], str],
        own_address: str = "",
        listened: Callable[[], frozenset[str]] = lambda: frozenset(FAMILIES),
    ) -> None:
        self._find_service = find_service
        self._mark = mark
        self._listen = listen
        self._now = now
        self._fronts: dict[str, _Front] = {}  # by the key of the revision
        self._claims = HostClaims()  # on Services
        self._routes: dict[str, str] = {}  # by Service: the revision that its port leads to
        self._services_of: dict[str, set[str]] = {}  # by revision: the Services whose ports lead to it
        self._slices: dict[str, dict[str, FrontSliceRead]] = {}  # our slices, by Service and name
        self._ports: dict[str, int] = {}  # by Service: the port in our slices
        self._chosen: dict[str, int] = {}  # by Service: the port that is to be written to our slices
        self._lingering: dict[str, tuple[int, float]] = {}  # by Service: the former port, and until when it is served
        self._labelled: set[str] = set()  # Services with our label, whose own slices have no pods
        self._listened: frozenset[int] = frozenset()
        self._unbound: dict[int, float] = {}  # ports that could not be bound, and until when they are not chosen
        self._replica_slices: dict[str, FrontSliceRead] = {}  # slices of the activator's own Service, by name
        self._families_listened = listened
        self._replica_families: frozenset[str] = frozenset()
        self._replicas: Mapping[str, tuple[FrontEndpoint, ...]] = {}
        if own_address:
            family = "IPv6" if ":" in own_address else "IPv4"
            self._replica_families = frozenset({family})
            self._replicas = {family: (FrontEndpoint(own_address),)}
        self._slices_version = slices_version
        self.switches_total = dict.fromkeys(Position, 0)

    # --- what watches show ---

    def service_changed(self, service: AnnotatedService) -> None:
        key = _key_of(service.metadata.namespace, service.metadata.name)
        if is_labelled(service):
            self._labelled.add(key)
        else:
            self._labelled.discard(key)
        self._mark_users(key)

    def service_gone(self, service: AnnotatedService) -> None:
        key = _key_of(service.metadata.namespace, service.metadata.name)
        self._labelled.discard(key)
        self._mark_users(key)

    def slice_changed(self, front_slice: FrontSliceRead) -> None:
        """Store one of our slices, and take the port of its Service from it."""
        service = _key_of(front_slice.metadata.namespace, front_slice.metadata.labels.get(SERVICE_NAME_LABEL, ""))
        self._slices.setdefault(service, {})[front_slice.metadata.name] = front_slice
        self._update_port(service)

    def slice_gone(self, front_slice: FrontSliceRead) -> None:
        service = _key_of(front_slice.metadata.namespace, front_slice.metadata.labels.get(SERVICE_NAME_LABEL, ""))
        slices = self._slices.get(service)
        if slices is not None and slices.pop(front_slice.metadata.name, None) is not None:
            if not slices:
                del self._slices[service]
            self._update_port(service)

    def replica_slice_changed(self, replica_slice: FrontSliceRead) -> None:
        """Store a slice of the activator's own Service, which shows the replicas of the activator."""
        self._replica_slices[replica_slice.metadata.name] = replica_slice
        self._update_replicas()

    def replica_slice_gone(self, replica_slice: FrontSliceRead) -> None:
        self._replica_slices.pop(replica_slice.metadata.name, None)
        self._update_replicas()

    def _update_replicas(self) -> None:
        """Take the replicas and their address families from these slices; mark all revisions if they have changed."""
        replicas = replicas_in(self._replica_slices.values())
        # A family counts even if its slices have no endpoints yet.
        families = frozenset(replica_slice.address_type for replica_slice in self._replica_slices.values())
        if replicas != self._replicas or families != self._replica_families:
            self._replicas, self._replica_families = replicas, families
            for key in self._fronts:
                self._mark(key)

    def _update_port(self, service: str) -> None:
        """Take the port of the Service from our slices; the former one is still served for a while."""
        slices = self._slices.get(service, {})
        number = next(
            (port.port for front_slice in slices.values() for port in front_slice.ports or () if port.port), None
        )
        before = self._ports.pop(service, None)
        if number is not None:
            self._ports[service] = number
        if before is not None and before != number and before not in self._unbound:
            self._lingering[service] = (before, self._now() + ENTRY_LINGERS_S)
        self._update_listener()
        self._mark_users(service)

    def _update_listener(self) -> None:
        """Listen on exactly the ports that our slices show, or showed less than ENTRY_LINGERS_S ago."""
        wanted = frozenset(self._ports.values()) | {port for port, _ in self._lingering.values()}
        wanted = frozenset(port for port in wanted if ENTRY_PORT_FIRST <= port <= ENTRY_PORT_LAST)
        if wanted != self._listened or not self._unbound.keys().isdisjoint(wanted):
            self._listened = wanted
            failed = self._listen(wanted)
            for port in wanted - failed:
                self._unbound.pop(port, None)
            self._unbound |= dict.fromkeys(failed, self._now() + ENTRY_RETRY_S)

    def _mark_users(self, service: str) -> None:
        """Schedule a pass of the revisions that the Service concerns."""
        revision = self._routes.get(service)
        if revision is not None:
            self._mark(revision)
        holder = self._claims.holder(service)
        if holder and holder != revision:
            self._mark(holder)

    def expire(self) -> None:
        """Stop serving ports whose time is over; call it about once a second."""
        now_s = self._now()
        over = [service for service, (_, until_s) in self._lingering.items() if until_s <= now_s]
        for service in over:
            del self._lingering[service]
            if service not in self._ports:
                revision = self._routes.get(service)
                self._set_route(service, None)
                if revision is not None:
                    self._mark(revision)
        if over or not self._unbound.keys().isdisjoint(self._listened):
            self._update_listener()
        for port in [port for port, until_s in self._unbound.items() if until_s <= now_s]:
            del self._unbound[port]

    # --- what declares them ---

    def declare(self, key: str, declared: Declared | None, created: str) -> None:
        """Record the declaration of a revision; None: it was removed."""
        transparent = declared is not None and declared.activation.mode == MODE_TRANSPARENT
        service = service_of(declared, key) if transparent and declared is not None else ""
        front = self._fronts.get(key)
        if not transparent:
            if front is not None:
                del self._fronts[key]
                if front.service not in self._ports and front.service not in self._lingering:
                    self._set_route(front.service, None)
        elif front is None or front.service != service:
            self._fronts[key] = _Front(service, created)
        for other in self._claims.set_named(key, created, [service] if service else []):
            self._mark(other)

    def receive_load(self, load: Load) -> None:
        front = self._fronts.get(load.key)
        if front is not None:
            front.load = load

    def forget_decision(self, key: str) -> None:
        """Forget the decision: another replica decides on the revision."""
        front = self._fronts.get(key)
        if front is not None:
            front.state = None

    # --- what follows ---

    def entries(self, key: str) -> tuple[tuple[int, ...], bool]:
        """Return the ports that lead to the revision, and whether its clients should leave the activator.

        They should if the activator is out of the path and a port is still served.
        """
        services = self._services_of.get(key, set())
        ports = {self._ports[service] for service in services if service in self._ports}
        ports |= {self._lingering[service][0] for service in services if service in self._lingering}
        return tuple(sorted(ports)), bool(ports) and not self.is_in_path(key)

    def is_in_path(self, key: str) -> bool:
        """Return True if requests for the revision's Service come to the activator, or may."""
        return any(self._has_endpoints(service) for service in self._services_of.get(key, ()))

    def to_give_back(self) -> list[str]:
        """Return the Services that carry our label or slices and that no revision uses."""
        active = {front.service for front in self._fronts.values() if front.is_active}
        return sorted((self._labelled | self._slices.keys()) - active)

    def slices_of(self, service: str) -> list[FrontSliceRead]:
        """Return our slices of a Service."""
        return list(self._slices.get(service, {}).values())

    def positions(self) -> dict[Position, int]:
        """Count the Services that this replica decides on, by position."""
        counts = dict.fromkeys(Position, 0)
        for front in self._fronts.values():
            if front.state is not None and front.is_active:
                counts[front.state.position] += 1
        return counts

    def decide(
        self, key: str, declared: Declared, rule: ScalingRule, inputs: FrontInputs, is_ours: bool
    ) -> FrontOutcome | None:
        """Decide on the Service of a revision; `is_ours`: this replica writes for it. None: it is not transparent."""
        front = self._fronts.get(key)
        if front is None:
            return None
        holder = self._claims.holder(front.service)
        service = self._find_service(front.service)
        ports = usable_ports(service, declared, inputs.workload, front.service)
        if service is not None and not isinstance(ports, Refused):
            ports = missing_family(service, self._replica_families & self._families_listened(), front.service) or ports
        if holder != key:
            ports = Refused("ServiceTaken", f"the Service {front.service} belongs to {holder}, which is older")
        if isinstance(ports, Refused) or service is None:
            front.is_active, front.state = False, None
            why = ports if isinstance(ports, Refused) else Refused("ServiceNotFound", "there is no such Service")
            return FrontOutcome(None, None, refused(why.reason, why.message), True, True, NEVER)
        front.is_active = True
        self._set_route(front.service, key)
        number = self._port_for(front.service, service.metadata.uid)
        wanted = front_slices(service, ports, number, self._replicas)
        seen = traffic_seen(service, self._slices.get(front.service, {}).values(), self._slices_version())
        if not is_ours:
            front.state = None
            position = position_of(seen, wanted) or Position.OUT
            return FrontOutcome(None, seen, in_path(position, None), True, True, NEVER)
        if not wanted:
            why = Refused("NoActivator", "no replica of the activator is ready to take its requests")
            return FrontOutcome(None, seen, refused(why.reason, why.message), True, True, NEVER)
        now_s = self._now()
        shown = position_of(seen, wanted)
        state = self._decide_position(front, declared, rule, inputs, shown, key)
        position = state.position
        slices = wanted
        if position is Position.OUT:
            slices = tuple(_emptied(front_slice) for front_slice in wanted)
        traffic = DesiredPath(front.service.partition("/")[2], service.metadata.uid, position, slices, inputs.ready > 0)
        writes = not (state.keeps_pods and position is Position.OUT and inputs.ready > 0)
        if declared.activation.transparent.zero_only and inputs.wanted > 0 and inputs.replicas > 0:
            writes = False
        condition = in_path(position, state.reason)
        return FrontOutcome(traffic, seen, condition, state.keeps_pods, writes, max(state.due_s, now_s))

    def _decide_position(
        self,
        front: _Front,
        declared: Declared,
        rule: ScalingRule,
        inputs: FrontInputs,
        shown: Position | None,
        key: str,
    ) -> PathState:
        """Decide on the position of the activator; return the new state."""
        load = front.load or Load(key, 0, 0, 0)
        if front.state is None:
            front.state = PathState.begun(shown, inputs.replicas, load.requests_total)
        before = front.state.position
        seen = ObservedPath(
            self._now(),
            shown,
            inputs.ready,
            inputs.replicas,
            inputs.wanted,
            load.in_flight,
            load.queued,
            load.requests_total,
        )
        front.state = decide(_path_rule(declared, rule, key), seen, front.state)
        if front.state.position is not before:
            self.switches_total[front.state.position] += 1
        return front.state

    # --- ports ---

    def _port_for(self, service: str, uid: str) -> int:
        """Return the activator port of the Service; choose one if it has none."""
        number = self._ports.get(service)
        may_stay = number is not None and ENTRY_PORT_FIRST <= number <= ENTRY_PORT_LAST and number not in self._unbound
        if number is not None and may_stay and self._is_first_with(service, number):
            self._chosen.pop(service, None)
            return number
        chosen = self._chosen.get(service)
        if chosen in self._unbound:
            chosen = None
        if chosen is None and number is None and service in self._lingering:
            return self._lingering[service][0]  # our slice was deleted
        if chosen is None:
            used = {*self._ports.values(), *self._chosen.values(), *(port for port, _ in self._lingering.values())}
            used |= self._unbound.keys()
            first = zlib.crc32(uid.encode()) % _ENTRIES
            free = (ENTRY_PORT_FIRST + (first + step) % _ENTRIES for step in range(_ENTRIES))
            chosen = self._chosen[service] = next(port for port in free if port not in used)
        return chosen

    def _is_first_with(self, service: str, number: int) -> bool:
        """Return True if the Service is the first by name of those with this port."""
        return service == min(other for other, port in self._ports.items() if port == number)

    def _has_endpoints(self, service: str) -> bool:
        """Return True if our slices of the Service have an endpoint."""
        return any(front_slice.endpoints for front_slice in self._slices.get(service, {}).values())

    def _set_route(self, service: str, key: str | None) -> None:
        """Route the port of the Service to this revision; None removes the route."""
        before = self._routes.pop(service, None)
        if before is not None and before != key:
            self._services_of[before].discard(service)
            if not self._services_of[before]:
                del self._services_of[before]
        if key is not None:
            self._routes[service] = key
            self._services_of.setdefault(key, set()).add(service)


def _emptied(front_slice: FrontSlice) -> FrontSlice:
    return replace(front_slice, endpoints=())


def _key_of(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def _path_rule(declared: Declared, rule: ScalingRule, key: str) -> PathRule:
    """Return the settings of the decision; the measurement interval differs a little between revisions."""
    settings: Transparent = declared.activation.transparent
    limit = declared.revision.container_concurrency
    burst = settings.burst_capacity
    if burst is None:
        burst = ALWAYS_IN_PATH if limit else 0
    share = zlib.crc32(key.encode()) / 2**32
    return PathRule(
        burst,
        limit,
        float(settings.settle),
        float(settings.dwell),
        float(settings.look_interval) * (1 - _JITTER / 2 + _JITTER * share),
        float(settings.after_mistake),
        rule.scale_to_zero_grace_s,
        rule.stable_window_s,
        max(rule.min, *(entry.min for entry in rule.schedule)) if rule.schedule else rule.min,
        settings.zero_only,
    )
