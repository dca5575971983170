"""What Knative's autoscaler is told: the sequences of its own tests (times in milliseconds), through real counters."""

from __future__ import annotations

from activator.control_plane.scaling.concurrency import ConcurrencyReporter, ConcurrencyStat
from activator.data_plane.throttle.counters import Traffic
from activator.messages import Load
from tests.manual_clock import ManualClock

KEY = "default/hello"


class World:
    """Revisions with their counters, and a reporter that hears of every change at once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sent: list[list[ConcurrencyStat]] = []
        self.reporter = ConcurrencyReporter(self.clock.now, self.sent.append)
        self.traffic: dict[str, Traffic] = {}
        self.requests: dict[str, int] = {}

    def at(self, milliseconds: float) -> None:
        self.clock.now_s = 100.0 + milliseconds / 1000.0

    def come(self, key: str = KEY) -> None:
        self.requests[key] = self.requests.get(key, 0) + 1
        self.traffic.setdefault(key, Traffic()).begun(self.clock.now())
        self.tell(key)

    def go(self, key: str = KEY) -> None:
        self.traffic[key].ended(self.clock.now())
        self.tell(key)

    def tell(self, key: str = KEY) -> None:
        traffic = self.traffic[key]
        seconds = traffic.request_seconds_at(self.clock.now())
        concurrency = int(traffic.concurrency)
        self.reporter.load(Load(key, concurrency, 0, self.requests[key], concurrency, seconds, self.clock.now()))

    def report(self) -> list[ConcurrencyStat]:
        before = len(self.sent)
        self.reporter.report()
        return self.sent[before] if len(self.sent) > before else []


def figures(stats: list[ConcurrencyStat]) -> list[tuple[float, float]]:
    return [(round(stat.average_concurrency, 6), stat.request_count) for stat in stats]


def test_the_first_request_of_each_revision_is_told_at_once() -> None:
    world = World()
    world.at(0)
    world.come("a/one")
    world.come("b/two")
    world.come("a/one")
    assert [figures(batch) for batch in world.sent] == [[(1.0, 1.0)], [(1.0, 1.0)]]
    assert [batch[0].key for batch in world.sent] == ["a/one", "b/two"]


def test_what_was_told_at_once_is_taken_out_of_the_next_report() -> None:
    world = World()
    world.at(0)
    world.come()
    world.at(1)
    world.go()
    world.come()
    world.at(2)
    world.go()
    assert figures(world.sent[0]) == [(1.0, 1.0)]
    assert figures(world.report()) == [(0.0, 1.0)]


def test_two_at_once() -> None:
    world = World()
    world.at(0)
    world.come()
    world.come()
    world.at(1)
    world.tell()
    assert figures(world.report()) == [(1.0, 1.0)]
    world.at(2)
    world.tell()
    assert figures(world.report()) == [(2.0, 0.0)]


def test_the_mean_is_over_time() -> None:
    world = World()
    world.at(0)
    world.come()
    world.come()
    world.at(1)
    world.go()
    world.at(2)
    world.go()
    assert figures(world.report()) == [(0.5, 1.0)]


def test_an_idle_revision_is_told_once_more_and_then_no_longer_and_its_next_request_at_once_again() -> None:
    world = World()
    world.at(0)
    world.come()
    world.at(1)
    world.go()
    world.at(1000)
    world.report()
    world.at(2000)
    assert figures(world.report()) == [(0.0, 0.0)]
    world.at(3000)
    assert world.report() == []
    world.come()
    assert figures(world.sent[-1]) == [(1.0, 1.0)]


def test_a_report_in_the_moment_of_the_first_request_neither_forgets_it_nor_goes_negative() -> None:
    world = World()
    world.at(0)
    world.come()
    assert figures(world.report()) == [(0.0, 0.0)]
    world.at(1000)
    world.tell()
    assert figures(world.report()) == [(1.0, 0.0)]


def test_a_request_that_comes_just_before_the_report_that_finds_its_revision_idle_is_not_forgotten() -> None:
    """It may go on for minutes: whoever does not hear of it scales its pod away under it."""
    world = World()
    world.at(0)
    world.come()
    world.at(500)
    world.go()
    world.at(1000)
    world.report()
    world.at(1980)
    world.come()
    world.at(2000)
    assert figures(world.report()) == [(0.0, 1.0)], "nothing of its time has been told yet"
    for second in (3000, 4000):
        world.at(second)
        world.tell()
        ((average, count),) = figures(world.report())
        assert 0.98 <= average <= 1.02 and count == 0.0


def test_four_held_requests() -> None:
    world = World()
    world.at(0)
    for _ in range(4):
        world.come()
    world.at(1000)
    world.tell()
    assert figures(world.report()) == [(3.0, 3.0)]
    world.at(2000)
    world.tell()
    assert figures(world.report()) == [(4.0, 0.0)]


def test_a_request_that_finds_no_pod_is_told_at_once_though_the_revision_is_known() -> None:
    world = World()
    world.at(0)
    world.come()
    world.at(10)
    world.go()
    world.reporter.poke(KEY)
    assert len(world.sent) == 1, "it has just been told"
    world.at(1000)
    world.report()
    world.at(1500)
    world.come()
    world.reporter.poke(KEY)
    world.reporter.poke(KEY)
    assert figures(world.sent[-1]) == [(1.0, 0.0)] and len(world.sent) == 3
    world.at(2000)
    world.tell()
    assert figures(world.report()) == [(0.0, 1.0)], "what was told is taken out"
    world.reporter.poke("ns/unknown")
    assert len(world.sent) == 4


def test_the_connection_is_back() -> None:
    world = World()
    world.at(0)
    world.come("a/waits")
    world.come("a/idle")
    world.at(5)
    world.go("a/idle")
    world.sent.clear()
    world.reporter.connected()
    assert world.sent == [[ConcurrencyStat("a/waits", 1.0, 1.0)]]


def test_what_was_told_when_the_connection_was_back_is_not_told_twice() -> None:
    """A hundred that wait are a hundred, not two, to an autoscaler that sums what it hears in a second."""
    world = World()
    world.at(0)
    for _ in range(100):
        world.come()
    world.at(1000)
    world.tell()
    world.report()
    world.sent.clear()
    world.reporter.connected()
    assert figures(world.sent[0]) == [(100.0, 1.0)]
    world.at(2000)
    world.tell()
    assert figures(world.report()) == [(0.0, 0.0)]
    world.at(3000)
    world.tell()
    assert figures(world.report()) == [(100.0, 0.0)]


def test_a_revision_that_was_removed_and_made_anew_begins_anew() -> None:
    world = World()
    world.at(0)
    for _ in range(5):
        world.come()
        world.go()
    world.reporter.drop_revision(KEY)
    del world.traffic[KEY], world.requests[KEY]
    world.sent.clear()
    world.come()
    assert figures(world.sent[0]) == [(1.0, 1.0)]
