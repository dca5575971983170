"""The fixed pods of revisions: addresses, names and files together, through failures, on the test's own clock."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.config.model.pods import Pod
from activator.config.model.revision import Revision
from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.sources.fixed_pods.name_watch import NAME_GONE_HOLD_S, NAME_RETRY_MAX_S
from activator.control_plane.sources.fixed_pods.pods_file import (
    PODS_FILE_BYTES_MAX,
    PODS_FILE_PODS_MAX,
    PODS_FILE_QUIET_S,
    PodsFile,
    PodsFileError,
    read_pods,
)
from activator.control_plane.sources.fixed_pods.resolver import (
    NameGoneError,
    NameResolver,
    Resolved,
    ResolveError,
    Target,
)
from activator.control_plane.sources.fixed_pods.source import FORMER_S, FixedPods, HandedName, canonical
from activator.messages import Change, PodsListed
from activator.runtime.tasks import TaskGroupOwner
from tests.control_plane.probes.test_prober import turns
from tests.manual_clock import ManualClock

KEY = "default/a"


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:080", "127.0.0.1:80"), ("[0:0::1]:80", "[::1]:80"), ("[::ffff:127.0.0.1]:80", "127.0.0.1:80")],
)
def test_an_address_is_written_in_one_way(text: str, address: str) -> None:
    assert canonical(text) == address


class Answers(NameResolver):
    """Scripted: by name the addresses, or what is raised."""

    def __init__(self) -> None:
        super().__init__([], 1.0)
        self.said: dict[str, Resolved | Exception] = {}
        self.asked: list[str] = []
        self.hangs = asyncio.Event()
        self.hanging: set[str] = set()

    async def addresses(self, host: str) -> Resolved:
        self.asked.append(host)
        if host in self.hanging:
            await self.hangs.wait()
        found = self.said.get(host, NameGoneError("there is no such name"))
        if isinstance(found, Exception):
            raise found
        return found

    async def services(self, name: str) -> Resolved:
        return await self.addresses(name)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.resolver = Answers()
        self.lists: list[PodsListed] = []
        self.changes: list[tuple[str, bool]] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.fixed = FixedPods(
            self.tasks,
            self._submit,
            lambda key, others: self.changes.append((key, others)),
            self.clock.now,
            self.resolver,
            self.clock.now,
            self._wait,
        )

    def _submit(self, change: Change) -> None:
        assert isinstance(change, PodsListed)
        self.lists.append(change)

    async def _wait(self, event: asyncio.Event, seconds: float) -> bool:
        over = asyncio.Event()
        timer = self.clock.call_later(max(seconds, 0.0), over.set)
        waits = [asyncio.ensure_future(one.wait()) for one in (event, over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for wait in waits:
                wait.cancel()
        return event.is_set()

    async def pass_time(self, seconds: float, step_s: float = 0.1) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.pass_time(step_s)
            await turns(20)

    def pods(self) -> list[tuple[str, int]]:
        return [(pod.address, pod.weight) for pod in self.lists[-1].pods]


def answer(*ips: str, ttl_s: float = 10.0) -> Resolved:
    return Resolved(tuple(Target(ip) for ip in sorted(ips)), ttl_s)


def run(scenario: Callable[[World], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        world = World()
        await scenario(world)
        await world.tasks.close()
        assert world.errors == []

    asyncio.run(whole())


def test_names_are_asked_when_their_ttl_is_over_and_told_when_they_change() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1", "10.0.0.2")}
        world.fixed.set_revision(KEY, Revision("a", pods=["10.0.0.9:80", Pod("app.test:80", 5)]))
        assert world.pods() == [("10.0.0.9:80", 1)], "at once, without waiting for the name"
        await world.pass_time(1.0)
        assert world.pods() == [("10.0.0.9:80", 1), ("10.0.0.1:80", 5), ("10.0.0.2:80", 5)]
        await world.pass_time(8.5)
        assert world.resolver.asked == ["app.test"]
        world.resolver.said["app.test"] = answer("10.0.0.2", "10.0.0.9")
        told = len(world.lists)
        await world.pass_time(1.0)
        assert world.pods() == [("10.0.0.9:80", 1), ("10.0.0.2:80", 5)], "the first entry of an address counts"
        await world.pass_time(60.0)
        assert len(world.lists) == told + 1, "an answer that is the same is not told"

    run(scenario)


def test_a_resolver_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1", ttl_s=1.0)}
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80"]))
        await world.pass_time(0.5)
        world.resolver.said["app.test"] = ResolveError("the name servers answered SERVFAIL")
        before = len(world.resolver.asked)
        await world.pass_time(600.0, step_s=0.5)
        assert world.pods() == [("10.0.0.1:80", 1)] and len(world.lists) == 2
        assert 600.0 / NAME_RETRY_MAX_S <= len(world.resolver.asked) - before <= 70, "less and less often"
        assert world.fixed.problems(KEY) == ["app.test:80: the name servers answered SERVFAIL"]
        assert world.fixed.cause_of(KEY) is None, "it has pods"
        world.resolver.said["app.test"] = answer("10.0.0.3")
        await world.pass_time(11.0)
        assert world.pods() == [("10.0.0.3:80", 1)] and world.fixed.problems(KEY) == []

    with caplog.at_level("INFO", "activator"):
        run(scenario)
    assert caplog.messages == [
        f"{KEY}: app.test:80 cannot be resolved: the name servers answered SERVFAIL; its 1 addresses stay",
        f"{KEY}: app.test:80 resolves again",
    ]


def test_another_process_continues_with_the_last_answers_where_it_has_none() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1"), "gone.test": answer("10.0.0.2")}
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80", "app.test:81", "gone.test:80"]))
        await world.pass_time(0.5)
        names = world.fixed.handed()
        assert sorted((one.host, one.port, one.targets[0].ip) for one in names) == [
            ("app.test", 80, "10.0.0.1"),
            ("app.test", 81, "10.0.0.1"),
            ("gone.test", 80, "10.0.0.2"),
        ]
        other = World()
        other.resolver.said = {"app.test": answer("10.0.0.9"), "gone.test": ResolveError("no answer")}
        other.fixed.set_revision(KEY, Revision("a", pods=["app.test:80", "gone.test:80", "10.0.0.7:1"]))
        await other.pass_time(0.5)
        assert other.pods() == [("10.0.0.9:80", 1), ("10.0.0.7:1", 1)]
        other.fixed.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(names), type=tuple[HandedName, ...]))
        assert other.pods() == [("10.0.0.9:80", 1), ("10.0.0.2:80", 1), ("10.0.0.7:1", 1)]
        await other.pass_time(60.0)
        assert other.pods() == [("10.0.0.9:80", 1), ("10.0.0.2:80", 1), ("10.0.0.7:1", 1)], "as any last answer"
        other.resolver.said["gone.test"] = answer("10.0.0.3")
        await other.pass_time(11.0)
        assert other.pods() == [("10.0.0.9:80", 1), ("10.0.0.3:80", 1), ("10.0.0.7:1", 1)]
        await other.tasks.close()

    run(scenario)


def test_answers_of_a_former_process_serve_names_that_come_a_little_later() -> None:
    """A file of pods may be read after the answers have been handed over."""

    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": ResolveError("no answer")}
        world.fixed.restore([HandedName("app.test", 80, answer("10.0.0.2").targets)])
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80", "app.test:81"]))
        assert world.pods() == [("10.0.0.2:80", 1)]
        await world.pass_time(FORMER_S)
        assert world.pods() == [("10.0.0.2:80", 1)]
        world.fixed.drop_revision(KEY)
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80"]))
        assert world.pods() == [], "too late"

    run(scenario)


def test_a_name_that_is_gone_keeps_its_pods_for_a_while() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1", ttl_s=1.0)}
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80"]))
        await world.pass_time(0.5)
        world.resolver.said.clear()
        await world.pass_time(NAME_GONE_HOLD_S - 2.0)
        assert world.pods() == [("10.0.0.1:80", 1)]
        await world.pass_time(3.0 + NAME_RETRY_MAX_S)
        assert world.pods() == []
        found = world.fixed.cause_of(KEY)
        assert found is not None and found.cause == "app.test:80: there is no such name"

    run(scenario)


def test_requests_that_wait_have_a_name_asked_again_but_not_all_the_time() -> None:
    async def scenario(world: World) -> None:
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80"]))
        await world.pass_time(120.0)
        before = len(world.resolver.asked)
        for _ in range(50):
            world.fixed.expedite(KEY)
            await world.pass_time(0.1)
        assert 8 <= len(world.resolver.asked) - before <= 11, "every half second"
        world.resolver.said["app.test"] = answer("10.0.0.1")
        world.fixed.expedite(KEY)
        await world.pass_time(0.6)
        assert world.pods() == [("10.0.0.1:80", 1)]
        asked = len(world.resolver.asked)
        world.fixed.expedite(KEY)
        await world.pass_time(1.0)
        assert len(world.resolver.asked) == asked, "it has pods: these are asked, not the name"

    run(scenario)


def test_a_name_that_hangs_delays_no_other_and_a_reload_keeps_what_is_known() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1"), "new.test": answer("10.0.0.5")}
        world.resolver.hanging.add("slow.test")
        world.fixed.set_revision(KEY, Revision("a", pods=["slow.test:80", "app.test:80"]))
        await world.pass_time(0.3)
        assert world.pods() == [("10.0.0.1:80", 1)]
        asked = len(world.resolver.asked)
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80", "new.test:81"]))
        assert world.pods() == [("10.0.0.1:80", 1)], "at no moment without the pod that stays"
        await world.pass_time(0.3)
        assert world.pods() == [("10.0.0.1:80", 1), ("10.0.0.5:81", 1)]
        assert world.resolver.asked[asked:] == ["new.test"]
        world.fixed.drop_revision(KEY)
        told = len(world.lists)
        world.resolver.hangs.set()
        await world.pass_time(60.0)
        assert len(world.lists) == told and world.resolver.asked[asked:] == ["new.test"]

    run(scenario)


def test_records_of_services_have_their_ports_and_weights() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"_x._tcp.test": Resolved((Target("10.0.0.1", 81, 7), Target("fd00::1", 82, 2)), 5.0)}
        world.fixed.set_revision(KEY, Revision("a", pods=[Pod(srv="_x._tcp.test")]))
        await world.pass_time(0.3)
        assert world.pods() == [("10.0.0.1:81", 7), ("[fd00::1]:82", 2)]

    run(scenario)


def test_zones_of_addresses_and_of_all_addresses_of_a_name() -> None:
    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1", "10.0.0.2")}
        pods: list[str | Pod] = [Pod("app.test:80", zone="b"), "10.0.0.3:80", Pod("10.0.0.1:80", zone="c")]
        world.fixed.set_revision(KEY, Revision("a", prefer_zone=True, pods=pods))
        await world.pass_time(0.5)
        zones = {pod.address: pod.zone for pod in world.lists[-1].pods}
        assert zones == {"10.0.0.1:80": "b", "10.0.0.2:80": "b", "10.0.0.3:80": ""}, "the first part decides"
        lists = len(world.lists)
        world.fixed.set_revision(KEY, Revision("a", prefer_zone=True, pods=[Pod("app.test:80", zone="d"), *pods[1:]]))
        assert [pod.zone for pod in world.lists[lists].pods] == ["d", "d", ""]

    run(scenario)


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["servfail", "gone"]),
            st.sets(st.integers(1, 4), min_size=1).map(lambda ids: tuple(f"10.0.0.{one}" for one in sorted(ids))),
        ),
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_resolver_says_the_pods_are_those_of_the_last_answer(story: list[str | tuple[str, ...]]) -> None:
    """The oracle: an answer replaces, a failure keeps, and so does an end that has not lasted."""

    async def scenario(world: World) -> None:
        world.resolver.said = {"app.test": answer("10.0.0.1", ttl_s=1.0)}
        world.fixed.set_revision(KEY, Revision("a", pods=["app.test:80"]))
        await world.pass_time(0.5)
        expected, failing_s = {"10.0.0.1:80"}, 0.0
        for step in story:
            if isinstance(step, tuple):
                world.resolver.said["app.test"] = answer(*step, ttl_s=1.0)
            else:
                error = ResolveError("x") if step == "servfail" else NameGoneError("y")
                world.resolver.said["app.test"] = error
            await world.pass_time(NAME_RETRY_MAX_S + 1.0, step_s=0.5)
            if isinstance(step, tuple):
                expected, failing_s = {f"{ip}:80" for ip in step}, 0.0
            else:
                failing_s += NAME_RETRY_MAX_S + 1.0
                if step == "gone" and failing_s > NAME_GONE_HOLD_S + 2 * NAME_RETRY_MAX_S:
                    expected = set()
            now = {address for address, _ in world.pods()}
            assert now == expected or (step == "gone" and not now and failing_s >= NAME_GONE_HOLD_S)
            expected = now

    run(scenario)


# --- files ---


@pytest.mark.parametrize(
    "text",
    [
        b'["10.0.0.1:80", {"address": "10.0.0.2:80", "weight": 3}]',
        b"- 10.0.0.1:80\n- {address: '10.0.0.2:80', weight: 3}\n",
    ],
)
def test_a_file_in_json_or_yaml(text: bytes) -> None:
    assert read_pods(text) == ["10.0.0.1:80", Pod("10.0.0.2:80", 3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "found nothing, expected a list of pods"),
        (b"{}", "found a mapping, expected a list of pods"),
        (b'["10.0.0.1:80", "10.0.0.1"]', 'entry 2: found "10.0.0.1", expected host:port'),
        (b'[{"adress": "10.0.0.1:80"}]', "entry 1: Object contains unknown field `adress`"),
        (b'[{"address": "10.0.0.1:80", "weight": 5000}]', "entry 1: Expected `int` <= 1000"),
        (
            b'[{"address": "10.0.0.1:80", "zone": "a b"}]',
            "entry 1: found a `zone` of another form, expected at most 63 letters, digits",
        ),
        (b'[{"weight": 1}]', "entry 1: set either `address` or `srv`"),
        (b"- [1\n- : :\n", "it is neither JSON nor YAML"),
        (b"[" * 100_000, "it is neither JSON nor YAML"),
        (b"- 10.0.0.1:80\n" * 50_000, "it is not JSON, and YAML may have 256 KiB at most: write a larger file as JSON"),
        (b"\xff\xfe\x00", "it is neither JSON nor YAML"),
        (json.dumps(["10.0.0.1:80"] * (PODS_FILE_PODS_MAX + 1)).encode(), "found 20001 pods, expected at most 20000"),
    ],
)
def test_what_is_no_list_of_pods(text: bytes, problem: str) -> None:
    with pytest.raises(PodsFileError) as caught:
        read_pods(text)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def pods_file(
    path: Path, clock: ManualClock, changed: Callable[[], None] = lambda: None, wall_s: float | None = None
) -> PodsFile:
    """The file at `path`, which was written before `wall_s`; None: in this moment."""

    def wall_clock() -> float:
        return path.stat().st_mtime if wall_s is None and path.exists() else wall_s or 0.0

    return PodsFile("the file", str(path), changed, clock.now, lambda event, seconds: event.wait(), wall_clock)


OLD = "- 10.9.9.9:80\n"
LISTS = {
    "JSON": '[\n"10.0.0.1:8080",\n{"address": "10.0.0.2:8080", "weight": 25}\n]\n',
    "YAML in brackets": "[10.0.0.1:8080,\n {address: 10.0.0.2:8080, weight: 25}]\n",
    "YAML with its end": "- 10.0.0.1:8080\n- address: 10.0.0.2:8080\n  weight: 25\n...\n",
    "YAML": "- 10.0.0.1:8080\n- address: 10.0.0.2:8080\n  weight: 25\n",
}


def test_a_list_that_is_renamed_into_place_all_the_time_is_taken(tmp_path: Path) -> None:
    """By a writer that does so each second, whether the list has changed or not."""
    path = tmp_path / "pods"

    async def scenario() -> None:
        clock = ManualClock(1000.0)
        path.write_text(OLD)
        file = pods_file(path, clock)
        for _ in range(5):
            other = tmp_path / "other"
            other.write_text("- 10.0.0.1:8080\n")
            other.rename(path)
            await file.check()
            clock.pass_time(1.0)
        assert file.entries == ["10.0.0.1:8080"]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", LISTS)
def test_a_writer_that_pauses_anywhere_is_not_believed_before_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It writes in place, and pauses at each byte: for any time if the list shows its end, else for nearly 3 s."""
    path, text = tmp_path / "pods", LISTS[kind]
    whole: list[str | Pod] = ["10.0.0.1:8080", Pod("10.0.0.2:8080", 25)]
    pause_s = PODS_FILE_QUIET_S - 0.1 if kind == "YAML" else 60.0

    async def scenario() -> None:
        clock = ManualClock(1000.0)
        path.write_text(OLD + "...\n" * (kind == "YAML with its end"))
        file = pods_file(path, clock)
        await file.check()
        clock.pass_time(PODS_FILE_QUIET_S)
        await file.check()
        assert file.entries == ["10.9.9.9:80"]
        for length in range(len(text.rstrip())):
            path.write_text(text[:length])
            await file.check()
            clock.pass_time(pause_s)
            await file.check()
            assert file.entries == ["10.9.9.9:80"], text[:length]
        path.write_text(text)
        await file.check()
        assert (file.entries == whole) is (kind != "YAML")
        clock.pass_time(PODS_FILE_QUIET_S)
        await file.check()
        assert file.entries == whole

    with caplog.at_level("WARNING", "activator"):
        asyncio.run(scenario())
    if kind == "YAML":
        assert caplog.messages == [], "no mistake is reported while the writer writes"


