"""What pods and clients do that could end the program or stop it for everybody else: each costs only who does it.

No test here looks at a clock to judge: others are served *before* the attacker is, or while it is still at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.conftest import DEEP
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, Visitor, ask, request
from tests.e2e.pods import PodSide, ScriptedPod, serve
from tests.e2e.running import PROGRAMS, Activator, configured, eventually, resident_bytes

SIZES = (0, 1000, 16_000, 16_384, 20_000, 65_536, 300_000)


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A program that prints its port first."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def certificate(folder: Path) -> tuple[str, str, str]:
    """The files of a certificate for this machine: its chain, its key, its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "a.test")
    chain, key, root = folder / "chain.pem", folder / "key.pem", folder / "ca.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(root)
    return str(chain), str(key), str(root)


def revision(name: str, *addresses: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "hosts": [f"{name}.test"], "pods": list(addresses), **more}


def descriptors(activator: Activator) -> int:
    return len(os.listdir(f"/proc/{activator.process.pid}/fd"))


@pytest.mark.parametrize(
    "connections",
    [pytest.param(750, id="short"), pytest.param(100_000, id="long", marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.deep), True])
def test_a_storm_of_resets_cuts_nobody_else(
    tls: bool, connections: int, run_activator: RunActivator, tmp_path: Path
) -> None:
    """The process lives, every counter comes back to zero, and each request of the others is answered whole."""
    chain, key, root = certificate(tmp_path)
    failures: list[str] = []
    revisions = max(connections // 3_000, 1)  # of one pod: each is in quarantine most of the time

    async def post(activator: Activator, count: int) -> None:
        for number in range(count):
            with contextlib.suppress(Exception):  # what becomes of them is not the question
                visitor = await Visitor.connect(activator.address)
                body = b"x" * SIZES[number % len(SIZES)]
                await visitor.ask(request("/", "POST", f"bad{number % revisions}.test", body=body))
                await visitor.close()

    async def bystander(activator: Activator, ending: asyncio.Event) -> int:
        visitor = await Visitor.connect(activator.address)
        count = 0
        while not ending.is_set():
            try:
                answer = await visitor.ask(request("/", "GET", "good.test"))
                if answer.status != 200 or answer.body != good.address.encode():
                    failures.append(repr(answer))
            except Exception as error:
                failures.append(repr(error))
                return count
            count += 1
            good.requests.clear()
            await asyncio.sleep(0.001)
        await visitor.close()
        return count

    async def storm(activator: Activator) -> int:
        ending = asyncio.Event()
        bystanders = [asyncio.create_task(bystander(activator, ending)) for _ in range(5)]
        await asyncio.gather(*(post(activator, connections // 15) for _ in range(15)))
        ending.set()
        return sum(await asyncio.gather(*bystanders))

    arguments = [chain, key] if tls else []
    with ScriptedPod(serve) as good, program(str(PROGRAMS / "resetting.py"), *arguments) as (port, pod):
        more = {"tls": {"ca": root, "server_name": "127.0.0.1"}} if tls else {}
        bad = [revision(f"bad{number}", f"127.0.0.1:{port}", **more) for number in range(revisions)]
        activator = run_activator(configured([*bad, revision("good", good.address)]))
        assert ask(activator.address, request(host="good.test")).status == 200
        before = descriptors(activator)
        served = asyncio.run(storm(activator))
        assert failures == [] and served > 0
        assert activator.process.poll() is None
        activator.wait_idle()
        pod.send_signal(signal.SIGTERM)
        assert pod.stdout is not None
        assert int(pod.stdout.readline()) >= connections // 4, "the storm has reached the pod"
        eventually(lambda: descriptors(activator) <= before + 8, "descriptors are left")
        for number in range(revisions):
            slot = activator.slots(f"bad{number}")[0]
            assert slot["in_flight"] == 0 and slot["connections"]["dialling"] == slot["connections"]["waiting"] == 0


def test_fifty_thousand_requests_sent_ahead_keep_nobody_waiting(run_activator: RunActivator) -> None:
    count = 50_000
    with ScriptedPod(serve) as pod:
        activator = run_activator(configured([revision("good", pod.address)]))
        with Client(activator.address) as attacker, Client(activator.address) as other:
            assert other.ask(request(host="good.test")).status == 200
            read: list[int] = []
            refusal = b"HTTP/1.1 404"

            def take() -> None:
                rest = b""  # of a status line that comes in two parts
                with contextlib.suppress(OSError):
                    while data := attacker.socket.recv(1 << 20):
                        data = rest + data
                        read.append(data.count(refusal))
                        rest = data[-(len(refusal) - 1) :]

            sender = threading.Thread(target=attacker.socket.sendall, args=(request(host="none.test") * count,))
            taker = threading.Thread(target=take)
            sender.start()
            eventually(lambda: activator.ask("/healthz")[0] == 200, "the admin port answers")
            served_meanwhile = 0
            taker.start()
            while sum(read) < count:
                assert other.ask(request(host="good.test")).status == 200
                served_meanwhile += sum(read) < count
            assert served_meanwhile > 20, "others are served between its refusals, not after them"
            attacker.socket.shutdown(socket.SHUT_RDWR)
            sender.join()
            taker.join()


def test_who_comes_behind_a_stream_waits_for_a_trial_and_not_for_the_stream(run_activator: RunActivator) -> None:
    """The pod refuses one dial while a stream is open; then a second stream is its trial."""

    def streams(side: PodSide) -> None:
        while True:
            got = side.request()
            if got.target == "/stream":
                side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
                side.wait()
                side.send(b"0\r\n\r\n")
            else:
                side.answer()

    pod = ScriptedPod(streams)
    again: list[ScriptedPod] = []
    try:
        activator = run_activator(configured([revision("a", pod.address, container_concurrency=100)]))
        with Client(activator.address) as first, Client(activator.address) as second:
            first.send(request("/stream", host="a.test"))
            assert first.head().status == 200
            pod.stop_listening()
            refused = threading.Thread(target=lambda: ask(activator.address, request(host="a.test")))
            refused.start()
            eventually(lambda: activator.slots("a")[0]["state"] == "quarantined", "the refused dial is known")
            again.append(ScriptedPod(streams, pod.port))
            second.send(request("/stream", host="a.test"))
            assert second.head().status == 200
            for _ in range(5):
                assert ask(activator.address, request(host="a.test")).status == 200
            refused.join()
            assert activator.slots("a")[0]["in_flight"] == 2, "both streams are still open"
            for one in (pod, *again):
                one.go_on()
    finally:
        for one in (pod, *again):
            one.close()


def test_stalled_handshakes_leave_the_other_ports_alone(run_activator: RunActivator, tmp_path: Path) -> None:
    """With 300 descriptors, 400 clients that never finish their handshake: whoever means it is served."""
    chain, key, root = certificate(tmp_path)
    listen = ["127.0.0.1:0", {"address": "127.0.0.1:0", "certificate": chain, "key": key}]
    with ScriptedPod(serve) as pod:
        activator = run_activator(
            configured([revision("a", pod.address)], listen=listen),
            prefix=["sh", "-c", 'ulimit -n 300; exec "$@"', "sh"],
        )
        plain, secure = activator.wait_log(r" serving on (\S+, \S+)").split(", ")
        host, _, port = secure.rpartition(":")
        stalled = []
        context = ssl.create_default_context(cafile=root)
        try:
            for number in range(400):
                one = socket.create_connection((host, int(port)), 20.0)
                one.sendall(b"\x16\x03\x01")
                stalled.append(one)
                if number % 50 == 49:
                    assert ask(plain, request(host="a.test")).status == 200
                    assert activator.ask("/healthz")[0] == 200
            with Client(secure) as client:
                client.secure(context, "a.test")
                assert client.ask(request(host="a.test")).status == 200
            assert activator.ask("/metrics")[0] == 200
        finally:
            for one in stalled:
                one.close()
        assert ask(plain, request(host="a.test")).status == 200


def test_a_crowd_at_the_admin_port_does_not_keep_it_from_answering(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        activator = run_activator(
            configured([revision("a", pod.address)]), prefix=["sh", "-c", 'ulimit -n 300; exec "$@"', "sh"]
        )
        host, _, port = activator.admin.rpartition(":")
        crowd = [socket.create_connection((host, int(port)), 20.0) for _ in range(400)]
        try:
            assert activator.ask("/healthz")[0] == 200
            assert ask(activator.address, request(host="a.test")).status == 200
        finally:
            for one in crowd:
                one.close()


BIG = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"


def stall(side: PodSide) -> None:
    """Downloads without end; of an upload nothing is read."""
    if side.head().method == "GET":
        side.send(BIG)
        with contextlib.suppress(OSError):
            for _ in range(1_000):
                side.send(bytes(100_000))
    else:
        side.stall()


@pytest.mark.parametrize("kind", ["downloads", "uploads", "heads", "sent ahead"])
def test_what_stalled_clients_took_is_given_back(kind: str, run_activator: RunActivator) -> None:
    data = {
        "downloads": request(host="a.test"),
        "uploads": request("/", "POST", "a.test", body=bytes(2_000_000)),
        "heads": b"GET / HTTP/1.1\r\nHost: a.test\r\nX: " + b"x" * 20_000,
        "sent ahead": request(host="none.test") * 40_000,
    }[kind]
    count = 1_000 if DEEP else 200
    with ScriptedPod(stall) as pod:
        activator = run_activator(configured([revision("a", pod.address)]))
        activator.ask("/metrics")  # the first connection loads the server of the admin port
        before = resident_bytes(activator.process.pid)
        clients = [socket.create_connection((activator.host, activator.port), 20.0) for _ in range(count)]
        for client in clients:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(BlockingIOError):
                client.send(data)
        accepted = f"activator_client_connections {float(count)}".encode()
        eventually(lambda: accepted in activator.ask("/metrics")[2], "all of them are connected")
        assert activator.ask("/healthz")[0] == 200
        during = resident_bytes(activator.process.pid)
        assert during - before < count * 600_000, "each has its bound"
        for client in clients:
            client.close()
        activator.wait_idle()
        eventually(
            lambda: resident_bytes(activator.process.pid) < before + 20_000_000,
            f"the memory of {count} stalled {kind}: {before}, {during}",
        )


@pytest.mark.parametrize("tls", [False, True])
def test_an_answer_that_takes_many_turns_is_whole_though_its_pod_has_closed(
    tls: bool, run_activator: RunActivator, tmp_path: Path
) -> None:
    """A TLS transport that is paused reads on, and drops what it holds when the peer closes."""
    chain, key, root = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    chunks = 30_000
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer += b"1\r\na\r\n" * chunks + b"0\r\n\r\n"

    def answering(side: PodSide) -> None:
        if not tls:
            side.head()
            side.send(answer)
            return
        with context.wrap_socket(side.socket, server_side=True) as secured:
            secured.recv(65_536)
            secured.sendall(answer)

    with ScriptedPod(answering) as pod:
        more = {"tls": {"ca": root, "server_name": "127.0.0.1"}} if tls else {}
        activator = run_activator(configured([revision("a", pod.address, **more)]))
        for _ in range(10):
            got = ask(activator.address, request(host="a.test"))
            assert (got.status, len(got.body)) == (200, chunks)
