"""Twenty upgrades in a row beside everything at once, as large as one machine of two cores can judge it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import Background, next_id
from tests.e2e.handover_machine import PAUSE_MAX_S, Record, Start, running, started_machines
from tests.e2e.handover_queued import PatientHttp2Client
from tests.e2e.running import eventually
from tests.e2e.test_e2e_servers import free_port, nginx

pytestmark = pytest.mark.deep

UPGRADES = 20
QUEUED = 1_000
STREAMS_EACH = 100  # queued requests of one HTTP/2 connection, which keeps their order
BODIES_EACH = 5  # every fifth of them has a body
START_S = 60.0
UNDISTURBED_S = 15.0  # some as long as the upgrades take: the pauses of the same load without them
EVENT_STREAMS = 200
WEBSOCKETS = 50
UPLOADS = 10
PATIENCE_S = 200.0  # for one answer of those that are queued
INTERVAL_S = 0.2  # between two steps of each
CONNECTIONS = 50  # of wrk; each sends its next request after DELAY_MS
DELAY_MS = 20
RATE_MIN = 500  # requests/s, also on a busy machine; some 2,300 on a quiet one


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


@contextmanager
def served(folder: Path, need_program: Callable[[str], str]) -> Iterator[str]:
    """Yield the address of an nginx."""
    port = free_port()
    process = subprocess.Popen(nginx(port, folder, need_program), stdin=subprocess.DEVNULL, cwd=folder)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def asked(url: str, folder: Path, need_program: Callable[[str], str]) -> Iterator[subprocess.Popen[str]]:
    """Run wrk at a steady rate until its end, which the caller asks for (SIGINT)."""
    script = folder / "steady.lua"
    script.write_text(f"function delay() return {DELAY_MS} end")
    words = ["-t1", f"-c{CONNECTIONS}", "-d600s", "--latency", "-s", str(script), "-H", "Host: fast.test", url]
    process = subprocess.Popen(
        [need_program("wrk"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


@pytest.mark.parametrize("workers", [1, 2])
def test_twenty_upgrades_with_a_thousand_queued_requests(
    start: Start, tmp_path: Path, need_program: Callable[[str], str], workers: int
) -> None:
    """Nothing fails, nothing is repeated, the order is kept, and limits hold as the program counts them."""
    (tmp_path / "nginx").mkdir()
    with ExitStack() as stack:
        background = stack.enter_context(Background())
        fast = {
            "name": "fast",
            "hosts": ["fast.test"],
            "pods": [stack.enter_context(served(tmp_path / "nginx", need_program))],
        }
        slow = running(tmp_path / "record-slow", "slow", "slow.test", concurrency=1, start_s=START_S)
        machine = start(slow, fast, concurrency=EVENT_STREAMS + WEBSOCKETS + UPLOADS, workers=workers)
        record = Record(tmp_path / "record-slow")
        assert machine.get().status == 200
        exchanges = machine.exchanges(background)
        for _ in range(EVENT_STREAMS):
            exchanges.events(machine.address, INTERVAL_S)
        for _ in range(WEBSOCKETS):
            exchanges.websocket(machine.address, INTERVAL_S)
        for number in range(UPLOADS):
            exchanges.upload(machine.address, INTERVAL_S, chunked=number % 2 == 0)
        exchanges.wait_progress()
        load = stack.enter_context(asked(f"http://{machine.address}/", tmp_path, need_program))
        began_s = time.monotonic()
        clients: list[PatientHttp2Client] = []
        ids: list[str] = []
        for number in range(QUEUED):
            if number % STREAMS_EACH == 0:
                eventually(lambda: machine.activator.revision("slow")["queued"] == len(ids), "those before are queued")
                client = stack.enter_context(PatientHttp2Client(machine.address))
                client.authority, client.timeout_s = "slow.test", PATIENCE_S
                clients.append(client)
            ids.append(next_id("slow"))
            body = b"%d " % number * 200 if number % BODIES_EACH == 0 else None
            stream = clients[-1].start("/plain/0.005", headers=[("x-id", ids[-1])], body=body)
            assert stream == 2 * (number % STREAMS_EACH) + 1
        eventually(lambda: machine.activator.revision("slow")["queued"] == QUEUED, "all are queued")
        exchanges.longest_gap_s()
        time.sleep(UNDISTURBED_S)
        undisturbed_s = exchanges.longest_gap_s() - INTERVAL_S
        queued_s = time.monotonic() - began_s
        for _ in range(UPGRADES):
            machine.upgrade()
        upgraded_s = time.monotonic() - began_s
        longest_s = exchanges.longest_gap_s() - INTERVAL_S
        assert record.begun() == [] or upgraded_s > START_S
        answers = [client.answer(2 * number + 1) for client in clients for number in range(STREAMS_EACH)]
        load.send_signal(2)
        told, _ = load.communicate(timeout=60)
        exchanges.finish(PAUSE_MAX_S)
        assert longest_s < PAUSE_MAX_S
        rate = float(re.findall(r"Requests/sec: +([0-9.]+)", told)[0])
        print(f"queued after {queued_s:.0f} s, upgraded after {upgraded_s:.0f} s, {rate:.0f} requests/s,", end=" ")
        print(f"longest pause of a stream {longest_s:.3f} s, {undisturbed_s:.3f} s without upgrades\n{told}")
        assert [answer.status for answer in answers] == [200] * QUEUED
        assert [json.loads(answer.body)["id"] for answer in answers] == ids
        assert "Socket errors" not in told and "Non-2xx" not in told, told
        assert rate > RATE_MIN, told
        for one, most in ((machine.record, EVENT_STREAMS + WEBSOCKETS + UPLOADS), (record, 1)):
            assert one.repeated() == []
            assert one.most() <= most
            assert len(one.boots()) == 1
        begun = record.begun()
        assert sorted(begun) == sorted(ids)
        if workers == 1:  # one with a body asks for its slot when the body has come
            with_body = set(ids[::BODIES_EACH])
            assert [one for one in begun if one not in with_body] == [one for one in ids if one not in with_body]
