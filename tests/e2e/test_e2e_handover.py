"""`activator upgrade`: a new process takes over listeners, programs and limits, and no request is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from activator.runtime.sockets import split_address
from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import Background, ShortRequests, all_events, head, next_id
from tests.e2e.handover_faults import CRASHES, MISTAKES, CrashingStarts, check_kill, check_mistake, check_refused
from tests.e2e.handover_machine import PAUSE_MAX_S, PLAIN, SECURE, UPGRADE_S, Start, started_machines
from tests.e2e.handover_queued import PatientHttp2Client, QueuedRequests, http2_over_tls
from tests.e2e.http_client import Client, CutShortError, ask
from tests.e2e.running import cli, eventually, is_dead
from tests.e2e.test_e2e_tls import Files, trusting


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_queued_requests_keep_their_place_and_body(start: Start, files: Files, tmp_path: Path, workers: int) -> None:
    """The program is being started during the upgrade; it is started once."""
    gate = tmp_path / "gate"
    listen = [PLAIN, files.listener(SECURE)]
    machine = start(concurrency=1, gate=str(gate), listen=listen, workers=workers)
    plain, secure = machine.addresses
    old = machine.newest()
    small, large = b"s" * 100, b"0123456789" * 7_000
    with ExitStack() as stack:
        waiting = QueuedRequests(stack)
        for body in (b"", small, large):
            for send, address, tls in (
                (waiting.http1, plain, None),
                (waiting.http2, plain, None),
                (waiting.http1, secure, trusting()),
                (waiting.http2, secure, http2_over_tls()),
            ):
                send(address, body, tls)
                eventually(lambda: machine.queued() == len(waiting.ids), f"{waiting.ids[-1]} is queued")
        before = len(waiting.ids)
        machine.upgrade()
        assert not machine.has_drained(old)
        for body in (b"", large):
            for send, address in ((waiting.http1, plain), (waiting.http2, plain)):
                send(address, body)
                time.sleep(0.05)  # which process queues it is not shown by the queues' lengths
        gate.touch()
        answers = [answer() for answer in waiting.answers]
    assert [status for status, _ in answers] == [200] * len(waiting.ids)
    told = [json.loads(body) for _, body in answers]
    assert [one["id"] for one in told] == waiting.ids
    assert {one["size"] for one in told[8:before]} == {len(large)}
    assert machine.record.repeated() == []
    if workers == 1:
        assert machine.record.begun() == waiting.ids
    else:
        assert sorted(machine.record.begun()) == sorted(waiting.ids)
    assert machine.record.most() == 1
    assert len(machine.record.boots()) == 1
    machine.wait_drained(old)
    assert machine.get().status == 200


def test_a_queued_request_keeps_its_deadline(start: Start, tmp_path: Path) -> None:
    machine = start(concurrency=1, gate=str(tmp_path / "gate"), queue={"timeout": "3s"})
    old = machine.newest()
    with Client(machine.address) as client:
        client.send(head("/plain/0", next_id("late")))
        began_s = time.monotonic()
        eventually(lambda: machine.queued() == 1)
        machine.upgrade()
        upgraded_s = time.monotonic() - began_s
        answer = client.answer()
        took_s = time.monotonic() - began_s
    assert answer.status in {503, 504}, answer
    assert 2.5 < took_s < max(3.0, upgraded_s) + 1.0, took_s
    machine.wait_drained(old)
    (tmp_path / "gate").touch()
    assert machine.get().status == 200
    assert len(machine.record.boots()) == 1


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_exchanges_under_way_lose_no_byte(start: Start, background: Background, files: Files, workers: int) -> None:
    machine = start(listen=[PLAIN, files.listener(SECURE)], workers=workers)
    plain, secure = machine.addresses
    old = machine.newest()
    assert machine.get().status == 200
    exchanges = machine.exchanges(background)
    exchanges.all_kinds(plain)
    exchanges.events(secure, tls=trusting())
    exchanges.websocket(secure, tls=trusting())
    with PatientHttp2Client(plain) as http2, PatientHttp2Client(plain) as idle:
        assert idle.ask("/plain/0", headers=[("x-id", next_id("idle"))]).status == 200
        stream = http2.start("/events/http2/0.05", headers=[("x-id", next_id("events"))])
        http2.wait_size(stream, 40)
        exchanges.wait_progress()
        machine.upgrade()
        assert not machine.has_drained(old)
        assert machine.get().status == 200
        exchanges.wait_progress(10)
        exchanges.finish(PAUSE_MAX_S)
        code, last, _ = http2.wait_goaway()
        assert code == 0 and last >= stream
        (machine.folder / "record.http2").touch()
        assert all_events(http2.answer(stream).body)
        assert idle.wait_goaway()[0] == 0
        assert idle.wait_closed(), "a connection without a request is closed"
    machine.wait_drained(old)
    assert machine.record.repeated() == []
    assert machine.get().status == 200
    assert len(machine.record.boots()) == 1


def test_connections_are_closed_when_idle_and_after_their_next_response(start: Start, tmp_path: Path) -> None:
    machine = start(limits={"body_rate": 0})  # an upgrade may take longer than a body without progress
    old = machine.newest()
    with ExitStack() as stack:
        idle, busy, slow, known = [stack.enter_context(Client(machine.address)) for _ in range(4)]
        assert idle.ask(head("/plain/0", next_id("idle"))).status == 200
        busy.send(head("/events/busy/0.05", next_id("busy")))
        assert busy.head().header("connection") != "close"
        begun = head("/plain/0", next_id("slow"), "POST", fields="Content-Length: 2\r\n")
        slow.send(begun)
        eventually(lambda: machine.record.count() == 2)
        assert known.ask(head("/plain/0", next_id("known"))).header("connection") != "close"
        machine.upgrade()
        # The old process hears of it from the new one, which may be somewhat later.
        eventually(lambda: known.ask(head("/plain/0", next_id("known"))).header("connection") == "close")
        slow.send(b"ok")
        answer = slow.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert slow.is_closed()
        idle.socket.settimeout(10.0)
        assert idle.is_closed()
        (tmp_path / "record.busy").touch()
        assert busy.rest().endswith(b"data: done\n\n\r\n0\r\n\r\n"), "the connection ends after the stream"
    with Client(machine.address) as after:
        for _ in range(2):
            answer = after.ask(head("/plain/0", next_id("after")))
            assert answer.status == 200
            assert answer.header("connection") != "close"
    machine.wait_drained(old)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_short_requests_do_not_fail(start: Start, background: Background, workers: int) -> None:
    machine = start(workers=workers)
    assert machine.get().status == 200
    load = ShortRequests(machine.address, keeping=8, fresh=4, pause_s=0.01)
    running = background.start(load.run())
    for _ in range(2):
        count = len(load.answered)
        eventually(lambda: len(load.answered) > count + 100, "the load is served")  # noqa: B023
        machine.upgrade()
    count = len(load.answered)
    eventually(lambda: len(load.answered) > count + 100, "the load is served afterwards")
    load.stop()
    running.result(20.0)
    assert load.failed == []
    assert load.longest_s < PAUSE_MAX_S
    assert machine.record.repeated() == []
    assert set(load.answered) <= set(machine.record.begun())
    assert len(machine.record.boots()) == 1


def test_generations_drain_side_by_side(start: Start, background: Background) -> None:
    """The limit holds over three processes, of which two only finish what they have."""
    machine = start(concurrency=3)
    assert machine.get().status == 200
    mains, cohorts = [machine.newest()], []
    for number in range(3):
        if number:
            mains.append(machine.upgrade())
        cohorts.append(machine.exchanges(background))
        cohorts[-1].events(machine.address)
        cohorts[-1].wait_progress()
    assert [machine.has_drained(main) for main in mains] == [False] * 3
    with Client(machine.address) as fourth:
        fourth.send(head("/plain/0", next_id("fourth")))
        eventually(lambda: machine.queued() == 1, "it waits for one of the three")
        cohorts[0].wait_progress(6)
        assert machine.record.begun()[-1].startswith("events")
        cohorts[1].finish(PAUSE_MAX_S)
        assert fourth.answer().status == 200
    machine.wait_drained(mains[1])
    assert [machine.has_drained(main) for main in mains] == [False, True, False]
    for cohort in (cohorts[0], cohorts[2]):
        cohort.finish(PAUSE_MAX_S)
    machine.wait_drained(mains[0])
    assert machine.record.most() == 3
    assert machine.newest() == mains[-1]


# --- refused upgrades -----------------------------------------------------------------------------------------------


def test_a_refused_configuration_changes_nothing(start: Start, background: Background) -> None:
    machine = start()
    machine.activator.may_log_errors = True
    assert machine.get().status == 200
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    load = ShortRequests(machine.address, keeping=2, fresh=1, pause_s=0.02)
    running = background.start(load.run())
    with ExitStack() as stack:
        for mistake in MISTAKES:
            check_mistake(machine, mistake(machine, stack))
    machine.write(machine.configuration)
    old = machine.newest()
    program = machine.pid()
    machine.upgrade()
    assert machine.pid() == program
    load.stop()
    running.result(20.0)
    assert load.failed == []
    exchanges.finish(PAUSE_MAX_S)
    machine.wait_drained(old)


def test_a_new_process_that_ends_at_its_start_changes_nothing(start: Start, tmp_path: Path) -> None:
    crash = CrashingStarts(tmp_path)
    machine = start(variables=crash.variables, workers=2)
    machine.activator.may_log_errors = True
    assert machine.get().status == 200
    for code, exit_code in CRASHES.items():
        crash.set(code)
        problem = f"the new process did not take over: it ended with exit code {exit_code}; see its log above"
        check_refused(machine, problem)
    crash.set("")
    program = machine.pid()
    machine.upgrade()
    assert machine.pid() == program


def test_the_end_does_not_wait_for_a_new_process_that_hangs(start: Start, tmp_path: Path) -> None:
    crash = CrashingStarts(tmp_path)
    machine = start(variables=crash.variables)
    machine.activator.may_log_errors = True
    assert machine.get().status == 200
    crash.set("import time; time.sleep(3600)")
    command = machine.begin_upgrade()
    eventually(lambda: len(machine.generations()) == 2, "there is a new process")
    assert machine.get().status == 200
    machine.activator.signal(signal.SIGTERM)
    output, _ = command.communicate(timeout=20.0)
    assert command.returncode != 0 and output.strip()
    assert machine.activator.wait_end() == 0
    machine.activator.wait_nothing_left()


def test_two_upgrades_at_once(start: Start, background: Background) -> None:
    """Both commands end; whichever did its work, one process serves, and no request fails."""
    machine = start()
    machine.activator.may_log_errors = True
    program = machine.pid()
    load = ShortRequests(machine.address, keeping=2, fresh=2, pause_s=0.01)
    running = background.start(load.run())
    commands = [machine.begin_upgrade() for _ in range(2)]
    outputs = [command.communicate(timeout=UPGRADE_S)[0] for command in commands]
    assert 0 in {command.returncode for command in commands}, outputs
    assert {command.returncode for command in commands} <= {0, 1}, outputs
    machine.settled()
    load.stop()
    running.result(20.0)
    assert load.failed == []
    assert machine.pid() == program


# --- programs -------------------------------------------------------------------------------------------------------


def test_an_adopted_program_is_one_like_any_other(start: Start) -> None:
    machine = start()
    old = machine.newest()
    program = machine.pid()
    machine.upgrade()
    machine.wait_drained(old)
    assert machine.pid() == program, "it stays loaded"
    assert machine.activator.revision("app")["processes"]["processes"] == 1
    assert machine.get("/say/hello-after-the-upgrade").status == 200

    def output() -> str:
        return cli("logs", "app", "--admin", machine.admin).stdout

    eventually(lambda: "hello-after-the-upgrade" in output(), "its output is shown")
    data = head("/exit/3", next_id("exit"), "POST", fields="Content-Length: 0\r\n")
    assert ask(machine.address, data).status == 502, "a POST is not sent again"
    eventually(lambda: is_dead(program))
    machine.activator.wait_log(r"app#\d+: .*(?:ended|exit)")
    second = machine.pid()
    assert second != program, "the next request starts it again"
    machine.upgrade()
    assert machine.pid() == second
    assert machine.activator.command("/unload/app")[0] == 200
    eventually(lambda: is_dead(second), "it is unloaded")
    assert machine.pid() not in {program, second}
    assert len(machine.record.boots()) == 3


def test_an_adopted_program_is_stopped_when_it_is_idle(start: Start) -> None:
    machine = start(process={"idle": "1500ms"})
    program = machine.pid()
    machine.upgrade()
    eventually(lambda: is_dead(program), "it has been idle for long enough")
    eventually(lambda: machine.activator.revision("app")["processes"]["processes"] == 0)
    assert machine.pid() != program


@pytest.mark.deep
def test_a_program_that_writes_much_is_not_held_up(start: Start) -> None:
    """More than a pipe holds: somebody reads it, also after the process that started the program has drained."""
    machine = start()
    old = machine.newest()
    program = machine.pid()
    machine.upgrade()
    machine.wait_drained(old)
    for number in range(30):
        assert machine.get(f"/say/{number}-{'x' * 4_000}").status == 200
    assert machine.pid() == program


# --- listeners and signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2])
def test_unix_sockets_and_the_admin_port_on_one(
    start: Start, background: Background, tmp_path: Path, workers: int
) -> None:
    front, admin = tmp_path / "front.sock", tmp_path / "admin.sock"
    listen = [{"address": f"unix:{front}", "mode": "0600"}, PLAIN]
    machine = start(listen=listen, admin=f"unix:{admin}", workers=2)
    old = machine.newest()
    assert machine.get().status == 200
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.websocket(machine.address)
    load = ShortRequests(machine.address, keeping=2, fresh=3, pause_s=0.01)
    running = background.start(load.run())
    exchanges.wait_progress()
    machine.upgrade()
    assert cli("status", "--admin", machine.admin).returncode == 0
    exchanges.finish(PAUSE_MAX_S)
    machine.wait_drained(old)
    for path in (front, admin):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    count = len(load.answered)
    eventually(lambda: len(load.answered) > count + 50, "the load is served after the old process has ended")
    machine.upgrade()
    load.stop()
    running.result(20.0)
    assert load.failed == []
    assert machine.get(address=machine.addresses[1]).status == 200
    machine.activator.signal(signal.SIGTERM)
    assert machine.activator.wait_end() == 0
    machine.activator.wait_nothing_left()
    assert not front.exists() and not admin.exists()


def test_a_new_certificate_and_a_new_listener_are_used(start: Start, files: Files) -> None:
    machine = start(listen=[PLAIN, files.listener(SECURE)])
    plain, secure = machine.addresses
    shown = certificate(secure)
    issued = files.issue("localhost")
    added = f"unix:{machine.folder}/new.sock"
    machine.write({**machine.configuration, "listen": [PLAIN, files.listener(SECURE), added]})
    machine.upgrade()
    eventually(lambda: certificate(secure) == issued, "the new process reads the certificate")
    assert shown != issued
    assert machine.get(address=plain).status == 200
    assert machine.get(address=added).status == 200


def certificate(address: str) -> bytes:
    """What a new connection is shown, in DER."""
    with Client(address) as client:
        client.secure(trusting(), "localhost")
        assert isinstance(client.socket, ssl.SSLSocket)
        return client.socket.getpeercert(binary_form=True) or b""


def test_the_line_names_the_version_and_the_status_is_that_of_the_new_process(start: Start) -> None:
    with socket.socket() as front, socket.socket() as admin:
        for sock in (front, admin):
            sock.bind(("127.0.0.1", 0))
        ports = [sock.getsockname()[1] for sock in (front, admin)]
    machine = start(listen=f"127.0.0.1:{ports[0]}", admin=f"127.0.0.1:{ports[1]}")
    old = machine.newest()
    version = cli("version").stdout.split()[1]
    done = machine.try_upgrade()
    assert done.code == 0, done
    assert version in done.output and str(old.main) in done.output, done
    assert machine.activator.ask("/readyz")[0] == 200
    assert machine.activator.revision("app")["processes"]["processes"] == 0
    assert machine.get().status == 200
    eventually(lambda: machine.activator.revision("app")["requests"] == 1, "the new process has served it")
    assert cli("upgrade", "-c", str(machine.file)).returncode == 0, "the file names the admin port"


def test_listeners_with_the_same_address_in_the_file_keep_their_roles(start: Start, files: Files) -> None:
    """With port 0 the file does not tell them apart."""
    machine = start(listen=["127.0.0.1:0", files.listener("127.0.0.1:0")], admin="127.0.0.1:0")
    plain, secure = machine.addresses
    program, shown = machine.pid(), certificate(secure)
    for _ in range(2):
        machine.upgrade()
        assert machine.pid() == program
        assert machine.activator.revision("app")["processes"]["processes"] == 1
        assert certificate(secure) == shown
        assert machine.get(address=plain).status == 200


def test_a_signal_upgrades_as_well(start: Start) -> None:
    """SIGUSR2 to the process that serves; its outcome is in the log alone."""
    machine = start()
    program, old = machine.pid(), machine.newest()
    machine.activator.signal(signal.SIGUSR2)
    eventually(lambda: machine.newest() != old, "there is a new process")
    machine.wait_drained(old)
    assert machine.pid() == program
    second = machine.newest()
    machine.activator.may_log_errors = True
    machine.write("listen: [\n")
    os.kill(second.main, signal.SIGUSR2)
    machine.activator.wait_log(r" (?:WARNING|ERROR) activator: .*upgrade")
    eventually(lambda: machine.newest() == second, "the new process has ended")
    assert machine.pid() == program
    machine.write(machine.configuration)
    machine.activator.signal(signal.SIGUSR2)  # the first process forwards it
    machine.wait_drained(second)
    assert machine.newest() != second
    assert machine.pid() == program


def test_a_signal_upgrades_while_the_first_process_drains(start: Start, background: Background) -> None:
    machine = start()
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    draining = machine.newest()
    serving = machine.upgrade()
    machine.activator.signal(signal.SIGUSR2)
    machine.wait_drained(serving)
    assert not machine.has_drained(draining)
    assert machine.newest() not in (draining, serving)
    exchanges.finish(PAUSE_MAX_S)
    machine.wait_drained(draining)


def test_the_first_process_ends_everything(start: Start, background: Background) -> None:
    """It gets the signal, waits for the streams of all generations, and has the exit code of the one that serves."""
    machine = start()
    machine.upgrade()
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    older = machine.newest()
    machine.upgrade()
    exchanges.events(machine.address)
    exchanges.wait_progress()
    assert not machine.has_drained(older)
    machine.activator.signal(signal.SIGTERM)
    exchanges.wait_progress(10)
    exchanges.finish(PAUSE_MAX_S)
    assert machine.activator.wait_end() == 0
    machine.activator.wait_nothing_left()


def test_an_older_process_does_not_drain_longer_than_a_shutdown_may_take(start: Start, background: Background) -> None:
    machine = start(shutdown={"timeout": "1s"})
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    machine.upgrade()
    exchanges.wait_progress(30)  # an event takes 50 ms: for longer than the timeout
    assert exchanges.unfinished() == 1, "an upgrade alone aborts nothing"
    began_s = time.monotonic()
    machine.activator.signal(signal.SIGTERM)
    machine.activator.wait_end()
    machine.activator.wait_nothing_left()
    assert time.monotonic() - began_s < 6.0
    assert len(exchanges.cut(10.0)) == 1


def test_a_second_signal_does_not_wait_for_older_processes(start: Start, background: Background) -> None:
    machine = start()
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    machine.upgrade()
    exchanges.events(machine.address)
    exchanges.wait_progress()
    machine.activator.signal(signal.SIGTERM)
    machine.activator.wait_log("draining")
    exchanges.wait_progress()
    machine.activator.signal(signal.SIGTERM)
    assert machine.activator.wait_end(5.0) == 130
    machine.activator.wait_nothing_left(5.0)
    assert len(exchanges.cut(10.0)) == 2


# --- processes that are killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_the_old_process_finishes_if_the_new_one_is_killed(start: Start, background: Background, workers: int) -> None:
    """Its requests end normally, with the program that the new process had taken over; then nothing is left."""
    machine = start(workers=workers)
    machine.activator.may_log_errors = True
    assert machine.get().status == 200
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.websocket(machine.address)
    exchanges.wait_progress()
    new = machine.upgrade()
    machine.kill(new, only_main=True)
    exchanges.wait_progress(20)
    exchanges.finish(PAUSE_MAX_S)
    assert machine.activator.wait_end() != 0, "whoever watches the first process learns of it"
    machine.activator.wait_nothing_left()


@pytest.mark.deep  # at a random moment
@pytest.mark.parametrize("victim", ["new", "old"])
def test_a_process_is_killed_during_the_upgrade(start: Start, background: Background, victim: str) -> None:
    check_kill(start, background, Random(victim), victim, 1)


def test_the_new_process_goes_on_when_the_old_one_is_killed(start: Start, background: Background) -> None:
    """The old one had both slots; they are free again once it is dead."""
    machine = start(concurrency=2)
    machine.activator.may_log_errors = True
    machine.upgrade()  # the first process is only a parent from here on
    old = machine.newest()
    exchanges = machine.exchanges(background)
    for _ in range(2):
        exchanges.events(machine.address)
    exchanges.wait_progress()
    program = machine.record.running()
    machine.upgrade()
    with Client(machine.address) as queued:
        queued.send(head("/plain/0", next_id("queued")))
        eventually(lambda: machine.queued() == 1)
        machine.kill(old)
        assert queued.answer().status == 200
    assert len(exchanges.cut(10.0)) == 2, "its clients were cut"
    assert machine.record.running() == program
    assert machine.record.most() == 2
    machine.wait_drained(old)


def test_the_new_process_goes_on_without_the_first_under_systemd(start: Start) -> None:
    machine = start(variables={"NOTIFY_SOCKET": "@activator-nobody-listens"})
    machine.activator.may_log_errors = True
    program = machine.pid()
    with Client(machine.address) as client:
        client.send(head("/events/never/0.05", next_id("events")))
        assert client.head().status == 200
        new = machine.upgrade()
        os.kill(machine.first, signal.SIGKILL)
        machine.activator.process.wait(10.0)
        with pytest.raises(CutShortError):
            client.read(100_000)
    assert machine.pid() == program
    assert machine.newest() == new
    machine.end_all()


def test_everything_ends_with_the_first_process(start: Start) -> None:
    """A supervisor that kills the process it knows, and starts it again, finds the addresses free."""
    machine = start()
    machine.activator.may_log_errors = True
    program = machine.pid()
    machine.upgrade()
    os.kill(machine.first, signal.SIGKILL)
    machine.activator.process.wait(10.0)
    eventually(lambda: is_dead(program))  # init may wait for it later
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_address(machine.address), 5.0)


@pytest.mark.deep
def test_http2_requests_after_goaway_go_to_the_new_process(start: Start) -> None:
    """As an HTTP/2 client does: streams that the GOAWAY does not cover are sent again, on a new connection."""
    machine = start()
    old = machine.newest()
    with PatientHttp2Client(machine.address) as client:
        held = client.start("/plain/2.5", headers=[("x-id", next_id("held"))])
        eventually(lambda: machine.activator.revision("app")["in_flight"] == 1)
        machine.upgrade()
        assert client.wait_goaway()[1] >= held
        assert client.answer(held).status == 200
        assert client.wait_closed()
    with PatientHttp2Client(machine.address) as client:
        assert client.ask("/plain/0", headers=[("x-id", next_id("after"))]).status == 200
    machine.wait_drained(old)
