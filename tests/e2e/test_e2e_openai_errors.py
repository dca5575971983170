"""What clients of OpenAI's API get of the activator itself: errors in their form, and the state of each model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, ask, request
from tests.e2e.pods import ScriptedPod
from tests.e2e.running import SERVING, Activator, configured, eventually, process_revision
from tests.e2e.test_e2e_routing import echo

CHAT = "/v1/chat/completions"
NO_PROGRAM = [sys.executable, "-c", "raise SystemExit(3)"]


def chat(activator: Activator, body: str, path: str = CHAT, host: str = "m.test", fields: str = "") -> Answer:
    return ask(activator.address, request(path, "POST", host=host, headers=fields, body=body.encode()), timeout_s=30.0)


def error(answer: Answer) -> dict[str, Any]:
    assert answer.header("content-type") == "application/json"
    found = json.loads(answer.body)
    assert set(found) == {"error"} and set(found["error"]) == {"message", "type", "param", "code"}
    made: dict[str, Any] = found["error"]
    assert made["message"] and made["param"] is None
    return made


@pytest.fixture
def activator(run_activator: RunActivator) -> Iterator[Activator]:
    with ScriptedPod(echo) as pod:
        full = {"queue": {"depth": 0}, "max_scale": 1}
        revisions: list[dict[str, Any]] = [
            {**process_revision(SERVING), "name": "works", "match": {"json": {"model": ["works"]}}},
            {**process_revision(NO_PROGRAM), "name": "ends", "match": {"json": {"model": ["ends"]}}},
            {**process_revision(SERVING), "name": "full", "match": {"json": {"model": ["full"]}}, **full},
            {"name": "behind", "match": {"path": "/vllm", "strip_path": True, "json": {"model": ["b"]}}},
        ]
        revisions[-1]["pods"] = [pod.address]
        for one in revisions:
            one["hosts"] = ["m.test"]
        site = {"name": "site", "hosts": ["site.test"], "pods": [pod.address], "allow": ["10.0.0.0/8"]}
        activator = run_activator(configured([*revisions, site]))
        activator.may_log_errors = True
        yield activator


def test_errors(activator: Activator) -> None:
    single = ask(activator.address, request("/v1/models/nope", host="m.test"))
    for answer, status, kind, code in (
        (chat(activator, '{"model":"nope"}'), 404, "invalid_request_error", "model_not_found"),
        (single, 404, "invalid_request_error", "model_not_found"),
        (chat(activator, '{"n":1}'), 400, "invalid_request_error", "bad_request"),
        (chat(activator, '{"model":"x"}', "/vllm" + CHAT), 404, "invalid_request_error", "model_not_found"),
        (chat(activator, '{"model":"ends"}'), 503, "server_error", "revision_failed"),
        (chat(activator, '{"model":"full"}'), 503, "server_error", "queue_full"),
        (
            chat(activator, '{"model":"works"}', fields="Prefer: if-available\r\n"),
            *(412, "invalid_request_error", "not_available"),
        ),
    ):
        assert (answer.status, error(answer)["type"], error(answer)["code"]) == (status, kind, code)


def test_other_clients_get_a_text(activator: Activator) -> None:
    for answer in (
        chat(activator, '{"model":"nope"}', "/chat"),
        chat(activator, "{}", host="site.test"),
        chat(activator, "{}", host="nobody.test"),
    ):
        assert answer.status >= 400 and answer.header("content-type").startswith("text/plain")


def test_the_state_of_each_model(activator: Activator) -> None:
    def states() -> dict[str, str]:
        listed = json.loads(ask(activator.address, request("/v1/models", host="m.test")).body)["data"]
        return {one["id"]: one["status"]["value"] for one in listed}

    assert states() == {"works": "unloaded", "ends": "unloaded", "full": "unloaded"}
    with Client(activator.address) as client:
        client.send(request(CHAT, "POST", host="m.test", body=b'{"model":"works"}'))
        eventually(lambda: states()["works"] in ("loading", "loaded"), "it starts")
        assert client.answer().status == 200
    assert states()["works"] == "loaded"
    assert chat(activator, '{"model":"ends"}').status == 503
    eventually(lambda: states()["ends"] == "failed", "it cannot start")
