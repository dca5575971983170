"""Several worker processes that serve as one: limits, figures, and what becomes of workers that end."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from activator.runtime.process_stat import stat_fields
from tests.e2e.conftest import RunActivator
from tests.e2e.counting_pods import CountingPods
from tests.e2e.http_client import Client, CutShortError, ask, request
from tests.e2e.load import Tally, limited
from tests.e2e.running import PATIENCE_S, SERVING, Activator, configured, eventually, is_dead, process_revision
from tests.simulation.checker import check, read


def workers(activator: Activator) -> list[dict[str, Any]]:
    _, _, body = activator.ask("/debug/revisions")
    found: list[dict[str, Any]] = json.loads(body)["workers"]
    return found


def pids(activator: Activator, timeout_s: float = PATIENCE_S) -> list[int]:
    """Of all workers, once all serve."""

    def all_serve() -> list[int]:
        shown = workers(activator)
        return [one["pid"] for one in shown] if all(one["state"] == "serving" for one in shown) else []

    return eventually(all_serve, "all workers serve", timeout_s)


def counter(activator: Activator, name: str) -> float:
    _, _, body = activator.ask("/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in body.decode().splitlines() if line.startswith(name + "{"))


def used(activator: Activator, figure: str) -> float:
    """By all workers."""
    text = activator.ask("/metrics")[2].decode()
    return float(text.partition(f"\nactivator_worker_{figure} ")[2].split()[0])


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_holds_over_all_workers(run_activator: RunActivator, limit: int) -> None:
    with CountingPods(3, 0.002) as pods:
        activator = run_activator(configured([limited(pods.addresses, limit)], workers=3))
        load = Tally([activator.address], 30)
        load.run(lambda: eventually(lambda: load.good > 2_000))
        assert pods.most <= limit
        assert (load.cut, load.other) == (0, [])
        activator.wait_idle("app")
        shown = activator.revision("app")
        assert shown["requests"] == load.good == pods.answered
        assert sum(one["requests"] > 0 for one in shown["workers"]) >= 2, "more than one worker took part"
        assert counter(activator, "activator_requests_total") == load.good


@pytest.mark.parametrize("limit", [1, 3])
def test_limits_hold_while_workers_are_killed(run_activator: RunActivator, limit: int) -> None:
    """Nobody but clients of the killed worker sees anything of it."""
    chance = random.Random(limit)
    clients, kills = 20, 6
    with CountingPods(2, 0.005) as pods:
        activator = run_activator(configured([limited(pods.addresses, limit)], workers=3))
        activator.may_log_errors = True
        load = Tally([activator.address], clients)

        def kill_some() -> None:
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 0.4))
                os.kill(chance.choice(pids(activator)), signal.SIGKILL)
                load.goes_on(50)

        load.run(kill_some)
        assert pods.most <= limit
        assert load.other == []
        assert load.cut <= clients * kills
        assert load.longest_s < 10.0, "nobody was forgotten"
        activator.wait_idle("app")
        eventually(lambda: all(slot["in_flight"] == 0 for slot in activator.slots("app")))


def test_what_workers_say_to_each_other_keeps_the_rules(run_activator: RunActivator, tmp_path: Path) -> None:
    """The rules of the simulation's checker, for what real workers have written down."""
    with CountingPods(2, 0.005) as pods:
        configuration = configured([limited(pods.addresses, 2)], workers=3)
        activator = run_activator(configuration, OWNERSHIP_TRACE=str(tmp_path))
        activator.may_log_errors = True
        load = Tally([activator.address], 20)

        def kill_some() -> None:
            for _ in range(3):
                load.goes_on(200)
                os.kill(pids(activator)[0], signal.SIGKILL)
            load.goes_on(200)

        load.run(kill_some)
        activator.wait_idle("app")
        activator.signal(signal.SIGTERM)
        assert activator.wait_end() == 0
    assert check(read(tmp_path)) > 1_000


def test_a_request_that_waits_is_granted_when_the_worker_that_has_the_slot_dies(run_activator: RunActivator) -> None:
    with CountingPods(1, 30.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 1)], workers=2))
        activator.may_log_errors = True
        first = Client(activator.address)
        first.send(request())
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        (holder,) = [one["worker"] for one in activator.revision("app")["workers"] if one["in_flight"]]
        others = [Client(activator.address) for _ in range(12)]  # some come to the other worker
        for other in others:
            other.send(request())
        eventually(lambda: activator.revision("app")["queued"] == 12)
        waiting = {one["worker"]: one["queued"] for one in activator.revision("app")["workers"]}
        assert waiting[1 - holder] > 0
        pods.takes_s = 0.001
        os.kill(pids(activator)[holder], signal.SIGKILL)
        answered = 0
        for other in others:
            try:
                answered += other.answer().status == 200
            except (CutShortError, ConnectionError):
                pass
            other.close()
        assert answered == waiting[1 - holder]
        assert pods.most == 1
        first.close()


