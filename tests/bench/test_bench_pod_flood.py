"""`python -m bench pod-flood`: what each way handles, when a pod counts as routable, and a small run of two ways."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.messages import Change, ObservedPod, PodGone, PodStatus
from bench import pod_flood
from bench.flood_cluster import PodLife, downs_of
from bench.flood_sources import WAYS, FloodSource
from bench.pod_flood import ROUTABLE_S, Options, judged
from bench.processes import Cores

KEY = "default/hello"


def pod(version: int, ready: bool = True, note: str = "", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "hello-1",
            "namespace": "default",
            "uid": "u1",
            "resourceVersion": str(version),
            "annotations": {"update": note},
            **metadata,
        },
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def line(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode()


def heard(name: str, *lines: bytes) -> tuple[FloodSource, list[Change]]:
    way = next(one for one in WAYS if one.name == name)
    client = KubeClient(Credentials({"KUBECONFIG": "/nowhere"}, time.monotonic), "activator/bench")
    submitted: list[Change] = []
    source = FloodSource(way, client, KEY, submitted.append, 2.0)
    for one in lines:
        source.reflector._apply_event(one)
    return source, submitted


BORN = (line("ADDED", pod(1, ready=False)), line("MODIFIED", pod(2)), line("MODIFIED", pod(3, note="1")))


@pytest.mark.parametrize(
    ("name", "handled", "statuses"),
    [
        ("all events", 3, [PodStatus.NOT_READY, PodStatus.PENDING, PodStatus.PENDING]),
        ("filtered", 2, [PodStatus.NOT_READY, PodStatus.PENDING]),
        ("ADDED and DELETED, awaited pods pulled", 1, [PodStatus.NOT_READY]),
    ],
)
def test_what_each_way_handles_of_the_birth_of_a_pod(name: str, handled: int, statuses: list[PodStatus]) -> None:
    source, submitted = heard(name, *BORN)
    assert (source.received, source.handler.handled) == (3, handled)
    assert [one.status for one in submitted if isinstance(one, ObservedPod)] == statuses
    assert source.reflector.version == "3", "a watch that breaks goes on from here"


def test_a_pod_is_awaited_until_a_pull_finds_it_ready_or_it_is_gone() -> None:
    source, submitted = heard("ADDED and DELETED, awaited pods pulled", *BORN)
    handler: Any = source.handler
    assert list(handler.awaited) == [("default", "hello-1")]
    reflector = source.reflector
    reflector.contents.added_or_modified(reflector.decoding.object(json.dumps(pod(3)).encode()))
    assert not handler.awaited
    reflector._apply_event(line("DELETED", pod(4, deletionTimestamp="2026-01-01T00:00:00Z")))
    assert isinstance(submitted[-1], PodGone)


def test_pods_that_died_early_say_nothing_and_those_that_never_came_are_told() -> None:
    lives = [
        PodLife("a:1", 10.0, 0, []),
        PodLife("b:1", 10.0, 0, [(10.5, 11.0)]),
        PodLife("c:1", 10.0, 0, [(10.0 + ROUTABLE_S + 1.0, 30.0)]),
        PodLife("d:1", 10.0, 0, []),
    ]
    times, never = judged(lives, {"a:1": 10.25, "d:1": 9.9}, 12.0)
    assert (times, never) == ([0.0, 0.25], 1)
    assert downs_of([(1.0, math.inf)])[0][1] > 1e9


@pytest.mark.e2e
@pytest.mark.deep
def test_a_small_flood_by_two_ways(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    options = Options(1, 4, 1)
    for way, net in ((WAYS[2], 230), (WAYS[-1], 231)):
        found = asyncio.run(pod_flood._measured(way, net, options, Cores().load, log))
        assert found.counts.received > found.counts.handled > 0
        assert found.story is not None and found.story.deleted > 0 and found.routable_s
        assert found.summary.requests > 0
        assert len(pod_flood.rows([found])[1][0]) == len(pod_flood.rows([found])[0])
        assert pod_flood.figures(options, [found])
