"""Revisions none of whose fixed pods can be reached: refused with the cause, and back with the first answer."""

from __future__ import annotations

import asyncio

import pytest

from activator.config.specs import RevisionSpec
from activator.control_plane.probes.probe import ProbeOutcome
from activator.control_plane.sources.unreachable import UnreachableRevisions
from activator.control_plane.state.model import Model
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import Load, PodStatus, RevisionFailed, RevisionRecovered, StartProbe, StopProbe
from tests.control_plane.probes.test_prober import Probing, turns
from tests.control_plane.state.state_fakes import KEY

PATIENCE_S = 3.0


class Watched(Probing):
    """A prober, and a model with so many fixed pods that are being asked."""

    def __init__(self, pods: int, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self.found = {str(number): ProbeOutcome.REFUSED for number in range(pods)}
        self.model = Model()
        records = {
            f"p{number}": PodRecord(f"p{number}", f"10.0.0.1:{number}", {"static": PodStatus.PENDING}, True)
            for number in range(pods)
        }
        self.model.revisions[KEY] = RevisionRecord(RevisionSpec(key=KEY), records, "")
        self.unreachable = UnreachableRevisions(self._hear, self.prober, self.model, self.clock.now, lambda _: None)
        self.unreachable.patience_s[KEY] = patience_s
        self.start(pods)

    def pod_failed(self, key: str) -> None:
        self.unreachable.pod_failed(key)

    def pod_answered(self, key: str) -> None:
        self.unreachable.recover(key)

    def news(self) -> list[object]:
        return [change for change in self.told if isinstance(change, RevisionFailed | RevisionRecovered)]


def test_a_pod_that_was_asked_in_vain_for_long_enough() -> None:
    async def scenario() -> None:
        watched = Watched(1)
        await watched.pass_time(PATIENCE_S - 0.5, expedited=True)
        assert watched.news() == []
        await watched.pass_time(1.0, expedited=True)
        cause = "its pod cannot be reached (10.0.0.1:0: it does not answer)"
        assert watched.news() == [RevisionFailed(KEY, cause)]
        await watched.pass_time(1.0, expedited=True)
        assert len(watched.news()) == 1, "said once"
        watched.unreachable.resubmit(KEY)
        assert watched.news() == [RevisionFailed(KEY, cause)] * 2
        watched.found["0"] = ProbeOutcome.ANSWERED
        await watched.pass_time(0.1, expedited=True)
        assert watched.news()[2:] == [RevisionRecovered(KEY)]
        await watched.tasks.close()

    asyncio.run(scenario())


def test_one_pod_that_may_be_reached_is_enough() -> None:
    async def scenario() -> None:
        watched = Watched(3)
        watched.prober.execute([StopProbe(KEY, "p1")])  # it is ready: nobody asks it
        await watched.pass_time(2 * PATIENCE_S)
        assert watched.news() == []
        watched.prober.execute([StartProbe(KEY, "p1", "1")])
        await watched.pass_time(PATIENCE_S - 0.5, expedited=True)
        assert watched.news() == [], "its own time counts"
        await watched.pass_time(1.0, expedited=True)
        (failed,) = watched.news()
        assert isinstance(failed, RevisionFailed)
        assert failed.cause == "none of its 3 pods can be reached (10.0.0.1:0: it does not answer)"
        await watched.tasks.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("case", ["no patience", "not judged", "no pods", "gone"])
def test_where_nothing_is_judged(case: str) -> None:
    async def scenario() -> None:
        watched = Watched(1, 0.0 if case == "no patience" else PATIENCE_S)
        if case == "not judged":
            watched.unreachable.forget(KEY)
        elif case == "no pods":
            watched.model.revisions[KEY].pods.clear()
        elif case == "gone":
            watched.model.revisions.clear()
        await watched.pass_time(2 * PATIENCE_S)
        assert watched.news() == []
        await watched.tasks.close()

    asyncio.run(scenario())


def test_refused_requests_have_its_pods_asked_at_once() -> None:
    async def scenario() -> None:
        watched = Watched(1)
        await watched.pass_time(30.0)
        assert len(watched.news()) == 1
        watched.found["0"] = ProbeOutcome.ANSWERED
        watched.unreachable.receive_load(Load(KEY, 0, 0, 7))
        await turns()
        await watched.pass_time(0.01)
        assert isinstance(watched.news()[-1], RevisionRecovered)
        await watched.tasks.close()

    asyncio.run(scenario())
