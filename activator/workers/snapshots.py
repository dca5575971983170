"""The snapshots of all workers, merged into one: plain data, as `data_plane/snapshot.py` makes it."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from activator.data_plane.snapshot import WAITING_SHOWN_MAX

Shown = dict[str, Any]

_SUMS: Final = ("requests", "in_flight", "queued", "gathering", "delivering", "client_gone")
_QUEUE_SUMS: Final = ("waiting", "held_bytes", "granted", "queued", "exempted", "errors")
_SLOT_SUMS: Final = ("responses", "errors", "first_byte_total_s")
_BY_REASON: Final = ("failed", "retries")


def merged(by_worker: dict[int, dict[str, Shown]]) -> dict[str, Shown]:
    """Return all revisions by key. The field `workers` has the requests of each worker."""
    found: dict[str, list[tuple[int, Shown]]] = {}
    for worker, revisions in by_worker.items():
        for key, shown in revisions.items():
            found.setdefault(key, []).append((worker, shown))
    return {key: _merged(parts) for key, parts in found.items()}


def _merged(parts: list[tuple[int, Shown]]) -> Shown:
    """Return one revision from its snapshots, each with its worker."""
    shown = [part for _, part in parts]
    merged_revision: Shown = {**shown[0]}
    for name in _SUMS:
        merged_revision[name] = sum(one[name] for one in shown)
    for name in _BY_REASON:
        merged_revision[name] = _sums([one[name] for one in shown])
    merged_revision["owner"] = any(one["owner"] for one in shown)
    merged_revision["capacity"] = max(one["capacity"] for one in shown)
    merged_revision["failure"] = next((one["failure"] for one in shown if one["failure"]), None)
    merged_revision["waits_for"] = next((one["waits_for"] for one in shown if one["waits_for"]), "")
    merged_revision["queue"] = {**shown[0]["queue"]}
    for name in _QUEUE_SUMS:
        merged_revision["queue"][name] = sum(one["queue"][name] for one in shown)
    merged_revision["queue"]["retry_after_s"] = max(one["queue"]["retry_after_s"] for one in shown)
    merged_revision["waiting_requests"] = _by_wait([one["waiting_requests"] for one in shown])
    merged_revision["slots"] = _slots([one["slots"] for one in shown])
    merged_revision["workers"] = [
        {"worker": worker, "requests": one["requests"], "in_flight": one["in_flight"], "queued": one["queued"]}
        for worker, one in parts
    ]
    return merged_revision


def _by_wait(lists: list[list[Shown]]) -> list[Shown]:
    """Return the requests that have waited longest, as many as one worker reports."""
    requests = sorted(chain.from_iterable(lists), key=lambda one: one["asked_s"])
    return requests[:WAITING_SHOWN_MAX]


def _slots(tables: list[list[Shown]]) -> list[Shown]:
    """Return the merged slots, one for each pod. A worker's slot has only its own requests there."""
    found: dict[tuple[str, str], Shown] = {}
    for table in tables:
        for slot in table:
            name = (slot["pod"], slot["address"])
            known = found.get(name)
            if known is None:
                found[name] = {**slot}
                found[name].pop("elsewhere", None)  # the sum includes the requests of all workers
                continue
            known["in_flight"] += slot["in_flight"]
            for figure in _SLOT_SUMS:
                if figure in slot:
                    known[figure] = known.get(figure, 0) + slot[figure]
            if "connections" in slot and "connections" in known:
                known["connections"] = _sums([known["connections"], slot["connections"]])
    return list(found.values())


def _sums(counts: list[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
