"""The metrics of the whole process: clients, held requests and bodies, and the control plane, without names of pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import activator
from activator.codec.http2.frames import CODE_NAMES
from activator.control_plane.probes.probe import ProbeOutcome
from activator.control_plane.probes.prober import Prober
from activator.control_plane.sources.push.intake import PushIntake, ReportOutcome
from activator.control_plane.state.lifecycle import EVENTS
from activator.control_plane.state.repair import MISMATCHES
from activator.control_plane.state.worker import TURN_BOUNDS_S, StateWorker
from activator.messages import ANSWER_OUTCOMES, OVERLOAD_STEPS, DataPlaneStatistics
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.telemetry.metrics.cluster_families import ClusterView, DeclarationsView, KnativeView
from activator.telemetry.metrics.families import Family, Kind, Row, counter, gauge
from activator.telemetry.metrics.group_families import GroupFigures
from activator.telemetry.metrics.member_families import MemberFigures
from activator.telemetry.metrics.memory_families import MemoryFigures
from activator.telemetry.metrics.revision_families import REASONS, USER_TOKEN_KINDS
from activator.telemetry.metrics.scaling_families import ScalingFigures
from activator.telemetry.metrics.worker_families import WorkerFigures
from activator.telemetry.tracing.switch import SPAN_OUTCOMES
from lb.tracker import EMPTY, STATE_NAMES

USED_LIMITS = ("requests", "tokens")
USER_LIMITS = ("concurrency", "requests", "tokens", "unknown")


class Program(NamedTuple):
    """The figures of the program at one time."""

    data: DataPlaneStatistics
    worker: StateWorker
    prober: Prober
    lost_log_lines: int
    now: Now
    controllers: Controllers
    spans: dict[str, int]  # by outcome
    intake: PushIntake | None = None  # None: pods cannot report themselves
    cluster: ClusterView | None = None  # None: no revisions come from a cluster
    knative: KnativeView | None = None  # None: the cluster is used without Knative
    declarations: DeclarationsView | None = None  # None: the cluster is used with Knative
    workers: WorkerFigures | None = None  # None: there is one process
    members: MemberFigures | None = None  # None: the replica is in no group
    scaling: ScalingFigures | None = None  # None: no revisions are scaled here
    groups: GroupFigures | None = None  # None: there are no groups of revisions
    memory: MemoryFigures | None = None  # None: no programs run here


def _user_tokens(program: Program) -> list[Row]:
    return [
        ((name, kind), float(count))
        for name, totals in sorted(program.data.users.items())
        for kind, count in zip(USER_TOKEN_KINDS, totals[1:], strict=True)
    ]


def _user_use(program: Program) -> list[Row]:
    return [
        ((name, limit), float(used))
        for name, amounts in sorted(program.data.user_use.items())
        for limit, used in zip(USED_LIMITS, amounts, strict=True)
    ]


def _user_rejections(program: Program) -> list[Row]:
    return [
        ((name, limit), float(count))
        for name, counts in sorted(program.data.user_rejections.items())
        for limit, count in zip(USER_LIMITS, counts, strict=True)
    ]


def _of_turns(name: str, text: str, read: Callable[[Program], Histogram], why: str) -> Family[Program]:
    """Return a histogram of the state worker's turns."""
    return Family(
        name,
        Kind.HISTOGRAM,
        text,
        lambda program: [((), Distribution.of(read(program)))],
        bounds=TURN_BOUNDS_S,
        why=why,
    )


_STATES = ("unknown", *STATE_NAMES[EMPTY + 1 :])


def _since_last_panic(program: Program) -> list[Row]:
    since_s = program.worker.supervision.since_last_s(program.now())
    return [] if since_s is None else [((), since_s)]


def _illegal_transitions(program: Program) -> list[Row]:
    counts = sorted(program.worker.illegal_totals.items())
    return [((_STATES[before], event, _STATES[after]), float(count)) for (before, event, after), count in counts]


def _reports(program: Program) -> list[Row]:
    counts = {} if program.intake is None else program.intake.verdict_totals
    return [((verdict.value,), float(count)) for verdict, count in counts.items()]


