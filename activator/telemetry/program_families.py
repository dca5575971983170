"""The metrics of the whole process: clients, what is held, and the control plane, which knows no names of pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import activator
from activator.clock import Now
from activator.discovery.push import PushIntake, Verdict
from activator.listen.connection import Listening
from activator.state.lifecycle import EVENTS
from activator.state.probing import Ask
from activator.state.repair import MISMATCHES
from activator.state.worker import TURN_BOUNDS_S, StateWorker
from activator.telemetry.families import Distribution, Family, Kind, Row, one
from activator.telemetry.log_switch import AccessLogSwitch
from activator.telemetry.revision_families import REASONS
from activator.throttle.budget import HeldBudget
from lb.tracker import EMPTY, STATE_NAMES


class Program(NamedTuple):
    """What is read here."""

    listening: Listening
    held: HeldBudget
    worker: StateWorker
    access_log: AccessLogSwitch
    errors_total: Callable[[], int]
    now: Now
    intake: PushIntake | None = None  # of pods' reports, where they can report


def _counter(name: str, text: str, read: Callable[[Program], float]) -> Family[Program]:
    return Family(name, Kind.COUNTER, text, one(read))


def _gauge(name: str, text: str, read: Callable[[Program], float]) -> Family[Program]:
    return Family(name, Kind.GAUGE, text, one(read))


_STATES = ("unknown", *STATE_NAMES[EMPTY + 1 :])


def _since_last_panic(it: Program) -> list[Row]:
    since_s = it.worker.supervision.since_last_s(it.now())
    return [] if since_s is None else [((), since_s)]


def _illegal_transitions(it: Program) -> list[Row]:
    counts = sorted(it.worker.illegal_totals.items())
    return [((_STATES[before], event, _STATES[after]), float(count)) for (before, event, after), count in counts]


def _reports(it: Program) -> list[Row]:
    return [] if it.intake is None else [((one.value,), float(n)) for one, n in it.intake.verdict_totals.items()]


def _validations(it: Program) -> list[Row]:
    return [] if it.intake is None else [((one.value,), float(n)) for one, n in it.intake.validation_totals.items()]


CLIENTS: tuple[Family[Program], ...] = (
    _gauge("activator_client_connections", "Open client connections.", lambda it: len(it.listening.connections)),
    _counter("activator_client_connections_accepted", "Client connections.", lambda it: it.listening.accepted_total),
    _counter(
        "activator_client_connections_shed", "Client connections over the limit.", lambda it: it.listening.shed_total
    ),
    _gauge("activator_exchanges", "Requests begun and not ended.", lambda it: it.listening.proxy.active),
    _gauge("activator_held_bytes", "Request bodies held in memory, of all revisions.", lambda it: it.held.held_bytes),
    _gauge("activator_held_requests", "Requests that wait for a slot.", lambda it: it.held.held_requests),
    Family(
        "activator_refused_requests",
        Kind.COUNTER,
        "Requests refused before they had a revision.",
        lambda it: [((reason.value,), float(count)) for reason, count in it.listening.proxy.refused_requests.items()],
        ("reason",),
        (REASONS,),
    ),
)

CONTROL: tuple[Family[Program], ...] = (
    _gauge("activator_state_queue_length", "Changes that wait for the state worker.", lambda it: len(it.worker.queue)),
    _counter("activator_state_changes", "Changes the state worker has taken.", lambda it: it.worker.changes_total),
    _counter(
        "activator_state_changes_folded",
        "Changes folded into later ones of the same pod before they were taken.",
        lambda it: it.worker.queue.folded_total,
    ),
    _counter(
        "activator_state_changes_dropped",
        "Changes that found the queue full; their source was told to list anew.",
        lambda it: it.worker.dropped_total,
    ),
    _counter(
        "activator_state_changes_refused",
        "Changes that made no sense in the state they met, and were not acted on.",
        lambda it: it.worker.refused_total,
    ),
    _counter("activator_state_batches", "Batches the state worker has taken.", lambda it: it.worker.batches_total),
    Family(
        "activator_state_update_queue_seconds",
        Kind.HISTOGRAM,
        "How long the oldest change of each batch had waited.",
        lambda it: [((), Distribution.of(it.worker.queue_wait))],
        bounds=TURN_BOUNDS_S,
    ),
    Family(
        "activator_state_update_processing_seconds",
        Kind.HISTOGRAM,
        "How long each batch held the loop: reducing, applying, handing slots over.",
        lambda it: [((), Distribution.of(it.worker.processing))],
        bounds=TURN_BOUNDS_S,
    ),
    _counter(
        "activator_state_worker_panics",
        "Changes that raised and were set aside: defects; their revisions wait, all others go on.",
        lambda it: it.worker.supervision.panics_total,
    ),
    Family(
        "activator_state_worker_last_panic_seconds",
        Kind.GAUGE,
        "How long ago the last panic was; nothing while there was none.",
        _since_last_panic,
    ),
    _gauge(
        "activator_state_worker_panics_in_a_row",
        "Panics in a row, of the revision that has most.",
        lambda it: it.worker.supervision.worst_in_a_row(it.now()),
    ),
    _gauge(
        "activator_state_worker_next_backoff_seconds",
        "The longest backoff, if its owner panicked now.",
        lambda it: it.worker.supervision.next_backoff_s(it.now()),
    ),
    _counter(
        "activator_state_rebuilds",
        "Tables made anew from the model, since an invariant was broken.",
        lambda it: it.worker.rebuilds_total,
    ),
    Family(
        "activator_state_illegal_transitions",
        Kind.COUNTER,
        "Transitions of pods that were refused.",
        _illegal_transitions,
        ("from", "event", "to"),
        (_STATES, EVENTS, _STATES),
    ),
    Family(
        "activator_state_mismatches",
        Kind.COUNTER,
        "What the auditor found, and a change repaired: any of it is a defect.",
        lambda it: [((kind,), float(count)) for kind, count in it.worker.mismatch_totals.items()],
        ("kind",),
        (MISMATCHES,),
    ),
    Family(
        "activator_push_reports",
        Kind.COUNTER,
        "What pods said of themselves, by what became of it.",
        _reports,
        ("outcome",),
        (tuple(one.value for one in Verdict),),
    ),
    Family(
        "activator_push_validations",
        Kind.COUNTER,
        "Pods that were asked since they said that they are ready.",
        _validations,
        ("outcome",),
        (tuple(one.value for one in Ask),),
    ),
    _gauge(
        "activator_state_parked_revisions",
        "Revisions whose changes wait after one that raised.",
        lambda it: len(it.worker.parked),
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
    _counter(
        "activator_access_log_lost_lines",
        "Lines missing in the access log: whoever reads it was too slow, or it could not be written.",
        lambda it: it.access_log.lost_total,
    ),
    _counter(
        "activator_errors", "Errors of its own that nobody could answer for: defects.", lambda it: it.errors_total()
    ),
)

PROGRAM_FAMILIES: tuple[Family[Program], ...] = (*CLIENTS, *CONTROL, *OWN)
