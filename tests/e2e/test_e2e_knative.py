"""The activator in the place of Knative's, started with its environment alone."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import trustme

from tests.e2e.conftest import one_worker
from tests.e2e.grpc_calls import Outcome, begin, framed, outcome
from tests.e2e.http2_client import Http2Client
from tests.e2e.knative_cluster import SYSTEM, Cluster, ask, labels, request, wait_kubelet
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.kubernetes.fake_objects import RefusalError


@pytest.fixture
def activator(cluster: Cluster) -> Iterator[Activator]:
    made = cluster.activator()
    yield made
    made.close()


def test_it_is_ready_when_the_first_lists_are_there(cluster: Cluster) -> None:
    cluster.do(cluster.api.stop())
    activator = cluster.activator()
    status, body, _ = ask(activator, User_Agent="kube-probe/1.34")
    assert status == 500 and b"first list of revisions" in body
    assert ask(activator, "/healthz", User_Agent="kube-probe/1.34")[0] == 200, "but alive"
    cluster.do(cluster.api.start())
    wait_kubelet(activator)
    activator.close()


def test_with_the_rights_of_knatives_own_activator(cluster: Cluster) -> None:
    """They do not have EndpointSlices: Endpoints will do."""
    refusal = RefusalError(403, "Forbidden", "endpointslices is forbidden")
    cluster.api.refused = lambda _verb, path: refusal if "endpointslices" in path else None
    name = "hello-00001"
    cluster.revision(name)
    activator = cluster.activator()
    wait_kubelet(activator)
    (pod,) = cluster.scale(name, 1)
    subset = {
        "addresses": [{"ip": pod.host, "targetRef": {"kind": "Pod", "uid": pod.uid}}],
        "ports": [{"name": "http", "port": cluster.pod_port}],
    }
    known = {"metadata": {"name": f"{name}-private", "labels": labels("Private", name)}, "subsets": [subset]}
    cluster.call(lambda: cluster.api.create("endpoints", known))
    activator.wait_ready_pods(name)
    assert request(activator, name)[0] == 200
    activator.close()


def test_a_cold_start(cluster: Cluster, activator: Activator) -> None:
    cluster.revision("hello-00001", limit=1)
    cluster.start_seconds = 0.3
    wait_kubelet(activator)
    eventually(lambda: "hello-00001" in activator.revisions())
    status, shown = request(activator, "hello-00001", K_Network_Hash="x")
    assert status == 200 and shown["revision"] == "hello-00001"
    pod = cluster.pods["hello-00001"][0]
    headers = shown["headers"]
    assert headers["host"] == f"{pod.host}:8012"
    assert headers["k-original-host"] == "hello-00001.default.example.com"
    assert headers["k-proxy-request"] == "activator"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert not {"knative-serving-namespace", "knative-serving-revision", "k-network-hash"} & set(headers)
    key, average, count = cluster.stats[0][1:]
    assert (key, average, count) == ("default/hello-00001", 1.0, 1.0)


def test_by_host_and_unknown(cluster: Cluster, activator: Activator) -> None:
    cluster.revision("hello-00001")
    cluster.scale("hello-00001", 1)
    wait_kubelet(activator)
    eventually(lambda: "hello-00001" in activator.revisions())
    assert ask(activator, Host="hello-00001.default.svc.cluster.local:8012")[0] == 200
    status, body, headers = ask(activator, Host="other.default.svc.cluster.local")
    text = b'Error getting active endpoint: revision.serving.knative.dev "other" not found\n'
    assert (status, body, headers["x-content-type-options"]) == (404, text, "nosniff")


def test_the_autoscalers_probe_before_scale_to_zero(cluster: Cluster, activator: Activator) -> None:
    wait_kubelet(activator)
    assert ask(activator, "//healthz", Host="x.default.svc.cluster.local:80", K_Network_Probe="activator")[:2] == (
        200,
        b"activator",
    )
    second = activator.wait_log(r" serving on (\S+ \S+)").split(", ")[1]
    host, _, port = second.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("GET", "/", headers={"K-Network-Probe": "activator"})
    assert connection.getresponse().read() == b"activator"
    connection.close()


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_load_at_each_limit(cluster: Cluster, activator: Activator, limit: int) -> None:
    name = "busy-00001"
    cluster.revision(name, limit=limit)
    cluster.scales_to = 3
    wait_kubelet(activator)
    eventually(lambda: name in activator.revisions())
    statuses = in_parallel(30, 10, lambda: request(activator, name, "/?seconds=0.002")[0])
    assert statuses == {200: 300}
    if limit:
        assert max(pod.most_in_flight for pod in cluster.pods[name]) <= limit
    assert sum(pod.requests for pod in cluster.pods[name]) == 300


def test_scaled_down_under_requests(cluster: Cluster, activator: Activator) -> None:
    name = "flaps-00001"
    cluster.revision(name, limit=2)
    cluster.scale(name, 4)
    wait_kubelet(activator)
    eventually(lambda: name in activator.revisions())
    results: dict[int, int] = {}
    load = threading.Thread(
        target=lambda: results.update(in_parallel(8, 60, lambda: request(activator, name, "/?seconds=0.005")[0]))
    )
    load.start()
    for count in (2, 5, 1, 3, 1):
        cluster.scale(name, count)
    load.join(PATIENCE_S)
    assert results == {200: 480}


def test_containers_that_were_started_anew_while_events_were_lost_are_asked_anew(cluster: Cluster) -> None:
    """The same pod at the same address, ready before and after: only its Service's slice has another version."""
    name = "restarted-00001"
    cluster.revision(name, limit=1)
    (pod,) = cluster.scale(name, 1)
    activator = cluster.activator(ACTIVATOR_KUBERNETES__RECONCILE_INTERVAL="1")
    with closing(activator), ThreadPoolExecutor() as threads:
        wait_kubelet(activator)
        assert request(activator, name)[0] == 200
        held = threads.submit(request, activator, name, "/?held=1")
        eventually(lambda: pod.in_flight == 1)
        probes = pod.probes

        def restart() -> None:
            cluster.api.dropped = lambda event: True
            for listens in (False, True):
                pod.listens = listens
                cluster._tell(name)
            cluster.api.dropped = lambda event: False

        cluster.call(restart)
        eventually(lambda: pod.probes > probes, "it is not asked anew")
        assert activator.slots(name)[0]["in_flight"] == 1, "what it carries is forgotten"
        cluster.released = True
        assert held.result()[0] == 200
        assert request(activator, name)[0] == 200


