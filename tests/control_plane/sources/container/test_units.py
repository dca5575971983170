"""Containers as programs of the supervisor, with an engine that does as it is told, and one that does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from activator.control_plane.sources.container.managed import WARNING_CHARS_MAX, WARNINGS_MAX
from activator.control_plane.sources.container.readiness import OPEN_S, stays_open
from activator.messages import PodGone
from tests.control_plane.sources.container.fake_engine import Image, fake_engine
from tests.control_plane.sources.container.world import KEY, World, revision_of, world

Scenario = Callable[[World], Awaitable[None]]


def play(folder: Path, scenario: Scenario, **settings: Any) -> None:
    async def run() -> None:
        async with world(folder, **settings) as made:
            await scenario(made)
            await made.close()
            assert [
                one.name for one in made.engine.containers.values() if "activator.identity" in one.body["Labels"]
            ] == []

    asyncio.run(run())


def test_a_container_is_made_ready_stopped_and_removed(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image(((1, "listening"), (2, "warm")))
        (tmp_path / "models").mkdir()
        volumes = [f"{tmp_path}/models:/models:ro", "cache:/var/cache"]
        limits = {"memory": "64MiB", "cpus": 1.5, "user": "1000", "init": True, "directory": "/app"}
        more = {"environment": {"A": "1"}, "labels": {"team": "ml"}, "command": ["serve", "{port}"], **limits}
        made.want(revision_of(image="web", volumes=volumes, max_scale=2, **more), 2)
        await made.until(lambda: len(made.ready()) == 2)
        first, second = made.engine.containers.values()
        assert {one.address for one in made.ready()} == {f"127.0.0.1:{one.port}" for one in (first, second)}
        assert first.body["Cmd"] == ["serve", "8080"]
        assert sorted(first.body["Env"]) == ["A=1", "PORT=8080"]
        assert first.body["HostConfig"] == {
            "Binds": volumes,
            "Memory": 64 * 1024 * 1024,
            "NanoCpus": 1_500_000_000,
            "Init": True,
            "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]},
        }
        assert (first.body["User"], first.body["WorkingDir"]) == ("1000", "/app")
        labels = first.body["Labels"]
        assert (labels["team"], labels["activator.instance"], labels["activator.revision"]) == ("ml", "mark", KEY)
        program_log = made.supervisor.fleets.log_of(KEY)
        assert program_log is not None
        made.supervisor.grant(KEY, 1)
        await made.until(lambda: len(made.engine.containers) == 1)
        assert len(made.ready()) == 1

    play(tmp_path, scenario)


def test_the_output_is_kept_as_that_of_processes(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image(tuple((1, f"line {number}") for number in range(5_000)))
        made.want(revision_of(image="web", readiness={"log": "line 4999"}, logs={"show": False}))
        await made.until(made.ready)
        program_log = made.supervisor.fleets.log_of(KEY)
        assert program_log is not None
        lines, _ = program_log.history.after(0)
        assert lines[-1].text == "line 4999"
        assert len(lines) <= 1_000

    play(tmp_path, scenario)


@pytest.mark.parametrize("has_whole_seconds", [False, True])
@pytest.mark.parametrize("ends", [False, True], ids=["it goes on", "it ends meanwhile"])
def test_output_that_was_written_while_the_engine_was_away_is_read_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_whole_seconds: bool, ends: bool
) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image(((1, "before"),))
        made.engine.has_whole_seconds = has_whole_seconds
        made.want(revision_of(image="web", logs={"show": False}))
        await made.until(made.ready)
        program_log = made.supervisor.fleets.log_of(KEY)
        assert program_log is not None

        def lines() -> list[str]:
            return [line.text for line in program_log.history.after(0)[0]]

        await made.until(lambda: lines() == ["before"])
        container = next(iter(made.engine.containers.values()))
        container.write(b"begun ")
        await made.engine.stop()
        await made.until(lambda: "keeps running, but the container engine" in caplog.text)
        container.write(b"and ended\n")
        container.write(b"meanwhile\n", 2)
        if ends:
            container.end(3)
        await made.engine.start()
        if ends:
            await made.until(lambda: lines().count("before") == 2)  # of the container in its place
            assert sorted(lines()) == ["before", "before", "begun and ended", "meanwhile"]
        else:
            await made.until(lambda: len(lines()) >= 3)
            container.write(b"after\n")
            await made.until(lambda: "after" in lines())
            assert sorted(lines()) == ["after", "before", "begun and ended", "meanwhile"]

    with caplog.at_level(logging.INFO):
        play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("container", "image", "cause"),
    [
        ({"image": "none", "pull": "never"}, Image(), "there is no image none: docker pull none"),
        ({"image": "web"}, Image(ports=(80, 443)), "the image web exposes no port, or several"),
        ({"image": "web"}, Image(ports=()), "the image web exposes no port, or several"),
        ({"existing": "nobody"}, Image(), "there is no container nobody"),
        ({"image": "web", "timeouts": {"startup": "200ms"}}, Image(listens=False), "it has no address"),
        ({"image": "web", "volumes": ["/no/such/folder:/x"]}, Image(), "there is no /no/such/folder"),
        (
            {"image": "web", "port": 1, "network": "host", "timeouts": {"startup": "200ms"}},
            Image(listens=False),
            "the program did not answer on port 1 within 0.2 s",
        ),
    ],
    ids=lambda one: str(one)[:30] if isinstance(one, str) else None,
)
def test_a_start_that_cannot_succeed_says_why(
    tmp_path: Path, container: dict[str, Any], image: Image, cause: str
) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = image
        made.want(revision_of(**container))
        await made.until(made.failures)
        assert cause in made.failures()[0]

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("image", "is_oom_killed", "cause"),
    [
        (Image(((2, "Error: no model"),), exit_code=3), False, "the program exited with code 3: Error: no model"),
        (Image(exit_code=139), False, "the program was ended by SIGSEGV"),
        (Image(exit_code=137), False, "by SIGKILL; using more memory than allowed (`memory: 67108864`) ends"),
        (Image(exit_code=137), True, "it used more memory than allowed (`memory: 67108864`)"),
    ],
)
def test_why_a_container_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, image: Image, is_oom_killed: bool, cause: str
) -> None:
    async def scenario(made: World) -> None:
        image.is_oom_killed = is_oom_killed
        made.engine.images["web"] = image
        made.want(revision_of(image="web", memory="64MiB"))
        await made.until(lambda: cause in caplog.text)
        made.supervisor.grant(KEY, 0)

    with caplog.at_level(logging.WARNING):
        play(tmp_path, scenario)


def test_a_healthcheck_of_the_image_says_what_is_ready(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image(test=["CMD-SHELL", "wget localhost"])
        made.engine.exec_codes = [1, 1, 0]
        made.want(revision_of(image="web", readiness={"interval": "10ms"}))
        await made.until(made.ready)
        assert len(made.engine.execs) == 3

    play(tmp_path, scenario)


def test_a_published_port_that_closes_at_once_is_not_the_program_yet(tmp_path: Path) -> None:
    """The engine's own proxy accepts before the program does."""

    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web"))
        await made.until(lambda: any(one.port for one in made.engine.containers.values()))
        await made.until(made.ready)

    async def closed() -> None:
        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(close, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert not await stays_open(f"127.0.0.1:{port}", OPEN_S)
        server.close()
        assert not await stays_open(f"127.0.0.1:{port}", OPEN_S)

    play(tmp_path, scenario)
    asyncio.run(closed())


def test_a_container_that_ignores_its_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image(is_stubborn=True)
        made.want(revision_of(image="web", stop={"grace": "100ms", "signal": "SIGINT"}))
        await made.until(made.ready)
        (one,) = made.engine.containers.values()
        assert one.body["StopSignal"] == "SIGINT"
        made.supervisor.grant(KEY, 0)
        await made.until(lambda: not made.engine.containers)
        assert one.exit_code == 137

    play(tmp_path, scenario)


def test_a_container_that_somebody_removes_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web"))
        await made.until(made.ready)
        (one,) = made.engine.containers.values()
        made.engine.remove(one)
        await made.until(lambda: made.ready() and made.ready()[-1].identity != f"{KEY}#1")
        assert "the container was removed by another program" in caplog.text

    play(tmp_path, scenario)


def test_what_an_engine_warns_of_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.engine.warnings = ["limits are ignored\n" + "x" * 1000] * 100
        made.want(revision_of(image="web"))
        await made.until(made.ready)

    play(tmp_path, scenario)
    told = [one.message for one in caplog.records if "warns" in one.message]
    assert len(told) == WARNINGS_MAX
    assert told[0].startswith(f"{KEY}#1: the container engine warns: limits are ignored\\nx")
    assert len(told[0]) < WARNING_CHARS_MAX + 100


@pytest.mark.parametrize("ignores", [True, False])
def test_a_limit_that_the_engine_does_not_set_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ignores: bool
) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.engine.images["web"].ignores_limits = ignores
        made.want(revision_of(image="web", memory="16MiB"))
        await made.until(made.ready)

    play(tmp_path, scenario)
    assert (f"{KEY}#1: the container engine limits no memory" in caplog.text) is ignores