def test_a_file_that_was_there_long_before_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(OLD)

    async def scenario(ago_s: float) -> list[str | Pod]:
        file = pods_file(path, ManualClock(1000.0), wall_s=path.stat().st_mtime + ago_s)
        await file.check()
        return file.entries

    assert asyncio.run(scenario(PODS_FILE_QUIET_S + 1.0)) == ["10.9.9.9:80"]
    assert asyncio.run(scenario(1.0)) == []
    assert asyncio.run(scenario(-3600.0)) == [], "a clock of another machine"


def test_a_file_is_followed_and_bad_content_keeps_the_pods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pods.json"

    async def scenario() -> None:
        clock = ManualClock()
        changes: list[int] = []
        file = pods_file(path, clock, lambda: changes.append(1))
        await file.check()
        assert file.problem == "it cannot be read: no such file or directory"
        steps: list[tuple[bytes, list[str]]] = [
            (b'["10.0.0.1:80"]', ["10.0.0.1:80"]),
            (b'["10.0.0.1:80", "10.0', ["10.0.0.1:80"]),
            (b'["10.0.0.1:80", "10.0.0.2:80"]', ["10.0.0.1:80", "10.0.0.2:80"]),
            (b" " * (PODS_FILE_BYTES_MAX + 1), ["10.0.0.1:80", "10.0.0.2:80"]),
            (b"[]", []),
        ]
        for text, pods in steps:
            path.write_bytes(text)
            await file.check()
            clock.pass_time(PODS_FILE_QUIET_S)
            await file.check()
            assert file.entries == pods
        other = tmp_path / "other"
        other.write_bytes(b'["10.0.0.7:80"]')
        os.replace(other, path)
        await file.check()
        assert file.entries == ["10.0.0.7:80"] and file.problem == ""
        path.unlink()
        await file.check()
        assert file.entries == ["10.0.0.7:80"] and "no such file" in file.problem
        before = len(changes)
        path.mkdir()
        await file.check()
        assert "is a directory" in file.problem and len(changes) == before + 1

    with caplog.at_level("WARNING", "activator"):
        asyncio.run(scenario())
    assert len(caplog.messages) == 5, "one line for each mistake"
    assert caplog.messages[1].endswith("; its 1 pods stay")


