"""Requests that register again are granted slots in the order of a queue that they have joined as they arrived."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from activator.config.specs import DisciplineSpec, QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.ownership.lending import Lending, LentSlots
from activator.data_plane.ownership.messages import (
    Granted,
    HeldSlot,
    MemberMessage,
    Queued,
    Register,
    WaitingRequest,
)
from activator.data_plane.tables.apply import GRANTS_PER_TURN_MAX
from activator.data_plane.throttle.disciplines import make_queue
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY
from tests.conftest import DEEP
from tests.data_plane.throttle.throttle_fakes import Heard, asking
from tests.manual_clock import ManualClock

CHARGE_MAX = 3
STEP = 1 << 20
EXAMPLES = settings(max_examples=3_000 if DEEP else 150, deadline=None)


class Arrival(NamedTuple):
    member: int  # the one at which the request waits
    share: bytes
    level: int
    charge: int
    after_s: float  # since the previous one


arrivals_of_all = st.lists(
    st.builds(
        Arrival,
        st.integers(2, 4),
        st.sampled_from([b"a", b"b", b"c", b"d", b"e"]),
        st.integers(0, 7),
        st.integers(1, CHARGE_MAX),
        st.sampled_from([0.0, 0.25, 4.0, 16.0]),
    ),
    min_size=1,
    max_size=40,
)
disciplines = st.builds(
    DisciplineSpec,
    st.sampled_from(["fifo", "priority", "fair", "priority-fair"]),
    ageing_s=st.just(8.0),
    weights=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 4)),
    key_header=st.just("X-Tenant"),
)


class Owner:
    """An owner whose only pod has one slot, which a request of its own has until `serve`."""

    def __init__(self, spec: QueueSpec, arrivals: list[Arrival]) -> None:
        self.clock = ManualClock(1_024.0)  # all times are exact
        table = TrackerTable(create("round-robin", Rng(1)), 4, 0.5)
        revision = RevisionSpec(key="ns/rev", queue=spec)
        now, defer = self.clock.now, self.clock.defer
        self.throttler = RevisionThrottler(revision, table, now, defer, Heard(), GRANTS_PER_TURN_MAX)
        table.add("pod", "10.0.0.1:80", 1, READY)
        self.own = asking(self.throttler, 0.0)
        self.lent = LentSlots(1 << 40)
        self.lending = Lending(self.throttler, self.lent, self._send, self.clock.now)
        self.throttler.sharing.lending = self.lending
        self.granted: list[Granted] = []
        self.queued: list[int] = []
        self._member_of: dict[int, int] = {}
        self._waiting: dict[int, list[WaitingRequest]] = {2: [], 3: [], 4: []}
        asked_s = 0.0
        for number, arrival in enumerate(arrivals, 1):
            asked_s += arrival.after_s
            waited_s = self.clock.now_s - asked_s
            self._member_of[number] = arrival.member
            self._waiting[arrival.member].append(
                WaitingRequest(
                    number,
                    number * STEP,
                    waited_s,
                    level=arrival.level,
                    share=arrival.share,
                    charge=arrival.charge,
                )
            )

    def _send(self, member: int, message: MemberMessage) -> None:
        if isinstance(message, Granted):
            self.granted.append(message)
        elif isinstance(message, Queued):
            self.queued.append(message.number)

    def register(self, epoch: int, member: int) -> None:
        """Register the requests of a member that still wait, and the slot that the last one uses."""
        served = {granted.request for granted in self.granted}
        last = self.granted[-1] if self.granted else None
        slots: tuple[HeldSlot, ...] = ()
        if last is not None and self._member_of[last.request] == member:
            slots = (HeldSlot(last.slot, last.identity, last.address),)
        waiting = tuple([waiting for waiting in self._waiting[member] if waiting.request not in served])
        self.lending.register(member, Register(epoch, "ns/rev", slots, waiting))

    def serve(self, count: int) -> list[int]:
        """Serve so many requests, one after the other; return those that were granted a slot."""
        for _ in range(count):
            if self.own.lease is not None:
                self.own.release()
            else:
                last = self.granted[-1]
                self.lent.released(self._member_of[last.request], last.slot, 0.0, True)
        return [granted.request for granted in self.granted]


def in_turn(spec: QueueSpec, arrivals: list[Arrival]) -> list[int]:
    """Return the numbers of all arrivals in the order of a queue that they join one after the other."""
    queue = make_queue(spec)
    asked_s = 0.0
    for number, arrival in enumerate(arrivals, 1):
        asked_s += arrival.after_s
        waiter = Waiter()
        waiter.arrival, waiter.asked_s = number, asked_s
        waiter.level, waiter.share, waiter.charge = arrival.level, arrival.share, arrival.charge
        queue.join(waiter)
    order: list[int] = []
    while (first := queue.first()) is not None:
        queue.take(first)
        order.append(first.arrival)
    return order


def spec_of(discipline: DisciplineSpec) -> QueueSpec:
    return QueueSpec(depth=1_000, discipline=discipline, rules=(RuleSpec("/heavy", charge=CHARGE_MAX),))


@EXAMPLES
@given(disciplines, arrivals_of_all, st.permutations([2, 3, 4]), st.integers(0, 3), st.booleans())
def test_another_owner_serves_them_in_the_same_order(
    discipline: DisciplineSpec, arrivals: list[Arrival], members: list[int], early: int, asks: bool
) -> None:
    """Some members register before the owner begins, the others have been away and register later."""
    spec = spec_of(discipline)
    owner = Owner(spec, arrivals)
    for member in members[:early]:
        owner.register(1, member)
    owner.lending.begin()
    for member in members[early:]:
        owner.register(1, member)
        if asks:
            owner.throttler.queue.waiters.first()
    assert owner.serve(len(arrivals)) == in_turn(spec, arrivals)


@EXAMPLES
@given(disciplines, arrivals_of_all, st.permutations([2, 3, 4]), st.integers(1, 3), st.integers(0, 40))
def test_a_view_with_the_same_owner_changes_no_turn(
    discipline: DisciplineSpec, arrivals: list[Arrival], members: list[int], again: int, served: int
) -> None:
    """At any time between two grants, of which none is on its way."""
    spec = spec_of(discipline)
    owner = Owner(spec, arrivals)
    for member in (2, 3, 4):
        owner.register(1, member)
    owner.lending.begin()
    served %= len(arrivals)
    owner.serve(served)
    for member in members[:again]:
        owner.register(2, member)
    assert owner.serve(len(arrivals) - served) == in_turn(spec, arrivals)


@EXAMPLES
@given(disciplines, arrivals_of_all, st.sampled_from([2, 3, 4]))
def test_a_member_that_was_away_for_a_moment_loses_and_gains_nothing(
    discipline: DisciplineSpec, arrivals: list[Arrival], away: int
) -> None:
    spec = spec_of(discipline)
    owner = Owner(spec, arrivals)
    for member in (2, 3, 4):
        owner.register(1, member)
    owner.lending.begin()
    owner.lending.unlinked(away)
    owner.register(1, away)
    assert owner.serve(len(arrivals)) == in_turn(spec, arrivals)


def test_the_heaviest_tenant_of_a_returning_member_is_not_served_in_one_block() -> None:
    discipline = DisciplineSpec("fair", key_header="X-Tenant")
    arrivals = [Arrival(2, b"small-%d" % number, 0, 1, 0.25) for number in range(3)]
    arrivals += [Arrival(3, b"big", 0, 1, 0.25) for _ in range(6)]
    arrivals += [Arrival(4, b"late", 0, 1, 0.25) for _ in range(2)]
    owner = Owner(QueueSpec(depth=1_000, discipline=discipline), arrivals)
    for member in (2, 3, 4):
        owner.register(1, member)
    owner.lending.begin()
    for _ in range(2):
        owner.lending.unlinked(3)
        owner.register(1, 3)
    assert owner.serve(11) == [1, 2, 3, 4, 10, 5, 11, 6, 7, 8, 9]


def test_a_request_whose_slot_is_not_used_returns_to_its_turn() -> None:
    """It does not register, and has been granted the slot by this owner."""
    discipline = DisciplineSpec("fair", key_header="X-Tenant")
    arrivals = [Arrival(2, share, 0, 1, 0.25) for share in (b"a", b"b", b"b", b"a")]
    owner = Owner(QueueSpec(depth=1_000, discipline=discipline), arrivals)
    owner.register(1, 2)
    owner.lending.begin()
    assert owner.serve(2) == [1, 2]
    owner.lending.want(2, 1, WaitingRequest(2, 2 * STEP, 1.0, share=b"b", failed_at="pod"))
    assert owner.serve(3) == [1, 2, 2, 4, 3]


def test_a_new_request_waits_behind_those_that_a_former_owner_has_numbered() -> None:
    arrivals = [Arrival(2, b"a", 0, 1, 0.25) for _ in range(9)]
    owner = Owner(QueueSpec(depth=1_000), arrivals)
    owner.lending.begin()
    owner.register(1, 2)
    later = asking(owner.throttler, owner.clock.now_s)
    assert later.arrival > 9 * STEP


def test_a_number_that_was_on_its_way_is_sent_again() -> None:
    """A member drops what comes from an earlier view."""
    owner = Owner(QueueSpec(depth=1_000), [])
    owner.lending.begin()
    owner.lending.want(2, 1, WaitingRequest(7))
    owner.lending.register(2, Register(2, "ns/rev", (), (WaitingRequest(7),)))
    assert len(owner.queued) == 2 and owner.queued[0] == owner.queued[1]
    assert owner.throttler.queue.waiters.length == 1


def test_a_tenant_that_had_its_turn_does_not_precede_one_that_returns() -> None:
    """Both have waited for as long; and a returning request does not move a tenant that was served meanwhile."""
    discipline = DisciplineSpec("fair", key_header="X-Tenant")
    shares = [(2, b"a"), (3, b"b"), (2, b"a"), (4, b"a"), (4, b"c"), (2, b"a"), (2, b"d")]
    arrivals = [Arrival(member, share, 0, 1, 0.25) for member, share in shares]
    owner = Owner(QueueSpec(depth=1_000, discipline=discipline), arrivals)
    owner.register(1, 2)
    owner.lending.begin()
    assert owner.serve(2) == [1, 7], "a has had its turn"
    owner.register(1, 4)
    owner.register(1, 3)
    assert owner.serve(5) == [1, 7, 2, 5, 3, 4, 6]