def _report_validations(program: Program) -> list[Row]:
    counts = {} if program.intake is None else program.intake.validation_totals
    return [((outcome.value,), float(count)) for outcome, count in counts.items()]


CLIENTS: tuple[Family[Program], ...] = (
    gauge("activator_client_connections", "Open client connections.", lambda program: program.data.client_connections),
    gauge(
        "activator_client_handshakes",
        "Client connections whose TLS handshake or PROXY header is not complete.",
        lambda program: program.data.handshakes,
    ),
    counter(
        "activator_client_handshakes_closed",
        "Client connections closed during the handshake because too many were in that state.",
        lambda program: program.data.handshakes_closed_total,
    ),
    counter(
        "activator_client_connections_accepted", "Client connections.", lambda program: program.data.accepted_total
    ),
    counter(
        "activator_client_connections_shed",
        "Client connections refused because of the connection limit.",
        lambda program: program.data.shed_total,
    ),
    Family(
        "activator_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "When the first certificate of a listener expires, in Unix seconds.",
        lambda program: [((address,), at_s) for address, at_s in sorted(program.data.certificate_expiries.items())],
        ("listener",),
    ),
    Family(
        "activator_user_requests",
        Kind.COUNTER,
        "Admitted requests, by the name of the user.",
        lambda program: [((name,), float(totals[0])) for name, totals in sorted(program.data.users.items())],
        ("user",),
    ),
    Family(
        "activator_user_tokens",
        Kind.COUNTER,
        "Tokens that pods have reported for the requests of a user, by the user's name and by kind.",
        _user_tokens,
        ("user", "kind"),
        ((), USER_TOKEN_KINDS),
    ),
    Family(
        "activator_user_used",
        Kind.GAUGE,
        "The used part of the limits of a user, at the process that counts it.",
        _user_use,
        ("user", "limit"),
        ((), USED_LIMITS),
    ),
    Family(
        "activator_user_rejections",
        Kind.COUNTER,
        "Requests rejected because of a limit of the user, or because its owner could not be asked (unknown).",
        _user_rejections,
        ("user", "limit"),
        ((), USER_LIMITS),
    ),
    Family(
        "activator_overloaded_workers",
        Kind.GAUGE,
        "Workers that have taken this step against their own overload.",
        lambda program: [
            ((step,), float(count)) for step, count in zip(OVERLOAD_STEPS, program.data.overload, strict=True)
        ],
        ("step",),
        (OVERLOAD_STEPS,),
    ),
    gauge(
        "activator_http2_connections",
        "Open client connections that use HTTP/2.",
        lambda program: program.data.http2.connections,
    ),
    gauge(
        "activator_http2_streams",
        "Open streams of clients' HTTP/2 connections.",
        lambda program: program.data.http2.streams,
    ),
    counter(
        "activator_http2_connections_accepted",
        "Client connections that have used HTTP/2.",
        lambda program: program.data.http2.connections_total,
    ),
    counter(
        "activator_http2_requests", "Requests received over HTTP/2.", lambda program: program.data.http2.requests_total
    ),
    Family(
        "activator_http2_streams_reset",
        Kind.COUNTER,
        "Streams that were reset: by the client, because of malformed frames, or because too many were open.",
        lambda program: [
            (("client",), float(program.data.http2.reset_total)),
            (("malformed",), float(program.data.http2.failed_total)),
            (("too_many",), float(program.data.http2.refused_total)),
        ],
        ("reason",),
        (("client", "malformed", "too_many"),),
    ),
    Family(
        "activator_http2_connection_errors",
        Kind.COUNTER,
        "HTTP/2 connections closed because of a client's error, by the error code of RFC 9113.",
        lambda program: [((code,), float(count)) for code, count in program.data.http2.errors.items()],
        ("reason",),
        (CODE_NAMES,),
    ),
    gauge("activator_exchanges", "Requests that have begun and not ended.", lambda program: program.data.exchanges),
    gauge(
        "activator_held_bytes",
        "Bytes of bodies in memory, of all revisions: for queued requests, for retries, and for slow clients.",
        lambda program: program.data.held_bytes,
    ),
    gauge(
        "activator_file_bytes",
        "Bytes of bodies in temporary files, for slow clients.",
        lambda program: program.data.file_bytes,
    ),
    gauge("activator_held_requests", "Requests that wait for a slot.", lambda program: program.data.held_requests),
    gauge(
        "activator_answers",
        "Asynchronous requests in progress, and stored responses.",
        lambda program: program.data.answers,
    ),
    gauge("activator_answer_bytes", "Bytes of stored responses, in memory.", lambda program: program.data.answer_bytes),
    Family(
        "activator_answers_later",
        Kind.COUNTER,
        "Asynchronous requests (Prefer: respond-async) by outcome: accepted; synchronous: answered at once because "
        "there was no room; done; too_large, which is included in done; collected: read at least once; expired: never "
        "read; deleted; lost at shutdown.",
        lambda program: [((outcome,), float(count)) for outcome, count in program.data.answer_totals.items()],
        ("outcome",),
        (ANSWER_OUTCOMES,),
    ),
    Family(
        "activator_refused_requests",
        Kind.COUNTER,
        "Requests refused before they were routed to a revision.",
        lambda program: [((reason,), float(count)) for reason, count in program.data.refused_requests.items()],
        ("reason",),
        (REASONS,),
    ),
    counter(
        "activator_https_redirects",
        "Requests redirected to https.",
        lambda program: program.data.https_redirects_total,
    ),
)

