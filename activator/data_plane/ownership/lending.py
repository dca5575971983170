"""The owner's side of one revision: the waiting requests of other members, and the slots that they have.

Rules
  1. A slot of another member is an open lease of the owner's throttler, from the grant until its return. The limit of a
     pod therefore holds across all members, and audits, drains and rebuilds need no special case.
  2. A request that waits at another member is in the owner's queue, in its normal order (`RemoteWaiter`).
  3. While no request waits and many slots are free, a borrower may keep its slots and reuse them (*lending*). When a
     queue forms, or the revision begins to prefer a zone, all of them are recalled.
  4. A registration in a later view, or over another link, replaces the owner's record of a borrower: granted slots that
     it does not name have not arrived, or are void; requests that it names again keep their turns. If the limit was
     removed and restored within one view, the borrower returns each slot that it had or receives late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from activator.data_plane.ownership.messages import (
    Granted,
    HeldSlot,
    MemberMessage,
    Queued,
    Recall,
    Refused,
    Register,
    Revoked,
    WaitingRequest,
)
from activator.data_plane.throttle.interfaces import SlotLender, SlotSource
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.queue import ARRIVAL_STEP
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import Now
from activator.runtime.reasons import Reason
from lb.tracker import PodTracker

MEMBER_SLOT_BITS: Final = 40  # bits of a slot's number; above them stands the number of its member, or a random one
LENDING_FREE_SHARE: Final = 0.25  # slots are lent while at least this share of the capacity is free

_THIS_MEMBER: Final = -1  # in place of the number of a member

SendTo = Callable[[int, MemberMessage], None]


def _number_between(waiters: list[Waiter], low: int, high: int) -> None:
    """Assign `waiters` evenly spaced positions between `low` and `high`."""
    for position, waiter in enumerate(waiters, 1):
        waiter.arrival_at_owner = low + (high - low) * position // (len(waiters) + 1)


class LentSlots:
    """The slots of all revisions that this member has lent, by numbers that no other slot of any member ever has.

    A late message about a slot can therefore only concern that slot, or none.
    """

    def __init__(self, first: int) -> None:
        self._last: int = first
        self.waiters: dict[int, RemoteWaiter] = {}  # the holders, by the number of the slot

    def new_number(self) -> int:
        """Return the number of a new slot."""
        self._last += 1
        return self._last

    def released(self, member: int, slot: int, latency_s: float, succeeded: bool, unused: bool = False) -> None:
        """Release a slot of `member`, if `member` still has it; `unused`: no request has used the slot."""
        waiter = self.waiters.get(slot)
        if waiter is not None and waiter.borrower.number == member:
            del self.waiters[slot]
            del waiter.borrower.slots[slot]
            waiter.lending.forget_unplaced(waiter)
            lease, waiter.lease = waiter.lease, None
            if lease is not None and not lease.released:
                if unused:
                    waiter.lending.throttler.release_unused(lease)
                else:
                    waiter.lending.throttler.release(lease, latency_s, succeeded)


class NoSlots(SlotSource):
    """The source of a revision that this member will own: it grants nothing until the other members have registered."""

    def take(self, waiter: Waiter) -> PodTracker | None:
        return None

    def joined(self, waiter: Waiter) -> None:
        pass

    def cancelled(self, waiter: Waiter) -> None:
        pass

    def queue_cleared(self) -> None:
        pass

    def closed(self, lease: Lease, latency_s: float, succeeded: bool) -> None:
        pass

    def trial_over(self, lease: Lease) -> None:
        pass

    def suspected(self, lease: Lease) -> None:
        pass

    def table_replaced(self) -> None:
        pass


NOTHING_YET: Final = NoSlots()


class Borrower:
    """One other member, as the owner of a revision records it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch: int = 0  # at its registration; 0: not registered, so nothing is sent to it
        self.lends: bool = False  # it may keep its slots
        self.slots: dict[int, RemoteWaiter] = {}  # by the number of the slot
        self.waiters: dict[int, RemoteWaiter] = {}  # by the number of the request


