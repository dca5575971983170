"""Waiting pages, quiet requests and fallbacks with real programs, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import http.client
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.running import PATIENCE_S, Activator, configured, eventually, gated

TALKER = [sys.executable, str(Path(__file__).parent / "programs" / "talker.py"), "{port}"]
BROWSER = {"Accept": "text/html,*/*", "Sec-Fetch-Mode": "navigate"}


def asked(activator: Activator, host: str, headers: dict[str, str], method: str = "GET") -> httpx.Response:
    with httpx.Client(timeout=PATIENCE_S) as client:
        return client.request(method, f"http://{activator.address}/", headers={"Host": host, **headers})


def processes(activator: Activator) -> int:
    (revision,) = activator.revisions().values()
    return int(revision["processes"]["processes"])


@pytest.mark.parametrize(("workers", "limit"), [(1, 0), (2, 0), (2, 1)])
def test_a_browser_looks_until_the_program_is_there(run_activator: RunActivator, workers: int, limit: int) -> None:
    """With a limit and several workers the ticket waits at another worker."""
    one = {
        "container_concurrency": limit,
        "name": "app",
        "hosts": ["app.test"],
        "process": {"command": TALKER, "idle": "300s"},
        "waiting_page": {"refresh": "500ms"},
    }
    activator = run_activator(configured([one], workers=workers))
    first = asked(activator, "app.test", BROWSER)
    assert (first.status_code, first.headers["Activator-Reason"]) == (503, "starting")
    assert "Starting app" in first.text and first.headers["Refresh"] == "0.5"
    answers: list[httpx.Response] = []

    def is_there() -> bool:
        answers.append(asked(activator, "app.test", BROWSER))
        return answers[-1].status_code == 200

    eventually(is_there)
    assert answers[-1].text == "ok\n"
    assert {answer.headers.get("Activator-Reason") for answer in answers[:-1]} <= {"starting"}
    activator.wait_idle()


def test_the_page_shows_what_the_program_says_while_it_starts(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    says = "printf '\\033[31m<b>loading weights</b>\\033[0m\\n'; exec \"$@\""
    command = ["sh", "-c", says, "sh", *gated(TALKER, gate)]
    one = {
        "name": "app",
        "hosts": ["app.test"],
        "process": {"command": command, "idle": "300s"},
        "waiting_page": {"refresh": "500ms", "output": True},
    }
    activator = run_activator(configured([one], workers=2))
    eventually(lambda: "&lt;b&gt;loading weights&lt;/b&gt;</pre>" in asked(activator, "app.test", BROWSER).text)
    gate.touch()
    eventually(lambda: asked(activator, "app.test", BROWSER).status_code == 200)
    activator.wait_idle()


def test_a_monitor_neither_wakes_a_program_nor_keeps_it(run_activator: RunActivator) -> None:
    one: dict[str, Any] = {
        "name": "app",
        "hosts": ["app.test"],
        "process": {"command": TALKER, "idle": "1s"},
        "scaling": {"stable_window": "6s"},
        "no_wake": [{"user_agent": "monitor/"}],
    }
    activator = run_activator(configured([one]))
    monitor = {"User-Agent": "monitor/1.0"}
    told = asked(activator, "app.test", monitor)
    assert (told.status_code, told.headers["Activator-Reason"]) == (503, "asleep")
    assert processes(activator) == 0
    assert asked(activator, "app.test", {}).status_code == 200
    assert asked(activator, "app.test", monitor).status_code == 200
    seen: list[int] = []

    def is_asleep() -> bool:
        seen.append(asked(activator, "app.test", monitor).status_code)
        return seen[-1] == 503

    eventually(is_asleep)
    eventually(lambda: processes(activator) == 0)
    assert set(seen) <= {200, 503} and seen.count(200) > 1, "it asked all the time"


def test_a_fallback_over_both_protocols(run_activator: RunActivator, tmp_path: Path) -> None:
    page = tmp_path / "sorry.html"
    page.write_text("<h1>Sorry</h1>")
    broken = [sys.executable, "-c", "raise SystemExit('no model file')"]
    filed = {
        "name": "filed",
        "hosts": ["filed.test"],
        "process": {"command": broken},
        "fallback": {"file": str(page)},
    }
    moved = {"name": "moved", "hosts": ["moved.test"], "process": {"command": broken}, "fallback": {"redirect": "/x"}}
    activator = run_activator(configured([filed, moved]))
    with httpx.Client(http1=False, http2=True, timeout=PATIENCE_S) as client:
        for answer in (
            asked(activator, "filed.test", {}),
            client.get(f"http://{activator.address}/", headers={"Host": "filed.test"}),
        ):
            assert (answer.status_code, answer.text) == (503, "<h1>Sorry</h1>")
            assert answer.headers["Activator-Reason"] == "revision_failed"
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    answer = asked(activator, "moved.test", {})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/x")
    connection = http.client.HTTPConnection(activator.address, timeout=PATIENCE_S)
    connection.request("POST", "/", b"x", {"Host": "moved.test"})
    assert b"no model file" in connection.getresponse().read()
    connection.close()
