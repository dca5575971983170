"""A host that no revision has, while a source has yet to list its revisions: 503 with Retry-After, never 404."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.control_plane.sources.container.fake_engine import FakeEngine
from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.conftest import RunActivator, next_net
from tests.e2e.knative_cluster import Cluster
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.e2e.story_cluster import ask


def check_pending(activator: Activator, what: str) -> None:
    """Requests are refused for now, and the program is not ready for the reason `what`."""
    for host in ("hello.test", "nobody.test"):
        status, body, headers = ask(activator, host)
        assert (status, headers["Retry-After"]) == (503, "1"), body
        assert headers["Activator-Reason"] == "sources_pending"
    status, _, reasons = activator.ask("/readyz")
    assert status == 503
    assert what in reasons.decode()


def check_listed(activator: Activator, reason: str = "no_route") -> None:
    eventually(lambda: activator.ask("/readyz")[0] == 200, "readiness")
    eventually(lambda: ask(activator, "nobody.test")[0] == 404, "a refusal for good")
    assert ask(activator, "nobody.test")[2]["Activator-Reason"] == reason


@pytest.mark.parametrize("workers", ["1", "2"])
def test_activations_that_are_not_listed_yet(tmp_path: Path, run_activator: RunActivator, workers: str) -> None:
    cluster = ActivationCluster(tmp_path, next_net())
    try:
        cluster.deploy()
        cluster.declare()
        cluster.stop_api()
        activator = run_activator(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "workers": int(workers),
                "kubernetes": cluster.kubernetes(),
                "revisions": [{"name": "here", "hosts": ["here.test"], "pods": ["127.0.0.1:9"]}],
            },
            **cluster.environment(),
        )
        check_pending(activator, "the first list of activations")
        assert ask(activator, "here.test")[2]["Activator-Reason"] != "sources_pending", "the file has this one"
        seen: list[int] = []
        cluster.start_api()

        def is_served() -> bool:
            seen.append(ask(activator)[0])
            return seen[-1] == 200

        eventually(is_served)
        assert set(seen) == {200} or set(seen) == {200, 503}, seen
        check_listed(activator)
        activator.close()
    finally:
        cluster.close()


def test_revisions_of_knative_that_are_not_listed_yet(cluster: Cluster) -> None:
    cluster.revision("hello-00001")
    cluster.do(cluster.api.stop())
    activator = cluster.activator()
    check_pending(activator, "the first list of revisions")
    cluster.do(cluster.api.start())
    check_listed(activator)
    activator.close()


@contextmanager
def engine_at(path: Path) -> Iterator[FakeEngine]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = FakeEngine(path)
    asyncio.run_coroutine_threadsafe(engine.start(), loop).result(PATIENCE_S)
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def test_containers_that_are_not_listed_yet(tmp_path: Path, run_activator: RunActivator) -> None:
    socket = tmp_path / "engine.sock"
    activator = run_activator(
        {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "containers": {"engine": f"unix:{socket}", "discover": True},
            "revisions": [],
        }
    )
    check_pending(activator, "the first list of containers")
    with engine_at(socket):
        check_listed(activator)
        file = tmp_path / "activator0.yaml"
        file.write_text(file.read_text().replace(str(socket), str(tmp_path / "other.sock")))
        assert activator.command("/reload")[0] == 200
        check_pending(activator, "the first list of containers")
