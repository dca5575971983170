"""Requests whose clients leave while a pod works on them: what the pod sees, and when it gets the next request."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import h2.errors
import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_pods import Http2Pod
from tests.e2e.http_client import Client, ask, request
from tests.e2e.load import limited
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import PROGRAMS, Activator, configured, eventually

RESET = struct.pack("ii", 1, 0)
LEAVING_S = 4.0


@pytest.fixture
def counting_pod() -> Iterator[int]:
    """The port of a pod in a process of its own."""
    command = [sys.executable, "-I", "-S", str(PROGRAMS / "counting.py"), "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


async def clients_that_leave(address: str, count: int, until_s: float) -> None:
    """Clients with one to six requests at a time, half of which leave before their answers, in order or by a reset."""
    host, _, port = address.rpartition(":")

    async def one(chance: random.Random) -> None:
        while time.monotonic() < until_s:
            connections = [await asyncio.open_connection(host, int(port)) for _ in range(chance.choice([1, 1, 3, 6]))]
            for _, writer in connections:
                writer.write(request("/"))
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(connections[-1][0].read(10), chance.uniform(0.0, 0.04))
            for _, writer in connections:
                if chance.random() < 0.5:
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()

    await asyncio.gather(*[one(random.Random(seed)) for seed in range(count)])


@pytest.mark.parametrize("workers", [1, 4])
def test_a_pod_never_counts_more_than_its_limit(run_activator: RunActivator, counting_pod: int, workers: int) -> None:
    """Without the pod's own end as the sign that it has noticed, four workers make it 4 to 6."""
    pod = f"127.0.0.1:{counting_pod}"
    activator = run_activator(configured([limited([pod], 3)], workers=workers))
    asyncio.run(clients_that_leave(activator.address, 20, time.monotonic() + LEAVING_S))
    activator.wait_idle("app")
    assert activator.revision("app")["requests"] > 500
    assert int(ask(pod, request("/most")).body) <= 3


def deaf(side: PodSide) -> None:
    """Work on each request until the test says `go_on`, and read nothing meanwhile."""
    while True:
        side.request()
        side.wait()
        side.answer()


@pytest.fixture
def pod() -> Iterator[ScriptedPod]:
    made = ScriptedPod(deaf)
    yield made
    made.go_on()
    made.close()


def revision(pod: str, **keys: Any) -> dict[str, Any]:
    return {**limited([pod], 1), **keys}


def leave_one(activator: Activator, pod: ScriptedPod) -> float:
    """Leave a request, and return the time before; monotonic seconds."""
    client = Client(activator.address)
    client.send(request("/first"))
    eventually(lambda: [one.target for one in pod.requests] == ["/first"])
    left_s = time.monotonic()
    client.close()
    eventually(lambda: activator.revision("app")["client_gone"] == 1)
    return left_s


def test_close_frees_the_slot_of_a_program_that_computes_on(run_activator: RunActivator, pod: ScriptedPod) -> None:
    activator = run_activator(configured([revision(pod.address)]))
    leave_one(activator, pod)
    with Client(activator.address) as client:
        client.send(request("/second"))
        eventually(lambda: [one.target for one in pod.requests] == ["/first", "/second"])
        pod.go_on()
        assert client.answer().status == 200


def test_wait_keeps_the_slot_until_the_program_has_answered(run_activator: RunActivator, pod: ScriptedPod) -> None:
    activator = run_activator(configured([revision(pod.address, on_cancel="wait", cancel_timeout="1m")]))
    leave_one(activator, pod)
    with Client(activator.address) as client:
        client.send(request("/second"))
        eventually(lambda: activator.revision("app")["queued"] == 1)
        assert activator.revision("app")["in_flight"] == 1
        time.sleep(0.3)
        assert [one.target for one in pod.requests] == ["/first"]
        pod.go_on()
        assert client.answer().status == 200
        assert [one.connection for one in pod.requests] == [0, 0], (
            "the answer was read to its end, and the connection kept"
        )


def test_wait_ends_with_its_timeout(run_activator: RunActivator, pod: ScriptedPod) -> None:
    activator = run_activator(configured([revision(pod.address, on_cancel="wait", cancel_timeout="500ms")]))
    left_s = leave_one(activator, pod)
    with Client(activator.address) as client:
        client.send(request("/second"))
        eventually(lambda: len(pod.requests) == 2)
        assert time.monotonic() - left_s > 0.4
        pod.go_on()
        assert client.answer().status == 200


def test_wait_covers_a_request_that_takes_too_long(run_activator: RunActivator, pod: ScriptedPod) -> None:
    """The time limit of the first request answers its client; the program still computes."""
    keys = {"on_cancel": "wait", "cancel_timeout": "1m", "timeouts": {"total": "300ms"}}
    activator = run_activator(configured([revision(pod.address, **keys)]))
    assert ask(activator.address, request("/first")).status == 504
    assert activator.revision("app")["in_flight"] == 1
    pod.go_on()
    eventually(lambda: activator.revision("app")["in_flight"] == 0)


@pytest.mark.parametrize("mode", ["close", "wait"])
def test_a_stream_of_an_http2_pod(run_activator: RunActivator, mode: str) -> None:
    """`close` resets it; `wait` reads it to its end."""
    with Http2Pod() as pod:
        keys = {"protocol": "h2c", "on_cancel": mode, **({"cancel_timeout": "1m"} if mode == "wait" else {})}
        activator = run_activator(configured([revision(pod.address, **keys)]))
        client = Client(activator.address)
        client.send(request("/hold"))
        eventually(lambda: len(pod.requests) == 1)
        client.close()
        eventually(lambda: activator.revision("app")["client_gone"] == 1)
        with Client(activator.address) as second:
            second.send(request("/hold"))
            if mode == "close":
                eventually(lambda: len(pod.requests) == 2)
                assert pod.requests[0].code == h2.errors.ErrorCodes.CANCEL
            else:
                eventually(lambda: activator.revision("app")["queued"] == 1)
                time.sleep(0.2)
                assert len(pod.requests) == 1 and pod.requests[0].code is None
            pod.release()
            assert second.answer().status == 200
            assert pod.most == 1
