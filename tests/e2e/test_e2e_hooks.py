"""Hooks of programs: when they run, that they never cost a request, and how long they may take."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, ask, request
from tests.e2e.running import PROGRAMS, Activator, configured, eventually, process_revision

RESTORE = {"http_post": "/slots/0?action=restore", "body": {"filename": "one.bin", "n": 2}}
SAVE = {"http_post": "/slots/0?action=save", "body": {"filename": "one.bin"}}
RESTORED = 'POST /slots/0?action=restore application/json {"filename":"one.bin","n":2}'
SAVED = 'POST /slots/0?action=save application/json {"filename":"one.bin"}'


@pytest.fixture
def record(tmp_path: Path) -> Path:
    made = tmp_path / "app"
    made.touch()
    return made


def command(record: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(PROGRAMS / "recorder.py"), str(record), "{port}"]


def lines(record: Path) -> list[str]:
    return [line.removeprefix("app ") for line in record.read_text().splitlines()]


def started(run_activator: RunActivator, record: Path, hooks: dict[str, Any], **more: Any) -> Activator:
    process = {"idle": "200ms", "max_scale": 1, **more}
    return run_activator(configured([process_revision(command(record), hooks=hooks, **process)]))


def get(activator: Activator, path: str = "/") -> Answer:
    return ask(activator.address, request(path), timeout_s=30.0)


def wait_stopped(activator: Activator) -> None:
    eventually(lambda: activator.revision("app")["processes"]["processes"] == 0, "it is stopped")


def test_requests_come_between_the_hooks_of_a_start_and_those_of_a_stop(
    run_activator: RunActivator, record: Path
) -> None:
    activator = started(run_activator, record, {"after_start": [RESTORE], "before_stop": [SAVE]})
    for number in range(2):
        assert get(activator, f"/{number}").status == 200
        wait_stopped(activator)
    assert lines(record) == [RESTORED, "GET /0", SAVED, RESTORED, "GET /1", SAVED]


def test_models_that_take_turns_save_and_restore(run_activator: RunActivator, tmp_path: Path) -> None:
    """The one that leaves saves before the other is started."""
    record = tmp_path / "app"
    models = {
        name: {
            "command": command(record),
            "hooks": {
                when: [{"http_post": f"/{when}/{name}", "body": {"filename": name}}]
                for when in ("after_start", "before_stop")
            },
        }
        for name in ("one", "two")
    }
    configuration = configured([], models=models)
    del configuration["revisions"]
    activator = run_activator(configuration)
    for name in ("one", "two", "one"):
        body = json.dumps({"model": name}).encode()
        assert ask(activator.address, request("/v1", "POST", body=body), timeout_s=30.0).status == 200
    paths = [line.split()[1] for line in lines(record)]
    visit = ["/after_start/{}", "/v1", "/before_stop/{}"]
    assert paths == [path.format(name) for name in ("one", "two", "one") for path in visit][:-1]


def test_a_command_is_run_beside_the_program(run_activator: RunActivator, record: Path) -> None:
    script = f"import os; print('hook', '{{port}}' == os.environ['PORT'], file=open({str(record)!r}, 'a'))"
    hook = {"command": [sys.executable, "-c", script]}
    activator = started(run_activator, record, {"after_start": [hook], "before_stop": [hook, SAVE]})
    assert get(activator).status == 200
    wait_stopped(activator)
    assert lines(record) == ["hook True", "GET /", "hook True", SAVED]


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ({"http_post": "/fail"}, r"POST /fail was answered with 500"),
        ({"http_post": "/stall", "timeout": "300ms"}, r"POST /stall: no answer within 0\.3 s"),
        ({"command": ["false"]}, r"false ended with exit code 1"),
        ({"command": ["sleep", "60"], "timeout": "300ms"}, r"sleep did not end within 0\.3 s"),
        ({"command": ["/no/such/program"]}, r"/no/such/program did not end|/no/such/program ended"),
    ],
)
def test_a_hook_that_fails_is_logged_and_costs_nothing(
    run_activator: RunActivator, record: Path, hook: dict[str, Any], problem: str
) -> None:
    activator = started(run_activator, record, {"after_start": [hook, RESTORE], "before_stop": [hook, SAVE]})
    assert get(activator).status == 200
    wait_stopped(activator)
    for key in ("after_start", "before_stop"):
        activator.wait_logged_once(rf"WARNING .*`hooks\.{key}`: ({problem})")
    assert [line for line in lines(record) if re.match(r"GET|POST /slots", line)] == [RESTORED, "GET /", SAVED]


def test_a_hook_is_done_when_its_response_has_ended(run_activator: RunActivator, record: Path) -> None:
    """A server may answer at once, and work while it sends the body."""
    activator = started(run_activator, record, {"after_start": [{"http_post": "/slow"}, RESTORE]})
    assert get(activator).status == 200
    assert lines(record) == ["POST /slow", "done", RESTORED, "GET /"]


def test_the_next_copy_waits_for_what_the_last_one_saves(run_activator: RunActivator, record: Path) -> None:
    activator = started(
        run_activator, record, {"after_start": [RESTORE], "before_stop": [{"http_post": "/slow"}, SAVE]}
    )
    assert get(activator, "/0").status == 200
    eventually(lambda: "POST /slow" in lines(record), "it is being stopped")
    assert get(activator, "/1").status == 200
    assert lines(record) == [RESTORED, "GET /0", "POST /slow", "done", SAVED, RESTORED, "GET /1"]


def test_the_hooks_of_a_start_end_with_its_time(run_activator: RunActivator, record: Path) -> None:
    hooks = {"after_start": [{"http_post": "/stall", "timeout": "60s"}]}
    revision = {**process_revision(command(record), hooks=hooks), "timeouts": {"startup": "1s"}}
    activator = run_activator(configured([revision]))
    began_s = time.monotonic()
    assert get(activator).status == 200
    assert time.monotonic() - began_s < 20.0
    activator.wait_logged_once(r"WARNING .*`timeouts\.startup` ended before `hooks\.after_start`")


def test_a_program_that_ends_in_a_hook_is_not_waited_for(run_activator: RunActivator, record: Path) -> None:
    wait = {"command": ["sleep", "60"], "timeout": "60s"}
    activator = started(run_activator, record, {"before_stop": [{"http_post": "/exit"}, wait, SAVE]})
    assert get(activator).status == 200
    wait_stopped(activator)
    assert lines(record) == ["GET /", "POST /exit"]


def test_the_end_of_the_activator_runs_them_too(run_activator: RunActivator, record: Path) -> None:
    activator = started(run_activator, record, {"before_stop": [SAVE]}, idle="1h")
    assert get(activator).status == 200
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    assert lines(record) == ["GET /", SAVED]


def test_a_program_that_is_stopped_while_it_starts_has_nothing_to_save(
    run_activator: RunActivator, record: Path
) -> None:
    hooks = {"after_start": [{"http_post": "/stall", "timeout": "60s"}], "before_stop": [SAVE]}
    activator = started(run_activator, record, hooks, min_scale=1)
    eventually(lambda: lines(record) == ["POST /stall"], "the hook runs")
    began_s = time.monotonic()
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    assert time.monotonic() - began_s < 20.0
    assert lines(record) == ["POST /stall"]
