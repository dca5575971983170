"""Upgrades under load, in rows, and with processes that are killed at many moments."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import Background, Exchanges, ShortRequests, head, next_id
from tests.e2e.handover_faults import CrashingStarts, check_kill
from tests.e2e.handover_machine import PAUSE_MAX_S, PLAIN, SECURE, Record, Start, running, started_machines
from tests.e2e.http_client import Client, ask
from tests.e2e.running import eventually

pytestmark = pytest.mark.deep

KILLS = 100
UPGRADES = 20
QUEUED = 200
START_S = 20.0
COHORTS = 5  # groups of long exchanges, one after the other, each over several upgrades
DESCRIPTORS = 10  # how many more a process may have than one some upgrades before


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as made:
        yield made


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_is_killed_at_a_random_moment(start: Start, background: Background, workers: int, seed: int) -> None:
    chance = Random(f"{workers}.{seed}")
    check_kill(start, background, chance, chance.choice(["new", "old"]), workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_many_upgrades_in_a_row_with_everything_beside(
    start: Start, background: Background, tmp_path: Path, workers: int
) -> None:
    """Streams hold most of the slots of `app`, so that its short requests wait for the others; `slow` is starting."""
    limit = 25
    slow = running(tmp_path / "record-slow", "slow", "slow.test", concurrency=1, start_s=START_S)
    machine = start(slow, concurrency=limit, workers=workers)
    record = Record(tmp_path / "record-slow")
    assert machine.get().status == 200
    load = ShortRequests(machine.address, keeping=10, fresh=5, pause_s=0.03)
    loading = background.start(load.run())
    began_s = time.monotonic()
    counts = []
    with ExitStack() as stack:
        ids, clients = [], []
        for number in range(QUEUED):
            client = stack.enter_context(Client(machine.address, timeout_s=120.0))
            body = b"%d " % number * 500 if number % 5 == 0 else b""
            ids.append(next_id("slow"))
            fields = f"Content-Length: {len(body)}\r\n" if body else ""
            client.send(head("/plain/0.02", ids[-1], "POST" if body else "GET", "slow.test", fields) + body)
            eventually(lambda: machine.activator.revision("slow")["queued"] == len(ids))
            clients.append(client)
        exchanges: Exchanges | None = None
        for number in range(UPGRADES):
            if number % (UPGRADES // COHORTS) == 0:
                if exchanges is not None:
                    exchanges.finish(PAUSE_MAX_S)
                exchanges = machine.exchanges(background)
                for _ in range(50 // COHORTS):
                    exchanges.events(machine.address, 0.1)
                for _ in range(20 // COHORTS):
                    exchanges.websocket(machine.address, 0.1)
                exchanges.upload(machine.address, 0.1)
                exchanges.upload(machine.address, 0.1, chunked=True)
                exchanges.download(machine.address, 0.1)
                exchanges.wait_progress()
            machine.upgrade()
            counts.append(len(machine.generations()))
        assert exchanges is not None
        exchanges.finish(PAUSE_MAX_S)
        answers = [client.answer() for client in clients]
    took_s = time.monotonic() - began_s
    load.stop()
    loading.result(30.0)
    print(f"{len(load.answered) / took_s:.0f} requests/s for {took_s:.0f} s, longest {load.longest_s:.2f} s, {counts}")
    assert [answer.status for answer in answers] == [200] * QUEUED
    assert [json.loads(answer.body)["id"] for answer in answers] == ids
    assert load.failed == []
    assert load.longest_s < 2 * PAUSE_MAX_S
    for one, most in ((machine.record, limit), (record, 1)):
        assert one.repeated() == []
        assert one.most() <= most
        assert len(one.boots()) == 1
    assert sorted(record.begun()) == sorted(ids)
    if workers == 1:
        assert record.begun() == ids
    assert len(load.answered) > 100 * took_s, "the load was one"


def test_nothing_grows_with_the_number_of_upgrades(start: Start) -> None:
    """Processes, and descriptors of the process that serves."""
    machine = start(workers=2)
    program = machine.pid()
    processes, descriptors = [], []
    for _ in range(10):
        new = machine.upgrade()
        processes.append(machine.settled())
        assert machine.pid() == program
        eventually(lambda: machine.activator.revision("app")["in_flight"] == 0)
        descriptors.append(len(os.listdir(f"/proc/{new.main}/fd")))
    assert len(set(processes)) == 1, processes
    assert max(descriptors[5:]) <= max(descriptors[:3]) + DESCRIPTORS, descriptors


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_holds_over_many_upgrades(start: Start, background: Background, workers: int, limit: int) -> None:
    machine = start(concurrency=limit, workers=workers)
    assert machine.get().status == 200
    load = ShortRequests(machine.address, keeping=10, fresh=6)
    loading = background.start(load.run())
    for _ in range(8):
        count = len(load.answered)
        eventually(lambda: len(load.answered) > count + 100)  # noqa: B023
        machine.upgrade()
    load.stop()
    loading.result(30.0)
    assert load.failed == []
    assert machine.record.most() == limit
    assert machine.record.repeated() == []
    assert sorted(machine.record.begun()[1:]) == sorted(load.answered), "the first one was asked for alone"
    machine.settled()


@pytest.mark.parametrize("workers", [1, 2])
def test_programs_are_added_during_upgrades(start: Start, background: Background, workers: int) -> None:
    """No process starts one more than `max_scale`, and each program has one request at a time."""
    machine = start(concurrency=1, workers=workers, process={"max_scale": 4})
    load = ShortRequests(machine.address, keeping=3, fresh=1)
    loads = [load]
    loading = [background.start(load.run())]
    for _ in range(6):
        machine.upgrade()
        loads.append(ShortRequests(machine.address, keeping=2, fresh=2))
        loading.append(background.start(loads[-1].run()))
    eventually(lambda: len(machine.record.boots()) == 4, "all programs are started")
    machine.upgrade()
    for one, future in zip(loads, loading, strict=True):
        one.stop()
        future.result(30.0)
        assert one.failed == []
    assert machine.record.most() == 1
    assert machine.record.repeated() == []
    assert sorted(machine.record.running()) == sorted(machine.record.boots())
    assert len(machine.record.boots()) == 4


@pytest.mark.parametrize("seed", range(3))
def test_programs_come_and_go_during_upgrades(start: Start, seed: int) -> None:
    """Each upgrade meets a program that starts, serves, is idle or is being stopped."""
    chance = Random(seed)
    machine = start(concurrency=1, process={"idle": "300ms"})
    ids = []
    for _ in range(12):
        command = machine.begin_upgrade()
        for _ in range(chance.randrange(1, 6)):
            time.sleep(chance.uniform(0.0, 0.7))
            ids.append(next_id("single"))
            answer = ask(machine.address, head(f"/plain/{chance.uniform(0.0, 0.3):.2f}", ids[-1]))
            assert answer.status == 200, answer
        output, _ = command.communicate(timeout=60.0)
        assert command.returncode == 0, output
        assert len(machine.record.running()) <= 1
    assert machine.record.begun() == ids
    assert machine.record.most() == 1
    eventually(lambda: machine.record.running() == [], "the last program is idle")
    machine.settled()


def test_a_new_process_that_hangs_is_given_up(start: Start, tmp_path: Path) -> None:
    crash = CrashingStarts(tmp_path)
    machine = start(variables=crash.variables)
    machine.activator.may_log_errors = True
    before, program = machine.generations(), machine.pid()
    crash.set("import time; time.sleep(3600)")
    done = machine.try_upgrade(timeout_s=300.0)
    assert done.code == 1 and done.errors.strip(), done
    eventually(lambda: machine.generations() == before, "the new process is ended")
    assert machine.pid() == program
    crash.set("")
    machine.upgrade()
    assert machine.pid() == program


@pytest.mark.parametrize("workers", [1, 2])
def test_refused_upgrades_in_a_row_leave_nothing(start: Start, background: Background, workers: int) -> None:
    machine = start(workers=workers)
    machine.activator.may_log_errors = True
    before = machine.generations()
    program = machine.pid()
    exchanges = machine.exchanges(background)
    exchanges.all_kinds(machine.address)
    load = ShortRequests(machine.address, keeping=4, fresh=2, pause_s=0.01)
    loading = background.start(load.run())
    missing = {"address": SECURE, "certificate": "/missing.crt", "key": "/missing.crt"}
    main = machine.newest()
    descriptors = []
    for number in range(10):
        machine.write({**machine.configuration, "listen": [PLAIN, missing]} if number % 2 else "listen: [")
        assert machine.try_upgrade().code == 1
        eventually(lambda: machine.generations() == before)
        descriptors.append(len(os.listdir(f"/proc/{main.main}/fd")))
    machine.write(machine.configuration)
    assert max(descriptors[5:]) <= max(descriptors[:5]) + DESCRIPTORS, descriptors
    machine.upgrade()
    assert machine.pid() == program
    exchanges.wait_progress()
    exchanges.finish(PAUSE_MAX_S)
    load.stop()
    loading.result(30.0)
    assert load.failed == []
    assert machine.record.repeated() == []


@pytest.mark.parametrize("seed", range(10))
def test_the_end_comes_at_a_random_moment_of_an_upgrade(start: Start, background: Background, seed: int) -> None:
    """SIGTERM to the first process: streams end well within `shutdown.timeout`, and all processes end."""
    chance = Random(seed)
    machine = start(workers=chance.choice([1, 2]))
    assert machine.get().status == 200
    exchanges = machine.exchanges(background)
    for _ in range(chance.randrange(3)):
        exchanges.events(machine.address)
        exchanges.websocket(machine.address)
        exchanges.wait_progress()
        machine.upgrade()
    exchanges.events(machine.address)
    exchanges.wait_progress()
    command = machine.begin_upgrade()
    delay_s = chance.uniform(0.0, 2.0)
    print(f"SIGTERM after {delay_s:.3f} s")
    time.sleep(delay_s)
    machine.activator.may_log_errors = True
    machine.activator.signal(signal.SIGTERM)
    exchanges.wait_progress(10)
    exchanges.finish(PAUSE_MAX_S)
    print(command.communicate(timeout=60.0))
    assert machine.activator.wait_end() == 0
    machine.activator.wait_nothing_left()
