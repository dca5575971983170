"""Which revision a request means, by what it says itself: over both protocols, with hostile bodies, as documented."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, ask, chunked, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, cli, configured, eventually

ROOT = Path(__file__).resolve().parents[2]
HOST = "models.localhost"
DOCUMENTED = ROOT / "docs/routing.md"


def held_bytes(activator: Activator) -> float:
    """Of request bodies, in all workers."""
    text = activator.ask("/metrics")[2].decode()
    found = re.findall(r"^activator_held_bytes(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
    assert found
    return sum(float(value) for value in found)


def echo(side: PodSide) -> None:
    """Answers what came: the pod's own address, the target, the fields and the body."""
    while True:
        seen = side.request()
        shown = {
            "pod": side.pod.address,
            "target": seen.target,
            "body": seen.body.decode("latin-1"),
            "length": seen.all("content-length"),
            "prefix": seen.all("x-forwarded-prefix"),
        }
        side.answer(json.dumps(shown).encode())


class Models:
    """The configuration that docs/routing.md shows, with pods of the test's own."""

    def __init__(self, stack: ExitStack, run_activator: RunActivator) -> None:
        (text,) = re.findall(r"```yaml\n# models.yaml\n(.*?)```", DOCUMENTED.read_text("utf-8"), re.DOTALL)
        configuration = yaml.safe_load(text)
        self.pods: dict[str, ScriptedPod] = {}
        for revision in configuration["revisions"]:
            pod = self.pods[revision["name"]] = stack.enter_context(ScriptedPod(echo))
            revision["pods"] = [pod.address]
        self.activator: Activator = run_activator(configured(configuration["revisions"]))
        self._names = {pod.address: name for name, pod in self.pods.items()}

    def revision(self, body: bytes) -> tuple[str, dict[str, Any]]:
        """Who answered, and what it saw."""
        seen = json.loads(body)
        return self._names[seen["pod"]], seen

    def check_nothing_is_held(self) -> None:
        eventually(lambda: held_bytes(self.activator) == 0, "no body is held")


@pytest.fixture(scope="module")
def models(run_shared_activator: RunActivator) -> Iterator[Models]:
    with ExitStack() as stack:
        yield Models(stack, run_shared_activator)


