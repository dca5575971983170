"""Active health checks: who is asked when, what takes a pod out, what brings it back, and what it may cost."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace

from activator.config.specs import HealthCheckSpec, ProbingSpec
from activator.control_plane.probes.probe import ProbeOutcome, ProbeRequest
from activator.control_plane.sources.health_checks import (
    HEALTH_CHECKS_AT_ONCE_MAX,
    HEALTH_CHECKS_PER_S_MAX,
    HealthChecks,
)
from activator.messages import Change, PodFailedChecks, PodGone, PodStatus, Probed, RevisionSet, StartProbe
from activator.runtime.tasks import TaskGroupOwner
from tests.control_plane.probes.test_prober import Probing, turns
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen

CHECKS = HealthCheckSpec(interval_s=2.0, rise=2, fall=3)
CHECKED = replace(SPEC, probing=ProbingSpec(checks=CHECKS), balancing=replace(SPEC.balancing, max_scale=2000))


class Checked:
    """Health checks of a real state worker's pods; by address what they find, else ANSWERED."""

    def __init__(self) -> None:
        self.joined = Joined()
        self.clock = self.joined.clock
        self.found: dict[str, ProbeOutcome] = {}
        self.hangs: set[str] = set()
        self.let_go = asyncio.Event()
        self.broken = False
        self.asked: list[tuple[float, str]] = []
        self.told: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.checks = HealthChecks(
            self.tasks, self._submit, self.joined.worker.model, self.clock.now, self._probe, self._wait
        )
        self.joined.applied = self.checks.applied
        self.tasks.start("health checks", self.checks.run())

    def _submit(self, change: Change) -> None:
        self.told.append(change)
        self.joined.do(change)

    async def _probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        assert timeout_s <= CHECKS.interval_s
        self.asked.append((self.clock.now(), request.address))
        if self.broken:
            raise ValueError("a defect")
        if request.address in self.hangs:
            await self.let_go.wait()
        found = self.found.get(request.address, ProbeOutcome.ANSWERED)
        if found is not ProbeOutcome.ANSWERED:
            request.causes.append("it answered the probe with 500")
        return found

    async def _wait(self, event: asyncio.Event, seconds: float) -> bool:
        timer = self.clock.call_later(max(seconds, 0.0), event.set)
        await event.wait()
        timer.cancel()
        return True

    async def pass_time(self, seconds: float, step_s: float = 0.01) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.pass_time(step_s)
            await turns(8)


