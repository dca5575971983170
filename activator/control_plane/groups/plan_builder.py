"""A plan under construction: the programs of each member, and whether they fit the budget now and later."""

from __future__ import annotations

from activator.control_plane.groups.policy import Eviction, RevisionState, View
from activator.runtime.clock import NEVER


class PlanEntry:
    """The plan of one member."""

    __slots__ = ("eviction", "grant", "member", "reserved", "sleeps", "stopped_asleep")

    def __init__(self, member: RevisionState) -> None:
        self.member = member
        self.grant = member.granted
        self.reserved = 0  # programs that are granted as soon as the leaving ones have ended
        self.stopped_asleep = 0  # sleeping programs that the plan stops
        self.sleeps = member.asleep is not None  # true if its leaving programs are put to sleep
        self.eviction: Eviction | None = None

    @property
    def is_loading(self) -> bool:
        return self.member.ready == 0 and self.member.started > 0

    @property
    def has_queue(self) -> bool:
        return self.member.since_s < NEVER

    @property
    def is_idle(self) -> bool:
        return not self.member.busy and not self.has_queue and not self.is_loading

    def next_arrival_s(self, now_s: float) -> float:
        """Return when the request that it would serve next arrived; `now_s` if its queue is empty."""
        return min(self.member.since_s, now_s)

    def exceeds_scale(self) -> bool:
        """Return True if this plan's grant, together with leaving programs, exceeds `max_scale`."""
        member = self.member
        living = self.grant + member.leaving + member.stopping_asleep
        return self.grant > member.granted and 0 < member.most < living

    def leave_out_woken(self) -> None:
        """Stop no more sleeping programs than are left after this plan has woken some."""
        woken = max(self.grant - self.member.granted, 0)
        self.stopped_asleep = min(self.stopped_asleep, max(self.member.sleeping - woken, 0))

    def sleeping(self) -> int:
        """Return how many programs keep sleeping or will sleep; those that are granted again are woken first."""
        member = self.member
        woken = max(self.grant + self.reserved - member.granted, 0)
        lowered = max(member.granted - self.grant, 0)
        # A program that was granted and never started cannot be put to sleep.
        falling = min(lowered, member.ready) if self.sleeps else 0
        return max(member.sleeping - self.stopped_asleep - woken, 0) + member.falling_asleep + falling


class PlanBuilder:
    """Builds the plan of all members of a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.entries = [PlanEntry(member) for member in view.members]
        self._resources = range(len(view.budget))  # indexes

    def fits_now(self) -> bool:
        """Return True if the grants fit beside everything that still holds resources; reservations do not count."""
        view = self.view
        if view.exclusive:
            holders = sum(
                entry.grant > 0
                or entry.member.granted > 0
                or entry.member.leaving > 0
                or entry.member.stopping_asleep > 0
                for entry in self.entries
            )
            if holders + (1 if view.former and any(view.former) else 0) > 1:
                return False
        if any(entry.exceeds_scale() for entry in self.entries):
            return False
        if view.exclusive:
            return True
        for resource in self._resources:
            used = view.former[resource] if view.former else 0
            for entry in self.entries:
                member = entry.member
                running = max(entry.grant, member.granted) + member.leaving
                woken = max(entry.grant - member.granted, 0)
                used += running * member.needs[resource]
                if member.asleep is not None:
                    asleep = max(member.sleeping - woken, entry.stopped_asleep) + member.stopping_asleep
                    used += asleep * member.asleep[resource]
            if used > view.budget[resource]:
                return False
        return True

    def fits_soon(self) -> bool:
        """Return True if the grants and reservations fit after the leaving programs have ended."""
        view = self.view
        if view.exclusive:
            return sum(entry.grant > 0 or entry.reserved > 0 for entry in self.entries) <= 1
        for resource in self._resources:
            used = 0
            for entry in self.entries:
                member = entry.member
                used += (entry.grant + entry.reserved) * member.needs[resource]
                if member.asleep is not None:
                    used += entry.sleeping() * member.asleep[resource]
            if used > view.budget[resource]:
                return False
        return True