def test_the_api_goes_away_and_warm_requests_do_not_notice(cluster: Cluster, activator: Activator) -> None:
    name = "warm-00001"
    cluster.revision(name)
    cluster.scale(name, 2)
    wait_kubelet(activator)
    activator.wait_ready_pods(name, 2)
    cluster.do(cluster.api.stop())
    assert in_parallel(4, 50, lambda: request(activator, name)[0]) == {200: 200}
    assert ask(activator, User_Agent="kube-probe/1.34")[0] == 200
    cluster.do(cluster.api.start())
    cluster.scale(name, 3)
    activator.wait_ready_pods(name, 3)


def test_the_autoscaler_is_away_when_the_first_request_comes(cluster: Cluster, activator: Activator) -> None:
    cluster.revision("hello-00001")
    wait_kubelet(activator)
    eventually(lambda: "hello-00001" in activator.revisions())
    cluster.do(cluster.stop_autoscaler())
    results: list[int] = []
    asking = threading.Thread(target=lambda: results.append(request(activator, "hello-00001")[0]))
    asking.start()
    eventually(lambda: activator.revision("hello-00001")["queued"] == 1)
    cluster.do(cluster.start_autoscaler())
    asking.join(PATIENCE_S)
    assert results == [200]


def test_without_the_autoscaler_a_revision_is_scaled_from_zero_once(cluster: Cluster) -> None:
    name = "hello-00001"
    cluster.revision(name)
    deployment = {"metadata": {"name": f"{name}-deployment"}, "spec": {"replicas": 0}}
    cluster.call(lambda: cluster.api.create("deployments", deployment))
    cluster.do(cluster.stop_autoscaler())
    activator = cluster.activator(ACTIVATOR_KUBERNETES__SCALE_FALLBACK="500ms")
    wait_kubelet(activator)
    eventually(lambda: name in activator.revisions())
    results: list[int] = []
    asking = threading.Thread(target=lambda: results.append(request(activator, name)[0]))
    asking.start()

    def replicas() -> int:
        found = cluster.call(lambda: cluster.api.collection("deployments").objects[("default", f"{name}-deployment")])
        return int(found["spec"]["replicas"])

    eventually(lambda: replicas() == 1)
    cluster.scale(name, 1)
    asking.join(PATIENCE_S)
    assert results == [200]
    assert [verb for verb, path, _ in cluster.api.requests if "deployments" in path] == ["get", "patch"]
    cluster.do(cluster.start_autoscaler())
    activator.close()


