"""Every figure is read from where it is counted: each source holds a number of its own, and no family is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace as Of
from typing import Any

import pytest
from msgspec.structs import replace

import activator
from activator.config.specs import BalancingSpec, KnativeSpec, QueueSpec
from activator.control_plane.groups.policy import Eviction, Wait, WaitsFor
from activator.control_plane.probes.probe import ProbeOutcome
from activator.control_plane.scaling.autoscaler import LastDecision
from activator.control_plane.scaling.explanation import ScalingReason
from activator.control_plane.sources.push.intake import ReportOutcome
from activator.control_plane.state.lifecycle import SEEN
from activator.control_plane.state.worker import TURN_BOUNDS_S
from activator.data_plane import statistics
from activator.data_plane.throttle.counters import (
    COLD_BOUNDS_S,
    FIRST_TOKEN_BOUNDS_S,
    OUTPUT_TOKEN_BOUNDS_S,
    REQUEST_BOUNDS_S,
    WAIT_BOUNDS_S,
)
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.pool import PodPool
from activator.messages import DataPlaneStatistics, Http2Statistics
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.runtime.reasons import Reason
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.cluster_families import CLUSTER_FAMILIES, DECLARATION_FAMILIES, KNATIVE_FAMILIES
from activator.telemetry.metrics.families import Family, Value
from activator.telemetry.metrics.group_families import GROUP_FAMILIES, GroupFigures
from activator.telemetry.metrics.member_families import MEMBER_FAMILIES, MemberFigures
from activator.telemetry.metrics.memory_families import MEMORY_FAMILIES, MemoryFigures
from activator.telemetry.metrics.named import OTHER
from activator.telemetry.metrics.program_families import PROGRAM_FAMILIES, Program
from activator.telemetry.metrics.revision_families import REVISION_FAMILIES
from activator.telemetry.metrics.scaling_families import SCALING_FAMILIES, ScalingFigures
from activator.telemetry.metrics.worker_families import WORKER_FAMILIES, WorkerFigures
from lb.tracker import DRAINING, EMPTY, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING, UNLIMITED

NOW_S = 1_000.0
Figures = dict[tuple[str, ...], float]


def took(seconds: float, bounds: tuple[float, ...]) -> Histogram:
    """A histogram that is known by its sum."""
    histogram = Histogram(bounds)
    histogram.observe(seconds)
    return histogram


class Pool(Http1Pool):
    """With connections in each state."""

    def __init__(self, counts: list[int]) -> None:
        self._counts = counts

    def in_use(self) -> PodPool:
        return self

    def count_into(self, totals: list[int]) -> None:
        for place, count in enumerate(self._counts):
            totals[place] += count


class Queue:
    """Of changes."""

    folded_total = 9

    def __len__(self) -> int:
        return 37


def a_program() -> Program:
    parts: Any = Of(
        data=DataPlaneStatistics(
            client_connections=1,
            handshakes=51,
            handshakes_closed_total=52,
            accepted_total=2,
            shed_total=3,
            overload=(61, 62, 63),
            users={"alice": (64, 65, 66)},
            certificate_expiries={"0.0.0.0:8443": 73.0},
            user_use={"alice": (71.0, 72.0)},
            user_rejections={"alice": (67, 68, 69, 70)},
            exchanges=4,
            held_bytes=7,
            held_requests=8,
            file_bytes=53,
            answers=91,
            answer_bytes=92,
            answer_totals={"accepted": 93, "lost": 94},
            https_redirects_total=184,
            refused_requests={"no_route": 5, "bad_request": 6},
            transitions={(READY, DRAINING): 28, (DRAINING, EMPTY): 29},
            errors_total=36,
            http2=Http2Statistics(81, 82, 83, 84, 85, 86, 87, {"PROTOCOL_ERROR": 88}),
        ),
        worker=Of(
            queue=Queue(),
            changes_total=10,
            dropped_total=11,
            refused_total=12,
            stale_total=53,
            batches_total=13,
            queue_wait=took(14.0, TURN_BOUNDS_S),
            processing=took(15.0, TURN_BOUNDS_S),
            supervision=Of(
                panics_total=16,
                since_last_s=lambda now_s: now_s - 17.0,
                worst_in_a_row=lambda now_s: now_s + 18.0,
                next_backoff_s=lambda now_s: now_s + 19.0,
            ),
            rebuilds_total=20,
            mismatch_totals={"ledger": 21, "queue": 22},
            illegal_totals={(EMPTY, SEEN, READY): 23},
            parked=dict.fromkeys(range(24)),
        ),
        prober=Of(outcome_totals={ProbeOutcome.ANSWERED: 25, ProbeOutcome.REFUSED: 26, ProbeOutcome.SILENT: 27}),
        intake=Of(verdict_totals={ReportOutcome.APPLIED: 34}, validation_totals={ProbeOutcome.SILENT: 35}),
    )
    return Program(
        parts.data,
        parts.worker,
        parts.prober,
        30,
        lambda: NOW_S,
        Of(),  # type: ignore[arg-type]
        {"sent": 31, "failed": 32, "dropped": 33},
        parts.intake,
    )


PROGRAM: dict[str, float | Figures] = {
    "activator_client_connections": 1.0,
    "activator_client_handshakes": 51.0,
    "activator_client_handshakes_closed": 52.0,
    "activator_client_connections_accepted": 2.0,
    "activator_client_connections_shed": 3.0,
    "activator_user_requests": {("alice",): 64.0},
    "activator_user_tokens": {("alice", "prompt"): 65.0, ("alice", "completion"): 66.0},
    "activator_certificate_expiry_timestamp_seconds": {("0.0.0.0:8443",): 73.0},
    "activator_user_used": {("alice", "requests"): 71.0, ("alice", "tokens"): 72.0},
    "activator_user_rejections": {
        ("alice", "concurrency"): 67.0,
        ("alice", "requests"): 68.0,
        ("alice", "tokens"): 69.0,
        ("alice", "unknown"): 70.0,
    },
    "activator_overloaded_workers": {("close_kept",): 61.0, ("no_queueing",): 62.0, ("no_connections",): 63.0},
    "activator_http2_connections": 81.0,
    "activator_http2_streams": 82.0,
    "activator_http2_connections_accepted": 83.0,
    "activator_http2_requests": 84.0,
    "activator_http2_streams_reset": {("client",): 85.0, ("malformed",): 86.0, ("too_many",): 87.0},
    "activator_http2_connection_errors": {("PROTOCOL_ERROR",): 88.0},
    "activator_exchanges": 4.0,
    "activator_refused_requests": {("no_route",): 5.0, ("bad_request",): 6.0},
    "activator_https_redirects": 184.0,
    "activator_held_bytes": 7.0,
    "activator_file_bytes": 53.0,
    "activator_held_requests": 8.0,
    "activator_answers": 91.0,
    "activator_answer_bytes": 92.0,
    "activator_answers_later": {("accepted",): 93.0, ("lost",): 94.0},
    "activator_state_queue_length": 37.0,
    "activator_state_changes_folded": 9.0,
    "activator_state_changes": 10.0,
    "activator_state_changes_dropped": 11.0,
    "activator_state_changes_refused": 12.0,
    "activator_state_changes_stale": 53.0,
    "activator_state_batches": 13.0,
    "activator_state_update_queue_seconds": 14.0,
    "activator_state_update_processing_seconds": 15.0,
    "activator_state_worker_panics": 16.0,
    "activator_state_worker_last_panic_seconds": NOW_S - 17.0,
    "activator_state_worker_panics_in_a_row": NOW_S + 18.0,
    "activator_state_worker_next_backoff_seconds": NOW_S + 19.0,
    "activator_state_rebuilds": 20.0,
    "activator_state_mismatches": {("ledger",): 21.0, ("queue",): 22.0},
    "activator_state_illegal_transitions": {("unknown", "seen", "ready"): 23.0},
    "activator_state_parked_revisions": 24.0,
    "activator_pod_ready_validations": {("answered",): 25.0, ("refused",): 26.0, ("silent",): 27.0},
    "activator_pod_state_transitions": {("ready", "draining"): 28.0, ("draining", "empty"): 29.0},
    "activator_access_log_lost_lines": 30.0,
    "activator_trace_spans": {("sent",): 31.0, ("failed",): 32.0, ("dropped",): 33.0},
    "activator_push_reports": {("applied",): 34.0},
    "activator_push_validations": {("silent",): 35.0},
    "activator_errors": 36.0,
    "activator_build_info": {(activator.__version__, "yes" if activator.COMPILED else "no"): 1.0},
}


def a_cluster() -> Any:
    reflectors = [Of(errors_total=Counter({"410": 1, "cut": 2})), Of(errors_total=Counter({"403": 4}))]
    relisters = [
        Of(repairs_total=Counter(missed_add=10, missed_change=20, missed_delete=30)),
        Of(repairs_total=Counter(missed_add=1, missed_recreate=40, version_only=50)),
    ]
    return Of(
        view_age_s=lambda: 8.0,
        watches=Of(reflectors=reflectors, relisters=relisters),
        stream=Of(is_connected=True, errors_total=61, sent_total=62, dropped_total=63),
        fallback=Of(fallbacks_total=64),
        scale_fallback=Of(scaled_total=65),
        declared=lambda: {"serving": 66, "at_zero": 67, "not_ready": 68},
        contested_hosts=lambda: 69,
        owned=lambda: 72,
        diagnostics=Of(lists_total=70, errors_total=71),
    )


CLUSTER: dict[str, float | Figures] = {
    "activator_cluster_view_age_seconds": 8.0,
    "activator_cluster_watch_errors": 7.0,
    "activator_cluster_repairs": {
        ("missed_add",): 11.0,
        ("missed_change",): 20.0,
        ("missed_delete",): 30.0,
        ("missed_recreate",): 40.0,
        ("version_only",): 50.0,
    },
}
KNATIVE: dict[str, float | Figures] = {
    "activator_autoscaler_connected": 1.0,
    "activator_autoscaler_connection_errors": 61.0,
    "activator_autoscaler_batches": 62.0,
    "activator_autoscaler_batches_dropped": 63.0,
    "activator_mesh_fallbacks": 64.0,
    "activator_scale_fallbacks": 65.0,
}


DECLARATIONS: dict[str, float | Figures] = {
    "activator_declared_revisions": {("serving",): 66.0, ("at_zero",): 67.0, ("starting",): 0.0, ("not_ready",): 68.0},
    "activator_owned_revisions": 72.0,
    "activator_contested_hosts": 69.0,
    "activator_pod_looks": 70.0,
    "activator_pod_look_errors": 71.0,
}


def a_revision() -> Any:
    states = (READY, READY, READY, PENDING, PENDING, NOT_READY, RECOVERING, QUARANTINED, DRAINING, EMPTY)
    slots = [Of(state=state, attachment=None) for state in states]
    slots[0].attachment = Pool([1, 2, 3, 4])
    slots[1].attachment = Pool([10, 20, 30, 40])
    beyond = Of(state=READY, attachment=Pool([100, 100, 100, 100]))
    traffic = Of(
        duration=took(1.0, REQUEST_BOUNDS_S),
        first_byte=took(2.0, REQUEST_BOUNDS_S),
        wait=took(3.0, WAIT_BOUNDS_S),
        cold={"ready": took(4.0, COLD_BOUNDS_S), "connect": took(5.0, COLD_BOUNDS_S)},
        request_bytes=6,
        response_bytes=7,
        tunnels_total=8,
        tunnels=9,
        tokens=Of(
            prompt=101,
            completion=102,
            cached=103,
            first_token=took(104.0, FIRST_TOKEN_BOUNDS_S),
            output_token=took(0.5, OUTPUT_TOKEN_BOUNDS_S),
            by_user={"alice": (98, 99)},
        ),
    )
    counters = Of(
        requests_total=10,
        codes={101: 1, 200: 2, 204: 3, 404: 4, 503: 5, 799: 6},
        grpc_statuses={0: 71, 14: 72},
        failed_totals={Reason.QUEUE_FULL: 11},
        retries={Reason.CONNECT_FAILED: 12},
        fallbacks={"ns/other": 95},
        client_gone_total=13,
        granted_total=17,
        exempted_total=18,
        errors_total=19,
        cold_starts_total=20,
        has_traffic=lambda: True,
        traffic=traffic,
    )
    return Of(
        key="ns/app",
        incarnation=1,
        counters=counters,
        queue=Of(removed=False, failure="it cannot start", waiting=lambda: 14),
        in_flight=lambda: 21,
        spec=Of(
            queue=QueueSpec(depth=15),
            balancing=BalancingSpec(policy="ewma"),
            knative=KnativeSpec(),
        ),
        held=Of(held_bytes=16),
        gathering=61,
        delivering=62,
        table=Of(
            slots=[*slots, beyond],
            length=len(slots),
            capacity=22,
            capacity_slots=23,
            holes=24,
            trailing=25,
            fragmentation=0.26,
            trims=27,
            grown=28,
            times_full=29,
            late_releases=30,
            bad_picks=31,
        ),
    )


REVISION: dict[str, float | Figures] = {
    "activator_request_duration_seconds": 1.0,
    "activator_first_byte_seconds": 2.0,
    "activator_queue_wait_seconds": 3.0,
    "activator_cold_start_phase_seconds": {
        ("start",): 0.0,
        ("ready",): 4.0,
        ("queue",): 0.0,
        ("connect",): 5.0,
        ("first_byte",): 0.0,
    },
    "activator_request_body_bytes": 6.0,
    "activator_response_body_bytes": 7.0,
    "activator_upgrades": 8.0,
    "activator_upgrade_tunnels": 9.0,
    "activator_tokens": {("prompt",): 101.0, ("completion",): 102.0, ("cached",): 103.0},
    "activator_revision_user_tokens": {("alice", "prompt"): 98.0, ("alice", "completion"): 99.0},
    "activator_first_token_seconds": 104.0,
    "activator_output_token_seconds": 0.5,
    "activator_requests": 10.0,
    "activator_grpc_calls": {("OK",): 71.0, ("UNAVAILABLE",): 72.0},
    "activator_responses": {("1xx",): 1.0, ("2xx",): 5.0, ("4xx",): 4.0, ("5xx",): 5.0, ("other",): 6.0},
    "activator_failures": {("queue_full",): 11.0},
    "activator_retries": {("connect_failed",): 12.0},
    "activator_fallbacks": {("ns/other",): 95.0},
    "activator_client_gone": 13.0,
    "activator_queued": 14.0,
    "activator_queue_limit": 15.0,
    "activator_gathering": 61.0,
    "activator_delivering": 62.0,
    "activator_policy": {("ewma",): 1.0},
    "activator_queue_held_bytes": 16.0,
    "activator_grants": 17.0,
    "activator_exempted": 18.0,
    "activator_waiter_errors": 19.0,
    "activator_cold_starts": 20.0,
    "activator_revision_failed": 1.0,
    "activator_in_flight": 21.0,
    "activator_capacity": 22.0,
    "activator_pods": {
        ("pending",): 2.0,
        ("ready",): 3.0,
        ("not_ready",): 1.0,
        ("recovering",): 1.0,
        ("quarantined",): 1.0,
        ("draining",): 1.0,
    },
    "activator_pod_responses": {("10.0.0.1:80",): 51.0, ("10.0.0.2:80",): 54.0},
    "activator_pod_errors": {("10.0.0.1:80",): 52.0, ("10.0.0.2:80",): 55.0},
    "activator_pod_first_byte_seconds": {("10.0.0.1:80",): 53.0, ("10.0.0.2:80",): 56.0},
    "activator_pod_state_changed_timestamp_seconds": {("10.0.0.1:80", "ready"): 57.0},
    "activator_pod_connections": {("open",): 11.0, ("idle",): 22.0, ("dialling",): 33.0, ("waiting",): 44.0},
    "activator_sparse_array_length": 10.0,
    "activator_sparse_array_slots": 23.0,
    "activator_sparse_array_holes": 24.0,
    "activator_sparse_array_trailing": 25.0,
    "activator_sparse_array_fragmentation_ratio": 0.26,
    "activator_sparse_array_trims": 27.0,
    "activator_sparse_array_growths": 28.0,
    "activator_sparse_array_full": 29.0,
    "activator_late_releases": 30.0,
    "activator_policy_bad_picks": 31.0,
}


WORKERS: dict[str, float | Figures] = {
    "activator_workers": {("serving",): 2.0, ("starting",): 0.0, ("waiting",): 1.0},
    "activator_worker_restarts": 3.0,
    "activator_worker_cpu_seconds": 4.0,
    "activator_worker_resident_bytes": 5.0,
}


MEMBERS: dict[str, float | Figures] = {
    "activator_group_seats": {
        ("this one",): 1.0,
        ("reached",): 2.0,
        ("silent",): 0.0,
        ("vacant",): 3.0,
        ("released",): 0.0,
    },
    "activator_group_unproven": 4.0,
    "activator_group_epoch": 5.0,
    "activator_group_views": 6.0,
    "activator_group_grants": 1.0,
    "activator_group_loads": {("sent",): 9.0, ("received",): 10.0, ("left_out",): 0.0},
    "activator_group_connections_refused": {("refused",): 7.0, ("no handshake",): 0.0, ("too many",): 8.0},
}


def a_decision(wanted: int, panicking: bool, stable: float, panic: float, target: float) -> Any:
    return Of(wanted=wanted, panicking=panicking, seen=Of(stable=stable, panic=panic), rule=Of(effective_target=target))


def scaled(revisions: int) -> Any:
    shown = [LastDecision("ns/app", a_decision(1, True, 2.0, 3.0, 4.0), None, True)]
    shown += [LastDecision("ns/asleep", a_decision(5, True, 6.0, 7.0, 8.0), None, False)]
    shown += [
        LastDecision(f"ns/{number}", a_decision(2, True, 1.0, 1.0, number), None, True) for number in range(revisions)
    ]
    return ScalingFigures(shown, {ScalingReason.PANIC: 9, ScalingReason.GRACE: 10, ScalingReason.ASLEEP: 0})


SCALING: dict[str, float | Figures] = {
    "activator_scaling_wanted_pods": {("ns", "app"): 1.0, ("ns", "asleep"): 5.0},
    "activator_scaling_panicking": {("ns", "app"): 1.0, ("ns", "asleep"): 0.0},
    "activator_scaling_stable_average": {("ns", "app"): 2.0, ("ns", "asleep"): 0.0},
    "activator_scaling_panic_average": {("ns", "app"): 3.0, ("ns", "asleep"): 0.0},
    "activator_scaling_target": {("ns", "app"): 4.0, ("ns", "asleep"): 8.0},
    "activator_scaling_decisions": {("panic",): 9.0, ("grace",): 10.0},
}
REVISION_GROUPS: dict[str, float | Figures] = {
    "activator_revision_group_budget": {("gpu0", "gpu_memory"): 24.0},
    "activator_revision_group_used": {("gpu0", "gpu_memory"): 10.0},
    "activator_revision_group_waiting_revisions": {("gpu0",): 1.0},
    "activator_revision_group_swaps": {("gpu0",): 2.0},
    "activator_revision_group_turns": {("gpu0",): 3.0},
    "activator_revision_group_turn_wait_seconds": {("gpu0",): 4.5},
    "activator_revision_group_evictions": {("gpu0", "demand"): 5.0, ("gpu0", "overtaken"): 6.0},
}


def a_revision_group() -> Any:
    rule = Of(name="gpu0", resources=("gpu_memory",), budget=(24,))
    return Of(
        rule=rule,
        used=lambda: (10,),
        members={"a": Of(wait=None), "b": Of(wait=Wait(WaitsFor.TURN, ("a",)))},
        swaps_total=2,
        waits_total=3,
        waited_s_total=4.5,
        eviction_totals={Eviction.DEMAND: 5, Eviction.OVERTAKEN: 6},
    )


GROUP = MemberFigures(
    {"this one": 1, "reached": 2, "vacant": 3},
    4,
    5,
    6,
    True,
    {"refused": 7, "too many": 8},
    {"sent": 9, "received": 10},
)


def figure(value: Value) -> float:
    return value.total if isinstance(value, Distribution) else value


@pytest.mark.parametrize(
    ("families", "source", "expected"),
    [
        (PROGRAM_FAMILIES, a_program(), PROGRAM),
        (CLUSTER_FAMILIES, a_cluster(), CLUSTER),
        (KNATIVE_FAMILIES, a_cluster(), KNATIVE),
        (DECLARATION_FAMILIES, a_cluster(), DECLARATIONS),
        (
            REVISION_FAMILIES,
            replace(
                statistics.revision(a_revision()),
                by_pod={"10.0.0.1:80": (51, 52, 53.0), "10.0.0.2:80": (54, 55, 56.0)},
                pod_states={"10.0.0.1:80": ("ready", 57.0)},
            ),
            REVISION,
        ),
        (WORKER_FAMILIES, WorkerFigures({"serving": 2, "waiting": 1}, 3, 4.0, 5), WORKERS),
        (MEMBER_FAMILIES, GROUP, MEMBERS),
        (SCALING_FAMILIES, scaled(0), SCALING),
        (GROUP_FAMILIES, GroupFigures([a_revision_group()]), REVISION_GROUPS),
        (
            MEMORY_FAMILIES,
            MemoryFigures([("ns/app", {"memory": 5, "gpu_memory": 6})]),
            {
                "activator_program_memory_bytes": {
                    ("ns", "app", "memory"): 5.0,
                    ("ns", "app", "gpu_memory"): 6.0,
                }
            },
        ),
    ],
    ids=(
        "program",
        "cluster",
        "knative",
        "declarations",
        "revision",
        "workers",
        "members",
        "scaling",
        "groups",
        "memory",
    ),
)
def test_each_figure_is_read_from_its_place(
    families: Iterable[Family[Any]], source: Any, expected: dict[str, float | Figures]
) -> None:
    read: dict[str, float | Figures] = {}
    for family in families:
        figures = {labels: figure(value) for labels, value in family.read(source)}
        read[family.name] = figures if family.labels else figures[()]
    assert read == expected


def test_beyond_a_thousand_revisions_scaling_is_shown_as_one() -> None:
    source = scaled(1500)
    rows = {family.name: dict(family.read(source)) for family in SCALING_FAMILIES[:-1]}
    assert {len(one) for one in rows.values()} == {METRICS_REVISIONS_MAX + 1}
    others = 1500 + 2 - METRICS_REVISIONS_MAX
    assert rows["activator_scaling_wanted_pods"][OTHER] == 2.0 * others
    assert rows["activator_scaling_target"][OTHER] == 1499.0


def test_beyond_a_thousand_revisions_memory_is_shown_as_one() -> None:
    uses = [(f"ns/{number}", {"memory": 2}) for number in range(1500)]
    (family,) = MEMORY_FAMILIES
    rows = dict(family.read(MemoryFigures(uses)))
    assert len(rows) == METRICS_REVISIONS_MAX + 1
    assert rows[*OTHER, "memory"] == 2.0 * (1500 - METRICS_REVISIONS_MAX)


def test_what_is_not_there_is_not_shown() -> None:
    program = a_program()
    worker: Any = program.worker
    worker.supervision.since_last_s = lambda now_s: None
    rows = {one.name: list(one.read(program._replace(intake=None))) for one in PROGRAM_FAMILIES}
    for name in ("state_worker_last_panic_seconds", "push_reports", "push_validations"):
        assert rows[f"activator_{name}"] == []
    revision = a_revision()
    revision.table.capacity, revision.queue.failure = UNLIMITED, None
    figures = {one.name: list(one.read(statistics.revision(revision))) for one in REVISION_FAMILIES}
    assert figures["activator_capacity"] == [((), float("inf"))]
    assert figures["activator_revision_failed"] == [((), 0.0)]
