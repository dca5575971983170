"""Two replicas of the activator in a cluster without Knative: one of them writes for each object, both serve it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.activation_replicas import ActivationReplicas
from tests.e2e.running import Activator, eventually
from tests.e2e.story_cluster import StoryCluster, ask
from tests.e2e.story_fixtures import cluster, make_cluster

__all__ = ["cluster", "make_cluster"]


@pytest.fixture
def replicas(cluster: StoryCluster, tmp_path: Path) -> Iterator[ActivationReplicas]:
    made = ActivationReplicas(cluster, tmp_path)
    yield made
    made.close()


def knows(activator: Activator, name: str = "hello") -> None:
    eventually(lambda: name in activator.revisions(), f"{name} is known")


def test_from_zero_by_either_replica(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    replicas.start_all(2)
    cluster.deploy()
    cluster.declare()
    cluster.wait_condition("Ready", "AtZero")
    owner, (other,) = replicas.owner(), replicas.others()
    for name in (other, owner):
        knows(replicas.running[name])
        assert ask(replicas.running[name])[0] == 200
        cluster.wait_replicas(0)
        cluster.wait_pods(0)
    cluster.wait_condition("Ready", "AtZero")
    assert replicas.writers("hello") == [owner], "one writer"
    assert "scaling" in replicas.running[owner].revision("hello")
    assert replicas.running[other].revision("hello").get("scaling") is None, "only the owner decides"


def test_objects_are_spread_and_each_has_one_writer(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    replicas.start_all(2)
    names = [f"app-{letter}" for letter in "abcdefghijkl"]
    for name in names:
        cluster.deploy(name)
        cluster.declare(name, scaling={"scaleToZeroGrace": "30s"})
    for name in names:
        cluster.wait_condition("Ready", "AtZero", name)
    entries = list(replicas.running.values())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: ask(entries[one % 2], f"{names[one % 12]}.test")[0], range(48)))
    assert Counter(answers) == {200: 48}
    owners = {name: replicas.owner(name) for name in names}
    assert len(set(owners.values())) == 2
    assert {name: replicas.writers(name) for name in names} == {name: [owner] for name, owner in owners.items()}


def test_a_limit_holds_over_both_and_the_owner_sees_the_load_of_both(
    cluster: StoryCluster, replicas: ActivationReplicas
) -> None:
    replicas.start_all(2)
    cluster.deploy()
    cluster.declare(containerConcurrency=1, scaling={"max": 4, "burst": True, "scaleToZeroGrace": "5s"})
    cluster.wait_condition("Ready", "AtZero")
    entries = list(replicas.running.values())
    for entry in entries:
        knows(entry)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda one: ask(entries[one % 2], path="/slow/0.3")[0], range(48)))
    assert Counter(answers) == {200: 48}
    assert {pod.most_in_flight for pod in cluster.seen} == {1}, "the limit holds over both replicas"
    assert len(cluster.seen) >= 3, "of half of the load three pods would not have come"
    assert replicas.writers("hello") == [replicas.owner()]


def test_load_at_the_other_replica_alone_keeps_the_pods(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    """The owner has no request of it, and must not scale it to zero."""
    replicas.start_all(2)
    cluster.deploy()
    cluster.declare()
    cluster.wait_condition("Ready", "AtZero")
    (other,) = replicas.others()
    knows(replicas.running[other])
    assert ask(replicas.running[other], path="/slow/5")[0] == 200
    assert len(cluster.seen) == 1, "it was there all the time"
    cluster.wait_replicas(0)


def test_the_owner_is_killed_in_the_middle_of_a_cold_start(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    replicas.start_all(2)
    cluster.deploy(failure="its probe fails")
    cluster.declare(scaling={"scaleToZeroGrace": "20s"})
    cluster.wait_condition("Ready", "AtZero")
    owner, (other,) = replicas.owner(), replicas.others()
    knows(replicas.running[other])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: ask(replicas.running[other])[0])
        cluster.wait_replicas(1)
        replicas.kill(owner)
        cluster.mend()
        assert answer.result(20.0) == 200
    cluster.wait_condition("Ready", "Serving")
    assert replicas.writers("hello") == [owner, other]
    eventually(lambda: "scaling" in replicas.running[other].revision("hello"))
    assert ask(replicas.running[other])[0] == 200


def test_the_owner_is_killed_before_it_has_scaled(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    """The request that waits at the other one is what the new owner decides by."""
    replicas.start_all(2)
    cluster.deploy()
    cluster.declare(scaling={"scaleToZeroGrace": "20s"})
    cluster.wait_condition("Ready", "AtZero")
    owner, (other,) = replicas.owner(), replicas.others()
    knows(replicas.running[other])
    replicas.kill(owner)
    began = time.monotonic()
    assert ask(replicas.running[other])[0] == 200
    print(f"from the death of the owner to an answer from zero: {time.monotonic() - began:.2f} s")
    assert replicas.writers("hello") == [owner, other]


def test_nothing_is_written_while_nothing_changes_also_at_a_change_of_the_owner(
    cluster: StoryCluster, replicas: ActivationReplicas
) -> None:
    replicas.start_all(2)
    cluster.deploy(replicas=1)
    cluster.declare(scaling={"min": 1})
    cluster.wait_condition("Ready", "Serving")
    eventually(lambda: cluster.get("activations")["status"]["ready"] == 1)
    owner, (other,) = replicas.owner(), replicas.others()
    replicas.running[other].wait_ready_pods("hello", 1)
    before = cluster.writes("hello")
    for _ in range(10):
        assert ask(replicas.running[owner])[0] == ask(replicas.running[other])[0] == 200
    assert cluster.writes("hello") == before
    replicas.kill(owner)
    eventually(lambda: replicas.running[other].revision("hello").get("scaling"), "it is taken over")
    cluster.declare("second")
    cluster.wait_condition("Ready", "TargetNotFound", "second")
    assert cluster.writes("hello") == before, "all is as it was: nothing is to be written"


def test_a_drain_hands_over_and_a_new_replica_takes_its_part(
    cluster: StoryCluster, replicas: ActivationReplicas
) -> None:
    """As in a rolling update, under load: no request fails, nothing is written by two."""
    replicas.start_all(2, shutdown={"delay": "1s"})
    names = [f"app-{letter}" for letter in "abcdef"]
    for name in names:
        cluster.deploy(name)
        cluster.declare(name, scaling={"scaleToZeroGrace": "20s"})
        cluster.wait_condition("Ready", "AtZero", name)
    over = threading.Event()
    answers: Counter[int] = Counter()
    third = replicas.start("activator-2", shutdown={"delay": "1s"})
    replicas.wait_together()
    for name in names:
        knows(third, name)

    def visit(name: str) -> None:
        while not over.is_set():
            answers[ask(third, f"{name}.test")[0]] += 1

    visitors = [threading.Thread(target=visit, args=(name,)) for name in names[:3]]
    for visitor in visitors:
        visitor.start()
    try:
        for name in ("activator-0", "activator-1"):
            leaving = replicas.running.pop(name)
            leaving.process.terminate()
            assert leaving.wait_end() == 0
        eventually(lambda: replicas.view("activator-2")["writers"] == [replicas.view("activator-2")["seat"]])
        for name in names:
            assert ask(third, f"{name}.test")[0] == 200
    finally:
        over.set()
        for visitor in visitors:
            visitor.join(20.0)
    assert set(answers) == {200}
    for name in names:
        writers = replicas.writers(name)
        assert len(writers) == len(set(writers)), "nobody wrote again after another one had"


def test_the_owner_changes_while_the_api_is_away(cluster: StoryCluster, replicas: ActivationReplicas) -> None:
    """Who owns what the replicas agree on without the API; what is to be written waits for it."""
    replicas.start_all(2)
    cluster.deploy()
    cluster.declare(scaling={"scaleToZeroGrace": "20s"})
    cluster.wait_condition("Ready", "AtZero")
    owner, (other,) = replicas.owner(), replicas.others()
    knows(replicas.running[other])
    cluster.stop_api()
    replicas.kill(owner)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: ask(replicas.running[other])[0])
        eventually(lambda: (replicas.running[other].revision("hello").get("scaling") or {}).get("wanted") == 1)
        cluster.start_api()
        assert answer.result(20.0) == 200
    assert replicas.writers("hello") == [owner, other]


def test_without_the_rights_for_leases_it_does_not_start(
    cluster: StoryCluster, replicas: ActivationReplicas, tmp_path: Path
) -> None:
    """Alone it would write for objects for which the others write as well."""
    cluster.give_member_rights(False)
    with pytest.raises(AssertionError, match="without them several replicas would write for the same objects"):
        replicas.start("activator-0")
