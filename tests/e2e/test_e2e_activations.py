"""Deployments of a cluster without Knative, from zero and back, with the rights of the chart's role alone."""

from __future__ import annotations

import http.client
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.activation_cluster import NAMESPACE
from tests.e2e.running import Activator, eventually
from tests.e2e.story_cluster import StoryCluster, ask
from tests.e2e.story_fixtures import MakeCluster, cluster, make_cluster
from tests.kubernetes.fake_nodes import Settings

__all__ = ["cluster", "make_cluster"]


@pytest.fixture
def activator(cluster: StoryCluster) -> Iterator[Activator]:
    made = cluster.activator()
    yield made
    made.close()


def test_from_zero_to_zero_and_again(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    cluster.declare()
    cluster.wait_condition("Ready", "AtZero")
    assert cluster.condition("ScaledToZero")["status"] == "True"
    cluster.listen_delay_s = 0.2
    status, body, _ = ask(activator)
    assert (status, body["host"]) == (200, "hello.test")
    assert cluster.replicas() == 1
    cluster.wait_condition("Ready", "Serving")
    cluster.wait_replicas(0)
    cluster.wait_pods(0)
    cluster.wait_condition("Ready", "AtZero")
    assert ask(activator)[0] == 200, "and again"
    assert len(cluster.seen) == 2


def test_what_was_there_before_is_taken_over_as_it_is(cluster: StoryCluster) -> None:
    cluster.deploy(replicas=2)
    cluster.edit("deployments", "hello", {"spec": {"replicas": 3}}, "kubectl-client-side-apply")
    cluster.wait_pods(3)
    cluster.declare(scaling={"scaleToZeroGrace": "2s"})
    activator = cluster.activator()
    activator.wait_ready_pods("hello", 3)
    assert ask(activator)[0] == 200
    assert cluster.replicas() >= 1, "a start of the activator takes nobody's pods away"
    cluster.wait_replicas(0)
    cluster.wait_condition("ScaledToZero", "AtZero")
    assert cluster.condition("Degraded")["status"] == "False", "to take replicas over is no contest"
    activator.close()


def test_a_limit_holds_and_brings_more_pods(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    cluster.declare(containerConcurrency=1, scaling={"max": 3, "burst": True})
    cluster.wait_condition("Ready", "AtZero")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(activator, path="/slow/0.2")[0], range(36)))
    assert Counter(answers) == {200: 36}
    assert {pod.most_in_flight for pod in cluster.seen} == {1}
    assert 2 <= len(cluster.seen) <= 3