def test_pods_behind_a_mesh_by_their_service(cluster: Cluster, activator: Activator) -> None:
    name = "meshed-00001"
    cluster.revision(name, limit=10)
    wait_kubelet(activator)
    gateway = cluster.call(lambda: cluster._new_pod(name))
    gateway.host = f"127.{cluster.net}.200.1"
    cluster.do(gateway.listen())
    cluster.do(gateway.start())
    hidden = cluster.call(lambda: cluster._new_pod(name))  # nobody listens at its address

    def tell() -> None:
        spec = {"spec": {"clusterIP": gateway.host, "ports": [{"name": "http", "port": 8012}]}}
        cluster.api.update("services", f"{name}-private", spec)
        hidden.listens = True
        cluster.pods[name] = [hidden]
        cluster._tell(name)

    cluster.call(tell)
    status, shown = request(activator, name)
    assert (status, shown["pod"]) == (200, gateway.uid)
    cluster.do(hidden.start())  # now it can be reached
    eventually(lambda: request(activator, name)[1]["pod"] == hidden.uid)
    cluster.do(gateway.stop())


H2C = [{"name": "c", "ports": [{"name": "h2c", "containerPort": 8080}]}]


def grpc_call(client: Http2Client, name: str, *sent: bytes, timeout: str = "") -> Outcome:
    """As the ingress sends it."""
    client.authority = f"{name}.default.example.com"
    more = {"knative-serving-namespace": "default", "knative-serving-revision": name}
    number = begin(client, "Duplex", timeout, **more)
    client.send(number, b"".join(framed(one) for one in sent), end=True)
    return outcome(client, number)


def test_a_grpc_revision(cluster: Cluster, activator: Activator) -> None:
    """A revision whose port is named h2c: from zero, in HTTP/2 to queue-proxy's port 8013, with its limit."""
    name = "grpc-00001"
    key = cluster.revision(name, limit=1, containers=H2C)
    cluster.start_seconds = 0.3
    wait_kubelet(activator)
    eventually(lambda: name in activator.revisions())
    with Http2Client(activator.address) as client:
        found = grpc_call(client, name, b"one", b"two", timeout="20S")
        assert (found.code, found.answers) == (0, [b"one", b"two"])
        (pod,) = cluster.pods[name]
        assert pod.grpc is not None
        (stream,) = pod.grpc.requests
        assert stream.header(":authority") == f"{pod.host}:8013"
        assert stream.header("k-original-host") == f"{name}.default.example.com"
        assert stream.header("k-proxy-request") == "activator"
        assert stream.header("te") == "trailers"
        assert not {"knative-serving-namespace", "knative-serving-revision"} & {one for one, _ in stream.headers}
        told = stream.header("grpc-timeout")
        assert told is not None and told.endswith("u") and int(told[:-1]) < 20e6 - 0.3e6
        numbers = [
            begin(client, "Duplex", **{"knative-serving-namespace": "default", "knative-serving-revision": name})
            for _ in range(20)
        ]
        for number in numbers:
            client.send(number, framed(b"x" * 2_000), end=True)
        assert [outcome(client, number).code for number in numbers] == [0] * 20
        assert pod.grpc.most == 1 and pod.probes >= 1
        missing = grpc_call(client, "missing-00001", b"")
        assert (missing.code, missing.is_trailers_only) == (12, True)
    assert any(told_key == key and average > 0.0 for _, told_key, average, _ in cluster.stats)
    status, _, headers = ask(activator, Knative_Serving_Namespace="default", Knative_Serving_Revision=name)
    assert (status, headers["content-type"]) == (200, "application/grpc"), "a client that speaks HTTP/1.1"


