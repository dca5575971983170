"""The members at one time, and which of them owns a revision.

Rules
  1. Views are numbered by whoever decides on membership (*epoch*); all members see the same members under one number.
  2. A revision belongs to the member with the highest score (rendezvous hashing, Thaler and Ravishankar 1998): where a
     member comes or goes, only the revisions move that it gets or had.
  3. Scores are of a member's *place*, not of its number: a worker that takes the place of another one takes over its
     revisions and no others.
  4. A member that drains owns nothing, from the first view that says so: it goes on as a borrower, and the next owner
     grants as soon as all have registered. Where all members drain, they own what they would own otherwise.
  5. A view may have no members, where all that do not leave have ended; whoever is told of it is not in it. Then NOBODY
     owns a revision, and its requests wait.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from activator.runtime.rendezvous import hash_of, score

NOBODY: Final = 0  # no member has this number
WORKER_BITS: Final = 12  # of the number of a member of a group: the number of its replica stands above


class MemberName(NamedTuple):
    """`number` is given once, to one life of a process; `place` is its index, 0 … n - 1. `owns`: it does not drain."""

    number: int
    place: int
    owns: bool = True


@final
class View:
    """`unproven`: numbers of members that were there in an earlier view, and of which it is not certain that they have
    ended: they may still use slots. `unproven_replicas`: the same of all members of a replica. `follows`: nobody can
    have been in a view since the last one of this member; else others may have granted what it owned.
    """

    def __init__(
        self,
        epoch: int,
        members: tuple[MemberName, ...],
        unproven: frozenset[int] = frozenset(),
        unproven_replicas: frozenset[int] = frozenset(),
        follows: bool = True,
    ) -> None:
        self.epoch = epoch
        self.members = members
        self.unproven = unproven
        self.unproven_replicas = unproven_replicas
        self.follows = follows

    def may_live(self, number: int) -> bool:
        """It is here, or not known to have ended."""
        return self.has(number) or number in self.unproven or number >> WORKER_BITS in self.unproven_replicas

    def owner_of(self, key: str) -> int:
        """The number of the member that owns this revision, or NOBODY."""
        hashed = hash_of(key)
        owners = [member for member in self.members if member.owns] or self.members
        scores = [(score(hashed, member.place), member.number) for member in owners]
        return max(scores)[1] if scores else NOBODY

    def has(self, number: int) -> bool:
        """Whether this member is in it."""
        return any(member.number == number for member in self.members)
