"""The whole throttler under any interleaving, beside the plainest form of its discipline (bench/trace_world.py)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bench.trace_world import DISCIPLINES, FLAPS, HASTY, NORMAL, PUSHING, RAISING, TraceWorld
from tests.conftest import DEEP

pod_numbers = st.integers(1, 4)


class Throttler(RuleBasedStateMachine):
    @initialize(discipline=st.integers(0, len(DISCIPLINES) - 1), per_turn_max=st.integers(1, 5))
    def begin(self, discipline: int, per_turn_max: int) -> None:
        self.world = TraceWorld(discipline, per_turn_max)

    @rule(
        path=st.sampled_from(["/", "/", "/heavy/1", "/healthz"]),
        level=st.integers(0, 8),
        tenant=st.sampled_from(["a", "b", "c"]),
        manner=st.sampled_from([NORMAL, NORMAL, HASTY, RAISING, PUSHING]),
        timeout=st.sampled_from(["", "", "300ms", "20s"]),
    )
    def arrive(self, path: str, level: int, tenant: str, manner: int, timeout: str) -> None:
        self.world.arrive(path, level, tenant, manner, timeout)

    @precondition(lambda self: self.world.leased)
    @rule(data=st.data(), what=st.sampled_from(["end", "end", "leave", "try again"]))
    def something_happens_at_a_pod(self, data: st.DataObject, what: str) -> None:
        guest = data.draw(st.sampled_from(list(self.world.leased)))
        if what == "end":
            self.world.end(guest)
        elif what == "leave":
            self.world.leave(guest)
        else:
            self.world.try_again(guest)

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def somebody_leaves(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(list(self.world.live))))

    @rule(number=pod_numbers, limit=st.integers(1, 3))
    def pod_comes(self, number: int, limit: int) -> None:
        self.world.pod_comes(number, limit)

    @rule(number=pod_numbers)
    def pod_drains(self, number: int) -> None:
        self.world.pod_drains(number)

    @rule()
    def drained_slots_are_freed(self) -> None:
        self.world.free_drained()

    @rule(number=pod_numbers, state=st.sampled_from(FLAPS))
    def pod_flaps(self, number: int, state: int) -> None:
        self.world.flap(number, state)

    @rule(number=pod_numbers, limit=st.integers(0, 4))
    def limit_changes(self, number: int, limit: int) -> None:
        self.world.limit(number, limit)

    @rule(fails=st.booleans())
    def revision_fails_or_recovers(self, fails: bool) -> None:
        if fails:
            self.world.fail()
        else:
            self.world.recover()

    @rule(discipline=st.integers(0, len(DISCIPLINES) - 1), depth=st.integers(0, 20))
    def configuration_is_read_again(self, discipline: int, depth: int) -> None:
        self.world.reload(discipline, depth)

    @rule(seconds=st.sampled_from([0.05, 0.5, 4.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def the_loop_turns(self) -> None:
        self.world.turn()

    @invariant()
    def every_promise_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check_deeply()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


Throttler.TestCase.settings = settings(
    max_examples=3_000 if DEEP else 120, stateful_step_count=150 if DEEP else 60, deadline=None
)
TestThrottler = Throttler.TestCase