def test_pods_of_a_file_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"

    async def scenario() -> None:
        world = World()
        world.resolver.said = {"app.test": answer("10.0.0.5")}
        world.fixed.set_revision(KEY, Revision("a", pods=["10.0.0.1:80"], pods_file=str(path)))
        watch = world.fixed._revisions[KEY].file
        assert watch is not None
        path.write_text("- 10.0.0.2:80\n- app.test:80\n...\n")
        await watch.check()
        await turns(30)
        assert [address for address, _ in world.pods()] == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.5:80"]
        path.write_text("[10.0.0.2:80, 10.0.0.3:80]\n")
        await watch.check()
        assert [address for address, _ in world.pods()] == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
        world.fixed.set_revision(KEY, Revision("a", pods=["10.0.0.1:80"]))
        assert [address for address, _ in world.pods()] == ["10.0.0.1:80"]
        world.fixed.set_revision(KEY, Revision("a", pods_file=str(tmp_path / "gone")))
        gone = world.fixed._revisions[KEY].file
        assert gone is not None
        await gone.check()
        cause = f"the pods_file {tmp_path / 'gone'}: it cannot be read: no such file or directory"
        assert world.fixed.cause_of(KEY) == Failing(world.clock.now(), cause)
        await world.tasks.close()
        assert world.errors == []

    asyncio.run(scenario())
