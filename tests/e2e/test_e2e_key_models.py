"""A key that may not use all models: whichever of several `model` a pod reads, it is the one that was allowed."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, ask
from tests.e2e.pods import ScriptedPod
from tests.e2e.running import Activator, configured, eventually
from tests.e2e.test_e2e_routing import HOST, echo, post
from tests.e2e.test_e2e_servers import free_port

KEYS = [{"name": "alice", "key": "alices-key"}, {"name": "bob", "key": "bobs-key", "revisions": ["qwen"]}]
BOB = "Authorization: Bearer bobs-key\r\n"
ALICE = "Authorization: Bearer alices-key\r\n"
BODIES = [
    '{"model":"qwen","model":"gemma","n":1}',
    '{"mod\\u0065l":"qwen","n":1,"model":"gemma"}',
    '{"model":"qwen","n":1,"Model":"gemma"}',
    '{"model":"qwen","n":1,"mod\\u0045l":"gemma"}',
    '{"n":1,"model":"qwen","model":{"a":1}}',
    '{"n":1,"model":"q","model":"gemma"}',
]


@pytest.fixture(scope="module", params=[1, 2])
def shared(request: Any, run_shared_activator: RunActivator) -> Iterator[Activator]:
    """Two models of one pod, one of which Bob may use, also by an alias."""
    with ScriptedPod(echo) as pod:
        revisions = [
            {"name": name, "hosts": [HOST], "match": {"json": {"model": [name]}}, "pods": [pod.address]}
            for name in ("qwen", "gemma")
        ]
        revisions[0] |= {"aliases": ["q"], "rewrite_model": "qwen"}
        yield run_shared_activator(configured(revisions, keys=KEYS, workers=request.param))


def models_in(body: str) -> list[object]:
    pairs: list[tuple[str, object]] = json.loads(body, object_pairs_hook=list)
    return [value for name, value in pairs if name.lower() == "model"]


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("body", BODIES)
def test_a_pod_reads_the_model_that_was_allowed(shared: Activator, body: str, framing: str) -> None:
    answer = ask(shared.address, post(body.encode(), framing=framing, headers=BOB))
    seen = json.loads(answer.body)
    assert answer.status == 200 and models_in(seen["body"]) == ["qwen"]
    assert json.loads(seen["body"])["n"] == 1
    assert seen["length"] in ([], [str(len(seen["body"]))])


def test_another_model_beyond_what_is_scanned(shared: Activator) -> None:
    """The first 64 KiB select; the rest comes when the request is already at the pod."""
    with Http2Client(shared.address, authority=HOST) as client:
        number = client.begin("/v1/x", "POST", headers=[("authorization", "Bearer bobs-key")], end=False)
        client.send(number, b'{"model":"qwen","a":"' + b"x" * 200_000)
        client.send(number, b'","model":"gemma","n":1}', end=True)
        client.answer(number)
        seen = json.loads(client.replies[number].body)
    assert models_in(seen["body"]) == ["qwen"] and seen["body"].endswith('x","n":1}')


def test_what_bob_may_not_use(shared: Activator) -> None:
    for body in (b'{"model":"gemma"}', b'{"model":"gemma","model":"qwen"}'):
        assert ask(shared.address, post(body, headers=BOB)).status == 403


@pytest.mark.parametrize("body", BODIES[:5])
def test_one_who_may_use_all_sends_what_she_likes(shared: Activator, body: str) -> None:
    assert json.loads(ask(shared.address, post(body.encode(), headers=ALICE)).body)["body"] == body


@pytest.fixture(scope="module")
def hostile(run_shared_activator: RunActivator) -> Iterator[tuple[Activator, ScriptedPod]]:
    """Bob's model is also the one of requests without a known model; headers may select a revision."""
    with ScriptedPod(echo) as pod:
        revisions: list[dict[str, Any]] = [
            {"name": name, "hosts": [HOST], "match": {"json": {"model": [name]}}, "pods": [pod.address]}
            for name in ("qwen", "gemma")
        ]
        revisions[0]["default"] = True
        made = configured(revisions, keys=KEYS, trust_revision_headers=True)
        yield run_shared_activator(made), pod


NAMED = "Knative-Serving-Revision: qwen\r\nKnative-Serving-Namespace: default\r\n"


