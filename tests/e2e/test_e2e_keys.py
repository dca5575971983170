"""An endpoint that people share: who has no key starts nothing, and what is logged names the client, not the key."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import ask, request
from tests.e2e.running import SERVING, Activator, configured, eventually, process_revision
from tests.e2e.test_e2e_workers import pids

KEYS: list[dict[str, Any]] = [
    {"name": "alice", "key": "env:ALICE_KEY"},
    {"name": "bob", "key": "bobs-secret-key", "revisions": ["site"]},
    {"name": "anyone", "key": "none", "revisions": ["site"]},
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
        name: int(float(text.split(f'activator_user_requests_total{{user="{name}"}} ')[1].split()[0]))
        for name in ("alice", "bob", "anyone")
    }


def test_keys_with_several_workers(run_activator: RunActivator, tmp_path: Path) -> None:
    """Secrets are not sent to workers, but each of them, also a new one, recognises the keys."""
    made = config([{"name": "alice", "key": f"file:{tmp_path / 'key'}"}, *KEYS[1:]])
    made["workers"] = 2
    (tmp_path / "key").write_text("alices-secret-key\n")
    activator = run_activator(made)
    activator.may_log_errors = True

    served = 0

    def is_served(key: str) -> bool:
        nonlocal served
        found = status(activator, "model.test", f"X-Api-Key: {key}\r\n")[0] == 200
        served += found
        return found

    def check(key: str) -> None:
        for _ in range(8):  # each has a connection of its own, and so, sooner or later, each worker
            assert status(activator, "model.test") == (401, "key_required")
            assert is_served(key)
            assert status(activator, "model.test", "X-Api-Key: bobs-secret-key\r\n") == (403, "key_not_allowed")

    check("alices-secret-key")
    (tmp_path / "key").write_text("alices-other-key\n")
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    eventually(lambda: not is_served("alices-secret-key"))
    # Rights begin in each worker when the revisions of the reload are in effect there.
    eventually(lambda: all(is_served("alices-other-key") for _ in range(40)))
    check("alices-other-key")
    assert status(activator, "model.test", "X-Api-Key: alices-secret-key\r\n")[0] == 401

    eventually(lambda: admitted(activator)["alice"] == served)  # so each worker has reported its own
    victim = pids(activator)[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in pids(activator))
    check("alices-other-key")

    # A key that cannot be read any more: the reload is refused, and the keys stay.
    (tmp_path / "key").unlink()
    activator.signal(signal.SIGHUP)
    activator.wait_log("reload rejected: .*the file .*key cannot be read")
    check("alices-other-key")
    eventually(lambda: admitted(activator)["alice"] == served)
    assert "alices" not in activator.text()


def test_a_file_of_users_is_read_again_when_it_changes(run_activator: RunActivator, tmp_path: Path) -> None:
    """By each worker, without a reload; a mistake changes nothing."""
    path = tmp_path / "users.yaml"
    path.write_text("- {name: bob, key: bobs-secret-key, revisions: [site]}\n")
    path.chmod(0o644)
    activator = run_activator({**config([]), "keys_file": str(path), "workers": 2})
    activator.may_log_errors = True
    activator.wait_log("users.yaml can be read by all users of this machine")

    def answers(host: str, key: str) -> set[int]:
        return {status(activator, host, f"X-Api-Key: {key}\r\n")[0] for _ in range(20)}

    assert answers("site.test", "bobs-secret-key") == {200} and answers("model.test", "bobs-secret-key") == {403}
    assert answers("site.test", "alices-secret-key") == {401}
    new = tmp_path / "new.yaml"
    new.write_text("- {name: alice, key: alices-secret-key}\n")
    new.chmod(0o600)
    new.rename(path)
    eventually(lambda: answers("site.test", "bobs-secret-key") == {401})
    eventually(lambda: answers("model.test", "alices-secret-key") == {200})
    path.write_text("")
    activator.wait_log("keys_file .* changes nothing: .*users.yaml:1: keys_file: it names no user")
    assert answers("model.test", "alices-secret-key") == {200}
    activator.signal(signal.SIGHUP)
    activator.wait_log("reload rejected: .*it names no user")
    victim = pids(activator)[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in pids(activator))
    assert answers("model.test", "alices-secret-key") == {200} and answers("model.test", "bobs-secret-key") == {401}
    path.write_text("- {name: bob, key: bobs-secret-key}\n")
    eventually(lambda: answers("model.test", "bobs-secret-key") == {200})
    assert "secret-key" not in activator.text()


def test_without_a_key_nobody_learns_which_models_there_are(run_activator: RunActivator) -> None:
    """Requests without a key may use one model; lists show what a user may use."""
    keys = [
        {"name": "alice", "key": "alices-secret-key"},
        {"name": "bob", "key": "bobs-secret-key", "revisions": ["small", "free"]},
        {"name": "anyone", "key": "none", "revisions": ["free"]},
    ]
    hosts = {"small": "llm.test", "large": "llm.test", "free": "free.test", "secret": "secret.test"}
    revisions = [
        {
            **process_revision(SERVING), "name": name, "hosts": [host], "match": {"json": {"model": [name]}},
        }
        for name, host in hosts.items()
    ]  # fmt: skip
    activator = run_activator(configured(revisions, keys=keys))

    def models(host: str, key: str = "") -> list[str] | int:
        fields = f"X-Api-Key: {key}\r\n" if key else ""
        answer = ask(activator.address, request("/v1/models", host=host, headers=fields))
        return [one["id"] for one in json.loads(answer.body)["data"]] if answer.status == 200 else answer.status

    def chat(host: str, model: str, key: str = "") -> int:
        fields = f"X-Api-Key: {key}\r\n" if key else ""
        body = json.dumps({"model": model}).encode()
        return ask(activator.address, request("/v1/x", "POST", host=host, headers=fields, body=body)).status

    assert [models(host) for host in ("llm.test", "free.test", "secret.test", "other.test")] == [
        401,
        ["free"],
        401,
        401,
    ]
    assert models("llm.test", "bobs-secret-key") == ["small"]
    assert models("llm.test", "alices-secret-key") == ["small", "large"]
    assert models("secret.test", "bobs-secret-key") == 403
    assert [chat("llm.test", "large"), chat("llm.test", "nope"), chat("free.test", "nope")] == [401, 401, 401]
    assert [chat("llm.test", "large", "bobs-secret-key"), chat("llm.test", "nope", "bobs-secret-key")] == [403, 404]
    assert all(activator.revision(name)["slots"] == [] for name in hosts), "nothing was started"


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

    # An empty list would let everybody in: the reload is refused.
    activator.may_log_errors = True
    path.write_text(json.dumps(config([])))
    activator.signal(signal.SIGHUP)
    activator.wait_log("reload rejected: .*keys: it is empty: delete `keys` to let everybody in")
    assert status(activator, "model.test") == (401, "key_required")
    eventually(lambda: admitted(activator) == {"alice": 3, "bob": 1, "anyone": 1})

    paths = ("/metrics", "/debug/revisions", "/debug/config", "/debug/overview")
    shown = b"".join(activator.ask(path)[2] for path in paths).decode()
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    names = [one.get("user", "") for one in map(json.loads, log.read_text().splitlines()) if one["status"] == 200]
    assert names == ["alice", "alice", "anyone", "bob", "alice"]
    for secret in (*SECRETS, basic):
        assert secret not in activator.text() + shown + log.read_text()
