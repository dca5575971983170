"""Mutants that are not looked for: those that make no difference, and those that the simulation does not find yet."""

# ruff: noqa: E501  (names have the text of the source)

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _by_reason(names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: reason for reason, of_it in names.items() for name in of_it}


# Judged: the program is right with them.
NO_DIFFERENCE: Final[dict[str, str]] = _by_reason(
    {
        "it differs at one moment, or for one number, and either answer is right there": (
            "borrowing.IdleSlot.is_usable: edge: tracker.suspect_until_s <= now_s",
            "borrowing.Borrowing.tick: edge: self.idle[0].idle_since_s <= until_s",
            "borrowing.Borrowing._schedule_check: edge: self._now() < until_s",
            "lending.Lending.begin: edge: unnumbered[0].asked_s < waiter.asked_s",
            "lending.Lending._may_lend: edge: int(table.capacity - table.in_flight) >= LENDING_FREE_SHARE * int(table.capacity)",
            "member.Member.adopt: edge: view.epoch <= self.view.epoch",
            "member.Member.receive: edge: len(peer.early) >= EARLY_MAX",
            "member.Member.tick: edge: now_s - since_s >= UNKNOWN_KEPT_S",
            "member.Member.tick: edge: now_s - since_s >= UNKNOWN_KEPT_S #2",
            "member.Member._keep_unknown: edge: self._unknown_count >= EARLY_MAX",
        ),
        "it is about what the sender says as an owner, in a view before: that may be acted on before or behind what it says as a borrower": (
            "member.Member.receive: part: peer.early IN message.epoch > self.view.epoch or peer.early",
        ),
        "a function that ends returns None": (
            "borrowing.Borrowing.take: leave: return None",
            "lending.NoSlots.take: leave: return None",
        ),
        "any score that is the same for all members will do: only how many revisions move is another": (
            "view.View.owner_of: hand: scores are of the number",
        ),
    }
)

# Holes of the simulation.
NOT_FOUND: Final[dict[str, str]] = _by_reason(
    {
        "a number that is sent again; data_plane/ownership/test_registered_order.py finds it": (
            "lending.Lending.want: leave: if self._begun:",
            "lending.Lending.want: leave: self._send_queued(known)",
            "lending.Lending.want: turn: self._begun",
        ),
        "a guard for what another part of the program would have to do wrong first: a lease that was closed elsewhere": (
            "borrowing.Borrowing.closed: part: tracker.generation == lease.generation IN tracker.generation == lease.generation and tracker.state == READY and self._may_keep()",
            "lending.LentSlots.released: part: not lease.released IN lease is not None and (not lease.released)",
            "lending.Lending._take_back: part: not lease.released IN lease is not None and (not lease.released)",
        ),
    }
)
