"""Knative's objects, and what becomes of a revision's table; the numbers are those of tests/knative_contract.md."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.kinds import Duration
from activator.config.model.pods import PROBE_QUEUE_PROXY, Health, PodTls
from activator.config.specs import BalancingSpec
from activator.control_plane.sources.knative.revision_specs import max_scale_of, port_name_of, trusts_queue_proxy
from activator.control_plane.sources.knative.service_backends import ServiceBackends
from activator.control_plane.state.supervision import (
    PANIC_BACKOFF_INITIAL_S,
    PANIC_BACKOFF_MAX_S,
    PANIC_RESET_AFTER_S,
)
from activator.messages import PodsListed, RevisionFailed, RevisionGone, RevisionRecovered, RevisionSet, Sweep
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    NAME,
    OWN_IP,
    PATIENCE_S,
    Cluster,
    config_map,
    endpoint,
    endpoint_slice,
    endpoints,
    revision,
    service,
)

# --- revisions ---


def test_a_revision_as_the_program_sees_it() -> None:
    cluster = Cluster()
    cluster.see(revision(limit=10, timeoutSeconds=120, responseStartTimeoutSeconds=30, idleTimeoutSeconds=60))
    spec = cluster.joined.throttler(KEY).spec
    assert spec.routing.hosts == (f"{NAME}.default.svc.cluster.local",)
    assert (spec.container_concurrency, spec.balancing.policy) == (10, "round-robin")
    assert spec.probing.probe.kind == PROBE_QUEUE_PROXY
    assert (spec.timeouts.total_s, spec.timeouts.first_byte_s, spec.timeouts.idle_s) == (120.0, 30.0, 60.0)
    assert spec.queue.timeout_s == 30.0 and spec.timeouts.from_arrival and spec.upgrades == ("*",)


@pytest.mark.parametrize(("limit", "policy"), [(None, "choice-of-2"), (0, "choice-of-2"), (1, "first-available")])
def test_the_policy_follows_the_limit(limit: int | None, policy: str) -> None:
    cluster = Cluster()
    cluster.see(revision(limit=limit))
    assert cluster.joined.throttler(KEY).spec.balancing.policy == policy


TCP = {"tcpSocket": {"port": 0}, "successThreshold": 1}  # what Knative's webhook writes where there is none
SIDECAR = {"name": "sidecar", "readinessProbe": {"tcpSocket": {"port": 9000}}}


@pytest.mark.parametrize(
    ("probe", "beside", "suffices"),
    [
        (TCP, [], True),
        ({"tcpSocket": {"port": 8080}}, [], True),
        (TCP, [{"name": "sidecar"}], True),
        (TCP, [SIDECAR], False),
        ({"tcpSocket": {"port": 9000}}, [], False),
        ({"tcpSocket": {"port": "admin"}}, [], False),
        ({**TCP, "successThreshold": 2}, [], False),
        ({"httpGet": {"path": "/ready", "port": 0}}, [], False),
        ({"grpc": {"port": 8080}}, [], False),
        ({"exec": {"command": ["true"]}}, [], False),
        (None, [], False),
    ],
)
def test_when_an_open_port_is_all_that_queue_proxy_looks_for(
    probe: dict[str, Any] | None, beside: list[dict[str, Any]], suffices: bool
) -> None:
    cluster = Cluster()
    serving: dict[str, Any] = {"name": "user", "ports": [{"containerPort": 8080}]}
    if probe is not None:
        serving["readinessProbe"] = probe
    cluster.see(revision(containers=[*beside, serving]))
    found = cluster.joined.throttler(KEY).spec.probing.probe
    assert (found.port, found.port_suffices) == (8080, suffices)


def test_what_the_configuration_says_of_health_counts_for_the_revisions_of_a_cluster_too() -> None:
    cluster = Cluster(health=Health(strikes=7, ejection_share=0.2, stale_after=Duration(60.0)))
    cluster.see(revision())
    spec = cluster.joined.throttler(KEY).spec
    assert (spec.health.strikes, spec.health.ejection_share, spec.health.stale_after_s) == (7, 0.2, 60.0)


def test_the_limit_is_live() -> None:
    cluster = Cluster()
    first = revision(limit=2)
    cluster.see(first, endpoint_slice(endpoint("10.0.0.1")))
    cluster.answer("10.0.0.1")
    assert cluster.limits() == {"10.0.0.1:8012": 2}
    cluster.see(revision(limit=5), old=first)
    assert cluster.limits() == {"10.0.0.1:8012": 5}


def test_annotations() -> None:
    cluster = Cluster()
    said = {"activator.dev/trailing-fragmentation-threshold": "0.25", "activator.dev/policy": "least-connections"}
    cluster.see(revision(annotations={**said, "autoscaling.knative.dev/max-scale": "7"}))
    balancing = cluster.joined.throttler(KEY).spec.balancing
    assert balancing == BalancingSpec("least-connections", max_scale=7, trailing_fragmentation_threshold=0.25)


@pytest.mark.parametrize(("says", "zone"), [("true", "eu-a"), ("false", ""), ("yes", ""), (None, "")])
def test_a_revision_may_prefer_the_zone_of_the_activator(says: str | None, zone: str) -> None:
    cluster = Cluster(zone="eu-a")
    annotations = {} if says is None else {"activator.dev/prefer-zone": says}
    cluster.see(revision(annotations=annotations), service())
    assert cluster.joined.throttler(KEY).spec.balancing.zone == zone
    first = endpoint_slice(endpoint("10.0.0.1", zone="eu-a"), endpoint("10.0.0.2", zone="eu-b"))
    cluster.see(first)
    cluster.answer("10.0.0.1", "10.0.0.2")
    assert far_of(cluster) == {"10.0.0.1:8012": False, "10.0.0.2:8012": bool(zone)}
    cluster.see(endpoint_slice(endpoint("10.0.0.1", zone="eu-b"), endpoint("10.0.0.2")), old=first)
    assert far_of(cluster) == {"10.0.0.1:8012": bool(zone), "10.0.0.2:8012": False}


def far_of(cluster: Cluster) -> dict[str, bool]:
    table = cluster.joined.throttler(KEY).table
    table.check_invariants()
    return {one.address: one.is_far for one in table.slots[: table.length] if one.address}


def test_what_it_belongs_to() -> None:
    cluster = Cluster()
    labels = {"serving.knative.dev/service": "svc", "serving.knative.dev/configuration": "conf"}
    cluster.see(revision(belongs_to=labels))
    spec = cluster.joined.throttler(KEY).spec
    assert (spec.knative.service, spec.knative.configuration) == ("svc", "conf")


@pytest.mark.parametrize("mistake", ["2", "-1", "x", "nan", ""])
def test_a_mistake_in_an_annotation_is_as_if_it_were_not_there(mistake: str) -> None:
    cluster = Cluster()
    cluster.see(
        revision(annotations={"activator.dev/trailing-fragmentation-threshold": mistake, "activator.dev/policy": "x"})
    )
    spec = cluster.joined.throttler(KEY).spec
    assert (spec.balancing.trailing_fragmentation_threshold, spec.balancing.policy) == (0.5, "choice-of-2")


@pytest.mark.parametrize(
    ("annotations", "settings", "expected"),
    [
        ({}, {}, 0),
        ({}, {"max_scale": 5}, 5),
        ({}, {"max_scale_limit": 9}, 9),
        ({"autoscaling.knative.dev/max-scale": "3"}, {"max_scale": 5}, 3),
        ({"autoscaling.knative.dev/maxScale": "3"}, {}, 3),
        ({"autoscaling.knative.dev/max-scale": "0"}, {"max_scale": 5}, 5),
        ({"autoscaling.knative.dev/max-scale": "x"}, {}, 0),
        ({"autoscaling.knative.dev/max-scale": "9" * 20}, {"max_scale": 5}, 5),
        ({"autoscaling.knative.dev/max-scale": "9" * 5000}, {}, 0),
    ],
)
def test_max_scale(annotations: dict[str, str], settings: dict[str, Any], expected: int) -> None:
    assert max_scale_of(annotations, ClusterSettings(**settings)) == expected


def test_a_clusters_new_default_reaches_every_revision() -> None:
    cluster = Cluster()
    cluster.see(revision(), revision("other"))
    cluster.see(config_map("config-autoscaler", max_scale="12"))
    assert {cluster.joined.throttler(key).spec.balancing.max_scale for key in (KEY, "default/other")} == {12}


def test_the_protocol_is_that_of_the_programs_first_port() -> None:
    cluster = Cluster()
    first = revision(ports=[{"name": "h2c", "containerPort": 8080}])
    assert port_name_of(first) == "http2"
    cluster.see(first)
    throttler = cluster.joined.throttler(KEY)
    assert (throttler.spec.connection.protocol, throttler.queue.failure) == ("h2c", None)
    assert not any(isinstance(change, RevisionFailed) for change in cluster.told)
    cluster.see(revision(), old=first)
    assert cluster.joined.throttler(KEY).spec.connection.protocol == "h1"


@pytest.mark.parametrize(
    ("containers", "believes"),
    [
        ([{"name": "user"}], True),
        ([{"name": "user", "readinessProbe": {"httpGet": {"path": "/"}}}], True),
        ([{"name": "user", "readinessProbe": {"exec": {"command": ["true"]}}}], False),
        ([{"name": "user", "startupProbe": {"httpGet": {"path": "/"}}}], False),
        ([{"name": "user", "ports": [{"containerPort": 1}]}, {"name": "side", "startupProbe": {}}], False),
        (
            [{"name": "user", "ports": [{"containerPort": 1}]}, {"name": "side", "readinessProbe": {"exec": {}}}],
            True,
        ),
    ],
)
def test_whether_queue_proxys_answer_is_enough(containers: list[dict[str, Any]], believes: bool) -> None:
    assert trusts_queue_proxy(revision(containers=containers)) is believes


def test_a_revision_that_goes_and_comes_again() -> None:
    cluster = Cluster()
    first = revision()
    cluster.see(first, endpoint_slice(endpoint("10.0.0.1")))
    cluster.answer("10.0.0.1")
    cluster.miss(first)
    assert KEY not in cluster.joined.tables.throttlers
    assert isinstance(cluster.told[-1], RevisionGone)
    cluster.see(revision(uid="another"))
    assert cluster.ready() == [], "its predecessor's pod runs another program, however ready it is"
    old, new = endpoint_slice(endpoint("10.0.0.1")), endpoint_slice(endpoint("10.0.0.1"), revision_uid="another")
    cluster.see(new, old=old)
    assert cluster.ready() == ["10.0.0.1:8012"], "what says that it is the new one's"


def test_a_successor_gets_its_own_pods_while_its_predecessors_are_being_collected() -> None:
    cluster = Cluster()
    cluster.answer("10.0.0.1", "10.0.0.2")
    old_slice, old_service = endpoint_slice(endpoint("10.0.0.1")), service("10.96.0.1")
    cluster.see(revision(), old_slice, old_service)
    cluster.miss(revision())
    cluster.see(revision(uid="second"))
    folder = cluster.source.revisions[KEY]
    assert cluster.ready() == [] and folder.cluster_address() == ""
    cluster.see(
        endpoint_slice(endpoint("10.0.0.2"), slice_name="new", revision_uid="second"),
        service("10.96.0.2", object_name="new", revision_uid="second"),
    )
    assert cluster.ready() == ["10.0.0.2:8012"] and folder.cluster_address() == "10.96.0.2:80"
    cluster.miss(old_slice)
    cluster.miss(old_service)
    assert cluster.ready() == ["10.0.0.2:8012"] and folder.cluster_address() == "10.96.0.2:80"


def test_a_private_service_that_is_replaced_by_one_of_another_name() -> None:
    """The new one comes before the old one goes."""
    cluster = Cluster()
    cluster.answer("10.0.0.1", "10.0.0.2")
    old = [service("10.96.0.1"), endpoints("10.0.0.1")]
    cluster.see(revision(), *old)
    cluster.see(service("10.96.0.2", object_name="b"), endpoints("10.0.0.2", object_name="b"))
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"]
    for one in old:
        cluster.miss(one)
    assert cluster.source.revisions[KEY].cluster_address() == "10.96.0.2:80"
    assert cluster.ready() == ["10.0.0.2:8012"]


# --- backends ---


def test_a_pod_gets_requests_when_it_has_answered() -> None:
    cluster = Cluster()
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1")))
    assert cluster.slots() == {"pod-10.0.0.1": "pending"}
    cluster.answer("10.0.0.1")
    assert cluster.slots() == {"pod-10.0.0.1": "ready"}


def test_a_pod_that_is_not_ready_yet_is_believed_when_queue_proxy_answers() -> None:
    cluster = Cluster()
    cluster.answer("10.0.0.1")
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1", ready=False)))
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_with_an_exec_probe_kubernetes_has_the_say() -> None:
    cluster = Cluster()
    containers = [{"name": "user", "readinessProbe": {"exec": {"command": ["x"]}}}]
    before = endpoint_slice(endpoint("10.0.0.1", ready=False))
    cluster.answer("10.0.0.1")
    cluster.see(revision(containers=containers), before)
    assert cluster.ready() == [] and cluster.asked == []
    cluster.see(endpoint_slice(endpoint("10.0.0.1")), old=before)
    assert cluster.ready() == ["10.0.0.1:8012"]


@pytest.mark.parametrize("was_ready", [False, True])
def test_with_an_exec_probe_kubernetes_has_the_say_however_long_it_takes(was_ready: bool) -> None:
    """A program that loads for a quarter of an hour has its port open long before it may be asked anything."""
    cluster = Cluster()
    cluster.answer("10.0.0.1")
    exec_probe = [{"name": "user", "ports": [{"containerPort": 8080}], "readinessProbe": {"exec": {"command": ["x"]}}}]
    before, after = (endpoint_slice(endpoint("10.0.0.1", ready=ready)) for ready in (was_ready, False))
    cluster.see(revision(containers=exec_probe), before)
    cluster.see(after, old=before)
    for _ in range(3):
        cluster.joined.clock.pass_time(float(Health().stale_after))
        cluster.joined.do(Sweep(KEY))
        cluster.turn()
        assert cluster.slots() == {"pod-10.0.0.1": "not_ready"}
    cluster.see(endpoint_slice(endpoint("10.0.0.1")), old=after)
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_one_good_pod_and_one_bad() -> None:
    cluster = Cluster()
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    cluster.answer("10.0.0.1")
    assert cluster.ready() == ["10.0.0.1:8012"]
    cluster.answer("10.0.0.2")
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"]


def test_ready_and_then_not_is_asked_anew_and_keeps_its_ledger() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1"))
    cluster.see(revision(limit=1), before)
    cluster.answer("10.0.0.1")
    lease = cluster.joined.throttler(KEY).table
    lease.reserve(lease.slots[0])
    cluster.answering.clear()
    after = endpoint_slice(endpoint("10.0.0.1", ready=False))
    cluster.see(after, old=before)
    assert cluster.ready() == [] and cluster.joined.throttler(KEY).table.in_flight == 1
    cluster.answer("10.0.0.1")
    assert cluster.ready() == ["10.0.0.1:8012"] and cluster.joined.throttler(KEY).table.in_flight == 1


def test_ready_as_before_while_events_were_lost_is_asked_anew_and_keeps_its_ledger() -> None:
    """Its containers may have been started anew meanwhile."""
    cluster = Cluster()
    private = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False))
    cluster.see(revision(limit=1), private)
    cluster.answer("10.0.0.1", "10.0.0.2")
    table = cluster.joined.throttler(KEY).table
    table.reserve(next(slot for slot in table.slots if slot.address == "10.0.0.1:8012"))
    cluster.answering.clear()
    asked = len(cluster.asked)
    cluster.lose_events_of(private)
    assert cluster.asked[asked:] == ["10.0.0.1:8012"], "the other was not ready for Kubernetes, before or after"
    assert cluster.ready() == ["10.0.0.2:8012"] and table.in_flight == 1
    cluster.answer("10.0.0.1")
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"] and table.in_flight == 1
    assert len(cluster.asked) == asked + 1


def test_of_what_nobody_looks_at_events_may_be_lost() -> None:
    cluster = Cluster()
    private, public = endpoint_slice(endpoint("10.0.0.1")), endpoint_slice(endpoint("10.0.0.1"), kind="Public")
    whole = endpoints("10.0.0.1")
    cluster.see(revision(), private, public, whole, service())
    cluster.answer("10.0.0.1")
    told = len(cluster.told)
    for one in (public, whole, service(), endpoint_slice(endpoint("10.0.0.9"), kind="Other")):
        cluster.lose_events_of(one)
    assert len(cluster.told) == told and cluster.ready() == ["10.0.0.1:8012"]
    cluster.miss(private)
    cluster.lose_events_of(whole)
    assert len(cluster.asked) == 2, "Endpoints count where there are no slices"


def test_a_proven_pod_is_not_asked_again_for_no_reason() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1"))
    cluster.see(revision(), before)
    cluster.answer("10.0.0.1")
    asked = len(cluster.asked)
    told = len(cluster.told)
    cluster.see(before, old=before)
    assert len(cluster.told) == told, "nothing is told that has not changed"
    cluster.see(endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2")), old=before)
    assert cluster.asked[asked:] == ["10.0.0.2:8012"]


def test_a_terminating_pod_takes_no_more() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    cluster.see(revision(), before)
    cluster.answer("10.0.0.1", "10.0.0.2")
    cluster.see(endpoint_slice(endpoint("10.0.0.1", ready=False, terminating=True), endpoint("10.0.0.2")), old=before)
    assert cluster.ready() == ["10.0.0.2:8012"]


def test_a_pod_that_vanishes_leaves() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    cluster.see(revision(), before)
    cluster.answer("10.0.0.1", "10.0.0.2")
    cluster.see(endpoint_slice(endpoint("10.0.0.2")), old=before)
    assert cluster.slots() == {"pod-10.0.0.2": "ready"}
    cluster.see(endpoint_slice(), old=endpoint_slice(endpoint("10.0.0.2")))
    assert cluster.slots() == {}


def test_an_address_that_another_pod_has_now_is_another_pod() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1", uid="old"))
    cluster.see(revision(), before)
    cluster.answer("10.0.0.1")
    cluster.answering.clear()
    cluster.see(endpoint_slice(endpoint("10.0.0.1", uid="new")), old=before)
    assert cluster.slots() == {"new": "pending"}


def test_two_slices_of_one_service() -> None:
    cluster = Cluster()
    first = endpoint_slice(endpoint("10.0.0.1"), slice_name="s1")
    second = endpoint_slice(endpoint("10.0.0.2"), endpoint("10.0.0.1"), slice_name="s2")
    cluster.see(revision(), first, second)
    cluster.answer("10.0.0.1", "10.0.0.2")
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"]
    cluster.miss(first)
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"], "the pod was moved to the other slice"
    cluster.miss(second)
    assert cluster.slots() == {}


def test_two_address_families() -> None:
    cluster = Cluster()
    six = endpoint_slice(endpoint("2001:db8::1", uid="p"), slice_name="six", family="IPv6")
    four = endpoint_slice(endpoint("10.0.0.1", uid="p"), slice_name="four")
    cluster.see(revision(), six)
    cluster.answer("2001:db8::1", "10.0.0.1")
    assert cluster.ready() == ["[2001:db8::1]:8012"]
    cluster.see(four)
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_endpoints_count_where_there_are_no_slices() -> None:
    cluster = Cluster()
    known = endpoints("10.0.0.1", not_ready=("10.0.0.2",))
    cluster.see(revision(), known)
    cluster.answer("10.0.0.1", "10.0.0.2")
    assert cluster.ready() == ["10.0.0.1:8012", "10.0.0.2:8012"]
    cluster.see(endpoint_slice(endpoint("10.0.0.1")))
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_ports_of_other_names_do_not_count() -> None:
    cluster = Cluster()
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1"), ports={"http2": 8013, "metrics": 9090}))
    assert cluster.slots() == {}


def test_an_endpoint_without_conditions_or_target() -> None:
    cluster = Cluster()
    cluster.answer("10.0.0.1")
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1", ready=None, uid="")))
    assert cluster.slots() == {"10.0.0.1:8012": "ready"}


def test_pods_before_their_revision() -> None:
    cluster = Cluster()
    cluster.see(endpoint_slice(endpoint("10.0.0.1")), service())
    assert cluster.told == []
    cluster.answer("10.0.0.1")
    cluster.see(revision())
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_many_objects_of_one_turn_are_told_once() -> None:
    cluster = Cluster()
    many = [endpoint_slice(endpoint(f"10.0.{number}.1"), slice_name=f"s{number}") for number in range(50)]
    cluster.see(revision(), *many)
    assert [type(change) for change in cluster.told] == [RevisionSet, PodsListed]


def test_a_label_that_changes_moves_the_slice_to_the_other_revision() -> None:
    cluster = Cluster()
    before = endpoint_slice(endpoint("10.0.0.1"), slice_name="s")
    cluster.see(revision(), revision("other"), before)
    cluster.see(endpoint_slice(endpoint("10.0.0.1"), name="other", slice_name="s"), old=before)
    assert cluster.slots() == {} and cluster.slots("default/other") == {"pod-10.0.0.1": "pending"}


def test_nothing_is_kept_of_what_is_gone() -> None:
    cluster = Cluster()
    known = [revision(), endpoint_slice(endpoint("10.0.0.1")), service(), endpoints("10.0.0.1")]
    cluster.see(*known)
    for one in known:
        cluster.miss(one)
    assert cluster.source.revisions == {}


def test_each_pass_was_in_the_queue_once_and_is_counted_by_its_controller() -> None:
    cluster = Cluster()
    cluster.see(revision(), revision("other"))
    cluster.see(endpoint_slice(endpoint("10.0.0.1")), service())
    cluster.source.mark(KEY)
    cluster.joined.clock.pass_time(0.5)
    cluster.turn()
    found = {}
    for name in ("revision", "endpoints"):
        counts = cluster.controllers.of(name)
        passes, waits = sum(counts.results.values()), counts.queue_time.buckets()[-1][1]
        found[name] = (counts.added_total, passes, waits, counts.queue_time.sum)
        assert counts.depth == counts.active == 0
    assert found["revision"] == (2, 2, 2, 0.0)
    added, passes, waits, waited_s = found["endpoints"]
    assert added == passes == waits >= 2 and waited_s == 0.5


def test_settings_that_say_the_same_again_are_no_news() -> None:
    cluster = Cluster()
    cluster.see(revision(), config_map("config-network", mesh_compatibility_mode="disabled"))
    told = len(cluster.settings), len(cluster.told)
    cluster.see(config_map("config-network", mesh_compatibility_mode="disabled"), config_map("config-unknown", a="b"))
    assert (len(cluster.settings), len(cluster.told)) == told == (1, told[1])
    assert sum(cluster.controllers.of("revision").results.values()) == 1, "nor is anything worked out for it"


# What no API server sends: it stands for a defect of ours.
BROKEN = replace(endpoint_slice(slice_name="broken"), endpoints=[None])


def test_a_defect_in_one_revision_is_counted_and_loses_nothing_of_it_nor_of_others() -> None:
    cluster = Cluster()
    cluster.see(revision())
    private = cluster.source.revisions[KEY].private
    private.put_slice(BROKEN)
    cluster.see(revision(limit=5), revision("other"))
    assert "default/other" in cluster.joined.tables.throttlers
    assert sum(cluster.controllers.of("revision").errors.values()) == 1
    private.drop_slice("broken")
    cluster.see(endpoint_slice(endpoint("10.0.0.1")))
    assert cluster.joined.throttler(KEY).spec.container_concurrency == 5, "worked out before the defect, but not told"
    assert cluster.slots() == {"pod-10.0.0.1": "pending"}


def failing_cluster() -> tuple[Cluster, ServiceBackends]:
    """A revision that cannot be worked out while what is returned has a broken slice."""
    cluster = Cluster()
    cluster.see(revision())
    private = cluster.source.revisions[KEY].private
    private.put_slice(BROKEN)
    cluster.see(revision(limit=5), revision("other"))
    return cluster, private


def test_a_defect_in_one_revision_is_tried_again_by_itself_with_a_backoff_that_grows_to_its_bound() -> None:
    cluster, private = failing_cluster()
    supervision, clock = cluster.joined.worker.supervision, cluster.joined.clock
    waits = []
    for tried in range(1, 14):
        assert supervision.panics_total == supervision.in_a_row(KEY, clock.now()) == tried
        assert clock.pending() == 1
        began_s = clock.now()
        while supervision.panics_total == tried:
            clock.pass_time(0.05)
            cluster.turn()
        waits.append(clock.now() - began_s)
    grown = [min(PANIC_BACKOFF_INITIAL_S * 2.0**n, PANIC_BACKOFF_MAX_S) for n in range(13)]
    assert waits == pytest.approx(grown, abs=0.11)
    assert cluster.controllers.of("revision").retries_total == 13
    assert supervision.dead_letters[-1].change == "'what the cluster says of it'"
    assert "default/other" in cluster.joined.tables.throttlers
    private.drop_slice("broken")
    clock.pass_time(PANIC_BACKOFF_MAX_S)
    cluster.turn()
    assert cluster.joined.throttler(KEY).spec.container_concurrency == 5, "without any news of it"
    assert clock.pending() == 0
    clock.pass_time(PANIC_RESET_AFTER_S)
    private.put_slice(BROKEN)
    cluster.see(revision(limit=6))
    assert (supervision.in_a_row(KEY, clock.now()), clock.pending()) == (1, 1), "health has reset it"


def test_news_of_a_revision_that_failed_do_not_wait_for_its_backoff_and_its_end_ends_it() -> None:
    cluster, private = failing_cluster()
    clock = cluster.joined.clock
    private.drop_slice("broken")
    cluster.see(revision(limit=7))
    assert cluster.joined.throttler(KEY).spec.container_concurrency == 7
    assert clock.pending() == 0
    private.put_slice(BROKEN)
    cluster.see(revision(limit=8))
    assert clock.pending() == 1
    private.drop_slice("broken")
    cluster.miss(revision(limit=8))
    assert (clock.pending(), cluster.joined.worker.supervision.in_a_row(KEY, clock.now())) == (0, 0)
    clock.pass_time(PANIC_BACKOFF_MAX_S)
    cluster.turn()
    assert KEY not in cluster.source.revisions and KEY not in cluster.joined.tables.throttlers


def test_what_was_lost_of_a_revision_is_told_again() -> None:
    cluster = Cluster()
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1")), revision("other"))
    told = [change for change in cluster.told if change.key == KEY]
    cluster.told.clear()
    cluster.source.relist(KEY)
    cluster.turn()
    assert [change for change in cluster.told if not isinstance(change, RevisionRecovered)] == told
    assert RevisionRecovered(KEY) in cluster.told, "it may be the end of a failure that was lost"
    cluster.miss(revision())
    cluster.told.clear()
    for key in (KEY, "default/unknown"):
        cluster.source.relist(key)
        cluster.turn()
    assert cluster.told == [RevisionGone(KEY), RevisionGone("default/unknown")]


def test_with_tls_pods_are_spoken_to_on_its_own_port() -> None:
    cluster = Cluster()
    cluster.tls = PodTls(server_name="data-plane.knative.dev")
    six = endpoint_slice(endpoint("2001:db8::1"), slice_name="six", family="IPv6")
    cluster.answer("10.0.0.1", "2001:db8::1")
    cluster.see(revision(), endpoint_slice(endpoint("10.0.0.1")), six)
    assert cluster.ready() == ["10.0.0.1:8112", "[2001:db8::1]:8112"]


# --- a mesh ---


def test_mode_disabled_takes_kubernetes_word() -> None:
    cluster = Cluster()
    cluster.see(config_map("config-network", mesh_compatibility_mode="disabled"))
    cluster.see(revision(), service(), endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False)))
    assert cluster.ready() == ["10.0.0.1:8012"]
    assert cluster.asked == ["10.0.0.2:8012"], "the other may answer before Kubernetes says so"


def test_in_mode_disabled_a_pod_that_answers_is_used_before_kubernetes_calls_it_ready() -> None:
    """As in probePodIPs of pkg/activator/net/revision_backends.go: only what is ready already is not asked."""
    cluster = Cluster()
    cluster.see(config_map("config-network", mesh_compatibility_mode="disabled"))
    before = endpoint_slice(endpoint("10.0.0.1", ready=False))
    cluster.see(revision(), before)
    assert cluster.ready() == []
    cluster.answer("10.0.0.1")
    assert cluster.ready() == ["10.0.0.1:8012"]
    cluster.answering.clear()
    ready, after = endpoint_slice(endpoint("10.0.0.1")), endpoint_slice(endpoint("10.0.0.1", ready=False))
    cluster.see(ready, old=before)
    assert cluster.ready() == ["10.0.0.1:8012"] and len(cluster.asked) == 1
    cluster.see(after, old=ready)
    assert cluster.ready() == [] and len(cluster.asked) == 2, "ready, then not: asked anew"
    cluster.see(ready, old=after)
    assert cluster.ready() == ["10.0.0.1:8012"]


def test_in_mode_disabled_with_an_exec_probe_a_pod_that_is_not_ready_is_not_asked() -> None:
    cluster = Cluster()
    cluster.answer("10.0.0.1")
    cluster.see(config_map("config-network", mesh_compatibility_mode="disabled"))
    containers = [{"name": "user", "readinessProbe": {"exec": {"command": ["x"]}}}]
    cluster.see(revision(containers=containers), endpoint_slice(endpoint("10.0.0.1", ready=False)))
    assert cluster.ready() == [] and cluster.asked == []


def test_mode_enabled_takes_the_service_even_if_pods_answer() -> None:
    cluster = Cluster()
    cluster.says["10.96.0.5:80"] = (200, "queue")
    cluster.answer("10.0.0.1", "10.0.0.2")
    cluster.see(config_map("config-network", mesh_compatibility_mode="enabled"))
    known = endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3", ready=False))
    cluster.see(revision(limit=10), service(), known)
    assert cluster.limits() == {"10.96.0.5:80": 20}
    cluster.see(endpoint_slice(endpoint("10.0.0.1", ready=False)), old=known)
    assert cluster.ready() == []


def test_with_tls_the_service_is_spoken_to_on_its_own_port() -> None:
    cluster = Cluster()
    cluster.tls = PodTls(server_name="data-plane.knative.dev")
    cluster.says["10.96.0.5:80"] = (200, "queue")
    cluster.see(config_map("config-network", mesh_compatibility_mode="enabled"))
    cluster.see(revision(limit=10), service(), endpoint_slice(endpoint("10.0.0.1")))
    assert cluster.limits() == {"10.96.0.5:443": 10}


def test_that_pods_were_behind_a_mesh_is_not_believed_of_a_successors() -> None:
    cluster = Cluster()
    known = endpoint_slice(endpoint("10.0.0.1"))
    cluster.says.update({"10.96.0.5:80": (200, "queue"), "10.96.0.2:80": (200, "queue")})
    cluster.see(revision(), service(), known)
    folder = cluster.source.revisions[KEY]
    cluster.joined.clock.pass_time(PATIENCE_S)
    cluster.turn()
    assert cluster.ready() == ["10.96.0.5:80"]
    cluster.miss(revision())
    assert cluster.source.revisions[KEY] is folder, "its predecessor's objects are not collected yet"
    cluster.see(
        revision(uid="second"),
        service("10.96.0.2", object_name="new", revision_uid="second"),
        endpoint_slice(endpoint("10.0.0.2"), slice_name="new", revision_uid="second"),
    )
    assert cluster.ready() == []
    cluster.answer("10.0.0.2")
    assert cluster.ready() == ["10.0.0.2:8012"]


def test_a_probe_through_a_mesh_names_the_private_service_also_of_a_long_name() -> None:
    cluster = Cluster()
    cluster.see(config_map("config-network", enable_mesh_pod_addressability="true"))
    cluster.see(revision("f" * 63), revision("f" * 55))
    hosts = [cluster.joined.throttler(f"default/{'f' * count}").spec.probing.probe.host for count in (63, 55)]
    digest = "105d7597f637e83cc711605ac3ea4957"  # of the 63 letters
    assert hosts == [f"{'f' * 23}{digest}-private.default", f"{'f' * 55}-private.default"]


# --- shares ---


def public(*ips: str) -> Any:
    return endpoint_slice(*(endpoint(ip) for ip in ips), kind="Public")


def test_a_share_by_the_place_among_the_public_endpoints() -> None:
    cluster = Cluster(shares=True)
    pods = [f"10.0.0.{number}" for number in range(1, 4)]
    cluster.answer(*pods)
    cluster.see(revision(limit=10), endpoint_slice(*(endpoint(ip) for ip in pods)))
    assert capacity(cluster) == {}, "the index is not known"
    first = public(OWN_IP, "10.9.0.2")
    cluster.see(first)
    assert capacity(cluster) == {"10.0.0.1:8012": 10, "10.0.0.3:8012": 10}
    second = public(OWN_IP, "10.8.0.2")
    cluster.see(second, old=first)
    assert capacity(cluster) == {"10.0.0.2:8012": 10}
    third = public("10.8.0.2")
    cluster.see(third, old=second)
    assert capacity(cluster) == {"10.0.0.2:8012": 10}, "not among them: what was known stays"
    cluster.see(public(OWN_IP), old=third)
    assert len(capacity(cluster)) == 3


def test_without_a_limit_every_pod_is_everybodys() -> None:
    cluster = Cluster(shares=True)
    cluster.answer("10.0.0.1", "10.0.0.2")
    cluster.see(
        revision(limit=0), public(OWN_IP, "10.9.0.2"), endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    )
    assert len(cluster.ready()) == 2


def test_by_default_nothing_is_shared() -> None:
    cluster = Cluster()
    cluster.answer("10.0.0.1", "10.0.0.2")
    cluster.see(
        revision(limit=1), public(OWN_IP, "10.9.0.2"), endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    )
    assert len(capacity(cluster)) == 2


def capacity(cluster: Cluster) -> dict[str, int]:
    return {address: limit for address, limit in cluster.limits().items() if limit}
