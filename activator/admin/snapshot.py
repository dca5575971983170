"""The response to `GET /debug/revisions`: the data plane's report, completed by data of the control plane."""

from __future__ import annotations

from typing import Any, Final

from activator.control_plane.snapshot import SET_ASIDE
from activator.messages import DataPlaneStatistics
from lb.tracker import PENDING, QUARANTINED, RECOVERING, STATE_NAMES

_WITH_REASON: Final = (STATE_NAMES[PENDING], STATE_NAMES[QUARANTINED], STATE_NAMES[RECOVERING])


def joined(
    data: dict[str, dict[str, Any]],
    control: dict[str, dict[str, Any]],
    state_worker: dict[str, Any],
    workers: list[dict[str, Any]],
    counts: DataPlaneStatistics,
) -> dict[str, Any]:
    """Return the response as plain data.

    `data` is the result of `data_plane.snapshot`, and `control` and `state_worker` are those of
    `control_plane.snapshot`; revisions are by key. `workers` are the worker processes, empty if there is one process;
    `counts` are the sums of all workers.
    """
    revisions = [_revision(shown, control.get(key, {})) for key, shown in data.items()]
    clients = {
        "connections": counts.client_connections,
        "http2_connections": counts.http2.connections,
        "streams": counts.http2.streams,
    }
    made = {"revisions": revisions, "clients": clients, "state_worker": state_worker}
    return {**made, "workers": workers} if workers else made


def _revision(shown: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    reasons = known.get("reasons", {})
    ages_s = known.get("ages_s", {})
    zones = known.get("zones", {})
    slots = []
    for one in shown["slots"]:
        pod = one["pod"]
        slot = {**_slot(one, reasons.get(pod)), "state_age_s": ages_s.get(pod)}
        slots.append({**slot, "zone": zones[pod]} if pod in zones else slot)
    placed = {(one["pod"], one["address"]) for one in slots}  # a drained pod keeps its slot while it has requests
    without_slot = [one for one in known.get("without_slot", []) if (one["pod"], one["address"]) not in placed]
    made = {**shown, "slots": slots, "without_slot": without_slot}
    if known.get("problems"):
        made["problems"] = known["problems"]
    if known.get("processes") is not None:
        made["processes"] = known["processes"]
    if known.get("memory"):
        made["memory"] = known["memory"]
    if known.get("group") is not None:
        made["group"] = known["group"]
    if known.get("scaling") is not None:
        made["scaling"] = known["scaling"]
    return made


def _slot(slot: dict[str, Any], known: dict[str, str] | None) -> dict[str, Any]:
    """Add the reason why the pod does not answer, is in quarantine, on trial, or out of service.

    The reason is omitted if the control plane's record is of the same pod at another address.
    """
    reason = ""
    if known is not None and known["address"] == slot["address"]:
        is_shown = slot["state"] in _WITH_REASON or known["reason"] == SET_ASIDE
        reason = known["reason"] if is_shown else ""
    return {**slot, "reason": reason}