def test_what_a_dead_worker_had_reported_stays_in_the_metrics(run_activator: RunActivator) -> None:
    with CountingPods(2, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2))
        activator.may_log_errors = True
        for _ in range(40):
            assert ask(activator.address, request()).status == 200
        eventually(lambda: counter(activator, "activator_requests_total") == 40.0)
        accepted = "activator_client_connections_accepted_total"
        before = float(activator.ask("/metrics")[2].decode().partition(f"\n{accepted} ")[2].split()[0])
        cpu_s = used(activator, "cpu_seconds_total")
        for pid in pids(activator):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: all(one["restarts"] == 1 for one in workers(activator)))
        pids(activator)
        assert counter(activator, "activator_requests_total") == 40.0
        for _ in range(10):
            assert ask(activator.address, request()).status == 200
        eventually(lambda: counter(activator, "activator_requests_total") == 50.0)
        text = activator.ask("/metrics")[2].decode()
        assert float(text.partition(f"\n{accepted} ")[2].split()[0]) >= before + 10
        assert counter(activator, "activator_request_duration_seconds_count") == 50.0
        assert 'activator_workers{state="serving"} 2.0' in text
        assert "activator_worker_restarts_total 2.0" in text
        assert used(activator, "cpu_seconds_total") >= cpu_s > 0.0, "what the dead ones had used stays"
        assert 0 < used(activator, "resident_bytes") < 1 << 30


def test_a_worker_that_hangs_is_replaced_and_what_waited_for_it_is_served(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2, limits={"worker_stall": "700ms"}))
        activator.may_log_errors = True
        (hung, other) = pids(activator)
        os.kill(hung, signal.SIGSTOP)
        clients = [Client(activator.address) for _ in range(16)]  # in the queues of both
        for client in clients:
            client.send(request())
        assert all(client.answer().status == 200 for client in clients)
        for client in clients:
            client.close()
        activator.wait_log("worker 0 has sent nothing for 0.7 s and is killed")
        assert is_dead(hung) and pids(activator)[1] == other


def test_a_place_whose_workers_end_again_and_again_is_served_by_another(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2))
        activator.may_log_errors = True
        stop = threading.Event()

        def kill_again_and_again() -> None:
            while not stop.is_set():
                pid = workers(activator)[1]["pid"]
                if pid:
                    with suppress(ProcessLookupError):  # it has ended since it was shown
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)

        killer = threading.Thread(target=kill_again_and_again)
        killer.start()
        try:
            activator.wait_log(r"worker 1 has ended \d+ times in a row .*the next is started in 1.6 s")
        finally:
            stop.set()
            killer.join()
        eventually(lambda: workers(activator)[1]["state"] == "waiting")
        took_s = []
        for _ in range(20):
            began_s = time.monotonic()
            assert ask(activator.address, request()).status == 200
            took_s.append(time.monotonic() - began_s)
        assert median(took_s) < 0.5, "nobody waits for the one that is not there"
        pids(activator)


def test_what_forks_workers_may_be_killed(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2))
        activator.may_log_errors = True
        before = pids(activator)
        os.kill(zygote_of(activator), signal.SIGKILL)
        activator.wait_log("the process that starts workers has ended")
        assert ask(activator.address, request()).status == 200
        assert pids(activator) == before, "they go on"
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: workers(activator)[0]["restarts"] == 1)
        pids(activator)


def zygote_of(activator: Activator) -> int:
    """The process that workers are forked from."""
    parent = activator.process.pid
    (zygote,) = [pid for pid in activator.processes() if parent_of(pid) == parent and forks(pid, parent)]
    return zygote


def parent_of(pid: int) -> int:
    try:
        return int(stat_fields(pid)[1])
    except OSError:
        return 0


def forks(pid: int, parent: int) -> bool:
    """It is a copy of the parent, or the program that takes the place of one that has ended."""
    line = command_line(pid)
    return line == command_line(parent) or b"activator.workers.fork_server" in line


