"""Several replicas of the activator: whose an object is, and what its owner knows of the load at the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.activations.replicas import LOAD_EXPIRES_S, Replicas
from activator.messages import Load
from activator.messages.writers import ALONE, Writers
from activator.runtime.rendezvous import owner_of
from tests.manual_clock import ManualClock

SEATS = (0, 1, 2)


class Net:
    """Replicas that hear each other at once."""

    def __init__(self, *seats: int) -> None:
        self.clock = ManualClock()
        self.carried: dict[int, list[Load]] = {seat: [] for seat in seats}
        self.told: list[tuple[int, int, Load]] = []
        self.keys: dict[str, str] = {}  # uid by key
        self.ends = {seat: End(self, seat) for seat in seats}
        self.replicas = {
            seat: Replicas(self.keys.get, self.carried[seat].append, lambda: None, self.clock.now) for seat in seats
        }
        for seat in seats:
            self.replicas[seat].join(self.ends[seat])

    def view(self, *seats: int, silent: tuple[int, ...] = ()) -> None:
        for seat in seats:
            self.ends[seat].changed(Writers(seat, (seats,), present=frozenset((*seats, *silent))))

    def key_of(self, owner: int, seats: tuple[int, ...] = SEATS) -> str:
        """A revision that this replica owns."""
        number = next(number for number in range(1000) if owner_of(f"uid-{number}", seats) == owner)
        self.keys[f"ns/{number}"] = f"uid-{number}"
        return f"ns/{number}"


class End:
    """One replica's end of the group."""

    def __init__(self, net: Net, seat: int) -> None:
        self.net = net
        self.seat = seat
        self.is_cut = False

    def join(self, changed, heard) -> None:  # type: ignore[no-untyped-def]
        self.changed, self.heard = changed, heard
        changed(Writers(self.seat, is_allowed=False))

    def set_writes(self, writes: bool) -> None:
        raise AssertionError("nobody asks for it here")

    def report(self, seat: int, load: Load) -> None:
        self.net.told.append((self.seat, seat, load))
        if not self.is_cut:
            self.net.ends[seat].heard(self.seat, load)


def load(key: str, in_flight: int = 0, queued: int = 0, total: int = 0, seconds: float = 0.0) -> Load:
    return Load(key, in_flight, queued, total, in_flight + queued, seconds, 1.0)


def test_one_alone_passes_everything_on_and_writes_everything() -> None:
    seen: list[Load] = []
    alone = Replicas({"ns/a": "u"}.get, seen.append, lambda: None, ManualClock().now)
    said = load("ns/a", 1, 2, 3, 4.0)
    alone.receive(said)
    assert seen == [said] and alone.writers is ALONE and alone.writes("anything") and not alone.is_anothers("u")


def test_a_first_request_elsewhere_is_told_to_the_owner_at_once() -> None:
    net = Net(*SEATS)
    net.view(*SEATS)
    key = net.key_of(2)
    net.replicas[0].receive(load(key, queued=1, total=1))
    assert [(one, other) for one, other, _ in net.told] == [(0, 2)]
    (seen,) = net.carried[2]
    assert (seen.in_flight, seen.queued, seen.concurrency) == (0, 1, 1)
    assert net.carried[0] == []


def test_before_the_first_view_nothing_is_told_and_then_what_is_here() -> None:
    net = Net(*SEATS)
    key = net.key_of(1)
    net.replicas[0].receive(load(key, queued=3, total=3))
    assert not net.told
    net.view(*SEATS)
    assert net.carried[1][-1].queued == 3


def test_a_new_owner_knows_what_the_others_carry_but_counts_no_past() -> None:
    net = Net(*SEATS)
    net.view(*SEATS)
    key = net.key_of(2)
    net.replicas[0].receive(load(key, 4, 0, 1_000, 500.0))
    net.replicas[1].receive(load(key, 1, 1, 2_000, 700.0))
    heir = owner_of(net.keys[key], (0, 1))
    net.view(0, 1)
    seen = net.replicas[heir].sum(key)
    assert (seen.in_flight, seen.queued) == (5, 1)
    assert seen.requests_total == seen.request_seconds == 0.0


def test_what_a_replica_carried_goes_with_it_and_stays_while_it_may_live() -> None:
    net = Net(*SEATS)
    net.view(*SEATS)
    key = net.key_of(0)
    net.replicas[1].receive(load(key, 3))
    net.replicas[2].receive(load(key, 2))
    net.view(0, 2, silent=(1,))
    assert net.replicas[0].sum(key).in_flight == 5, "its requests may still be at pods"
    net.view(0, 2)
    assert net.carried[0][-1].in_flight == net.replicas[0].sum(key).in_flight == 2


def test_what_nobody_confirms_expires_but_what_is_here_does_not() -> None:
    net = Net(*SEATS)
    net.view(*SEATS)
    key = net.key_of(0)
    net.replicas[0].receive(load(key, 1))
    net.replicas[1].receive(load(key, 3))
    net.clock.pass_time(LOAD_EXPIRES_S - 1.0)
    net.replicas[0].expire()
    assert net.replicas[0].sum(key).in_flight == 4
    net.clock.pass_time(2.0)
    net.replicas[0].expire()
    assert net.carried[0][-1].in_flight == 1


def test_of_what_is_not_declared_here_nothing_is_kept() -> None:
    net = Net(*SEATS)
    net.view(*SEATS)
    for number in range(1_000):
        net.ends[0].heard(1, load(f"ns/unknown-{number}", 1))
    assert not net.replicas[0]._loads and not net.carried[0]


@given(
    st.lists(
        st.tuples(st.sampled_from(SEATS), st.integers(0, 5), st.integers(0, 5), st.integers(0, 9), st.booleans()),
        max_size=40,
    )
)
def test_the_owner_has_the_sum_and_totals_never_fall(said: list[tuple[int, int, int, int, bool]]) -> None:
    """The oracle: what each replica said last, and what each has added since it first said anything."""
    net = Net(*SEATS)
    net.view(*SEATS)
    key = net.key_of(1)
    last: dict[int, Load] = {}
    added = 0
    totals = dict.fromkeys(SEATS, 0)
    before = 0
    for seat, in_flight, queued, requests, begins_anew in said:
        totals[seat] = 0 if begins_anew else totals[seat] + requests  # a replica that was started again
        one = load(key, in_flight, queued, totals[seat])
        if seat in last:
            added += max(one.requests_total - last[seat].requests_total, 0)
        last[seat] = one
        net.replicas[seat].receive(one)
        seen = net.carried[1][-1]
        assert seen.in_flight == sum(each.in_flight for each in last.values())
        assert seen.queued == sum(each.queued for each in last.values())
        assert seen.requests_total == added >= before
        before = added
