"""Many data planes as one: what each is sent, and what the control plane hears of them."""

from __future__ import annotations

import pytest

from activator.config.specs import RevisionSpec
from activator.members.lives import Lives
from activator.messages import (
    Command,
    DispatchQueue,
    Drain,
    Drained,
    DropRevision,
    Effect,
    FreeSlot,
    FromData,
    Load,
    ObservedTable,
    PodDrained,
    PodServed,
    RebuildRevision,
    SentRevision,
    SetHealth,
    SetRevision,
    ShowOutput,
    SlotDrained,
    WithdrawPod,
)
from activator.workers.fan_out import FanOut

KEY = "ns/a"
SPEC = RevisionSpec(key=KEY)


class Both:
    """What was sent to each worker, and what the control plane received."""

    def __init__(self, workers: int = 2) -> None:
        self.sent: dict[int, list[Effect | Command]] = {}
        self.received: list[FromData] = []
        self.fan_out = FanOut(
            lambda worker, messages: self.sent.setdefault(worker, []).extend(messages), self.hear, Lives()
        )
        for worker in range(1, workers + 1):
            self.fan_out.joined(worker, [])
        self.fan_out.apply([SetRevision(SPEC)])

    def hear(self, message: FromData) -> None:
        self.received.append(message)

    def heard(self) -> list[FromData]:
        received, self.received = self.received, []
        return received


@pytest.fixture
def both() -> Both:
    both = Both()
    both.sent.clear()
    return both


def test_effects_and_commands_go_to_all(both: Both) -> None:
    effects: list[Effect] = [DispatchQueue(KEY), WithdrawPod(KEY, "p", 1.0)]
    both.fan_out.apply(effects)
    both.fan_out.execute(SetHealth("", "x"))
    assert both.sent == {1: [*effects, SetHealth("", "x")], 2: [*effects, SetHealth("", "x")]}


def test_one_that_comes_is_sent_all_that_there_is_and_what_follows(both: Both) -> None:
    both.fan_out.execute(SetHealth("", "starting"))
    both.fan_out.execute(SetHealth("", ""))
    whole = RebuildRevision(SPEC, (), "")
    both.fan_out.joined(3, [SentRevision(whole, 7)])
    both.fan_out.apply([DispatchQueue(KEY)])
    assert both.sent[3] == [SetHealth("", ""), whole, DispatchQueue(KEY)]


def test_output_that_is_shown_is_shown_by_those_that_come(both: Both) -> None:
    both.fan_out.execute(ShowOutput(KEY, ("a",)))
    both.fan_out.execute(ShowOutput(KEY, ("a", "b")))
    both.fan_out.joined(3, [SentRevision(RebuildRevision(SPEC, (), ""), 0)])
    assert both.sent[3][-1] == both.sent[1][-1] == ShowOutput(KEY, ("a", "b")), "behind its revision"
    both.fan_out.execute(ShowOutput(KEY, ()))
    both.fan_out.joined(4, [])
    both.fan_out.execute(ShowOutput(KEY, ("a",)))
    both.fan_out.apply([DropRevision(KEY)])
    both.fan_out.joined(5, [])
    assert 5 not in both.sent and not [one for one in both.sent[4] if one == ShowOutput(KEY, ("a", "b"))]


def test_all_mean_the_same_revision_of_a_name(both: Both) -> None:
    both.fan_out.apply([SetRevision(SPEC), DropRevision(KEY), SetRevision(SPEC)])
    both.fan_out.joined(3, [SentRevision(RebuildRevision(SPEC, (), ""), 0)])
    assert [one.life for one in both.sent[1] if isinstance(one, SetRevision)] == [0, 1]
    assert [one.life for one in both.sent[3] if isinstance(one, RebuildRevision)] == [1]


def test_a_drained_slot_is_freed_where_it_is(both: Both) -> None:
    both.fan_out.receive(2, SlotDrained(KEY, 5, 9))
    (drained,) = both.heard()
    assert isinstance(drained, SlotDrained) and drained.generation == 9
    both.fan_out.receive(1, SlotDrained(KEY, 5, 9))
    (other,) = both.heard()
    assert isinstance(other, SlotDrained) and other.slot != drained.slot
    both.fan_out.apply([FreeSlot(KEY, drained.slot, 9)])
    (own,) = both.sent[2]
    (foreign,) = both.sent[1]
    assert own == FreeSlot(KEY, 5, 9)
    assert isinstance(foreign, FreeSlot) and foreign.slot > 1_000_000_000, "as many effects, and no slot"


def test_a_slot_of_a_worker_that_has_ended_is_freed_nowhere(both: Both) -> None:
    both.fan_out.receive(2, SlotDrained(KEY, 5, 9))
    (drained,) = both.heard()
    assert isinstance(drained, SlotDrained)
    both.fan_out.ended(2)
    both.fan_out.joined(3, [])  # in its place
    both.sent.clear()
    both.fan_out.apply([FreeSlot(KEY, drained.slot, 9)])
    assert all(isinstance(one, FreeSlot) and one.slot > 1_000_000_000 for sent in both.sent.values() for one in sent)


def test_a_pod_is_drained_when_no_worker_has_a_request_there(both: Both) -> None:
    both.fan_out.apply([WithdrawPod(KEY, "p", 1.0)])
    both.fan_out.receive(1, PodDrained(KEY, "p"))
    assert both.heard() == []
    both.fan_out.receive(2, PodDrained(KEY, "p"))
    assert both.heard() == [PodDrained(KEY, "p")]