def command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.mark.parametrize("template_dies", [False, True])
def test_nothing_is_left_when_the_parent_is_killed(run_activator: RunActivator, template_dies: bool) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2))
        if template_dies:
            activator.may_log_errors = True
            os.kill(zygote_of(activator), signal.SIGKILL)
            activator.wait_log("the process that starts workers has ended")
            os.kill(pids(activator)[1], signal.SIGKILL)  # and its place is taken by one of another zygote
            eventually(lambda: workers(activator)[1]["restarts"] == 1)
        os.kill(pids(activator)[0], signal.SIGSTOP)  # one that cannot notice
        activator.signal(signal.SIGKILL)
        activator.wait_nothing_left(6.0)


def test_requests_in_flight_finish_at_the_end(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.3) as pods:
        activator = run_activator(configured([limited(pods.addresses, 50)], workers=2))
        clients = [Client(activator.address) for _ in range(10)]
        for client in clients:
            client.send(request())
        eventually(lambda: activator.revision("app")["in_flight"] == 10)
        activator.signal(signal.SIGTERM)
        assert [client.answer().status for client in clients] == [200] * 10
        for client in clients:
            client.close()
        assert activator.wait_end() == 0
        activator.wait_nothing_left()


def test_programs_start_from_zero_and_stop_for_all_workers(run_activator: RunActivator) -> None:
    revision = {**process_revision(SERVING, idle="400ms", max_scale=2), "container_concurrency": 1}
    activator = run_activator(configured([revision], workers=2))
    for _ in range(2):
        clients = [Client(activator.address) for _ in range(8)]
        for client in clients:
            client.send(request("/sleep/0.05"))
        found = {client.answer().body for client in clients}
        for client in clients:
            client.close()
        assert 1 <= len(found) <= 2
        eventually(lambda: activator.revision("app")["processes"]["processes"] == 0, "back at zero")
    assert activator.revision("app")["failed"] == {}


def test_a_limit_that_comes_and_goes_at_a_reload(run_activator: RunActivator, tmp_path: Any) -> None:
    with CountingPods(2, 0.003) as pods:
        activator = run_activator(configured([limited(pods.addresses, 0)], workers=2))
        load = Tally([activator.address], 16)

        def reload() -> None:
            eventually(lambda: load.good > 200)
            for limit in (1, 0, 2, 0, 1):
                path = tmp_path / "activator0.yaml"
                path.write_text(json.dumps(configured([limited(pods.addresses, limit)], workers=2)))
                assert activator.command("/reload")[0] == 200
                load.goes_on(200)
            eventually(lambda: all(slots_have(activator, worker, 1) for worker in (0, 1)), "both have the limit")
            load.goes_on(200)  # what was sent before has ended
            pods.most = 0
            load.goes_on(300)

        load.run(reload)
        assert pods.most == 1
        assert (load.cut, load.other) == (0, [])
        activator.wait_idle("app")


def slots_have(activator: Activator, worker: int, limit: int) -> bool:
    shown = json.loads(activator.ask(f"/debug/revisions?worker={worker}")[2])["revisions"]
    return all(slot["limit"] == limit for one in shown for slot in one["slots"])


