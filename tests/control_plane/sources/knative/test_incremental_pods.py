"""Pods that are told one by one, as slices change, are those that a reading of all objects gives: in any sequence of
events, with any sharing, mode and port, and also for the state worker that is told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from activator.config.cluster_settings import MESH_ENABLED, ClusterSettings
from activator.config.model.pods import Health, PodTls
from activator.control_plane.sources.cluster.backends import of_endpoints, of_slices
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.revision_specs import SpecMaker, port_name_of, trusts_queue_proxy
from activator.control_plane.sources.knative.source import KnativeSource
from activator.control_plane.state.model import Model, commit
from activator.control_plane.state.reduce import reduce
from activator.kubernetes.objects import Endpoints, EndpointSlice, Revision
from activator.messages import (
    Change,
    Effect,
    ObservedPod,
    PodGone,
    PodRefused,
    PodsListed,
    Probed,
    RevisionBroken,
    RevisionGone,
)
from activator.runtime.clock import NEVER
from activator.runtime.controller_counts import Controllers
from lb.registry import default_name, names
from lb.tracker import READY
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    OWN_IP,
    config_map,
    endpoint,
    endpoint_slice,
    endpoints,
    revision,
    service,
)
from tests.control_plane.sources.knative.whole_reading import WholeReading
from tests.manual_clock import ManualClock

flags = st.sampled_from([True, True, False, None])
# Of each endpoint: the pod (0: it names none), its address, whether it is ready, serves, and terminates.
contents = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6), flags, flags, flags), max_size=6)
slice_names = st.sampled_from(["a", "b", "c", "d"])
pods = st.integers(0, 6).map(lambda number: f"pod-{number}" if number else "10.0.0.1:8012")
activators = st.lists(
    st.tuples(st.sampled_from([OWN_IP, OWN_IP, "10.9.0.2", "10.9.0.3", "10.10.0.1"]), flags), max_size=4
)
MAKER = SpecMaker("cluster.local", 0.5, Health(), default_name, frozenset(names()))
CONTAINERS: list[dict[str, Any]] = [
    {"name": "user", "ports": [{"containerPort": 8080}]},
    {"name": "user", "ports": [{"containerPort": 8080}], "startupProbe": {}},
    {"name": "user", "ports": [{"name": "h2c", "containerPort": 8080}]},
]


def made_endpoint(number: int, ip: str, ready: bool | None, serving: bool | None, going: bool | None) -> dict[str, Any]:
    zone = "a" if going is None else "b" if serving is None else None
    one = endpoint(ip, ready, going, uid=f"pod-{number}" if number else "", zone=zone)
    one["conditions"]["serving"] = serving
    return one


class Told:
    """What a state worker makes of what it is told."""

    def __init__(self) -> None:
        self.model = Model()

    def take(self, change: Change, now_s: float) -> list[Effect]:
        reduction = reduce(self.model, change, now_s)
        commit(self.model, reduction)
        assert not reduction.illegal
        return reduction.effects

    def records(self) -> dict[str, Any]:
        found = self.model.revisions.get(KEY)
        return {} if found is None else found.pods

    def pods(self, contested: set[str]) -> dict[str, tuple[object, ...]]:
        """`contested`: of these pods only what is said of them, not which of them has the address."""
        return {
            identity: _said_of(one)
            if identity in contested
            else (*_said_of(one), one.state(), one.ousted_by, one.proven)
            for identity, one in self.records().items()
        }


def _said_of(one: Any) -> tuple[object, ...]:
    return one.address, one.claims, one.limit, one.restarts, one.zone


class PodsByEvents(RuleBasedStateMachine):
    """`source` is told of events and looked at whenever the machine says so; `whole` has all objects."""

    @initialize(shares=st.sampled_from([True, True, False]), limit=st.sampled_from([0, 1, 2, 2]), at_once=st.booleans())
    def begin(self, shares: bool, limit: int, at_once: bool) -> None:
        """`at_once`: each event is looked at by itself."""
        self.at_once = at_once
        self.clock = ManualClock()
        self.deferred: list[Callable[[], None]] = []
        self.told: list[Change] = []
        self.tls: PodTls | None = None
        self.source = KnativeSource(
            KnativeEnvironment("activator-1", OWN_IP, "knative-serving"),
            MAKER,
            shares,
            self.told.append,
            self.deferred.append,
            self,
            Controllers(self.clock.now),
            self._panicked,
            self.clock.call_later,
        )
        self.whole = WholeReading(KEY, OWN_IP, shares)
        self.slices: dict[str, EndpointSlice] = {}
        self.endpoints: dict[str, Endpoints] = {}
        self.pods: dict[str, ObservedPod] = {}
        self.by_events, self.by_lists = Told(), Told()
        # Pods that have been at one address with another one. A list says all at once, events one after the other: who
        # came last may differ, and so who has the address.
        self.contested: set[str] = set()
        self.waiting_since_s = NEVER
        self.number = 1
        self.limit, self.container = limit, 0
        self.source.service_objects.changed(None, service(revision_uid="any"))  # so that nothing is forgotten
        self._set_revision()
        self.activators_are([(OWN_IP, True), ("10.9.0.2", True)])

    def settings_changed(self, settings: ClusterSettings) -> None:
        """As `KnativeListener`; what is compared here does not depend on it."""

    def pass_done(self, key: str) -> None:
        """As `KnativeListener`."""

    def tls_of(self, namespace: str) -> PodTls | None:
        return self.tls

    # --- what Kubernetes says ---

    @rule(pods=st.sets(st.integers(1, 6), min_size=3))
    def pods_are(self, pods: set[int]) -> None:
        """As Kubernetes mostly has them: each once, some in one slice and some in another."""
        for name in ("a", "b"):
            half = [(one, one, True, True, False) for one in sorted(pods) if (one % 2 == 0) == (name == "a")]
            self.slice_is(name, half, "IPv4", {"http": 8012, "http2": 8013}, "Private", "now")

    @rule(
        name=slice_names,
        content=contents,
        family=st.sampled_from(["IPv4", "IPv4", "IPv4", "IPv6", "FQDN"]),
        ports=st.sampled_from([{"http": 8012, "http2": 8013}] * 3 + [{"http2": 8013}]),
        kind=st.sampled_from(["Private"] * 6 + ["Public"]),
        of=st.sampled_from(["now"] * 6 + ["former", "other"]),
    )
    def slice_is(self, name: str, content: list[Any], family: str, ports: dict[str, int], kind: str, of: str) -> None:
        ip = "fd00::{}" if family == "IPv6" else "10.0.0.{}"
        one = endpoint_slice(
            *[made_endpoint(number, ip.format(host), *state) for number, host, *state in content],
            kind=kind,
            name="other-00001" if of == "other" else KEY.rpartition("/")[2],
            slice_name=name,
            family=family,
            ports=ports,
            revision_uid=self._uid(self.number - 1 if of == "former" else self.number),
        )
        self._put_slice(one, "" if of == "other" else kind)

    @rule(name=slice_names)
    def slice_is_gone(self, name: str) -> None:
        old = self.slices.pop(name, None)
        if old is not None:
            self.whole.private["slices"].pop(name, None)
            self.whole.public["slices"].pop(name, None)
            self.source.slice_objects.removed(old)

    @rule(told=activators)
    def activators_are(self, told: list[tuple[str, bool | None]]) -> None:
        made = [endpoint(ip, ready, uid=f"{ip}-{number}") for number, (ip, ready) in enumerate(told)]
        uid = self._uid(self.number)
        self._put_slice(endpoint_slice(*made, kind="Public", slice_name="public", revision_uid=uid), "Public")

    @rule(name=st.sampled_from(["one", "two"]), ready=st.sets(st.integers(1, 6)), others=st.sets(st.integers(1, 6)))
    def endpoints_are(self, name: str, ready: set[int], others: set[int]) -> None:
        ips = [f"10.0.0.{number}" for number in sorted(ready)]
        not_ready = tuple(f"10.0.0.{number}" for number in sorted(others))
        new = endpoints(*ips, not_ready=not_ready, object_name=name)
        old = self.endpoints.get(name)
        self.endpoints[name] = self.whole.private["endpoints"][name] = new
        self.source.endpoints_objects.changed(old, new)

    @rule(name=st.sampled_from(["one", "two"]))
    def endpoints_are_gone(self, name: str) -> None:
        old = self.endpoints.pop(name, None)
        if old is not None:
            del self.whole.private["endpoints"][name]
            self.source.endpoints_objects.removed(old)

    @rule(name=slice_names, of_endpoints_too=st.booleans())
    def events_are_lost(self, name: str, of_endpoints_too: bool) -> None:
        """As a list of the API server tells."""
        port_name = self._port_name()
        one = self.whole.private["slices"].get(name)
        if one is not None:
            self.source.slice_objects.resync(one)
            self.whole.resync(of_slices([one], port_name))
        if of_endpoints_too and self.endpoints:
            for other in self.endpoints.values():
                self.source.endpoints_objects.resync(other)
                if not self.whole.private["slices"]:
                    self.whole.resync(of_endpoints([other], port_name))

    @rule(
        what=st.sampled_from(["limit", "container", "another", "another", "mode", "tls", "lost", "table", "no slices"]),
        to=st.integers(0, 2),
    )
    def something_rare(self, what: str, to: int) -> None:
        """After which all pods are looked at, mostly."""
        if what == "limit":
            self.limit = to
            self._set_revision()
        elif what == "container":
            self.container = to
            self._set_revision()
        elif what == "another":
            self._replace_revision()
        elif what == "mode":
            mode = ("auto", "disabled", MESH_ENABLED)[to]
            self.source.config_objects.changed(None, config_map("config-network", mesh_compatibility_mode=mode))
        elif what == "tls":
            self.tls = PodTls() if to else None
            self.source.mark_all()
        elif what == "lost":
            self.source.relist(KEY)
        elif what == "no slices":
            for name in list(self.slices):
                if name != "public":
                    self.slice_is_gone(name)
        else:
            self._find_out(Probed(KEY, f"pod-{to}"), is_lost=True)
            self._find_out(RevisionBroken(KEY, "its effects were lost"))

    # --- what is found out ---

    @rule(by_service=st.booleans(), answers=st.booleans())
    def service_is_asked(self, by_service: bool, answers: bool) -> None:
        backends = self.source.revisions[KEY]
        backends.by_service = by_service
        backends.answered_address = backends.cluster_address() if answers else ""
        self.source.mark(KEY)

    @rule(pod=pods)
    def pod_answers(self, pod: str) -> None:
        self._find_out(Probed(KEY, pod))

    @rule(some=st.sets(pods, max_size=4), seconds=st.sampled_from([0.0, 3.0, 3.0]))
    def others_are_silent(self, some: set[str], seconds: float) -> None:
        """For so long."""
        for pod in sorted(some):
            self._find_out(Probed(KEY, pod))
        self.source.mark(KEY)
        self.compare()
        self.clock.pass_time(seconds)

    @rule(pod=pods)
    def pod_refuses(self, pod: str) -> None:
        for told in (self.by_events, self.by_lists):
            found = told.model.revisions.get(KEY)
            record = None if found is None else found.pods.get(pod)
            if record is not None and record.state() == READY:
                self._apply(told, PodRefused(KEY, pod, record.epoch, True))

    @rule(waits=st.booleans())
    def requests_wait(self, waits: bool) -> None:
        self.source.requests_wait(KEY, waits)
        if waits != (self.waiting_since_s != NEVER):
            self.waiting_since_s = self.clock.now() if waits else NEVER

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.9, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_time(seconds)

    # --- what comes of it ---

    @rule()
    @precondition(lambda self: self.source.is_behind())
    def compare(self) -> None:
        expected = self._expected()
        before = dict(self.pods)
        while self.deferred:
            self.deferred.pop(0)()
        seen_anew = []
        told, self.told[:] = list(self.told), []
        for change in told:
            self._replay(change)
            if isinstance(change, ObservedPod) and change.identity not in before:
                seen_anew.append(change.identity)
            self._apply(self.by_events, change)
            self._note_contested()
            if not isinstance(change, ObservedPod | PodGone | PodsListed):
                self._apply(self.by_lists, change)
        assert self.pods == {one.identity: one for one in expected}
        if not any(isinstance(change, PodsListed) for change in told):
            assert seen_anew == [one.identity for one in expected if one.identity in set(seen_anew)], "in their order"
        self._apply(self.by_lists, PodsListed(KEY, "kubernetes", tuple(expected)))
        self._note_contested()
        assert self.by_events.pods(self.contested) == self.by_lists.pods(self.contested)
        backends = self.source.revisions[KEY]
        known = backends._pods
        here = {one.address: known.at(one.address) for one in known.all()}
        assert sorted(identity for some in here.values() for identity in some) == sorted(known._backends)
        assert backends.due_s == self.whole.due_s
        assert backends.leaves_out == self.whole.shared.leaves_out
        assert backends.ready_pods == self.whole.ready_pods

    def _note_contested(self) -> None:
        for told in (self.by_events, self.by_lists):
            at: dict[str, list[str]] = {}
            for identity, one in told.records().items():
                at.setdefault(one.address, []).append(identity)
            for identities in at.values():
                if len(identities) > 1:
                    self.contested.update(identities)

    @invariant()
    def each_is_compared(self) -> None:
        if self.at_once and self.source.is_behind():
            self.compare()

    def teardown(self) -> None:
        if self.source.is_behind():
            self.compare()

    def _expected(self) -> list[ObservedPod]:
        backends = self.source.revisions[KEY]
        assert backends.revision is not None
        mode = self.source.settings.mesh_mode
        is_whole = (backends.by_service or mode == MESH_ENABLED) and backends.service_answers()
        return self.whole.pods(
            self._port_name(),
            self.limit,
            self.tls is not None,
            mode,
            trusts_queue_proxy(backends.revision),
            backends.answered_address if is_whole else "",
            self.source.answers.proven(KEY),
            self.waiting_since_s,
            self.clock.now(),
        )

    def _replay(self, change: Change) -> None:
        if isinstance(change, PodsListed):
            self.pods = {one.identity: one for one in change.pods}
        elif isinstance(change, ObservedPod):
            assert self.pods.get(change.identity) != change, "it is no news"
            self.pods[change.identity] = change
        elif isinstance(change, PodGone):
            del self.pods[change.identity]
        elif isinstance(change, RevisionGone):
            self.pods = {}

    def _find_out(self, change: Change, is_lost: bool = False) -> None:
        for told in (self.by_events, self.by_lists):
            self._apply(told, change, is_lost)

    def _apply(self, told: Told, change: Change, is_lost: bool = False) -> None:
        """`is_lost`: what follows from it does not reach the source."""
        for effect in told.take(change, self.clock.now()):
            if told is self.by_events and not is_lost:
                self.source.applied(effect)

    def _put_slice(self, new: EndpointSlice, kind: str) -> None:
        """`kind`: empty, of another revision."""
        name = new.metadata.name
        for side, one in ((self.whole.private, "Private"), (self.whole.public, "Public")):
            if kind == one:
                side["slices"][name] = new
            else:
                side["slices"].pop(name, None)
        old = self.slices.get(name)
        self.slices[name] = new
        self.source.slice_objects.changed(old, new)

    def _replace_revision(self) -> None:
        old = self.source.revisions[KEY].revision
        assert old is not None
        self.source.revision_objects.removed(old)
        self.whole.removed(self._uid(self.number))
        self.number += 1
        self._set_revision()

    def _set_revision(self) -> None:
        new: Revision = revision(limit=self.limit, uid=self._uid(self.number), containers=[CONTAINERS[self.container]])
        self.source.revision_objects.changed(None, new)

    def _port_name(self) -> str:
        found = self.source.revisions[KEY].revision
        assert found is not None
        return port_name_of(found)

    def _uid(self, number: int) -> str:
        return f"uid-{number}"

    def _panicked(self, key: str, what: object, error: object, now_s: float) -> float:
        assert isinstance(error, Exception)
        raise error


TestPodsByEvents = PodsByEvents.TestCase
TestPodsByEvents.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=30)


def test_a_pod_that_moves_keeps_its_place_before_one_that_comes_to_the_same_address() -> None:
    """In the order in which a list has them: the last one has the address."""
    machine = PodsByEvents()
    machine.begin(shares=True, limit=0, at_once=True)
    machine.activators_are([])
    machine.each_is_compared()
    machine.pods_are({1, 2, 3})
    machine.each_is_compared()
    ports = {"http": 8012, "http2": 8013}
    machine.slice_is("a", [(0, 1, True, True, True)], "IPv4", ports, "Private", "now")
    machine.something_rare("limit", 1)
    machine.each_is_compared()
    moved = [(0, 1, True, True, True), (0, 5, True, True, False), (3, 5, True, True, False)]
    machine.slice_is("a", moved, "IPv4", ports, "Private", "now")
    machine.each_is_compared()
    machine.teardown()
