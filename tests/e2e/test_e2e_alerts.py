"""A real Prometheus with the chart's rules scrapes a running activator, and answers what operators ask of it.

The four stories of the seed grep-498: how slow is one request of 20, do writers collide, which errors will not pass by
themselves, has the control plane room. Windows and thresholds are those of the rules; an alert that waits for its time
(`for:`) counts as raised.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from activator.runtime.child_name import deployment as deployment_of
from tests.charts.chart_files import RULES
from tests.e2e.http_client import Client
from tests.e2e.http_client import request as request_bytes
from tests.e2e.knative_cluster import NAMESPACE, Cluster
from tests.e2e.running import PATIENCE_S, Activator, eventually
from tests.kubernetes.fake_objects import RefusalError

pytestmark = pytest.mark.e2e

CONTENDED = 60  # revisions whose scale somebody else writes too; 0.2 a second of the rule's five minutes
SLOW_REQUESTS = 60
FAST_REQUESTS = 60
CONTROL_COUNTERS = ("activator_status_update_conflict", "activator_reconcile_errors")
Labels = dict[str, str]


class Prometheus:
    """One that scrapes `target` every second and judges the chart's rules as often."""

    def __init__(self, path: str, folder: Path, target: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        scraping = {"job_name": "activator", "honor_labels": True, "static_configs": [{"targets": [target]}]}
        (folder / "prometheus.yml").write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [scraping],
                }
            )
        )
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                path,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def query(self, text: str) -> list[tuple[Labels, float]]:
        """(labels, value) of each series of the answer."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def is_up(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        with contextlib.suppress(OSError):
            return any(value == 1.0 for _, value in self.query("up"))
        return False

    def wait(self, text: str, check: Callable[[list[tuple[Labels, float]]], object]) -> list[tuple[Labels, float]]:
        """The first answer that `check` takes."""
        answers: list[list[tuple[Labels, float]]] = [[]]

        def look() -> bool:
            answers[0] = self.query(text)
            return bool(check(answers[0]))

        eventually(look, f"{text}, asked of Prometheus", timeout_s=60.0)
        return answers[0]

    def raised(self, alert: str) -> list[tuple[Labels, float]]:
        return self.wait(f'ALERTS{{alertname="{alert}"}}', len)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        self._log.close()


class Scene:
    def __init__(self, cluster: Cluster, activator: Activator, prometheus: Prometheus) -> None:
        self.cluster = cluster
        self.activator = activator
        self.prometheus = prometheus


def revision_request(name: str, target: str = "/") -> bytes:
    headers = f"Knative-Serving-Namespace: {NAMESPACE}\r\nKnative-Serving-Revision: {name}\r\n"
    return request_bytes(target, host=f"{name}.test", headers=headers)


def refused(_verb: str, path: str) -> RefusalError | None:
    """What becomes of writes of scale: somebody else was quicker; and one Deployment nobody may look at."""
    if not path.endswith("/scale"):
        return None
    if "forbidden-" in path:
        return RefusalError(403, "Forbidden", "deployments/scale is forbidden")
    return RefusalError(409, "Conflict", "the object has been modified") if _verb == "patch" else None


def load(activator: Activator, name: str, seconds: float, count: int) -> None:
    """So many requests at once, each of which takes so long."""

    def one() -> None:
        with Client(activator.address) as client:
            statuses.append(client.ask(revision_request(name, f"/?seconds={seconds}")).status)

    statuses: list[int] = []
    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert statuses == [200] * count


@pytest.fixture(scope="module", name="scene")
def _scene(tmp_path_factory: pytest.TempPathFactory, need_program: Callable[[str], str]) -> Iterator[Scene]:
    path = need_program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with contextlib.ExitStack() as stack:
        cluster = Cluster(folder, 19)
        stack.callback(cluster.close)
        contended = [f"contended-{number:05}" for number in range(CONTENDED)]
        for name in ("fast-00001", "slow-00001", "forbidden-00001", *contended):
            cluster.revision(name)
        for name in ("forbidden-00001", *contended):
            deployment = {"metadata": {"name": deployment_of(name)}, "spec": {"replicas": 0}}
            cluster.call(lambda wanted=deployment: cluster.api.create("deployments", wanted))  # type: ignore[misc]
        cluster.call(lambda: setattr(cluster.api, "refused", refused))
        cluster.do(cluster.stop_autoscaler())
        stack.callback(lambda: cluster.do(cluster.start_autoscaler()))
        activator = cluster.activator(ACTIVATOR_KUBERNETES__SCALE_FALLBACK="200ms")
        stack.callback(activator.close)
        cluster.scale("fast-00001", 1)
        cluster.scale("slow-00001", 1)
        eventually(lambda: len(activator.revisions()) == CONTENDED + 3, "all revisions")
        activator.wait_ready_pods("fast-00001")
        activator.wait_ready_pods("slow-00001")
        prometheus = Prometheus(path, folder, activator.admin)
        stack.callback(prometheus.close)
        eventually(prometheus.is_up, "Prometheus has scraped", timeout_s=60.0)
        # A rate needs what was there before the first event.
        for metric in ("activator_requests_total", *(f"{name}_total" for name in CONTROL_COUNTERS)):
            samples = f"min(count_over_time({metric}[1m]))"
            prometheus.wait(samples, lambda found: found and found[0][1] >= 2)
        load(activator, "fast-00001", 0.3, FAST_REQUESTS)
        load(activator, "slow-00001", 1.2, SLOW_REQUESTS)
        for name in ("forbidden-00001", *contended):
            client = stack.enter_context(Client(activator.address))
            client.send(revision_request(name))  # nobody starts it: it waits until the client has gone
        yield Scene(cluster, activator, prometheus)


def test_how_slow_is_one_request_of_twenty(scene: Scene) -> None:
    def both(found: list[tuple[Labels, float]]) -> bool:
        return {"fast-00001", "slow-00001"} <= {labels["revision"] for labels, value in found if value == value}

    found = scene.prometheus.wait("revision:activator_request_duration_seconds:p95_5m", both)
    slow = {labels["revision"]: value for labels, value in found}
    assert slow["fast-00001"] > 0.25
    assert slow["slow-00001"] > 1.0
    raised = scene.prometheus.wait('ALERTS{alertname="ActivatorLatencyHigh",revision="slow-00001"}', len)
    assert (raised[0][0]["namespace"], raised[0][0]["severity"]) == (NAMESPACE, "warning")


def test_do_writers_collide_and_about_what(scene: Scene) -> None:
    total = 'activator_status_update_conflict_total{controller="revision",target_kind="scale"}'
    scene.prometheus.wait(total, lambda found: found and found[0][1] >= CONTENDED)
    (raised,) = scene.prometheus.raised("ActivatorConflictRateHigh")
    assert (raised[0]["controller"], raised[0]["target_kind"]) == ("revision", "scale")


def test_which_errors_will_not_pass_by_themselves(scene: Scene) -> None:
    raised = scene.prometheus.raised("ActivatorPersistentErrors")
    assert [(labels["controller"], labels["error_type"]) for labels, _ in raised] == [("revision", "forbidden")]
    # The conflicts are errors too, and not among these.
    transient = 'activator_reconcile_errors_total{controller="revision",error_type="conflict"}'
    scene.prometheus.wait(transient, lambda found: found and found[0][1] >= CONTENDED)


def test_has_the_control_plane_room(scene: Scene) -> None:
    busy = "controller_runtime_active_workers / controller_runtime_max_concurrent_reconciles"
    found = scene.prometheus.wait(busy, len)
    assert {labels["controller"] for labels, _ in found} <= {"revision", "endpoints", "membership"}
    assert all(0.0 <= value <= 1.0 for _, value in found)
    scene.prometheus.wait("sum(workqueue_depth)", lambda found: found and found[0][1] == 0.0)
    failed = 'sum by (result) (controller_runtime_reconcile_total{result="error"})'
    scene.prometheus.wait(failed, lambda found: found and found[0][1] >= CONTENDED + 1)


def test_the_autoscaler_is_missed(scene: Scene) -> None:
    assert scene.prometheus.raised("ActivatorAutoscalerAway")


def test_no_rule_fails(scene: Scene) -> None:
    failures = scene.prometheus.query("sum(prometheus_rule_evaluation_failures_total)")
    assert failures == [] or failures[0][1] == 0.0
    url = f"http://{scene.prometheus.address}/api/v1/rules"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 20
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


def test_promtool_takes_what_is_exposed(scene: Scene, need_program: Callable[[str], str]) -> None:
    status, _, body = scene.activator.ask("/metrics")
    assert status == 200
    answer = subprocess.run(
        [need_program("promtool"), "check", "metrics"], input=body, capture_output=True, timeout=60, check=False
    )
    said = (answer.stdout + answer.stderr).decode()
    assert (answer.returncode, said) == (0, "")
