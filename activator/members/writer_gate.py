"""From the views of the group to who writes for which object (`messages/writers.py`).

Rules
  1. Writers of a view are its replicas that say so: they have read the cluster once, and do not drain.
  2. A writer that is not in the next view and not proven to have ended stops by itself `settle_s` after it last heard a
     majority (`Group.may_write`). What it owned waits for as long once more. Where the view before is not known, all
     waits.
  3. Nothing here waits or does I/O. DOUBTS_MAX views that lost somebody are remembered; if there are more, all waits.
"""

from __future__ import annotations

from typing import Final

from activator.members.group import NO_VIEW
from activator.members.messages import GroupView
from activator.members.numbers import follows_on, seat_of
from activator.messages.writers import Doubt, Places, Writers
from activator.runtime.clock import Now

DOUBTS_MAX: Final = 8


class WriterGate:
    """Of the replica with this seat."""

    def __init__(self, seat: int, settle_s: float, now: Now) -> None:
        self._seat = seat
        self._settle_s = settle_s
        self._now = now
        self._effective = NO_VIEW
        self._doubts: list[tuple[float, Doubt]] = []  # until when
        self._all_wait_s = float("-inf")  # until then

    def judge(self, effective: GroupView, accepted: GroupView, may_write: bool) -> Writers:
        """Who writes now. To be called at each change of a view, and often."""
        now_s = self._now()
        if effective.epoch != self._effective.epoch:
            self._changed(effective, now_s)
        self._doubts = [one for one in self._doubts if one[0] > now_s]
        if not effective.epoch:
            return Writers(self._seat, is_allowed=False)
        views: tuple[Places, ...] = (writers_of(effective),)
        if accepted.epoch != effective.epoch:
            views = (*views, writers_of(accepted))
        return Writers(
            self._seat,
            views,
            tuple([doubt for _, doubt in self._doubts]),
            may_write and now_s >= self._all_wait_s,
            frozenset([seat_of(replica.number) for replica in effective.replicas]).union(
                map(seat_of, effective.unproven)
            ),
        )

    def _changed(self, effective: GroupView, now_s: float) -> None:
        former, self._effective = self._effective, effective
        if not effective.unproven:
            return
        until_s = now_s + self._settle_s
        if not former.epoch or not follows_on(former.epoch, effective.epoch) or len(self._doubts) >= DOUBTS_MAX:
            self._all_wait_s = until_s
            return
        silent = {one.number for one in former.replicas if one.writes} & set(effective.unproven)
        if silent:
            doubt = Doubt(writers_of(former), frozenset(seat_of(number) for number in silent))
            self._doubts.append((until_s, doubt))


def writers_of(view: GroupView) -> Places:
    return tuple([seat_of(replica.number) for replica in view.replicas if replica.writes])
