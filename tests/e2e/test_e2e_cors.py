"""A page of another origin and a keyed endpoint: its preflights start nothing, and it can read every response."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Answer, ask, request
from tests.e2e.running import SERVING, configured, eventually, process_revision

PAGE = "https://page.test"
KEY = "alices-secret-key"
PREFLIGHT = (
    f"Origin: {PAGE}\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_page_of_another_origin(run_activator: RunActivator, tmp_path: Path, workers: int) -> None:
    model = {**process_revision(SERVING), "name": "model", "hosts": ["llm.test"], "match": {"json": {"model": ["m"]}}}
    site = {**process_revision(SERVING), "hosts": ["site.test"], "forward_auth": {"url": "http://127.0.0.1:1/"}}
    keys = [{"name": "alice", "key": KEY}, {"name": "anyone", "key": "none", "revisions": ["app"]}]
    made = configured([model, site], keys=keys, cors={"origins": [PAGE]}, workers=workers)
    path = tmp_path / "cors.yaml"
    path.write_text(json.dumps(made))
    activator = run_activator(arguments=["-c", str(path)])

    def asked(target: str, host: str, method: str, fields: str, body: bytes | None = None) -> Answer:
        return ask(activator.address, request(target, method, host, fields, body))

    for host in ("llm.test", "site.test", "nobody.test"):
        answer = asked("/v1/chat/completions", host, "OPTIONS", PREFLIGHT)
        assert (answer.status, answer.header("access-control-allow-origin")) == (204, PAGE)
        assert answer.header("access-control-allow-headers") == "authorization"
        assert asked("/", host, "OPTIONS", PREFLIGHT.replace(PAGE, "https://evil.test")).status in {401, 503}
    with Http2Client(activator.address, authority="llm.test") as client:
        fields = [("origin", PAGE), ("access-control-request-method", "POST")]
        reply = client.ask("/", "OPTIONS", headers=fields)
        assert (reply.status, reply.header("access-control-allow-methods")) == (204, "POST")
        reply = client.ask("/", headers=fields[:1])
        assert (reply.status, reply.header("access-control-allow-origin")) == (401, PAGE)
    # A list of models, refusals, and the response of a pod.
    origin = f"Origin: {PAGE}\r\n"
    key = f"Authorization: Bearer {KEY}\r\n"
    for answer, status in (
        (asked("/v1/models", "llm.test", "GET", origin + key), 200),
        (asked("/v1/models", "llm.test", "GET", origin), 401),
        (asked("/", "nobody.test", "GET", origin + key), 404),
        (asked("/", "site.test", "GET", origin), 503),  # its authoriser is not there
    ):
        assert (answer.status, answer.all("access-control-allow-origin")) == (status, [PAGE])
    assert activator.revision("model")["slots"] == activator.revision("app")["slots"] == [], "nothing was started"
    body = json.dumps({"model": "m"}).encode()
    answer = asked("/v1/x", "llm.test", "POST", origin + key, body)
    assert (answer.status, answer.all("access-control-allow-origin"), answer.all("vary")) == (200, [PAGE], ["Origin"])
    assert asked("/v1/x", "llm.test", "POST", key, body).all("access-control-allow-origin") == []

    del made["cors"]
    path.write_text(json.dumps(made))
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    eventually(lambda: all(asked("/", "llm.test", "OPTIONS", PREFLIGHT).status == 401 for _ in range(20)))
