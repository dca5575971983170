"""Waiting pages, quiet requests and fallbacks with real programs, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import http.client
import json
import signal
import socket
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
    """With a limit and several workers the start request waits at another worker."""
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


# --- answers that are kept ---

SLOW = [sys.executable, str(Path(__file__).parent / "programs" / "worker.py"), "{port}"]


def posted(activator: Activator, body: bytes = b"", **fields: str) -> httpx.Response:
    """On a connection of its own, which is closed after the 202."""
    headers = {"Host": "app.test", "Prefer": "respond-async", **fields}
    with httpx.Client(timeout=PATIENCE_S) as client:
        return client.post(f"http://{activator.address}/", headers=headers, content=body)


def read(activator: Activator, place: str, method: str = "GET") -> httpx.Response:
    with httpx.Client(timeout=PATIENCE_S) as client:
        return client.request(method, f"http://{activator.address}{place}", headers={"Host": "app.test"})


def test_a_client_that_does_not_wait_gets_its_answer_later(run_activator: RunActivator) -> None:
    """From zero, over both protocols, and from whichever worker is asked."""
    one = {
        "name": "app",
        "hosts": ["app.test"],
        "container_concurrency": 1,
        "process": {"command": SLOW, "idle": "300s"},
        "respond_async": {"keep": "60s", "answer_bytes": "1MiB"},
    }
    activator = run_activator(configured([one], workers=2))
    first = posted(activator, b"first")
    assert first.status_code == 202 and first.headers["Preference-Applied"] == "respond-async"
    with httpx.Client(http1=False, http2=True, timeout=PATIENCE_S) as client:
        headers = {"Host": "app.test", "Prefer": "respond-async", "X-Size": "400000"}
        second = client.post(f"http://{activator.address}/", headers=headers, content=b"second")
    large = posted(activator, b"third", **{"X-Size": "2000000"})
    places = [answer.headers["Location"] for answer in (first, second, large)]
    eventually(lambda: all(read(activator, place).status_code != 202 for place in places))
    for _ in range(4):  # several connections: as a rule both workers are asked
        got = read(activator, places[0])
        assert (got.status_code, got.text, got.headers["X-Worker"]) == (201, "first", "yes")
        got = read(activator, places[1])
        assert (got.status_code, len(got.content)) == (201, 400_000) and got.text.startswith("second")
        got = read(activator, places[2])
        assert (got.status_code, got.headers["Activator-Reason"]) == (502, "answer_too_large")
    waits = posted(activator, b"wait")
    assert json.loads(read(activator, waits.headers["Location"]).text)["state"] in {"running", "waiting"}
    assert read(activator, waits.headers["Location"], "DELETE").status_code == 204
    assert read(activator, waits.headers["Location"]).status_code == 410
    activator.wait_idle()
    assert 'activator_answers_later_total{outcome="accepted"} 4.0' in activator.ask("/metrics")[2].decode()


def test_a_stop_lets_requests_without_a_client_finish(run_activator: RunActivator, tmp_path: Path) -> None:
    one = {
        "name": "app",
        "hosts": ["app.test"],
        "process": {"command": SLOW, "idle": "300s"},
        "respond_async": {},
    }
    activator = run_activator(configured([one]))
    done = tmp_path / "done"
    assert posted(activator, str(done).encode(), **{"X-Touch": "yes"}).status_code == 202
    activator.wait_ready_pods("app")
    activator.signal(signal.SIGTERM)
    assert activator.process.wait(PATIENCE_S) == 0
    assert done.exists()
    activator.wait_log("discarded 1 stored responses that no client had fetched")


def test_progress_before_the_stream_begins(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    one = {
        "name": "app",
        "hosts": ["app.test"],
        "process": {"command": gated(SLOW, gate), "idle": "300s"},
        "progress": {"after": "0s", "interval": "500ms"},
    }
    activator = run_activator(configured([one]))
    headers = {"Host": "app.test", "Accept": "text/event-stream"}
    url = f"http://{activator.address}/"
    with httpx.Client(timeout=PATIENCE_S) as client, httpx.Client(http1=False, http2=True, timeout=PATIENCE_S) as other:
        first = client.stream("POST", url, headers={**headers, "X-Events": "yes"}, content=b"hello")
        second = other.stream("POST", url, headers=headers, content=b"hello")
        with first as events, second as plain:
            for answer in (events, plain):
                assert answer.status_code == 200 and answer.headers["Content-Type"] == "text/event-stream"
            parts, others = events.iter_text(), plain.iter_text()
            assert next(parts).startswith(": starting position=1 waiting=1 ")
            assert next(others).startswith(": starting position=2 waiting=2 ")
            gate.touch()
            assert "".join(parts).endswith("data: hello\n\n")
            event = "".join(others).split("\n\n")[-2]
        assert event.startswith("event: error\ndata: ")
        assert json.loads(event.partition("data: ")[2])["error"]["code"] == 201
        for each in (client, other):
            with each.stream("POST", url, headers=headers, content=b"wait") as answer:
                assert next(answer.iter_text()).startswith(": running ")  # and leaves
    activator.wait_idle()


def test_another_revision_serves_while_the_first_starts(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    large = {
        "name": "large",
        "hosts": ["large.test"],
        "process": {"command": gated(SLOW, gate), "idle": "300s"},
        "fallback": {"revision": "small", "while_starting": True},
    }
    small = {"name": "small", "hosts": ["small.test"], "process": {"command": SLOW, "idle": "300s"}}
    activator = run_activator(configured([large, small]))

    def post() -> httpx.Response:
        with httpx.Client(timeout=PATIENCE_S) as client:
            return client.post(f"http://{activator.address}/", headers={"Host": "large.test"}, content=b"x" * 100_000)

    answer = post()
    assert (answer.status_code, len(answer.content)) == (201, 100_000)
    assert answer.headers["Activator-Fallback"] == "default/small"
    assert activator.revision("large")["processes"]["processes"] == 1, "it starts all the same"
    gate.touch()
    eventually(lambda: "Activator-Fallback" not in post().headers)
    activator.wait_idle()
    assert 'activator_fallbacks_total{namespace="default",revision="large",to="default/small"}' in (
        activator.ask("/metrics")[2].decode()
    )


# --- what counts as activity ---


def test_an_open_websocket_does_not_keep_a_program_and_its_own_work_does(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    """The socket is quiet and the program says that it is busy; then it says that it is not."""
    busy = tmp_path / "busy"
    busy.touch()
    one = {
        "name": "app",
        "hosts": ["*"],
        "process": {"command": [*SLOW, str(busy)], "idle": "1s"},
        "scaling": {"stable_window": "6s"},
        "activity": {
            "websocket": "traffic",
            "quiet_after": "1s",
            "busy": {"http_get": "/busy", "interval": "1s"},
        },
    }
    activator = run_activator(configured([one]))
    with socket.create_connection((activator.host, activator.port), PATIENCE_S) as sock:
        sock.sendall(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: "work without a request" in json.dumps(activator.revision("app")))
        assert processes(activator) == 1
        busy.unlink()
        eventually(lambda: processes(activator) == 0)
        assert sock.recv(4096) == b"", "it was ended when its program went"
    activator.wait_idle()