def test_what_cannot_start_is_told_at_once_and_served_when_it_can(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy(failure="CrashLoopBackOff")
    cluster.declare(scaling={"scaleToZeroGrace": "30s"})
    cluster.wait_condition("Ready", "AtZero")
    began = time.monotonic()
    status, body, headers = ask(activator)
    assert status == 503
    assert "exits again and again (exit code 1): panic: no configuration" in body
    assert headers["Activator-Reason"] == "revision_failed"
    assert time.monotonic() - began < 10.0
    condition = cluster.wait_condition("Ready", "CrashLoopBackOff")
    assert condition["status"] == "False"
    cluster.mend()
    eventually(lambda: ask(activator)[0] == 200)


def test_what_may_pass_is_waited_for_as_long_as_the_object_says(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(Settings(quotas={NAMESPACE: 0}))
    activator = cluster.activator()
    cluster.deploy()
    cluster.declare(patience="3s")
    cluster.wait_condition("Ready", "AtZero")
    began = time.monotonic()
    status, body, _ = ask(activator)
    assert (status, "exceeded quota" in body) == (503, True)
    assert time.monotonic() - began > 2.5
    activator.close()


def test_replicas_that_a_user_sets_are_set_back(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    cluster.declare(scaling={"min": 1})
    cluster.wait_replicas(1)
    cluster.wait_condition("Ready", "Serving")
    cluster.edit("deployments", "hello", {"spec": {"replicas": 5}}, "kubectl")
    cluster.wait_replicas(1)
    eventually(lambda: len(cluster.pods) == 1)
    eventually(lambda: cluster.get("activations")["status"]["ready"] == 1)
    condition = cluster.wait_condition("Degraded", "Contested")
    assert "also writes the replicas of its target" in condition["message"]


def test_a_service_of_ours_that_a_user_changes_or_deletes_is_as_before(
    cluster: StoryCluster, activator: Activator
) -> None:
    cluster.deploy(replicas=1)
    cluster.declare(scaling={"min": 1})
    cluster.wait_condition("Ready", "Serving")
    cluster.edit("services", "hello-pods", {"spec": {"selector": {"app": "other"}}}, "kubectl")
    eventually(lambda: cluster.get("services", "hello-pods")["spec"]["selector"] == {"app": "hello"})
    cluster.delete("services", "hello-pods")
    eventually(lambda: "hello-pods" in cluster.names("services"))
    eventually(lambda: ask(activator)[0] == 200)
    assert "hello-pods" in cluster.names("services")


def test_an_activation_that_is_deleted_with_requests_in_line(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy(failure="its probe fails")
    cluster.declare()
    cluster.wait_condition("Ready", "AtZero")
    answers: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(activator)[:2]))
    waiting.start()
    cluster.wait_replicas(1)
    eventually(lambda: "hello-pods" in cluster.names("services"))
    cluster.delete("activations", "hello")
    waiting.join(20.0)
    assert answers[0][0] == 503
    eventually(lambda: "hello-pods" not in cluster.names("services"))
    eventually(lambda: ask(activator)[0] == 404)
    assert cluster.replicas() == 1, "the workload is the user's"


def test_two_that_claim_one_host(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy("a", 1)
    cluster.deploy("b", 1)
    cluster.declare("a", hosts=["shared.test"], scaling={"min": 1})
    cluster.wait_condition("Ready", "Serving", "a")
    cluster.declare("b", hosts=["shared.test", "b.test"], scaling={"min": 1})
    condition = cluster.wait_condition("Degraded", "HostTaken", "b")
    assert f"shared.test belongs to {cluster.namespace}/a" in condition["message"]
    assert ask(activator, "shared.test")[1]["pod"].startswith("a-")
    assert ask(activator, "b.test")[1]["pod"].startswith("b-")
    cluster.delete("activations", "a")
    eventually(lambda: ask(activator, "shared.test")[1]["pod"].startswith("b-"))


def test_a_target_that_does_not_exist(cluster: StoryCluster, activator: Activator) -> None:
    cluster.declare("hello")
    cluster.wait_condition("Ready", "TargetNotFound")
    status, body, _ = ask(activator)
    assert (status, "its target Deployment/hello does not exist" in body) == (503, True)
    cluster.deploy()
    eventually(lambda: ask(activator)[0] == 200)


def test_a_target_of_another_kind(cluster: StoryCluster) -> None:
    """Whatever has a scale subresource; its right is given beside the chart's role."""
    cluster.define_rollouts()
    activator = cluster.activator()
    cluster.declare(target={"apiVersion": "example.test/v1", "kind": "Rollout", "name": "hello"})
    cluster.wait_condition("Ready", "TargetNotFound")
    rollout = {
        "apiVersion": "example.test/v1",
        "kind": "Rollout",
        "metadata": {"name": "hello"},
        "spec": {"replicas": 0},
    }
    cluster.create("rollouts", rollout)
    cluster.tell("rollouts", "hello", {"replicas": 0, "selector": "app=hello"})
    cluster.wait_condition("Ready", "AtZero")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: ask(activator)[0])
        eventually(lambda: cluster.get("rollouts")["spec"]["replicas"] == 1)
        cluster.deploy(replicas=1)  # the pods of a Rollout are made by its own controller; these have its labels
        assert answer.result(20.0) == 200
    eventually(lambda: cluster.get("rollouts")["spec"]["replicas"] == 0)
    activator.close()


def test_a_target_that_cannot_be_scaled(cluster: StoryCluster, activator: Activator) -> None:
    cluster.declare(target={"apiVersion": "v1", "kind": "ConfigMap", "name": "hello"})
    condition = cluster.wait_condition("Ready", "TargetNotSupported")
    assert condition["message"] == "the API has no ConfigMap of v1 that can be scaled"


def test_a_target_that_is_missing_at_the_start_is_told(cluster: StoryCluster) -> None:
    """No event says so: the lists of workloads that do not have it may come after its Activation."""
    cluster.declare("hello")
    activator = cluster.activator()
    cluster.wait_condition("Ready", "TargetNotFound")
    assert ask(activator)[0] == 503
    activator.close()


def test_a_restart_leaves_the_private_service_and_its_pods(cluster: StoryCluster) -> None:
    cluster.deploy(replicas=2)
    cluster.declare(scaling={"min": 2})
    first = cluster.activator()
    first.wait_ready_pods("hello", 2)
    first.close()
    before = cluster.get("services", "hello-pods")["metadata"]["uid"]
    deletions = len([verb for verb, _ in cluster.writes("/services") if verb == "delete"])
    for _ in range(3):
        again = cluster.activator()
        again.wait_ready_pods("hello", 2)
        assert ask(again)[0] == 200
        again.close()
    assert cluster.get("services", "hello-pods")["metadata"]["uid"] == before
    assert len([verb for verb, _ in cluster.writes("/services") if verb == "delete"]) == deletions
    assert len(cluster.seen) == 2


def test_an_annotation_that_is_removed_takes_the_private_service_along(
    cluster: StoryCluster, activator: Activator
) -> None:
    cluster.deploy(replicas=1)
    annotations = {"activator.dev/enabled": "true", "activator.dev/hosts": "hello.test"}
    thing = {
        "metadata": {"name": "hello", "annotations": annotations},
        "spec": {"selector": {"app": "hello"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }
    cluster.create("services", thing)
    eventually(lambda: "hello-pods" in cluster.names("services"))
    eventually(lambda: ask(activator)[0] == 200)
    without = {"metadata": {"annotations": {"activator.dev/enabled": None}}}
    cluster.update("services", "hello", without)
    eventually(lambda: "hello-pods" not in cluster.names("services"))
    eventually(lambda: ask(activator)[0] == 404)
    assert "hello" in cluster.names("services")


def test_an_annotated_service_does_without_the_kind(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    annotations = {
        "activator.dev/enabled": "true",
        "activator.dev/hosts": "hello.test",
        "activator.dev/scaling": "{scaleToZeroGrace: 1s, stableWindow: 1s}",
    }
    thing = {
        "metadata": {"name": "hello", "annotations": annotations},
        "spec": {"selector": {"app": "hello"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }
    cluster.create("services", thing)
    eventually(lambda: "hello" in activator.revisions())
    assert ask(activator)[0] == 200
    cluster.wait_replicas(0)


def replace_a_pod(cluster: StoryCluster, seen: int) -> None:
    """The oldest one goes, and another one comes: so many have been there then."""
    name = cluster.call(lambda: next(iter(cluster.pods)))
    cluster.end_pod(name)
    eventually(lambda: len(cluster.seen) == seen and name not in cluster.pods)


def test_pods_are_replaced_under_load_and_no_request_fails(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy(replicas=3)
    cluster.declare(scaling={"min": 3})
    activator.wait_ready_pods("hello", 3)
    over = threading.Event()
    answers: Counter[int] = Counter()

    def visit() -> None:
        while not over.is_set():
            answers[ask(activator, path="/slow/0.01")[0]] += 1

    visitors = [threading.Thread(target=visit) for _ in range(4)]
    for visitor in visitors:
        visitor.start()
    try:
        for number in range(6):
            replace_a_pod(cluster, 4 + number)
    finally:
        over.set()
        for visitor in visitors:
            visitor.join(20.0)
    assert set(answers) == {200}
    assert answers[200] > 100


def test_the_api_away_changes_nothing_for_what_is_served(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    cluster.declare(scaling={"min": 1})
    activator.wait_ready_pods("hello", 1)
    cluster.stop_api()
    for _ in range(50):
        assert ask(activator)[0] == 200
    assert activator.ask("/readyz")[0] == 200
    cluster.start_api()
    cluster.deploy("later", 1)
    cluster.declare("later", scaling={"min": 1})
    eventually(lambda: ask(activator, "later.test")[0] == 200)


def watch_errors(activator: Activator) -> int:
    text = activator.ask("/metrics")[2].decode()
    found = re.search(r"^activator_cluster_watch_errors_total (\S+)", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def ask_patiently(activator: Activator) -> tuple[int, float]:
    """The status of one request, and when it came."""
    connection = http.client.HTTPConnection(activator.address, timeout=90.0)
    connection.request("GET", "/", headers={"Host": "hello.test"})
    status = connection.getresponse().status
    connection.close()
    return status, time.monotonic()


@pytest.mark.deep
def test_a_request_in_line_is_served_soon_after_the_api_is_back(cluster: StoryCluster, activator: Activator) -> None:
    """However long it was away: nobody waits out a pause that has grown meanwhile."""
    cluster.deploy()
    cluster.declare(queue={"timeout": "120s"})
    cluster.wait_condition("Ready", "AtZero")
    cluster.stop_api()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask_patiently, activator)
        # Each of eight watches has failed eight times: the next attempts would come 15 to 30 s after these.
        eventually(lambda: watch_errors(activator) >= 8 * 8, timeout_s=90.0)
        back_s = time.monotonic()
        cluster.start_api()
        status, served_s = answer.result(90.0)
    assert status == 200
    assert served_s - back_s < 4.0


def test_nothing_is_written_while_nothing_changes(cluster: StoryCluster, activator: Activator) -> None:
    """What was seen before another object has been worked out when that one has its status."""
    cluster.deploy()
    cluster.declare(scaling={"min": 1})
    cluster.wait_condition("Ready", "Serving")
    eventually(lambda: cluster.get("activations")["status"]["ready"] == 1)
    cluster.declare("first")
    cluster.wait_condition("Ready", "TargetNotFound", "first")
    before = cluster.writes("hello")
    assert before
    for _ in range(20):
        assert ask(activator)[0] == 200
    touch = {"metadata": {"annotations": {"activator.dev/reconcile-trigger": "1"}}}
    cluster.update("activations", "hello", touch)
    cluster.declare("second")
    cluster.wait_condition("Ready", "TargetNotFound", "second")
    assert cluster.writes("hello") == before


def test_one_that_drains_writes_no_more(cluster: StoryCluster, activator: Activator) -> None:
    """Its successor serves already, and it sees less and less of the load."""
    cluster.deploy()
    cluster.declare(scaling={"scaleToZeroGrace": "1s"})
    cluster.wait_condition("Ready", "AtZero")
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(lambda: ask(activator, path="/slow/4")[0])
        cluster.wait_condition("Ready", "Serving")
        activator.signal(signal.SIGTERM)
        activator.wait_log("draining")
        before = len(cluster.writes(""))
        cluster.update("deployments", "hello", {"spec": {"replicas": 2}})
        assert slow.result(20.0) == 200
    activator.wait_end()
    assert (len(cluster.writes("")), cluster.replicas()) == (before, 2)


def test_why_so_many_pods_is_told(cluster: StoryCluster, activator: Activator) -> None:
    cluster.deploy()
    cluster.declare()
    cluster.wait_condition("Ready", "AtZero")
    assert ask(activator)[0] == 200
    scaling = activator.revision("hello")["scaling"]
    assert scaling["wanted"] == 1
    assert scaling["explanation"]
    eventually(lambda: cluster.names("events"), "an event on the object")
    text = activator.ask("/metrics")[2].decode()
    assert 'activator_declared_revisions{state="serving"} 1.0' in text
    assert "activator_pod_looks_total" in text
