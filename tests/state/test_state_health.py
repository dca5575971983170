"""What requests find out of pods, and how pods come back: strikes, the share, trials, probes, old age."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from activator.config import (
    POD_STALE_AFTER_S,
    PROBE_TIMEOUT_MAX_S,
    PROBE_TIMEOUT_MIN_S,
    PROBE_TIMEOUT_S,
    PROBES_HURRIED_MAX,
)
from activator.state.messages import (
    Change,
    PodRefused,
    PodServed,
    PodStatus,
    Probed,
    RevisionSet,
    StartProbe,
    StopProbe,
    Sweep,
    TrialEnded,
)
from activator.state.probing import Ask, Patience, Prober
from activator.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.shuffled_loop import run_shuffled
from tests.state.state_fakes import KEY, SPEC, Joined, seen
from tests.throttle.throttle_fakes import Request


def strike(joined: Joined, identity: str, times: int) -> None:
    for _ in range(times):
        joined.do(PodRefused(KEY, identity, 1, False))


def test_a_request_that_is_answered_resets_the_strikes() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    strike(joined, "p1", 2)
    joined.do(PodServed(KEY, "p1", 1))
    strike(joined, "p1", 2)
    assert joined.slots() == {"p1": "ready", "p2": "ready"}
    strike(joined, "p1", 1)
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_the_throttler_tells_of_the_first_answer_after_a_strike_and_of_no_other() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    requests = [Request(joined.throttler()) for _ in range(2)]
    for request in requests:
        request.ask(joined.clock.now())
    lease = requests[0].lease
    assert lease is not None
    joined.throttler().pod_struck(lease)
    requests[0].release(succeeded=False)
    requests[1].release()
    third = Request(joined.throttler())
    third.ask(joined.clock.now())
    third.release()
    told = [event[:2] for event in joined.heard.events if event[0] in {"refused", "served"}]
    assert told == [("refused", "p1"), ("served", "p1")]


def test_only_a_share_of_the_pods_is_ejected_for_strikes() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, max_scale=10, ejection_share=0.3)), *(seen(f"p{n}") for n in range(10)))
    for number in range(10):
        strike(joined, f"p{number}", 5)
    assert sorted(joined.slots().values()).count("quarantined") == 3
    assert joined.throttler().table.room == 7, "whoever is not ejected is given back to the picks"
    joined.do(PodRefused(KEY, "p9", 1, True))
    assert joined.slots()["p9"] == "quarantined", "what is known dead is out whatever the share"


def test_the_number_of_strikes_is_the_revisions() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, strikes=5)), seen("p1"), seen("p2"))
    strike(joined, "p1", 4)
    assert joined.slots()["p1"] == "ready"
    strike(joined, "p1", 1)
    assert joined.slots()["p1"] == "quarantined"


def test_a_share_of_nothing_still_ejects_one_and_never_the_last() -> None:
    joined = Joined()
    joined.do(RevisionSet(replace(SPEC, ejection_share=0.0)), seen("p1"), seen("p2"))
    strike(joined, "p1", 3)
    strike(joined, "p2", 9)
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_knowledge_and_inference_in_one_batch_are_not_folded_into_one() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    joined.do(PodRefused(KEY, "p1", 1, True), PodRefused(KEY, "p1", 1, False))
    assert joined.slots() == {"p1": "quarantined", "p2": "ready"}


def test_a_pod_in_quarantine_keeps_its_ledger_and_comes_back_by_a_single_trial() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    held = Request(joined.throttler())
    held.ask(joined.clock.now())
    joined.do(PodRefused(KEY, "p1", 1, True))
    tracker = joined.throttler().table.find_identity("p1")
    assert tracker is not None
    assert (int(tracker.in_flight), joined.throttler().table.capacity) == (1, 0)
    joined.do(Probed(KEY, "p1"))
    waiting = [Request(joined.throttler()) for _ in range(2)]
    for request in waiting:
        request.ask(joined.clock.now())
    assert [request.ends for request in waiting] == [[], []], "what is in flight is the one request it may have"
    held.release()
    assert [request.ends for request in waiting] == [["granted"], []]
    joined.do(TrialEnded(KEY, "p1", 1, True))
    assert waiting[1].ends == ["granted"]


def test_a_pod_that_nobody_lists_is_removed_when_it_is_stale_and_a_listed_one_is_asked_again() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.NOT_READY))
    joined.clock.pass_time(POD_STALE_AFTER_S - 1.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "not_ready"}
    joined.clock.pass_time(2.0)
    joined.do(Sweep(KEY))
    assert joined.slots() == {"p1": "pending"}
    assert joined.probes == [StartProbe(KEY, "p1", "10.0.0.1:80")]
    joined.do(seen("p1", PodStatus.NOT_READY))
    assert joined.probes[1:] == [StopProbe(KEY, "p1")], "its source confirms what it said: that counts again"


# The prober.


class Pods:
    """Pods that answer when the test says so."""

    def __init__(self) -> None:
        self.up: set[str] = set()
        self.asked: list[str] = []
        self.timeouts: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self.broken = False

    async def ask(self, address: str, http_get: str, timeout_s: float) -> Ask:
        self.asked.append(address)
        self.timeouts.append(timeout_s)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.broken:
                self.broken = False
                raise ValueError("a defect")
            return Ask.ANSWERED if address in self.up else Ask.SILENT
        finally:
            self.at_once -= 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def endless(event: asyncio.Event, seconds: float) -> bool:
    """A backoff that only haste ends."""
    return await event.wait()


class Probing:
    def __init__(self) -> None:
        self.pods = Pods()
        self.told: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.prober = Prober(self.tasks, self.told.append, Rng(1), lambda: 0.0, self.pods.ask, endless)


def test_when_requests_wait_the_next_probe_comes_at_once() -> None:
    async def scenario() -> None:
        probing = Probing()
        probing.prober.order([StartProbe(KEY, f"p{number}", str(number)) for number in range(40)])
        await turns(20)
        assert len(probing.pods.asked) == 40
        probing.prober.hurry("ns/other")
        await turns(20)
        assert len(probing.pods.asked) == 40
        probing.prober.hurry(KEY)
        await turns(20)
        assert len(probing.pods.asked) == 40 + PROBES_HURRIED_MAX, "bounded"
        probing.pods.up = {str(number) for number in range(40)}
        for _ in range(3):
            probing.prober.hurry(KEY)
            await turns(20)
        assert {change.identity for change in probing.told if isinstance(change, Probed)} >= {"p0", "p39"}
        await probing.tasks.close()
        assert probing.errors == []

    for seed in range(3):
        run_shuffled(seed, scenario)


def test_one_silent_pod_delays_no_other_and_a_defect_ends_no_probe() -> None:
    async def scenario() -> None:
        probing = Probing()
        probing.pods.up = {"1"}
        probing.pods.broken = True
        probing.prober.order([StartProbe(KEY, "p0", "0"), StartProbe(KEY, "p1", "1")])
        for _ in range(6):
            await turns(10)
            probing.prober.hurry(KEY)
        assert Probed(KEY, "p1") in probing.told
        assert probing.prober.errors_total == 1
        probing.pods.up.add("0")
        probing.prober.hurry(KEY)
        await turns(10)
        assert Probed(KEY, "p0") in probing.told
        await probing.tasks.close()

    asyncio.run(scenario())


def test_a_thousand_probes_are_not_under_way_at_once() -> None:
    async def scenario() -> None:
        probing = Probing()
        probing.prober.order([StartProbe(KEY, f"p{number}", str(number)) for number in range(1000)])
        await turns(100)
        assert len(probing.pods.asked) == 1000
        assert probing.pods.most_at_once == 64
        probing.prober.order([StopProbe(KEY, f"p{number}") for number in range(1000)])
        await turns(5)
        assert probing.prober._running == {}
        assert probing.prober._pausing == {}
        await probing.tasks.close()

    asyncio.run(scenario())


def test_the_timeout_of_a_probe_follows_the_distance() -> None:
    patience = Patience()
    assert patience.timeout_s(0) == PROBE_TIMEOUT_S
    assert [patience.timeout_s(n) for n in range(1, 6)] == [2.0, 4.0, 8.0, PROBE_TIMEOUT_MAX_S, PROBE_TIMEOUT_MAX_S]
    for _ in range(100):
        patience.answered(0.001)
    assert patience.timeout_s(0) == PROBE_TIMEOUT_MIN_S
    patience.answered(0.3)
    assert patience.timeout_s(0) == 0.3 * 16.0
