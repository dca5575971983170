"""Containers that one supervisor hands over to another, as two processes of the activator do, on one engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from activator.config.model.revision import Revision
from activator.control_plane.sources.container.creation import MAKER_LABEL, OWNER_LABEL
from activator.control_plane.sources.container.engine import Engine
from activator.control_plane.sources.container.owner import Run, parse_owner
from activator.control_plane.sources.container.sweeper import Sweeper
from activator.control_plane.sources.container.unit import LAST_OUTPUT_S
from activator.control_plane.sources.process.fleet import LocalProcess
from activator.control_plane.sources.process.handed import HandedPrograms, Received
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.tasks import pause
from tests.control_plane.sources.container.fake_engine import FakeContainer, FakeEngine, Image, fake_engine
from tests.control_plane.sources.container.world import KEY, World, revision_of

QUIET = {"logs": {"show": False}}
_PROGRAMS = msgspec.msgpack.Decoder(HandedPrograms)


def program_of(world: World) -> LocalProcess:
    """The only program."""
    (found,) = world.supervisor.fleets.of(KEY)
    return found


class Upgraded:
    """Two processes of the activator with one reaper and one engine. `former` has its programs when it is made."""

    def __init__(self, engine: FakeEngine, reaping: Reaping) -> None:
        self.engine = engine
        self.reaping = reaping
        self.former = World(engine, reaping)
        self.latter = World(engine, Reaping(None, reaping.mark))

    async def started(self, revision: Revision) -> FakeContainer:
        """Return the container that the former process has started for it."""
        self.former.want(revision)
        await self.former.until(self.former.ready, "the former process has a ready pod")
        return self.engine.containers[next(iter(self.engine.containers))]

    def hand_over(self, revision: Revision) -> None:
        """Make the latter process take over as far as the former may still continue."""
        self.former.supervisor.freeze()
        assert self.former.supervisor.given.unsettled() == ""
        programs, descriptors = self.former.supervisor.given.hand_over()
        assert descriptors == []
        self.latter.supervisor.freeze()
        sent = _PROGRAMS.decode(msgspec.msgpack.encode(programs))
        self.latter.supervisor.take_over(Received(sent, []))
        self.latter.want(revision)

    def commit(self) -> None:
        """Make the latter process the activator."""
        self.former.supervisor.detach()
        self.latter.supervisor.take_ownership([])
        self.latter.supervisor.unfreeze()

    async def close(self) -> None:
        """End both, as after the commit: what the former does from then on has no effect."""
        await self.former.leave()
        await self.latter.close()
        for one in (self.former, self.latter):
            assert one.errors == [] and one.supervision.panics_total == 0

    def lines(self, world: World) -> list[str]:
        log = world.supervisor.fleets.log_of(KEY)
        assert log is not None
        return [line.text for line in log.history.kept()]

    def ended(self, calls: int) -> list[str]:
        """Return the calls from the given number on that change a container."""
        verbs = ("/kill", "/stop", "/start", "/pause", "/unpause", "/create")
        return [one for one in self.engine.calls[calls:] if one.endswith(verbs) or one.startswith("DELETE")]


@asynccontextmanager
async def upgraded(folder: Path) -> AsyncIterator[Upgraded]:
    async with fake_engine(folder / "engine.sock") as engine:
        engine.images["web"] = Image(((1, "before"),))
        reaping = await asyncio.to_thread(Reaping.start)
        made = Upgraded(engine, reaping)
        try:
            yield made
        finally:
            for world in (made.former, made.latter):  # for a scenario that has failed
                async with asyncio.timeout(12.0):
                    await world.supervisor.close()
                await world.leave()
            await asyncio.to_thread(reaping.close)


def play(folder: Path, scenario: Callable[[Upgraded], Awaitable[None]]) -> None:
    async def run() -> None:
        async with upgraded(folder) as made:
            await scenario(made)

    asyncio.run(run())


@pytest.mark.parametrize("has_whole_seconds", [False, True])
def test_a_container_continues_and_no_line_is_lost_or_repeated(tmp_path: Path, has_whole_seconds: bool) -> None:
    async def scenario(made: Upgraded) -> None:
        made.engine.has_whole_seconds = has_whole_seconds
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        (pod,) = made.former.ready()
        for number in range(20):
            container.write(b"line %d\n" % number)
        container.write(b"begun ")
        await made.former.until(lambda: "line 19" in made.lines(made.former), "the output is read")
        calls = len(made.engine.calls)
        made.hand_over(revision)
        container.write(b"and ended\n")
        container.write(b"between\n", 2)
        await made.latter.until(lambda: made.latter.ready() == [pod], "the same pod at the same address")
        made.commit()
        container.write(b"after\n")
        await made.latter.until(lambda: "after" in made.lines(made.latter), "the output goes on")
        expected = ["before", *(f"line {number}" for number in range(20)), "begun and ended", "between", "after"]
        assert sorted(made.lines(made.latter)) == sorted(expected)
        assert "begun and ended" not in made.lines(made.former) and "after" not in made.lines(made.former)
        assert made.ended(calls) == []
        await made.close()
        assert made.engine.containers == {}, "the latter process removes it at its end"

    play(tmp_path, scenario)


def test_a_container_that_still_loads_is_ready_in_the_latter_process(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        made.engine.images["web"] = Image()
        revision = revision_of(image="web", readiness={"log": "loaded"}, **QUIET)
        made.former.want(revision)
        await made.former.until(lambda: made.engine.containers, "it is created")
        container = next(iter(made.engine.containers.values()))
        await made.former.until(lambda: not made.former.supervisor.given.unsettled(), "it runs")
        made.hand_over(revision)
        made.commit()
        assert made.latter.ready() == []
        container.write(b"loaded\n")
        await made.latter.until(made.latter.ready, "it is ready")
        await made.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize("is_orderly", [True, False])
def test_the_former_process_continues_if_the_latter_gives_up(tmp_path: Path, is_orderly: bool) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        calls = len(made.engine.calls)
        made.hand_over(revision)
        await made.latter.until(made.latter.ready, "it has taken over")
        if is_orderly:
            await asyncio.wait_for(made.latter.supervisor.close(), 5.0)
        await made.latter.leave()
        assert made.ended(calls) == []
        made.former.supervisor.unfreeze()
        container.write(b"after\n")
        await made.former.until(lambda: "after" in made.lines(made.former), "the output is read again")
        assert made.lines(made.former) == ["before", "after"]
        await made.former.close()
        assert made.engine.containers == {}

    play(tmp_path, scenario)


@pytest.mark.parametrize("commits", [True, False])
def test_a_container_that_ends_during_the_hand_over_is_replaced_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, commits: bool
) -> None:
    """By the process that has it in the end, with its last lines and its name, which the next one needs."""

    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", name="fixed", **QUIET)
        container = await made.started(revision)
        made.hand_over(revision)
        container.write(b"cannot open the model\n", 2)
        container.end(3)
        for world in (made.former, made.latter):
            await world.until(lambda: program_of(world).unit.exit_code == 3, "it is noticed")  # noqa: B023
        await pause(LAST_OUTPUT_S / 2)
        assert container.id in made.engine.containers, "neither knows which of them has it"
        if commits:
            made.commit()
            await made.latter.until(
                lambda: [one.identity for one in made.latter.ready()] == [f"{KEY}#2"], "another one is started"
            )
            await made.close()
        else:
            await made.latter.supervisor.close()
            await made.latter.leave()
            made.former.supervisor.unfreeze()
            await made.former.until(
                lambda: [one.identity for one in made.former.ready()] == [f"{KEY}#2"], "another one is started"
            )
            assert "cannot open the model" in made.lines(made.former)
            await made.former.close()
        assert f"{KEY}#1: the program exited with code 3: cannot open the model" in caplog.text
        assert made.engine.containers == {}

    play(tmp_path, scenario)


def test_an_existing_container_is_stopped_by_the_latter_process_alone(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        existing = made.engine.add("own", "web", Labels={}, HostConfig={"PortBindings": {"8080/tcp": [{}]}})
        revision = revision_of(existing="own", **QUIET)
        made.former.want(revision)
        await made.former.until(made.former.ready, "it runs")
        calls = len(made.engine.calls)
        made.hand_over(revision)
        await made.latter.until(made.latter.ready, "it has taken over")
        made.commit()
        await made.former.leave()
        assert existing.is_running and made.ended(calls) == []
        made.latter.supervisor.grant(KEY, 0)
        await made.latter.until(lambda: not existing.is_running, "it is stopped")
        await made.close()
        assert [one.name for one in made.engine.containers.values()] == ["own"]

    play(tmp_path, scenario)


def test_an_engine_that_is_away_during_the_hand_over_costs_no_program(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        await made.engine.stop()
        made.hand_over(revision)
        await made.latter.until(made.latter.ready, "a ready program is one without the engine too")
        made.commit()
        await made.engine.start()
        container.write(b"after\n")
        await made.latter.until(lambda: "after" in made.lines(made.latter), "its output is read again")
        container.end(3)
        await made.latter.until(
            lambda: [one.identity for one in made.latter.ready()] == [f"{KEY}#2"], "its end is noticed"
        )
        await made.close()

    play(tmp_path, scenario)


def test_other_activators_leave_the_containers_of_an_upgraded_one_alone(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        labels = container.body["Labels"]
        reaper = parse_owner(labels[OWNER_LABEL])
        assert reaper is not None and reaper.process == made.reaping.process
        made.hand_over(revision)
        made.commit()
        maker = parse_owner(labels[MAKER_LABEL])
        assert maker is not None and maker.process == os.getpid()
        labels[MAKER_LABEL] = maker._replace(started="1").label  # the former process has ended
        engine = Engine(made.engine.path)
        try:
            other = Sweeper(engine, Run("another-run"))
            await other.sweep()
            assert container.id in made.engine.containers
            made.latter.supervisor.grant(KEY, 2)
            labels[OWNER_LABEL] = reaper._replace(started="1").label  # and all processes after it
            await other.sweep()
            assert container.id not in made.engine.containers
        finally:
            await engine.close()
        await made.close()

    play(tmp_path, scenario)


def test_containers_of_the_latter_process_have_the_reaper_of_the_former(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", max_scale=2, **QUIET)
        first = await made.started(revision)
        made.hand_over(revision)
        made.commit()
        made.latter.supervisor.grant(KEY, 2)
        await made.latter.until(lambda: len(made.latter.ready()) == 2, "a second one")
        second = next(one for one in made.engine.containers.values() if one is not first)
        assert second.body["Labels"][OWNER_LABEL] == first.body["Labels"][OWNER_LABEL]
        await made.close()

    play(tmp_path, scenario)


def test_without_a_reaper_containers_are_not_handed_over(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        await made.started(revision_of(image="web", **QUIET))
        assert made.former.supervisor.given.unsettled() == ""
        os.kill(made.reaping.process, signal.SIGKILL)  # it is waited for at the end only
        await made.former.until(made.former.supervisor.given.unsettled, "it has ended")
        assert "the reaper has exited, or is unknown" in made.former.supervisor.given.unsettled()
        await made.former.close()
        await made.latter.leave()

    play(tmp_path, scenario)


def test_a_container_that_is_about_to_start_is_not_settled(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        made.engine.faults["/create"] = "stall"
        made.former.want(revision_of(image="web", **QUIET))
        await made.former.until(lambda: any("/create" in one for one in made.engine.calls), "it is being created")
        assert "its container is about to start" in made.former.supervisor.given.unsettled()
        await made.former.close()
        await made.latter.leave()

    play(tmp_path, scenario)


def test_what_is_handed_over_is_bounded(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        container = await made.started(revision_of(image="web", **QUIET))
        for _ in range(100):
            container.write(b"x" * 100_000)
        await made.former.until(lambda: len(made.lines(made.former)) > 2, "the output is read")
        made.former.supervisor.freeze()
        programs, _ = made.former.supervisor.given.hand_over()
        size = len(json.dumps(msgspec.to_builtins(programs.fleets[0].programs)))
        assert size < 1 << 20
        made.former.supervisor.unfreeze()
        await made.former.close()
        await made.latter.leave()

    play(tmp_path, scenario)


@pytest.mark.parametrize("becomes", [{"image": "web"}, {"existing": "other"}], ids=["created", "existing"])
@pytest.mark.parametrize("was", ["created", "existing"])
def test_a_file_that_names_another_kind_of_container_changes_no_running_one(
    tmp_path: Path, was: str, becomes: dict[str, str]
) -> None:
    """A user's container is never removed, and one that the activator has created always is, by nothing but its end."""

    async def scenario(made: Upgraded) -> None:
        own = made.engine.add("own", "web", Labels={}, HostConfig={"PortBindings": {"8080/tcp": [{}]}})
        before = revision_of(image="web", **QUIET) if was == "created" else revision_of(existing="own", **QUIET)
        made.former.want(before)
        await made.former.until(made.former.ready, "it runs")
        running = next(one for one in made.engine.containers.values() if one.is_running)
        made.hand_over(revision_of(**becomes, **QUIET))
        await made.latter.until(made.latter.ready, "it has taken over")
        made.commit()
        for world in (made.former, made.latter):
            await world.units.sweeper_of(made.engine.path).sweep()
            await world.units.sweeper_of(made.engine.path).sweep()
        assert running.is_running
        made.latter.supervisor.grant(KEY, 0)
        await made.latter.until(lambda: not made.latter.supervisor.fleets.of(KEY), "it is stopped")
        assert running.exit_code or not running.is_running
        await made.close()
        assert list(made.engine.containers.values()) == [own]

    play(tmp_path, scenario)


