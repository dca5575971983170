"""What `GET /debug/revisions` shows: what the data plane reports, completed by what the control plane knows."""

from __future__ import annotations

from typing import Any, Final

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
    """`data`: of `data_plane.snapshot`; `control`, `state_worker`: of `control_plane.snapshot`. Both by key. `workers`:
    the processes that serve, if there are several; `counts`: of all of them.
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
    slots = [_slot(slot, reasons.get(slot["pod"])) for slot in shown["slots"]]
    made = {**shown, "slots": slots, "without_slot": known.get("without_slot", [])}
    if known.get("problems"):
        made["problems"] = known["problems"]
    if known.get("processes") is not None:
        made["processes"] = known["processes"]
    if known.get("group") is not None:
        made["group"] = known["group"]
    if known.get("scaling") is not None:
        made["scaling"] = known["scaling"]
    return made


def _slot(slot: dict[str, Any], known: dict[str, str] | None) -> dict[str, Any]:
    """With the reason why the pod does not answer, is in quarantine, or on trial. The record may be of the same pod
    elsewhere.
    """
    reason = ""
    if known is not None and known["address"] == slot["address"] and slot["state"] in _WITH_REASON:
        reason = known["reason"]
    return {**slot, "reason": reason}
