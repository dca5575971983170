"""One writer for each object, whatever happens to the group: killed, stopped, cut off, and started again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.members.contacts import GroupRules
from activator.members.group import NO_VIEW
from activator.members.messages import GroupView, Replica
from activator.members.numbers import unmet
from activator.members.writer_gate import DOUBTS_MAX, WriterGate, writers_of
from activator.messages.writers import Writers
from activator.runtime.rendezvous import owner_of
from tests.conftest import storms
from tests.manual_clock import ManualClock
from tests.members.group_world import GroupWorld, Process, storm

UIDS = [f"uid-{number}" for number in range(12)]


class WritingWorld(GroupWorld):
    """Each replica judges after each event who writes; no object ever has two who may."""

    def __init__(self, seed: int, seats: int, rules: GroupRules) -> None:
        super().__init__(seed, seats, rules)
        self._gates: dict[int, WriterGate] = {}
        self.written = Counter[int]()

    def start(self, seat: int) -> Process:
        process = super().start(seat)
        self._gates[process.number] = WriterGate(seat, self.rules.silence_s, self.now)
        self.later(self.random.uniform(0.0, 1.0), lambda: process.do(lambda: process.group.set_writes(True)))
        return process

    def writers(self, process: Process) -> Writers:
        group = process.group
        return self._gates[process.number].present_writers(group.effective, group.accepted, group.may_write())

    def writing(self, uid: str) -> list[int]:
        found = []
        for process in self.processes.values():
            is_running = not process.is_dead and process.stopped_until_s <= self.time_s and not process.inbox
            if is_running and self.writers(process).writes(uid):
                found.append(process.seat)
        return found

    def happened(self) -> None:
        for uid in UIDS[self.events % len(UIDS) :: 4]:
            found = self.writing(uid)
            assert len(found) <= 1, f"{uid} is written by {found} at {self.time_s}"
            self.written.update(found)

    def check_calm(self) -> None:
        super().check_calm()
        for uid in UIDS:
            assert len(self.writing(uid)) == 1, f"{uid} has nobody"


@pytest.mark.parametrize("seed", storms([15, 42, 110, *range(10)]))
def test_an_object_never_has_two_writers_and_has_one_when_all_is_calm(seed: int) -> None:
    """15: one that was started anew is in a view of an earlier epoch. 42: one that was stopped proposes a view that
    nobody has accepted yet, and all others are in one that it has not seen. 110: one that was cut off
    accepts a view, and others have acted in between without it.
    """
    world = storm(seed, make=WritingWorld)
    assert isinstance(world, WritingWorld)
    assert world.written


@pytest.mark.deep
@pytest.mark.parametrize("block", range(10))
def test_an_object_never_has_two_writers_for_long(block: int) -> None:
    for seed in range(20_000 + 40 * block, 20_040 + 40 * block):
        storm(seed, acts=100, make=WritingWorld)


def formed(seats: int) -> WritingWorld:
    world = WritingWorld(1, seats, GroupRules())
    for seat in range(seats):
        world.start(seat)
    world.run(5.0)
    world.check_calm()
    return world


def test_objects_are_spread_and_only_those_of_one_that_goes_move() -> None:
    world = formed(3)
    before = {uid: world.writing(uid) for uid in UIDS}
    assert {seat for found in before.values() for seat in found} == {0, 1, 2}
    world.leave(2)
    world.run(3.0)
    after = {uid: world.writing(uid) for uid in UIDS}
    assert all(after[uid] == before[uid] for uid in UIDS if before[uid] != [2])
    assert all(found in ([0], [1]) for found in after.values())


def test_one_that_is_cut_off_has_stopped_before_another_one_begins() -> None:
    world = formed(3)
    theirs = [uid for uid in UIDS if world.writing(uid) == [2]]
    cut_s = world.now()
    world.partition({(2, 0), (0, 2), (2, 1), (1, 2)})
    stopped_s = taken_s = 0.0
    for _ in range(400):
        world.run(0.01)  # `happened` looks for two at once
        found = world.writing(theirs[0])
        if not found and not stopped_s:
            stopped_s = world.now() - cut_s
        elif found and found != [2] and not taken_s:
            taken_s = world.now() - cut_s
    assert 0.9 < stopped_s < 1.3 < taken_s < 2.6
    assert all(world.writing(uid) in ([0], [1]) for uid in UIDS)


def test_one_that_was_stopped_writes_nothing_before_it_has_heard_what_has_become_of_its_objects() -> None:
    world = formed(3)
    theirs = [uid for uid in UIDS if world.writing(uid) == [2]]
    world.stop(2, 10.0)
    world.run(9.9)
    assert all(world.writing(uid) in ([0], [1]) for uid in theirs)
    world.run(5.0)
    assert all(world.writing(uid) == [2] for uid in theirs), "it is taken back"


def test_who_has_not_read_the_cluster_or_drains_owns_nothing() -> None:
    world = formed(2)
    world.processes[0].group.set_writes(False)
    world.run(1.0)
    assert all(world.writing(uid) == [1] for uid in UIDS)
    world.processes[1].group.set_writes(False)
    world.run(1.0)
    assert all(world.writing(uid) == [] for uid in UIDS), "nobody writes"


def test_without_a_view_or_a_majority_nobody_writes() -> None:
    world = WritingWorld(1, 3, GroupRules())
    world.partition({(1, 0), (1, 2)})  # nobody can say whether they are there
    world.start(1)
    world.run(10.0)
    assert not any(world.writing(uid) for uid in UIDS)


def test_the_operator_may_let_each_part_go_on() -> None:
    world = WritingWorld(1, 2, GroupRules(grants_alone=True))
    world.partition({(1, 0)})
    world.start(1)
    world.run(10.0)
    assert all(world.writing(uid) == [1] for uid in UIDS)


# --- the gate alone ---


def view(epoch: int, *seats: int, silent: tuple[int, ...] = ()) -> GroupView:
    replicas = tuple([Replica(unmet(seat) + 1, (), writes=True) for seat in seats])
    return GroupView(epoch << 32, replicas, tuple([unmet(seat) + 1 for seat in silent]))


def test_between_two_views_only_what_is_ours_in_both_is_written() -> None:
    gate = WriterGate(0, 1.0, ManualClock().now)
    for uid in UIDS:
        first = gate.present_writers(view(1, 0, 1), view(2, 0, 1, 2), True)
        ours = owner_of(uid, [0, 1]) == 0 and owner_of(uid, [0, 1, 2]) == 0
        assert first.writes(uid) == ours
        assert first.owner(uid) == owner_of(uid, [0, 1])


def test_what_a_silent_one_owned_waits_and_nothing_else_does() -> None:
    clock = ManualClock()
    gate = WriterGate(0, 1.0, clock.now)
    gate.present_writers(view(1, 0, 1), view(1, 0, 1), True)
    alone = view(2, 0, silent=(1,))
    for uid in UIDS:
        assert gate.present_writers(alone, alone, True).writes(uid) == (owner_of(uid, [0, 1]) == 0)
    clock.pass_time(1.1)
    assert all(gate.present_writers(alone, alone, True).writes(uid) for uid in UIDS)


@pytest.mark.parametrize("epochs", [(0, 1), (1, 3)])
def test_where_the_view_before_is_not_known_all_waits(epochs: tuple[int, int]) -> None:
    clock = ManualClock()
    gate = WriterGate(0, 1.0, clock.now)
    first = view(epochs[0], 0, 1) if epochs[0] else NO_VIEW
    gate.present_writers(first, first, True)
    second = view(epochs[1], 0, silent=(1,))
    assert not any(gate.present_writers(second, second, True).writes(uid) for uid in UIDS)
    clock.pass_time(1.1)
    assert all(gate.present_writers(second, second, True).writes(uid) for uid in UIDS)


@given(st.lists(st.tuples(st.sets(st.integers(1, 5)), st.floats(0.0, 1.5)), max_size=20))
def test_what_is_remembered_is_bounded_and_ends(changes: list[tuple[set[int], float]]) -> None:
    clock = ManualClock()
    gate = WriterGate(0, 1.0, clock.now)
    last = NO_VIEW
    for epoch, (others, seconds) in enumerate(changes, 1):
        gone = {number >> 40 for number in (one.number for one in last.replicas)} - others - {0}
        last = view(epoch, 0, *sorted(others), silent=tuple(sorted(gone)))
        assert len(gate.present_writers(last, last, True).doubts) <= DOUBTS_MAX
        clock.pass_time(seconds)
    clock.pass_time(2.0)
    found = gate.present_writers(last, last, True)
    assert (found.doubts, found.is_allowed) == ((), last is not NO_VIEW)
    if last is not NO_VIEW:
        assert [uid for uid in UIDS if found.writes(uid)] == [u for u in UIDS if owner_of(u, writers_of(last)) == 0]