class RemoteWaiter(Waiter):
    """A request of another member: first a waiter in the queue, then the holder of its lease."""

    def __init__(self, lending: Lending, borrower: Borrower, request: int) -> None:
        super().__init__()
        self.is_remote = True
        self.lending = lending
        self.borrower = borrower
        self.request_number = request
        self.slot: int = 0  # the number of its slot; 0: it waits
        self.is_numbered: bool = False  # its member knows its position in the queue
        self.lease: Lease | None = None
        self.placed_at = ("", "")  # identity and address of the pod, if the slot was registered

    def is_served(self, lease: Lease) -> bool:
        return lease is self.lease

    def granted(self, lease: Lease) -> None:
        self.lease = lease
        self.lending.granted(self, lease)

    def refused(self, reason: Reason, detail: str) -> None:
        self.lending.refused(self, reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        self.lending.revoked(self, reason, detail)


def _by_time(waiters: list[Waiter]) -> list[Waiter]:
    """Return the waiters in the order in which they asked.

    The times of other members' requests are estimates; the times of one member's are raised to follow its own order.
    """
    latest_s: dict[int, float] = {}
    ordered = sorted(
        waiters, key=lambda waiter: waiter.request_number if isinstance(waiter, RemoteWaiter) else waiter.arrival
    )
    for waiter in ordered:
        member = waiter.borrower.number if isinstance(waiter, RemoteWaiter) else _THIS_MEMBER
        waiter.asked_s = latest_s[member] = max(waiter.asked_s, latest_s.get(member, 0.0))
    return sorted(ordered, key=lambda waiter: waiter.asked_s)


class Lending(SlotLender):
    """The lent slots and remote waiters of an owned revision; `send(member, message)` sends to a borrower."""

    def __init__(self, throttler: RevisionThrottler, lent: LentSlots, send: SendTo, now: Now) -> None:
        self.throttler = throttler
        self.borrowers: dict[int, Borrower] = {}  # by the number of the member
        self._lent = lent
        self._begun: bool = False  # `begin` has been called
        self._may_grant: bool = True
        self._unplaced: dict[tuple[str, str], dict[RemoteWaiter, None]] = {}  # slots of pods that are not in the table
        self._send = send
        self._now = now

    # --- messages of borrowers ---

    def register(self, member: int, message: Register) -> None:
        """Replace the slots and waiting requests of a borrower by those of its registration."""
        throttler = self.throttler
        throttler.sharing.source = NOTHING_YET  # until the borrower's requests are at their positions in the queue
        try:
            self._apply_registration(self._borrower(member), message)
        finally:
            self._grant_if_begun_and_allowed()

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid grants; granted slots are not affected."""
        self._may_grant = allowed
        if allowed:
            self._grant_if_begun_and_allowed()
        elif self._begun:
            self.throttler.sharing.source = NOTHING_YET

    def _grant_if_begun_and_allowed(self) -> None:
        if self._begun and self._may_grant:
            self.throttler.sharing.source = None
            self.throttler.pump()
            self.throttler.queue.refuse_impatient()

    def _apply_registration(self, borrower: Borrower, message: Register) -> None:
        self._cancel_waiters(borrower, {waiting.request for waiting in message.waiting})
        if message.epoch != borrower.epoch:  # otherwise unnamed slots are in transit to or from the borrower
            named = {held.slot for held in message.slots}
            for slot in [slot for slot in borrower.slots if slot not in named]:
                self._take_back(borrower, slot)
        borrower.epoch = message.epoch
        borrower.lends = False
        for held in message.slots:
            if held.slot not in borrower.slots:
                self._record_slot(borrower, held)
        for waiting in message.waiting:
            self.want(borrower.number, message.epoch, waiting, True)

    def registered(self, member: int, epoch: int) -> None:
        """Record the end of a member's registration; a member that sent no `Register` has nothing of this revision."""
        borrower = self.borrowers.get(member)
        if borrower is not None and borrower.epoch < epoch:
            self.register(member, Register(epoch, self.throttler.common_name, (), ()))

    def begin(self) -> None:
        """Begin to grant, in the order of the former owner's queue.

        Requests that were not in that queue yet have waited only for a moment, or longer if the members changed
        repeatedly; they precede all requests that asked after them.
        """
        throttler = self.throttler
        waiters = throttler.queue.waiters.by_arrival()
        numbered = sorted(
            [waiter for waiter in waiters if waiter.arrival_at_owner], key=lambda waiter: waiter.arrival_at_owner
        )
        unnumbered = deque(_by_time([waiter for waiter in waiters if not waiter.arrival_at_owner]))
        order: list[Waiter] = []
        last = 0
        for waiter in numbered:
            before: list[Waiter] = []
            while unnumbered and unnumbered[0].asked_s < waiter.asked_s:
                before.append(unnumbered.popleft())
            _number_between(before, last, waiter.arrival_at_owner)
            last = waiter.arrival_at_owner
            order.extend([*before, waiter])
        end = max(last, throttler.queue.arrivals) + ARRIVAL_STEP * (len(unnumbered) + 1)
        _number_between(list(unnumbered), last, end)
        order.extend(unnumbered)
        self._begun = True
        throttler.queue.reorder(order)
        for waiter in order:
            if isinstance(waiter, RemoteWaiter) and not waiter.is_numbered:
                self._send_queued(waiter)
        self._grant_if_begun_and_allowed()

    def want(self, member: int, epoch: int, waiting: WaitingRequest, registers: bool = False) -> None:
        """Grant a request a slot at once, or enqueue it. `registers`: it was in the queue of a former owner or link."""
        borrower = self._borrower(member)
        if borrower.epoch == 0:
            borrower.epoch = epoch
        known = borrower.waiters.get(waiting.request)
        if known is not None:
            if self._begun:
                self._send_queued(known)  # the borrower has dropped messages of an earlier epoch
            return
        throttler = self.throttler
        waiter = self._new_waiter(borrower, waiting)
        borrower.waiters[waiting.request] = waiter
        asked_s = waiter.asked_s
        lease = throttler.try_acquire(waiter, self._now()) if waiting.number == 0 else None
        if lease is not None:
            waiter.granted(lease)
            return
        if not self._begun:
            waiter.asked_s = asked_s  # `begin` orders by this time
        if waiting.number == 0:
            refusal = throttler.queue.enqueue(waiter)
            if refusal is None:
                throttler.counters.queued_total -= 1  # its own member counts it
        else:
            waiter.arrival = waiting.number
            refusal = throttler.rejoin(waiter, not registers)
        if refusal is not None:
            self.refused(waiter, refusal, throttler.queue.refusal_detail())
        elif waiter.is_queued and self._begun:
            self._send_queued(waiter)

    def cancel(self, member: int, request: int) -> None:
        borrower = self._borrower(member)
        waiter = borrower.waiters.pop(request, None)
        if waiter is not None:
            self.throttler.queue.cancel(waiter)

    def trial_over(self, member: int, slot: int) -> None:
        waiter = self._borrower(member).slots.get(slot)
        if waiter is not None and waiter.lease is not None:
            self.throttler.allow_other_trials(waiter.lease)

    def suspected(self, member: int, slot: int) -> None:
        waiter = self._borrower(member).slots.get(slot)
        if waiter is not None and waiter.lease is not None:
            self.throttler.verdicts.suspect(waiter.lease)

    # --- changes of members ---

    def unlinked(self, member: int) -> None:
        """Remove the requests of an unreachable member from the queue; they return when it registers."""
        borrower = self.borrowers.get(member)
        if borrower is not None:
            borrower.epoch = 0
            self._cancel_waiters(borrower)

    def ended(self, member: int) -> None:
        """Take back all slots of a member that has certainly ended."""
        borrower = self.borrowers.get(member)
        if borrower is not None:
            self._cancel_waiters(borrower)
            for slot in list(borrower.slots):
                self._take_back(borrower, slot)
            del self.borrowers[member]

    def take_back_all(self) -> None:
        """Take back all lent slots and drop the requests of borrowers, which register again with the next owner.

        The caller has replaced the source of a throttler that stays in use, so that its requests get none of them.
        """
        for borrower in self.borrowers.values():
            self._cancel_waiters(borrower)
            for slot in list(borrower.slots):
                self._take_back(borrower, slot)

    def members(self) -> set[int]:
        """Return the members that have slots or waiting requests."""
        return {number for number, borrower in self.borrowers.items() if borrower.slots or borrower.waiters}

    def is_lending(self) -> bool:
        """Return True if other members have slots."""
        return any(borrower.slots for borrower in self.borrowers.values())

    # --- calls of the throttler ---

    def pod_placed(self, tracker: PodTracker) -> None:
        for waiter in self._unplaced.pop((tracker.identity, tracker.address), ()):
            if waiter.borrower.slots.get(waiter.slot) is waiter:
                waiter.lease = self.throttler.adopt_slot(waiter, tracker)

    def table_replaced(self) -> None:
        table = self.throttler.table
        for identity, _ in list(self._unplaced):
            tracker = table.find_identity(identity)
            if tracker is not None:
                self.pod_placed(tracker)

    def lent(self) -> int:
        unplaced = sum(len(slots) for slots in self._unplaced.values())
        return sum(len(borrower.slots) for borrower in self.borrowers.values()) - unplaced

    def lent_by_pod(self) -> dict[PodTracker, int]:
        counts: dict[PodTracker, int] = {}
        for borrower in self.borrowers.values():
            for waiter in borrower.slots.values():
                if waiter.lease is not None:
                    counts[waiter.lease.tracker] = counts.get(waiter.lease.tracker, 0) + 1
        return counts

    def waiting(self) -> int:
        return sum(len(borrower.waiters) for borrower in self.borrowers.values())

    def recall(self) -> None:
        for borrower in self.borrowers.values():
            if borrower.lends:
                borrower.lends = False
                self._send(borrower.number, Recall(borrower.epoch, self.throttler.common_name))

    def granted(self, waiter: RemoteWaiter, lease: Lease) -> None:
        """Send a grant to the waiter's member, which counts the grant."""
        throttler = self.throttler
        throttler.counters.granted_total -= 1
        if lease.exempt:
            throttler.counters.exempted_total -= 1
        borrower = waiter.borrower
        del borrower.waiters[waiter.request_number]
        slot = waiter.slot = self._lent.new_number()
        borrower.slots[slot] = self._lent.waiters[slot] = waiter
        borrower.lends = self._may_lend()
        self._send(
            borrower.number,
            Granted(
                borrower.epoch,
                self.throttler.common_name,
                waiter.request_number,
                waiter.arrival,
                slot,
                lease.identity,
                lease.address,
                borrower.lends,
                lease.trial,
            ),
        )

    def refused(self, waiter: RemoteWaiter, reason: Reason, detail: str) -> None:
        borrower = waiter.borrower
        if borrower.waiters.pop(waiter.request_number, None) is not None:
            key = self.throttler.common_name
            self._send(borrower.number, Refused(borrower.epoch, key, waiter.request_number, reason.value, detail))

    def revoked(self, waiter: RemoteWaiter, reason: Reason, detail: str) -> None:
        """Take the slot of a request back, for example because a drain has timed out."""
        borrower = waiter.borrower
        if borrower.slots.get(waiter.slot) is waiter:
            if borrower.epoch != 0:
                key = self.throttler.common_name
                self._send(borrower.number, Revoked(borrower.epoch, key, waiter.slot, reason.value, detail))
            self._take_back(borrower, waiter.slot)

    def forget_unplaced(self, waiter: RemoteWaiter) -> None:
        """Remove a returned slot from the slots without a pod."""
        unplaced = self._unplaced.get(waiter.placed_at)
        if unplaced is not None:
            unplaced.pop(waiter, None)
            if not unplaced:
                del self._unplaced[waiter.placed_at]

    def take_back(self, waiter: RemoteWaiter) -> None:
        """Take a slot back that another object counts from now on."""
        self._take_back(waiter.borrower, waiter.slot)

    # --- within ---

    def _new_waiter(self, borrower: Borrower, waiting: WaitingRequest) -> RemoteWaiter:
        waiter = RemoteWaiter(self, borrower, waiting.request)
        waiter.pick_key = waiting.pick_key
        waiter.exempt = waiting.exempt
        waiter.level = waiting.level
        waiter.share = waiting.share
        waiter.charge = waiting.charge
        waiter.own_timeout_s = waiting.timeout_s
        waiter.own_deadline_s = waiting.deadline_s
        waiter.asked_s = self._now() - waiting.waited_s
        waiter.is_retry = bool(waiting.failed_at)
        failed = self.throttler.table.find_identity(waiting.failed_at) if waiting.failed_at else None
        waiter.avoided = None if failed is None else Lease(failed, 0.0)
        waiter.arrival_at_owner = waiting.number
        waiter.is_numbered = waiting.number != 0
        waiter.is_classified = True
        return waiter

    def _send_queued(self, waiter: RemoteWaiter) -> None:
        borrower = waiter.borrower
        key = self.throttler.common_name
        self._send(borrower.number, Queued(borrower.epoch, key, waiter.request_number, waiter.arrival))

    def _borrower(self, member: int) -> Borrower:
        borrower = self.borrowers.get(member)
        if borrower is None:
            borrower = self.borrowers[member] = Borrower(member)
        return borrower

    def _record_slot(self, borrower: Borrower, held: HeldSlot) -> None:
        """Record a slot that a borrower has registered, with an open lease if its pod is in the table."""
        former = self._lent.waiters.get(held.slot)
        if former is not None and former.borrower.number != borrower.number:
            return  # an inconsistent registration: another member has this slot
        if former is not None:  # the slot of a removed revision with the same name
            former.lending.take_back(former)
        table = self.throttler.table
        waiter = RemoteWaiter(self, borrower, 0)
        waiter.slot = held.slot
        waiter.placed_at = (held.identity, held.address)
        borrower.slots[held.slot] = self._lent.waiters[held.slot] = waiter
        tracker = table.find_identity(held.identity)
        if tracker is None or tracker.address != held.address:
            self._unplaced.setdefault(waiter.placed_at, {})[waiter] = None  # it was removed, or is not known yet
            return
        waiter.lease = self.throttler.adopt_slot(waiter, tracker)

    def _take_back(self, borrower: Borrower, slot: int) -> None:
        waiter = borrower.slots.pop(slot)
        del self._lent.waiters[slot]
        self.forget_unplaced(waiter)
        lease, waiter.lease = waiter.lease, None
        if lease is not None and not lease.released:
            self.throttler.release(lease, 0.0, False)

    def _cancel_waiters(self, borrower: Borrower, kept: Collection[int] = ()) -> None:
        for request in [request for request in borrower.waiters if request not in kept]:
            self.throttler.queue.cancel(borrower.waiters.pop(request))

    def _may_lend(self) -> bool:
        throttler = self.throttler
        table = throttler.table
        if throttler.queue.waiters.length != 0 or table.policy.wants_key:
            return False
        if throttler.spec.is_once:  # a used slot cannot be used again
            return False
        if throttler.spec.balancing.zone:  # idle slots of near pods would send requests to far ones
            return False
        return int(table.capacity - table.in_flight) >= LENDING_FREE_SHARE * int(table.capacity)
