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
    revisions = [_revision(reported, control.get(key, {})) for key, reported in data.items()]
    clients = {
        "connections": counts.client_connections,
        "http2_connections": counts.http2.connections,
        "streams": counts.http2.streams,
    }
    response = {"revisions": revisions, "clients": clients, "state_worker": state_worker}
    return {**response, "workers": workers} if workers else response


def _revision(reported: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the data plane's report of a revision, completed by what the control plane knows."""
    reasons = known.get("reasons", {})
    ages_s = known.get("ages_s", {})
    zones = known.get("zones", {})
    slots = []
    for slot in reported["slots"]:
        pod = slot["pod"]
        completed = {**_slot(slot, reasons.get(pod)), "state_age_s": ages_s.get(pod)}
        slots.append({**completed, "zone": zones[pod]} if pod in zones else completed)
    with_slot = {(slot["pod"], slot["address"]) for slot in slots}  # a drained pod keeps its slot while it has requests
    without_slot = [pod for pod in known.get("without_slot", []) if (pod["pod"], pod["address"]) not in with_slot]
    response = {**reported, "slots": slots, "without_slot": without_slot}
    if known.get("problems"):
        response["problems"] = known["problems"]
    if known.get("processes") is not None:
        response["processes"] = known["processes"]
    if known.get("memory"):
        response["memory"] = known["memory"]
    if known.get("group") is not None:
        response["group"] = known["group"]
    if known.get("scaling") is not None:
        response["scaling"] = known["scaling"]
    return response


def _slot(slot: dict[str, Any], known: dict[str, str] | None) -> dict[str, Any]:
    """Return a slot with the reason why its pod does not answer, is in quarantine, on trial, or out of service.

    The reason is omitted if the control plane's record is of the same pod at another address.
    """
    reason = ""
    if known is not None and known["address"] == slot["address"]:
        is_shown = slot["state"] in _WITH_REASON or known["reason"] == SET_ASIDE
        reason = known["reason"] if is_shown else ""
    return {**slot, "reason": reason}