def test_what_exists_is_started_stopped_and_never_removed(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        released = made.reports.released_keys
        made.engine.images["web"] = Image()
        one = made.engine.add("old", "web", HostConfig={"PortBindings": {"8080/tcp": [{}]}}, Labels={})
        made.want(revision_of(existing="old"))
        await made.until(made.ready)
        one.name = "renamed"  # it is known by its id now
        made.supervisor.grant(KEY, 0)
        await made.until(lambda: one.state == "exited")
        one.name = "old"
        await one.start()
        one.paused = True
        made.supervisor.grant(KEY, 1)
        await made.until(made.ready)
        assert not one.paused
        one.end(143)  # docker stop
        await made.until(lambda: released == [KEY])
        assert made.supervisor.fleets.statistics()[KEY]["crashes"] == 0
        await made.until(made.ready)
        made.supervisor.drop_revision(KEY)
        await made.until(lambda: not made.supervisor.counts(KEY, "").leaving)
        assert one.is_running
        assert "DELETE /containers/" + one.id not in made.engine.calls

    play(tmp_path, scenario)


def test_sleep_by_signal_is_the_pause_of_the_engine(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web", sleep={"signal": "SIGSTOP"}))
        await made.until(made.ready)
        (one,) = made.engine.containers.values()
        made.supervisor.grant(KEY, 0)
        await made.until(lambda: one.paused)
        made.supervisor.grant(KEY, 1)
        await made.until(made.ready)
        assert not one.paused

    play(tmp_path, scenario)


def test_what_exists_and_cannot_be_reached_is_not_killed(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        ran, stopped = made.engine.add("ran", "web", Labels={}), made.engine.add("stopped", "web", Labels={})
        await ran.start()
        made.want(revision_of(existing="ran"))
        await made.until(made.failures)
        assert "it has no address: its port 8080 is not published" in made.failures()[0]
        assert ran.is_running
        made.supervisor.grant(KEY, 0)
        made.changes.clear()
        await made.until(lambda: not made.supervisor.fleets.of(KEY))
        made.want(revision_of(existing="stopped"), 0)
        made.supervisor.grant(KEY, 1)
        await made.until(lambda: stopped.state == "exited")  # we have started it

    play(tmp_path, scenario)


def test_the_cause_is_in_the_last_lines_of_a_long_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More than is read in the time: an engine's log of any length is read at our pace."""

    async def scenario(made: World) -> None:
        lines = [(1, f"line {number} " + "x" * 1_000) for number in range(20_000)]
        made.engine.images["web"] = Image((*lines, (2, "Error: the disk is full")), exit_code=1)
        made.want(revision_of(image="web", logs={"show": False}))
        await made.until(lambda: "exited with code 1: Error: the disk is full" in caplog.text)
        made.supervisor.grant(KEY, 0)

    with caplog.at_level(logging.WARNING):
        play(tmp_path, scenario)


# --- the engine ---


def test_programs_go_on_while_the_engine_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web"))
        await made.until(made.ready)
        await made.engine.stop()
        await made.until(lambda: "keeps running, but the container engine" in caplog.text)
        assert len(made.ready()) == 1
        await made.engine.start()
        await made.until(lambda: "answers again" in caplog.text)
        assert len(made.ready()) == 1
        assert len(made.engine.containers) == 1

    with caplog.at_level(logging.INFO):
        play(tmp_path, scenario)


def test_a_start_waits_for_an_engine_that_is_away_and_tells_it_after_its_patience(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        await made.engine.stop()
        made.want(revision_of(image="web"))
        await made.until(made.failures)
        assert "cannot be reached: No such file or directory" in made.failures()[0]
        await made.engine.start()
        await made.until(made.ready)

    play(tmp_path, scenario, patience=0.1)


@pytest.mark.parametrize("end", ["/version", "/web/json", "/create", "/start", "1/json", "/containers/json"])
def test_a_start_outlives_broken_connections(tmp_path: Path, end: str) -> None:
    """In each of its calls, whether the engine has done what it was asked for or not."""

    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.engine.faults[end] = "cut"
        made.want(revision_of(image="web"))
        if end == "/containers/json":  # asked for only after a creation that was cut
            made.engine.faults["/create"] = "cut"
        await made.until(lambda: sum(one.endswith(end) for one in made.engine.calls) >= (2 if end == "/version" else 1))
        made.engine.faults.clear()
        await made.until(made.ready)
        assert made.failures() == []
        assert len(made.engine.containers) == 1

    play(tmp_path, scenario)


def test_a_name_that_is_taken_is_told_after_a_broken_connection(tmp_path: Path) -> None:
    """An answer that was cut is no proof that a container of this name is ours."""

    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        theirs = made.engine.add("mine", "web", Labels={})
        made.engine.faults["/create"] = "cut"
        made.want(revision_of(image="web", name="mine"))
        await made.until(lambda: sum(one.endswith("/create") for one in made.engine.calls) >= 2)
        made.engine.faults.clear()
        await made.until(made.failures)
        assert "the name mine is in use" in made.failures()[0]
        assert list(made.engine.containers.values()) == [theirs]

    play(tmp_path, scenario, patience=2.5)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_container_that_exists_is_started_though_a_connection_breaks(tmp_path: Path, is_paused: bool) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        theirs = made.engine.add("theirs", "web", HostConfig={"PortBindings": {"8080/tcp": [{}]}}, Labels={})
        if is_paused:
            await theirs.start()
            theirs.paused = True
        made.engine.faults["/unpause" if is_paused else "/start"] = "cut"
        made.want(revision_of(existing="theirs"))
        await made.until(lambda: any(one.endswith(("/start", "/unpause")) for one in made.engine.calls))
        made.engine.faults.clear()
        await made.until(made.ready)
        assert made.failures() == [] and not theirs.paused

    play(tmp_path, scenario)


def test_a_pull_that_a_broken_connection_cut_is_repeated(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.faults["/images/create"] = "cut"
        made.want(revision_of(image="web"))
        await made.until(lambda: "POST /images/create" in made.engine.calls)
        made.engine.pulls_as = Image()
        made.engine.faults.clear()
        await made.until(made.ready)
        assert made.failures() == []

    play(tmp_path, scenario)


def test_a_pull_that_stays_cut_says_so_after_the_patience(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.faults["/images/create"] = "cut"
        made.want(revision_of(image="web"))
        await made.until(made.failures)
        assert "the image web cannot be pulled: the container engine at" in made.failures()[0]

    play(tmp_path, scenario, patience=0.1)


@pytest.mark.parametrize("call", ["/pause", "/unpause"])
def test_sleep_and_wake_outlive_a_broken_connection(tmp_path: Path, call: str) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web", sleep={"signal": "SIGSTOP"}))
        await made.until(made.ready)
        made.engine.faults[call] = "cut"
        made.supervisor.grant(KEY, 0)
        if call == "/pause":
            await made.until(lambda: any(one.endswith(call) for one in made.engine.calls))
            made.engine.faults.clear()
        await made.until(lambda: made.supervisor.fleets.statistics()[KEY].get("sleeping"))
        made.supervisor.grant(KEY, 1)
        await made.until(lambda: any(one.endswith("/unpause") for one in made.engine.calls))
        made.engine.faults.clear()
        await made.until(made.ready)
        assert len(made.engine.containers) == 1
        assert not any(one.endswith("/kill") for one in made.engine.calls)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "fault", ["stall", "cut", *(pytest.param(fault, marks=pytest.mark.deep) for fault in ("500", "garbage"))]
)
@pytest.mark.parametrize("end", ["/version", "/web/json", "/create", "/start", "/json", "/wait", "/logs"])
def test_a_stop_in_every_state_of_a_start_leaves_nothing(tmp_path: Path, fault: str, end: str) -> None:
    """Not wanted any more, dropped, and closed, while the engine misbehaves in this call; then it is well again."""

    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.engine.faults[end] = fault
        made.want(revision_of(image="web", timeouts={"startup": "300ms"}))
        for _ in range(20):
            await asyncio.sleep(0.005)
        made.supervisor.grant(KEY, 0)
        made.drain()
        await asyncio.sleep(0.02)
        made.engine.faults.clear()
        made.supervisor.drop_revision(KEY)
        made.drain()

    play(tmp_path, scenario, patience=0.2)


@pytest.mark.deep
def test_an_engine_that_stalls_does_not_hold_up_the_end_for_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_engine(tmp_path / "engine.sock") as fake:
            fake.images["web"] = Image()
            made = World(fake)
            made.want(revision_of(image="web", max_scale=3, stop={"grace": "1s"}), 3)
            await made.until(lambda: len(made.ready()) == 3)
            fake.faults[""] = "stall"
            await asyncio.wait_for(made.supervisor.close(), 25.0)
            assert len(fake.containers) == 3  # left to the reaper
            await made.tasks.close()

    asyncio.run(run())


def test_a_port_that_was_taken_meanwhile_costs_one_try(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.engine.start_errors = [
            "listen tcp4 127.0.0.1:4000: bind: address already in use",
            "Port is already allocated",
        ]
        made.want(revision_of(image="web"))
        await made.until(made.ready)
        assert made.failures() == []
        assert len(made.engine.containers) == 1
        made.supervisor.grant(KEY, 0)
        await made.until(lambda: not made.engine.containers)
        made.engine.start_errors = ["no such runtime"]
        made.supervisor.grant(KEY, 1)
        await made.until(made.failures)
        assert made.failures() == ["the container cannot be started: no such runtime"]

    play(tmp_path, scenario)


def test_many_stops_and_starts_at_any_moment(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.images["web"] = Image()
        made.want(revision_of(image="web", max_scale=3))
        for number in range(60):
            made.supervisor.grant(KEY, number * 7 % 4)
            made.drain()
            await asyncio.sleep((number % 5) * 0.004)
        made.supervisor.grant(KEY, 2)
        await made.until(lambda: len(made.ready()) == 2 and len(made.engine.containers) == 2)
        gone = [one.identity for one in made.changes if isinstance(one, PodGone)]
        assert len(set(gone)) == len(gone)

    play(tmp_path, scenario)


# --- images ---


def test_a_missing_image_is_pulled_once_for_all(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.pulls_as = Image()
        made.want(revision_of(image="web", max_scale=3), 3)
        await made.until(lambda: len(made.ready()) == 3)
        assert made.engine.calls.count("POST /images/create") == 1

    play(tmp_path, scenario)


def test_a_pull_that_fails_says_why(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.pull_steps = [{"status": "Pulling"}, {"error": "manifest unknown"}]
        made.want(revision_of(image="web:none"))
        await made.until(made.failures)
        assert made.failures()[0] == "the image web:none cannot be pulled: manifest unknown"

    play(tmp_path, scenario)


def test_a_pull_has_a_time_limit(tmp_path: Path) -> None:
    async def scenario(made: World) -> None:
        made.engine.faults["/images/create"] = "stall"
        made.want(revision_of(image="web"))
        await made.until(made.failures)
        assert "it took longer than 0.1 s (`containers.pull_timeout`)" in made.failures()[0]

    play(tmp_path, scenario, pull_timeout=0.1)
