"""A member: the revisions that it owns or borrows, its links to other members, and its current view.

Rules
  1. In each view a revision has one owner, and every member registers with each owner again: first its whole state,
     then `Registered`. Messages of a later view than the receiver's are processed after the receiver has adopted it.
  2. A new owner of a revision grants nothing until every other member of its view has registered, and every former
     member has been proven to have ended or had registered before. After that no member acts on a grant of a former
     owner, because a member only acts on grants of its own epoch.
  3. A member that remains the owner continues to grant: it keeps the record of each member's slots across views. A
     member that may have been left out of a view (`View.follows`) starts again as a new owner.
  4. If the limit is removed at the owner, it drops its record of the other members. If the limit is restored in the
     same view, the owner closes the links to those that had something, because a member that did not see the change
     would not register by itself.
  5. Messages in transit are lost with their link. The borrower registers again on the next link; the owner counts its
     slots until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from activator.data_plane.ownership.borrowing import Borrowing, Later
from activator.data_plane.ownership.lending import MEMBER_SLOT_BITS, NOTHING_YET, Lending, LentSlots
from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    MemberMessage,
    Queued,
    Recall,
    Refused,
    Register,
    Registered,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    Want,
)
from activator.data_plane.ownership.view import NO_MEMBER, View
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Now

EARLY_MAX: Final = 100_000  # messages of one member for a later view; more close the link
UNKNOWN_KEPT_S: Final = 5.0  # how long messages about an unknown revision, or one without a limit here, are kept


class Peer:
    """Another member, and the state of the link to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_known: bool = False  # a view has named it
        self.linked: bool = False
        self.begun: int = 0  # the latest epoch of its messages over this link
        self.registered: int = 0  # the latest epoch in which it has registered its whole state
        self.early: deque[MemberMessage] = deque()  # its messages for a later view


class BorrowedRevision:
    """A revision whose slots another member grants: `owner`, or NO_MEMBER."""

    def __init__(
        self,
        throttler: RevisionThrottler,
        owner: int,
        send: Callable[[int, MemberMessage], None],
        now: Now,
        later: Later,
        lent: LentSlots,
    ) -> None:
        self.owner = owner
        self.is_dropped: bool = False  # asks for no more slots, and is removed when none is in use
        self._send = send
        self.borrowing = Borrowing(throttler, self.send, now, later, lent)

    def send(self, message: MemberMessage) -> None:
        """Send a message to the owner."""
        self._send(self.owner, message)


class OwnedRevision:
    """A revision whose slots this member grants once it is `complete`."""

    def __init__(self, lending: Lending, since_epoch: int) -> None:
        self.lending = lending
        self.since_epoch = since_epoch  # epoch of the view in which this member became the owner
        self.complete: bool = False