def test_two_programs_do_not_share_a_port(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        first = run_activator(configured([limited(pods.addresses, 1)], workers=2))
        configuration = {**configured([limited(pods.addresses, 1)], workers=2), "listen": first.address}
        with pytest.raises(AssertionError, match="the port is in use"):
            run_activator(configuration)


def test_workers_may_have_as_many_descriptors_as_the_system_allows(run_activator: RunActivator) -> None:
    """The parent raises its limit: before it forks what they are forked from."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        activator = run_activator(configured([process_revision(SERVING)], workers=2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids(activator)} == {(hard, hard)}


def test_each_worker_can_be_looked_at(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2))
        for _ in range(20):
            assert ask(activator.address, request()).status == 200
        shown = [json.loads(activator.ask(f"/debug/revisions?worker={place}")[2]) for place in (0, 1)]
        assert sum(one["revisions"][0]["requests"] for one in shown) == 20
        status, _, body = activator.ask("/debug/tasks?worker=1")
        assert status == 200 and "alive" in {task["name"] for task in json.loads(body)}
        status, _, body = activator.command("/debug/profile?worker=0&seconds=0.2")
        assert status == 200 and json.loads(body)["profiles"]
        for wrong in ("7", "x", "-1"):
            status, _, body = activator.ask(f"/debug/revisions?worker={wrong}")
            assert status == 404 and "worker" in json.loads(body)["problems"][0]


def test_a_level_of_the_log_holds_in_all_workers(run_activator: RunActivator, tmp_path: Any) -> None:
    log = {"levels": {"data": "debug"}}

    def use(addresses: list[str]) -> None:
        configuration = configured([limited(addresses, 5)], workers=2, log=log)
        (tmp_path / "activator0.yaml").write_text(json.dumps(configuration))
        assert activator.command("/reload")[0] == 200
        activator.wait_ready_pods("app", len(addresses))

    trims = r" DEBUG \[worker (\d)\] activator.data: trimmed"
    with CountingPods(3, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=2, log=log))
        use(pods.addresses[:1])
        eventually(lambda: sorted(activator.logged(trims)) == ["0", "1"])
        use(pods.addresses)
        assert activator.command("/debug/log?part=data&level=error")[0] == 200
        use(pods.addresses[:1])
        use(pods.addresses)
        assert len(activator.logged(trims)) == 2


def test_one_process_has_no_workers_to_look_at(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=1))
        status, _, body = activator.ask("/debug/revisions?worker=0")
        assert (status, json.loads(body)["problems"]) == (
            404,
            ["there are no workers beside this process (`workers: 1`)"],
        )


def test_a_template_that_dies_before_it_has_forked(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 1)], workers=2))
        activator.may_log_errors = True
        zygote = zygote_of(activator)
        os.kill(zygote, signal.SIGSTOP)
        os.kill(pids(activator)[0], signal.SIGKILL)
        eventually(lambda: workers(activator)[0]["state"] == "starting")
        os.kill(zygote, signal.SIGKILL)
        pids(activator)
        assert ask(activator.address, request()).status == 200


@pytest.mark.deep
def test_a_template_that_stands_still_is_replaced(run_activator: RunActivator) -> None:
    with CountingPods(1, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 1)], workers=2))
        activator.may_log_errors = True
        os.kill(zygote_of(activator), signal.SIGSTOP)
        os.kill(pids(activator)[0], signal.SIGKILL)
        eventually(lambda: workers(activator)[0]["state"] == "starting")
        eventually(lambda: workers(activator)[0]["state"] == "serving", timeout_s=40.0)
        assert ask(activator.address, request()).status == 200


def slots_of(activator: Activator, worker: int) -> list[dict[str, Any]]:
    (shown,) = json.loads(activator.ask(f"/debug/revisions?worker={worker}")[2])["revisions"]
    slots: list[dict[str, Any]] = shown["slots"]
    return slots


@pytest.mark.parametrize("policy", ["least-connections", "choice-of-2"])
def test_policies_see_what_other_workers_have(run_activator: RunActivator, policy: str) -> None:
    """Of two pods one is slow, and 4 requests of one worker are there. Of 8 of the other worker it gets 2, so that both
    pods have 6, as with one worker. Without reports it would get 4.
    """
    with CountingPods(1, 0.0) as slow, CountingPods(1, 0.0) as fast, ExitStack() as stack:
        revision = limited([*slow.addresses, *fast.addresses], 0, policy=policy)
        activator = run_activator(configured([revision], workers=2))
        clients: tuple[list[Client], list[Client]] = ([], [])
        while min(len(clients[0]), len(clients[1])) < 8:
            client = stack.enter_context(Client(activator.address))
            before = requests_of(activator)
            client.send(request())
            assert client.answer().status == 200
            clients[requests_of(activator)[1] > before[1]].append(client)
        nothing_is_left(activator)
        slow.takes_s = fast.takes_s = 30.0
        for client in clients[0][:8]:
            client.send(request())
        eventually(lambda: loads_seen(activator, 0) == [(4, 0), (4, 0)])
        eventually(lambda: fast.in_flight() == 4, "all have come to it")
        fast.answer_now()
        eventually(lambda: loads_seen(activator, 0) == [(4, 0), (0, 0)], "the fast one has answered")
        eventually(lambda: loads_seen(activator, 1) == [(0, 4), (0, 0)], "the other worker knows")
        for client in clients[1][:8]:
            client.send(request())
        eventually(lambda: loads_seen(activator, 1) == [(2, 4), (6, 0)])
        eventually(lambda: loads_seen(activator, 0) == [(4, 2), (0, 6)])
        for client in (*clients[0], *clients[1]):
            client.close()
        nothing_is_left(activator)


def nothing_is_left(activator: Activator) -> None:
    """Each worker knows that: what it has been told of the others is up to one report old."""
    for worker in (0, 1):
        eventually(lambda: loads_seen(activator, worker) == [(0, 0), (0, 0)], "nothing is left")  # noqa: B023


def requests_of(activator: Activator) -> list[int]:
    """By worker."""
    return [one["requests"] for one in activator.revision("app")["workers"]]


def loads_seen(activator: Activator, worker: int) -> list[tuple[int, int]]:
    """Of each pod, what the worker has there, and what it knows of the others."""
    return [(slot["in_flight"], slot["elsewhere"]) for slot in slots_of(activator, worker)]


def test_one_request_after_the_other_goes_to_another_pod_whichever_worker_has_it(run_activator: RunActivator) -> None:
    with CountingPods(12, 30.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 0, policy="least-connections")], workers=3))
        activator.may_log_errors = True
        clients = []
        for number in range(12):
            clients.append(Client(activator.address))
            clients[-1].send(request())
            eventually(lambda: known(activator) == [number + 1] * 3, "all know of it")  # noqa: B023
        assert pods.most == 1
        assert all(slot["in_flight"] == 1 for slot in activator.slots("app"))
        had = [one["in_flight"] for one in activator.revision("app")["workers"]]
        assert sum(count > 0 for count in had) > 1, "more than one worker took part"
        killed = had.index(max(had))
        pid = pids(activator)[killed]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: workers(activator)[killed]["restarts"] == 1 and pids(activator)[killed] != pid)
        left = 12 - had[killed]
        eventually(lambda: known(activator) == [left] * 3, "what it had is out, and the new one knows the rest")
        for client in clients:
            client.close()


def known(activator: Activator) -> list[int]:
    """The requests that each worker knows of."""
    return [sum(slot["in_flight"] + slot["elsewhere"] for slot in slots_of(activator, worker)) for worker in range(3)]


@pytest.mark.parametrize("count", [1, 2])
def test_knatives_metrics_are_those_of_one_worker(run_activator: RunActivator, count: int) -> None:
    knative = {"protocol": "prometheus", "endpoint": "127.0.0.1:0"}
    with CountingPods(2, 0.0) as pods:
        activator = run_activator(configured([limited(pods.addresses, 5)], workers=count, metrics={"knative": knative}))
        activator.may_log_errors = True
        (address,) = eventually(lambda: activator.logged(r"Knative's metrics on (\S+)"))
        for number in range(30):
            assert ask(activator.address, request("/", host="a.test" if number % 3 else "b.test")).status == 200
        eventually(lambda: requests_counted(address) == {"a.test": 20.0, "b.test": 10.0})
        names = {(name, tuple(sorted(labels))) for name, labels, _ in samples(address)}
        labels = ("k8s_namespace_name", "kn_revision_name")
        all_labels = ("k8s_namespace_name", "kn_configuration_name", "kn_revision_name", "kn_service_name")
        of_requests = (
            *("http_request_method", "http_response_status_code", *all_labels, "network_protocol_name"),
            *("network_protocol_version", "server_address", "url_scheme"),
        )
        expected = {
            ("kn_revision_request_active", labels),
            ("kn_revision_request_queued", labels),
            ("kn_revision_request_concurrency", all_labels),
        }
        for name in (
            "http_server_request_duration_seconds",
            "http_server_request_body_size_bytes",
            "http_server_response_body_size_bytes",
        ):
            expected |= {(f"{name}_count", of_requests), (f"{name}_sum", of_requests)}
            expected.add((f"{name}_bucket", tuple(sorted((*of_requests, "le")))))
        assert names == expected
        if count > 1:
            os.kill(pids(activator)[0], signal.SIGKILL)
            eventually(lambda: workers(activator)[0]["restarts"] == 1 and pids(activator))
            assert requests_counted(address) == {"a.test": 20.0, "b.test": 10.0}, "what it had sent stays"
            assert ask(activator.address, request("/", host="a.test")).status == 200
            eventually(lambda: requests_counted(address) == {"a.test": 21.0, "b.test": 10.0})


def samples(address: str) -> list[tuple[str, dict[str, str], float]]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10.0) as answer:
        text = answer.read().decode()
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def requests_counted(address: str) -> dict[str, float]:
    """By host."""
    return {
        labels["server_address"]: value
        for name, labels, value in samples(address)
        if name == "http_server_request_duration_seconds_count"
    }
