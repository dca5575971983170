"""The members at one time (a view), and the owner of each revision.

Rules
  1. Views are numbered (*epoch*) by the authority on membership; all members see the same members under one number.
  2. A revision belongs to the member with the highest score (rendezvous hashing, Thaler and Ravishankar 1998): when a
     member joins or leaves, only the revisions that it gets or had are moved.
  3. Scores are computed from a member's *place*, not from its number: a worker that replaces another one takes over
     its revisions and no others.
  4. A draining member owns nothing from the first view that states it. It continues as a borrower, and the next owner
     grants as soon as all members have registered. If all members drain, ownership stays as it would be otherwise.
  5. A view may have no members, if all that do not drain have ended; a member that receives it is not in it. Then
     revisions have no owner (NO_MEMBER), and their requests wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from activator.data_plane.ownership.names import MemberName
from activator.runtime.rendezvous import hash_of, score

NO_MEMBER: Final = 0  # no member has this number
WORKER_BITS: Final = 12  # bits of a group member's number; above them stands the number of its replica


@final
class View:
    """The members at one time.

    `unproven`: numbers of members of an earlier view that are not known to have ended, and may still use slots.
    `unproven_replicas`: the same for all members of a replica. `follows`: no other view can have existed since this
    member's last one, or it could not have had an effect on this member's revisions (`on_silence: strict`). If False,
    other members may have granted slots of its revisions. `is_next`: no other view can have existed in between.
    """

    def __init__(
        self,
        epoch: int,
        members: tuple[MemberName, ...],
        unproven: frozenset[int] = frozenset(),
        unproven_replicas: frozenset[int] = frozenset(),
        follows: bool = True,
        is_next: bool = True,
    ) -> None:
        self.epoch = epoch
        self.members = members
        self.unproven = unproven
        self.unproven_replicas = unproven_replicas
        self.follows = follows
        self.is_next = is_next

    def may_live(self, number: int) -> bool:
        """Return True if the member is in the view, or not known to have ended."""
        return self.has(number) or number in self.unproven or number >> WORKER_BITS in self.unproven_replicas

    def members_to_register(self, number: int, known: Iterable[int]) -> set[int] | None:
        """Return the members whose state the new owner `number` needs. `known`: all members that it has met.

        Return None if it knows no member of a replica that may live.
        """
        numbers = {member.number for member in self.members if member.number != number} | self.unproven
        for replica in self.unproven_replicas:
            workers = [member for member in known if member >> WORKER_BITS == replica]
            if not workers:
                return None
            numbers.update(workers)
        return numbers

    def owner_of(self, key: str) -> int:
        """Return the number of the member that owns this revision, or NO_MEMBER."""
        hashed = hash_of(key)
        owners = [member for member in self.members if not member.drains] or self.members
        scores = [(score(hashed, member.place), member.number) for member in owners]
        return max(scores)[1] if scores else NO_MEMBER

    def has(self, number: int) -> bool:
        """Return True if this member is in the view."""
        return any(member.number == number for member in self.members)
