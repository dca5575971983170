"""The metrics of the whole process: clients, what is held, and the control plane, which knows no names of pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import activator
from activator.codec.http2.frames import CODE_NAMES
from activator.control_plane.probes.probe import Ask
from activator.control_plane.probes.prober import Prober
from activator.control_plane.sources.push.intake import PushIntake, Verdict
from activator.control_plane.state.lifecycle import EVENTS
from activator.control_plane.state.repair import MISMATCHES
from activator.control_plane.state.worker import TURN_BOUNDS_S, StateWorker
from activator.messages import ANSWER_OUTCOMES, DataPlaneStatistics
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.telemetry.metrics.cluster_families import ClusterView, DeclarationsView, KnativeView
from activator.telemetry.metrics.families import Family, Kind, Row, counter, gauge
from activator.telemetry.metrics.group_families import GroupFigures
from activator.telemetry.metrics.member_families import MemberFigures
from activator.telemetry.metrics.revision_families import REASONS
from activator.telemetry.metrics.scaling_families import ScalingFigures
from activator.telemetry.metrics.worker_families import WorkerFigures
from activator.telemetry.tracing.switch import SPAN_OUTCOMES
from lb.tracker import EMPTY, STATE_NAMES


class Program(NamedTuple):
    """What is read here, of one moment."""

    data: DataPlaneStatistics
    worker: StateWorker
    prober: Prober
    lost_log_lines: int
    now: Now
    controllers: Controllers
    spans: dict[str, int]  # by what became of them
    intake: PushIntake | None = None  # where pods may report themselves
    cluster: ClusterView | None = None  # where revisions come from a cluster …
    knative: KnativeView | None = None  # … with Knative
    declarations: DeclarationsView | None = None  # … without it
    workers: WorkerFigures | None = None  # where there are several
    members: MemberFigures | None = None  # where there is a group
    scaling: ScalingFigures | None = None  # where revisions are scaled here
    groups: GroupFigures | None = None  # of revisions, where there are any


def _of_turns(name: str, text: str, read: Callable[[Program], Histogram], adds: str) -> Family[Program]:
    """Of turns of the state worker."""
    return Family(
        name, Kind.HISTOGRAM, text, lambda it: [((), Distribution.of(read(it)))], bounds=TURN_BOUNDS_S, adds=adds
    )


_STATES = ("unknown", *STATE_NAMES[EMPTY + 1 :])


def _since_last_panic(it: Program) -> list[Row]:
    since_s = it.worker.supervision.since_last_s(it.now())
    return [] if since_s is None else [((), since_s)]


def _illegal_transitions(it: Program) -> list[Row]:
    counts = sorted(it.worker.illegal_totals.items())
    return [((_STATES[before], event, _STATES[after]), float(count)) for (before, event, after), count in counts]


def _reports(it: Program) -> list[Row]:
    counts = {} if it.intake is None else it.intake.verdict_totals
    return [((verdict.value,), float(count)) for verdict, count in counts.items()]


def _report_validations(it: Program) -> list[Row]:
    counts = {} if it.intake is None else it.intake.validation_totals
    return [((found.value,), float(count)) for found, count in counts.items()]


CLIENTS: tuple[Family[Program], ...] = (
    gauge("activator_client_connections", "Open client connections.", lambda it: it.data.client_connections),
    gauge(
        "activator_client_handshakes",
        "Client connections on which no request can come yet: their TLS handshake or PROXY header is not over.",
        lambda it: it.data.handshakes,
    ),
    counter(
        "activator_client_handshakes_closed",
        "Client connections that were closed before their first request since there were too many such ones.",
        lambda it: it.data.handshakes_closed_total,
    ),
    counter("activator_client_connections_accepted", "Client connections.", lambda it: it.data.accepted_total),
    counter("activator_client_connections_shed", "Client connections over the limit.", lambda it: it.data.shed_total),
    gauge(
        "activator_http2_connections",
        "Open client connections that speak HTTP/2.",
        lambda it: it.data.http2.connections,
    ),
    gauge("activator_http2_streams", "Open streams of clients' HTTP/2 connections.", lambda it: it.data.http2.streams),
    counter(
        "activator_http2_connections_accepted",
        "Client connections that began to speak HTTP/2.",
        lambda it: it.data.http2.connections_total,
    ),
    counter("activator_http2_requests", "Requests that came over HTTP/2.", lambda it: it.data.http2.requests_total),
    Family(
        "activator_http2_streams_reset",
        Kind.COUNTER,
        "Streams that were reset: by the client, since what came on them was malformed, or since there were too many.",
        lambda it: [
            (("client",), float(it.data.http2.reset_total)),
            (("malformed",), float(it.data.http2.failed_total)),
            (("too_many",), float(it.data.http2.refused_total)),
        ],
        ("reason",),
        (("client", "malformed", "too_many"),),
    ),
    Family(
        "activator_http2_connection_errors",
        Kind.COUNTER,
        "HTTP/2 connections that ended for an error of the client's, by the code of RFC 9113.",
        lambda it: [((code,), float(count)) for code, count in it.data.http2.errors.items()],
        ("reason",),
        (CODE_NAMES,),
    ),
    gauge("activator_exchanges", "Requests begun and not ended.", lambda it: it.data.exchanges),
    gauge(
        "activator_held_bytes",
        "Bodies held in memory, of all revisions: for waiting requests, to be sent again, and for slow clients.",
        lambda it: it.data.held_bytes,
    ),
    gauge("activator_file_bytes", "Bodies in temporary files, for slow clients.", lambda it: it.data.file_bytes),
    gauge("activator_held_requests", "Requests that wait for a slot.", lambda it: it.data.held_requests),
    gauge(
        "activator_answers", "Requests that are answered later, and answers that are kept.", lambda it: it.data.answers
    ),
    gauge("activator_answer_bytes", "Answers that are kept, in memory.", lambda it: it.data.answer_bytes),
    Family(
        "activator_answers_later",
        Kind.COUNTER,
        "Requests that prefer to be answered later: accepted, or answered at once for want of room (synchronous); "
        "done, among them too_large; collected: read at least once; expired without that, deleted, lost at the end.",
        lambda it: [((outcome,), float(count)) for outcome, count in it.data.answer_totals.items()],
        ("outcome",),
        (ANSWER_OUTCOMES,),
    ),
    Family(
        "activator_refused_requests",
        Kind.COUNTER,
        "Requests refused before they had a revision.",
        lambda it: [((reason,), float(count)) for reason, count in it.data.refused_requests.items()],
        ("reason",),
        (REASONS,),
    ),
)

CONTROL: tuple[Family[Program], ...] = (
    gauge(
        "activator_state_queue_length",
        "Changes that wait for the state worker.",
        lambda it: len(it.worker.queue),
        adds="`workqueue_depth` is that of the sources' queues of objects; this is behind all of them.",
    ),
    counter(
        "activator_state_changes",
        "Changes the state worker has taken.",
        lambda it: it.worker.changes_total,
        adds="`workqueue_adds_total` counts objects; one object is many changes, or none.",
    ),
    counter(
        "activator_state_changes_folded",
        "Changes folded into later ones of the same pod before they were taken.",
        lambda it: it.worker.queue.folded_total,
        adds="`workqueue_adds_total` leaves out what was folded: only this tells a flood from calm.",
    ),
    counter(
        "activator_state_changes_dropped",
        "Changes that were dropped since the queue was full; their source lists again.",
        lambda it: it.worker.dropped_total,
        adds="`workqueue_…` queues never refuse anything.",
    ),
    counter(
        "activator_state_changes_refused",
        "Changes that did not fit the current state, and were not applied.",
        lambda it: it.worker.refused_total,
        adds='`controller_runtime_reconcile_total{result="error"}` counts passes; these made no error, only no sense.',
    ),
    counter(
        "activator_state_changes_stale",
        "Reports of pods that came late: of a pod that was gone, or had another slot or another state by then.",
        lambda it: it.worker.stale_total,
        adds="Reports of requests that failed and of probes; a controller has none that could be late.",
    ),
    counter(
        "activator_state_batches",
        "Batches the state worker has taken.",
        lambda it: it.worker.batches_total,
        adds="With `activator_state_changes_total` the size of a batch, which no `workqueue_…` has.",
    ),
    _of_turns(
        "activator_state_update_queue_seconds",
        "How long the oldest change of each batch had waited.",
        lambda it: it.worker.queue_wait,
        adds="`workqueue_queue_duration_seconds` ends where a source takes the object; this is the rest of the way.",
    ),
    _of_turns(
        "activator_state_update_processing_seconds",
        "Time that each batch blocked the loop: reducing, applying, handing slots over.",
        lambda it: it.worker.processing,
        adds="`workqueue_work_duration_seconds` may wait for the API; this is time in which no request is served.",
    ),
    counter(
        "activator_state_worker_panics",
        "Changes that raised and were set aside: defects; their revisions wait, all others go on.",
        lambda it: it.worker.supervision.panics_total,
        adds="`controller_runtime_reconcile_panics_total` would be a controller's; here one change is set aside.",
    ),
    Family(
        "activator_state_worker_last_panic_seconds",
        Kind.GAUGE,
        "Time since the last panic; absent before the first one.",
        _since_last_panic,
        adds="`activator_state_worker_panics_total` forgets with the series' range; this does not.",
    ),
    gauge(
        "activator_state_worker_panics_in_a_row",
        "Panics in a row, of the revision that has most.",
        lambda it: it.worker.supervision.worst_in_a_row(it.now()),
        adds="The total cannot tell one revision that always fails from many that failed once.",
    ),
    gauge(
        "activator_state_worker_next_backoff_seconds",
        "The longest backoff, if its owner panicked now.",
        lambda it: it.worker.supervision.next_backoff_s(it.now()),
        adds="`workqueue_…` does not show its rate limiter.",
    ),
    counter(
        "activator_state_rebuilds",
        "Tables made anew from the model, since an invariant was broken.",
        lambda it: it.worker.rebuilds_total,
        adds="Nothing of a controller runtime has tables.",
    ),
    Family(
        "activator_state_mismatches",
        Kind.COUNTER,
        "Differences between ledgers that the auditor found and had repaired.",
        lambda it: [((kind,), float(count)) for kind, count in sorted(it.worker.mismatch_totals.items())],
        ("kind",),
        (MISMATCHES,),
        adds="Nothing of a controller runtime audits itself.",
    ),
    Family(
        "activator_push_reports",
        Kind.COUNTER,
        "Reports of pods about themselves, by outcome.",
        _reports,
        ("outcome",),
        (tuple(verdict.value for verdict in Verdict),),
        adds="`workqueue_adds_total` knows of what was listed; pods that report themselves are no objects.",
    ),
    Family(
        "activator_push_validations",
        Kind.COUNTER,
        "Pods that were probed after they had reported ready, by outcome.",
        _report_validations,
        ("outcome",),
        (tuple(found.value for found in Ask),),
        adds="`activator_pod_ready_validations_total` is of pods with a slot; these have none yet.",
    ),
    Family(
        "activator_state_illegal_transitions",
        Kind.COUNTER,
        "Transitions of pods that no table allows, and that were refused: defects.",
        _illegal_transitions,
        ("from", "event", "to"),
        (_STATES, EVENTS, _STATES),
        adds="Any value is a defect worth a report; what only comes late is `activator_state_changes_stale_total`.",
    ),
    Family(
        "activator_pod_ready_validations",
        Kind.COUNTER,
        "Times a pod was asked whether it answers, before its first request or after it was put out, by outcome.",
        lambda it: [((outcome.value,), float(count)) for outcome, count in it.prober.asked_totals.items()],
        ("outcome",),
        (tuple(outcome.value for outcome in Ask),),
        adds="`rest_client_requests_total` counts calls of the API; these go to pods.",
    ),
    Family(
        "activator_pod_state_transitions",
        Kind.COUNTER,
        "Pods that went from one state to another; from empty: they came, to empty: their slot is free again.",
        lambda it: [
            ((STATE_NAMES[before], STATE_NAMES[after]), float(count))
            for (before, after), count in it.data.transitions.items()
        ],
        ("from", "to"),
        (STATE_NAMES, STATE_NAMES),
        adds="`activator_pods` is a moment; pods that flap between two readings show only here.",
    ),
    gauge(
        "activator_state_parked_revisions",
        "Revisions whose changes wait: after one that raised, or until a large table is made anew.",
        lambda it: len(it.worker.parked),
        adds="`workqueue_retries_total` says how often, this how many wait now.",
    ),
)

OWN: tuple[Family[Program], ...] = (
    Family(
        "activator_build_info",
        Kind.GAUGE,
        "1; the version, and whether the hot path is compiled.",
        lambda _: [((activator.__version__, "yes" if activator.COMPILED else "no"), 1.0)],
        ("version", "compiled"),
        ((), ("yes", "no")),
    ),
    counter(
        "activator_access_log_lost_lines",
        "Lines missing in the access log: its reader was too slow, or a write failed.",
        lambda it: it.lost_log_lines,
    ),
    Family(
        "activator_trace_spans",
        Kind.COUNTER,
        "Spans by outcome: sent, failed (no collector took them), dropped (too many waited).",
        lambda it: [((outcome,), float(count)) for outcome, count in it.spans.items()],
        ("outcome",),
        (SPAN_OUTCOMES,),
    ),
    counter(
        "activator_errors",
        "Errors of its own that nobody could answer for: defects.",
        lambda it: it.data.errors_total,
    ),
)

PROGRAM_FAMILIES: tuple[Family[Program], ...] = (*CLIENTS, *CONTROL, *OWN)
