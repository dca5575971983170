"""Two models of real llama.cpp servers, in three lines each: starts, swaps, aliases, parameters, streams and tokens.

`make deep` installs the package xllamacpp.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, ask, request
from tests.e2e.running import PROGRAMS, Activator, configured, eventually

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="no package xllamacpp"),
]

PROGRAM = str(PROGRAMS / "llama_cpp.py")
PATH = "/v1/chat/completions"


def chat(activator: Activator, model: str, **more: Any) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5, **more}
    return ask(activator.address, request(PATH, "POST", body=json.dumps(body).encode()), timeout_s=60.0)


def tokens(activator: Activator, model: str, kind: str) -> float:
    text = activator.ask("/metrics")[2].decode()
    found = re.search(rf'^activator_tokens_total{{.*revision="{model}",kind="{kind}"}} (.*)$', text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


@pytest.fixture
def activator(run_activator: RunActivator, tmp_path: Path) -> Activator:
    words = [sys.executable, PROGRAM]
    models = {
        "one": {
            "command": [*words, str(tmp_path / "one.gguf"), "{port}"],
            "aliases": ["gpt"],
            "rewrite_model": "one",
            "hooks": {
                "after_start": [{"http_post": "/slots/0?action=restore", "body": {"filename": "one.bin"}}],
                "before_stop": [{"http_post": "/slots/0?action=save", "body": {"filename": "one.bin"}}],
            },
        },
        "two": {
            "command": [*words, str(tmp_path / "two.gguf"), "{port}"],
            "set_params": {"max_tokens": 3, "temperature": 0, "stream_options": {"include_usage": True}},
            "strip_params": ["no_such_parameter"],
        },
    }
    configuration = configured([], models=models)
    del configuration["revisions"]
    return run_activator(configuration)


def test_models_of_llama_cpp(activator: Activator) -> None:
    listed = json.loads(ask(activator.address, request("/v1/models")).body)
    assert [one["id"] for one in listed["data"]] == ["one", "gpt", "two"]
    answer = chat(activator, "gpt")
    assert answer.status == 200, answer
    body = json.loads(answer.body)
    assert (body["model"], body["usage"]["completion_tokens"]) == ("one", 5)
    eventually(lambda: tokens(activator, "one", "completion") == 5.0, "its tokens are counted")
    assert tokens(activator, "one", "prompt") == body["usage"]["prompt_tokens"] > 3

    answer = chat(activator, "two", max_tokens=50, temperature=9, no_such_parameter={"a": [1, "}"]})
    assert answer.status == 200, answer
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 3, "max_tokens is set"
    assert activator.revision("one")["processes"]["processes"] == 0, "one model at a time"
    answer = chat(activator, "unknown")
    assert answer.status == 404 and b'model \\"unknown\\"' in answer.body


def test_the_key_value_cache_survives_a_swap(activator: Activator) -> None:
    """Of a prompt that the server has seen before it was unloaded, only the end is processed again."""
    prompt = "a long story " * 12

    def processed() -> tuple[int, int]:
        answer = chat(activator, "one", messages=[{"role": "user", "content": prompt}], max_tokens=1, cache_prompt=True)
        assert answer.status == 200, answer
        timings = json.loads(answer.body)["timings"]
        return timings["prompt_n"], timings["cache_n"]

    whole, cached = processed()
    assert (whole > 50, cached) == (True, 0)
    assert chat(activator, "two").status == 200
    assert activator.revision("one")["processes"]["processes"] == 0
    again, cached = processed()
    assert again < whole / 4 and cached > whole / 2, (again, cached)


def test_a_stream_of_llama_cpp(activator: Activator) -> None:
    body = {"model": "two", "messages": [{"role": "user", "content": "a " * 20}], "stream": True, "max_tokens": 50}
    with Client(activator.address, timeout_s=60.0) as client:
        client.send(request(PATH, "POST", body=json.dumps(body).encode()))
        answer = client.answer()
    assert answer.status == 200 and str(answer.header("content-type")).startswith("text/event-stream")
    events = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    usage = json.loads(events[-1])["usage"]
    assert usage["completion_tokens"] == 3
    eventually(lambda: tokens(activator, "two", "completion") == 3.0, "its tokens are counted")
    assert tokens(activator, "two", "prompt") == usage["prompt_tokens"]


def test_a_client_that_leaves_frees_the_server(activator: Activator) -> None:
    with Client(activator.address, timeout_s=60.0) as client:
        body = {"model": "one", "prompt": "x", "stream": True, "max_tokens": 200, "ignore_eos": True}
        client.send(request("/v1/completions", "POST", body=json.dumps(body).encode()))
        assert client.head().status == 200
    eventually(lambda: activator.revision("one")["in_flight"] == 0, "it has left")
    assert chat(activator, "one").status == 200
