"""Pods that report themselves: whom to believe, what is asked first, what becomes of a report, when it grows old."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from activator.config.specs import DRAIN_TIMEOUT_S
from activator.control_plane.probes.probe import ProbeOutcome, ProbeRequest
from activator.control_plane.sources.push.intake import (
    PUSH_VALIDATIONS_MAX,
    PUSH_WAITING_MAX,
    Network,
    PushIntake,
    Report,
    ReportOutcome,
    parse_address,
)
from activator.control_plane.state.health import PUSH_FRESH_S, PUSH_PROVISIONAL_S
from activator.messages import PUSH, PodGone, PodsListed, PodStatus, RevisionSet, Sweep
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.shuffled_loop import run_shuffled

PEER = "10.0.0.1"


class Reporting:
    """An intake before a worker that works at once."""

    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self.joined = Joined()
        self.joined.do(RevisionSet(SPEC))
        self.answers: dict[str, ProbeOutcome] = {}
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.intake = PushIntake(
            self.joined.worker.submit_with_outcome, self.joined.worker.model, networks, self._probe
        )

    async def _probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        self.asked.append(request.address)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        return self.answers.get(request.address, ProbeOutcome.ANSWERED)

    def start(self, pod: str, state: Any, address: str = f"{PEER}:80", peer: str = PEER) -> asyncio.Task[ReportOutcome]:
        return asyncio.create_task(self.intake.receive(Report("rev", pod, address, state, "ns"), peer))

    async def turns(self, count: int = 12) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.joined.do()

    async def say(self, pod: str, state: Any, address: str = f"{PEER}:80", peer: str = PEER) -> ReportOutcome:
        task = self.start(pod, state, address, peer)
        while not task.done():
            await self.turns(1)
        return task.result()

    def pass_time(self, seconds: float) -> dict[str, str]:
        """The slots, after so long."""
        self.joined.clock.pass_time(seconds)
        self.joined.do(Sweep(KEY))
        return self.joined.slots()


def story(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run on a loop that shuffles what is ready, three times."""

    def run() -> None:
        for seed in range(3):
            run_shuffled(seed, scenario)

    run.__name__ = scenario.__name__
    return run


@story
async def test_a_pod_first_heard_of_as_ready_is_asked_before_it_has_a_slot() -> None:
    world = Reporting()
    world.gate.clear()
    task = world.start("p1", "ready")
    await world.turns()
    assert (world.asked, world.joined.slots()) == ([f"{PEER}:80"], {})
    world.gate.set()
    await world.turns()
    assert task.result() is ReportOutcome.APPLIED
    assert world.joined.slots() == {"p1": "ready"}
    assert await world.say("p1", "ready") is ReportOutcome.APPLIED
    assert len(world.asked) == 1, "known by now"


@story
async def test_nothing_is_kept_of_a_report_that_was_overtaken() -> None:
    world = Reporting()
    world.gate.clear()
    tasks = []
    for number in range(20):
        tasks.append(world.start(f"p{number}", "ready"))
        await world.turns(2)
        tasks.append(world.start(f"p{number}", "starting"))
        tasks.append(world.start(f"p{number}", "ready"))
        await world.turns(2)
    assert len(world.intake._newest) == 20
    world.gate.set()
    await world.turns(200)
    assert {task.result() for task in tasks} <= {ReportOutcome.APPLIED, ReportOutcome.SUPERSEDED}
    assert world.intake._newest == {} and not world.intake._validations


@story
async def test_pods_of_other_sources_are_reported_with_a_token_only() -> None:
    world = Reporting()
    world.intake._takes_listed = False
    world.joined.do(PodsListed(KEY, "file", (seen("listed", PodStatus.PENDING, address=f"{PEER}:80"),)))
    for state in ("starting", "ready", "not_ready", "draining"):
        assert await world.say("listed", state) is ReportOutcome.FOREIGN_POD
    assert world.joined.slots() == {"listed": "pending"}


@story
async def test_a_port_of_the_program_is_no_pod() -> None:
    world = Reporting()
    world.intake._is_own = lambda address: address.endswith(":8008")
    assert await world.say("p1", "ready", f"{PEER}:8008") is ReportOutcome.OWN_ADDRESS
    assert world.joined.slots() == {} and world.asked == []


