"""The borrower's side of a revision that another member owns: its lent slots, and its waiting requests.

Rules
  1. A slot is *in use* by a request, or *idle*. It is idle only while the owner lends, no request waits here, and its
     pod is ready; otherwise it is returned at once. A slot that is idle for LENT_IDLE_S is returned, too.
  2. Requests wait in the throttler's own queue, which applies their time limits; the owner decides which is next.
  3. A slot granted to a request that no longer waits becomes idle or is returned. One of a pod that is not known or not
     ready here yet is *early*: its request keeps it for EARLY_S, so that no later request of the queue gets it, and is
     served if the pod is ready then. Otherwise the slot is returned, and the request waits at its position again.
  4. Messages of the owner from an earlier epoch are dropped (member.py), and the whole state is registered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from activator.data_plane.ownership.lending import LentSlots
from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    HeldSlot,
    MemberMessage,
    Queued,
    Refused,
    Register,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    WaitingRequest,
    Want,
)
from activator.data_plane.throttle.interfaces import SlotSource
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.clock import Now
from activator.runtime.reasons import Reason
from lb.tracker import READY, RECOVERING, PodTracker

LENT_IDLE_S: Final = 1.0  # an unused slot is returned after this time
EARLY_S: Final = 0.02  # how much earlier than this member the owner may know that a pod is ready
EARLY_STEP_S: Final = 0.005  # interval of the checks of an early slot

_REASONS: Final = {reason.value: reason for reason in Reason}

Later = Callable[[float, Callable[[], None]], object]


class IdleSlot:
    """An idle slot, with the generation of its pod at that time."""

    def __init__(self, slot: int, tracker: PodTracker, idle_since_s: float) -> None:
        self.slot = slot
        self.tracker = tracker
        self.generation: int = tracker.generation
        self.idle_since_s = idle_since_s

    def is_usable(self, now_s: float) -> bool:
        """Return True if the pod is the same as before, is ready, and is not suspected."""
        tracker = self.tracker
        is_same = tracker.generation == self.generation
        return is_same and tracker.state == READY and tracker.suspect_until_s <= now_s


class Borrowing(SlotSource):
    """The borrowed slots of one revision, while another member owns it.

    `send` sends to that owner; nothing is sent before `register`. `later(delay_s, call)` calls after a delay.
    """

    def __init__(
        self,
        throttler: RevisionThrottler,
        send: Callable[[MemberMessage], None],
        now: Now,
        later: Later,
        lent: LentSlots,
    ) -> None:
        self.throttler = throttler
        self.key = throttler.common_name
        self.epoch: int = 0  # 0: not registered
        self.lends: bool = False  # the owner lets this member keep its slots
        self.idle: deque[IdleSlot] = deque()  # the longest idle first
        self.in_use: dict[Lease, int] = {}  # the numbers of their slots
        self.wanted: dict[int, Waiter] = {}  # waiting requests by `arrival`, which identifies them to the owner
        self.early: dict[Waiter, Granted] = {}  # grants that wait for their pods
        self._slot: int = 0  # number for the lease that is about to be opened
        self._send = send
        self._now = now
        self._later = later
        self._lent = lent

    # --- registration ---

    def begin(self, numbered: bool) -> None:
        """Borrow the throttler's leases and waiters from now on.

        `numbered`: the arrivals of waiters are positions in the owner's queue, because this member was the owner.
        """
        for lease in self.throttler.leases:
            self.in_use[lease] = self._lent.new_number()
        for waiter in self.throttler.queue.waiters.by_arrival():
            if numbered:
                waiter.arrival_at_owner = waiter.arrival
            self.wanted[waiter.arrival] = waiter

    def register(self, epoch: int, even_nothing: bool = False) -> None:
        """Send the whole state under a new epoch, in which nothing is lent yet; unnamed slots are given up.

        `even_nothing`: send an empty state, too; the owner may have one from before the limit was removed.
        """
        self.epoch = epoch
        self.lends = False
        self.idle.clear()
        slots = tuple([HeldSlot(slot, lease.identity, lease.address) for lease, slot in self.in_use.items()])
        waiting = tuple([self._description(waiter) for waiter in self.wanted.values()])
        if slots or waiting or even_nothing:
            self._send(Register(epoch, self.key, slots, waiting))

    def suspend(self) -> None:
        """Stop sending, because the owner is unreachable or has changed; the next registration has the new state."""
        self.epoch = 0
        self.early.clear()

    def return_idle(self) -> None:
        """Return all idle slots now."""
        if self.idle:
            idle, self.idle = self.idle, deque()
            if self.epoch:
                self._send(Returned(self.epoch, self.key, tuple([idle_slot.slot for idle_slot in idle])))

    def end(self) -> None:
        """End borrowing, because the limit was removed; requests in progress continue without a slot."""
        idle, early = [idle_slot.slot for idle_slot in self.idle], [granted.slot for granted in self.early.values()]
        slots = (*idle, *early, *self.in_use.values())
        if slots and self.epoch:
            self._send(Returned(self.epoch, self.key, slots))
        self.idle.clear()
        self.early.clear()
        self.epoch = 0
        self.wanted.clear()
        self.in_use.clear()

    # --- messages of the owner ---

    def queued(self, message: Queued) -> None:
        """Record that a request waits at this position of the owner's queue; refuse it if it does not wait."""
        waiter = self.wanted.get(message.request)
        if waiter is None:
            return
        waiter.arrival_at_owner = message.number
        if waiter.never_waits:
            self._refuse_impatient(waiter)
        elif len(self.wanted) == 1:
            self.throttler.queue.report_queue_formed()

    def granted(self, message: Granted) -> None:
        self._set_lends(message.lends)
        waiter = self.wanted.get(message.request)
        tracker = self._ready_pod(message)
        if waiter is None:
            if tracker is None:
                self._return_slot(message.slot)
            else:
                self._keep_or_return(message.slot, tracker)
            return
        waiter.arrival_at_owner = message.number
        if tracker is None:
            self.early[waiter] = message
            self._schedule_check(waiter, message, self._now() + EARLY_S)
        else:
            self._grant_to(waiter, message, tracker)

    def refused(self, message: Refused) -> None:
        waiter = self.wanted.pop(message.request, None)
        if waiter is not None:
            self.throttler.queue.refuse_for_owner(waiter, _REASONS.get(message.reason, Reason.INTERNAL), message.detail)

    def recall(self) -> None:
        self._set_lends(False)

    def revoked(self, message: Revoked) -> None:
        for lease, slot in self.in_use.items():
            if slot == message.slot:
                del self.in_use[lease]
                self.throttler.revoke(lease, _REASONS.get(message.reason, Reason.INTERNAL), message.detail)
                return
        for waiter, granted in self.early.items():
            if granted.slot == message.slot:
                del self.early[waiter]
                self._want_again(waiter, granted.identity)
                return
        self.idle = deque([idle_slot for idle_slot in self.idle if idle_slot.slot != message.slot])

    # --- calls of the throttler ---

    def take(self, waiter: Waiter) -> PodTracker | None:
        if waiter.exempt:
            return None
        now_s = self._now()
        while self.idle:
            idle_slot = self.idle.pop()
            if idle_slot.is_usable(now_s):
                self._slot = idle_slot.slot
                return idle_slot.tracker
            self._return_slot(idle_slot.slot)
        return None

    def opened(self, lease: Lease) -> None:
        self.in_use[lease] = self._slot

    def joined(self, waiter: Waiter) -> None:
        self.wanted[waiter.arrival] = waiter
        self.return_idle()
        if self.epoch:
            self._send(Want(self.epoch, self.key, self._description(waiter)))
        elif waiter.never_waits:
            self._later(0.0, lambda: self._refuse_impatient(waiter))

    def _refuse_impatient(self, waiter: Waiter) -> None:
        """Reject a waiter that does not wait, unless it has left the queue."""
        if self.wanted.get(waiter.arrival) is waiter:
            self.cancelled(waiter)
            self.throttler.queue.refuse_for_owner(waiter, Reason.NOT_AVAILABLE, "")

    def cancelled(self, waiter: Waiter) -> None:
        if self.wanted.get(waiter.arrival) is waiter:
            del self.wanted[waiter.arrival]
            early = self.early.pop(waiter, None)
            if early is not None:
                self._return_slot(early.slot)
            elif self.epoch:
                self._send(Cancel(self.epoch, self.key, waiter.arrival))

    def queue_cleared(self) -> None:
        for waiter in list(self.wanted.values()):
            self.cancelled(waiter)

    def closed(self, lease: Lease, latency_s: float, succeeded: bool) -> None:
        slot = self.in_use.pop(lease, 0)
        if slot == 0 or self.epoch == 0:
            return  # not borrowed any more, or not registered: the next registration does not name the slot
        tracker = lease.tracker
        if tracker.generation == lease.generation and tracker.state == READY and self._may_keep():
            self.idle.append(IdleSlot(slot, tracker, self._now()))
        else:
            self._send(Released(self.epoch, self.key, slot, latency_s, succeeded))

    def trial_over(self, lease: Lease) -> None:
        slot = self.in_use.get(lease, 0)
        if slot and self.epoch:
            self._send(TrialOver(self.epoch, self.key, slot))

    def suspected(self, lease: Lease) -> None:
        slot = self.in_use.get(lease, 0)
        if slot and self.epoch:
            self._send(Suspected(self.epoch, self.key, slot))

    def table_replaced(self) -> None:
        self.return_idle()

    def tick(self, now_s: float) -> None:
        """Return slots that have been idle for too long; called periodically."""
        until_s = now_s - LENT_IDLE_S
        while self.idle and (self.idle[0].idle_since_s <= until_s or not self.idle[0].is_usable(now_s)):
            self._return_slot(self.idle.popleft().slot)

    # --- within ---

    def _may_keep(self) -> bool:
        """Return True if a slot without a request may stay idle here."""
        return self.lends and not self.wanted

    def _keep_or_return(self, slot: int, tracker: PodTracker) -> None:
        if self._may_keep():
            self.idle.append(IdleSlot(slot, tracker, self._now()))
        else:
            self._return_slot(slot)

    def _set_lends(self, lends: bool) -> None:
        """Record whether the owner lends; if it does not, return all idle slots."""
        self.lends = lends
        if not lends:
            self.return_idle()

    def _return_slot(self, slot: int) -> None:
        if self.epoch:
            self._send(Returned(self.epoch, self.key, (slot,)))

    def _ready_pod(self, message: Granted) -> PodTracker | None:
        """Return the pod of a granted slot; None if it is not known or not ready here."""
        tracker = self.throttler.table.find_identity(message.identity)
        if tracker is None or tracker.address != message.address or tracker.state not in {READY, RECOVERING}:
            return None
        return tracker

    def _grant_to(self, waiter: Waiter, message: Granted, tracker: PodTracker) -> None:
        del self.wanted[waiter.arrival]
        self._slot = message.slot
        self.throttler.grant_lent(self, waiter, tracker)

    def _schedule_check(self, waiter: Waiter, message: Granted, until_s: float) -> None:
        """Serve the waiter when its pod is ready, or give the slot back at `until_s`."""

        def check() -> None:
            if self.early.get(waiter) is not message:
                return
            tracker = self._ready_pod(message)
            if tracker is None and self._now() < until_s:
                self._schedule_check(waiter, message, until_s)
                return
            del self.early[waiter]
            if tracker is None:
                self._return_slot(message.slot)
                self._want_again(waiter, message.identity)
            else:
                self._grant_to(waiter, message, tracker)

        self._later(EARLY_STEP_S, check)

    def _want_again(self, waiter: Waiter, failed_at: str) -> None:
        """Ask for another slot at the same position, at any pod but `failed_at` if possible."""
        description = self._description(waiter)
        description.failed_at = failed_at
        self._send(Want(self.epoch, self.key, description))

    def _description(self, waiter: Waiter) -> WaitingRequest:
        """Return the description of a waiter for the owner."""
        avoided = waiter.avoided
        return WaitingRequest(
            waiter.arrival,
            waiter.arrival_at_owner,
            max(self._now() - waiter.asked_s, 0.0),
            int(waiter.pick_key),
            waiter.exempt,
            waiter.level,
            waiter.share,
            waiter.charge,
            waiter.own_timeout_s,
            waiter.own_deadline_s,
            "" if avoided is None else avoided.identity,
        )
