"""The text of /metrics: read back by the library's own parsers, bounded, and documented."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from activator.config.specs import QueueSpec
from activator.control_plane.probes.prober import Prober
from activator.control_plane.state.worker import StateWorker
from activator.data_plane import statistics
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import DataPlaneStatistics, RevisionStatistics
from activator.runtime.controller_counts import Controllers
from activator.runtime.reasons import Reason
from activator.runtime.tasks import TaskGroupOwner
from activator.telemetry.logs.switch import AccessLogSwitch
from activator.telemetry.metrics.catalogue import markdown
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES
from activator.telemetry.metrics.controller_families import CONTROLLER_FAMILIES
from activator.telemetry.metrics.exposition import READ_PER_SLICE, SAMPLES_PER_SLICE, Exposition
from activator.telemetry.metrics.families import Family, Kind, add
from activator.telemetry.metrics.named import labels_of
from activator.telemetry.metrics.program_families import CONTROL, PROGRAM_FAMILIES, Program
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from activator.telemetry.metrics.sample_text import LABELS_KEPT_MAX
from activator.telemetry.tracing.switch import TraceSwitch
from lb.rng import Rng
from tests.conftest import DEEP, storms
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head
from tests.sources import ROOT
from tests.telemetry.revision_figures import a_throttler, of_world, read_from, throttlers

OTHERS_NAMES = ("controller_runtime_", "workqueue_", "rest_client_")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Deaf:
    """Is told of probes, and does nothing about them."""

    def pod_failed(self, key: str) -> None:
        pass

    def pod_answered(self, key: str) -> None:
        pass


def program(world: World) -> Program:
    data = DataPlaneStatistics(
        accepted_total=3,
        exchanges=world.proxy.active,
        held_bytes=world.held.held_bytes,
        held_requests=world.held.held_requests,
        refused_requests={reason.value: count for reason, count in world.proxy.refused_requests.items()},
    )
    worker = StateWorker(world.clock.now, lambda _: None, lambda _: None, lambda _source, _key: None)
    tasks = TaskGroupOwner(lambda name, error: None)
    prober = Prober(tasks, lambda change: None, Rng(1), world.clock.now, Deaf(), lambda *_: 1.0)
    access_log = AccessLogSwitch(
        world.proxy, world.clock.now, world.clock.defer, world.clock.call_later, world.errors.append
    )
    controllers = Controllers(world.clock.now)
    traces = TraceSwitch(world.proxy, controllers, {}, Rng(1), bytes, lambda: 0, world.clock.now, world.errors.append)
    return Program(
        data,
        worker,
        prober,
        access_log.lost_total,
        world.clock.now,
        controllers,
        traces.totals,
    )


def text_of(exposition: Exposition, accept: str = "") -> str:
    slices, _ = exposition.render(accept)
    return b"".join(slices).decode()


def series(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(families: Iterable[Metric], name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, f"{name}{labels}: {found}"
    return float(found[0])


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_was_done_is_what_is_read(accept: str) -> None:
    world = World()
    world.pod()
    exposition = Exposition(of_world(world.throttler), lambda: program(world))
    text_of(exposition, accept)
    exchange, _ = world.begin()
    world.clock.pass_time(0.003)
    world.answer(exchange, 404)
    world.begin()
    slices, content_type = exposition.render(accept)
    text = b"".join(slices).decode()
    parse = openmetrics_families if accept else text_string_to_metric_families
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    families = list(parse(text))
    of = {"namespace": "ns", "revision": "app"}
    assert value(families, "activator_requests_total", **of) == 2.0
    assert value(families, "activator_in_flight", **of) == 1.0
    assert value(families, "activator_responses_total", code_class="4xx", **of) == 1.0
    assert value(families, "activator_request_duration_seconds_count", **of) == 1.0
    assert value(families, "activator_request_duration_seconds_bucket", le="0.0025", **of) == 0.0
    assert value(families, "activator_request_duration_seconds_bucket", le="0.005", **of) == 1.0
    assert value(families, "activator_request_duration_seconds_sum", **of) == pytest.approx(0.003)
    assert value(families, "activator_pods", state="ready", **of) == 1.0
    assert value(families, "activator_cold_start_phase_seconds_count", phase="ready", **of) == 0.0


def test_histograms_are_left_out_where_nobody_wants_them() -> None:
    world = World()
    world.proxy.histograms = False
    exposition = Exposition(of_world(world.throttler), lambda: program(world))
    exposition.histograms = False
    first, _ = world.begin()  # waits for a pod
    world.clock.pass_time(0.5)
    world.pod()
    world.answer(first)
    families = list(text_string_to_metric_families(text_of(exposition)))
    of_revisions = [one for one in families if any("revision" in sample.labels for sample in one.samples)]
    assert "histogram" not in {one.type for one in of_revisions}
    assert value(families, "activator_requests_total", namespace="ns", revision="app") == 1.0
    assert value(families, "activator_response_body_bytes_total", namespace="ns", revision="app") == 5.0
    exposition.histograms = world.proxy.histograms = True
    second, _ = world.begin()
    world.answer(second)
    families = list(text_string_to_metric_families(text_of(exposition)))
    assert value(families, "activator_request_duration_seconds_count", revision="app") == 1.0, "from now on"
    assert value(families, "activator_queue_wait_seconds_count", revision="app") == 0.0


def test_every_family_is_described_once_and_documented() -> None:
    exposition = Exposition(read_from(throttlers(40)), lambda: program(World()))
    text = text_of(exposition)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    page = markdown()
    for family in text_string_to_metric_families(text):
        assert family.documentation
        if family.name.startswith(("activator_", *OTHERS_NAMES)):
            shown = f"{family.name}_total" if family.type == "counter" else family.name
            assert f"`{shown}`" in page
        else:
            assert family.name.startswith("process_")


def test_the_page_is_the_code() -> None:
    assert (ROOT / "docs/metrics.md").read_text("utf-8") == markdown(), "make docs"


def test_names_follow_the_conventions() -> None:
    families: tuple[Family[Any], ...] = (*REVISION_FAMILIES, *PROGRAM_FAMILIES, *CLUSTER_FAMILIES, *CONTROLLER_FAMILIES)
    for family in families:
        assert family.name.startswith(("activator_", *OTHERS_NAMES)) and family.name == family.name.lower()
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_ms", "_milliseconds"))
        assert family.text.endswith(".")
        assert bool(family.bounds) == (family.kind.value == "histogram")
        if family.bounds:
            assert family.name.endswith("_seconds")
            assert list(family.bounds) == sorted(set(family.bounds))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_to_say() -> None:
    text = text_of(Exposition(read_from(throttlers(2, requests=3)), lambda: program(World())))
    command = ["promtool", "check", "metrics"]
    told = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60.0, check=False)
    assert (told.returncode, told.stdout + told.stderr) == (0, "")


LABELS = frozenset(["reason", "step", "user", "version", "compiled", "outcome", "from", "event", "to", "kind"])


def test_control_plane_labels_name_nobody() -> None:
    for family in PROGRAM_FAMILIES:
        assert set(family.labels) <= {
            "reason",
            "step",
            "user",
            "limit",
            "listener",
            "version",
            "compiled",
            "outcome",
            "from",
            "event",
            "to",
            "kind",
        }
    for of_cluster in CLUSTER_FAMILIES:
        assert set(of_cluster.labels) <= {"kind"}
        assert all(of_cluster.values), "every label is of a closed set"
    for of_controllers in CONTROLLER_FAMILIES:
        words = {"controller", "result", "verb", "code", "target_kind", "error_type", "component", "outcome", "manager"}
        assert set(of_controllers.labels) <= words
        assert all(of_controllers.values), "every label is of a closed set"


def test_each_metric_of_our_own_in_the_control_plane_has_a_rationale() -> None:
    families: tuple[Family[Any], ...] = (*CONTROL, *CONTROLLER_FAMILIES, *CLUSTER_FAMILIES)
    known = {f"{one.name}_total" if one.kind is Kind.COUNTER else one.name for one in (*families, *REVISION_FAMILIES)}
    for family in families:
        assert family.name.startswith(OTHERS_NAMES) or family.why.endswith("."), family.name
        compared = re.findall(r"`(\w+)[`{]", family.why)
        assert set(compared) <= known | {"controller_runtime_reconcile_panics_total"}, family.name


@given(st.dictionaries(st.text(min_size=1, max_size=9), st.integers(0, 5), min_size=1, max_size=3))
@example({'a"b\\\n\u00e9': 1})
def test_lines_are_as_the_library_writes_them(named: dict[str, int]) -> None:
    shown = {}
    for (name, requests), throttler in zip(named.items(), throttlers(3).values(), strict=False):
        throttler.key = f"ns/{name}"
        throttler.counters.requests_total = requests
        throttler.counters.traffic.duration.observe(requests / 7.0)
        throttler.counters.failed_totals[Reason.QUEUE_FULL] = requests
        shown[throttler.key] = throttler
    written = list(text_string_to_metric_families(text_of(Exposition(read_from(shown), lambda: program(World())))))
    for family in REVISION_FAMILIES:
        expected = family.metric(("namespace", "revision"))
        for throttler in shown.values():
            of = statistics.revision(throttler)
            for values, read in family.read(of):
                add(expected, (*labels_of(of), *values), read)
        (found,) = [one for one in written if one.name == expected.name]
        assert found.type == expected.type
        assert {(one.name, *sorted(one.labels.items()), one.value) for one in found.samples} == {
            (one.name, *sorted(one.labels.items()), one.value) for one in expected.samples
        }


def test_revisions_are_read_in_slices() -> None:
    count = 3 * READ_PER_SLICE
    for named_max in (0, count):
        slices, _ = Exposition(read_from(throttlers(count)), lambda: program(World()), named_max=named_max).render()
        assert sum(not one for one in slices) >= 3


def test_slices_are_bounded() -> None:
    exposition = Exposition(read_from(throttlers(300)), lambda: program(World()))
    slices, _ = exposition.render()
    most = max(sum(not line.startswith(b"#") for line in one.splitlines()) for one in slices)
    assert most <= SAMPLES_PER_SLICE + 100  # one revision's rows of one family come on top at most


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_requests_of_every_kind_make_no_series(count: int) -> None:
    """Random paths, hosts, methods, headers, clients, answers and ends, on pods that come and go."""
    world = World(queue=QueueSpec(depth=5))
    exposition = Exposition(of_world(world.throttler), lambda: program(world))
    rng = random.Random(5)
    pods: list[str] = []
    made = 0

    def change_pods() -> None:
        nonlocal made
        if len(pods) < 3 or (len(pods) < 20 and rng.random() < 0.5):
            made += 1
            pods.append(f"p{made}")
            world.pod(pods[-1], limit=2)
        else:
            world.table.drain(world.tracker(pods.pop(rng.randrange(len(pods)))))

    def one_request() -> None:
        host = rng.choice(["app.test", "app.test", f"{rng.random()}.test"])
        head = request_head(rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "PROPFIND"]), host)
        head.headers = head.headers.with_line(f"X-{rng.randrange(1 << 30)}".encode(), b"1")
        head.target = f"/{rng.random()}".encode()
        exchange, client = world.begin(head)
        if rng.random() < 0.01:
            world.clock.pass_time(rng.random())
        chance = rng.random()
        if client.reason == Reason.NO_ROUTE.value or exchange.over:
            return
        if chance < 0.1:
            exchange.client_gone()
        elif chance < 0.2:
            at_pod(exchange).pod_failed(rng.choice([Reason.POD_CLOSED, Reason.BAD_RESPONSE]), "", False)
        else:
            world.answer(exchange, rng.choice([200, 204, 301, 404, 500, 599]))

    def some_requests(number: int) -> None:
        for place in range(number):
            if place % 20 == 0:
                change_pods()
            one_request()

    some_requests(1_000)
    before = series(text_of(exposition))
    some_requests(count)
    assert series(text_of(exposition)) == before
    assert made > 30


def test_beyond_the_cap_revisions_are_one() -> None:
    shown = throttlers(10, requests=2)
    exposition = Exposition(read_from(shown), lambda: program(World()), named_max=3)
    families = list(text_string_to_metric_families(text_of(exposition)))
    assert {
        sample.labels["revision"] for family in families for sample in family.samples if "revision" in sample.labels
    } == {
        "r0",
        "r1",
        "r2",
        "_other",
    }
    other = {"namespace": "_other", "revision": "_other"}
    assert value(families, "activator_requests_total", **other) == 14.0
    assert value(families, "activator_request_duration_seconds_count", **other) == 14.0
    assert value(families, "activator_request_duration_seconds_bucket", le="0.0025", **other) == 14.0
    assert value(families, "activator_sparse_array_fragmentation_ratio", **other) == 0.0


def test_pods_are_shown_of_revisions_with_a_name_only_and_their_labels_are_forgotten() -> None:
    pods, shown = 0, throttlers(4)

    def revisions() -> Iterable[RevisionStatistics]:
        for key, throttler in shown.items():
            by_pod = {f"unix:/{key}\n{number}": (number, 1, 0.5) for number in range(pods, pods + 3)}
            yield replace(statistics.revision(throttler), by_pod=by_pod)

    exposition = Exposition(revisions, lambda: program(World()), named_max=2)
    for pods in range(0, 30_000, 7_000):
        families = {one.name: one for one in text_string_to_metric_families(text_of(exposition))}
        samples = families["activator_pod_responses"].samples
        named = {sample.labels["revision"] for sample in samples}
        assert len(samples) == 6 and len(named) == 2 and "_other" not in named
        assert sorted(sample.value for sample in samples) == sorted([*range(pods, pods + 3)] * 2)
        for sample in samples:
            key = f"{sample.labels['namespace']}/{sample.labels['revision']}"
            assert sample.labels["pod"] == f"unix:/{key}\n{int(sample.value)}"
    _, writer = next(one for one in exposition._texts if one[0].name == "activator_pod_responses")
    for number in range(3 * LABELS_KEPT_MAX):
        writer.write([], "", [((str(number),), 1.0)])
        assert len(writer._family_labels) <= LABELS_KEPT_MAX


class Dropping:
    """Revisions that come, carry requests, are dropped and end later, as a data plane has them."""

    def __init__(self, named_max: int) -> None:
        self.shown: dict[str, RevisionThrottler] = {}
        self.dropped: list[RevisionThrottler] = []
        self.counted = 0
        self.exposition = Exposition(self._revisions, lambda: program(World()), named_max=named_max)

    def _revisions(self) -> Iterator[RevisionStatistics]:
        for throttler in [*self.shown.values(), *self.dropped]:
            yield statistics.revision(throttler)

    def step(self, rng: random.Random) -> None:
        key = f"ns/r{rng.randrange(12)}"
        chance = rng.random()
        if key not in self.shown:
            self.shown[key] = a_throttler(key)
        elif chance < 0.3:
            self.shown[key].queue.removed = True
            self.dropped.append(self.shown.pop(key))
        if self.dropped and rng.random() < 0.3:
            ended = self.dropped.pop(rng.randrange(len(self.dropped)))
            self.exposition.ended(statistics.revision(ended))
        for throttler in [*self.shown.values(), *self.dropped]:
            more = rng.randrange(3)
            throttler.counters.requests_total += more
            self.counted += more

    def others(self, text: str) -> float:
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "activator_requests_total" and sample.labels["revision"] == "_other"
        ]
        return found[0] if found else 0.0


@pytest.mark.parametrize("seed", storms(range(5)))
def test_what_is_counted_together_never_falls(seed: int) -> None:
    """Revisions come, go and come again while two read at once: a later reading never shows less in `_other`."""
    rng = random.Random(seed)
    world = Dropping(3)
    readings: list[tuple[Iterator[bytes], list[bytes], float]] = []
    least = 0.0  # what the last complete reading showed
    for _ in range(600 if DEEP else 150):
        world.step(rng)
        if len(readings) < 2:
            readings.append((world.exposition.render()[0], [], least))
        place = rng.randrange(len(readings))
        slices, read, shown_before = readings[place]
        for _ in range(rng.choice((1, 5, 1000))):
            one = next(slices, None)
            if one is not None:
                read.append(one)
                continue
            del readings[place]
            others = world.others(b"".join(read).decode())
            assert shown_before <= others <= world.counted
            least = max(least, others)
            break
    assert least > 0.0


def test_all_that_was_counted_together_is_shown() -> None:
    """With nobody by name, `_other` has every request that there was, also of those that are gone or leave."""
    rng = random.Random(3)
    world = Dropping(0)
    leaving = 0
    for _ in range(300 if DEEP else 80):
        world.step(rng)
        assert world.others(text_of(world.exposition)) == world.counted
        leaving += len(world.dropped)
    assert leaving > 0


def test_one_that_leaves_gives_its_name_away_when_it_has_ended() -> None:
    world = Dropping(1)
    first, second = throttlers(2, requests=2).values()
    world.shown = {first.key: first}
    names = {"revision": "r0"}
    assert value(list(text_string_to_metric_families(text_of(world.exposition))), "activator_requests_total", **names)
    first.queue.removed = True
    world.shown, world.dropped = {second.key: second}, [first]
    assert world.others(text_of(world.exposition)) == 2.0, "its place is taken until it has ended"
    world.exposition.ended(statistics.revision(first))
    third = a_throttler("ns/r2", 5)
    world.shown[third.key], world.dropped = third, []
    text = text_of(world.exposition)
    names = {"revision": "r2"}
    assert value(list(text_string_to_metric_families(text)), "activator_requests_total", **names) == 5.0
    assert world.others(text) == 2.0