@pytest.mark.parametrize("fields", ["", NAMED])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"Model":"gemma","n":1}',
        b'{"model":null,"model":"gemma"}',
        b'{"model":{},"model":"gemma"}',
        b'{"model":"\\ud800","model":"gemma"}',
        b'{"pad":"' + b"x" * 70_000 + b'","model":"gemma"}',
        b'{"n":1,"model\\u0000":"gemma"}',
        b'{"n":1 /*x*/,"model":"gemma"}',
        b'{"n":1//\n,"MODEL":"gemma"}',
        b'{"n":1/*"*/,"model":"gemma"}',
        b"{'model':'gemma'}",
        b'{"n":[},"model":"gemma"],"model":"gemma"}',
        b'{"n":1}{"model":"gemma"}',
        b'{"n":1}&model=gemma',
        b'[{"model":"gemma"}]',
        b"model=gemma",
        b'{"n":1,"model":"gem',
    ],
)
def test_no_body_names_another_model(
    hostile: tuple[Activator, ScriptedPod], body: bytes, framing: str, fields: str
) -> None:
    activator, pod = hostile
    before = len(pod.requests)
    answer = ask(activator.address, post(body, framing=framing, headers=BOB + fields))
    assert answer.status in (200, 403) and len(pod.requests) == before + (answer.status == 200)
    if answer.status == 200:
        seen = pod.requests[-1]
        assert b"gem" not in seen.body and seen.all("content-type") == ["application/json"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/x-www-form-urlencoded", 200),
        ("application/json; charset=utf-7", 200),
        ("text/plain", 200),
        ("Multipart/form-data; boundary=X", 400),
    ],
)
def test_pods_are_told_that_it_is_json(hostile: tuple[Activator, ScriptedPod], kind: str, status: int) -> None:
    activator, pod = hostile
    answer = ask(activator.address, post(b'{"model":"qwen","n":1}', headers=f"{BOB}Content-Type: {kind}\r\n"))
    assert answer.status == status
    if status == 200:
        assert pod.requests[-1].all("content-type") == ["application/json"]
        assert json.loads(pod.requests[-1].body) == {"model": "qwen", "n": 1}
    else:
        assert json.loads(answer.body)["error"]["code"] == "bad_request"


def test_codings_and_parameters_are_refused(hostile: tuple[Activator, ScriptedPod]) -> None:
    activator, _ = hostile
    body = b'{"model":"qwen"}'
    assert ask(activator.address, post(body, headers=f"{BOB}Content-Encoding: gzip\r\n")).status == 400
    for query in ("?model=gemma", "?a=b&Mod%65l=gemma", "?a;model=gemma"):
        assert ask(activator.address, post(body, f"/v1/x{query}", headers=BOB)).status == 400
        assert ask(activator.address, post(body, f"/v1/x{query}", headers=ALICE)).status == 200
    assert ask(activator.address, post(body, "/v1/x?models=1", headers=BOB)).status == 200
    named = ask(activator.address, post(body, headers=BOB + NAMED))
    assert json.loads(json.loads(named.body)["body"]) == {"model": "qwen"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_listener_that_requires_no_key(run_activator: RunActivator, tmp_path: Path, workers: int) -> None:
    """What runs on the machine itself may use everything; a key that is sent there counts as elsewhere."""
    inside = f"127.0.0.1:{free_port()}"
    with ScriptedPod(echo) as pod:
        revisions = [
            {"name": name, "hosts": [HOST], "match": {"json": {"model": [name]}}, "pods": [pod.address]}
            for name in ("qwen", "gemma")
        ]
        made = configured(revisions, keys=KEYS, workers=workers)
        authority = trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
        secure = {"address": f"127.0.0.1:{free_port()}", "certificate": str(tmp_path / "own.pem"), "keys": False}
        secure["key"] = secure["certificate"]
        made["listen"] = [made["listen"], {"address": inside, "keys": False}, secure]
        activator = run_activator(made)
        gemma = post(b'{"model":"gemma"}')
        assert ask(activator.address, gemma).status == 401
        assert ask(inside, gemma).status == 200
        unknown = ask(inside, post(b'{"model":"nope"}'))
        assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (404, "model_not_found")
        assert ask(inside, post(b'{"model":"gemma"}', headers="X-Api-Key: nobodys\r\n")).status == 200
        assert ask(inside, post(b'{"model":"qwen"}', headers=BOB)).status == 200
        eventually(
            lambda: b'activator_user_requests_total{user="bob"} 1.0' in activator.ask("/metrics")[2], "he counts"
        )
        with Http2Client(inside, authority=HOST) as client:
            assert client.ask("/v1/models").status == 200
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        for protocol in ("h2", "http/1.1"):
            trusting.set_alpn_protocols([protocol])
            if protocol == "h2":
                with Http2Client(str(secure["address"]), authority=HOST, tls=trusting) as client:
                    assert client.ask("/v1/models").status == 200
            else:
                with Client(str(secure["address"])) as plain:
                    plain.secure(trusting, "localhost")
                    assert plain.ask(gemma).status == 200
        with Client(inside) as plain, Client(str(secure["address"])) as other:
            other.secure(trusting, "localhost")
            assert (plain.ask(gemma).status, other.ask(gemma).status) == (200, 200)
            made["listen"][1]["keys"] = True
            made["listen"][2]["min_version"] = "1.3"
            (tmp_path / "activator0.yaml").write_text(json.dumps(made))
            activator.signal(signal.SIGHUP)
            eventually(lambda: ask(inside, gemma).status == 401, "the reload ends the exemption")
            assert plain.ask(gemma).status == 401, "also of a connection from before"
            assert other.ask(gemma).status == 200, "which the other listener still has"
