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
            "borrowing.Borrowing.tick: edge: self.idle[0].since_s <= until_s",
            "lending.Lending.begin: edge: others[0].asked_s < one.asked_s",
            "lending.Lending._may_lend: edge: int(table.capacity - table.in_flight) >= LENDING_FREE_SHARE * int(table.capacity)",
            "member.Member.adopt: edge: view.epoch <= self.view.epoch",
            "member.Member.receive: edge: len(peer.early) >= EARLY_MAX",
            "member.Member.tick: edge: now_s - since_s >= UNKNOWN_KEPT_S",
            "member.Member.tick: edge: now_s - since_s >= UNKNOWN_KEPT_S #2",
            "member.Member._keep_unknown: edge: self._unknown_count >= EARLY_MAX",
        ),
        "a function that ends returns None": (
            "borrowing.Borrowing.take: leave: return None #2",
            "lending.NoSlots.take: leave: return None",
        ),
        "any score that is the same for all members will do: only how many revisions move is another": (
            "view.View.owner_of: hand: scores are of the number",
            "view._score: leave: x = (x ^ x >> 30) * 13787848793156543929 & _MASK_64",
            "view._score: leave: x = (x ^ x >> 27) * 10723151780598845931 & _MASK_64",
            "view._score: leave: return x ^ x >> 31",
        ),
    }
)