CONTROL: tuple[Family[Program], ...] = (
    gauge(
        "activator_state_queue_length",
        "Changes that wait for the state worker.",
        lambda program: len(program.worker.queue),
        why="`workqueue_depth` covers only the sources' queues of objects.",
    ),
    counter(
        "activator_state_changes",
        "Changes that the state worker has processed.",
        lambda program: program.worker.changes_total,
        why="`workqueue_adds_total` counts objects, not their changes.",
    ),
    counter(
        "activator_state_changes_folded",
        "Changes replaced by later ones of the same pod before they were processed.",
        lambda program: program.worker.queue.folded_total,
        why="`workqueue_adds_total` does not count folded changes.",
    ),
    counter(
        "activator_state_changes_dropped",
        "Changes dropped because the queue was full; their source lists its objects again.",
        lambda program: program.worker.dropped_total,
        why="`workqueue_…` queues never refuse anything.",
    ),
    counter(
        "activator_state_changes_refused",
        "Changes rejected because they did not fit the current state.",
        lambda program: program.worker.refused_total,
        why='`controller_runtime_reconcile_total{result="error"}` counts failed passes; these are no errors.',
    ),
    counter(
        "activator_state_changes_stale",
        "Reports about pods that arrived late: the pod was removed, or had another slot or state.",
        lambda program: program.worker.stale_total,
        why="A controller runtime has no reports of requests and probes.",
    ),
    counter(
        "activator_state_batches",
        "Batches that the state worker has processed.",
        lambda program: program.worker.batches_total,
        why="With `activator_state_changes_total` it gives the size of batches.",
    ),
    _of_turns(
        "activator_state_update_queue_seconds",
        "How long the oldest change of each batch had waited.",
        lambda program: program.worker.queue_wait,
        why="`workqueue_queue_duration_seconds` ends before this wait begins.",
    ),
    _of_turns(
        "activator_state_update_processing_seconds",
        "Time that each batch blocked the loop: reducing, applying, granting slots.",
        lambda program: program.worker.processing,
        why="`workqueue_work_duration_seconds` includes waits for the API.",
    ),
    counter(
        "activator_state_worker_panics",
        "Changes that raised an exception (a defect) and were set aside; only their revisions are parked.",
        lambda program: program.worker.supervision.panics_total,
        why="`controller_runtime_reconcile_panics_total` counts passes, not changes.",
    ),
    Family(
        "activator_state_worker_last_panic_seconds",
        Kind.GAUGE,
        "Time since the last panic; absent before the first one.",
        _since_last_panic,
        why="`activator_state_worker_panics_total` shows the time only within the range of a query.",
    ),
    gauge(
        "activator_state_worker_panics_in_a_row",
        "Consecutive panics of the revision with the most.",
        lambda program: program.worker.supervision.worst_in_a_row(program.now()),
        why="The total does not show whether one revision always fails.",
    ),
    gauge(
        "activator_state_worker_next_backoff_seconds",
        "The longest backoff that a revision would get if it panicked now.",
        lambda program: program.worker.supervision.next_backoff_s(program.now()),
        why="`workqueue_…` does not show its rate limiter.",
    ),
    counter(
        "activator_state_rebuilds",
        "Tables rebuilt from the model because an invariant was violated.",
        lambda program: program.worker.rebuilds_total,
        why="A controller runtime has no tables.",
    ),
    Family(
        "activator_state_mismatches",
        Kind.COUNTER,
        "Differences between the tables and the model that the audit found and repaired, by kind.",
        lambda program: [((kind,), float(count)) for kind, count in sorted(program.worker.mismatch_totals.items())],
        ("kind",),
        (MISMATCHES,),
        why="A controller runtime has no such audit.",
    ),
    Family(
        "activator_push_reports",
        Kind.COUNTER,
        "Reports of pods about themselves, by outcome.",
        _reports,
        ("outcome",),
        (tuple(verdict.value for verdict in ReportOutcome),),
        why="`workqueue_adds_total` counts only listed objects.",
    ),
    Family(
        "activator_push_validations",
        Kind.COUNTER,
        "Pods that were probed after they had reported ready, by outcome.",
        _report_validations,
        ("outcome",),
        (tuple(outcome.value for outcome in ProbeOutcome),),
        why="`activator_pod_ready_validations_total` covers only pods with a slot.",
    ),
    Family(
        "activator_state_illegal_transitions",
        Kind.COUNTER,
        "Invalid transitions of pods, which were rejected (a defect).",
        _illegal_transitions,
        ("from", "event", "to"),
        (_STATES, EVENTS, _STATES),
        why="`activator_state_changes_stale_total` counts late changes.",
    ),
    Family(
        "activator_pod_ready_validations",
        Kind.COUNTER,
        "Probes of pods before their first request or after they were taken out of service, by outcome.",
        lambda program: [((outcome.value,), float(count)) for outcome, count in program.prober.outcome_totals.items()],
        ("outcome",),
        (tuple(outcome.value for outcome in ProbeOutcome),),
        why="`rest_client_requests_total` counts only calls of the API.",
    ),
    Family(
        "activator_pod_state_transitions",
        Kind.COUNTER,
        "State changes of pods; from `empty`: the pod got a slot, to `empty`: its slot was freed.",
        lambda program: [
            ((STATE_NAMES[before], STATE_NAMES[after]), float(count))
            for (before, after), count in program.data.transitions.items()
        ],
        ("from", "to"),
        (STATE_NAMES, STATE_NAMES),
        why="`activator_pods` does not show pods that flap between two scrapes.",
    ),
    gauge(
        "activator_state_parked_revisions",
        "Revisions whose changes wait, after one raised an exception, or until a large table has been rebuilt.",
        lambda program: len(program.worker.parked),
        why="`workqueue_retries_total` counts retries, not waiting revisions.",
    ),
)

OWN: tuple[Family[Program], ...] = (
    Family(
        "activator_build_info",
        Kind.GAUGE,
        "Always 1; the labels are the version, and whether the hot path is compiled.",
        lambda _: [((activator.__version__, "yes" if activator.COMPILED else "no"), 1.0)],
        ("version", "compiled"),
        ((), ("yes", "no")),
    ),
    counter(
        "activator_access_log_lost_lines",
        "Lines missing in the access log because its reader was too slow or a write failed.",
        lambda program: program.lost_log_lines,
    ),
    Family(
        "activator_trace_spans",
        Kind.COUNTER,
        "Spans by outcome: sent, failed (the collector did not accept them), dropped (the queue was full).",
        lambda program: [((outcome,), float(count)) for outcome, count in program.spans.items()],
        ("outcome",),
        (SPAN_OUTCOMES,),
    ),
    counter(
        "activator_errors",
        "Unexpected exceptions in the data plane (a defect).",
        lambda program: program.data.errors_total,
    ),
)

PROGRAM_FAMILIES: tuple[Family[Program], ...] = (*CLIENTS, *CONTROL, *OWN)
