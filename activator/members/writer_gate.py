"""The gate from the views of the group to the writer of each object (`messages/writers.py`).

Rules
  1. The writers of a view are its replicas with `writes`: they have read the cluster once, and do not drain.
  2. A writer that is not in the next view and is not proven to have ended stops by itself, `settle_s` after its last
     contact with a majority (`Group.may_write`). Its objects wait for the same time. All objects wait if the former
     view is not known, or if this replica could not write for so long before the change: the others may have formed
     views in the meantime, also with earlier epochs if all who knew the last one have been started again.
  3. Nothing here waits or does I/O. At most DOUBTS_MAX views that lost a writer are remembered; if there are more, all
     objects wait.
"""

from __future__ import annotations

from typing import Final

from activator.members.group import NO_VIEW
from activator.members.messages import GroupView
from activator.members.numbers import follows_on, seat_of
from activator.messages.writers import Places, UnconfirmedWriters, Writers
from activator.runtime.clock import Now

DOUBTS_MAX: Final = 8


class WriterGate:
    """The gate of the replica with this seat."""

    def __init__(self, seat: int, settle_s: float, now: Now) -> None:
        self._seat = seat
        self._settle_s = settle_s
        self._now = now
        self._effective = NO_VIEW
        self._doubts: list[tuple[float, UnconfirmedWriters]] = []  # each with the time at which it expires
        self._all_wait_s = float("-inf")  # until this time, all objects wait
        self._could_write_s = float("-inf")  # when this replica could last write

    def present_writers(self, effective: GroupView, accepted: GroupView, may_write: bool) -> Writers:
        """Record the present views, and return their writers. To be called at each change of a view, and often."""
        now_s = self._now()
        if effective.epoch != self._effective.epoch:
            self._record_doubts(effective, now_s)
        if may_write:
            self._could_write_s = now_s
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

    def _record_doubts(self, effective: GroupView, now_s: float) -> None:
        """Record which former writers may still write after a change of the view."""
        former, self._effective = self._effective, effective
        if not effective.unproven:
            return
        until_s = now_s + self._settle_s
        is_known = former.epoch and follows_on(former.epoch, effective.epoch)
        was_cut_off = now_s - self._could_write_s > self._settle_s
        if not is_known or was_cut_off or len(self._doubts) >= DOUBTS_MAX:
            self._all_wait_s = until_s
            return
        silent = {one.number for one in former.replicas if one.writes} & set(effective.unproven)
        if silent:
            doubt = UnconfirmedWriters(writers_of(former), frozenset(seat_of(number) for number in silent))
            self._doubts.append((until_s, doubt))


def writers_of(view: GroupView) -> Places:
    """Return the seats of the writers of a view."""
    return tuple([seat_of(replica.number) for replica in view.replicas if replica.writes])
