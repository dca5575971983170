"""What an operator unloads, and what leaves its group, starts again for a request and for nothing else."""

from __future__ import annotations

from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.rule import GroupRule, MemberRule
from activator.messages import Load
from tests.manual_clock import ManualClock

KEY, OTHER = "default/a", "default/b"


class AtOnce:
    """Programs that start and end in the call that asks for it."""

    is_frozen = False

    def __init__(self) -> None:
        self.granted: dict[str, int] = {}

    def counts(self, key: str, group: str) -> ProgramCounts:
        count = self.granted.get(key, 0)
        return ProgramCounts(started=count, ready=count)

    def grant(self, key: str, count: int, may_sleep: bool) -> None:
        self.granted[key] = count

    def stop_asleep(self, key: str, count: int) -> None:
        pass


def load(clock: ManualClock, key: str, in_flight: int, queued: int) -> Load:
    now_s = clock.now()
    return Load(key, in_flight, queued, 1, in_flight + queued, 0.0, now_s, now_s if queued else 0.0)


def grouped() -> tuple[Groups, AtOnce, ManualClock]:
    programs, clock = AtOnce(), ManualClock()
    groups = Groups(programs, lambda key, group, anew: None, clock.now)
    members = {key: MemberRule((10,), most=1) for key in (KEY, OTHER)}
    groups.configure([GroupRule("gpu", ("memory",), (16,), members)])
    return groups, programs, clock


def test_an_unload_is_not_undone_by_a_load_that_is_old() -> None:
    groups, programs, clock = grouped()
    groups.load(load(clock, KEY, 0, 1))
    groups.set_desired(KEY, 1)
    assert programs.granted[KEY] == 1
    # The request has been answered since, and no load has told of that yet.
    groups.unload(KEY)
    assert programs.granted[KEY] == 0
    groups.load(load(clock, KEY, 0, 0))
    groups.tick()
    assert programs.granted[KEY] == 0


def test_a_request_that_still_waits_claims_one_with_the_next_load() -> None:
    groups, programs, clock = grouped()
    groups.load(load(clock, KEY, 0, 1))
    groups.set_desired(KEY, 1)
    groups.unload(KEY)
    groups.load(load(clock, KEY, 0, 1))
    assert programs.granted[KEY] == 1


def test_a_member_that_was_evicted_leaves_its_group_and_waits_for_a_request() -> None:
    groups, programs, clock = grouped()
    groups.load(load(clock, KEY, 0, 1))
    groups.set_desired(KEY, 1)
    groups.load(load(clock, KEY, 0, 0))
    groups.load(load(clock, OTHER, 0, 1))
    groups.set_desired(OTHER, 1)
    assert (programs.granted[KEY], programs.granted[OTHER]) == (0, 1)

    groups.configure([])
    assert groups.of(KEY) is None
    assert (programs.granted[KEY], programs.granted[OTHER]) == (0, 1)
    groups.set_desired(KEY, 1)
    assert programs.granted[KEY] == 0, "its idle time is not over, and nothing waits"
    groups.keep(KEY, 1)
    assert programs.granted[KEY] == 1, "a minimum"
    programs.granted[KEY] = 0
    groups.load(load(clock, KEY, 0, 1))
    groups.set_desired(KEY, 1)
    assert programs.granted[KEY] == 1
