"""The judges of the endurance test can fail: each kind of violation, made by hand, is found."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.e2e.handover_machine import Machine
from tests.e2e.running import Activator, eventually, resident_bytes, state_of
from tests.e2e.test_e2e_members import Replicas
from tests.soak.disturbances import Disturber
from tests.soak.executions import ONCE, TRIES_MAX, Executions
from tests.soak.figures import BOUNDS, COUNT_SIGNAL, NOTHING, OF_REVISIONS, Probe, Sample, compare, gauges, sample
from tests.soak.ledger import ANY, CUT, OK, Explanation, Ledger, Outcome
from tests.soak.world import World

BAD_GATEWAY = "502 pod_closed"


def nobody(name: str) -> frozenset[int]:
    return frozenset()


def outcome(result: str, *, revision: str = "app", port: int = 1, name: str = "short-1", ago_s: float = 0.0) -> Outcome:
    """A request that has just ended."""
    now_s = time.monotonic()
    return Outcome("kept", "activator", revision, name, now_s - ago_s, now_s, result, port)


# --- outcomes ---


def test_a_failure_without_a_disturbance_is_a_violation() -> None:
    ledger = Ledger(nobody)
    ledger.record(outcome(OK))
    assert ledger.violations == []
    ledger.record(outcome(BAD_GATEWAY))
    assert ledger.violation_count == ledger.failed == 1
    assert BAD_GATEWAY in ledger.violations[0]


def test_a_disturbance_explains_what_it_says_and_nothing_else() -> None:
    ledger = Ledger(nobody)
    disturbance = ledger.disturb("kill", Explanation("activator", "app", frozenset({CUT}), ports=frozenset({7})))
    ledger.record(outcome(CUT, port=7))
    assert (ledger.violation_count, ledger.explained["kill"]) == (0, 1)
    assert len(ledger.disturbances()) == 1 and "kill from" in ledger.disturbances()[0]
    for other in (outcome(CUT), outcome(BAD_GATEWAY, port=7), outcome(CUT, port=7, revision="cold")):
        before = ledger.violation_count
        ledger.record(other)
        assert ledger.violation_count == before + 1, other
    disturbance.end(0.0)
    time.sleep(0.01)
    ledger.record(outcome(CUT, port=7, ago_s=0.005))
    assert ledger.violation_count == 4, "it began after the end"
    ledger.record(outcome(CUT, port=7, ago_s=1.0))
    assert ledger.violation_count == 4, "it ran while the disturbance went on"


def test_a_killed_process_explains_failures_of_its_own_requests() -> None:
    had = {"short-1": frozenset({100}), "short-2": frozenset({200})}
    ledger = Ledger(lambda name: had.get(name, frozenset()))
    ledger.disturb("kill", Explanation("activator", ANY, frozenset({BAD_GATEWAY}), pids=frozenset({100})))
    ledger.record(outcome(BAD_GATEWAY, name="short-1"))
    ledger.record(outcome(BAD_GATEWAY, name="short-3"))
    assert ledger.violation_count == 0, "its own, and one that has come to no process"
    ledger.record(outcome(BAD_GATEWAY, name="short-2"))
    assert ledger.violation_count == 1


def test_what_had_begun_before_is_not_explained_by_a_lack_of_descriptors() -> None:
    ledger = Ledger(nobody)
    ledger.disturb("EMFILE", Explanation(ANY, ANY, frozenset({CUT}), only_new=True))
    ledger.record(outcome(CUT))
    assert ledger.violation_count == 0
    ledger.record(outcome(CUT, ago_s=1.0))
    assert ledger.violation_count == 1


def test_a_lack_of_descriptors_explains_only_what_was_not_accepted() -> None:
    had = {"short-2": frozenset({200})}
    ledger = Ledger(lambda name: had.get(name, frozenset()))
    ledger.disturb("EMFILE", Explanation("activator", ANY, frozenset({CUT}), only_new=True, not_accepted=True))
    ledger.record(outcome(CUT, name="short-1"))
    assert ledger.violation_count == 0
    ledger.record(outcome(CUT, name="short-1")._replace(heard=True))
    assert ledger.violation_count == 1, "something had come over its connection"
    ledger.record(outcome(CUT, name="short-2"))
    assert ledger.violation_count == 2, "a process had it"


def test_clients_without_a_success_are_found() -> None:
    ledger = Ledger(nobody)
    ledger.expect("kept", "activator", "app")
    ledger.expect("kept", "activator", "cold")
    ledger.expect("leaves", "replica 1", "steady")
    ledger.record(outcome(OK))
    ledger.count("leaves", "replica 1", "steady", "not connected")
    ledger.judge_successes()
    assert len(ledger.violations) == 2 and "to cold" in ledger.violations[0] and "replica 1" in ledger.violations[1]


def test_failures_and_executions_are_judged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure asks for its executors while the executions are being judged; neither waits for the other."""
    world = World(tmp_path, 1)
    record = world.record("app", 1)
    record.write_text("begin short-1 5 2\n")
    violate, entered, goes_on = world.ledger.violate, threading.Event(), threading.Event()

    def waits(words: str) -> None:
        entered.set()
        goes_on.wait(10.0)
        violate(words)

    monkeypatch.setattr(world.ledger, "violate", waits)
    world.ledger.disturb("kill", Explanation("activator", ANY, frozenset({CUT}), pids=frozenset({5})))
    judging = threading.Thread(target=world.judge_executions, daemon=True)
    judging.start()
    assert entered.wait(10.0)
    recording = threading.Thread(target=world.ledger.record, args=(outcome(CUT),), daemon=True)
    recording.start()
    recording.join(5.0)
    assert not recording.is_alive(), "it waits for a lock that the judge of executions holds"
    goes_on.set()
    judging.join(5.0)
    assert not judging.is_alive()
    assert world.ledger.explained["kill"] == world.ledger.violation_count == 1