class Member:
    """The membership of this data plane in a group.

    `send(member, message)` puts a message on the link to another member; `drop(member)` closes that link.

    `first_slot`: the number before the first slot; 0: derived from `number`, which must then be small and unique.
    """

    def __init__(
        self,
        number: int,
        send: Callable[[int, MemberMessage], None],
        drop: Callable[[int], None],
        now: Now,
        later: Later,
        first_slot: int = 0,
    ) -> None:
        self.number = number
        self.view = View(0, ())
        self.may_grant = True
        self.peers: dict[int, Peer] = {}  # by number
        self.owned: dict[str, OwnedRevision] = {}  # by `common_name`
        self.borrowed: dict[str, BorrowedRevision] = {}  # by `common_name`
        self._retired: list[Lending] = []  # revisions removed while their slots were in use
        self._removed_since_s: dict[str, float] = {}  # removed revisions, by the time of their removal
        self._unknown: dict[str, deque[tuple[int, MemberMessage]]] = {}  # messages about unknown revisions
        self._unknown_since_s: dict[str, float] = {}  # when the first of them arrived
        self._unknown_count: int = 0
        self._forgotten: dict[str, set[int]] = {}  # members with slots or requests when a limit was removed
        self._send = send
        self._drop = drop
        self._now = now
        self._later = later
        self._lent = LentSlots(first_slot or number << MEMBER_SLOT_BITS)

    # --- revisions ---

    def revision_set(self, throttler: RevisionThrottler) -> None:
        """Own or borrow a revision that has a limit now. Before the first view it has no owner (NO_MEMBER)."""
        key = throttler.common_name
        if key in self.owned or key in self.borrowed:
            return  # another setting of the revision has changed
        owner = self.view.owner_of(key)
        if owner == self.number:
            self._own(throttler)
            for member, message in self._pop_unknown(key):
                self._process(member, message)
            for number in self._forgotten.pop(key, set()):
                self.peers[number].registered = 0
                self._drop(number)  # it registers on its next link
            self._begin_where_registered()  # after these messages, which may contain registrations
        else:
            self._pop_unknown(key)  # messages to the former owner, which this member was; the present one gets them
            self._borrow(throttler, owner)
            self.borrowed[key].borrowing.begin(False)
            if owner != NO_MEMBER and self.peers[owner].linked:  # this member has registered without the revision
                self.borrowed[key].borrowing.register(self.view.epoch, True)

    def revision_dropped(self, key: str) -> None:
        """Remove the revision `key`, a `common_name`. The owner counts the slots of its requests until they end."""
        owned = self.owned.pop(key, None)
        if owned is not None and _is_in_use(owned.lending):
            self._retired.append(owned.lending)
        borrowed = self.borrowed.get(key)
        if borrowed is not None:
            borrowed.is_dropped = True
            borrowed.borrowing.return_idle()
            self._forget_if_returned(key, borrowed)
        self._pop_unknown(key)
        self._forgotten.pop(key, None)
        self._removed_since_s[key] = self._now()

    def limit_removed(self, key: str) -> None:
        """Stop sharing a revision whose limit was removed; every member serves its requests independently."""
        owned = self.owned.pop(key, None)
        borrowed = self.borrowed.pop(key, None)
        if owned is not None:
            throttler = owned.lending.throttler
            throttler.sharing.lending = None
            throttler.sharing.source = NOTHING_YET  # first, so that slots that come back are not granted to members
            self._forgotten[key] = owned.lending.members()
            owned.lending.take_back_all()
            throttler.sharing.source = None
            throttler.pump()
        elif borrowed is not None:
            throttler = borrowed.borrowing.throttler
            borrowed.borrowing.end()
            throttler.sharing.source = None
            throttler.pump()

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid grants of the revisions that this member owns; granted slots are not affected."""
        self.may_grant = allowed
        for owned in self.owned.values():
            owned.lending.allow_grants(allowed)

    def ownership(self) -> tuple[int, int]:
        """Return how many revisions this member owns, and for how many of them it cannot grant slots yet."""
        incomplete: int = 0
        for owned in self.owned.values():
            if not owned.complete:
                incomplete += 1
        return len(self.owned), incomplete

    # --- members and links ---

    def adopt(self, view: View) -> None:
        """Apply a view, unless it is older than the present one."""
        if view.epoch <= self.view.epoch:
            return
        self.view = view
        self._forgotten.clear()  # everything is registered again
        for member in view.members:
            if member.number != self.number and member.number not in self.peers:
                self.peers[member.number] = Peer(member.number)
        for number, peer in list(self.peers.items()):
            if view.may_live(number):
                peer.is_known = True
            elif peer.is_known:  # an unknown peer belongs to a later view
                self._forget_member(number)
        retired = self._retired
        self._retired = []
        for lending in retired:
            lending.take_back_all()  # the borrowers register with the next owner
            self._register_dropped(lending)
        for key in [*self.owned, *self.borrowed]:
            self._apply_owner(key)
        for peer in list(self.peers.values()):
            if peer.linked and view.has(peer.number):
                self._register_with(peer.number)
        for peer in list(self.peers.values()):
            self._process_early(peer)
        self._begin_where_registered()

    def linked(self, number: int) -> None:
        """Record a new link to a member, before any message; register over it if the member is in the view."""
        peer = self.peers.get(number)
        if peer is None:
            peer = self.peers[number] = Peer(number)
        assert not peer.linked, "a second link to one member"
        peer.linked = True
        if self.view.has(number):
            self._register_with(number)

    def unlinked(self, number: int) -> None:
        """Handle the end of the link to a member: messages in transit are lost, and both register on the next link."""
        peer = self.peers.get(number)
        if peer is None:
            return
        peer.linked = False
        peer.begun = peer.registered = 0
        peer.early.clear()
        self._forget_unknown(number)
        for numbers in self._forgotten.values():
            numbers.discard(number)
        for lending in self._lendings():
            lending.unlinked(number)
        for lending in self._retired:
            lending.ended(number)  # its messages about a removed revision may be lost, and no limit applies
        for borrowed in self.borrowed.values():
            if borrowed.owner == number:
                borrowed.borrowing.suspend()

    def receive(self, number: int, message: MemberMessage) -> None:
        """Handle a message of a member over its present link."""
        peer = self.peers.get(number)
        if peer is None or not peer.linked:
            return
        if message.epoch > self.view.epoch or peer.early:
            if len(peer.early) >= EARLY_MAX:
                self._drop(number)
                return
            peer.early.append(message)
        else:
            self._process(number, message)

    def tick(self) -> None:
        """Return slots that have been idle for too long, and expire kept messages; called periodically."""
        now_s = self._now()
        for key, borrowed in list(self.borrowed.items()):
            borrowed.borrowing.tick(now_s)
            self._forget_if_returned(key, borrowed)
        for key, since_s in list(self._unknown_since_s.items()):
            if now_s - since_s >= UNKNOWN_KEPT_S:
                for number in {number for number, message in self._pop_unknown(key) if _is_asking(message)}:
                    self._drop(number)  # it registers again on its next link
        for key, since_s in list(self._removed_since_s.items()):
            if now_s - since_s >= UNKNOWN_KEPT_S:
                del self._removed_since_s[key]
        self._retired = [lending for lending in self._retired if _is_in_use(lending)]

    # --- within ---

    def _process(self, number: int, message: MemberMessage) -> None:
        """Handle a message of the present view or an earlier one."""
        peer = self.peers[number]
        if isinstance(message, (Granted, Queued, Refused, Recall, Revoked)):
            if message.epoch == self.view.epoch:
                self._process_from_owner(number, message)
        elif message.key in self._unknown:
            self._keep_unknown(number, message)
        elif isinstance(message, Released):
            self._lent.released(number, message.slot, message.latency_s, message.succeeded)
        elif isinstance(message, Returned):
            for slot in message.slots:
                self._lent.released(number, slot, 0.0, False, True)
        elif isinstance(message, Registered):
            if message.epoch >= peer.begun:
                peer.begun = peer.registered = message.epoch
                for lending in self._lendings():
                    lending.registered(number, message.epoch)
                self._begin_where_registered()
        elif message.epoch >= peer.begun:
            peer.begun = message.epoch
            self._process_from_borrower(number, message)

    def _process_from_borrower(self, number: int, message: MemberMessage) -> None:
        """Handle a message about a revision that this member owns, or will own when it is known."""
        owned = self.owned.get(message.key)
        if owned is None:
            is_removed = message.key in self._removed_since_s
            if not is_removed and self.view.owner_of(message.key) == self.number:
                self._keep_unknown(number, message)
            return
        if message.epoch < owned.since_epoch:
            return
        lending = owned.lending
        if type(message) is Want:
            lending.want(number, message.epoch, message.waiting)
        elif type(message) is Cancel:
            lending.cancel(number, message.request)
        elif type(message) is TrialOver:
            lending.trial_over(number, message.slot)
        elif type(message) is Suspected:
            lending.suspected(number, message.slot)
        elif type(message) is Register:
            lending.register(number, message)

    def _process_from_owner(self, number: int, message: MemberMessage) -> None:
        """Handle a message about a revision that this member borrows."""
        borrowed = self.borrowed.get(message.key)
        if borrowed is None or borrowed.owner != number:
            if type(message) is Granted:  # the revision was removed
                self._send(number, Returned(message.epoch, message.key, (message.slot,)))
            return
        borrowing = borrowed.borrowing
        if type(message) is Granted:
            borrowing.granted(message)
        elif type(message) is Queued:
            borrowing.queued(message)
        elif type(message) is Refused:
            borrowing.refused(message)
        elif type(message) is Recall:
            borrowing.recall()
        elif type(message) is Revoked:
            borrowing.revoked(message)

    def _keep_unknown(self, number: int, message: MemberMessage) -> None:
        """Keep a message until its revision is known."""
        if self._unknown_count >= EARLY_MAX:
            self._drop(number)
            return
        self._unknown_count += 1
        self._unknown_since_s.setdefault(message.key, self._now())
        self._unknown.setdefault(message.key, deque()).append((number, message))

    def _pop_unknown(self, key: str) -> deque[tuple[int, MemberMessage]]:
        """Remove and return the messages about a revision that arrived before it was known."""
        messages = self._unknown.pop(key, None)
        if messages is None:
            return deque()
        del self._unknown_since_s[key]
        self._unknown_count -= len(messages)
        return messages

    def _forget_unknown(self, number: int) -> None:
        """Drop the kept messages of a member."""
        for key, messages in list(self._unknown.items()):
            kept = deque([message for message in messages if message[0] != number])
            self._unknown_count -= len(messages) - len(kept)
            if kept:
                self._unknown[key] = kept
            else:
                del self._unknown[key]
                del self._unknown_since_s[key]

    def _process_early(self, peer: Peer) -> None:
        while peer.early and peer.early[0].epoch <= self.view.epoch:
            self._process(peer.number, peer.early.popleft())

    def _forget_member(self, number: int) -> None:
        for lending in self._lendings():
            lending.ended(number)
        self._forget_unknown(number)
        del self.peers[number]

    def _apply_owner(self, key: str) -> None:
        """Own or borrow a revision, as the present view requires; continue or restart with the same owner."""
        owner = self.view.owner_of(key)
        owned = self.owned.get(key)
        if owned is None:
            borrowed = self.borrowed[key]
            borrowed.borrowing.suspend()
            if owner == self.number:
                del self.borrowed[key]
                if not borrowed.is_dropped:
                    self._own(borrowed.borrowing.throttler)
            else:
                borrowed.owner = owner
        elif owner != self.number:
            del self.owned[key]
            throttler = owned.lending.throttler
            throttler.sharing.lending = None
            self._borrow(throttler, owner)  # first, so that slots that come back now are granted to no request
            owned.lending.take_back_all()
            self.borrowed[key].borrowing.begin(owned.complete)
        elif not self.view.follows:
            self._restart_ownership(owned)

    def _register_dropped(self, lending: Lending) -> None:
        """Borrow the slots that are in use here of a removed revision that this member owned.

        The next owner may not have removed the revision yet, and must count these slots.
        """
        throttler = lending.throttler
        if not throttler.leases:
            return
        key = throttler.common_name
        owner = self.view.owner_of(key)
        if owner == self.number:
            self._retired.append(lending)
        else:
            throttler.sharing.lending = None
            self._borrow(throttler, owner)
            borrowed = self.borrowed[key]
            borrowed.is_dropped = True
            borrowed.borrowing.begin(False)

    def _restart_ownership(self, owned: OwnedRevision) -> None:
        """Start again as a new owner; the other members register their slots again."""
        throttler = owned.lending.throttler
        throttler.sharing.source = NOTHING_YET  # first, so that slots that come back now are granted to no request
        owned.lending.take_back_all()
        if owned.complete:
            for waiter in throttler.queue.waiters.by_arrival():
                waiter.arrival_at_owner = waiter.arrival
        self._own(throttler)

    def _forget_if_returned(self, key: str, borrowed: BorrowedRevision) -> None:
        if borrowed.is_dropped and not borrowed.borrowing.in_use:
            del self.borrowed[key]

    def _own(self, throttler: RevisionThrottler) -> None:
        """Begin to own a revision in the present view."""
        lending = Lending(throttler, self._lent, self._send, self._now)
        lending.allow_grants(self.may_grant)
        throttler.sharing.source = NOTHING_YET
        throttler.sharing.lending = lending
        self.owned[throttler.common_name] = OwnedRevision(lending, self.view.epoch)

    def _borrow(self, throttler: RevisionThrottler, owner: int) -> None:
        borrowed = BorrowedRevision(throttler, owner, self._send, self._now, self._later, self._lent)
        throttler.sharing.source = borrowed.borrowing
        self.borrowed[throttler.common_name] = borrowed

    def _register_with(self, number: int) -> None:
        """Register all state of borrowed revisions with a member."""
        epoch = self.view.epoch
        for borrowed in self.borrowed.values():
            if borrowed.owner == number:
                borrowed.borrowing.register(epoch)
        self._send(number, Registered(epoch, ""))

    def _begin_where_registered(self) -> None:
        """Begin to grant slots of the owned revisions for which every other member has registered."""
        for owned in self.owned.values():
            if not owned.complete:
                self._begin_if_registered(owned)

    def _begin_if_registered(self, owned: OwnedRevision) -> None:
        """Begin to grant if no member can still act on a grant of a former owner."""
        numbers = self.view.members_to_register(self.number, self.peers)
        if numbers is None:
            return
        for number in numbers:
            peer = self.peers.get(number)
            if peer is None or peer.registered < owned.since_epoch:
                return
        if self.view.has(self.number):
            owned.complete = True
            owned.lending.begin()

    def _lendings(self) -> list[Lending]:
        return [*[owned.lending for owned in self.owned.values()], *self._retired]


def _is_in_use(lending: Lending) -> bool:
    """Return True if requests here or at other members have slots of this revision."""
    return lending.is_lending() or bool(lending.throttler.leases)


def _is_asking(message: MemberMessage) -> bool:
    """Return True if the sender waits for a reply to the message."""
    return type(message) is Want or (type(message) is Register and bool(message.waiting))
