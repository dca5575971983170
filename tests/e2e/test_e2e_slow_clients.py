"""Clients that upload or read slowly: with concurrency 1 they must not keep others from the pod."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http_client import Client, CutShortError, chunked, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import SERVING, Activator, configured, eventually

MIB = 1024 * 1024
LARGE = b"".join(b"%015d\n" % number for number in range(MIB))  # 16 MiB: no socket's buffers take that


def serve(side: PodSide) -> None:
    """/large and /stream; anything else is answered with what its body was."""
    while True:
        asked = side.request()
        if asked.target == "/large":
            side.answer(LARGE)
        elif asked.target == "/events":
            side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(LARGE))
            side.send(LARGE)
        else:
            side.answer(hashlib.sha256(asked.body).hexdigest().encode())


class Place:
    """One pod that takes one request at a time."""

    def __init__(self, stack: ExitStack, run_activator: RunActivator, tmp_path: Path, **revision: object) -> None:
        self.pod = stack.enter_context(ScriptedPod(serve))
        self.stack = stack
        settings = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [self.pod.address], **revision}
        self.activator: Activator = run_activator(configured([settings]), TMPDIR=str(tmp_path))

    def client(self, receive_buffer: int = 0) -> Client:
        return self.stack.enter_context(Client(self.activator.address, receive_buffer=receive_buffer))

    def shown(self, name: str) -> int:
        shown: int = self.activator.revision("app")[name]
        return shown

    def figure(self, name: str) -> float:
        lines = self.activator.ask("/metrics")[2].decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))

    def others_are_served(self) -> None:
        with Client(self.activator.address) as other:
            assert other.ask(request("/other")).status == 200


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_slow_upload_holds_no_slot(
    stack: ExitStack, run_activator: RunActivator, tmp_path: Path, is_chunked: bool
) -> None:
    place = Place(stack, run_activator, tmp_path)
    slow = place.client()
    body = b"x" * 1000
    if is_chunked:
        data = request("/", "POST", headers="Transfer-Encoding: chunked\r\n") + chunked(body)
    else:
        data = request("/", "POST", body=body)
    for part in (data[:200], data[200:500]):
        slow.send(part)
        eventually(lambda: place.shown("gathering") == 1)
        place.others_are_served()
    assert place.shown("in_flight") == 0
    slow.send(data[500:])
    assert slow.answer().body == sha(body)
    place.activator.wait_idle()


def test_a_slow_upload_starts_what_it_needs(run_activator: RunActivator) -> None:
    """From zero, while the body is still coming."""
    process = {"command": [*SERVING, "{port}"], "max_scale": 1}
    activator = run_activator(
        configured([{"name": "app", "hosts": ["*"], "container_concurrency": 1, "process": process}])
    )
    with Client(activator.address) as slow:
        data = request("/", "POST", body=b"x" * 100)
        slow.send(data[:-10])
        activator.wait_ready_pods("app")
        assert activator.revision("app")["gathering"] == 1
        slow.send(data[-10:])
        assert slow.answer().status in {200, 501}


def test_a_slow_reader_holds_no_slot(stack: ExitStack, run_activator: RunActivator, tmp_path: Path) -> None:
    place = Place(stack, run_activator, tmp_path, buffer={"response": "32MiB"})
    slow = place.client(receive_buffer=4096)
    slow.send(request("/large"))
    eventually(lambda: place.shown("delivering") == 1 and place.shown("in_flight") == 0)
    place.others_are_served()
    assert place.figure("activator_held_bytes") > 4 * MIB
    assert slow.answer().body == LARGE
    assert slow.ask(request("/again")).status == 200, "the connection goes on"
    place.activator.wait_idle()
    assert place.figure("activator_held_bytes") == place.figure("activator_file_bytes") == 0


@one_worker
def test_what_is_larger_than_memory_goes_to_a_file_without_a_name(
    stack: ExitStack, run_activator: RunActivator, tmp_path: Path
) -> None:
    place = Place(stack, run_activator, tmp_path, buffer={"request": "64KiB", "response": "1MiB", "file": "64MiB"})
    slow = place.client(receive_buffer=4096)
    slow.send(request("/large"))
    eventually(lambda: place.shown("delivering") == 1 and place.shown("in_flight") == 0)
    assert place.figure("activator_file_bytes") > 4 * MIB
    assert place.figure("activator_held_bytes") < 2 * MIB
    files = [path for path in open_files(place.activator) if path.startswith(str(tmp_path))]
    assert len(files) == 1 and not list(tmp_path.glob("tmp*"))
    uploading = place.client()
    data = request("/", "POST", body=LARGE)
    uploading.send(data[:-10])
    eventually(lambda: place.shown("gathering") == 1 and place.figure("activator_file_bytes") > 20 * MIB)
    place.others_are_served()
    uploading.send(data[-10:])
    assert uploading.answer().body == sha(LARGE)
    assert slow.answer().body == LARGE
    place.activator.wait_idle()
    assert place.figure("activator_held_bytes") == place.figure("activator_file_bytes") == 0
    assert not [path for path in open_files(place.activator) if path.startswith(str(tmp_path))]


def open_files(activator: Activator) -> list[str]:
    folder = Path(f"/proc/{activator.process.pid}/fd")
    found = []
    for descriptor in folder.iterdir():
        try:
            found.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue  # closed since
    return found


def test_a_client_that_goes_away_leaves_nothing(stack: ExitStack, run_activator: RunActivator, tmp_path: Path) -> None:
    place = Place(stack, run_activator, tmp_path, buffer={"response": "1MiB", "file": "64MiB"})
    reader, writer = place.client(receive_buffer=4096), place.client()
    reader.send(request("/large"))
    writer.send(request("/", "POST", body=b"x" * 1000)[:-1])
    eventually(lambda: place.shown("delivering") == place.shown("gathering") == 1)
    reader.close()
    writer.close()
    place.activator.wait_idle()
    eventually(lambda: place.shown("delivering") == place.shown("gathering") == 0)
    assert place.figure("activator_held_bytes") == place.figure("activator_file_bytes") == 0


@pytest.mark.parametrize(("target", "buffer"), [("/events", {"response": "32MiB"}), ("/large", {"response": "0"})])
def test_streams_wait_for_their_clients(
    stack: ExitStack, run_activator: RunActivator, tmp_path: Path, target: str, buffer: dict[str, str]
) -> None:
    place = Place(stack, run_activator, tmp_path, buffer=buffer)
    slow = place.client(receive_buffer=4096)
    slow.send(request(target))
    with Client(place.activator.address) as other:
        other.send(request("/other"))
        eventually(lambda: place.shown("queued") == 1 and place.shown("in_flight") == 1)
        assert place.figure("activator_held_bytes") == place.shown("delivering") == 0
        assert slow.answer().body == LARGE
        assert other.answer().status == 200


def test_a_client_that_takes_nothing_is_cut(stack: ExitStack, run_activator: RunActivator) -> None:
    pod = stack.enter_context(ScriptedPod(serve))
    revision = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [pod.address]}
    activator = run_activator(configured([revision], limits={"send_timeout": "1s"}))
    slow = stack.enter_context(Client(activator.address, receive_buffer=4096))
    slow.send(request("/large"))
    with Client(activator.address) as other:
        assert other.ask(request("/other")).status == 200, "the slot is free when the client is given up"
    assert activator.revision("app")["failed"] == {"send_timeout": 1}
    with pytest.raises((CutShortError, ConnectionError)):
        slow.answer()


def test_a_real_client_that_awaits_a_100(stack: ExitStack, run_activator: RunActivator, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    place = Place(stack, run_activator, tmp_path)
    body = tmp_path / "body"
    body.write_bytes(LARGE[:MIB])
    ran = subprocess.run(
        [curl, "-sv", "-H", "Expect: 100-continue", "--data-binary", f"@{body}", f"http://{place.activator.address}/"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == sha(LARGE[:MIB])
    assert ran.stderr.count(b"< HTTP/1.1 100 Continue") == 1


def test_a_drain_waits_for_slow_clients(stack: ExitStack, run_activator: RunActivator, tmp_path: Path) -> None:
    """One that has yet to take its response, and one that has yet to send its body."""
    place = Place(stack, run_activator, tmp_path, buffer={"response": "32MiB"})
    reader, writer = place.client(receive_buffer=4096), place.client()
    body = b"x" * 1000
    data = request("/", "POST", body=body)
    reader.send(request("/large"))
    writer.send(data[:-1])
    eventually(lambda: place.shown("delivering") == place.shown("gathering") == 1)
    place.activator.signal(signal.SIGTERM)
    place.activator.wait_log("draining")
    writer.send(data[-1:])
    assert writer.answer().body == sha(body)
    assert reader.answer().body == LARGE
    assert place.activator.wait_end() == 0


def test_requests_sent_ahead_of_a_body_that_was_gathered_and_of_an_answer_that_is_kept(
    stack: ExitStack, run_activator: RunActivator, tmp_path: Path
) -> None:
    place = Place(stack, run_activator, tmp_path, buffer={"response": "32MiB"})
    slow = place.client(receive_buffer=4096)
    body = b"x" * 1000
    upload = request("/", "POST", headers="Transfer-Encoding: chunked\r\nTrailer: T\r\n")
    upload += chunked(body, trailers="T: 1\r\n")
    slow.send(upload[:500])
    eventually(lambda: place.shown("gathering") == 1)
    slow.send(upload[500:] + request("/large") + request("/next"))
    assert slow.answer().body == sha(body)
    eventually(lambda: place.shown("delivering") == 1)
    place.others_are_served()
    assert slow.answer().body == LARGE
    assert slow.answer().body == sha(b"")
    place.activator.wait_idle()
    assert place.figure("activator_held_bytes") == 0


def test_a_client_that_sends_all_before_it_reads_gets_an_early_answer(
    stack: ExitStack, run_activator: RunActivator, tmp_path: Path
) -> None:
    """The answer is larger than what the sockets take, and so is what is left of the request."""

    def answer_early(side: PodSide) -> None:
        side.head()
        side.answer(LARGE, status="413 Content Too Large")
        side.drain()

    pod = stack.enter_context(ScriptedPod(answer_early))
    revision = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [pod.address]}
    revision["buffer"] = {"response": "32MiB"}
    activator = run_activator(configured([revision]), TMPDIR=str(tmp_path))
    client = stack.enter_context(Client(activator.address, receive_buffer=4096))
    client.send(request("/", "POST", body=LARGE * 2))
    answer = client.answer()
    assert answer.status == 413 and answer.body == LARGE
    activator.wait_idle()
