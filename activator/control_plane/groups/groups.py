"""All groups: the group of each revision, and changes by a reload.

A revision without a group gets the programs that its load needs. One that moves from one group to another starts again
there: its programs drain, and count in the old group until they have ended. If the old group no longer exists, or the
revision was in none, its programs count in the new group at once. A revision that leaves all groups while it is evicted
stays unloaded until a request arrives, as it would have in its group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from activator.control_plane.groups.group import BudgetGroup, MemberState, Programs
from activator.control_plane.groups.rule import GroupRule, MemberRule
from activator.messages import Load
from activator.runtime.clock import Now

NO_GROUP: Final = ""


class HandedUse(msgspec.Struct, frozen=True, array_like=True):
    """The last use of a revision in a group, and an operator's request for it, for another process of the activator."""

    key: str
    used_s: float
    asked_s: float


class Groups:
    """All groups.

    `programs` runs the programs. `move(key, group, restart)` sets the group in which a revision's programs count,
    including the present ones, unless the revision is to `restart` there.
    """

    def __init__(self, programs: Programs, move: Callable[[str, str, bool], None], now: Now) -> None:
        self._programs = programs
        self._move = move
        self._now = now
        self.groups: dict[str, BudgetGroup] = {}
        self._group_by_key: dict[str, BudgetGroup] = {}
        self._wanted: dict[str, int] = {}  # by revision, also without a group: programs that its load calls for
        self._kept: dict[str, int] = {}  # by revision, also without a group: those without a request
        self._restored: dict[str, HandedUse] = {}  # from a former process, until the revision is in its group
        self._evicted: set[str] = set()  # revisions without a group that start nothing until a request arrives
        # Groups that are no longer configured, while programs are left that were started in them.
        self._dissolved: dict[str, BudgetGroup] = {}

    # --- the file ---

    def configure(self, rules: list[GroupRule]) -> None:
        """Replace all groups. Their revisions must be known to `programs`."""
        before = {key: group.rule.name for key, group in self._group_by_key.items()}
        states = {key: group.members[key] for key, group in self._group_by_key.items()}
        names = {rule.name for rule in rules}
        groups: dict[str, BudgetGroup] = {}
        group_by_key: dict[str, BudgetGroup] = {}
        moved = []
        for rule in rules:
            group = self.groups.get(rule.name) or self._dissolved.pop(rule.name, None)
            group = group or BudgetGroup(rule, self._programs, self._now)
            groups[rule.name] = group
            members: dict[str, MemberState] = {}
            for key, member in rule.members.items():
                old_name = before.get(key, NO_GROUP)
                state = states.get(key)
                restart = old_name != rule.name and old_name in names
                if state is None or restart:
                    state = _new_state(member, state)
                    former = self._restored.pop(key, None)
                    if former is not None:
                        state.used_s, state.asked_s = former.used_s, former.asked_s
                    state.wanted = self._wanted.get(key, 0)
                    state.kept = self._kept.get(key, 0)
                if old_name != rule.name:
                    moved.append((key, rule.name, restart))
                members[key] = state
                group_by_key[key] = group
            group.configure(rule, members)
        for name, group in self.groups.items():
            if name not in groups:
                group.configure(group.rule, {})
                self._dissolved[name] = group
        self.groups, self._group_by_key = groups, group_by_key
        moved.extend((key, NO_GROUP, False) for key in before if key not in group_by_key)
        for key, name, restart in moved:
            self._move(key, name, restart)
            if name == NO_GROUP:
                if not (states[key].queued or states[key].in_flight):
                    self._evicted.add(key)
                self._grant_alone(key)
                continue
            self._evicted.discard(key)
            started = 0 if restart else self._programs.counts(key, name).started
            group_by_key[key].members[key].granted = started
            self._programs.grant(key, started, True)  # from now on others must leave room for it
        self._dissolved = {name: group for name, group in self._dissolved.items() if group.has_former()}
        for group in groups.values():
            group.plan()

    def handed(self) -> tuple[HandedUse, ...]:
        """Return the last use of each member, for another process of the activator."""
        members = [(key, group.members[key]) for key, group in self._group_by_key.items()]
        return tuple([HandedUse(key, state.used_s, state.asked_s) for key, state in members])

    def restore(self, uses: Iterable[HandedUse]) -> None:
        """Take over the last uses from a former process; they count once the groups are configured."""
        self._restored = {one.key: one for one in uses}

    def drop_revision(self, key: str) -> None:
        """Forget a revision that was removed; its programs count until they have ended."""
        self._wanted.pop(key, None)
        self._kept.pop(key, None)
        self._evicted.discard(key)

    # --- what happens ---

    def set_desired(self, key: str, count: int) -> None:
        """Set how many programs the load, a minimum or a schedule calls for."""
        self._wanted[key] = count
        group = self._group_by_key.get(key)
        if group is None:
            self._grant_alone(key)
        else:
            group.set_desired(key, count)

    def keep(self, key: str, count: int) -> None:
        """Set how many programs a minimum, a schedule, a preload or an operator calls for, without a request."""
        self._kept[key] = count
        group = self._group_by_key.get(key)
        if group is not None:
            group.keep(key, count)
        elif key in self._evicted:
            self._grant_alone(key)

    def load(self, load: Load) -> None:
        """Pass a load on to the group; a request of an evicted revision without a group loads it again."""
        group = self._group_by_key.get(load.key)
        if group is not None:
            group.load(load)
        elif load.key in self._evicted and (load.queued or load.in_flight):
            self._evicted.discard(load.key)
            self._grant_alone(load.key)

    def busy(self, key: str, count: int) -> None:
        """Set how many programs of the revision do background work."""
        group = self._group_by_key.get(key)
        if group is not None:
            group.busy(key, count)

    def load_for_operator(self, key: str) -> None:
        """Load the revision because an operator asks for it."""
        group = self._group_by_key.get(key)
        if group is not None:
            group.load_for_operator(key)

    def unload(self, key: str) -> None:
        """Take back the grant of a revision: an operator has stopped all its programs."""
        group = self._group_by_key.get(key)
        if group is not None:
            group.unload(key)

    def programs_changed(self, key: str, home: str) -> None:
        """Plan again after a program that counts in this group was started, became ready, fell asleep or ended."""
        group = self.groups.get(home)
        if group is not None:
            group.record_in_timeline(key)
            group.plan()

    def tick(self) -> None:
        """Plan again where a turn may be over by time alone; call it several times a second."""
        for group in self.groups.values():
            if group.has_claims():
                group.plan()

    # --- reading ---

    def of(self, key: str) -> BudgetGroup | None:
        """Return the group of a revision; None if it is in no group."""
        return self._group_by_key.get(key)

    # --- within ---

    def _grant_alone(self, key: str) -> None:
        """Grant a revision without a group as many programs as its load calls for; no more while it is evicted."""
        count = self._wanted.get(key, 0)
        if key in self._evicted:
            kept = max(self._kept.get(key, 0), self._programs.counts(key, NO_GROUP).started)
            if count <= kept:
                self._evicted.discard(key)
            count = min(count, kept)
        self._programs.grant(key, count, True)


def _new_state(rule: MemberRule, before: MemberState | None) -> MemberState:
    """Return the state of a member that starts in a group; requests that waited in another group still wait."""
    state = MemberState(rule)
    if before is not None:
        state.in_flight, state.queued = before.in_flight, before.queued
        state.since_s, state.asked_s, state.used_s = before.since_s, before.asked_s, before.used_s
    return state
