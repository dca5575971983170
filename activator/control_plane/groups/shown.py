"""The view of groups: plain data, and one sentence for what each revision waits for."""

from __future__ import annotations

from typing import Any, Final

from activator.control_plane.groups.group import BudgetGroup, MemberState
from activator.control_plane.groups.policy import Wait, WaitsFor

_SENTENCES: Final = {
    WaitsFor.LEAVING: "waits until other programs have ended",
    WaitsFor.TURN: "waits for its turn",
    WaitsFor.BEHIND: "waits behind an earlier request",
    WaitsFor.BACKOFF: "waits for the backoff after a failed start",
}


def shown(group: BudgetGroup, now_s: float) -> dict[str, Any]:
    """Return the view of one group; ages in seconds."""
    rule = group.rule
    used = group.used()
    return {
        "name": rule.name,
        "discipline": rule.discipline,
        "overtaken_at_most_s": rule.overtaken_at_most_s,
        "exclusive": rule.exclusive,
        "budget": dict(zip(rule.resources, rule.budget)),
        "used": dict(zip(rule.resources, used)),
        "holders": [
            {"revision": key, "running": running, "leaving": leaving, "sleeping": sleeping}
            for key, (running, leaving, sleeping) in group.holdings().items()
        ],
        "waiting": [
            {"revision": key, **_wait(state.wait, now_s - state.waited_from_s), "queued": state.queued}
            for key, state in group.members.items()
            if state.wait is not None
        ],
        "swaps": group.swaps_total,
    }


def view_in_group(group: BudgetGroup, key: str, now_s: float) -> dict[str, Any]:
    """Return the group's name, the granted programs of the member, and why it waits if it does."""
    state: MemberState = group.members[key]
    view: dict[str, Any] = {"name": group.rule.name, "granted": state.granted}
    if state.wait is not None:
        view["waits"] = _wait(state.wait, now_s - state.waited_from_s)
    return view


def _wait(wait: Wait, waited_s: float) -> dict[str, Any]:
    names = ", ".join(wait.keys)
    text = _SENTENCES[wait.reason] + (f": {names}" if names else "")
    return {"for": wait.reason.value, "of": list(wait.keys), "waited_s": round(waited_s, 3), "explanation": text}
