"""Who is asked when: backoffs, haste, places, patience."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest

from activator.config.specs import ProbeSpec
from activator.control_plane.probes.probe import (
    PROBE_EXPEDITED_LONG_S,
    PROBE_EXPEDITED_LONG_STEP_S,
    PROBE_TIMEOUT_S,
    PROBES_EXPEDITED_MAX,
    ProbeOutcome,
    ProbeRequest,
)
from activator.control_plane.probes.probed_pod import (
    PROBE_BACKOFF_MAX_S,
    PROBE_EXPEDITE_S,
    PROBE_EXPEDITED_STEP_MAX_S,
    PROBE_EXPEDITED_STEP_MIN_S,
    PROBE_MOMENT_S,
    PROBE_SECOND_AFTER_S,
    PROBE_TIMEOUT_MAX_S,
    PROBE_TIMEOUT_MIN_S,
    PROBE_TIMEOUT_RTTS,
    AdaptiveTimeout,
)
from activator.control_plane.probes.prober import PROBE_REPEAT_S, PROBES_AT_ONCE_MAX, Panicked, Prober
from activator.messages import Change, Probed, ProbeOrder, SetProbes, StartProbe, StopProbe
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.conftest import DEEP
from tests.control_plane.state.state_fakes import KEY
from tests.manual_clock import ManualClock
from tests.shuffled_loop import run_shuffled
from tests.sources import ROOT


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Probing:
    """A prober on a clock that the test turns, and pods that answer as it says: by address, else SILENT."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: dict[str, ProbeOutcome] = {}
        self.hangs: set[str] = set()  # whose answers do not come
        self.let_go = asyncio.Event()  # … until this
        self.requests: list[ProbeRequest] = []
        self.asked_s: list[float] = []
        self.timeouts: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self.broken = False
        self.heeds = True  # an order ends when its answer has been heard, as the state worker does it
        self.deaf = 0  # so many answers cannot be said
        self.told: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.failed: list[str] = []  # revisions of which a pod was asked and did not answer
        self.panicked: Panicked = lambda key, what, error, now_s: PROBE_BACKOFF_MAX_S
        self.prober = Prober(
            self.tasks,
            self._hear,
            Rng(1),
            self.clock.now,
            self,
            self._count_panic,
            self._probe,
            self._wait,
            self.clock.call_later,
        )

    def _count_panic(self, key: str, what: object, error: object, now_s: float) -> float:
        return self.panicked(key, what, error, now_s)

    def pod_failed(self, key: str) -> None:
        self.failed.append(key)

    def pod_answered(self, key: str) -> None:
        pass

    async def _probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        self.requests.append(request)
        self.asked_s.append(self.clock.now())
        self.timeouts.append(timeout_s)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.broken:
                self.broken = False
                raise ValueError("a defect")
            if request.address in self.hangs:
                await self.let_go.wait()
            return self.found.get(request.address, ProbeOutcome.SILENT)
        finally:
            self.at_once -= 1

    def _hear(self, change: Change) -> None:
        if self.deaf:
            self.deaf -= 1
            raise RuntimeError("nobody takes it")
        self.told.append(change)
        if self.heeds and isinstance(change, Probed):
            orders: list[ProbeOrder] = [StopProbe(change.key, change.identity)]
            asyncio.get_running_loop().call_soon(self.prober.execute, orders)

    async def _wait(self, event: asyncio.Event, seconds: float) -> bool:
        timer = self.clock.call_later(max(seconds, 0.0), event.set)
        await event.wait()
        timer.cancel()
        return True

    def start(self, count: int) -> None:
        self.prober.execute([StartProbe(KEY, f"p{number}", str(number)) for number in range(count)])

    async def pass_time(self, seconds: float, expedited: bool = False) -> int:
        """In steps of a millisecond or, unexpedited, five, with everything that falls due; how many were asked."""
        before = len(self.requests)
        step_ms = 1 if expedited else 5
        for step in range(round(seconds * 1000) // step_ms):
            if expedited and step % 100 == 0:
                self.prober.expedite(KEY)
            self.clock.pass_time(step_ms / 1000.0)
            await turns(6)
        return len(self.requests) - before

    def proven(self) -> set[str]:
        return {change.identity for change in self.told if isinstance(change, Probed)}


def run(scenario: Callable[[Probing], Coroutine[None, None, None]]) -> None:
    """On loops that shuffle; nothing may be left over."""

    async def whole() -> None:
        probing = Probing()
        await scenario(probing)
        await probing.tasks.close()
        assert probing.errors == []
        assert probing.at_once == probing.prober.expedited == 0

    for seed in range(2):
        run_shuffled(seed, whole)


def test_who_does_not_answer_is_asked_less_and_less() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found["0"] = ProbeOutcome.REFUSED
        probing.start(1)
        await probing.pass_time(60.0)
        gaps = [after - before for before, after in zip(probing.asked_s, probing.asked_s[1:])]
        assert gaps[0] < 0.08
        assert PROBE_BACKOFF_MAX_S / 2 <= min(gaps[-3:]) <= max(gaps[-3:]) <= PROBE_BACKOFF_MAX_S * 1.5 + 0.01
        assert len(gaps) < 25
        probing.found["0"] = ProbeOutcome.ANSWERED
        await probing.pass_time(8.0)
        assert probing.proven() == {"p0"}

    run(scenario)


def test_when_requests_wait_the_next_probe_comes_at_once_and_then_every_few_milliseconds() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found["0"] = ProbeOutcome.REFUSED
        probing.start(1)
        await probing.pass_time(20.0)
        before = len(probing.requests)
        probing.prober.expedite("ns/other")
        await turns()
        assert len(probing.requests) == before
        probing.prober.expedite(KEY)
        await turns()
        assert len(probing.requests) == before + 1, "at once"
        for _ in range(50):
            probing.prober.expedite(KEY)  # as for each request that comes to wait
        await turns()
        assert len(probing.requests) == before + 1
        await probing.pass_time(5.0, expedited=True)
        gaps = [after - before for before, after in zip(probing.asked_s[before:], probing.asked_s[before + 1 :])]
        assert gaps[0] <= PROBE_EXPEDITED_STEP_MIN_S + 0.002
        assert max(gaps) <= PROBE_EXPEDITED_STEP_MAX_S + 0.002
        assert await probing.pass_time(PROBE_EXPEDITE_S + 8.0) < 20, "nobody waits any more"

    run(scenario)


def test_a_probe_that_hangs_is_asked_once_more_beside() -> None:
    """Knative's queue-proxy lets a request hang that it would answer now, were it asked anew."""

    async def scenario(probing: Probing) -> None:
        probing.hangs = {"0"}
        probing.start(1)
        assert await probing.pass_time(0.5) == 1, "nobody waits: one is enough"
        probing.prober.expedite(KEY)
        asked = await probing.pass_time(PROBE_SECOND_AFTER_S + 0.002, expedited=True)
        assert (asked, probing.at_once) == (1, 2)
        assert await probing.pass_time(1.0, expedited=True) == 0, "two and no more"
        probing.hangs.clear()
        probing.found["0"] = ProbeOutcome.ANSWERED
        probing.let_go.set()
        await turns()
        assert (probing.proven(), len(probing.told)) == ({"p0"}, 1)
        assert probing.at_once == 0, "the other is not waited for"

    run(scenario)


def test_beside_a_probe_that_hangs_the_second_is_repeated() -> None:
    async def scenario(probing: Probing) -> None:
        probing.hangs = {"0"}
        probing.found["0"] = ProbeOutcome.REFUSED
        probing.start(1)
        await turns()
        probing.hangs.clear()
        assert await probing.pass_time(0.5, expedited=True) > 20
        assert probing.at_once == 1
        probing.found["0"] = ProbeOutcome.ANSWERED
        await probing.pass_time(PROBE_EXPEDITED_STEP_MAX_S + 0.002, expedited=True)
        assert probing.proven() == {"p0"}

    run(scenario)


def test_many_who_are_expedited_are_asked_as_often_together_as_few() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found = {str(number): ProbeOutcome.REFUSED for number in range(40)}
        probing.start(40)
        await probing.pass_time(2.0, expedited=True)
        per_second = await probing.pass_time(1.0, expedited=True)
        most = PROBES_EXPEDITED_MAX / PROBE_EXPEDITED_STEP_MAX_S
        assert per_second <= 1.5 * most
        assert {request.address for request in probing.requests[-per_second:]} == set(probing.found), "in turns"

    run(scenario)


def test_who_has_been_expedited_for_long_is_asked_more_slowly() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found["0"] = ProbeOutcome.REFUSED
        probing.start(1)
        probing.prober.expedite(KEY)
        for _ in range(round(PROBE_EXPEDITED_LONG_S / (PROBE_EXPEDITE_S / 2)) + 1):
            probing.clock.pass_time(PROBE_EXPEDITE_S / 2)
            probing.prober.expedite(KEY)
            await turns()
        assert await probing.pass_time(1.0, expedited=True) <= 1.0 / PROBE_EXPEDITED_LONG_STEP_S + 1

    run(scenario)


def test_one_silent_pod_delays_no_other_and_a_defect_ends_no_probe() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found["1"] = ProbeOutcome.ANSWERED
        probing.broken = True
        probing.start(2)
        await probing.pass_time(0.5)
        assert probing.proven() == {"p1"}
        assert probing.prober.errors_total == 1
        probing.found["0"] = ProbeOutcome.ANSWERED
        await probing.pass_time(0.1, expedited=True)
        assert probing.proven() == {"p0", "p1"}

    run(scenario)


def test_thousands_that_are_silent_keep_nobody_waiting_whose_requests_wait() -> None:
    async def scenario(probing: Probing) -> None:
        silent = [f"silent-{number}" for number in range(40 * PROBES_AT_ONCE_MAX)]
        probing.hangs = set(silent)
        probing.prober.execute([StartProbe("ns/broken", one, one) for one in silent])
        await turns()
        assert probing.at_once == PROBES_AT_ONCE_MAX
        probing.found["0"] = ProbeOutcome.ANSWERED
        probing.prober.expedite(KEY)
        probing.start(1)
        await turns()
        assert probing.proven() == {"p0"}

    run(scenario)


def test_a_thousand_pods_are_not_asked_at_once() -> None:
    async def scenario(probing: Probing) -> None:
        probing.start(1000)
        await turns(120)
        assert len(probing.requests) == 1000
        assert probing.most_at_once == PROBES_AT_ONCE_MAX
        probing.prober.execute([StopProbe(KEY, f"p{number}") for number in range(1000)])
        await turns(5)
        assert probing.prober._probed == {}

    run(scenario)


def test_those_who_hang_keep_nobody_from_being_asked() -> None:
    async def scenario(probing: Probing) -> None:
        probing.hangs = {str(number) for number in range(PROBES_AT_ONCE_MAX)}
        probing.start(PROBES_AT_ONCE_MAX)
        await turns(40)
        assert probing.at_once == PROBES_AT_ONCE_MAX
        probing.found["x"] = ProbeOutcome.ANSWERED
        probing.prober.execute([StartProbe(KEY, "late", "x")])
        probing.clock.pass_time(PROBE_MOMENT_S - 0.001)
        await turns(40)
        assert probing.proven() == set(), "all places are held"
        probing.clock.pass_time(0.002)
        await turns()
        assert probing.proven() == {"late"}
        assert probing.at_once == PROBES_AT_ONCE_MAX

    run(scenario)


def test_each_revision_says_how_its_pods_are_asked() -> None:
    async def scenario(probing: Probing) -> None:
        probe = ProbeSpec("queue-proxy")
        probing.prober.execute([StartProbe(KEY, "p0", "0", probe)])
        await turns()
        assert probing.requests == [ProbeRequest("0", probe, None, "p0", KEY)]
        probing.prober.execute([StartProbe(KEY, "p0", "0", ProbeSpec("http", "/up"))])
        await turns()
        assert [request.probe.path for request in probing.requests] == ["", "/up"]

    run(scenario)


def test_the_timeout_of_a_probe_follows_the_distance() -> None:
    patience = AdaptiveTimeout()
    assert patience.timeout_s(0) == PROBE_TIMEOUT_S
    assert [patience.timeout_s(n) for n in range(1, 6)] == [2.0, 4.0, 8.0, PROBE_TIMEOUT_MAX_S, PROBE_TIMEOUT_MAX_S]
    for _ in range(100):
        patience.answered(0.001)
    assert patience.timeout_s(0) == PROBE_TIMEOUT_MIN_S
    patience.answered(0.3)
    assert patience.timeout_s(0) == 0.3 * 16.0


def test_the_distance_is_that_of_the_pods_that_have_answered_and_forgotten_with_them() -> None:
    async def scenario(probing: Probing) -> None:
        probing.hangs, probing.found["0"] = {"0"}, ProbeOutcome.ANSWERED
        probing.heeds = False
        probing.start(1)
        await turns()
        probing.clock.pass_time(0.2)
        probing.let_go.set()
        await turns()
        assert probing.proven() == {"p0"}
        probing.prober.execute([StartProbe(KEY, "p1", "1"), StartProbe("ns/other", "p2", "2")])
        await turns()
        given = {request.identity: timeout_s for request, timeout_s in zip(probing.requests, probing.timeouts)}
        expected = {"p0": PROBE_TIMEOUT_S, "p1": 0.2 * PROBE_TIMEOUT_RTTS, "p2": PROBE_TIMEOUT_S}
        assert given == pytest.approx(expected), "each revision has its own"
        probing.prober.execute([StopProbe(KEY, "p0"), StopProbe(KEY, "p1")])
        await turns()
        probing.prober.execute([StartProbe(KEY, "p3", "3")])
        await turns()
        assert probing.timeouts[3:] == [PROBE_TIMEOUT_S]

    run(scenario)


def test_of_who_is_not_asked_any_more_nothing_is_heard() -> None:
    async def scenario(probing: Probing) -> None:
        probing.hangs = {"0"}
        probing.found = {"0": ProbeOutcome.ANSWERED, "1": ProbeOutcome.SILENT, "elsewhere": ProbeOutcome.ANSWERED}
        probing.start(2)
        await turns()
        assert probing.at_once == 1
        probing.prober.execute([StopProbe(KEY, "p1"), StartProbe(KEY, "p0", "elsewhere")])
        await turns()
        assert probing.at_once == 0, "the request at its former address is let go"
        asked = len(probing.requests)
        probing.let_go.set()
        await probing.pass_time(20.0)
        assert probing.told == [Probed(KEY, "p0", "elsewhere")]
        assert len(probing.requests) == asked

    run(scenario)


def test_so_many_are_expedited_in_turns() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found = {str(number): ProbeOutcome.REFUSED for number in range(3 * PROBES_EXPEDITED_MAX)}
        probing.start(3 * PROBES_EXPEDITED_MAX)
        await turns(80)
        for turn in range(1, 4):
            before = len(probing.requests)
            probing.prober.expedite(KEY)
            assert probing.prober.expedited == turn * PROBES_EXPEDITED_MAX
            await turns(80)
            asked = {request.identity for request in probing.requests[before:]}
            first = (turn - 1) * PROBES_EXPEDITED_MAX
            assert asked == {f"p{number}" for number in range(first, first + PROBES_EXPEDITED_MAX)}
        await probing.pass_time(PROBE_EXPEDITE_S + 0.1)
        assert probing.prober.expedited == 0, "nobody waits any more"

    run(scenario)


def test_an_answer_that_nobody_has_heard_is_said_again() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found = {"0": ProbeOutcome.ANSWERED}
        probing.heeds = False
        probing.start(1)
        await probing.pass_time(PROBE_REPEAT_S - 0.1)
        assert (len(probing.told), len(probing.requests)) == (1, 1), "not at once"
        probing.found["0"] = ProbeOutcome.REFUSED
        await probing.pass_time(0.2)
        assert len(probing.told) == 1 < len(probing.requests), "it is asked again: it may be gone meanwhile"
        assert probing.prober.failing(KEY).keys() == {"p0"}
        probing.found["0"] = ProbeOutcome.ANSWERED
        probing.heeds = True
        await probing.pass_time(1.0)
        assert (len(probing.told), probing.prober._probed) == (2, {})
        await probing.pass_time(20.0)
        assert len(probing.told) == 2

    run(scenario)


def test_an_answer_that_cannot_be_said_is_said_later() -> None:
    async def scenario(probing: Probing) -> None:
        probing.found = {"0": ProbeOutcome.ANSWERED}
        probing.deaf = 2
        backoffs: list[tuple[str, str]] = []

        def panicked(key: str, what: object, error: object, now_s: float) -> float:
            backoffs.append((key, repr(error)))
            return 0.5

        probing.panicked = panicked
        probing.start(1)
        await probing.pass_time(2.0)
        assert probing.proven() == {"p0"} and probing.prober._probed == {}
        assert backoffs == [(KEY, "RuntimeError('nobody takes it')")] * 2

    run(scenario)


def test_an_order_that_fails_is_carried_out_later_and_the_others_at_once() -> None:
    async def scenario(probing: Probing) -> None:
        failures = {"p1": 2, "p2": 1}

        def start(name: str, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
            identity = coroutine.cr_frame.f_locals["pod"].order.identity  # type: ignore[attr-defined]
            if failures.get(identity, 0):
                failures[identity] -= 1
                coroutine.close()
                raise RuntimeError("no task")
            return started(name, coroutine)

        started, probing.tasks.start = probing.tasks.start, start  # type: ignore[method-assign]
        probing.panicked = lambda key, what, error, now_s: 0.5
        probing.found = {str(number): ProbeOutcome.ANSWERED for number in range(4)}
        probing.start(4)
        await turns()
        assert probing.proven() == {"p0", "p3"}
        probing.prober.execute([StopProbe(KEY, "p2")])
        await probing.pass_time(2.0)
        assert probing.proven() == {"p0", "p1", "p3"}, "p2 is not wanted any more"
        assert (probing.prober._probed, failures) == ({}, {"p1": 0, "p2": 0})

    run(scenario)


def test_exactly_these_pods_of_a_revision_are_asked_and_those_that_are_asked_go_on() -> None:
    async def scenario(probing: Probing) -> None:
        probing.start(3)
        other = StartProbe("ns/other", "p0", "0")
        probing.prober.execute([other])
        await turns()
        assert len(probing.requests) == 4
        orders = (StartProbe(KEY, "p1", "1"), StartProbe(KEY, "p2", "elsewhere"), StartProbe(KEY, "p3", "3"))
        probing.prober.execute([SetProbes(KEY, orders)])
        await turns()
        asked = probing.prober._probed
        assert {name: pod.order.address for name, pod in asked[KEY].items()} == {
            "p1": "1",
            "p2": "elsewhere",
            "p3": "3",
        }
        assert {request.address for request in probing.requests[4:]} == {"elsewhere", "3"}
        probing.prober.execute([SetProbes(KEY, ())])
        assert asked.keys() == {"ns/other"}

    run(scenario)


@pytest.mark.parametrize("seed", range(2 if DEEP else 1))
def test_an_exception_at_any_line_of_the_prober_loses_no_pod(seed: int) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "tests.control_plane.probes.prober_faults", str(seed), "1" if DEEP else "7"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "ACTIVATOR_COMPILE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
