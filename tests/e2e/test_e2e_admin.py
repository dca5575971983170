"""The admin port: health, metrics, debug, and whom it refuses."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import Activator, configured


@pytest.fixture(scope="module")
def activator(run_shared_activator: RunActivator) -> Iterator[Activator]:
    with ScriptedPod(serve) as pod:
        revision = {"name": "a", "hosts": ["a.test"], "container_concurrency": 2, "pods": [pod.address]}
        activator = run_shared_activator(configured([revision]))
        activator.wait_ready_pods("a")
        yield activator


def test_health(activator: Activator) -> None:
    for path in ("/healthz", "/readyz"):
        assert activator.ask(path)[::2] == (200, b"ok\n")
    status, _, body = activator.ask("/")
    assert status == 200
    assert b"/metrics" in body


def test_metrics_are_prometheus_text(activator: Activator) -> None:
    for host, status in (("a.test", 200), ("a.test", 200), ("nobody.test", 404)):
        assert ask(activator.address, request(host=host)).status == status
    status, headers, body = activator.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert all(family.documentation for family in families.values())
    assert all(
        name.startswith(("activator_", "process_", "controller_runtime_", "workqueue_", "rest_client_"))
        for name in families
    ), families.keys()
    sums = {
        sample.name: sample.value
        for family in families.values()
        for sample in family.samples
        if sample.labels.get("revision", "a") == "a" and sample.labels.get("code_class", "2xx") == "2xx"
    }
    assert sums["activator_requests_total"] == sums["activator_responses_total"] == 2.0
    assert sums["activator_in_flight"] == sums["activator_queued"] == 0.0


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("", False), ("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("deflate", False), ("*", False)],
)
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_metrics_come_packed_where_that_is_taken(activator: Activator, accepted: str, packed: bool, kind: str) -> None:
    asked = {"Accept": kind, "Accept-Encoding": accepted}
    status, headers, body = activator.ask("/metrics", headers=asked)
    assert status == 200
    assert headers["content-type"].startswith(kind.partition(";")[0])
    assert ("content-encoding" in headers) == packed
    text = gzip.decompress(body) if packed else body
    assert text.endswith(b"# EOF\n" if "openmetrics" in kind else b"\n")
    assert b"activator_requests_total{" in text


def test_debug_revisions(activator: Activator) -> None:
    status, headers, body = activator.ask("/debug/revisions")
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    (revision,) = json.loads(body)["revisions"]
    assert (revision["namespace"], revision["name"], revision["hosts"]) == ("default", "a", ["a.test"])
    assert (revision["in_flight"], revision["queued"], revision["capacity"]) == (0, 0, 2)
    assert {"length", "holes", "fragmentation"} <= set(revision["table"])
    (slot,) = revision["slots"]
    assert (slot["state"], slot["reason"], slot["in_flight"], slot["limit"]) == ("ready", "", 0, 2)
    assert revision["without_slot"] == []
    assert slot["generation"] >= 0


def test_the_live_page_needs_nothing_from_elsewhere(activator: Activator) -> None:
    status, headers, body = activator.ask("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    page = body.decode()
    assert not re.search(r"(?:src|href)\s*=\s*(?!\"/[a-z])|@import|url\(", page)
    assert "innerHTML" not in page and "document.write" not in page and "insertAdjacent" not in page
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for link in re.findall(r'href="([^"]+)"', page):
        assert activator.ask(link)[0] == 200


def test_debug_config_and_tasks(activator: Activator) -> None:
    status, _, body = activator.ask("/debug/config")
    assert status == 200
    config = json.loads(body)
    assert config["revisions"][0]["name"] == "a"
    assert config["limits"]["headers"] == 100
    status, _, body = activator.ask("/debug/tasks")
    assert status == 200
    assert {"state worker", "scaling"} <= {task["name"] for task in json.loads(body)}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.test"},
        {"Host": "evil.test:8008"},
        {"Host": "127.0.0.1.evil.test"},
        {"Host": "localhost.evil.test"},
        {"Host": ""},
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/debug/revisions"), ("GET", "/metrics"), ("POST", "/drain")])
def test_foreign_hosts_and_origins_are_refused(
    activator: Activator, method: str, path: str, headers: dict[str, str]
) -> None:
    status, _, body = activator.ask(path, method, {"Activator-Admin": "1", **headers})
    assert status == 403
    assert b"revisions" not in body.splitlines()[0]
    assert activator.ask("/readyz")[0] == 200


@pytest.mark.parametrize("headers", [{}, {"Activator-Admin": "0"}, {"Activator-Admin": ""}], ids=str)
@pytest.mark.parametrize("path", ["/drain", "/reload", "/debug/profile"])
def test_what_changes_something_needs_the_header(activator: Activator, path: str, headers: dict[str, str]) -> None:
    status, _, body = activator.ask(path, "POST", headers)
    assert status == 403
    assert b"Activator-Admin: 1" in body
    assert activator.ask(path, "GET")[0] == 405
    assert activator.ask("/readyz")[0] == 200


def test_its_own_names_are_taken(activator: Activator) -> None:
    port = activator.admin.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "activator.knative-serving.svc"):
        assert activator.ask("/healthz", headers={"Host": host})[0] == 200
    assert activator.ask("/healthz", headers={"Origin": f"http://{activator.admin}"})[0] == 200


def test_levels_of_the_log(activator: Activator) -> None:
    assert json.loads(activator.ask("/debug/log")[2])[""] == "info"
    status, _, body = activator.command("/debug/log?part=state&level=debug")
    assert (status, json.loads(body)["state"]) == (200, "debug")
    for wrong in ("", "?level=loud", "?part=nobody&level=debug"):
        status, _, body = activator.command(f"/debug/log{wrong}")
        assert status == 400 and b"expected level" in body
    assert activator.ask("/debug/log?level=debug", "POST")[0] == 403


def test_a_profile(activator: Activator) -> None:
    status, _, body = activator.command("/debug/profile?seconds=0.2")
    assert status == 200
    profile = json.loads(body)
    assert profile["profiles"][0]["name"] == "MainThread"
    assert any("serve" in frame["name"] or "run" in frame["name"] for frame in profile["shared"]["frames"])
    for wrong in ("0", "61", "-1", "nan", "x"):
        assert activator.command(f"/debug/profile?seconds={wrong}")[0] == 400
