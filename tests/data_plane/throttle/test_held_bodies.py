"""A body's buffer: bytes in order whatever is put in and taken out, in memory and in its file; budgets exact."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.data_plane.throttle.budget import NO_LIMIT, HeldBudget
from activator.data_plane.throttle.held_bodies import READ_MAX_BYTES, BodyBuffer, HeldBody
from activator.runtime.units import MIB

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"


@contextmanager
def bounded(limit: int, value: int) -> Iterator[None]:
    """A limit of this process, for a moment."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Budgets:
    def __init__(self, held: int = NO_LIMIT, of_revision: int = NO_LIMIT, files: int = NO_LIMIT) -> None:
        self.held, self.of_revision, self.files = HeldBudget(held), HeldBudget(of_revision), HeldBudget(files)

    def buffer(self, memory_max: int, file_max: int = 0) -> BodyBuffer:
        return BodyBuffer(memory_max, file_max, self.held, self.of_revision, self.files)

    def used(self) -> tuple[int, int, int]:
        return self.held.held_bytes, self.of_revision.held_bytes, self.files.held_bytes


def test_one_more_read_is_reserved_before_it_comes() -> None:
    budgets = Budgets()
    buffer = budgets.buffer(1000)
    assert buffer.has_room() and budgets.used() == (READ_MAX_BYTES, READ_MAX_BYTES, 0)
    buffer.append(b"x" * 999)
    assert buffer.has_room() and budgets.used() == (READ_MAX_BYTES + 999, READ_MAX_BYTES + 999, 0)
    buffer.append(b"y")
    assert not buffer.has_room()
    assert buffer.take(10_000) == b"x" * 999 + b"y"
    buffer.ended()
    assert budgets.used() == (0, 0, 0)
    buffer.drop()


def test_a_buffer_leaves_half_of_each_budget_to_waiting_requests() -> None:
    for budgets in (Budgets(held=2 * READ_MAX_BYTES - 2), Budgets(of_revision=2 * READ_MAX_BYTES - 2)):
        assert not budgets.buffer(MIB).has_room()
        assert budgets.used() == (0, 0, 0)
    budgets = Budgets(held=2 * READ_MAX_BYTES)
    first, second = budgets.buffer(MIB), budgets.buffer(MIB)
    assert first.has_room() and not second.has_room()
    assert budgets.held.take(READ_MAX_BYTES), "a waiting request's body still has its place"
    first.drop()
    assert budgets.used()[0] == READ_MAX_BYTES


def test_the_file_takes_what_memory_may_not() -> None:
    budgets = Budgets()
    before = descriptors()
    buffer = budgets.buffer(10, 10 * READ_MAX_BYTES)
    sent = b""
    while buffer.has_room():
        piece = os.urandom(READ_MAX_BYTES - 1)
        buffer.append(piece)
        sent += piece
    assert len(sent) > 9 * READ_MAX_BYTES and buffer.size == len(sent)
    assert budgets.held.held_bytes <= 2 * READ_MAX_BYTES < budgets.files.held_bytes <= 10 * READ_MAX_BYTES
    assert descriptors() == before + 1
    taken = b""
    while buffer.size:
        taken += buffer.take(100_000)
    assert taken == sent
    assert budgets.files.held_bytes == 0, "an emptied file takes no room on the disk"
    buffer.drop()
    assert descriptors() == before and budgets.used() == (0, 0, 0)


def test_all_files_together_are_bounded() -> None:
    budgets = Budgets(files=3 * READ_MAX_BYTES)
    first, second = budgets.buffer(0, MIB), budgets.buffer(0, MIB)
    for _ in range(2):
        assert first.has_room()
        first.append(b"x" * READ_MAX_BYTES)
    assert second.has_room(), "the third"
    assert not first.has_room()
    first.drop()
    second.drop()
    assert budgets.used() == (0, 0, 0)


def test_a_disk_without_space_ends_the_room_and_loses_nothing() -> None:
    budgets = Budgets()
    buffer = budgets.buffer(0, MIB)
    assert buffer.has_room()
    buffer.append(b"in the file ")
    assert buffer.has_room()

    with bounded(resource.RLIMIT_FSIZE, len(b"in the file that")):  # part of it is written before the error
        buffer.append(b"that was on its way")
    assert not buffer.has_room()
    assert buffer.take(1000) + buffer.take(1000) == b"in the file that was on its way"
    assert buffer.size == 0
    buffer.drop()
    assert budgets.used() == (0, 0, 0)