def test_an_engine_with_two_paths_loses_no_container(tmp_path: Path) -> None:
    """A link to the socket, as `docker.sock` of Podman, has a sweeper of its own."""

    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        other = tmp_path / "other.sock"
        other.symlink_to(made.engine.path)
        for world in (made.former, made.latter):
            if world is made.latter:
                made.hand_over(revision)
                made.commit()
            sweeper = world.units.sweeper_of(str(other))
            await sweeper.sweep()
            await sweeper.sweep()
            assert container.id in made.engine.containers
        await made.close()

    play(tmp_path, scenario)


def test_a_slow_engine_delays_no_request_and_no_further_upgrade(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        made.engine.faults["/json"] = "stall"
        made.hand_over(revision)
        for _ in range(20):
            await pause(0.0)
        assert len(made.latter.ready()) == 1 and made.latter.supervisor.given.unsettled() == ""
        made.commit()
        made.engine.faults.clear()
        container.end(3)
        await made.engine.stop()  # which ends the calls that it has not answered
        await made.engine.start()
        await made.latter.until(
            lambda: [one.identity for one in made.latter.ready()] == [f"{KEY}#2"], "its end is found later"
        )
        await made.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize("fault", ["500", "stall"])
def test_a_health_check_is_not_forgotten_where_the_first_inspection_fails(tmp_path: Path, fault: str) -> None:
    async def scenario(made: Upgraded) -> None:
        made.engine.images["web"] = Image(test=["CMD", "healthy"])
        made.engine.exec_codes.extend([1] * 1_000)
        revision = revision_of(image="web", readiness={"interval": "20ms"}, **QUIET)
        made.former.want(revision)
        await made.former.until(lambda: len(made.engine.exec_codes) < 1_000, "it is asked")
        made.engine.faults["/json"] = fault
        made.hand_over(revision)
        await pause(0.2)
        made.engine.faults.clear()
        await made.engine.stop()
        await made.engine.start()
        made.commit()
        await pause(0.3)
        assert made.latter.ready() == [], "it is not healthy"
        made.engine.exec_codes.clear()
        await made.latter.until(made.latter.ready, "it is healthy")
        await made.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize("upgrades", [False, True])
def test_a_container_that_was_restarted_by_another_program_is_not_taken_for_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, upgrades: bool
) -> None:
    """It may have another address."""

    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        world = made.former
        await world.until(lambda: any(one.endswith("/wait") for one in made.engine.calls), "it is watched")
        if upgrades:
            made.hand_over(revision)
        container.end(0)
        await container.start()
        if upgrades:
            made.commit()
            world = made.latter
        await world.until(lambda: [one.identity for one in world.ready()] == [f"{KEY}#2"], "another one is started")
        assert "the container was restarted by another program" in caplog.text
        assert world.ready()[0].address != f"127.0.0.1:{container.port}"
        if upgrades:
            await made.close()
        else:
            await made.former.close()
            await made.latter.leave()

    play(tmp_path, scenario)


