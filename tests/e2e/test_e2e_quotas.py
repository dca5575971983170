"""The quotas of users over workers and replicas, as clients and pods count them, while members are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEEP
from tests.e2e.conftest import RunActivator
from tests.e2e.counting_pods import CountingPods
from tests.e2e.http_client import Answer, CutShortError, ask, request
from tests.e2e.load import Load, limited
from tests.e2e.running import SERVING, Activator, configured, eventually, process_revision
from tests.e2e.test_e2e_members import Replicas
from tests.e2e.test_e2e_workers import counter, pids

KEY = "alices-secret-key"
BOB = "bobs-secret-key"
ASKS = request(headers=f"X-Api-Key: {KEY}\r\n")
PATIENCE_S = 20.0 if not DEEP else 900.0
LIMIT = 160  # requests a day: none of them becomes free again during a test


def keys(**limits: Any) -> list[dict[str, Any]]:
    return [{"name": "alice", "key": KEY, "limits": limits}, {"name": "bob", "key": BOB}]


class Seen:
    """The answers of a load, by status, and the requests without one."""

    def __init__(self, addresses: list[str], clients: int, asks: bytes = ASKS) -> None:
        self.statuses: Counter[int] = Counter()
        self.cut = 0
        self.refusals: set[tuple[str, str]] = set()
        self._load = Load(addresses, clients, asks, self._seen)

    def run(self, meanwhile: Callable[[], Any]) -> None:
        asyncio.run(self._load.run(meanwhile))

    def reaches(self, status: int, count: int) -> None:
        what = f"{count} times {status}, not {self.statuses}"
        eventually(lambda: self.statuses[status] >= count, what, timeout_s=PATIENCE_S)

    def _seen(self, answer: Answer | CutShortError, took_s: float) -> None:
        if isinstance(answer, CutShortError):
            self.cut += 1
            return
        self.statuses[answer.status] += 1
        if answer.status != 200:
            self.refusals.add((answer.reason, answer.header("x-ratelimit-remaining-requests")))


def kill_workers(activator: Activator) -> Callable[[], None]:
    return lambda: os.kill(random.choice(pids(activator)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("members", "limit", "kills", "refused"),
    [
        ("4 workers", LIMIT, 3, 500),
        ("3 replicas", LIMIT, 3, 500),
        pytest.param("4 workers", 50_000, 12, 200_000, marks=pytest.mark.deep),
    ],
)
def test_a_limit_of_requests_holds_while_members_are_killed(
    run_activator: RunActivator, tmp_path: Path, members: str, limit: int, kills: int, refused: int
) -> None:
    clients, slack = 12, limit // 16
    count, _, kind = members.partition(" ")
    with CountingPods(2, 0.002) as pods:
        revisions = [limited(pods.addresses, 5)]
        if kind == "workers":
            activator = run_activator(configured(revisions, keys=keys(requests=f"{limit}/day"), workers=int(count)))
            activator.may_log_errors = True
            addresses = [activator.address]
            kill = kill_workers(activator)
        else:
            replicas = Replicas(run_activator, tmp_path, int(count), revisions, keys=keys(requests=f"{limit}/day"))
            replicas.start_all()
            addresses = replicas.addresses

            def kill() -> None:
                index = random.choice(list(replicas.running))
                replicas.kill(index)
                replicas.start(index)
                replicas.wait_together()

        seen = Seen(addresses, clients)

        def kill_some() -> None:
            for at in range(1, kills + 1):
                seen.reaches(200, at * (limit // 32 // kills + 1))
                kill()
            seen.reaches(429, refused)

        began_s = time.monotonic()
        seen.run(kill_some)
        most = limit + int((time.monotonic() - began_s) * limit / 86_400)  # so many become free again meanwhile
        assert seen.refusals <= {("quota_exceeded", "0"), ("quota_unknown", "")}, seen.refusals
        # Each takeover counts the slack, and what was asked in that moment may count as used.
        assert limit - kills * (slack + clients) <= pods.began_total <= most, (pods.began_total, seen.statuses)


@pytest.mark.parametrize("workers", [1, 4])
def test_without_disturbance_all_of_a_limit_is_used(run_activator: RunActivator, workers: int) -> None:
    with CountingPods(2, 0.002) as pods:
        made = configured([limited(pods.addresses, 5)], keys=keys(requests=f"{LIMIT}/day"), workers=workers)
        activator = run_activator(made)
        seen = Seen([activator.address], 12)
        seen.run(lambda: seen.reaches(429, 300))
        assert pods.began_total == seen.statuses[200] == LIMIT and set(seen.statuses) == {200, 429}
        rejected = seen.statuses[429]
        eventually(lambda: counter(activator, "activator_user_rejections_total") == rejected)
        answer = ask(activator.address, request(headers=f"X-Api-Key: {BOB}\r\n"))
        assert answer.status == 200 and not answer.header("x-ratelimit-limit-requests")


@pytest.mark.parametrize("workers", [1, 4])
def test_keys_of_one_name_share_its_limit(run_activator: RunActivator, workers: int) -> None:
    """A team, each member of which has a key."""
    team = [{"name": "team", "key": KEY, "more_keys": [BOB], "limits": {"requests": f"{LIMIT}/day"}}]
    with CountingPods(2, 0.002) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], keys=team, workers=workers))
        seen = Seen([activator.address], 6)
        other = Seen([activator.address], 6, request(headers=f"X-Api-Key: {BOB}\r\n"))

        def until_refused() -> None:
            seen.reaches(429, 100)
            other.reaches(429, 100)

        seen.run(lambda: other.run(until_refused))
        assert pods.began_total == seen.statuses[200] + other.statuses[200] == LIMIT
        assert set(seen.statuses) == set(other.statuses) == {200, 429} and other.statuses[200] > 0
        shown = activator.ask("/metrics")[2].decode()
        (count,) = re.findall(r'^activator_user_requests_total{user="team"} (\S+)$', shown, re.MULTILINE)
        assert float(count) == seen.statuses.total() + other.statuses.total()
        assert KEY not in activator.ask("/debug/config")[2].decode() and BOB not in shown


def test_requests_at_the_same_time_over_all_workers(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.02) as pods:
        made = configured([limited(pods.addresses, 10)], keys=keys(concurrency=3), workers=4)
        activator = run_activator(made)
        activator.may_log_errors = True
        seen = Seen([activator.address], 16)

        def kill_some() -> None:
            for at in range(1, 4):
                seen.reaches(200, at * 60)
                kill_workers(activator)()
            seen.reaches(200, 300)

        seen.run(kill_some)
        assert pods.most <= 3 and seen.refusals <= {("quota_exceeded", ""), ("quota_unknown", "")}


def test_a_reload_changes_limits(run_activator: RunActivator, tmp_path: Path) -> None:
    with CountingPods(1, 0.0) as pods:
        path = tmp_path / "a.json"

        def write(limits: dict[str, Any]) -> None:
            made = configured([limited(pods.addresses, 5)], keys=keys(**limits), workers=2)
            path.write_text(json.dumps(made))

        write({"requests": "5/day"})
        activator = run_activator(arguments=["-c", str(path)])
        statuses = [ask(activator.address, ASKS).status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        write({"requests": "8/day"})
        activator.signal(signal.SIGHUP)
        eventually(lambda: ask(activator.address, ASKS).status == 200)
        assert [ask(activator.address, ASKS).status for _ in range(4)] == [200, 200, 429, 429]


def test_a_request_beyond_a_limit_starts_nothing(run_activator: RunActivator) -> None:
    model = {**process_revision(SERVING), "name": "model", "hosts": ["model.test"]}
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5), model], keys=keys(requests="1/day")))
        assert ask(activator.address, ASKS).status == 200
        fields = f"X-Api-Key: {KEY}\r\n"
        answer = ask(activator.address, request("/v1/chat", "POST", host="model.test", headers=fields, body=b"{}"))
        error = json.loads(answer.body)["error"]
        assert (answer.status, answer.reason, error["code"]) == (429, "quota_exceeded", "rate_limit_exceeded")
        assert 80_000 < int(answer.header("retry-after")) <= 86_400
        assert activator.revision("model")["slots"] == []


@pytest.mark.parametrize(("workers", "end"), [(1, signal.SIGTERM), (3, signal.SIGTERM), (1, signal.SIGKILL)])
def test_what_is_used_outlasts_the_program(
    run_activator: RunActivator, tmp_path: Path, workers: int, end: signal.Signals
) -> None:
    state = str(tmp_path / "state.db")
    with CountingPods(1, 0.0) as pods:
        made = configured([limited(pods.addresses, 5)], keys=keys(requests="9/day"), workers=workers, state=state)
        activator = run_activator(made)
        assert [ask(activator.address, ASKS).status for _ in range(6)] == [200] * 6
        if end == signal.SIGKILL:
            eventually(lambda: read_use(state) > 5.9)
        activator.signal(end)
        activator.process.wait(20.0)
        again = run_activator(made)
        assert [ask(again.address, ASKS).status for _ in range(4)] == [200] * 3 + [429]
        assert 8.9 < counter(again, "activator_user_used") <= 9.0


def read_use(path: str) -> float:
    """Read what the program has written; its lock keeps others out, so this reads a copy."""
    with tempfile.TemporaryDirectory() as folder:
        for end in ("", "-wal"):
            shutil.copy(path + end, os.path.join(folder, "state.db" + end))
        found = sqlite3.connect(os.path.join(folder, "state.db")).execute("SELECT requests FROM quotas").fetchall()
    return float(found[0][0]) if found else 0.0