def test_what_comes_after_a_disk_without_space_stays_behind_what_came_before() -> None:
    budgets = Budgets()
    buffer = budgets.buffer(1000, MIB)
    buffer_file_only = "first, in the file "
    assert buffer.has_room()
    buffer.append(b"m" * 1000)
    while not budgets.files.held_bytes:
        assert buffer.has_room()
        buffer.append(b"m" * (READ_MAX_BYTES - 1000))
    while buffer.size < 2 * READ_MAX_BYTES:
        assert buffer.has_room()
        buffer.append(buffer_file_only.encode() * 10_000)
    assert buffer.has_room()
    with bounded(resource.RLIMIT_FSIZE, 1):
        buffer.append(b"second")
    taken = b""
    while not taken.endswith(buffer_file_only.encode()):
        taken += buffer.take(100_000)
    assert buffer.has_room(), "in memory"
    buffer.append(b"third")
    assert buffer.take(1000) + buffer.take(1000) == b"secondthird"
    buffer.drop()
    assert budgets.used() == (0, 0, 0)


def test_a_file_that_cannot_be_made_leaves_it_in_memory() -> None:
    budgets = Budgets()
    buffer = budgets.buffer(0, MIB)
    assert buffer.has_room()
    with bounded(resource.RLIMIT_NOFILE, 3):
        buffer.append(b"kept")
    assert not buffer.has_room() and buffer.take(10) == b"kept"
    buffer.drop()
    assert budgets.used() == (0, 0, 0)


def memory_of(pieces: Iterable[bytes]) -> int:
    return sum(sys.getsizeof(piece) + 8 for piece in pieces)


def test_pieces_of_two_bytes_take_no_more_memory_than_twice_what_is_counted() -> None:
    budgets = Budgets()
    buffer = budgets.buffer(MIB)
    held = HeldBody(budgets.held)
    sent = b""
    for number in range(30_000):
        piece = number.to_bytes(2)
        assert buffer.has_room() and held.append(piece)
        buffer.append(piece)
        sent += piece
    assert memory_of(buffer._pieces) < 2 * len(sent) and memory_of(held.pieces) < 2 * len(sent)
    assert b"".join(held.pieces) == sent
    assert buffer.take(MIB) == sent
    held.drop()
    buffer.drop()
    assert budgets.used() == (0, 0, 0)


class Machine(RuleBasedStateMachine):
    """Against bytes in one string."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets = Budgets(held=8 * READ_MAX_BYTES, files=3 * READ_MAX_BYTES)
        self.buffer = self.budgets.buffer(5_000, 2 * READ_MAX_BYTES)
        self.inside = b""
        self.counter = 0
        self.whole = False

    @precondition(lambda self: not self.whole)
    @rule(count=st.integers(1, 3_000) | st.just(READ_MAX_BYTES), pieces=st.sampled_from([1, 1, 70]))
    def comes(self, count: int, pieces: int) -> None:
        for _ in range(pieces):
            if not self.buffer.has_room():
                return
            self.counter += 1
            data = (b"%d," % self.counter * count)[: max(count // pieces, 1)]
            self.buffer.append(data)
            self.inside += data

    @rule(count=st.integers(1, 4_000) | st.just(READ_MAX_BYTES))
    def is_taken(self, count: int) -> None:
        data = self.buffer.take(count)
        assert data or not self.inside
        assert self.inside.startswith(data)
        self.inside = self.inside[len(data) :]

    @rule()
    def ends(self) -> None:
        self.whole = True
        self.buffer.ended()

    @rule()
    def begins_anew(self) -> None:
        self.buffer.drop()
        assert self.budgets.used() == (0, 0, 0)
        self.buffer = self.budgets.buffer(5_000, 2 * READ_MAX_BYTES)
        self.inside = b""
        self.whole = False

    @invariant()
    def nothing_is_lost_and_the_budgets_are_kept(self) -> None:
        assert self.buffer.size == len(self.inside)
        held, of_revision, files = self.budgets.used()
        assert held == of_revision <= 4 * READ_MAX_BYTES
        assert files <= 3 * READ_MAX_BYTES
        assert held + files >= len(self.inside), "all that is here is counted"
        if self.whole:
            assert held + files - len(self.inside) <= 2 * READ_MAX_BYTES, "… and little more"

    def teardown(self) -> None:
        self.buffer.drop()
        assert self.budgets.used() == (0, 0, 0)


Machine.TestCase.settings = settings(
    max_examples=2_000 if DEEP else 60, stateful_step_count=100 if DEEP else 40, deadline=None
)
TestMachine = Machine.TestCase