# Holes of the simulation, each with what it does not look at.
NOT_FOUND: Final[dict[str, str]] = _by_reason(
    {
        "no rule says that idle slots of pods that have left, or are suspected, are not used again": (
            "borrowing.IdleSlot.is_usable: part: is_same IN is_same and tracker.state == READY and (tracker.suspect_until_s <= now_s)",
            "borrowing.IdleSlot.is_usable: part: tracker.state == READY IN is_same and tracker.state == READY and (tracker.suspect_until_s <= now_s)",
            "borrowing.IdleSlot.is_usable: part: tracker.suspect_until_s <= now_s IN is_same and tracker.state == READY and (tracker.suspect_until_s <= now_s)",
        ),
        "no rule looks at the order in which requests of a former owner come after a second change": (
            "borrowing.Borrowing.begin: leave: if numbered:",
            "borrowing.Borrowing.begin: leave: waiter.line_number = waiter.arrival",
            "borrowing.Borrowing.begin: turn: numbered",
        ),
        "no rule of the simulation looks at it, or it is mended by the next message": (
            "borrowing.Borrowing.register: leave: self.lends = False",
            "borrowing.Borrowing.suspend: leave: self.epoch = 0",
            "borrowing.Borrowing.suspend: leave: self.lends = False",
            "borrowing.Borrowing.joined: leave: self.return_idle()",
            "borrowing.Borrowing.table_replaced: leave: self.return_idle()",
            "borrowing.Borrowing._keep: turn: self._may_keep()",
            "lending.Lending.register: leave: throttler.source = NOTHING_YET",
            "lending.Lending._exchange: leave: self._forget_waiters(borrower)",
            "lending.Lending._exchange: leave: borrower.lends = False",
            "lending.Lending.unlinked: leave: self._forget_waiters(borrower)",
            "lending.Lending.ended: leave: self._forget_waiters(borrower)",
            "lending.Lending.hand_over: leave: self.borrowers.clear()",
            "lending.Lending.is_lending: leave: return any((borrower.slots for borrower in self.borrowers.values()))",
            "lending.Lending.line_formed: leave: borrower.lends = False",
            "lending.Lending._take_back: leave: self.forget_unplaced(waiter)",
            "member.Member.revision_set: leave: self.borrowed[key].borrowing.begin(False)",
            "member.Member.revision_dropped: leave: if owned is not None and owned.lending.is_lending():",
            "member.Member.revision_dropped: leave: self._taken_unknown(key)",
            "member.Member.revision_dropped: leave: self._gone_since_s[key] = self._now()",
            "member.Member.revision_dropped: leave: self._retired.append(owned.lending)",
            "member.Member.revision_dropped: leave: borrowed.borrowing.return_idle()",
            "member.Member.revision_dropped: leave: self._forget_returned(key, borrowed)",
            "member.Member.adopt: leave: for member in view.members:",
            "member.Member.adopt: leave: for lending in self._retired:",
            "member.Member.adopt: leave: self._retired.clear()",
            "member.Member.adopt: leave: self._complete_some()",
            "member.Member.adopt: leave: return",
            "member.Member.adopt: leave: if member.number != self.number and member.number not in self.peers:",
            "member.Member.adopt: leave: lending.hand_over()",
            "member.Member.adopt: leave: self.peers[member.number] = Peer(member.number)",
            "member.Member.receive: leave: if peer is None or not peer.linked:",
            "member.Member.receive: leave: return",
            "member.Member.receive: leave: if len(peer.early) >= EARLY_MAX:",
            "member.Member.receive: leave: self._drop(number)",
            "member.Member.receive: leave: return #2",
            "member.Member._act: leave: peer.begun = message.epoch",
            "member.Member._from_borrower: leave: if message.epoch < owned.since:",
            "member.Member._from_borrower: leave: return #2",
            "member.Member._from_borrower: leave: lending.trial_over(number, message.slot)",
            "member.Member._from_borrower: leave: lending.suspected(number, message.slot)",
            "member.Member._from_owner: leave: if type(message) is Granted: #2",
            "member.Member._from_owner: leave: self._send(number, Returned(message.epoch, message.key, (message.slot,)))",
            "member.Member._from_owner: leave: borrowing.refused(message)",
            "member.Member._keep_unknown: leave: if self._unknown_count >= EARLY_MAX:",
            "member.Member._keep_unknown: leave: self._unknown_count += 1",
            "member.Member._keep_unknown: leave: self._drop(number)",
            "member.Member._keep_unknown: leave: return",
            "member.Member._taken_unknown: leave: del self._unknown_since_s[key]",
            "member.Member._taken_unknown: leave: self._unknown_count -= len(said)",
            "member.Member._forget_unknown: leave: for key, said in list(self._unknown.items()):",
            "member.Member._forget_unknown: leave: kept = deque([one for one in said if one[0] != number])",
            "member.Member._forget_unknown: leave: self._unknown_count -= len(said) - len(kept)",
            "member.Member._forget_unknown: leave: if kept:",
            "member.Member._forget_unknown: leave: self._unknown[key] = kept",
            "member.Member._forget_unknown: leave: del self._unknown[key]",
            "member.Member._forget_unknown: leave: del self._unknown_since_s[key]",
            "member.Member._forget_unknown: turn: kept",
            "member.Member._ended: leave: self._forget_unknown(number)",
            "member.Member._ended: leave: del self.peers[number]",
            "member.Member._settle: leave: one.borrowing.suspend()",
            "member.Member._settle: leave: del self.borrowed[key]",
            "member.Member._settle: leave: one.borrowing.throttler.source = None",
            "member.Member._settle: leave: throttler.lending = None",
            "member.Member._forget_returned: leave: if one.is_dropped and (not one.borrowing.in_use):",
            "member.Member._forget_returned: leave: del self.borrowed[key]",
            "member.Member._has_registered_with: part: peer is not None IN peer is not None and peer.linked and self.view.has(number)",
            "member.Member._has_registered_with: part: peer.linked IN peer is not None and peer.linked and self.view.has(number)",
            "member.Member._has_registered_with: part: self.view.has(number) IN peer is not None and peer.linked and self.view.has(number)",
        ),
        "what a borrower has after the limit went is not looked at": (
            "borrowing.Borrowing.retire: leave: self.return_idle()",
            "borrowing.Borrowing.retire: leave: self.epoch = 0",
            "borrowing.Borrowing.retire: leave: self.wanted.clear()",
            "borrowing.Borrowing.retire: leave: self.in_use.clear()",
        ),
        "starts from zero are not simulated": (
            "borrowing.Borrowing.queued: leave: if len(self.wanted) == 1:",
            "borrowing.Borrowing.queued: leave: self.throttler.must_wait()",
            "borrowing.Borrowing.queued: turn: len(self.wanted) == 1",
        ),
        "pods whose address changes, or that leave while a grant is under way, are too rare; or the place in line is known already": (
            "borrowing.Borrowing.granted: leave: waiter.line_number = message.number",
            "borrowing.Borrowing.granted: leave: waiter.line_number = message.number #2",
            "borrowing.Borrowing.granted: part: tracker.address != message.address IN tracker is None or tracker.address != message.address or tracker.state not in {READY, RECOVERING}",
            "borrowing.Borrowing.granted: part: tracker.state not in {READY, RECOVERING} IN tracker is None or tracker.address != message.address or tracker.state not in {READY, RECOVERING}",
        ),
        "a drain that ends too late is simulated for slots in use alone": (
            "borrowing.Borrowing.revoked: leave: self.idle = deque([one for one in self.idle if one.slot != message.slot])",
            "borrowing.Borrowing.revoked: turn: slot == message.slot",
        ),
        "exempt requests are not simulated": (
            "borrowing.Borrowing.take: leave: if self.wanted or waiter.exempt:",
            "borrowing.Borrowing.take: leave: return None",
            "borrowing.Borrowing.take: leave: self._give_back(one.slot)",
            "lending.Lending.granted: leave: if lease.exempt:",
            "lending.Lending.granted: leave: throttler.exempted_total -= 1",
            "lending.Lending.granted: turn: lease.exempt",
        ),
        "a revision that fails where it is borrowed is not simulated": (
            "borrowing.Borrowing.line_left: leave: for waiter in list(self.wanted.values()):",
            "borrowing.Borrowing.line_left: leave: self.left(waiter)",
        ),
        "no rule says that slots of pods that have left are not kept": (
            "borrowing.Borrowing.closed: part: tracker.generation == lease.generation IN tracker.generation == lease.generation and tracker.state == READY and self._may_keep()",
            "borrowing.Borrowing.closed: part: tracker.state == READY IN tracker.generation == lease.generation and tracker.state == READY and self._may_keep()",
        ),
        "no rule looks at numbers of places, other than by the order": (
            "lending.Lending.begin: leave: for one in order:",
            "lending.Lending.begin: leave: _number_between(before, last, one.line_number)",
            "lending.Lending.begin: leave: last = one.line_number",
            "lending.Lending.begin: leave: if isinstance(one, RemoteWaiter) and (not one.is_numbered):",
            "lending.Lending.begin: leave: self._send_queued(one)",
        ),
        "totals of rejected requests, and lines that are full, are not looked at": (
            "lending.Lending.want: leave: if waiting.request in borrower.waiters:",
            "lending.Lending.want: leave: return",
            "lending.Lending.want: leave: if refusal is None:",
            "lending.Lending.want: leave: throttler.queued_total -= 1",
            "lending.Lending.want: turn: refusal is None",
        ),
        "a rebuild while a slot's pod is not here yet is too rare": (
            "lending.Lending.table_replaced: leave: table = self.throttler.table",
            "lending.Lending.table_replaced: leave: for identity, address in list(self._unplaced):",
            "lending.Lending.table_replaced: leave: tracker = table.find_identity(identity)",
            "lending.Lending.table_replaced: leave: if tracker is not None and tracker.address == address:",
            "lending.Lending.table_replaced: leave: self.pod_placed(tracker)",
            "lending.Lending.table_replaced: turn: tracker is not None and tracker.address == address",
        ),
        "a slot of a revision that is dropped while its owner changes is too rare": (
            "lending.Lending.give_up: leave: self._take_back(waiter.borrower, waiter.slot)",
            "lending.Lending._adopt: leave: if former is not None:",
            "lending.Lending._adopt: leave: former.lending.give_up(former)",
        ),
        "exempt requests, and which pod a second try avoids, are not looked at": (
            "lending.Lending._waiter_of: leave: waiter.exempt = waiting.exempt",
            "lending.Lending._waiter_of: leave: waiter.avoided = None if failed is None else Lease(failed, 0.0)",
            "lending.Lending._waiter_of: leave: waiter.line_number = waiting.number",
            "lending.Lending._waiter_of: leave: waiter.is_numbered = waiting.number != 0",
            "lending.Lending._waiter_of: leave: waiter.sorted = True",
            "lending.Lending._waiter_of: turn: waiting.failed_at",
        ),
        "policies with keys are not simulated; what is lent too much is recalled": (
            "lending.Lending._may_lend: leave: if throttler.line.length != 0 or table.policy.wants_key:",
            "lending.Lending._may_lend: leave: return False",
        ),
        "what is sent while there is no limit is not looked at": (
            "member.Member.limit_removed: leave: throttler.source = throttler.lending = None",
            "member.Member.limit_removed: leave: throttler.pump()",
            "member.Member.limit_removed: leave: borrowed.borrowing.retire()",
            "member.Member.limit_removed: leave: throttler.source = None",
            "member.Member.limit_removed: leave: throttler.pump() #2",
        ),
        "links that end with messages of a later view are too rare": (
            "member.Member.unlinked: leave: peer.begun = peer.registered = 0",
            "member.Member.unlinked: leave: peer.early.clear()",
            "member.Member.unlinked: leave: self._forget_unknown(number)",
            "member.Member.unlinked: leave: for lending in self._retired:",
            "member.Member.unlinked: leave: for one in self.borrowed.values():",
            "member.Member.unlinked: leave: lending.ended(number)",
            "member.Member.unlinked: leave: if one.owner == number:",
            "member.Member.unlinked: leave: one.borrowing.suspend()",
        ),
        "what is kept for UNKNOWN_KEPT_S is not looked at before it is gone": (
            "member.Member.tick: leave: for key, since_s in list(self._unknown_since_s.items()):",
            "member.Member.tick: leave: for key, since_s in list(self._gone_since_s.items()):",
            "member.Member.tick: leave: self._retired = [lending for lending in self._retired if lending.is_lending()]",
            "member.Member.tick: leave: self._forget_returned(key, one)",
            "member.Member.tick: leave: if now_s - since_s >= UNKNOWN_KEPT_S:",
            "member.Member.tick: leave: if now_s - since_s >= UNKNOWN_KEPT_S: #2",
            "member.Member.tick: leave: del self._gone_since_s[key]",
            "member.Member.tick: turn: now_s - since_s >= UNKNOWN_KEPT_S",
            "member.Member.tick: turn: now_s - since_s >= UNKNOWN_KEPT_S #2",
        ),
    }
)