def run(scenario: Callable[[Checked], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        checked = Checked()
        await scenario(checked)
        await checked.tasks.close()
        assert checked.errors == []

    asyncio.run(whole())


def test_ready_pods_are_asked_evenly_and_others_are_not() -> None:
    async def scenario(checked: Checked) -> None:
        checked.joined.do(RevisionSet(CHECKED), *(seen(f"p{n}") for n in range(1, 5)), seen("p9", PodStatus.PENDING))
        await checked.pass_time(20.0)
        asked = Counter(address for _, address in checked.asked)
        assert asked.keys() == {f"10.0.0.{n}:80" for n in range(1, 5)}
        assert all(9 <= count <= 11 for count in asked.values()), "once in each interval"
        gaps = [later[0] - sooner[0] for sooner, later in itertools.pairwise(checked.asked)]
        assert all(0.4 < gap < 0.6 for gap in gaps), "one after the other, not all at once"

    run(scenario)


def test_revisions_without_checks_cost_nothing() -> None:
    async def scenario(checked: Checked) -> None:
        checked.joined.do(RevisionSet(SPEC), seen("p1"))
        await checked.pass_time(10.0)
        assert checked.asked == []
        checked.joined.do(RevisionSet(CHECKED))
        await checked.pass_time(4.0)
        assert checked.asked
        checked.joined.do(RevisionSet(SPEC))
        await checked.pass_time(4.0)
        before = len(checked.asked)
        await checked.pass_time(10.0)
        assert len(checked.asked) == before, "a reload ends them"

    run(scenario)


def test_so_many_failures_in_a_row_and_the_pod_is_out_even_the_last_one() -> None:
    async def scenario(checked: Checked) -> None:
        checked.joined.do(RevisionSet(CHECKED), seen("p1"))
        checked.found["10.0.0.1:80"] = ProbeOutcome.REFUSED
        await checked.pass_time(3.0)
        assert checked.told == []
        checked.found.clear()
        await checked.pass_time(2.0)
        checked.found["10.0.0.1:80"] = ProbeOutcome.SILENT
        await checked.pass_time(4.0)
        assert checked.told == [], "one that passed between them: it begins anew"
        await checked.pass_time(2.0)
        (failed,) = checked.told
        assert isinstance(failed, PodFailedChecks)
        assert failed.cause == "failed 3 health checks in a row: it answered the probe with 500"
        assert checked.joined.slots() == {"p1": "quarantined"}
        assert checked.joined.probes[-1] == StartProbe(KEY, "p1", "10.0.0.1:80", rise=2, rise_interval_s=2.0)
        before = len(checked.asked)
        await checked.pass_time(10.0)
        assert len(checked.asked) == before, "from now on the prober asks"
        checked.joined.do(Probed(KEY, "p1"))
        assert checked.joined.slots() == {"p1": "recovering"}

    run(scenario)


@pytest.mark.parametrize("meanwhile", ["gone", "not ready", "another", "refused"])
def test_an_answer_that_comes_after_the_pod_has_changed_takes_nobody_out(meanwhile: str) -> None:
    async def scenario(checked: Checked) -> None:
        once = replace(CHECKED, probing=ProbingSpec(checks=replace(CHECKS, fall=1)))
        checked.joined.do(RevisionSet(once), seen("p1"))
        checked.hangs.add("10.0.0.1:80")
        checked.found["10.0.0.1:80"] = ProbeOutcome.SILENT
        await checked.pass_time(1.0)
        assert len(checked.asked) == 1
        if meanwhile == "gone":
            checked.joined.do(PodGone(KEY, "list", "p1"))
        elif meanwhile == "not ready":
            checked.joined.do(seen("p1", PodStatus.NOT_READY))
        elif meanwhile == "another":
            checked.joined.do(seen("p1", address="10.0.0.7:80"))
        else:
            checked.joined.do(checked.joined.refused("p1", True), Probed(KEY, "p1"), checked.joined.trial("p1", True))
            checked.joined.do(checked.joined.trial("p1", True))
        before = checked.joined.slots()
        checked.let_go.set()
        await checked.pass_time(0.05)
        assert checked.joined.slots() == before
        assert len(checked.told) == 1 and checked.joined.worker.stale_total >= 1

    run(scenario)


def test_a_defect_of_ours_takes_no_pod_out() -> None:
    async def scenario(checked: Checked) -> None:
        checked.joined.do(RevisionSet(CHECKED), seen("p1"))
        checked.broken = True
        await checked.pass_time(20.0)
        assert len(checked.asked) >= 9 and checked.told == []

    run(scenario)


def test_the_cost_has_bounds_whatever_is_configured() -> None:
    async def scenario(checked: Checked) -> None:
        eager = replace(CHECKED, probing=ProbingSpec(checks=replace(CHECKS, interval_s=0.1)))
        pods = [seen(f"p{n}", address=f"10.0.{n // 250}.{n % 250}:80") for n in range(1000)]
        checked.joined.do(RevisionSet(eager), *pods)
        await checked.pass_time(2.0, step_s=0.001)
        assert 0.8 < len(checked.asked) / (2.0 * HEALTH_CHECKS_PER_S_MAX) <= 1.01
        checked.hangs.update(pod.address for pod in pods)
        await checked.pass_time(3.0, step_s=0.001)
        assert checked.checks.under_way == HEALTH_CHECKS_AT_ONCE_MAX
        checked.let_go.set()
        await checked.pass_time(0.1, step_s=0.001)
        assert checked.checks.under_way < HEALTH_CHECKS_AT_ONCE_MAX, "and it goes on"
        asked = Counter(address for _, address in checked.asked)
        assert max(asked.values()) - min(asked.values()) <= 1, "all have their turns"

    run(scenario)


def test_a_pod_in_quarantine_answers_so_many_times_in_a_row() -> None:
    async def scenario() -> None:
        probing = Probing()
        probing.found["0"] = ProbeOutcome.ANSWERED
        probing.prober.execute([StartProbe(KEY, "p0", "0", rise=3, rise_interval_s=1.0)])
        await probing.pass_time(1.9)
        assert probing.proven() == set() and len(probing.requests) == 2
        probing.found["0"] = ProbeOutcome.REFUSED
        await probing.pass_time(3.0)
        assert probing.proven() == set()
        probing.found["0"] = ProbeOutcome.ANSWERED
        began = len(probing.requests)
        await probing.pass_time(8.0, expedited=True)
        assert probing.proven() == {"p0"}
        answers_s = probing.asked_s[began:]
        assert answers_s[-1] - answers_s[0] >= 2.0, "apart, also where requests wait"
        await probing.tasks.close()

    asyncio.run(scenario())
