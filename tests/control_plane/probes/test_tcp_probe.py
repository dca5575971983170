"""When queue-proxy is asked: just after its program began to listen, where that can be seen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from activator.config.model.pods import PROBE_QUEUE_PROXY
from activator.config.specs import ProbeSpec
from activator.control_plane.probes.probe import (
    PROBE_EXPEDITED_LONG_S,
    PROBE_EXPEDITED_LONG_STEP_S,
    PROBES_EXPEDITED_MAX,
    ProbeOutcome,
    ProbeRequest,
)
from activator.control_plane.probes.tcp_probe import (
    TCP_PROBE_PROOF_S,
    TCP_PROBE_STEP_MAX_S,
    TCP_PROBE_STEP_S,
    TCP_PROBE_TRUST_S,
    TCP_PROBE_UNKNOWN_S,
    TcpProber,
    connects,
)
from tests.manual_clock import ManualClock

LONG_S = 30.0  # never waited for

REQUEST = ProbeRequest("10.0.0.1:8012", ProbeSpec(PROBE_QUEUE_PROXY, port=8080), revision="ns/app", expedited=True)


class World:
    """A program that begins to listen at `listens_s`; `shows`: its port can be seen."""

    def __init__(self, listens_s: float, shows: bool = True, silent: bool = False) -> None:
        self.clock = ManualClock(0.0)
        self.listens_s = listens_s
        self.shows = shows
        self.silent = silent
        self.asked_s: list[float] = []
        self.knocker = TcpProber(self.clock.now, self._probe, self._knock, self._wait)

    async def _probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        self.asked_s.append(self.clock.now_s)
        return ProbeOutcome.ANSWERED if self.clock.now_s >= self.listens_s else ProbeOutcome.REFUSED

    async def _knock(self, host: str, port: int) -> bool | None:
        assert (host, port) == ("10.0.0.1", 8080)
        if self.silent:
            return None
        return self.shows and self.clock.now_s >= self.listens_s

    async def _wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def ask(self, request: ProbeRequest = REQUEST, timeout_s: float = 1.0) -> ProbeOutcome:
        return asyncio.run(self.knocker.probe(request, timeout_s))

    def start(self, after_s: float) -> None:
        """The pod is gone, and another begins to start."""
        self.listens_s = self.clock.now_s + after_s
        self.asked_s.clear()


def until_answered(world: World) -> None:
    while world.ask() is not ProbeOutcome.ANSWERED:
        world.clock.now_s += 0.002


def test_a_program_that_starts_at_once_is_asked_when_it_listens() -> None:
    world = World(0.01)
    assert world.ask() is ProbeOutcome.ANSWERED
    assert len(world.asked_s) == 1 and 0.0 <= world.asked_s[0] - 0.01 <= TCP_PROBE_STEP_S


def test_of_an_unknown_port_the_probe_waits_a_moment_only() -> None:
    world = World(10.0)
    assert world.ask() is ProbeOutcome.REFUSED
    assert world.asked_s and world.asked_s[0] <= TCP_PROBE_UNKNOWN_S + TCP_PROBE_STEP_S


def test_a_port_that_was_seen_is_waited_for() -> None:
    world = World(0.5)
    until_answered(world)
    world.start(after_s=2.0)
    until_answered(world)
    assert len(world.asked_s) == 1, "no request came too early"
    assert 0.0 <= world.asked_s[0] - world.listens_s <= TCP_PROBE_STEP_MAX_S + 0.002


def test_but_not_for_ever() -> None:
    world = World(0.0)
    until_answered(world)
    world.start(after_s=100.0)
    began_s = world.clock.now_s
    while not world.asked_s:
        world.ask()
    assert TCP_PROBE_TRUST_S <= world.asked_s[0] - began_s <= TCP_PROBE_TRUST_S + 1.1


def test_a_hidden_port_is_not_waited_for_again() -> None:
    world = World(0.5, shows=False)
    until_answered(world)
    world.start(after_s=0.5)
    before = world.knocker.tcp_probes_total
    world.ask()
    assert world.asked_s == [world.clock.now_s] and world.knocker.tcp_probes_total == before


def test_a_port_that_says_nothing_is_hidden() -> None:
    world = World(0.0, silent=True)
    assert world.ask() is ProbeOutcome.ANSWERED
    assert world.asked_s == [0.0]


def test_whose_requests_do_not_wait_is_not_knocked_at() -> None:
    world = World(0.5)
    world.ask(ProbeRequest(REQUEST.address, REQUEST.probe, revision="ns/app"))
    world.ask(ProbeRequest(REQUEST.address, ProbeSpec(PROBE_QUEUE_PROXY), revision="ns/app", expedited=True))
    assert world.knocker.tcp_probes_total == 0 and world.asked_s == [0.0, 0.0]


def test_the_timeout_bounds_the_wait() -> None:
    world = World(0.0)
    until_answered(world)
    world.start(after_s=3.0)
    began_s = world.clock.now_s
    assert world.ask(timeout_s=0.25) is ProbeOutcome.REFUSED
    assert world.clock.now_s - began_s <= 0.25 + TCP_PROBE_STEP_MAX_S and world.asked_s == []


def steps_of(pods: int, waited_s: float) -> list[float]:
    """How long is waited between two knocks at each of so many pods whose revisions have been seen, after so long."""
    clock = ManualClock(0.0)
    steps: list[float] = []

    async def probe_pod(request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        return ProbeOutcome.ANSWERED

    async def knock(host: str, port: int) -> bool:
        return opens

    async def wait(seconds: float) -> None:
        steps.append(seconds)
        await asyncio.sleep(0)  # all of them knock by now
        clock.now_s += seconds / pods

    async def run() -> None:
        await asyncio.gather(*(knocker.probe(request, 0.5) for request in requests))

    knocker = TcpProber(clock.now, probe_pod, knock, wait)
    probe = ProbeSpec(PROBE_QUEUE_PROXY, port=8080)
    requests = [ProbeRequest(f"10.0.0.{n}:8012", probe, revision=f"ns/{n}", expedited=True) for n in range(pods)]
    opens = True
    asyncio.run(run())
    opens = False
    asyncio.run(run())
    clock.now_s += waited_s
    steps.clear()
    asyncio.run(run())
    return steps[pods:]  # the first of each was before all were there


def test_many_that_wait_are_no_stampede() -> None:
    few, many = steps_of(2, 1.0), steps_of(200, 1.0)
    assert max(few) <= TCP_PROBE_STEP_MAX_S
    assert min(many) >= TCP_PROBE_STEP_MAX_S * 200 / PROBES_EXPEDITED_MAX / 2
    assert min(steps_of(2, PROBE_EXPEDITED_LONG_S)) >= PROBE_EXPEDITED_LONG_STEP_S


def test_another_pod_at_the_address_is_knocked_at_as_a_new_one() -> None:
    world = World(0.0)
    until_answered(world)
    world.start(after_s=100.0)
    first, second = (ProbeRequest(REQUEST.address, REQUEST.probe, None, uid, "ns/app", True) for uid in ("a", "b"))
    while not world.asked_s:
        world.ask(first)
    world.start(after_s=0.5)
    while not world.asked_s:
        world.ask(second)
    assert world.asked_s[0] >= world.listens_s, "its program was waited for, whatever the one before did"


class Pod:
    """A queue-proxy that a kubelet has asked too early, so that it lets requests hang; and its program.

    `queue_s`, `program_s`: since when their ports take connections. `at_once`: what a request hears at once when the
    program listens; None: it hangs then too.
    """

    def __init__(self, queue_s: float, program_s: float, at_once: ProbeOutcome | None = None) -> None:
        self.clock = ManualClock(0.0)
        self.opens_s = {8012: queue_s, 8080: program_s}
        self.at_once = at_once
        self.knocker = TcpProber(self.clock.now, self._probe, self._knock, self._wait)

    async def _probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        if self.clock.now_s < self.opens_s[8012]:
            return ProbeOutcome.REFUSED
        if self.clock.now_s < self.opens_s[8080] or self.at_once is None:
            for _ in range(100):  # it hangs: others have their turns
                await asyncio.sleep(0)
            return ProbeOutcome.SILENT
        return self.at_once

    async def _knock(self, host: str, port: int) -> bool | None:
        return self.clock.now_s >= self.opens_s[port]

    async def _wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def answers(self, suffices: bool = True) -> set[ProbeOutcome]:
        """What it came to, from the program's listening on."""
        probe = ProbeSpec(PROBE_QUEUE_PROXY, port=8080, port_suffices=suffices)
        request = ProbeRequest("10.0.0.1:8012", probe, revision="ns/app", expedited=True)

        async def first_and_second() -> ProbeOutcome:
            hanging = asyncio.create_task(self.knocker.probe(request, 1.0))
            found = await self.knocker.probe(request, 1.0)
            return found if ProbeOutcome.ANSWERED not in (found, await hanging) else ProbeOutcome.ANSWERED

        heard = set()
        while self.clock.now_s < self.opens_s[8080] + 0.1:
            found = asyncio.run(first_and_second())
            if self.clock.now_s >= self.opens_s[8080]:
                heard.add(found)
            if found is ProbeOutcome.ANSWERED:
                break
            self.clock.now_s += 0.002
        return heard


