"""Rate limits of client addresses, with real connections: a flood, its neighbours, and proxies in front."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import SERVING, Activator, configured, eventually, figures, process_revision


def limited(pod: ScriptedPod, **limit: Any) -> dict[str, Any]:
    return {"name": "app", "hosts": ["*"], "pods": [pod.address], "rate_limit": limit}


def by(address: str) -> bytes:
    """A request that a proxy forwards for a client."""
    return request(headers=f"X-Forwarded-For: {address}\r\n")


@one_worker
def test_a_flood_costs_its_neighbours_nothing(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        trust = {"trust": ["127.0.0.0/8"]}
        activator = run_activator(configured([limited(pod, requests="60/min", burst=5)], forwarded=trust))
        activator.wait_ready_pods("app")
        with Client(activator.address) as client:
            began_s = time.monotonic()
            statuses = [client.ask(by("192.0.2.1")).status for _ in range(200)]
            took_s = time.monotonic() - began_s
            assert statuses[:5] == [200] * 5 and statuses.count(200) <= 5 + took_s + 1
            answer = client.ask(by("192.0.2.1"))
            assert (answer.status, answer.reason, answer.header("retry-after")) == (429, "rate_limited", "1")
            assert [client.ask(by("192.0.2.2")).status for _ in range(5)] == [200] * 5
            network = [client.ask(by(f"2001:db8::{number}")).status for number in range(8)]
            assert network[:5] == [200] * 5 and 429 in network[5:], "one client has a whole /64"
            assert client.ask(by("2001:db8:0:1::1")).status == 200
            assert client.ask(by("evil\r\nX-Forwarded-For: 192.0.2.1")).status == 429, "the nearest one counts"
        with Http2Client(activator.address) as multiplexed:
            forwarded = [("x-forwarded-for", "192.0.2.9")]
            numbers = [multiplexed.start("/", headers=forwarded) for _ in range(20)]
            replies = [multiplexed.answer(number).status for number in numbers]
            assert replies.count(200) in {5, 6} and set(replies) == {200, 429}
        text = activator.ask("/metrics")[2].decode()
        assert 'reason="rate_limited"' in text


@one_worker
def test_untrusted_claims_do_not_help(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        activator = run_activator(configured([limited(pod, requests="2/day")]))
        activator.wait_ready_pods("app")
        statuses = [ask(activator.address, by(f"192.0.2.{number}")).status for number in range(6)]
        assert statuses == [200, 200, 429, 429, 429, 429]
        answer = ask(activator.address, request())
        assert 43_000 < int(answer.header("retry-after")) <= 43_200


@one_worker
def test_it_starts_no_program_and_a_reload_keeps_the_count(run_activator: RunActivator, tmp_path: Path) -> None:
    revision = {**process_revision(SERVING, idle="100ms"), "rate_limit": {"requests": "1/day"}}
    path = tmp_path / "limited.yaml"

    def write(**more: Any) -> None:
        path.write_text(json.dumps(configured([{**revision, **more}])))

    write()
    activator = run_activator(arguments=["-c", str(path)])
    assert ask(activator.address, request()).status == 200
    eventually(lambda: figures(activator)["processes"] == 0, "idle")
    for _ in range(5):
        assert ask(activator.address, request()).status == 429
    write(server_timing=True)
    assert activator.command("/reload")[0] == 200
    assert ask(activator.address, request()).status == 429
    assert figures(activator)["processes"] == 0 and figures(activator)["starting"] == 0


def test_clients_of_a_unix_socket_are_exempt(run_activator: RunActivator, tmp_path: Path) -> None:
    with ScriptedPod(serve) as pod:
        path = f"unix:{tmp_path}/front.sock"
        activator: Activator = run_activator(
            configured([limited(pod, requests="1/day")], listen=["127.0.0.1:0", path], forwarded={"trust": ["unix"]})
        )
        activator.wait_ready_pods("app")
        with Client(path) as client:
            assert [client.ask(request()).status for _ in range(5)] == [200] * 5
            statuses = [client.ask(by("192.0.2.1")).status for _ in range(20)]
            assert statuses[0] == 200 and 429 in statuses
