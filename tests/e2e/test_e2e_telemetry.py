"""What an operator sees of a running activator: the access log on standard output, and the phases of a cold start."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.pods import ScriptedPod, replies, serve
from tests.e2e.running import SERVING, cli, configured, eventually, process_revision
from tests.e2e.test_e2e_workers import pids
from tests.telemetry.test_tracing import Collector

TO_FILE = ["sh", "-c", 'exec "$@" > access.log', "sh"]  # standard output into a file of the test's folder


def lines_of(folder: Path) -> list[str]:
    text = (folder / "access.log").read_text("utf-8")
    return text.split("\n")[:-1]


def test_the_access_log_and_its_switch(run_activator: RunActivator, tmp_path: Path) -> None:
    with ScriptedPod(serve) as pod:
        configuration = configured([{"name": "a", "hosts": ["a.test"], "pods": [pod.address]}], access_log="json")
        activator = run_activator(configuration, prefix=TO_FILE)
        activator.wait_ready_pods("a")
        for host, status in (("a.test", 200), ("nobody.test", 404)):
            assert ask(activator.address, request(host=host)).status == status
        eventually(lambda: len(lines_of(tmp_path)) == 2, "two lines")
        first, second = (json.loads(line) for line in lines_of(tmp_path))
        assert (first["status"], first["revision"], first["address"]) == (200, "a", pod.address)
        assert (second["status"], second["reason"], second["host"]) == (404, "no_route", "nobody.test")

        def switch(access_log: Any, **more: Any) -> None:
            changed = {**configuration, "access_log": access_log, **more}
            (tmp_path / "activator0.yaml").write_text(json.dumps(changed))
            activator.process.send_signal(signal.SIGHUP)

        switch("{method} {status}")
        eventually(lambda: activator.log[-1].endswith("reloaded"), "the reload")
        assert ask(activator.address, request(host="a.test")).status == 200
        eventually(lambda: lines_of(tmp_path)[2:] == ["GET 200"], "a line of the template")
        switch("{no}")
        eventually(lambda: "reload rejected" in activator.log[-1], "the refusal")
        activator.may_log_errors = True
        assert ask(activator.address, request(host="a.test")).status == 200
        activator.process.send_signal(signal.SIGTERM)  # what is gathered is written before the end
        assert activator.process.wait(timeout=60.0) == 0
        assert lines_of(tmp_path)[2:] == ["GET 200", "GET 200"]


def test_a_cold_start_by_its_phases(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(SERVING)]))
    assert ask(activator.address, request()).status == 200
    accept = {"Accept": "text/plain", "Accept-Encoding": "identity"}
    status, headers, body = activator.ask("/metrics", headers=accept)
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    sums: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.labels.get("revision") == "app":
                sums[sample.name, sample.labels.get("phase", "")] = sample.value
    assert sums["activator_cold_starts_total", ""] == 1.0
    phases = [
        sums["activator_cold_start_phase_seconds_sum", phase]
        for phase in ("start", "ready", "queue", "connect", "first_byte")
    ]
    assert phases[1] > 0.0, "a program takes a while until it answers"
    assert all(took_s >= 0.0 for took_s in phases)
    assert abs(sum(phases) - sums["activator_first_byte_seconds_sum", ""]) < 1e-6


def test_traces_reach_a_collector_and_pods(run_activator: RunActivator, tmp_path: Path) -> None:
    collector = Collector()
    with closing(collector), ScriptedPod(serve) as pod:
        configuration = configured(
            [{"name": "a", "hosts": ["a.test"], "pods": [pod.address]}],
            access_log="json",
            tracing={"exporter": "otlp", "endpoint": collector.url, "sampling_rate": 1},
        )
        activator = run_activator(configuration, prefix=TO_FILE)
        activator.wait_ready_pods("a")
        trace = "0123456789abcdef0123456789abcdef"
        sent = f"traceparent: 00-{trace}-fedcba9876543210-01\r\nbaggage: a=b\r\n"
        assert ask(activator.address, request(host="a.test", headers=sent)).status == 200
        with collector.arrived:  # the exporter waits up to 5 s for a batch to fill
            assert collector.arrived.wait_for(lambda: len(collector.spans) >= 4, 60.0)
        spans = {span.name: span for span in collector.spans}
        assert {span.trace_id.hex() for span in spans.values()} == {trace}
        eventually(lambda: len(lines_of(tmp_path)) == 1, "its line in the access log")
        assert json.loads(lines_of(tmp_path)[0])["trace_id"] == trace
        told = {name.lower(): value for name, value in pod.requests[-1].headers}
        assert told["traceparent"] == f"00-{trace}-{spans['activator_proxy'].span_id.hex()}-01"
        assert told["baggage"] == "a=b"


def test_the_programs_own_log_changes_with_a_reload(run_activator: RunActivator, tmp_path: Path) -> None:
    with ScriptedPod(serve) as pod:
        configuration = configured([{"name": "a", "hosts": ["a.test"], "pods": [pod.address]}])
        activator = run_activator(configuration)
        assert re.match(r"\d{4}-\d\d-\d\d \S+ INFO (\[worker \d\] )?activator", activator.log[0])

        def reload(**log: Any) -> None:
            (tmp_path / "activator0.yaml").write_text(json.dumps({**configuration, "log": log}))
            activator.process.send_signal(signal.SIGHUP)

        reload(format="json", levels={"asyncio": "error"})
        said = json.loads(activator.wait_log(r"^\{.*reloaded.*"))
        assert (said["level"], said["logger"], said["message"]) == ("info", "activator", "reloaded")
        assert json.loads(activator.ask("/debug/log")[2]) == {"": "info", "asyncio": "error"}
        reload(level="warning")
        eventually(lambda: json.loads(activator.ask("/debug/log")[2]) == {"": "warning"}, "the new level")
        reload(level="info")
        activator.wait_log("reloaded", 2)
        assert len(activator.logged("reloaded")) == 2, "the one between was no warning"


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_of_each_pod(run_activator: RunActivator, tmp_path: Path, workers: int) -> None:
    """Of revisions with few pods. They go on after a pod was out of service, and after the end of a worker."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(ScriptedPod(serve)) for _ in range(2))
        bad = stack.enter_context(ScriptedPod(replies(b"HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\n\r\n")))
        revisions = [
            {"name": "few", "hosts": ["few.test"], "pods": [one.address, two.address], "policy": "round-robin"},
            {"name": "bad", "hosts": ["bad.test"], "pods": [bad.address]},
            {"name": "many", "hosts": ["many.test"], "pods": [one.address, two.address, bad.address]},
        ]
        configuration = configured(revisions, metrics={"pods": 2}, workers=workers)
        began_s = time.time() - 0.01
        activator = run_activator(configuration)

        def series(name: str) -> dict[tuple[str, str], float]:
            text = activator.ask("/metrics")[2].decode()
            pattern = rf'^activator_pod_{name}_total{{namespace="default",revision="(.*)",pod="(.*)"}} (.*)$'
            return {(revision, pod): float(value) for revision, pod, value in re.findall(pattern, text, re.MULTILINE)}

        def changes() -> dict[tuple[str, str], tuple[str, float]]:
            text = activator.ask("/metrics")[2].decode()
            name = "activator_pod_state_changed_timestamp_seconds"
            pattern = rf'^{name}{{namespace="default",revision="(.*)",pod="(.*)",state="(.*)"}} (.*)$'
            return {(one[0], one[1]): (one[2], float(one[3])) for one in re.findall(pattern, text, re.MULTILINE)}

        def ask_often(host: str, count: int = 20) -> None:
            for _ in range(count):
                assert ask(activator.address, request(host=host)).status == (500 if host == "bad.test" else 200)

        def expected() -> dict[tuple[str, str], float]:
            served = {("few", pod.address): float(len(pod.requests)) for pod in (one, two)}
            return {**served, ("bad", bad.address): 3.0}

        ask_often("few.test")
        ask_often("bad.test", 3)
        eventually(lambda: series("responses") == expected(), "all responses are counted")
        assert series("errors") == {key: 3.0 if key[0] == "bad" else 0.0 for key in expected()}
        assert all(0.0 < value < 20.0 for value in series("first_byte_seconds").values())
        first = changes()
        assert first.keys() == expected().keys() and {state for state, _ in first.values()} == {"ready"}
        assert all(began_s <= at_s <= time.time() for _, at_s in first.values())
        admin = ("--admin", f"http://{activator.admin}")
        assert cli("drain-pod", "few", one.address, *admin).returncode == 0
        eventually(lambda: ("few", one.address) not in series("responses"), "it has no slot")
        assert cli("enable-pod", "few", one.address, *admin).returncode == 0
        ask_often("few.test")
        eventually(lambda: series("responses") == expected(), "the counts go on")
        later = changes()
        assert [key for key in first if later[key] != first[key]] == [("few", one.address)]
        assert later["few", one.address][1] > first["few", one.address][1]
        if workers > 1:
            activator.may_log_errors = True
            os.kill(pids(activator)[0], signal.SIGKILL)
            ask_often("few.test")
            eventually(lambda: series("responses") == expected(), "and go on with another worker")
        (tmp_path / "activator0.yaml").write_text(json.dumps({**configuration, "metrics": {"pods": 0}}))
        activator.signal(signal.SIGHUP)
        activator.wait_log(" reloaded")
        eventually(lambda: series("responses") == {}, "a reload turns them off")