# --- logs ---


def logging(*lines: str) -> SimpleNamespace:
    return SimpleNamespace(log=list(lines))


def test_each_traceback_is_found_with_its_own_lines(tmp_path: Path) -> None:
    """In the log of a replica that was killed, too."""
    first = ["ERROR one", "Traceback (most recent call last):", "  File", "ValueError: one"]
    second = ["ERROR two", "Traceback (most recent call last):", "  File", "KeyError: two"]
    world = World(tmp_path, 1)
    running = {1: logging("ERROR three", "Traceback (most recent call last):", "TypeError: three")}
    world.machine = cast("Machine", SimpleNamespace(activator=logging(*first, *["ok"] * 20, *second)))
    world.replicas = cast("Replicas", SimpleNamespace(running=running, kill=running.pop))
    world.kill_replica(1)
    running[1] = logging("ok")
    world.judge_logs()
    assert world.ledger.violation_count == 3
    for words, number, other in zip(
        world.ledger.violations, ("one", "two", "three"), ("two", "one", "one"), strict=True
    ):
        assert f": {number}" in words and f"ERROR {number}" in words and other not in words


# --- disturbances ---


def test_a_worker_that_could_not_be_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pid: int) -> frozenset[int]:
        eventually(lambda: state_of(pid) == "T")
        raise OSError("no table of connections")

    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        world = SimpleNamespace(left_out=[], client_ports=fails)
        disturber = Disturber(cast("World", world), 1, 1.0)
        monkeypatch.setattr(disturber, "_worker", lambda chance: process.pid)
        with pytest.raises(OSError, match="no table"):
            disturber._kill_worker(random.Random(1))
        eventually(lambda: state_of(process.pid) != "T")
        process.kill()


# --- executions ---


def test_a_repeated_execution_is_found(tmp_path: Path) -> None:
    once = f"{ONCE}short-1"
    record = tmp_path / "record-app"
    judge = Executions(record)
    judge.poll()
    record.write_text(f"boot 5\nbegin {once} 5 1\nend {once} 5\nbegin short-2 5 1\nbegin sho")
    judge.poll()
    with record.open("a") as file:
        file.write(f"rt-3 6 1\nbegin short-2 6 1\nbegin {once} 6 2\n")
    judge.poll()
    assert len(judge.violations) == 1 and once in judge.violations[0]
    assert (judge.total, judge.repeated) == (5, 1)
    assert judge.executors("short-3") == {6} and judge.executors(once) == {5, 6}