def post(body: bytes, path: str = "/v1/chat/completions", headers: str = "", framing: str = "length") -> bytes:
    if framing == "chunked":
        pieces = [body[place : place + 7] for place in range(0, len(body), 7)]
        return (
            f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
            + chunked(*pieces)
        )
    return f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chat(model: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": '"model": "x"'}], **more, "model": model}).encode()


EXPECTED = {
    "llama-3-8b": "vllm",
    "meta-llama/Llama-3": "vllm",
    "gpt-4o-mini": "vllm",
    "qwen2.5:7b": "ollama",
    "gemma3:4b": "ollama",
    "unknown": "other",
}


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("model", EXPECTED)
def test_the_documented_endpoint(models: Models, model: str, framing: str) -> None:
    body = chat(model)
    answer = ask(models.activator.address, post(body, framing=framing))
    name, seen = models.revision(answer.body)
    assert name == EXPECTED[model]
    expected = body.replace(b"gpt-4o-mini", b"llama-3-8b").decode()
    assert seen["body"] == expected
    assert seen["length"] == ([] if framing == "chunked" else [str(len(expected))])


@pytest.mark.parametrize("model", EXPECTED)
def test_the_documented_endpoint_over_http2(models: Models, model: str) -> None:
    body = chat(model)
    with Http2Client(models.activator.address, authority=HOST) as client:
        number = client.begin("/v1/chat/completions", "POST", [("content-length", str(len(body)))], end=False)
        for place in range(0, len(body), 11):
            client.send(number, body[place : place + 11], end=place + 11 >= len(body))
        client.answer(number)
        name, seen = models.revision(client.replies[number].body)
    assert name == EXPECTED[model]
    expected = body.replace(b"gpt-4o-mini", b"llama-3-8b").decode()
    assert (seen["body"], seen["length"]) == (expected, [str(len(expected))])


def test_paths_are_stripped_and_made_normal(models: Models) -> None:
    with Client(models.activator.address) as client:
        for path, sent in (
            ("/whisper/v1/audio?x=/whisper", "/v1/audio?x=/whisper"),
            ("/whisper", "/"),
            ("/x/../whisper//v1/%61udio", "/v1/audio"),
            ("/%77hisper/a%2Fb", "/a%2Fb"),
        ):
            name, seen = models.revision(client.ask(request(path, host=HOST)).body)
            assert (name, seen["target"], seen["prefix"]) == ("whisper", sent, ["/whisper"]), path
        for path, sent in (("/whisperx", "/whisperx"), ("/whisper/../y", "/y"), ("/a/%2e%2E/y", "/y")):
            name, seen = models.revision(client.ask(request(path, host=HOST)).body)
            assert (name, seen["target"], seen["prefix"]) == ("other", sent, []), path
        forged = client.ask(request("/y", host=HOST, headers="X-Forwarded-Prefix: /evil\r\n"))
        assert models.revision(forged.body)[1]["prefix"] == []
        for path in (
            "/x/..%2fwhisper/a",
            "/x/..;/whisper/a",
            "/whisper%2fa",
            "/x/%5c../%2e%2e%5cwhisper",
            "/whisper/..%2fy",
        ):
            answer = client.ask(request(path, host=HOST))
            assert (answer.status, answer.reason) == (400, "bad_request"), path


def test_lists_of_models_wake_nobody(models: Models) -> None:
    before = [len(pod.requests) for pod in models.pods.values()]
    listed = ["llama-3-8b", "gpt-4o-mini", "qwen2.5:7b", "gemma3:4b"]
    with Client(models.activator.address) as client:
        answer = client.ask(request("/v1/models", host=HOST))
        assert answer.header("content-type") == "application/json"
        assert [one["id"] for one in json.loads(answer.body)["data"]] == listed
        tags = json.loads(client.ask(request("/api/tags", host=HOST)).body)
        assert [one["name"] for one in tags["models"]] == listed
        assert client.ask(request("/v1/models", method="HEAD", host=HOST)).body == b""
    with Http2Client(models.activator.address, authority=HOST) as http2:
        number = http2.start("/v1/models")
        http2.answer(number)
        assert len(json.loads(http2.replies[number].body)["data"]) == 4
    assert [len(pod.requests) for pod in models.pods.values()] == before


# --- hostile bodies ---

LATE = b'{"pad":"' + b"y" * 1_000_000 + b'","model":"llama-3-8b"}'
DEEP = b'{"pad":' + b"[" * 100_000 + b"]" * 100_000 + b',"model":"llama-3-8b"}'
HOSTILE = {
    "late": (LATE, "other"),
    "deep": (DEEP, "other"),
    "deep-enough": (b'{"pad":' + b"[" * 30_000 + b"]" * 30_000 + b',"model":"llama-3-8b"}', "vllm"),
    "invalid-utf8": (b'{"model":"llama-3-8b\xff"}', "other"),
    "invalid-utf8-before": (b'{"a":"\xff\xfe","model":"llama-3-8b"}', "vllm"),
    "in-a-string": (b'{"a":"\\"model\\":\\"llama-3-8b\\"","model":"qwen2.5:7b"}', "ollama"),
    "nested": (b'{"a":{"model":"llama-3-8b"},"model":"qwen2.5:7b"}', "ollama"),
    "twice": (b'{"model":"qwen2.5:7b","model":"llama-3-8b"}', "ollama"),
    "escaped-name": (b'{"mo\\u0064el":"llama\\u002d3-8b"}', "vllm"),
    "bom": (b'\xef\xbb\xbf {"model":"llama-3-8b"}', "vllm"),
    "no-json": (b"model=llama-3-8b", "other"),
    "huge-name": (b'{"model":"' + b"llama-3-8b" * 10_000 + b'"}', "other"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("protocol", ["http1", "chunked", "http2"])
def test_hostile_bodies(models: Models, case: str, protocol: str) -> None:
    body, expected = HOSTILE[case]
    if protocol == "http2":
        with Http2Client(models.activator.address, authority=HOST) as client:
            number = client.start("/x", "POST", body=body)
            client.answer(number)
            answered = client.replies[number].body
    else:
        framing = "length" if protocol == "http1" else "chunked"
        if framing == "chunked" and len(body) > 50_000:
            head = f"POST /x HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            data = head + chunked(*(body[place : place + 9_999] for place in range(0, len(body), 9_999)))
        else:
            data = post(body, "/x", framing=framing)
        answered = ask(models.activator.address, data).body
    name, seen = models.revision(answered)
    assert name == expected
    assert seen["body"].encode("latin-1") == body
    models.check_nothing_is_held()


def test_a_body_that_trickles_and_one_that_is_cut_off(models: Models) -> None:
    body = chat("qwen2.5:7b")
    data = post(body)
    start = len(data) - len(body)
    with Client(models.activator.address) as client:
        client.send(data[: start + 1])
        eventually(lambda: held_bytes(models.activator) == 1, "its first byte is held")
        for place in range(start + 1, len(data)):
            client.send(data[place : place + 1])
        assert models.revision(client.answer().body)[0] == "ollama"
    for place in (start, start + 1, start + 20):
        client = Client(models.activator.address)
        client.send(data[:place])
        if place > start:
            eventually(lambda: held_bytes(models.activator) > 0, "it is held")
        client.reset()
        models.check_nothing_is_held()
    with Http2Client(models.activator.address, authority=HOST) as http2:
        number = http2.begin("/x", "POST", end=False)
        http2.send(number, body[:20])
        eventually(lambda: held_bytes(models.activator) > 0, "it is held")
        http2.reset(number)
        models.check_nothing_is_held()
        again = http2.start("/x", "POST", body=body)
        http2.answer(again)
        assert models.revision(http2.replies[again].body)[0] == "ollama"


def test_a_client_that_waits_for_a_100(models: Models) -> None:
    body = chat("llama-3-8b")
    head = post(body, headers="Expect: 100-continue\r\n")[: -len(body)]
    with Client(models.activator.address) as client:
        client.send(head)
        eventually(
            lambda: client.socket.recv(25, 2) == b"HTTP/1.1 100 Continue\r\n\r\n", "it is told to go on"
        )  # MSG_PEEK
        client.send(body)
        answer = client.answer()
        assert answer.interim == [100]
        assert models.revision(answer.body)[0] == "vllm"


def test_pipelined_requests_each_find_their_own(models: Models) -> None:
    names = ["llama-3-8b", "qwen2.5:7b", "unknown", "gpt-4o-mini"] * 5
    with Client(models.activator.address) as client:
        client.send(
            b"".join(post(chat(name), framing=("chunked", "length")[place % 2]) for place, name in enumerate(names))
        )
        answers = [models.revision(client.answer("POST").body)[0] for _ in names]
    assert answers == [EXPECTED[name] for name in names]


def talks(side: PodSide) -> None:
    """Switches protocols, and sends back what comes."""
    seen = side.head()
    side.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    side.send(seen.target.encode() + side.read(5))


def test_a_websocket_goes_by_its_path(run_activator: RunActivator) -> None:
    """Also where a rule before it looks at models: an upgrade has none, and is not waited for."""
    with ScriptedPod(talks) as pod, ScriptedPod(echo) as other:
        by_model = {"name": "m", "hosts": [HOST], "match": {"json": {"model": ["*"]}}, "pods": [other.address]}
        by_path = {"name": "w", "hosts": [HOST], "match": {"path": "/ws", "strip_path": True}, "pods": [pod.address]}
        activator = run_activator(configured([by_model, by_path]))
        fields = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        fields += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        with Client(activator.address) as client:
            client.send(request("/ws/chat?x", host=HOST, headers=fields))
            client.send(b"hello")
            told = b""
            while b"hello" not in told:
                told += client.socket.recv(1000)
        assert told.startswith(b"HTTP/1.1 101 ") and told.endswith(b"\r\n\r\n/chat?xhello")


def test_a_content_coding_is_not_looked_through(models: Models) -> None:
    answer = ask(models.activator.address, post(chat("llama-3-8b"), headers="Content-Encoding: gzip\r\n"))
    assert models.revision(answer.body)[0] == "other"


# --- without a default; splits; checks ---


def test_without_a_default(run_activator: RunActivator) -> None:
    with ScriptedPod(echo) as pod:
        match = {"json": {"model": ["a"]}, "headers": {"x-team": "ml"}, "methods": ["POST"]}
        activator = run_activator(configured([{"name": "a", "hosts": [HOST], "match": match, "pods": [pod.address]}]))
        team = "X-Team: ml\r\n"
        for data, status in (
            (post(b'{"model":"a"}', headers=team), 200),
            (post(b'{"model":"b"}', headers=team), 404),
            (post(b'{"model":"a"}', headers="X-Team: other\r\n"), 404),
            (post(b'{"model":"a"}'), 404),
            (post(b"{}", headers=team), 400),
            (post(LATE, headers=team), 400),
            (request("/", host=HOST, headers=team), 404),
        ):
            with Client(activator.address) as client:
                try:
                    client.send(data)
                except ConnectionError:
                    assert data[-30:] == LATE[-30:], "only a large body may be refused while it is sent"
                assert client.answer("POST").status == status
        eventually(lambda: held_bytes(activator) == 0)


def visit(client: Client, number: int) -> str:
    """The pod of one session."""
    found: str = json.loads(client.ask(request(host="b.test", headers=f"Cookie: s={number}\r\n")).body)["pod"]
    return found


@one_worker
def test_a_split_is_exact_and_sticky(run_activator: RunActivator) -> None:
    with ExitStack() as stack:
        pods = [stack.enter_context(ScriptedPod(echo)) for _ in range(4)]
        named = {pod.address: str(place) for place, pod in enumerate(pods)}
        turns, keyed = {"hosts": ["a.test"]}, {"hosts": ["b.test"], "split_on": {"cookie": "s"}}
        weights = [
            ({**turns, "weight": 3}),
            ({**turns, "weight": 1}),
            ({**keyed, "weight": 50}),
            ({**keyed, "weight": 50}),
        ]
        revisions = [
            {"name": f"r{place}", "pods": [pods[place].address], **weight} for place, weight in enumerate(weights)
        ]
        activator = run_activator(configured(revisions))
        with Client(activator.address) as client:
            counts = Counter(named[json.loads(client.ask(request(host="a.test")).body)["pod"]] for _ in range(200))
            assert counts == {"0": 150, "1": 50}
            first, second = ([visit(client, number) for number in range(40)] for _ in range(2))
            assert first == second and len(set(first)) == 2


def test_check_and_reload_name_what_can_never_match(tmp_path: Path, run_activator: RunActivator) -> None:
    with ScriptedPod(echo) as pod:
        first = {"name": "a", "hosts": ["a.test"], "match": {"path": "/v1"}, "pods": [pod.address]}
        second = {"name": "b", "hosts": ["a.test"], "match": {"path": "/v1/chat"}, "pods": [pod.address]}
        activator = run_activator(configured([second, first]))
        assert ask(activator.address, request("/v1/chat", host="a.test")).status == 200
        path = tmp_path / "shadowed.yaml"
        path.write_text(json.dumps(configured([first, second])))
        found = cli("check", str(path))
        expected = 'revisions[0] takes all requests for "a.test" that this revision matches: put this one before it'
        assert found.returncode == 1 and expected in found.stderr
        assert len(found.stderr.splitlines()) == 1
        (tmp_path / "activator0.yaml").write_text(path.read_text())
        activator.may_log_errors = True
        _, _, answer = activator.command("/reload")
        (problem,) = json.loads(answer)["problems"]
        assert problem.endswith(expected)
        assert ask(activator.address, request("/v1/chat", host="a.test")).status == 200, "the old file goes on"


@pytest.fixture(scope="module", params=[1, 2])
def edited(request: Any, run_shared_activator: RunActivator) -> Iterator[tuple[Activator, ScriptedPod]]:
    """Models with parameters of their own, with one worker and with several."""
    with ScriptedPod(echo) as pod:
        revision = {
            "name": "m",
            "hosts": [HOST],
            "match": {"json": {"model": ["m"]}},
            "aliases": ["gpt"],
            "rewrite_model": "m",
            "pods": [pod.address],
            "strip_params": ["top_p", "stop"],
            "set_params": {"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": False}},
        }
        yield run_shared_activator(configured([revision], workers=request.param)), pod


SET = b'{"temperature":0.6,"chat_template_kwargs":{"enable_thinking":false}'


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_parameters_of_a_body_are_set_and_removed(
    edited: tuple[Activator, ScriptedPod], framing: str, size: int
) -> None:
    activator, _ = edited
    prompt = "x" * size
    body = json.dumps({"top_p": 1, "model": "gpt", "temperature": 2, "prompt": prompt, "stop": ["a"], "n": 1}).encode()
    answer = ask(activator.address, post(body, framing=framing, headers="Content-Digest: x\r\n"))
    seen = json.loads(answer.body)
    expected = SET + f',"model": "m","prompt": "{prompt}","n": 1}}'.encode()
    assert seen["body"].encode() == expected
    is_whole = framing == "length" and size == 10
    assert seen["length"] == ([str(len(expected))] if is_whole or seen["length"] else [])


def test_parameters_in_a_body_that_trickles(edited: tuple[Activator, ScriptedPod]) -> None:
    """Over HTTP/2, a byte in each frame; the request is at the pod long before its end."""
    activator, pod = edited
    body = b'{"model":"m","a":"' + b"y" * 200 + b'","st\\u006fp":[1,"}"],"b":1,"top_p":0}'
    with Http2Client(activator.address, authority=HOST) as client:
        number = client.begin("/v1/chat/completions", "POST", end=False)
        before = len(pod.requests)
        for place in range(len(body)):
            client.send(number, body[place : place + 1], end=place + 1 == len(body))
            if place == 100:
                eventually(lambda: len(pod.requests) > before, "the pod has the request")
        client.answer(number)
        seen = json.loads(client.replies[number].body)
    assert seen["body"].encode() == SET + b',"model":"m","a":"' + b"y" * 200 + b'","b":1}'
    assert seen["length"] == []


def test_what_is_no_object_of_json_keeps_its_parameters(run_activator: RunActivator) -> None:
    with ScriptedPod(echo) as pod:
        revision = {"name": "m", "hosts": ["*"], "pods": [pod.address], "strip_params": ["top_p"]}
        activator = run_activator(configured([revision]))
        for body, headers in (
            (b'{"top_p":1}', "Content-Encoding: gzip\r\n"),
            (b'[{"top_p":1}]', ""),
            (b'--x\r\n\r\n{"top_p":1}', "Content-Type: multipart/form-data; boundary=x\r\n"),
            (b"\x1f\x8b\x08\x00", ""),
        ):
            seen = json.loads(ask(activator.address, post(body, headers=headers)).body)
            assert (seen["body"].encode("latin-1"), seen["length"]) == (body, [str(len(body))])
        assert json.loads(ask(activator.address, request("/")).body)["body"] == ""
        cut = b'{"a":1,"top'
        assert json.loads(ask(activator.address, post(cut)).body)["body"].encode() == cut
        seen = json.loads(ask(activator.address, post(b'{"top_p":1}')).body)
        assert (seen["body"], seen["length"]) == ("{}", ["2"])


def test_another_pod_gets_the_same_edited_body(run_activator: RunActivator) -> None:
    """The first pod's connection breaks before an answer."""

    def once(side: PodSide) -> None:
        side.request()

    with ScriptedPod(once) as bad, ScriptedPod(echo) as good:
        revision: dict[str, Any] = {"name": "m", "hosts": ["*"], "pods": [bad.address, good.address]}
        revision |= {"policy": "round-robin", "set_params": {"seed": 1}, "strip_params": ["x"]}
        activator = run_activator(configured([revision]))
        for _ in range(4):
            answer = ask(activator.address, post(b'{"x":2,"y":3}', headers="Idempotency-Key: 1\r\n"))
            if answer.status == 200:
                assert json.loads(answer.body)["body"] == '{"seed":1,"y":3}'
        assert [one.body for one in bad.requests + good.requests] == [b'{"seed":1,"y":3}'] * len(
            bad.requests + good.requests
        )
        assert bad.requests and good.requests


def test_every_name_of_a_model_is_replaced(run_activator: RunActivator) -> None:
    with ScriptedPod(echo) as pod:
        names: dict[str, Any] = {"match": {"json": {"model": []}}, "aliases": ["m", "gpt"], "rewrite_model": "org/m"}
        activator = run_activator(configured([{"name": "m", "hosts": [HOST], "pods": [pod.address], **names}]))
        for name in ("m", "gpt"):
            seen = json.loads(ask(activator.address, post(json.dumps({"model": name}).encode())).body)
            assert seen["body"] == '{"model": "org/m"}'
        assert ask(activator.address, post(b'{"model":"org/m"}')).status == 404
        listed = json.loads(ask(activator.address, request("/v1/models", host=HOST)).body)["data"]
        assert [one["id"] for one in listed] == ["m", "gpt"]
