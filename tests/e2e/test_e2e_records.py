"""The last requests of model servers: tokens in metrics, logs and commands; captures without secrets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, chunked, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import CLI, Activator, cli, configured, eventually

USAGE = {"prompt_tokens": 20, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 16}}
SECRET = "s3cr3t-of-alice"


def serve_model(side: PodSide) -> None:
    """Answer as a model server: an event stream if the request asks for one."""
    while True:
        asked = side.request()
        if json.loads(asked.body).get("stream"):
            events = [b'data: {"choices": [{"delta": {"content": "w"}}]}\n\n'] * 4
            events += [b'data: {"choices": [], "usage": ' + json.dumps(USAGE).encode() + b"}\n\n", b"data: [DONE]\n\n"]
            side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            side.send(chunked(*events))
        else:
            body = json.dumps({"choices": [{"message": {"content": "hi", "token": SECRET}}], "usage": USAGE}).encode()
            side.answer(body, "Content-Type: application/json\r\nSet-Cookie: sid=" + SECRET + "\r\n")


def config(address: str, **more: Any) -> dict[str, Any]:
    model = {"name": "llama", "hosts": ["*"], "match": {"json": {"model": ["llama"]}}, "pods": [address], **more}
    return configured(
        [model, {"name": "site", "hosts": ["site.test"], "pods": [address]}],
        keys=[{"name": "alice", "key": SECRET}],
        access_log="json",
    )


def chat(activator: Activator, stream: bool = False, headers: str = "") -> Any:
    body = json.dumps({"model": "llama", "stream": stream, "password": SECRET}).encode()
    fields = f"Authorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n{headers}"
    return ask(activator.address, request(f"/v1/chat/completions?api_key={SECRET}", "POST", headers=fields, body=body))


def metric(activator: Activator, name: str) -> float:
    lines = activator.ask("/metrics")[2].decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), -1.0)


def listed(activator: Activator, *words: str) -> list[dict[str, Any]]:
    done = cli("requests", "--json", *words, "--admin", f"http://{activator.admin}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_in_metrics_log_and_commands(run_activator: RunActivator, tmp_path: Path, workers: int) -> None:
    log = tmp_path / "access.log"
    with ScriptedPod(serve_model) as pod:
        made = {**config(pod.address), "workers": workers}
        activator = run_activator(made, prefix=["sh", "-c", 'exec "$@" > "$0"', str(log)])
        activator.wait_ready_pods("llama")
        answer = chat(activator)
        assert (answer.status, answer.header("activator-queue-time")[:4]) == (200, "0.00")
        assert chat(activator, stream=True).status == 200
        series = 'activator_tokens_total{namespace="default",revision="llama",kind='
        for kind, count in (("prompt", 40.0), ("completion", 8.0), ("cached", 32.0)):
            eventually(lambda kind=kind, count=count: metric(activator, f'{series}"{kind}"') == count)  # type: ignore[misc]
        assert metric(activator, 'activator_user_tokens_total{kind="completion",user="alice"}') == 8.0
        own = 'activator_revision_user_tokens_total{namespace="default",revision="llama",user="alice",kind='
        assert (metric(activator, f'{own}"prompt"'), metric(activator, f'{own}"completion"')) == (40.0, 8.0)
        assert metric(activator, "activator_first_token_seconds_count") == 1.0
        assert metric(activator, "activator_output_token_seconds_count") in (0.0, 1.0), "0: all came in one read"
        eventually(lambda: log.read_text().count("\n") >= 2)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        counts = [(one["prompt_tokens"], one["completion_tokens"], one["cached_tokens"]) for one in lines]
        assert counts == [(20, 4, 16)] * 2
        assert sum("first_token_s" in one for one in lines) == 1

        found = listed(activator)
        assert [one["tokens"] for one in found] == [{"prompt": 20, "completion": 4, "cached": 16}] * 2
        assert [one["target"] for one in found] == ["/v1/chat/completions?api_key=***"] * 2
        assert all(one["revision"] == "default/llama" and one["user"] == "alice" for one in found)
        assert [one["id"] for one in listed(activator, "llama", "-n", "1")] == [found[-1]["id"]]
        assert listed(activator, "site") == []
        table = cli("requests", "--admin", f"http://{activator.admin}").stdout.splitlines()
        assert table[0].split()[:3] == ["TIME", "ID", "REVISION"] and "20+4" in table[1] and len(table) == 3
        assert SECRET not in activator.text() + json.dumps(found)


def test_a_capture_shows_no_secret(run_activator: RunActivator) -> None:
    with ScriptedPod(serve_model) as pod:
        record = {"capture": {"bytes": "16KiB", "keep": "1h"}}
        activator = run_activator({**config(pod.address, record=record), "workers": 2})
        activator.wait_ready_pods("llama")
        for _ in range(6):
            assert chat(activator).status == 200
        for one in listed(activator):
            done = cli("requests", "--capture", one["id"] + "*", "--admin", f"http://{activator.admin}")
            assert done.returncode == 0
            assert '"model": "llama"' in done.stdout and '"content": "hi"' in done.stdout
            assert "Set-Cookie: ***" in done.stdout and '"password": "***"' in done.stdout
            assert SECRET not in done.stdout
        for bad in ("0-999", "7-1", "x", "0-0"):
            done = cli("requests", "--capture", bad, "--admin", f"http://{activator.admin}")
            assert done.returncode != 0 and len(done.stderr.splitlines()) == 1, done.stderr


def test_follow_shows_each_request_once(run_activator: RunActivator) -> None:
    with ScriptedPod(serve_model) as pod:
        activator = run_activator(config(pod.address))
        activator.wait_ready_pods("llama")
        assert chat(activator).status == 200
        with subprocess.Popen(
            [*CLI, "requests", "-f", "--json", "--admin", activator.admin], stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            first = json.loads(follower.stdout.readline())
            assert chat(activator, stream=True).status == 200
            second = json.loads(follower.stdout.readline())
            follower.terminate()
            assert follower.stdout.readline() == ""
        assert first["id"] != second["id"] and "first_token_s" in second


def test_nothing_is_recorded_of_other_revisions_or_without_tokens(run_activator: RunActivator) -> None:
    with ScriptedPod(serve_model) as pod:
        activator = run_activator(config(pod.address, record={"tokens": False, "requests": 0}))
        activator.wait_ready_pods("llama")
        assert chat(activator).header("activator-queue-time") == ""
        with Client(activator.address) as client:
            fields = f"X-Api-Key: {SECRET}\r\n"
            assert client.ask(request("/", "POST", host="site.test", headers=fields, body=b"{}")).status == 200
        assert listed(activator) == []
        assert "activator_tokens_total{" not in activator.ask("/metrics")[2].decode()
