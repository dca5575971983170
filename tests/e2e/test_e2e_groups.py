"""Groups with real programs: model servers that hold a GPU, which is a file with a lock.

Whatever the activator thinks, a program that finds the GPU taken says so, and the kernel gives the lock back when its
holder has ended, however that was.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, CutShortError, ask, request
from tests.e2e.running import PATIENCE_S, PROGRAMS, Activator, cli, configured, eventually, state_of

MODELS = ("llama", "qwen", "phi")
LOAD_S = 0.2
SLEEP = {"http_post": "/sleep", "wake": "/wake_up"}


class Gpu:
    """One lock, and what programs have written about it."""

    def __init__(self, folder: Path, name: str = "gpu0") -> None:
        self.path = folder / name

    def lines(self, what: str) -> list[str]:
        file = Path(f"{self.path}.{what}")
        return file.read_text().splitlines() if file.exists() else []

    def revision(self, name: str, load_s: float = LOAD_S, **more: Any) -> dict[str, Any]:
        program = str(PROGRAMS / "model_server.py")
        command = [sys.executable, "-I", "-S", program, "{port}", name, str(self.path), str(load_s)]
        return {
            "name": name,
            "hosts": ["*"],
            "match": {"json": {"model": [name]}},
            "container_concurrency": 4,
            "needs": {"gpu_memory": "10GiB"},
            "process": {"command": command, "max_scale": 1, **more},
        }


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(tmp_path)


def group(**more: Any) -> dict[str, Any]:
    return {"name": "gpu0", "budget": {"gpu_memory": "16GiB"}, "members": list(MODELS), **more}


def three(gpu: Gpu, group_more: dict[str, Any] | None = None, **process: Any) -> dict[str, Any]:
    return configured([gpu.revision(name, **process) for name in MODELS], groups=[group(**group_more or {})])


def lone(gpu: Gpu, **process: Any) -> dict[str, Any]:
    """llama without a budget: it needs nothing."""
    revision = gpu.revision("llama", **process)
    del revision["needs"]
    return revision


def completion(activator: Activator, model: str, seconds: float = 0.0) -> Answer:
    body = json.dumps({"model": model, "seconds": seconds}).encode()
    return ask(activator.address, request("/v1/chat/completions", "POST", body=body))


def name_of(answer: Answer) -> str:
    assert answer.status == 200, answer
    name: str = json.loads(answer.body)["model"]
    return name


def wait_requests(activator: Activator, count: int) -> None:
    """Until so many more have come."""

    def so_far() -> int:
        return sum(one["requests"] for one in activator.revisions().values())

    before = so_far()
    eventually(lambda: so_far() >= before + count, f"{count} more requests")


def in_the_background(ask_one: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask_one()))
    thread.start()
    return thread, answers


def test_random_traffic_and_killed_programs_never_share_the_gpu(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(three(gpu, {"overtaken_at_most": "1s"}))
    failed: list[Answer] = []
    cut_short: list[str] = []
    killed: set[int] = set()
    lock = threading.Lock()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(8):
            model = rng.choice(MODELS)
            try:
                answer = completion(activator, model, rng.random() * 0.05)
            except CutShortError:  # the program was killed between the head of its response and the body
                cut_short.append(model)
                continue
            if answer.status == 200:
                assert name_of(answer) == model
                with lock:
                    may_kill = len(killed) < 3 and rng.random() < 0.1
                    if may_kill:
                        killed.add(json.loads(answer.body)["pid"])
                if may_kill:
                    try:
                        os.kill(json.loads(answer.body)["pid"], signal.SIGKILL)
                    except ProcessLookupError:
                        pass  # it has been swapped out meanwhile
            else:
                failed.append(answer)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert gpu.lines("violations") == []
    # Only what was sent to a killed program may have failed: as many as it may have at once, and as many again that
    # were sent while the kernel closed its connections one after the other (a POST is not sent twice).
    assert len(failed) + len(cut_short) <= 2 * 4 * len(killed)
    assert {answer.reason for answer in failed} <= {"pod_closed", "connect_failed", "pod_refused"}, failed
    assert len(gpu.lines("loads")) < 40  # requests of one model are served together


def test_programs_sleep_and_wake_in_the_place_of_stop_and_start(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(three(gpu, sleep=SLEEP))
    pids: dict[str, set[int]] = {name: set() for name in MODELS}
    for _ in range(3):
        for name in MODELS:
            answer = completion(activator, name)
            assert name_of(answer) == name
            pids[name].add(json.loads(answer.body)["pid"])
    assert {len(one) for one in pids.values()} == {1}, "each was started once"
    assert gpu.lines("violations") == []
    shown = activator.revision("llama")
    assert shown["processes"]["sleeping"] == 1
    assert shown["slots"] == []


def test_a_program_that_does_not_wake_is_started_anew_and_that_is_told(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(three(gpu, sleep=SLEEP))
    first = json.loads(completion(activator, "llama").body)["pid"]
    assert name_of(completion(activator, "qwen")) == "qwen"
    Path(f"{gpu.path}.llama.sick").touch()
    second = completion(activator, "llama")
    assert name_of(second) == "llama"
    assert json.loads(second.body)["pid"] != first
    activator.wait_log("default/llama#1: the program does not wake: POST /wake_up was answered with 500")
    assert gpu.lines("violations") == []


def test_a_program_that_is_stopped_by_a_signal_ends_all_the_same(run_activator: RunActivator, gpu: Gpu) -> None:
    """It stands still, goes on for the next request, and its end does not take the grace of its stop."""
    revision = gpu.revision("llama", sleep={"signal": "SIGSTOP"}, idle="200ms", stop={"grace": "100s"})
    del revision["needs"]
    activator = run_activator(configured([revision]))
    pid = json.loads(completion(activator, "llama").body)["pid"]
    eventually(lambda: state_of(pid) == "T", "it stands still")
    assert json.loads(completion(activator, "llama").body)["pid"] == pid
    eventually(lambda: state_of(pid) == "T", "it stands still again")
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    activator.wait_nothing_left()


def test_what_is_loaded_gives_way_only_when_its_requests_have_ended(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(three(gpu, {"discipline": "fifo"}))
    assert name_of(completion(activator, "llama")) == "llama"
    running, answers = in_the_background(lambda: completion(activator, "llama", 1.0))
    eventually(lambda: activator.revision("llama")["in_flight"] == 1, "it runs")
    other, others = in_the_background(lambda: completion(activator, "qwen"))
    wait = eventually(lambda: activator.revision("qwen")["group"].get("waits"), "it waits for its turn")
    assert "default/llama" in wait["of"]
    why = cli("status", "--why", "qwen", "--admin", activator.admin).stdout
    assert "group gpu0: may run " in why
    running.join()
    other.join()
    assert [name_of(one) for one in (*answers, *others)] == ["llama", "qwen"]
    assert gpu.lines("violations") == []


def test_a_grace_of_zero_bounds_what_a_program_does_before_it_sleeps(run_activator: RunActivator, gpu: Gpu) -> None:
    """An idle program is put to sleep; a busy one has no time, and is stopped."""
    activator = run_activator(three(gpu, {"discipline": "fifo", "grace": "0s"}, sleep=SLEEP))
    pid = json.loads(completion(activator, "llama").body)["pid"]
    assert name_of(completion(activator, "qwen")) == "qwen"
    assert activator.revision("llama")["processes"]["sleeping"] == 1
    running, answers = in_the_background(lambda: completion(activator, "llama", 100.0))
    eventually(lambda: activator.revision("llama")["in_flight"] == 1, "it runs")
    assert name_of(completion(activator, "qwen")) == "qwen"
    running.join(PATIENCE_S)
    assert [one.status for one in answers] == [502], "it was cut"
    assert json.loads(completion(activator, "llama").body)["pid"] != pid
    assert gpu.lines("violations") == []


def test_an_operator_loads_unloads_and_is_shown(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(three(gpu))
    assert cli("load", "qwen", "--for", "10m", "--admin", activator.admin).returncode == 0
    activator.wait_ready_pods("qwen")
    text = cli("status", "--admin", activator.admin).stdout
    assert "group gpu0  gpu_memory 10GiB of 16GiB  affinity" in text
    assert "default/qwen: 1 running" in text
    metrics = activator.ask("/metrics")[2].decode()
    used = re.search(r'activator_revision_group_used\{group="gpu0",resource="gpu_memory"\} (\S+)', metrics)
    assert used is not None
    assert float(used[1]) == 10 * 2**30
    assert cli("unload", "qwen", "--admin", activator.admin).returncode == 0
    eventually(lambda: activator.revision("qwen")["processes"]["processes"] == 0, "it has gone")
    assert activator.revision("qwen")["processes"]["wanted"] == 0
    assert activator.ask("/load/qwen", "POST")[0] == 403  # without the header
    assert activator.command("/wake/nobody")[0] == 409
    assert activator.command("/wake/qwen?for=never")[0] == 400
    assert activator.command("/wake/qwen")[0] == 200
    activator.wait_ready_pods("qwen")
    assert gpu.lines("violations") == []


ALONE = {"name": "gpu0", "exclusive": True, "members": ["llama"]}


@pytest.mark.parametrize("groups", [[], [ALONE]], ids=["alone", "exclusive"])
def test_a_request_wakes_the_program_that_falls_asleep(
    run_activator: RunActivator, gpu: Gpu, groups: list[dict[str, Any]]
) -> None:
    """With `max_scale: 1` there is one copy, whatever it does at the moment."""
    activator = run_activator(configured([lone(gpu, idle="100ms", sleep=SLEEP)], groups=groups))
    Path(f"{gpu.path}.llama.slow").write_text("1")
    pids = set()
    for _ in range(2):
        answer = completion(activator, "llama")
        assert name_of(answer) == "llama"
        pids.add(json.loads(answer.body)["pid"])
        eventually(lambda: activator.revision("llama")["processes"]["wanted"] == 0, "it falls asleep")
    assert name_of(completion(activator, "llama")) == "llama"
    assert len(pids) == 1
    assert activator.revision("llama")["processes"]["processes"] == 1
    assert gpu.lines("violations") == []


def test_an_exclusive_program_waits_for_the_copy_that_stops(run_activator: RunActivator, gpu: Gpu) -> None:
    activator = run_activator(configured([lone(gpu, idle="100ms")], groups=[ALONE]))
    Path(f"{gpu.path}.llama.slow").write_text("1")
    for _ in range(2):
        assert name_of(completion(activator, "llama")) == "llama"
        eventually(lambda: activator.revision("llama")["processes"]["wanted"] == 0, "it stops")
    assert gpu.lines("violations") == []
    assert gpu.lines("loads") == ["llama", "llama"]


@pytest.mark.parametrize("groups", [[], [ALONE]], ids=["alone", "exclusive"])
def test_an_unload_stops_what_could_sleep(run_activator: RunActivator, gpu: Gpu, groups: list[dict[str, Any]]) -> None:
    """Whether it is ready, falls asleep, or sleeps; and a load after it starts one copy."""
    activator = run_activator(configured([lone(gpu, idle="10m", sleep=SLEEP)], groups=groups))

    def processes() -> dict[str, Any]:
        figures: dict[str, Any] = activator.revision("llama")["processes"]
        return figures

    assert name_of(completion(activator, "llama")) == "llama"
    assert activator.command("/unload/llama")[0] == 200
    eventually(lambda: processes()["processes"] == 0, "it has gone")
    assert not activator.logged("sleeps")
    assert activator.command("/load/llama?for=10m")[0] == 200
    activator.wait_ready_pods("llama")
    assert activator.command("/unload/llama")[0] == 200
    assert activator.command("/load/llama?for=10m")[0] == 200  # at once
    eventually(lambda: processes()["processes"] == 1 and processes()["starting"] == 0, "one copy")
    assert name_of(completion(activator, "llama")) == "llama"
    assert activator.revision("llama")["failed"] == {}


def test_a_budget_that_comes_free_loads_nothing_without_a_request(run_activator: RunActivator, gpu: Gpu) -> None:
    """llama was evicted, and its idle time is not over."""
    activator = run_activator(three(gpu, idle="10m"))
    assert name_of(completion(activator, "llama")) == "llama"
    assert name_of(completion(activator, "qwen")) == "qwen"
    assert activator.command("/unload/qwen")[0] == 200
    eventually(lambda: activator.revision("qwen")["processes"]["processes"] == 0, "it has gone")
    assert name_of(completion(activator, "phi")) == "phi"
    assert gpu.lines("loads") == ["llama", "qwen", "phi"]
    assert name_of(completion(activator, "llama")) == "llama"
    assert gpu.lines("violations") == []


def test_a_member_that_was_evicted_leaves_its_group_and_loads_nothing_without_a_request(
    run_activator: RunActivator, gpu: Gpu, tmp_path: Path
) -> None:
    path = tmp_path / "changing.json"
    models = [Gpu(tmp_path, f"gpu_{name}").revision(name, idle="10m") for name in MODELS]
    path.write_text(json.dumps(configured(models, groups=[group()])))
    activator = run_activator(arguments=["-c", str(path)])
    for name in ("llama", "qwen"):
        assert name_of(completion(activator, name)) == name

    free = [{key: value for key, value in one.items() if key != "needs"} for one in models]
    path.write_text(json.dumps(configured(free)))
    assert activator.command("/reload")[0] == 200
    assert name_of(completion(activator, "phi")) == "phi"  # it takes as long to load as llama would have
    assert activator.revision("llama")["processes"]["processes"] == 0
    assert activator.revision("qwen")["processes"]["processes"] == 1
    assert name_of(completion(activator, "llama")) == "llama"
    assert activator.revision("qwen")["processes"]["processes"] == 1


def test_a_start_that_fails_keeps_no_other_waiting(run_activator: RunActivator, gpu: Gpu) -> None:
    configuration = three(gpu)
    configuration["revisions"][0]["process"]["command"] = ["sh", "-c", "echo no such model >&2; exit 3"]
    activator = run_activator(configuration)
    broken, answers = in_the_background(lambda: completion(activator, "llama"))
    for _ in range(3):
        assert name_of(completion(activator, "qwen")) == "qwen"
        assert name_of(completion(activator, "phi")) == "phi"
    broken.join()
    assert (answers[0].status, answers[0].reason) == (503, "revision_failed")
    assert "no such model" in answers[0].body.decode()


def test_a_program_that_does_not_stop_keeps_its_budget_until_it_has_gone(run_activator: RunActivator, gpu: Gpu) -> None:
    """It ignores the signal, and has a child in a session of its own that would outlive it."""
    configuration = three(gpu)
    llama = configuration["revisions"][0]["process"]
    stubborn = 'trap "" TERM; setsid "$@" & wait'
    llama["command"] = ["sh", "-c", stubborn, "sh", *llama["command"]]
    llama["stop"] = {"grace": "300ms"}
    activator = run_activator(configuration)
    assert name_of(completion(activator, "llama")) == "llama"
    assert name_of(completion(activator, "qwen")) == "qwen"
    assert name_of(completion(activator, "llama")) == "llama"
    assert gpu.lines("violations") == []


def test_the_file_changes_in_the_middle(run_activator: RunActivator, gpu: Gpu, tmp_path: Path) -> None:
    """Budgets are lowered, members move, groups go and come; each request is answered by its model."""
    path = tmp_path / "changing.json"
    wide = {"budget": {"gpu_memory": "32GiB"}}
    others = [Gpu(tmp_path, f"gpu_{name}") for name in MODELS]  # each has one of its own where they may coexist
    revisions = [one.revision(name) for one, name in zip(others, MODELS)]
    free = [{key: value for key, value in one.items() if key != "needs"} for one in revisions]
    second = {"name": "gpu1", "budget": {"gpu_memory": "10GiB"}, "members": ["phi"]}
    contents = [
        configured(revisions, groups=[group(**wide)]),
        configured(revisions, groups=[group()]),
        configured(revisions, groups=[group(members=["llama", "qwen"]), second]),
        configured(free),
        configured(free, groups=[{"name": "gpu0", "exclusive": True, "members": list(MODELS)}]),
    ]
    path.write_text(json.dumps(contents[0]))
    activator = run_activator(arguments=["-c", str(path)])
    stop = threading.Event()
    failed: list[Answer] = []

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            model = rng.choice(MODELS)
            answer = completion(activator, model, rng.random() * 0.05)
            if answer.status != 200 or name_of(answer) != model:
                failed.append(answer)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for one in clients:
        one.start()
    try:
        for content in (*contents[1:], contents[0], contents[4]):
            wait_requests(activator, 10)
            path.write_text(json.dumps(content))
            assert activator.command("/reload")[0] == 200
    finally:
        stop.set()
        for one in clients:
            one.join()
    assert failed == []
    eventually(lambda: sum(one["processes"]["processes"] for one in activator.revisions().values()) <= 1, "one is left")
    assert [line for one in others for line in one.lines("violations")] == []


def test_no_two_programs_have_one_gpu(run_activator: RunActivator, tmp_path: Path) -> None:
    """Three revisions and two GPUs: a group comes by itself, and each program locks the GPU that it was given."""
    program = str(PROGRAMS / "model_server.py")
    on_its_gpu = f'exec "$0" -I -S "{program}" "$1" "$2" "{tmp_path}/gpu$CUDA_VISIBLE_DEVICES" 0.1'
    revisions = []
    for name in MODELS:
        revision = Gpu(tmp_path).revision(name, gpus=1)
        revision["process"]["command"] = ["sh", "-c", on_its_gpu, sys.executable, "{port}", name]
        del revision["needs"]
        revisions.append(revision)
    activator = run_activator(configured(revisions, gpus=[0, 1]))
    for name in (*MODELS, *MODELS):
        assert name_of(completion(activator, name)) == name
    found = [Gpu(tmp_path, f"gpu{number}") for number in (0, 1)]
    assert all(one.lines("loads") for one in found)
    assert [line for one in found for line in one.lines("violations")] == []
    (shown,) = json.loads(activator.ask("/debug/revisions")[2])["groups"]
    assert (shown["name"], shown["budget"], shown["used"]) == ("gpus", {"gpus": 2}, {"gpus": 2})
