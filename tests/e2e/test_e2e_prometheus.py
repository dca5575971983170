"""A real Prometheus reads a running activator under load, and answers the questions that metrics are for.

The stories are those of operators: how slow is the slow end, is somebody fighting over an object, will waiting help, is
there room left. What a control plane counts comes from a second target, into which the test injects errors.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from activator.runtime.controller_counts import Controllers
from activator.telemetry.metrics.exposition import Exposition
from bench.processes import free_port
from tests.data_plane.proxy.proxy_fakes import World
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import configured, eventually
from tests.telemetry.test_exposition import program
from tests.telemetry.test_tracing import Collector

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


class ControlPlane:
    """A target of its own: controllers whose passes fail as the test says."""

    def __init__(self) -> None:
        world = World()
        self.controllers = Controllers(world.clock.now)
        exposition = Exposition(lambda: (), lambda: program(world)._replace(controllers=self.controllers))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                slices, content_type = exposition.render(self.headers.get("Accept", ""))
                body = b"".join(slices)
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *said: Any) -> None:
                """Nothing of it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(60.0)


class Prometheus:
    """Scrapes every 200 ms."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        jobs = [
            {"job_name": name, "metrics_path": "/metrics", "static_configs": [{"targets": [address]}]}
            for name, address in targets.items()
        ]
        timing = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
        file = folder / "prometheus.yml"
        file.write_text(json.dumps({"global": timing, "scrape_configs": jobs}))
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={urllib.parse.urlsplit(self.url).netloc}",
            "--enable-feature=exemplar-storage",
            "--log.level=error",
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector; empty too while nobody answers."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=60.0) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except OSError:
            return []
        return found

    def value(self, expression: str) -> float | None:
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """All that have been kept in the last hour, each with the labels of its series."""
        now_s = time.time()
        asked = {"query": expression, "start": f"{now_s - 3600.0}", "end": f"{now_s + 60.0}"}
        url = f"{self.url}/api/v1/query_exemplars?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=60.0) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]
        return [{**one["seriesLabels"], **exemplar} for one in found for exemplar in one["exemplars"]]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60.0)


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    made = ControlPlane()
    yield made
    made.close()


def test_the_questions_of_operators(run_activator: RunActivator, tmp_path: Path, control_plane: ControlPlane) -> None:
    controllers = control_plane.controllers
    controllers.register("endpoints", concurrency=4)
    controllers.register("membership")
    with ScriptedPod(serve) as pod:
        revision = {"name": "a", "hosts": ["a.test"], "container_concurrency": 3, "pods": [pod.address]}
        activator = run_activator(configured([revision]))
        activator.wait_ready_pods("a")
        prometheus = Prometheus(tmp_path, {"activator": activator.admin, "control": control_plane.address})
        try:
            eventually(lambda: prometheus.value("sum(up)") == 2.0, "both targets to be read")
            of = 'revision="a"'
            eventually(lambda: prometheus.value(f"activator_capacity{{{of}}}") == 3.0, "a first reading")
            eventually(lambda: prometheus.value("sum(activator_reconcile_errors_total)") == 0.0, "its first reading")
            for _ in range(5):
                controllers.conflict("membership", "member_row")
            controllers.added("endpoints")
            with pytest.raises(PermissionError), controllers.reconcile("endpoints"):
                raise ForbiddenError
            asked = 0

            def served() -> bool:
                nonlocal asked
                assert ask(activator.address, request(host="a.test")).status == 200
                asked += 1
                return prometheus.value(f"increase(activator_requests_total{{{of}}}[1m])") not in {None, 0.0}

            eventually(served, "requests that are counted")
            eventually(
                lambda: prometheus.value(f"activator_requests_total{{{of}}}") == asked, "every one of them, and no more"
            )
            # A reading that took too long leaves no figures until the next one: each is waited for.
            quantile = "histogram_quantile(0.95, sum by (le) (rate(activator_request_duration_seconds_bucket[1m])))"

            def slow_end() -> float | None:
                """The buckets appear with the first request: until one is served between two readings, nothing has
                increased, and the answer is NaN."""
                assert ask(activator.address, request(host="a.test")).status == 200
                value = prometheus.value(quantile)
                return None if value is None or math.isnan(value) else value

            slowest_s = eventually(slow_end, "the slow end")
            assert slowest_s is not None and 0.0 < slowest_s < 300.0
            conflicts = "sum by (target_kind) (increase(activator_status_update_conflict_total[1m])) > 0"
            eventually(
                lambda: [one["metric"] for one in prometheus.query(conflicts)] == [{"target_kind": "member_row"}]
            )
            persistent = 'activator_reconcile_errors_total{error_type=~"invalid|forbidden|not_found|other"} > 0'
            (told,) = eventually(lambda: prometheus.query(persistent), "an error that stays")
            assert (told["metric"]["controller"], told["metric"]["error_type"]) == ("endpoints", "forbidden")
            room = (
                'controller_runtime_max_concurrent_reconciles{controller="endpoints"}'
                ' - on (controller) controller_runtime_active_workers{controller="endpoints"}'
            )
            assert eventually(lambda: prometheus.value(room), "the room that is left") == 4.0
            depth = 'workqueue_depth{controller="endpoints"}'
            assert eventually(lambda: prometheus.value(depth), "who waits") == 1.0
        finally:
            prometheus.close()


def test_the_way_from_a_bucket_to_a_trace(run_activator: RunActivator, tmp_path: Path) -> None:
    """Prometheus asks for OpenMetrics, and keeps what stands for a bucket: the trace that the collector has."""
    collector = Collector()
    with closing(collector), ScriptedPod(serve) as pod:
        revision = {"name": "a", "hosts": ["a.test"], "pods": [pod.address]}
        traced = {"exporter": "otlp", "endpoint": collector.url, "sampling_rate": 1}
        activator = run_activator(configured([revision], tracing=traced))
        activator.wait_ready_pods("a")
        prometheus = Prometheus(tmp_path, {"activator": activator.admin})
        try:
            before_s = time.time()
            assert ask(activator.address, request(host="a.test")).status == 200
            kept = 'activator_request_duration_seconds_bucket{revision="a"}'
            eventually(lambda: prometheus.value("sum(up)") == 1.0, "a reading")
            (one,) = eventually(lambda: prometheus.exemplars(kept), "an exemplar")
            with collector.arrived:
                assert collector.arrived.wait_for(lambda: len(collector.spans) >= 3, 60.0)
            (span,) = [span for span in collector.spans if span.name == "GET"]
            assert one["labels"] == {"trace_id": span.trace_id.hex()}
            took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            assert float(one["value"]) == pytest.approx(took_s, abs=1e-6)
            assert float(one["value"]) <= float(one["le"])
            assert one["timestamp"] == pytest.approx(span.end_time_unix_nano / 1e9, abs=0.002)
            assert before_s - 0.002 <= one["timestamp"] <= time.time()
        finally:
            prometheus.close()


class ForbiddenError(PermissionError):
    """As the API says it."""

    status = 403