@story
async def test_a_pod_that_says_ready_and_does_not_answer_gets_no_slot() -> None:
    world = Reporting()
    world.answers[f"{PEER}:80"] = ProbeOutcome.REFUSED
    assert await world.say("p1", "ready") is ReportOutcome.NOT_VALIDATED
    assert world.joined.slots() == {}
    assert world.intake.validation_totals == {ProbeOutcome.REFUSED: 1}
    assert world.intake.verdict_totals == {ReportOutcome.NOT_VALIDATED: 1}
    assert world.intake._newest == {}


@story
async def test_a_validation_counts_only_if_nothing_newer_was_said() -> None:
    world = Reporting()
    world.gate.clear()
    await world.say("p1", "starting")
    ready = world.start("p1", "ready")
    await world.turns()
    assert await world.say("p1", "starting") is ReportOutcome.APPLIED
    world.gate.set()
    await world.turns()
    assert ready.result() is ReportOutcome.SUPERSEDED
    assert world.joined.slots() == {"p1": "pending"}


@story
async def test_a_result_is_bound_to_the_identity_that_was_asked_about() -> None:
    """Two identities say ready at one address, an IP that was used again: neither answer counts for the other."""
    world = Reporting()
    assert await world.say("old", "ready") is ReportOutcome.APPLIED
    assert await world.say("new", "ready") is ReportOutcome.APPLIED
    assert world.asked == [f"{PEER}:80"] * 2
    newest = world.joined.throttler().table.find(f"{PEER}:80")
    assert newest is not None
    assert newest.identity == "new"


@story
async def test_validations_at_once_are_bounded() -> None:
    world = Reporting((ipaddress.ip_network("10.0.0.0/8"),))
    world.gate.clear()
    tasks = [world.start(f"p{number}", "ready", f"10.0.1.{number}:80") for number in range(100)]
    await world.turns()
    world.gate.set()
    while not all(task.done() for task in tasks):
        await world.turns(1)
    assert world.most_at_once == PUSH_VALIDATIONS_MAX
    assert {task.result() for task in tasks} == {ReportOutcome.APPLIED}


@story
async def test_a_pod_that_says_that_it_is_elsewhere_now_is_asked_there() -> None:
    world = Reporting((ipaddress.ip_network("10.0.0.0/8"),))
    assert await world.say("p1", "ready") is ReportOutcome.APPLIED
    elsewhere = "10.0.1.1:80"
    world.answers[elsewhere] = ProbeOutcome.SILENT
    assert await world.say("p1", "ready", elsewhere) is ReportOutcome.NOT_VALIDATED
    table = world.joined.throttler().table
    assert (table.find(elsewhere), world.joined.slots()) == (None, {"p1": "ready"}), "what is known of it stands"
    world.answers[elsewhere] = ProbeOutcome.ANSWERED
    assert await world.say("p1", "ready", elsewhere) is ReportOutcome.APPLIED
    assert world.asked == [f"{PEER}:80", elsewhere, elsewhere]
    moved = table.find(elsewhere)
    assert moved is not None and moved.identity == "p1" and table.find(f"{PEER}:80") is None


def test_those_who_wait_to_be_asked_are_bounded_too() -> None:
    async def scenario() -> None:
        world = Reporting((ipaddress.ip_network("10.0.0.0/8"),))
        world.gate.clear()
        waiting = [world.start(f"p{number}", "ready", f"10.0.1.1:{number + 1}") for number in range(PUSH_WAITING_MAX)]
        await world.turns(1)
        assert await world.say("late", "ready") is ReportOutcome.BUSY
        assert await world.say("other", "starting") is ReportOutcome.APPLIED, "what need not be asked goes on"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        world.gate.set()
        assert await world.say("late", "ready") is ReportOutcome.APPLIED, "whoever gave up has left its place"

    asyncio.run(scenario())


def test_a_report_that_is_not_applied_soon_is_answered_all_the_same() -> None:
    """As where its revision is parked after an error of ours: it is accepted, and is applied in its time."""

    async def scenario() -> None:
        joined = Joined()
        joined.do(RevisionSet(SPEC))
        intake = PushIntake(joined.worker.submit_with_outcome, joined.worker.model, (), answer_within_s=0.001)
        assert await intake.receive(Report("rev", "p1", f"{PEER}:80", "starting", "ns"), PEER) is ReportOutcome.WAITING
        joined.do()
        assert joined.slots() == {"p1": "pending"}
        assert intake.verdict_totals == {ReportOutcome.WAITING: 1}

    asyncio.run(scenario())