def test_an_idempotent_request_may_be_repeated_twice() -> None:
    judge = Executions(Path("record-app"))
    judge.take([f"begin short-1 {pid} 1" for pid in range(TRIES_MAX)])
    assert judge.violations == []
    judge.take(["begin short-1 9 1"])
    assert len(judge.violations) == 1


def test_a_limit_that_is_exceeded_is_found() -> None:
    judge = Executions(Path("record-app"), limit=2)
    judge.take(["begin a 5 1", "begin b 5 2"])
    assert (judge.most, judge.violations) == (2, [])
    judge.take(["begin c 5 3"])
    assert len(judge.violations) == 1


# --- figures ---


def sampled(**changed: float) -> Sample:
    figures = dict.fromkeys(BOUNDS, 100.0)
    return Sample(figures | changed, {"activator_exchanges": 0.0}, {"dict": 10})


def test_nothing_has_grown() -> None:
    assert compare("activator", sampled(), sampled(**{"resident MiB": 120.0, "descriptors": 90.0})) == []


@pytest.mark.parametrize("name", list(BOUNDS))
def test_growth_is_found(name: str) -> None:
    after = sampled(**{name: 101.0 + BOUNDS[name][0]})
    (found, kinds) = compare("activator", sampled(), after._replace(kinds={"dict": 15}))
    assert name in found and "'dict': 5" in kinds


def test_what_is_under_way_without_load_is_found() -> None:
    text = 'activator_exchanges 2.0\nactivator_in_flight{revision="a"} 1.0\nactivator_in_flight{revision="b"} 2.0\n'
    nothing = gauges(text + "activator_workers 5.0\n")
    assert nothing == {"activator_exchanges": 2.0, "activator_in_flight": 3.0}
    assert len(compare("activator", sampled(), sampled()._replace(nothing=nothing))) == 2


def test_processes_that_were_not_counted_are_found() -> None:
    assert len(compare("activator", sampled()._replace(counted=2), sampled())) == 1


def test_a_sample_without_one_of_its_figures_is_an_error(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    command = "import time; print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, env={**os.environ, **probe.variables}
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        text = "\n".join(f"{name} 0" for name in (*NOTHING, *OF_REVISIONS))
        assert sample(showing(text), [process.pid], probe).counted == 1
        with pytest.raises(AssertionError, match="none of the processes"):
            sample(showing(text), [], probe)
        with pytest.raises(AssertionError, match="/metrics has no activator_exchanges"):
            sample(showing(text.replace("activator_exchanges 0", "")), [process.pid], probe)
        process.kill()


def showing(text: str) -> Activator:
    """An activator whose admin port answers with this text."""
    return cast("Activator", SimpleNamespace(ask=lambda path: (200, {}, text.encode())))


LEAKING = """
import asyncio, signal, sys
kept = []
async def main():
    held, files = [], []
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        held += [bytearray(1_000_000) for _ in range(40)]
        files += [open("/dev/null") for _ in range(20)]
        kept.extend([] for _ in range(20_000))
        files += [asyncio.get_running_loop().create_task(asyncio.sleep(1e6)) for _ in range(10)]
        print("done", flush=True)
asyncio.run(main())
"""


def test_a_process_that_leaks_is_found(tmp_path: Path) -> None:
    """Memory, descriptors, tasks and objects, of a real process."""
    probe = Probe(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", LEAKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **probe.variables},
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = figures_of(process.pid, probe)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        after = figures_of(process.pid, probe)
        process.kill()
    found = " ".join(compare("it", Sample(before, {}, {}), Sample(after, {}, {})))
    for name in ("resident MiB", "descriptors", "tasks", "objects"):
        assert f"it: {name} grew" in found, found


def figures_of(pid: int, probe: Probe) -> dict[str, float]:
    counts = probe.count(pid)
    assert counts is not None
    return dict.fromkeys(BOUNDS, 0.0) | {
        "resident MiB": resident_bytes(pid) / (1 << 20),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "tasks": counts.tasks,
        "objects": counts.objects,
    }


def test_a_process_without_a_counter_is_left_alone(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    assert signal.getsignal(COUNT_SIGNAL) == signal.SIG_DFL and gc.isenabled()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        eventually(lambda: b"input" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert probe.count(process.pid) is None
        assert process.poll() is None
        process.kill()