def test_a_worker_that_ends_has_no_request_at_any_pod(both: Both) -> None:
    both.fan_out.apply([WithdrawPod(KEY, "p", 1.0)])
    both.fan_out.receive(1, PodDrained(KEY, "p"))
    both.fan_out.ended(2)
    assert both.heard() == [PodDrained(KEY, "p")]


def test_a_worker_that_came_after_the_withdrawal_is_not_waited_for(both: Both) -> None:
    both.fan_out.apply([WithdrawPod(KEY, "p", 1.0)])
    both.fan_out.joined(3, [])
    both.fan_out.receive(1, PodDrained(KEY, "p"))
    both.fan_out.receive(2, PodDrained(KEY, "p"))
    assert both.heard() == [PodDrained(KEY, "p")]


def test_without_workers_a_pod_is_drained_at_once() -> None:
    both = Both(0)
    both.fan_out.apply([WithdrawPod(KEY, "p", 1.0)])
    assert both.heard() == [PodDrained(KEY, "p")]


def test_pods_that_go_with_their_revision_are_drained_likewise(both: Both) -> None:
    both.fan_out.apply([DropRevision(KEY)])
    both.fan_out.receive(2, PodDrained(KEY, "p"))
    assert both.heard() == []
    both.fan_out.receive(1, PodDrained(KEY, "p"))
    assert both.heard() == [PodDrained(KEY, "p")]


def load(requests: int, at_s: float, in_flight: int = 0, seconds: float = 0.0) -> Load:
    return Load(KEY, in_flight, 0, requests, in_flight, seconds, at_s)


def test_loads_are_added_up_and_totals_never_fall(both: Both) -> None:
    both.fan_out.receive(1, load(10, 1.0, 2, 5.0))
    both.fan_out.receive(2, load(4, 1.1, 1, 2.0))
    both.fan_out.ended(1)
    both.fan_out.joined(3, [])
    both.fan_out.receive(3, load(1, 1.3, 1, 0.1))
    assert both.heard() == [
        load(10, 1.0, 2, 5.0),
        load(14, 1.1, 3, 7.0),
        load(14, 1.0, 1, 7.0),
        load(15, 1.3, 2, 7.1),
    ]


def test_nothing_counts_of_a_worker_that_has_ended_or_of_a_revision_that_is_gone(both: Both) -> None:
    both.fan_out.ended(2)
    both.fan_out.receive(2, load(1, 1.0))
    both.fan_out.receive(2, PodServed(KEY, "p", 1))
    both.fan_out.apply([DropRevision(KEY)])
    both.fan_out.receive(1, load(1, 1.0))
    assert both.heard() == []


def confirmations(both: Both) -> list[tuple[int, int, int | None]]:
    return [(one.worker, one.applied, one.received) for one in both.heard() if isinstance(one, ObservedTable)]


def test_effects_are_confirmed_when_all_have_them(both: Both) -> None:
    both.fan_out.receive(1, ObservedTable(KEY, 3, ()))
    both.fan_out.receive(2, ObservedTable(KEY, 2, ()))
    both.fan_out.receive(2, ObservedTable(KEY, 3, ()))
    assert confirmations(both) == [(1, 3, -1), (2, 2, 2), (2, 3, 3)]


def test_effects_are_confirmed_although_others_come_between_the_audits(both: Both) -> None:
    """Of a program that starts and stops all the time, no two workers ever show the same number."""
    for number in range(1, 4):
        both.fan_out.receive(1, ObservedTable(KEY, 10 * number, ()))
        both.fan_out.receive(2, ObservedTable(KEY, 10 * number + 5, ()))
    assert [received for _, _, received in confirmations(both)] == [-1, 10, 15, 20, 25, 30]


def test_a_worker_that_comes_later_counts_from_what_was_sent_before(both: Both) -> None:
    both.fan_out.joined(3, [SentRevision(RebuildRevision(SPEC, (), ""), 7)])
    both.fan_out.apply([DispatchQueue(KEY)])
    for worker, applied in ((1, 8), (2, 8), (3, 1)):
        both.fan_out.receive(worker, ObservedTable(KEY, applied, ()))
    assert confirmations(both) == [(1, 8, -1), (2, 8, -1), (3, 8, 8)]
    both.fan_out.apply([RebuildRevision(SPEC, (), ""), DispatchQueue(KEY)])  # all count from the beginning
    for worker in (1, 2, 3):
        both.fan_out.receive(worker, ObservedTable(KEY, 1, ()))
    assert confirmations(both) == [(1, 1, -1), (2, 1, -1), (3, 1, 1)]


@pytest.mark.parametrize(("second_finishes", "result"), [(True, True), (False, False)])
def test_all_have_drained_when_each_has(second_finishes: bool, result: bool) -> None:
    both = Both()
    both.fan_out.execute(Drain(1.0, 1.0))
    both.fan_out.drain_begins()
    both.fan_out.receive(1, Drained(True))
    assert both.heard() == []
    both.fan_out.receive(2, Drained(second_finishes))
    assert both.heard() == [Drained(result)]


def test_a_worker_that_ends_while_it_drains_has_cut_its_requests() -> None:
    both = Both()
    both.fan_out.drain_begins()
    both.fan_out.receive(1, Drained(True))
    both.fan_out.ended(2)
    both.fan_out.ended(1)  # when it is done: as it should be
    assert both.heard() == [Drained(False)]


def test_without_workers_there_is_nothing_to_drain() -> None:
    both = Both(0)
    both.fan_out.drain_begins()
    assert both.heard() == [Drained(True)]
