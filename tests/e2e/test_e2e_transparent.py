"""`mode: transparent`: requests by the Service of a program, whose traffic the activator takes and gives back."""

from __future__ import annotations

import socket
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from activator.config.model.transparent import ENTRY_PORT_FIRST, ENTRY_PORT_LAST
from tests.e2e.activation_cluster import PodServer
from tests.e2e.activation_replicas import ActivationReplicas
from tests.e2e.conftest import next_net
from tests.e2e.running import Activator, eventually
from tests.e2e.story_fixtures import skip_without_pods
from tests.e2e.transparent_cluster import (
    FakeTransparentCluster,
    RealTransparentCluster,
    TransparentCluster,
    Visitors,
    visit,
)
from tests.kube import real


@pytest.fixture(params=["fake", "real"] if real.IS_THERE else ["fake"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransparentCluster]:
    made: TransparentCluster
    if request.param == "real":
        skip_without_pods()
        made = RealTransparentCluster(tmp_path)
    else:
        made = FakeTransparentCluster(tmp_path, next_net())
    yield made
    made.close()


@pytest.fixture
def activator(cluster: TransparentCluster) -> Iterator[Activator]:
    made = cluster.transparent_activator()
    yield made
    made.close()


def test_from_zero_to_zero_by_the_service_alone(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.asleep()
    cluster.take()
    cluster.wait_condition("Ready", "AtZero")
    cluster.wait_condition("InPath", "NoPod")
    eventually(lambda: cluster.proxies[0].endpoints.ready, "the proxy knows the activator")
    assert cluster.position() == "beside"
    status, body = visit(cluster.address(), headers={"Host": "any.name"})
    assert (status, body["host"]) == (200, "any.name"), "the host does not matter"
    assert cluster.replicas() == 1
    eventually(lambda: cluster.position() == "alone", "with a pod, requests are counted")
    cluster.wait_replicas(0)
    eventually(lambda: cluster.position() == "beside")
    assert cluster.selector() == {"app": "hello"}
    assert visit(cluster.address())[0] == 200, "and again"


def test_switches_under_load_lose_nothing(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.awake(nodes=2, delays_s=(0.0, 0.1))
    visitors = Visitors(cluster)
    cluster.take()
    seen: list[str] = []

    def switched() -> bool:
        position = cluster.position()
        if not seen or seen[-1] != position:
            seen.append(position)
        return seen.count("alone") + seen.count("out") >= 20

    eventually(switched, "twenty switches", 60.0)
    visitors.stop()
    assert visitors.failures == []
    assert set(visitors.answers) == {"200"}
    assert len(cluster.seen) == 1 and cluster.replicas() == 1


def test_steady_traffic_past_it_never_goes_to_zero(cluster: TransparentCluster, activator: Activator) -> None:
    """It is seen by being drawn in; with less than a request in each grace it would be an idle program."""
    cluster.awake()
    cluster.take(transparent={"lookInterval": "300ms", "dwell": "300ms"}, scaling={"scaleToZeroGrace": "500ms"})
    visitors = Visitors(cluster, fresh=1, kept=0, pause_s=0.02)
    eventually(lambda: cluster.proxies[0].went_to.get(cluster.host(1), 0) > 0, "it has looked")
    looks = cluster.writes("/services/hello")
    eventually(lambda: len(cluster.writes("/services/hello")) >= len(looks) + 4, "two looks more")
    visitors.stop()
    assert visitors.failures == []
    assert len(cluster.seen) == 1, "the one pod has served all of it"
    went_to = cluster.proxies[0].went_to
    assert went_to[cluster.seen[0].host] > 0, "not all of it came through the activator"
    cluster.wait_replicas(0)
    assert cluster.position() in ("alone", "beside"), "idle, it has gone to zero"


@pytest.mark.deep
def test_traffic_past_it_costs_it_nothing(cluster: TransparentCluster, activator: Activator) -> None:
    """Kept connections that came through it end in order, and go past it from then on."""
    cluster.awake()
    cluster.take(transparent={"lookInterval": "3s"})
    visitors = Visitors(cluster, fresh=1, kept=2)
    eventually(lambda: cluster.position() == "alone")
    eventually(lambda: cluster.position() == "out")
    (pod,) = cluster.seen
    eventually(lambda: cluster.leads_to() == [pod.host])

    def past() -> bool:
        """Between two looks, more has reached the pod than has come here."""
        through, reached = activator.revision("hello")["requests"], pod.requests
        return pod_reached(pod, reached + 20) and activator.revision("hello")["requests"] == through

    eventually(past, "nothing of it comes through the activator")
    visitors.stop()
    assert visitors.failures == []


def pod_reached(pod: PodServer, requests: int) -> bool:
    eventually(lambda: pod.requests >= requests)
    return True


def test_a_deleted_activation_leaves_the_service_as_it_was(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.awake(sessionAffinity="ClientIP")
    before = cluster.get("services")
    cluster.take(transparent={"burstCapacity": -1})
    eventually(lambda: cluster.position() == "alone")
    visitors = Visitors(cluster)
    eventually(lambda: visitors.answers["200"] > 20)
    cluster.delete("activations", "hello")
    eventually(lambda: cluster.position() == "untouched")
    eventually(lambda: "hello-pods" not in cluster.names("services"))
    reached = visitors.answers["200"]
    eventually(lambda: visitors.answers["200"] > reached + 20)
    visitors.stop()
    assert visitors.failures == []
    after = cluster.get("services")
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert cluster.replicas() == 1


@pytest.mark.deep
def test_another_mode_gives_the_service_back(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.awake()
    cluster.take(transparent={"burstCapacity": -1}, scaling={"min": 1})
    eventually(lambda: cluster.position() == "alone")
    visitors = Visitors(cluster)
    cluster.edit("activations", "hello", {"spec": {"mode": "proxy", "hosts": ["hello.test"]}}, "kubectl")
    eventually(lambda: cluster.position() == "untouched")
    reached = visitors.answers["200"]
    eventually(lambda: visitors.answers["200"] > reached + 20)
    visitors.stop()
    assert visitors.failures == []
    assert cluster.selector() == {"app": "hello"}


@pytest.mark.deep
def test_what_was_left_behind_is_given_back_after_a_start(cluster: TransparentCluster) -> None:
    """The activator was away when the Activation was deleted."""
    first = cluster.transparent_activator()
    cluster.awake()
    cluster.take(transparent={"burstCapacity": -1})
    eventually(lambda: cluster.position() == "alone")
    first.close()
    assert cluster.position() == "alone", "an end of the activator changes nothing"
    cluster.delete("activations", "hello")
    second = cluster.transparent_activator()
    eventually(lambda: cluster.position() == "untouched")
    assert cluster.selector() == {"app": "hello"}
    second.close()


@pytest.mark.deep
def test_a_restart_goes_on_where_it_was(cluster: TransparentCluster) -> None:
    first = cluster.transparent_activator()
    cluster.asleep()
    cluster.take()
    eventually(lambda: cluster.position() == "beside")
    port = cluster.proxies[0].endpoints.ready[0][1] if cluster.proxies[0].endpoints.ready else 0
    first.close()
    second = cluster.transparent_activator()
    eventually(lambda: cluster.leads_to() == [cluster.host(2)])
    assert port in (0, cluster.proxies[0].endpoints.ready[0][1]), "the port is the one that the slice shows"
    assert visit(cluster.address())[0] == 200
    second.close()


@pytest.mark.deep
def test_a_user_edits_what_is_taken(cluster: TransparentCluster, activator: Activator) -> None:
    """The selector, while our label is in it; the port; and our slice is deleted by somebody."""
    cluster.awake()
    cluster.take(transparent={"burstCapacity": -1}, scaling={"min": 1})
    eventually(lambda: cluster.position() == "alone")
    visitors = Visitors(cluster)
    cluster.edit("services", "hello", {"spec": {"selector": {"tier": "web"}}}, "kubectl")
    assert cluster.selector() == {"app": "hello", "tier": "web", "activator.dev/in-path": "only"}
    cluster.edit("services", "hello", {"spec": {"selector": {"tier": None, "activator.dev/in-path": None}}}, "kubectl")
    eventually(lambda: cluster.position() == "alone", "our label is set again")
    cluster.delete("endpointslices", "hello-activator-ipv4")
    eventually(lambda: cluster.position() == "alone", "our slice is made again")
    visitors.stop()
    renamed = {"spec": {"ports": [{"name": "web", "port": 80, "targetPort": 8080}]}}
    cluster.edit("services", "hello", renamed, "kubectl")
    eventually(lambda: (cluster.front_slice() or {"ports": [{}]})["ports"][0].get("name") == "web")
    gone = [one for one in visitors.failures if "ConnectionReset" not in one]
    assert gone == [], "who deletes endpoints has connections reset, until they are there again"


@pytest.mark.deep
def test_an_annotated_service_is_taken_by_its_annotations(cluster: TransparentCluster, activator: Activator) -> None:
    annotations = {
        "activator.dev/enabled": "true",
        "activator.dev/mode": "transparent",
        "activator.dev/transparent": "{settle: 50ms, dwell: 100ms, lookInterval: 200ms}",
        "activator.dev/scaling": "{scaleToZeroGrace: 1s, stableWindow: 1s}",
    }
    cluster.asleep(annotations=annotations)
    eventually(lambda: cluster.proxies[0].endpoints.ready)
    assert visit(cluster.address())[0] == 200
    cluster.wait_replicas(0)
    cluster.edit("services", "hello", {"metadata": {"annotations": {"activator.dev/enabled": None}}}, "kubectl")
    eventually(lambda: cluster.position() == "untouched")
    assert cluster.selector() == {"app": "hello"}


@pytest.mark.deep
def test_a_pod_is_replaced_in_either_position(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.awake(pods=2, delays_s=(0.0, 0.05))
    cluster.take(scaling={"min": 2})
    eventually(lambda: cluster.position() == "out")
    visitors = Visitors(cluster, fresh=3, kept=0)
    for number in range(4):
        name = cluster.call(lambda: next(iter(cluster.pods)))
        cluster.end_pod(name)
        eventually(lambda number=number: len(cluster.seen) == 3 + number and len(cluster.pods) == 2)  # type: ignore[misc]
    visitors.stop()
    assert visitors.failures == []


@pytest.mark.deep
def test_services_that_cannot_be_taken_say_so(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.deploy()
    ports = [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "more", "port": 81, "targetPort": 9}]
    for name, spec, reason in (
        ("headless", {"clusterIP": "None"}, "Headless"),
        ("external", {"type": "ExternalName", "externalName": "example.test"}, "ExternalName"),
        ("bare", {"selector": None}, "NoSelector"),
        ("local", {"internalTrafficPolicy": "Local"}, "NodeLocal"),
        ("many", {"ports": ports}, "OtherPorts"),
        ("other", {"ports": ports[1:]}, "PortNotFound"),
    ):
        cluster.serve(name, **spec)
        cluster.take(name, target={"name": "hello"})
        condition = cluster.wait_condition("InPath", reason, name)
        assert condition["status"] == "False"
    cluster.take("nobody", target={"name": "hello"})
    cluster.wait_condition("InPath", "ServiceNotFound", "nobody")
    cluster.serve("mine")
    cluster.take("mine", target={"name": "hello"})
    cluster.wait_condition("InPath", "NoPod", "mine")
    cluster.take("younger", target={"name": "hello"}, transparent={"service": "mine"})
    said = cluster.wait_condition("InPath", "ServiceTaken", "younger")["message"]
    assert f"belongs to {cluster.namespace}/mine" in said
    assert not [path for _, path in cluster.writes("/services/") if path.endswith(("headless", "external", "bare"))]


@pytest.mark.deep
def test_a_kept_connection_is_noticed_when_it_comes_back(cluster: TransparentCluster, activator: Activator) -> None:
    """The activator cannot see it: its client waits once for a new pod, and then it stays in the path."""
    cluster.awake()
    visitors = Visitors(cluster, fresh=0, kept=1, pause_s=0.05)
    eventually(lambda: visitors.answers["200"] > 3, "its connection leads to the pod")
    cluster.take(transparent={"afterMistake": "1h", "lookInterval": "4s"}, scaling={"scaleToZeroGrace": "500ms"})
    eventually(lambda: len(cluster.seen) == 2, "it was taken for idle, and came back")
    cluster.wait_condition("InPath", "KeptConnections")
    reached = visitors.answers["200"]
    eventually(lambda: visitors.answers["200"] > reached + 20)
    visitors.stop()
    assert cluster.position() == "alone"
    assert len(cluster.seen) == 2, "and is seen from now on"
    assert set(visitors.answers) == {"200"}


@pytest.mark.deep
def test_a_limit_holds_from_the_first_pod_on(cluster: TransparentCluster, activator: Activator) -> None:
    cluster.asleep()
    cluster.take(containerConcurrency=1, scaling={"max": 2, "burst": True})
    eventually(lambda: cluster.position() == "alone", "also at zero")
    eventually(lambda: cluster.leads_to() == [cluster.host(1)])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: visit(cluster.address(), "/slow/0.1")[0], range(24)))
    assert Counter(answers) == {200: 24}
    assert {pod.most_in_flight for pod in cluster.seen} == {1}
    cluster.wait_condition("InPath", "Limit")


@pytest.mark.deep
def test_several_workers_take_the_requests_of_a_service(cluster: TransparentCluster) -> None:
    """Each listens on the port of the Service, and the limit of a pod holds over all of them."""
    activator = cluster.transparent_activator(workers=2)
    cluster.asleep()
    cluster.take(containerConcurrency=1, scaling={"max": 2, "burst": True})
    eventually(lambda: cluster.leads_to() == [cluster.host(1)])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: visit(cluster.address(), "/slow/0.05")[0], range(40)))
    assert Counter(answers) == {200: 40}
    assert {pod.most_in_flight for pod in cluster.seen} == {1}
    assert activator.revision("hello")["requests"] >= 40, "all of them have been counted"
    cluster.wait_condition("InPath", "Limit")
    activator.close()


@pytest.mark.deep
def test_several_ports_of_a_service_lead_to_one_port_of_its_pods(
    cluster: TransparentCluster, activator: Activator
) -> None:
    """By the port's name, by its number, and with a name that says nothing."""
    targets: list[str | int] = ["http", 8080, 8080]
    names = ["http", "by-number", "other"]
    ports = [
        {"name": name, "port": 80 + place, "targetPort": target}
        for place, (name, target) in enumerate(zip(names, targets))
    ]
    cluster.deploy()
    cluster.serve(ports=ports)
    for name in names:
        cluster.proxy(port=name)
    cluster.take()
    eventually(lambda: all(cluster.leads_to(node) == [cluster.host(1)] for node in range(3)), "at zero")
    assert [visit(cluster.address(node))[0] for node in range(3)] == [200] * 3
    visitors = Visitors(cluster, fresh=3, kept=3)
    eventually(lambda: cluster.position() == "out")
    (pod,) = cluster.seen
    eventually(lambda: all(cluster.leads_to(node) == [pod.host] for node in range(3)), "past the activator")
    visitors.stop()
    assert visitors.failures == []


@pytest.mark.deep
def test_two_replicas_and_the_end_of_the_one_that_decides(cluster: TransparentCluster, tmp_path: Path) -> None:
    replicas = ActivationReplicas(cluster, tmp_path)
    hosts = {f"activator-{number}": cluster.host(number + 1) for number in range(2)}
    for name, host in hosts.items():
        replicas.start(name, listen=f"{host}:0")
    replicas.wait_together()
    cluster.show_activator(*hosts.values())
    cluster.asleep()
    cluster.take(scaling={"scaleToZeroGrace": "30s"})
    eventually(lambda: cluster.slice_endpoints() == sorted(hosts.values()))
    writers = set(replicas.writers("hello-activator-ipv4"))
    assert writers == {replicas.owner()}, "one of them writes"
    eventually(lambda: len(cluster.proxies[0].endpoints.ready) == 2)
    visitors = Visitors(cluster)
    eventually(lambda: visitors.answers["200"] > 50)
    visitors.stop()
    assert visitors.failures == []
    owner = replicas.owner()
    cluster.show_activator(*(host for name, host in hosts.items() if name != owner))
    replicas.kill(owner)
    cluster.delete("pods", owner, cluster.system)
    (left,) = replicas.running
    eventually(lambda: cluster.slice_endpoints() in ([hosts[left]], []))
    eventually(lambda: hosts[owner] not in cluster.leads_to())
    assert visit(cluster.address())[0] == 200
    assert len(cluster.seen) == 1
    replicas.close()


@pytest.mark.deep
def test_a_thousand_switches_under_load_lose_nothing(cluster: TransparentCluster, activator: Activator) -> None:
    """Proxies take longer to hear of a write than they are given (`settle`): the order of the writes is enough."""
    cluster.awake(nodes=4, delays_s=(0.0, 0.15))
    visitors = Visitors(cluster, fresh=6, kept=4)
    cluster.take(transparent={"lookInterval": "100ms"})
    switches = 0
    last = ""
    while switches < 1_000:
        position = cluster.position()
        if position != last:
            switches += position in ("alone", "out")
            last = position
        assert not visitors.failures, visitors.failures
        time.sleep(0.005)
    visitors.stop()
    assert visitors.failures == []
    assert set(visitors.answers) == {"200"}


def test_an_entry_port_that_another_program_has(cluster: TransparentCluster, activator: Activator) -> None:
    """Another one is taken for the Service, and no request is sent to the other program."""
    cluster.asleep()
    uid = cluster.get("services")["metadata"]["uid"]
    port = ENTRY_PORT_FIRST + zlib.crc32(uid.encode()) % (ENTRY_PORT_LAST - ENTRY_PORT_FIRST + 1)
    activator.may_log_errors = True
    with socket.create_server((activator.host, port)) as other:
        other.setblocking(False)
        cluster.take()
        cluster.wait_condition("InPath", "NoPod")
        eventually(lambda: cluster.proxies[0].endpoints.ready, "the proxy knows the activator")
        eventually(lambda: visit(cluster.address())[0] == 200)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert len(activator.logged("cannot listen on .*the Service that used this port gets another")) == 1
