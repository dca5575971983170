"""The readiness of a group as one replica sees it: does it grant slots, and if not, why."""

from __future__ import annotations

from typing import Final

from activator.members.contacts import Contact, Contacts, GroupRules
from activator.members.messages import GroupView
from activator.members.numbers import seat_of
from activator.runtime.clock import Now

STUCK_S: Final = 5.0  # how long members may disagree on the view before this replica reports that it is not ready
HELD_S: Final = 5.0  # a group that grants no slots for so long is not ready


class Readiness:
    """The times at which the group last agreed on a view, and last could grant slots."""

    def __init__(self, contacts: Contacts, rules: GroupRules, now: Now) -> None:
        self.own = (0, 0)  # revisions that the data planes here own, and those whose slots cannot be granted yet
        self._contacts = contacts
        self._rules = rules
        self._now = now
        self._agreed_s = now()  # when all reachable members were last in one view
        self._granted_s = now()  # when at least one reachable member could last grant slots

    def update_times(self, accepted: GroupView, effective: GroupView, may_grant: bool) -> None:
        """Update the times. To be called often."""
        now_s = self._now()
        if accepted.epoch == effective.epoch and not self._apart(effective):
            self._agreed_s = now_s
        if self._may_any_grant(effective, may_grant):
            self._granted_s = now_s

    def waiting_for(self, effective: GroupView, may_grant: bool) -> str:
        """Return why no slots are granted, in a few words; empty if they are."""
        contacts = self._contacts
        if not effective.epoch:
            reached, possible = len(contacts.reached()), len(contacts.possible())
            return f"the group has no view yet: {reached} of {possible} members reached"
        if not may_grant:
            return "no majority of the group is reached"
        if self._now() - self._agreed_s > STUCK_S + self._rules.silence_s:
            apart = [one.seat for one in self._apart(effective)]
            return f"no view that all reached members have accepted for {STUCK_S:g} s: seats {apart} are in another one"
        if self._now() - self._granted_s > HELD_S:
            seats = sorted({seat_of(number) for number in contacts.unproven(effective)})
            return (
                f"no slots are granted: members at seats {seats} are unreachable and not proven to have ended; restore "
                "the connection or, if they have certainly ended, run `activator member-ended SEAT` at seat "
                f"{min(contacts.reached())}"
            )
        return ""

    def _apart(self, effective: GroupView) -> list[Contact]:
        """Return the reachable contacts that take part and are in another view than this replica."""
        return [
            one
            for one in self._contacts.reachable()
            if one.takes_part and (one.accepted_epoch != effective.epoch or not one.is_in(effective))
        ]

    def _may_any_grant(self, effective: GroupView, may_grant: bool) -> bool:
        """Return False if all revisions of the reachable members and of this one wait for an unreachable member."""
        if not effective.epoch or not may_grant:
            return True  # `waiting_for` has these reasons
        counts = [self.own, *[(one.owned, one.held) for one in self._contacts.reachable()]]
        owned = sum(owned for owned, _ in counts)
        return owned == 0 or sum(held for _, held in counts) < owned
