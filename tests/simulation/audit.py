"""What must be left of one member when nothing happens any more: nothing that no request uses or wants.

It looks into the members, since what is kept for ever is seen nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from activator.data_plane.ownership.lending import Lending
from activator.data_plane.ownership.member import BorrowedRevision, Member
from activator.data_plane.throttle.revision import RevisionThrottler
from tests.simulation.rules import expect


def check_left(member: Member, throttlers: Mapping[str, RevisionThrottler]) -> None:
    """`throttlers`: its revisions, all of which have a limit."""
    names = {throttler.common_name for throttler in throttlers.values()}
    expect(not member.owned.keys() & member.borrowed.keys(), "a revision is owned and borrowed")
    expect(member.owned.keys() | member.borrowed.keys() == names, f"{names} are here, and {member.borrowed.keys()}")
    others = {one.number for one in member.view.members} - {member.number}
    expect(member.peers.keys() == others, f"{others} are there, and {list(member.peers)} are known")
    for peer in member.peers.values():
        is_heard = peer.linked and not peer.early and peer.registered == member.view.epoch
        expect(is_heard, f"member {peer.number} is not heard")
    kept = (member._unknown, member._unknown_since_s, member._unknown_count, member._removed_since_s, member._retired)
    expect(not any(kept), f"kept for ever: {kept}")
    expect(not member._lent.waiters, "slots are away for ever")
    for owned in member.owned.values():
        _check_owned(member, owned.lending)
    for one in member.borrowed.values():
        _check_borrowed(member, one)


def _check_owned(member: Member, lending: Lending) -> None:
    throttler = lending.throttler
    expect(
        throttler.sharing.source is None and throttler.sharing.lending is lending, "an owner does not grant by itself"
    )
    expect(lending.borrowers.keys() <= member.peers.keys(), "a borrower is known that has ended")
    expect(not lending._unplaced, "slots of unknown pods are kept for ever")
    for borrower in lending.borrowers.values():
        expect(not borrower.slots and not borrower.waiters, "a borrower has something for ever")


def _check_borrowed(member: Member, one: BorrowedRevision) -> None:
    borrowing = one.borrowing
    expect(not one.is_dropped, "a revision that was dropped is kept for ever")
    expect(
        borrowing.throttler.sharing.source is borrowing and borrowing.throttler.sharing.lending is None,
        "it grants by itself",
    )
    expect(one.owner == member.view.owner_of(borrowing.key), "it asks somebody who is not the owner")
    expect(borrowing.epoch == member.view.epoch, "it has not registered")
    expect(not (borrowing.idle or borrowing.in_use or borrowing.wanted), "something is borrowed for ever")
