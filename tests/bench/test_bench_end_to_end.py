"""The measurements themselves, short: they run, nothing fails, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.peers import FLOORS
from bench.processes import tree
from tests.sources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

SHORT = ["--rounds", "1", "--seconds", "1", "--connections", "8", "--upstream", "own", "--client", "own"]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


def values(path: Path) -> dict[str, float]:
    return {result["name"]: result["value"] for result in json.loads(path.read_text("utf-8"))["results"]}


def test_load_without_anybody_elses_programs(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    done = bench("load", "--peers", "direct,floor,activator", *SHORT, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = values(path)
    for peer in ("direct", *FLOORS, "activator-cc0", "activator-cc100"):
        assert found[f"load.{peer}.failures"] == 0
        assert found[f"load.{peer}.requests_per_s"] > 0
    assert 1 < found["load.activator-cc100.cpu_per_request"] < 10_000
    for floor in FLOORS:
        own = found["load.activator-cc100.cpu_per_request"] - found[f"load.{floor}.cpu_per_request"]
        assert found[f"load.activator-cc100.cpu_beyond_{floor}"] == pytest.approx(own, abs=1e-3)


def test_load_of_the_floor_with_a_connection_for_each_request(
    need_program: Callable[[str], str], tmp_path: Path
) -> None:
    need_program("wrk")
    path = tmp_path / "load.json"
    words = [*SHORT, "--client", "wrk", "--close", "--workers", "1,2", "--body", "1m"]
    done = bench("load", "--peers", "floor", *words, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = values(path)
    for floor in FLOORS:
        assert found[f"load.{floor}.requests_per_s"] > 0
        assert found[f"load.{floor}-x2.requests_per_s"] > 0


def test_load_with_several_workers(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    done = bench("load", "--peers", "activator-cc100", "--workers", "1,2", *SHORT, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = values(path)
    assert found["load.activator-cc100-x2.failures"] == 0
    assert 0.1 < found["load.activator-cc100-x2.cpu_ratio_to_one_worker"] < 10
    assert 0 < found["load.activator-cc100-x2.memory_per_further_worker"] < 200 << 20


def test_grants(tmp_path: Path) -> None:
    path = tmp_path / "grants.json"
    done = bench("grants", "--requests", "100", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < values(path)["grants.local.p50"] < values(path)["grants.remote.p50"]


@pytest.mark.parametrize("choice", ["lowest", "random"])
def test_membership(tmp_path: Path, choice: str) -> None:
    path = tmp_path / "membership.json"
    words = ["--replicas", "3,6", "--rounds", "2", "--choice", choice, "--json", str(path)]
    done = bench("membership", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "more than" in done.stdout and "5 rounds" in done.stdout  # the seed's figure stands beside
    found = values(path)
    for way in ("leases", "update", "apply-by-member", "apply-by-index", "json-patch"):
        for count in (3, 6):
            assert found[f"membership.{way}.{count}.converged"] > 0
            assert found[f"membership.{way}.{count}.rounds"] >= 1
            assert found[f"membership.{way}.{count}.calls"] >= 2 * count
            assert found[f"membership.{way}.{count}.server_cpu"] > 0


@pytest.mark.parametrize("body", ["10k", "1m"])
def test_large_bodies(body: str) -> None:
    done = bench("load", "--peers", "activator-cc100", *SHORT, "--body", body)
    assert done.returncode == 0, done.stdout + done.stderr


def test_idle(tmp_path: Path) -> None:
    path = tmp_path / "idle.json"
    done = bench("idle", "--revisions", "2", "--seconds", "1", "--requests", "2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert values(path)["idle.memory"] > 10e6
    assert values(path)["idle.first.p50"] > 0


def test_upgrades(tmp_path: Path) -> None:
    path = tmp_path / "upgrades.json"
    done = bench("upgrades", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = values(path)
    assert found["upgrades.activator.upgrade"] > 0
    assert found["upgrades.activator.gap"] > 0
    assert found["upgrades.activator.pause"] >= 10


def test_cold(tmp_path: Path) -> None:
    path = tmp_path / "cold.json"
    done = bench("cold", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert values(path)["cold.failures"] == 0
    assert values(path)["cold.total.p50"] > 0


def test_kube(tmp_path: Path) -> None:
    path = tmp_path / "kube.json"
    done = bench("kube", "--rounds", "3", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < values(path)["kube.list.structs"] < values(path)["kube.list.models"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(number: signal.Signals) -> None:
    words = ["load", "--peers", "activator-cc100", *SHORT, "--seconds", "30"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        until_s = time.monotonic() + 30
        while len(started := tree(process.pid)) < 4:  # itself, upstream, activator, client
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"interrupted" in errors
    until_s = time.monotonic() + 2  # the activator's reaper ends after it, by itself
    while any(map(lives, started)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert [pid for pid in started if lives(pid)] == []


def lives(pid: int) -> bool:
    """Whether the process runs; one that only waits to be collected by its parent does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