def test_a_revision_that_cannot_start_refuses_with_the_cause_and_is_tried_again_all_the_same(
    cluster: Cluster, activator: Activator
) -> None:
    """What is refused is reported to the autoscaler: otherwise nobody would ever start it again."""
    name = "failed-00001"
    key = cluster.revision(name, limit=1)
    cluster.start_seconds = 1.0
    reason = "ProgressDeadlineExceeded"
    failed = {"type": "ResourcesAvailable", "status": "False", "reason": reason, "message": "a secret"}
    cluster.call(lambda: cluster.api.update("revisions", name, {"status": {"conditions": [failed]}}))
    wait_kubelet(activator)
    eventually(lambda: activator.revision(name)["failure"] is not None, "the condition")
    status, body, headers = ask(activator, Host="x", Knative_Serving_Namespace="default", Knative_Serving_Revision=name)
    assert (status, headers["activator-reason"]) == (503, "revision_failed")
    assert reason in body.decode() and "secret" not in body.decode()
    eventually(lambda: any(told == key and average > 0.0 for _, told, average, _ in cluster.stats), "the autoscaler")
    activator.wait_ready_pods(name)
    eventually(lambda: activator.revision(name)["failure"] is None, "its pod answers, whatever the condition says")
    assert request(activator, name)[0] == 200


def test_a_revision_that_is_made_anew_while_requests_wait(cluster: Cluster, activator: Activator) -> None:
    name = "again-00001"
    cluster.revision(name)
    wait_kubelet(activator)
    eventually(lambda: name in activator.revisions())
    cluster.call(lambda: cluster.api.delete("revisions", name))
    eventually(lambda: name not in activator.revisions())
    assert request(activator, name)[0] == 404
    made = {"metadata": {"name": name}, "spec": {"containerConcurrency": 0, "timeoutSeconds": 5, "containers": [{}]}}
    cluster.call(lambda: cluster.api.create("revisions", made))
    eventually(lambda: name in activator.revisions())
    assert request(activator, name)[0] == 200


def test_an_address_that_passes_to_another_revision(cluster: Cluster, activator: Activator) -> None:
    """As in a busy cluster: the pod dies, and its address is another revision's within moments."""
    for name in ("one-00001", "two-00001"):
        cluster.revision(name)
    cluster.scale("one-00001", 1)
    wait_kubelet(activator)
    activator.wait_ready_pods("one-00001")
    assert request(activator, "one-00001")[1]["revision"] == "one-00001"
    pod = cluster.pods["one-00001"][0]
    cluster.do(pod.stop())
    cluster.pods["one-00001"].clear()
    heir = cluster.call(lambda: cluster._new_pod("two-00001"))
    heir.host, heir.listens = pod.host, True
    cluster.do(heir.start())
    cluster.pods["two-00001"] = [heir]

    def tell() -> None:
        cluster._tell("one-00001")
        cluster._tell("two-00001")

    cluster.call(tell)
    activator.wait_ready_pods("two-00001")
    activator.wait_ready_pods("one-00001", 0)
    for name in ("one-00001", "two-00001"):
        status, shown = request(activator, name)
        assert status == 200 and shown["revision"] == name


def test_sigterm_fails_probes_at_once_and_finishes_what_runs(cluster: Cluster) -> None:
    name = "slow-00001"
    cluster.revision(name)
    cluster.scale(name, 1)
    activator = cluster.activator(ACTIVATOR_SHUTDOWN__DELAY="4s")
    wait_kubelet(activator)
    activator.wait_ready_pods(name)
    results: list[int] = []
    asking = threading.Thread(target=lambda: results.append(request(activator, name, "/?held=1")[0]))
    asking.start()
    eventually(lambda: activator.revision(name)["in_flight"] == 1)
    activator.signal(15)
    wait_kubelet(activator, 500)
    assert request(activator, name)[0] == 200, "it goes on serving until every ingress has heard"
    activator.wait_log("INFO activator.* draining$")
    cluster.released = True
    asking.join(PATIENCE_S)
    assert results == [200] and activator.wait_end() == 0
    activator.close()


