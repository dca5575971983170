"""The text of /metrics: read back by the library's own parsers, bounded, and documented."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from activator.config import RevisionSpec
from activator.errors import Reason
from activator.listen.connection import Listening
from activator.state.worker import StateWorker
from activator.telemetry.catalogue import markdown
from activator.telemetry.families import Family
from activator.telemetry.log_switch import AccessLogSwitch
from activator.telemetry.metrics import SAMPLES_PER_SLICE, Exposition
from activator.telemetry.named import Roster
from activator.telemetry.program_families import PROGRAM_FAMILIES, Program
from activator.telemetry.revision_families import REVISION_FAMILIES
from activator.throttle.budget import HeldBudget
from activator.throttle.revision import RevisionThrottler
from lb.registry import create
from lb.rng import Rng
from lb.table import TrackerTable
from tests.manual_clock import ManualClock
from tests.proxy.proxy_fakes import World, request_head
from tests.sources import ROOT
from tests.throttle.throttle_fakes import Heard

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def program(world: World) -> Program:
    listening = SimpleNamespace(connections={}, accepted_total=3, shed_total=0, proxy=world.proxy)
    worker = StateWorker(world.clock.now, lambda _: None, lambda _: None, lambda _: None)
    access_log = AccessLogSwitch(world.proxy, world.clock.now, world.clock.call_later, world.errors.append)
    return Program(cast("Listening", listening), world.held, worker, access_log, lambda: 0, world.clock.now)


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


def throttlers(count: int, requests: int = 0) -> dict[str, RevisionThrottler]:
    clock = ManualClock()
    made = {}
    for number in range(count):
        spec = RevisionSpec(key=f"ns/r{number}")
        table = TrackerTable(create("round-robin", Rng(1)), 8, 0.5)
        throttler = RevisionThrottler(spec, table, clock.now, clock.defer, Heard(), 256, HeldBudget())
        throttler.requests_total = requests
        for _ in range(requests):
            throttler.traffic.duration.observe(0.002)
        made[spec.key] = throttler
    return made


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_was_done_is_what_is_read(accept: str) -> None:
    world = World()
    world.pod()
    exposition = Exposition({world.throttler.key: world.throttler}, program(world))
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


def test_every_family_is_described_once_and_documented() -> None:
    exposition = Exposition(throttlers(40), program(World()))
    text = text_of(exposition)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    page = markdown()
    for family in text_string_to_metric_families(text):
        assert family.documentation
        if family.name.startswith("activator_"):
            shown = f"{family.name}_total" if family.type == "counter" else family.name
            assert f"`{shown}`" in page
        else:
            assert family.name.startswith("process_")


def test_the_page_is_the_code() -> None:
    assert (ROOT / "docs/metrics.md").read_text("utf-8") == markdown(), "python -m activator.telemetry.catalogue"


def test_names_follow_the_conventions() -> None:
    families: tuple[Family[Any], ...] = (*REVISION_FAMILIES, *PROGRAM_FAMILIES)
    for family in families:
        assert family.name.startswith("activator_") and family.name == family.name.lower()
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_ms", "_milliseconds"))
        assert family.text.endswith(".")
        assert bool(family.bounds) == (family.kind.value == "histogram")
        if family.bounds:
            assert family.name.endswith("_seconds")
            assert list(family.bounds) == sorted(set(family.bounds))


def test_control_plane_labels_name_nobody() -> None:
    for family in PROGRAM_FAMILIES:
        assert set(family.labels) <= {"reason", "version", "compiled", "from", "event", "to", "kind", "outcome"}


def test_slices_are_bounded() -> None:
    exposition = Exposition(throttlers(300), program(World()))
    slices, _ = exposition.render()
    most = max(sum(not line.startswith(b"#") for line in one.splitlines()) for one in slices)
    assert most <= SAMPLES_PER_SLICE + 100  # one revision's rows of one family come on top at most


def test_requests_of_every_kind_make_no_series() -> None:
    world = World()
    for number in range(1, 4):
        world.pod(f"p{number}")
    exposition = Exposition({world.throttler.key: world.throttler}, program(world))
    rng = random.Random(5)

    def some_requests(count: int) -> None:
        for _ in range(count):
            host = rng.choice(["app.test", f"{rng.random()}.test"])
            head = request_head(rng.choice(["GET", "PUT", "DELETE", "OPTIONS"]), host)
            head.headers.append(f"X-{rng.randrange(1 << 30)}".encode(), b"1")
            head.target = f"/{rng.random()}".encode()
            exchange, client = world.begin(head)
            world.clock.pass_time(rng.random() * 0.01)
            if rng.random() < 0.1:
                exchange.client_gone()
            elif host == "app.test":
                world.answer(exchange, rng.choice([200, 204, 301, 404, 500, 599]))
            else:
                assert client.reason == Reason.NO_ROUTE.value

    some_requests(300)
    before = series(text_of(exposition))
    some_requests(3000)
    assert series(text_of(exposition)) == before


def test_beyond_the_cap_revisions_are_one() -> None:
    shown = throttlers(10, requests=2)
    exposition = Exposition(shown, program(World()), named_max=3)
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


def test_what_is_counted_together_never_falls() -> None:
    """Revisions come, go and come again: no counter of `_other` may fall, nor one of a name that stays."""
    rng = random.Random(3)
    every = throttlers(12)
    shown: dict[str, RevisionThrottler] = {}
    roster = Roster(REVISION_FAMILIES, 3)
    exposition = Exposition(shown, program(World()), named_max=3)
    total = before = 0.0
    for _ in range(200):
        key = rng.choice(list(every))
        if key in shown and rng.random() < 0.5:
            del shown[key]
            every[key] = throttlers(12)[key]  # it will come back as another
        else:
            shown[key] = every[key]
        for throttler in shown.values():
            throttler.requests_total += rng.randrange(3)
        roster.update(shown)
        assert len(roster.named) <= 3
        assert len(roster.named) + len(roster.others) == len(shown)
        families: list[Any] = list(text_string_to_metric_families(text_of(exposition)))
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "activator_requests_total" and sample.labels["revision"] == "_other"
        ]
        total = found[0] if found else 0.0
        assert total >= before
        before = total
    assert total > 0.0
