"""From a slow bucket to a trace: what requests that are traced leave in the histograms, and where it is shown."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from activator.codec.message import RequestHead
from activator.config.specs import QueueSpec
from activator.data_plane import statistics
from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.throttle.counters import REQUEST_BOUNDS_S
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.runtime.reasons import Reason
from activator.telemetry.metrics.exposition import Exposition
from activator.telemetry.tracing.span_messages import Envelope
from activator.telemetry.tracing.span_sender import SpanSender
from activator.telemetry.tracing.spans import SpanMaker
from lb.rng import Rng
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head, response_head
from tests.telemetry.revision_figures import of_world, read_from, throttlers
from tests.telemetry.test_exposition import OPENMETRICS, program, text_of
from tests.telemetry.test_tracing import PARENT, TRACE, WALL_NS, Collector, Entropy, Stuck, Traced

DURATION = "activator_request_duration_seconds"
FIRST_BYTE = "activator_first_byte_seconds"
WAIT = "activator_queue_wait_seconds"
TIME_S = 1_795_296_896.062  # WALL_NS, to the millisecond
LABELS_MAX = 128  # characters of the names and values of an exemplar's labels, as OpenMetrics has it


class Shown(NamedTuple):
    """An exemplar as a scraper reads it."""

    bound: float  # of its bucket
    trace_id: str
    value: float
    time_s: float


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def shown(text: str, revision: str = "app") -> dict[str, list[Shown]]:
    """All exemplars of a revision, by family; what else there is must be of its buckets too."""
    parse: Callable[[str], Iterable[Metric]] = openmetrics_families  # it has no types of its own
    found: dict[str, list[Shown]] = {}
    for family in parse(text):
        for sample in family.samples:
            exemplar = sample.exemplar
            if exemplar is None or sample.labels["revision"] != revision:
                continue
            assert sample.name == f"{family.name}_bucket"
            assert list(exemplar.labels) == ["trace_id"]
            assert sum(len(name) + len(value) for name, value in exemplar.labels.items()) <= LABELS_MAX
            assert exemplar.timestamp is not None
            bound, time_s = float(sample.labels["le"]), float(exemplar.timestamp)
            made = Shown(bound, exemplar.labels["trace_id"], exemplar.value, time_s)
            found.setdefault(family.name, []).append(made)
    return found


def read(world: World, accept: str = OPENMETRICS) -> str:
    return text_of(Exposition(of_world(world.throttler), lambda: program(world)), accept)


def a_cold_request(world: World, head: RequestHead | None = None) -> None:
    """It waits for 2.0 s, and is answered after 0.25 s more."""
    exchange, _ = world.begin(head)
    world.clock.pass_time(2.0)
    world.pod()
    world.clock.pass_time(0.25)
    at_pod(exchange).response_head(response_head())
    at_pod(exchange).response_body(b"hello")
    world.clock.pass_time(0.5)
    at_pod(exchange).response_end([])


def test_the_trace_of_a_bucket_is_the_one_that_was_sent(collector: Collector) -> None:
    traced = Traced(collector)
    a_cold_request(traced.world)
    text = read(traced.world)
    (trace_id,) = {span.trace_id.hex() for span in traced.received().values()}
    assert shown(text) == {
        DURATION: [Shown(5.0, trace_id, 2.75, TIME_S)],
        FIRST_BYTE: [Shown(2.5, trace_id, 2.25, TIME_S)],
        WAIT: [Shown(2.5, trace_id, 2.0, TIME_S)],
    }
    (line,) = [line for line in text.splitlines() if line.startswith(f"{WAIT}_bucket") and "trace_id" in line]
    of = 'namespace="ns",revision="app",le="2.5"'
    assert line == f'{WAIT}_bucket{{{of}}} 1 # {{trace_id="{trace_id}"}} 2.0 1795296896.062'


def test_a_trace_that_the_client_began_goes_by_its_id(collector: Collector) -> None:
    traced = Traced(collector, rate=0.5)
    a_cold_request(traced.world, request_head(TraceParent=f"00-{TRACE}-{PARENT}-01"))
    assert {one.trace_id for exemplars in shown(read(traced.world)).values() for one in exemplars} == {TRACE}
    traced.received()


def test_the_classic_format_knows_none(collector: Collector) -> None:
    traced = Traced(collector)
    a_cold_request(traced.world)
    text = read(traced.world, "")
    assert not [line for line in text.splitlines() if not line.startswith("#") and "#" in line]
    buckets = [line for line in text.splitlines() if f"{WAIT}_bucket" in line]
    assert 'le="2.5"} 1' in "\n".join(buckets)
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert samples and all(one.exemplar is None for one in samples)
    assert shown(read(traced.world)), "they are there for who asks in OpenMetrics"
    traced.received()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_say_where_there_are_exemplars(collector: Collector) -> None:
    traced = Traced(collector)
    a_cold_request(traced.world)
    traced.received()
    command = ["promtool", "check", "metrics"]
    text = read(traced.world, "")
    told = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60.0, check=False)
    assert (told.returncode, told.stdout + told.stderr) == (0, "")


def test_who_is_not_traced_leaves_nothing(collector: Collector) -> None:
    traced = Traced(collector, rate=0.0)
    a_cold_request(traced.world, request_head(TraceParent=f"00-{TRACE}-{PARENT}-01"))
    traffic = traced.world.throttler.counters.traffic
    assert traffic.duration.buckets()[-1][1] == 1
    assert traffic.duration.exemplars() == traffic.first_byte.exemplars() == traffic.wait.exemplars() == {}
    assert traced.received() == shown(read(traced.world)) == {}


def test_a_trace_that_nobody_is_sent_leaves_nothing() -> None:
    """It was begun, and tracing was switched off before its end; or there is no room for its spans."""
    world = World()
    world.pod()
    client = Stuck()
    sampler = Sampler(1.0, Rng(1), Entropy())
    sender = SpanSender(client, Envelope({}, "test"), 3, 3, 3600.0)
    world.proxy.sampler = sampler
    switched_off, _ = world.begin()
    assert switched_off.trace is not None
    world.answer(switched_off)
    assert shown(read(world)) == {}
    world.proxy.tracer = SpanMaker(sender, sampler, lambda: WALL_NS, world.clock.now, world.errors.append)
    sent, _ = world.begin()
    world.answer(sent)
    before = shown(read(world))
    dropped, _ = world.begin()
    world.answer(dropped)
    assert sender.dropped_total == 3
    assert shown(read(world)) == before and sent.trace is not None
    assert {one.trace_id for exemplars in before.values() for one in exemplars} == {sent.trace.trace_id}
    client.go.set()
    sender.close()


# --- each in the histograms that have counted it, with the value that they have counted ---


def _answered(world: World, exchange: ProxiedExchange) -> None:
    world.answer(exchange)


def _cut_short(world: World, exchange: ProxiedExchange) -> None:
    at_pod(exchange).response_head(response_head())
    world.clock.pass_time(0.125)
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)


def _client_left(world: World, exchange: ProxiedExchange) -> None:
    exchange.client_gone()


def _waited_in_vain(world: World, exchange: ProxiedExchange) -> None:
    world.clock.pass_time(4.0)


def _tunnelled(world: World, exchange: ProxiedExchange) -> None:
    at_pod(exchange).response_head(response_head(101))
    world.clock.pass_time(0.125)
    exchange.client_gone()


@pytest.mark.parametrize(
    ("waits", "end", "counted"),
    [
        (False, _answered, {DURATION, FIRST_BYTE}),
        (True, _answered, {DURATION, FIRST_BYTE, WAIT}),
        (True, _cut_short, {DURATION, FIRST_BYTE, WAIT}),
        (False, _client_left, {DURATION}),
        (True, _client_left, {DURATION, WAIT}),
        (None, _client_left, {DURATION, WAIT}),
        (None, _waited_in_vain, {DURATION, WAIT}),
        (True, _tunnelled, {FIRST_BYTE, WAIT}),
    ],
)
def test_every_end(
    collector: Collector, waits: bool | None, end: Callable[[World, ProxiedExchange], None], counted: set[str]
) -> None:
    """`waits`: for a pod; None: there is none."""
    traced = Traced(collector, queue=QueueSpec(timeout_s=3.0))
    world = traced.world
    if waits is False:
        world.pod()
    exchange, _ = world.begin(request_head(Connection="upgrade", Upgrade="websocket"))
    world.clock.pass_time(0.5)
    if waits:
        world.pod()
        world.clock.pass_time(0.25)
    end(world, exchange)
    assert exchange.over
    traffic = world.throttler.counters.traffic
    found = shown(read(world))
    assert set(found) == counted
    for name, histogram in ((DURATION, traffic.duration), (FIRST_BYTE, traffic.first_byte), (WAIT, traffic.wait)):
        assert (histogram.buckets()[-1][1] == 1) == (name in counted)
        for one in found.get(name, []):
            assert one.value == histogram.sum
            assert one.bound == next(bound for bound, count in histogram.buckets() if count)
    traced.received()


def test_no_route_has_no_histogram(collector: Collector) -> None:
    traced = Traced(collector)
    traced.world.begin(request_head(host="nobody.test"))
    assert shown(read(traced.world)) == {}
    assert set(traced.received()) == {"GET"}


def test_where_histograms_are_not_wanted_nothing_is_kept(collector: Collector) -> None:
    traced = Traced(collector)
    traced.world.proxy.histograms = False
    a_cold_request(traced.world)
    assert traced.world.throttler.counters.traffic.duration.exemplars() == {}
    assert len(traced.received()) == 3


# --- how many, and which ---


def test_a_bucket_keeps_its_last_one() -> None:
    histogram = Histogram((1.0, 2.0))
    assert histogram.exemplars() == {}
    values = [0.5, 1.0, 1.5, 2.0, 2.5, 99.0, 1.25] * 50
    for number, value in enumerate(values):
        histogram.observe(value)
        histogram.exemplify(value, f"{number:032x}", float(number))
    kept = {bound: (one.value, one.trace_id, one.time_s) for bound, one in histogram.exemplars().items()}
    last = len(values) - 1
    assert kept == {
        1.0: (1.0, f"{last - 5:032x}", last - 5.0),
        2.0: (1.25, f"{last:032x}", float(last)),
        inf: (99.0, f"{last - 1:032x}", last - 1.0),
    }


def test_each_stands_in_the_bucket_that_counted_it() -> None:
    for below, bound in pairwise((*REQUEST_BOUNDS_S, inf)):
        for value in (below, min(below * 1.01, bound)):
            histogram = Histogram(REQUEST_BOUNDS_S)
            histogram.observe(value)
            histogram.exemplify(value, TRACE, 1.0)
            assert list(histogram.exemplars()) == [next(bound for bound, count in histogram.buckets() if count)]


def test_what_was_read_does_not_change_any_more() -> None:
    histogram = Histogram((1.0,))
    histogram.exemplify(0.5, TRACE, 1.0)
    read_before = Distribution.of(histogram)
    histogram.exemplify(5.0, TRACE, 2.0)
    assert list(read_before.exemplars) == [1.0]
    assert list(Distribution.of(histogram).exemplars) == [1.0, inf]


def _leave(throttler: RevisionThrottler, value: float, trace_id: str, time_s: float) -> None:
    throttler.counters.traffic.duration.observe(value)
    throttler.counters.traffic.duration.exemplify(value, trace_id, time_s)


def test_of_those_shown_as_one_the_last_of_each_bucket() -> None:
    every = throttlers(4)
    exposition = Exposition(read_from(every), lambda: program(World()), named_max=1)
    named, first, second, third = every.values()
    _leave(named, 0.3, "a" * 32, 9.0)
    _leave(first, 0.3, "b" * 32, 5.0)
    _leave(second, 0.4, "c" * 32, 4.0)
    _leave(second, 3.0, "d" * 32, 6.0)
    _leave(third, 0.45, "e" * 32, 7.0)
    text = text_of(exposition, OPENMETRICS)
    assert shown(text, "r0") == {DURATION: [Shown(0.5, "a" * 32, 0.3, 9.0)]}
    expected = {DURATION: [Shown(0.5, "e" * 32, 0.45, 7.0), Shown(5.0, "d" * 32, 3.0, 6.0)]}
    assert shown(text, "_other") == expected
    for leaving in (third, second):
        del every[leaving.key]
        exposition.ended(statistics.revision(leaving))
    assert shown(text_of(exposition, OPENMETRICS), "_other") == expected, "as their counts do, they stay"
    assert "trace_id" not in text_of(exposition)


def test_who_asks_for_a_format_that_is_not_there_has_the_classic_one() -> None:
    every = throttlers(1)
    _leave(every["ns/r0"], 0.3, TRACE, 9.0)
    exposition = Exposition(read_from(every), lambda: program(World()))
    seen = {accept: TRACE in text_of(exposition, accept) for accept in ("", "*/*", "text/plain", "application/json")}
    assert not any(seen.values())
    asked_by_prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    assert TRACE in text_of(exposition, asked_by_prometheus)