def test_a_hanging_probe_does_not_count_where_the_port_itself_has_opened() -> None:
    pod = Pod(0.0, 0.5)
    assert pod.answers() == {ProbeOutcome.ANSWERED}
    assert pod.clock.now_s <= 0.5 + TCP_PROBE_STEP_MAX_S + TCP_PROBE_PROOF_S + 0.002


def test_but_where_queue_proxy_looks_for_more() -> None:
    assert ProbeOutcome.ANSWERED not in Pod(0.0, 0.5).answers(suffices=False)


def test_nor_where_ports_open_together_as_behind_a_mesh() -> None:
    assert ProbeOutcome.ANSWERED not in Pod(0.5, 0.5).answers()
    assert ProbeOutcome.ANSWERED not in Pod(0.0, 0.0).answers()


def test_what_queue_proxy_says_at_once_counts_all_the_same() -> None:
    assert ProbeOutcome.ANSWERED not in Pod(0.0, 0.5, at_once=ProbeOutcome.REFUSED).answers()
    assert Pod(0.0, 0.5, at_once=ProbeOutcome.ANSWERED).answers() == {ProbeOutcome.ANSWERED}


def test_ports_as_they_are() -> None:
    with socket.socket() as listening, socket.socket() as closed:
        for one in (listening, closed):
            one.bind(("127.0.0.1", 0))
        listening.listen()
        assert found(listening) is True
        assert found(closed) is False


def test_a_port_that_does_not_answer_tells_nothing() -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # more than fit into its line: what comes then is dropped
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert found(full, 0.01) is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_loop_that_is_late_is_not_taken_for_a_silent_port(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """It turns once in the time that the port has, and then not until that time is over."""

    async def found_late(port: socket.socket) -> bool | None:
        looking = asyncio.create_task(connects("127.0.0.1", port.getsockname()[1], 0.01))
        await asyncio.sleep(0)
        time.sleep(0.03)  # noqa: ASYNC251 - that is the point
        return await looking

    async def both() -> None:
        with socket.socket() as listening, socket.socket() as closed:
            for port in (listening, closed):
                port.bind(("127.0.0.1", 0))
            listening.listen()
            assert await found_late(listening) is True
            assert await found_late(closed) is False

    run(both())


def found(port: socket.socket, silent_s: float = LONG_S) -> bool | None:
    return asyncio.run(connects("127.0.0.1", port.getsockname()[1], silent_s))