def test_a_start_that_takes_too_long_by_the_new_file_ends_in_the_latter_process(tmp_path: Path) -> None:
    """Before the commit it is still the former's, whose file gives it more time."""

    async def scenario(made: Upgraded) -> None:
        made.engine.images["web"] = Image()
        loading = {"image": "web", "readiness": {"log": "loaded"}, **QUIET}
        made.former.want(revision_of(**loading))
        await made.former.until(lambda: made.engine.containers, "it is created")
        await made.former.until(lambda: not made.former.supervisor.given.unsettled(), "it runs")
        container = next(iter(made.engine.containers.values()))
        made.hand_over(revision_of(timeouts={"startup": "10ms"}, **loading))
        await pause(0.2)
        assert container.is_running and program_of(made.latter).identity == f"{KEY}#1"
        made.commit()
        await made.latter.until(lambda: container.id not in made.engine.containers, "it is removed")
        await made.close()

    play(tmp_path, scenario)


def test_output_is_passed_on_by_one_process(tmp_path: Path) -> None:
    async def scenario(made: Upgraded) -> None:
        revision = revision_of(image="web", **QUIET)
        container = await made.started(revision)
        await made.former.until(lambda: made.lines(made.former) == ["before"], "the output is read")
        made.hand_over(revision)
        await made.latter.until(made.latter.ready, "it has taken over")
        container.write(b"between\n")
        await pause(0.2)
        assert "between" not in made.lines(made.latter), "it is not its own yet"
        await made.latter.supervisor.close()
        await made.latter.leave()
        calls = len(made.engine.queries)
        made.former.supervisor.unfreeze()
        await made.former.until(lambda: "between" in made.lines(made.former), "it is read")
        assert made.lines(made.former) == ["before", "between"]
        (query,) = [one for one in made.engine.queries[calls:] if "follow" in one]
        assert float(query["since"]) > 1e9, "not the whole log again"
        await made.former.close()

    play(tmp_path, scenario)


@pytest.mark.parametrize("later", [{}, {"sleep": {"http_post": "/sleep", "wake": "/wake"}}], ids=["none", "by HTTP"])
def test_a_paused_container_continues_whatever_the_file_says_of_sleep(tmp_path: Path, later: dict[str, Any]) -> None:
    async def scenario(made: Upgraded) -> None:
        container = await made.started(revision_of(image="web", sleep={"signal": "SIGSTOP"}, **QUIET))
        made.former.supervisor.grant(KEY, 0)
        await made.former.until(lambda: container.paused, "it sleeps")
        await made.former.until(lambda: not made.former.supervisor.given.unsettled(), "it is settled")
        revision = revision_of(image="web", **later, **QUIET)
        made.hand_over(revision)
        made.commit()
        await made.latter.until(lambda: not container.paused, "it is woken")
        await made.latter.until(made.latter.ready, "it is ready, or another one is")
        await made.close()

    play(tmp_path, scenario)