def test_statistics_say_what_is_carried(cluster: Cluster, activator: Activator) -> None:
    name = "held-00001"
    cluster.revision(name)
    cluster.scale(name, 1)
    wait_kubelet(activator)
    activator.wait_ready_pods(name)
    threads = [threading.Thread(target=lambda: request(activator, name, "/?held=1"), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: any(average == pytest.approx(4.0, abs=0.01) for _, _, average, _ in cluster.stats))
    cluster.released = True
    for thread in threads:
        thread.join(PATIENCE_S)
    # And then none: tests/scaling has the clock for that.
    eventually(lambda: cluster.stats[-1][2:] == (0.0, 0.0), "a last report with nothing")
    assert sum(count for _, _, _, count in cluster.stats) == 4


@pytest.mark.parametrize("posts", [10, pytest.param(100, marks=pytest.mark.deep)])
def test_full_duplex(cluster: Cluster, activator: Activator, posts: int) -> None:
    """Knative's own test: 32 workers, each with posts of 10 pieces of 32 KiB, which are echoed as they come."""
    name = "echo-00001"
    cluster.revision(name)
    cluster.scale(name, 1)
    wait_kubelet(activator)
    activator.wait_ready_pods(name)
    piece = bytes(range(256)) * 128

    def post() -> tuple[int, bool]:
        connection = http.client.HTTPConnection(activator.host, activator.port, timeout=PATIENCE_S)
        try:
            headers = {"Knative-Serving-Namespace": "default", "Knative-Serving-Revision": name}
            connection.request("POST", "/?echo=1", iter([piece] * 10), headers, encode_chunked=True)
            answer = connection.getresponse()
            return answer.status, answer.read() == piece * 10
        finally:
            connection.close()

    assert in_parallel(32, posts, post) == {(200, True): 32 * posts}


def certificate(authority: trustme.CA, *names: str) -> dict[str, str]:
    """As the Secret has it."""
    made = authority.issue_cert(*names)
    chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
    parts = {"tls.crt": chain, "tls.key": made.private_key_pem.bytes(), "ca.crt": authority.cert_pem.bytes()}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def serving(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def shown_certificate(host: str, port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), PATIENCE_S) as plain, context.wrap_socket(plain) as secure:
        assert secure.version() == "TLSv1.3"
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_system_internal_tls(cluster: Cluster) -> None:
    """The activator's own certificate and its pods' out of Secret and ConfigMap, both replaced while it runs."""
    first, second = trustme.CA(), trustme.CA()
    names = ("data-plane.knative.dev", "kn-user-default")
    host = f"127.{cluster.net}.255.1"

    def make() -> None:
        network = {"metadata": {"name": "config-network"}, "data": {"system-internal-tls": "Enabled"}}
        cluster.api.create("configmaps", network, SYSTEM)
        cluster.api.create(
            "secrets", {"metadata": {"name": "routing-serving-certs"}, "data": certificate(first, *names)}, SYSTEM
        )

    activator = cluster.activator(ACTIVATOR_LISTEN=f"['{host}:0']")
    cluster.call(make)
    wait_kubelet(activator)
    before = eventually(lambda: _tried(lambda: shown_certificate(host, 8112)))

    cluster.pod_tls = serving(first, *names)
    for name in ("good-00001", "later-00001"):
        cluster.revision(name)
    cluster.scale("good-00001", 1)
    activator.wait_ready_pods("good-00001")
    assert request(activator, "good-00001")[0] == 200
    assert cluster.pods["good-00001"][0].secure_requests == 1

    # A pod of another namespace has a good certificate of the same authority, for its own name.
    cluster.pod_tls = serving(first, "data-plane.knative.dev", "kn-user-other")
    cluster.revision("alien-00001", timeoutSeconds=2)
    cluster.scale("alien-00001", 1)
    eventually(lambda: request(activator, "alien-00001")[0] != 404, "its revision is known")
    assert request(activator, "alien-00001")[0] == 504
    assert cluster.pods["alien-00001"][0].requests == 0

    # Another authority is believed as soon as a bundle says so.
    cluster.pod_tls = serving(second, *names)
    cluster.scale("later-00001", 1)
    bundle = {
        "metadata": {"name": "bundle", "labels": {"networking.knative.dev/trust-bundle": "true"}},
        "data": {"bad.pem": "nonsense", "ca.pem": second.cert_pem.bytes().decode()},
    }
    cluster.call(lambda: cluster.api.create("configmaps", bundle, SYSTEM))
    activator.wait_ready_pods("later-00001")
    assert request(activator, "later-00001")[0] == 200
    assert request(activator, "good-00001")[0] == 200

    renewed = {"data": certificate(first, *names)}
    cluster.call(lambda: cluster.api.update("secrets", "routing-serving-certs", renewed, SYSTEM))
    eventually(lambda: shown_certificate(host, 8112) != before, "the new certificate")
    activator.close()


def switch_on_tls(cluster: Cluster) -> None:
    network = {"metadata": {"name": "config-network"}, "data": {"system-internal-tls": "Enabled"}}
    cluster.call(lambda: cluster.api.create("configmaps", network, SYSTEM))


def test_tls_that_is_switched_on_before_there_is_an_authority_begins_with_the_first(cluster: Cluster) -> None:
    """With nobody to believe, no pod could be reached: what is served goes on as before."""
    names = ("data-plane.knative.dev", "kn-user-default")
    authority = trustme.CA()
    cluster.pod_tls = serving(authority, *names)
    cluster.revision("hello-00001")
    (pod,) = cluster.scale("hello-00001", 1)
    activator = cluster.activator()
    wait_kubelet(activator)
    assert request(activator, "hello-00001")[0] == 200
    switch_on_tls(cluster)
    activator.wait_log("pods are reached without TLS until there is an authority in .*routing-serving-certs")
    for _ in range(10):
        assert request(activator, "hello-00001")[0] == 200
    assert ask(activator, User_Agent="kube-probe/1.34")[0] == 200, "nor do all replicas leave at once"
    assert (pod.requests, pod.secure_requests) == (11, 0)
    secret = {"metadata": {"name": "routing-serving-certs"}, "data": certificate(authority, *names)}
    cluster.call(lambda: cluster.api.create("secrets", secret, SYSTEM))
    eventually(lambda: request(activator, "hello-00001")[0] == 200 and pod.secure_requests > 0)
    activator.close()


def test_tls_that_is_on_at_the_start_lets_nobody_be_served_before_there_is_an_authority(cluster: Cluster) -> None:
    names = ("data-plane.knative.dev", "kn-user-default")
    authority = trustme.CA()
    switch_on_tls(cluster)
    held = certificate(authority, *names)
    held.pop("ca.crt")
    secret = {"metadata": {"name": "routing-serving-certs"}, "data": held}
    cluster.call(lambda: cluster.api.create("secrets", secret, SYSTEM))
    host = f"127.{cluster.net}.255.1"
    activator = cluster.activator(ACTIVATOR_LISTEN=f"['{host}:0']")
    eventually(
        lambda: ask(activator, User_Agent="kube-probe/1.34")[1].startswith(b"an authority for pods' certificates")
    )
    bundle = {
        "metadata": {"name": "bundle", "labels": {"networking.knative.dev/trust-bundle": "true"}},
        "data": {"ca.pem": authority.cert_pem.bytes().decode()},
    }
    cluster.call(lambda: cluster.api.create("configmaps", bundle, SYSTEM))
    wait_kubelet(activator)
    activator.close()


def _tried(what: Callable[[], bytes]) -> bytes:
    try:
        return what()
    except OSError:
        return b""


def in_parallel(threads: int, each: int, what: Any) -> dict[Any, int]:
    """How often `what` gave which answer."""
    found: dict[Any, int] = {}
    lock = threading.Lock()

    def run() -> None:
        for _ in range(each):
            answer = what()
            with lock:
                found[answer] = found.get(answer, 0) + 1

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(4 * PATIENCE_S)
    return found


@one_worker
def test_what_config_maps_say_of_metrics_and_the_log(cluster: Cluster, activator: Activator) -> None:
    def say(name: str, **data: str) -> None:
        thing = {"metadata": {"name": name}, "data": {key.replace("_", "-"): value for key, value in data.items()}}
        cluster.call(lambda: cluster.api.create("configmaps", thing, SYSTEM))

    name = "measured-00001"
    cluster.revision(name)
    cluster.scale(name, 1)
    eventually(lambda: request(activator, name)[0] == 200, "the revision to be known")
    say("config-observability", metrics_protocol="prometheus", metrics_endpoint="127.0.0.1:0")
    say("config-logging", **{"loglevel.activator": "debug"})
    address = activator.wait_log(r"Knative's metrics on (\S+)")
    assert request(activator, name)[0] == 200
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    labels = f'k8s_namespace_name="default",kn_revision_name="{name}"'
    assert f"kn_revision_request_active{{{labels}}} 0.0\n" in text
    (count,) = [line for line in text.splitlines() if line.startswith("http_server_request_duration_seconds_count{")]
    for label in ('http_request_method="GET"', 'http_response_status_code="200"', f'kn_revision_name="{name}"'):
        assert label in count
    assert count.endswith(" 1.0"), "of those that came since it is wanted"
    assert 'kn_activator_stats_conn_reachable{peer="autoscaler"} 1.0' in text
    eventually(lambda: json.loads(activator.ask("/debug/log")[2])[""] == "debug", "the level of config-logging")
