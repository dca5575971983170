"""An endpoint that people share: who has no key starts nothing, and what is logged names the client, not the key."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import ask, request
from tests.e2e.running import SERVING, Activator, configured, eventually, process_revision

KEYS: list[dict[str, Any]] = [
    {"name": "alice", "key": "env:ALICE_KEY"},
    {"name": "bob", "key": "bobs-secret-key", "revisions": ["site"]},
    {"name": "anyone", "revisions": ["site"]},
]


SECRETS = ("alices-secret-key", "bobs-secret-key", "alices-other-key", "nobodys-secret-key")


def config(keys: list[dict[str, Any]]) -> dict[str, Any]:
    model = {**process_revision(SERVING), "name": "model", "hosts": ["model.test"]}
    site = {**process_revision(SERVING), "name": "site", "hosts": ["site.test"]}
    return configured([model, site], keys=keys, access_log="json")


def status(activator: Activator, host: str, fields: str = "", target: str = "/") -> tuple[int, str]:
    answer = ask(activator.address, request(target, host=host, headers=fields))
    return answer.status, answer.reason


def admitted(activator: Activator) -> dict[str, int]:
    text = activator.ask("/metrics")[2].decode()
    return {
        name: int(float(text.split(f'activator_key_requests_total{{key="{name}"}} ')[1].split()[0]))
        for name in ("alice", "bob", "anyone")
    }


def test_keys(run_activator: RunActivator, tmp_path: Path) -> None:
    # Its standard output is not kept by the tests: a shell writes it to a file.
    path, log = tmp_path / "keys.yaml", tmp_path / "access.log"
    path.write_text(json.dumps(config(KEYS)))
    activator = run_activator(
        arguments=["-c", str(path)], prefix=["sh", "-c", 'exec "$@" > "$0"', str(log)], ALICE_KEY="alices-secret-key"
    )
    assert status(activator, "model.test") == (401, "key_required")
    assert status(activator, "model.test", "Authorization: Bearer bobs-secret-key\r\n") == (403, "key_not_allowed")
    assert status(activator, "model.test", "X-Api-Key: nobodys-secret-key\r\n") == (401, "key_required")
    with Http2Client(activator.address, authority="model.test") as client:
        reply = client.ask()
        assert (reply.status, reply.reason) == (401, "key_required")
    assert activator.revision("model")["slots"] == [], "nothing was started"

    answer = ask(activator.address, request("/v1/models/x", host="model.test", headers="X-Api-Key: no-key-of-ours\r\n"))
    assert answer.header("content-type") == "application/json"
    assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"

    basic = base64.b64encode(b"me:alices-secret-key").decode()
    for fields in ("Authorization: Bearer alices-secret-key\r\n", f"Authorization: Basic {basic}\r\n"):
        assert status(activator, "model.test", fields) == (200, "")
    assert status(activator, "site.test") == (200, "")
    assert status(activator, "site.test", "X-Api-Key: bobs-secret-key\r\n") == (200, "")
    eventually(lambda: admitted(activator) == {"alice": 2, "bob": 1, "anyone": 1})

    # A reload with another key; the counts go on.
    keys = [{"name": "alice", "key": "alices-other-key"}, *KEYS[1:]]
    path.write_text(json.dumps(config(keys)))
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    eventually(lambda: status(activator, "model.test", "X-Api-Key: alices-other-key\r\n") == (200, ""))
    assert status(activator, "model.test", "X-Api-Key: alices-secret-key\r\n") == (401, "key_required")
    eventually(lambda: admitted(activator) == {"alice": 3, "bob": 1, "anyone": 1})

    paths = ("/metrics", "/debug/revisions", "/debug/config", "/debug/overview")
    shown = b"".join(activator.ask(path)[2] for path in paths).decode()
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    names = [one.get("key", "") for one in map(json.loads, log.read_text().splitlines()) if one["status"] == 200]
    assert names == ["alice", "alice", "anyone", "bob", "alice"]
    for secret in (*SECRETS, basic):
        assert secret not in activator.text() + shown + log.read_text()
