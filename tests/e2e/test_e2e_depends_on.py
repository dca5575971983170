"""A program that needs another one: the order of starts and ends, failures, operators, a reload and an upgrade."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.handover_machine import Start, running, started_machines
from tests.e2e.http_client import Client, ask, request
from tests.e2e.running import SERVING, Activator, cli, configured, eventually, gated, process_revision


def program(name: str, *needs: str, command: list[str] | None = None, **process: Any) -> dict[str, Any]:
    """A revision that other revisions may need; only `app` has hosts."""
    made = {**process_revision(command or SERVING, **process), "name": name, "depends_on": list(needs)}
    if name != "app":
        del made["hosts"]
    return made


def after(first: Path, then: Path) -> list[str]:
    """The program, which ends at once unless `first` exists, and creates `then`."""
    return ["sh", "-c", 'test -e "$0" || exit 9; touch "$1"; shift; exec "$@"', str(first), str(then), *SERVING]


def processes(activator: Activator, name: str) -> int:
    found: int = activator.revision(name)["processes"]["processes"]
    return found


def test_programs_start_in_order_and_the_needed_ones_stay(run_activator: RunActivator, tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(4)]
    files[0].touch()
    activator = run_activator(
        configured([
            program("app", "cache", "db", command=after(files[2], files[3]), idle="600ms"),
            program("cache", "db", command=after(files[1], files[2]), idle="0s"),
            program("db", command=after(files[0], files[1]), idle="0s"),
        ])
    )  # fmt: skip
    assert [processes(activator, name) for name in ("app", "cache", "db")] == [0, 0, 0]
    with Client(activator.address) as client:
        for _ in range(3):
            assert client.ask(request("/")).status == 200
    assert [processes(activator, name) for name in ("app", "cache", "db")] == [1, 1, 1], "they have no grace themselves"
    shown = activator.revision("db")["scaling"]
    assert (shown["reason"], shown["wanted"]) == ("needed", 1) and "2 loaded revisions depend on it" in shown[
        "explanation"
    ]
    assert activator.wait_log(r"default/app: waits for (.*)") == "default/cache, default/db"
    ends: list[list[int]] = []

    def all_ended() -> bool:
        counts = [processes(activator, name) for name in ("app", "cache", "db")]
        if not ends or ends[-1] != counts:
            ends.append(counts)
        return counts == [0, 0, 0]

    eventually(all_ended, "without a request for the first one all end")
    assert all(counts == sorted(counts) for counts in ends), ("who needs another one ends before it", ends)
    assert "exited with code 9" not in activator.text()


def test_a_failure_is_that_of_those_who_need_it(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "corrected"
    broken = ["sh", "-c", 'test -e "$0" || { echo no disk; exit 3; }; exec "$@"', str(gate), *SERVING]
    activator = run_activator(configured([program("app", "db"), program("db", command=broken)]))
    activator.may_log_errors = True
    answer = ask(activator.address, request("/"))
    assert answer.status in (502, 503), answer
    assert b"default/db is needed, and failed:" in answer.body and b"exited with code 3: no disk" in answer.body
    assert processes(activator, "app") == 0
    gate.touch()
    eventually(lambda: ask(activator.address, request("/")).status == 200, "it is corrected")


def test_operators_and_reloads(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    app, db = program("app", "db", preload=True), program("db", command=gated(SERVING, gate))
    activator = run_activator(configured([app, db]))
    eventually(lambda: processes(activator, "db") == 1, "a preloaded program calls for what it needs")
    status = cli("status", "app", "--admin", f"http://{activator.admin}").stdout
    assert "waits for default/db, which it depends on" in " ".join(status.split())
    assert processes(activator, "app") == 0
    gate.touch()
    activator.wait_ready_pods("app")
    refused = cli("unload", "db", "--admin", f"http://{activator.admin}")
    assert refused.returncode != 0
    assert "default/app depends on it, and is loaded: unload that first" in refused.stdout + refused.stderr
    changed = configured([app | {"depends_on": ["db", "more"]}, db, program("more")])
    (tmp_path / "activator0.yaml").write_text(json.dumps(changed))
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    activator.wait_ready_pods("more")
    for name in ("app", "more", "db"):
        done = cli("unload", name, "--admin", f"http://{activator.admin}")
        assert done.returncode == 0, (done.stdout, done.stderr)
    eventually(lambda: not any(processes(activator, name) for name in ("app", "db", "more")), "all are unloaded")
    assert ask(activator.address, request("/")).status == 200


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


def test_an_upgrade_keeps_what_is_needed(start: Start, tmp_path: Path) -> None:
    app, db = running(tmp_path / "web", "web", "web"), running(tmp_path / "db", "db", "db")
    db["process"]["idle"] = "0s"
    machine = start(app | {"depends_on": ["db"]}, db)
    plain = "GET /plain/0 HTTP/1.1\r\nHost: web\r\nX-Id: needed-{}\r\n\r\n"
    assert ask(machine.address, plain.format(1).encode()).status == 200
    machine.upgrade()
    eventually(lambda: machine.activator.revision("db")["scaling"]["reason"] == "needed", "it is still needed")
    assert ask(machine.address, plain.format(2).encode()).status == 200
    assert [len((tmp_path / name).read_text().split("boot ")) - 1 for name in ("web", "db")] == [1, 1]