@story
async def test_whom_to_believe() -> None:
    world = Reporting((ipaddress.ip_network("192.168.7.0/24"),))
    assert await world.say("p1", "starting", peer="10.0.0.2") is ReportOutcome.FOREIGN_ADDRESS
    assert await world.say("p1", "starting", address="192.168.7.9:80") is ReportOutcome.APPLIED
    assert await world.say("p2", "starting", peer=f"::ffff:{PEER}") is ReportOutcome.APPLIED
    assert await world.say("p3", "starting", address="[::1]:80", peer="::1") is ReportOutcome.APPLIED
    assert await world.say("p4", "starting", address="here:80") is ReportOutcome.BAD_ADDRESS
    assert await world.say("p5", "draining") is ReportOutcome.UNKNOWN_POD
    world.joined.do(seen("p6"))
    assert await world.say("p6", "ready") is ReportOutcome.OTHER_ADDRESS
    foreign = Report("none", "p1", f"{PEER}:80", "starting", "ns")
    assert await world.intake.receive(foreign, PEER) is ReportOutcome.UNKNOWN_REVISION
    assert await world.say("p6", "draining", "10.0.0.6:80", "10.0.0.6") is ReportOutcome.APPLIED
    assert world.joined.slots()["p1"] == "pending"
    assert world.joined.slots().get("p6") in {None, "draining"}


@story
async def test_what_a_pod_says_of_itself_beats_a_list_while_it_is_fresh() -> None:
    world = Reporting()
    world.joined.do(seen("p1", PodStatus.NOT_READY))
    assert await world.say("p1", "ready") is ReportOutcome.APPLIED
    assert world.asked == [], "it is listed"
    assert world.joined.slots() == {"p1": "ready"}
    world.joined.do(PodsListed(KEY, "list", (seen("p1", PodStatus.NOT_READY),)))
    assert world.pass_time(PUSH_FRESH_S - 1.0) == {"p1": "ready"}
    assert await world.say("p1", "ready") is ReportOutcome.APPLIED
    assert world.pass_time(PUSH_FRESH_S - 1.0) == {"p1": "ready"}, "it has repeated itself"
    assert world.pass_time(1.0) == {"p1": "not_ready"}
    await world.say("p1", "starting")
    world.joined.do(seen("p1", PodStatus.READY))
    assert world.joined.slots() == {"p1": "pending"}
    await world.say("p1", "not_ready")
    assert world.joined.slots() == {"p1": "not_ready"}
    await world.say("p1", "draining")
    assert world.pass_time(DRAIN_TIMEOUT_S - 1.0) == {}
    assert world.pass_time(1.0) == {"p1": "ready"}, "nobody believes for ever that it goes"


@story
async def test_the_list_decides_whether_a_pod_exists() -> None:
    world = Reporting()
    world.joined.do(seen("p1"))
    await world.say("p1", "ready")
    world.joined.do(PodGone(KEY, "list", "p1"))
    assert world.joined.slots() == {}
    assert world.joined.worker.model.revisions[KEY].pods == {}


@story
async def test_a_pod_that_only_says_so_itself_is_provisional() -> None:
    world = Reporting()
    await world.say("p1", "ready")
    assert world.pass_time(PUSH_PROVISIONAL_S / 2) == {"p1": "ready"}
    await world.say("p1", "ready")
    assert world.pass_time(PUSH_PROVISIONAL_S / 2) == {}, "repeating itself does not make it exist"
    await world.say("p2", "ready")
    world.joined.do(seen("p2", PodStatus.PENDING, address=f"{PEER}:80"))
    assert world.pass_time(PUSH_PROVISIONAL_S) == {"p2": "pending"}, "a source has asserted it meanwhile"
    assert PUSH not in world.joined.worker.model.revisions[KEY].pods["p2"].claims


@story
async def test_saying_ready_does_not_end_a_quarantine() -> None:
    world = Reporting()
    world.joined.do(seen("p1"))
    world.joined.do(world.joined.refused("p1", True))
    assert await world.say("p1", "ready") is ReportOutcome.APPLIED
    assert world.joined.slots() == {"p1": "quarantined"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[0:0::1]:080", "[::1]:80"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        *(
            (bad, None)
            for bad in ("", ":80", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "::1:80", "a:80", "[10.0.0.1:80")
        ),
        *((bad, None) for bad in ("[10.0.0.1]:80", "10.0.0.1:8 0", "10.0.0.1:+8", "[fe80::1%eth0]:80", "10.0.0.1:٣")),
    ],
)
def test_addresses_are_read_strictly(text: str, address: str | None) -> None:
    parsed = parse_address(text)
    assert (None if parsed is None else parsed[1]) == address
