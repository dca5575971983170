"""Streams of a model server with and without reports of tokens, over real sockets: clients, limits, and broken pods."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, CutShortError, chunked, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, configured, eventually

KEY = "alices-secret-key"
TARGET = "/v1/chat/completions"
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 31, "completion_tokens": 5, "total_tokens": 36}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def event(end: str, **members: Any) -> bytes:
    return f"data: {json.dumps({**CHUNK, **members})}{end}{end}".encode()


def events_of(asked: dict[str, Any], end: str = "\n") -> list[bytes]:
    """The events of a server such as vLLM and llama.cpp: without the option it reports nothing."""
    found = [event(end, choices=[{"index": 0, "delta": {"content": word}}]) for word in ("a", "b", "c", "d", "")]
    if asked.get("stream_options", {}).get("include_usage"):
        found.append(event(end, choices=[], usage=USAGE))
    return [*found, f"data: [DONE]{end}{end}".encode()]


def serve_streams(side: PodSide) -> None:
    """Answer in chunks, or with a length or byte by byte if the request says so."""
    while True:
        asked = json.loads(side.request().body)
        events = events_of(asked, asked.get("line_end", "\n"))
        match asked.get("framing"):
            case "length":
                body = b"".join(events)
                side.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            case "bytes":
                side.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                for one in b"".join(events):
                    side.send(b"1\r\n%c\r\n" % one)
                side.send(b"0\r\n\r\n")
            case _:
                side.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*events))


def config(address: str, **more: Any) -> dict[str, Any]:
    model = {"name": "llama", "hosts": ["*"], "pods": [address], "record": {"include_usage": True}, **more}
    limits = {"tokens": "100k/day", "response_tokens": 1_000}
    return configured([model], keys=[{"name": "alice", "key": KEY, "limits": limits}])


def body_of(**members: Any) -> bytes:
    return json.dumps({"model": "llama", "messages": [], "stream": True, **members}).encode()


def ask_http1(activator: Activator, body: bytes) -> bytes:
    with Client(activator.address) as client:
        answer = client.ask(asked(body))
        assert (answer.status, answer.framing) == (200, "chunked"), answer
        return answer.body


def ask_http2(activator: Activator, body: bytes) -> bytes:
    with Http2Client(activator.address) as client:
        fields = [("x-api-key", KEY), ("content-type", "application/json")]
        reply = client.ask(TARGET, "POST", fields, body)
        assert reply.status == 200 and reply.over and not reply.header("content-length")
        return reply.body


def asked(body: bytes) -> bytes:
    fields = f"X-Api-Key: {KEY}\r\nContent-Type: application/json\r\n"
    return request(TARGET, "POST", headers=fields, body=body)


def used_tokens(activator: Activator) -> float:
    lines = activator.ask("/metrics")[2].decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("activator_user_used{") and "tokens" in line
    )


def is_used(activator: Activator, tokens: int) -> bool:
    """The use drains by one token in 0.9 s."""
    return tokens - 30 < used_tokens(activator) <= tokens


@pytest.mark.parametrize("ask", [ask_http1, ask_http2])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("framing", ["chunks", "length", "bytes"])
def test_a_client_sees_the_stream_that_it_has_asked_for_and_its_limit_the_report(
    run_activator: RunActivator, ask: Callable[[Activator, bytes], bytes], line_end: str, framing: str
) -> None:
    with ScriptedPod(serve_streams) as pod:
        activator = run_activator(config(pod.address))
        activator.wait_ready_pods("llama")
        members = {"framing": framing, "line_end": line_end}
        for _ in range(3):
            assert ask(activator, body_of(**members)) == b"".join(events_of({}, line_end))
        eventually(lambda: 3 * 36 - 5 < used_tokens(activator) <= 3 * 36, "the exact count")
        own = body_of(**members, stream_options={"include_usage": True})
        if framing != "length":
            assert ask(activator, own) == b"".join(events_of(json.loads(own), line_end))
            assert pod.requests[-1].body == own
        for one in pod.requests[:3]:
            assert json.loads(one.body) == {**json.loads(body_of(**members)), "stream_options": {"include_usage": True}}
            assert one.all("content-length") in ([], [str(len(one.body))]), "none, or the right one"


def test_without_the_setting_the_events_are_counted(run_activator: RunActivator) -> None:
    with ScriptedPod(serve_streams) as pod:
        activator = run_activator(config(pod.address, record={}))
        activator.wait_ready_pods("llama")
        body = body_of()
        assert ask_http1(activator, body) == b"".join(events_of({}))
        assert pod.requests[0].body == body
        expected = len(body) // 4 + 6
        eventually(lambda: expected - 3 < used_tokens(activator) <= expected)


def test_each_token_comes_at_once(run_activator: RunActivator) -> None:
    """The pod sends the next token when the client has got the one before."""
    count = 0

    def serve_slowly(side: PodSide) -> None:
        nonlocal count
        events = events_of(json.loads(side.request().body))
        side.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for number, one in enumerate(events):
            eventually(lambda number=number: count >= number)  # type: ignore[misc]
            side.send(b"%x\r\n%b\r\n" % (len(one), one))
        side.send(b"0\r\n\r\n")

    with ScriptedPod(serve_slowly) as pod:
        activator = run_activator(config(pod.address))
        activator.wait_ready_pods("llama")
        with Client(activator.address) as client:
            client.send(asked(body_of()))
            assert client.head().status == 200
            for one in events_of({}):
                count += one.startswith(b"data: [DONE]")  # the report is not for this client
                assert client.read(len(b"%x\r\n" % len(one)) + len(one) + 2).endswith(one + b"\r\n")
                count += 1
            assert client.read(5) == b"0\r\n\r\n"


def broken(side: PodSide) -> None:
    """Do what the request says with the report."""
    said = json.loads(side.request().body)
    first, report = events_of({})[0], event("\n", choices=[], usage=USAGE)
    side.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    match said["how"]:
        case "reset":
            part = first + report[:-20]
            side.send(b"%x\r\n%b\r\n" % (len(part), part))
            time.sleep(0.1)
            side.reset()
        case "endless":
            line = b'data: {"id":"' + b"x" * (10 << 20)
            side.send(chunked(line))
        case "many":
            side.send(chunked(first * 10_000 + report + first))
        case "silent":
            part = first + report[:-20]
            side.send(b"%x\r\n%b\r\n" % (len(part), part))
            side.stall()


def test_broken_streams_end_as_they_are(run_activator: RunActivator) -> None:
    first = events_of({})[0]
    with ScriptedPod(broken) as pod:
        activator = run_activator(config(pod.address))
        activator.wait_ready_pods("llama")
        with Client(activator.address) as client, pytest.raises(CutShortError):
            client.ask(asked(body_of(how="reset")))
        assert ask_http1(activator, body_of(how="many")) == first * 10_001
        assert ask_http1(activator, body_of(how="endless")) == b'data: {"id":"' + b"x" * (10 << 20)
        client = Client(activator.address)
        client.send(asked(body_of(how="silent")))
        client.head()
        client.read(len(first))
        client.reset()
        activator.wait_idle("llama")
        assert ask_http2(activator, body_of(how="many")) == first * 10_001
        activator.wait_idle("llama")


def test_a_reload_in_the_middle_of_a_report(run_activator: RunActivator, tmp_path: Path) -> None:
    report = event("\n", choices=[], usage=USAGE)

    def serve_halves(side: PodSide) -> None:
        while True:
            events = events_of(json.loads(side.request().body))
            side.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for one in events:
                cut = 20 if one == report else 0
                if cut:
                    side.send(b"%x\r\n%b\r\n" % (cut, one[:cut]))
                    side.wait()
                side.send(b"%x\r\n%b\r\n" % (len(one) - cut, one[cut:]))
            side.send(b"0\r\n\r\n")

    path = tmp_path / "a.json"
    with ScriptedPod(serve_halves) as pod:
        path.write_text(json.dumps(config(pod.address)))
        activator = run_activator(arguments=["-c", str(path)])
        activator.wait_ready_pods("llama")
        with Client(activator.address) as client:
            client.send(asked(body_of()))
            answer = client.head()
            path.write_text(json.dumps(config(pod.address, record={})))
            activator.signal(signal.SIGHUP)
            activator.wait_log(" reloaded")
            pod.go_on()
            client.body(answer)
            assert answer.body == b"".join(events_of({}))
        assert ask_http1(activator, body_of()) == b"".join(events_of({}))
        assert b"stream_options" in pod.requests[0].body and b"stream_options" not in pod.requests[1].body
