"""One group: the state of its members, and the application of its policy's plans.

Rules
  1. `plan` is called after every change: of a load, of a number of wanted programs, or of a program that has started,
     is ready, sleeps or has ended. Its grants and evictions take effect before it returns.
  2. A program counts until it has ended. So a grant is given only if it fits beside everything that is there.
  3. A revision that has left the group is remembered until its last program has ended.
"""

from __future__ import annotations

from typing import Final, Protocol

from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.groups.policy import Eviction, Plan, RevisionState, View, Wait
from activator.control_plane.groups.rule import GroupRule, MemberRule
from activator.control_plane.groups.timeline import Timeline
from activator.messages import Load
from activator.runtime.clock import NEVER, Now

PLANS_AT_ONCE_MAX: Final = 32  # in one call, because each plan may change the input of the next


class Programs(Protocol):
    """The runner of programs; it reports changes to `Groups.programs_changed`, also within these calls.

    While `is_frozen` is true, it starts and stops no program; afterwards it reports changes of all.
    """

    is_frozen: bool

    def counts(self, key: str, group: str) -> ProgramCounts: ...

    def grant(self, key: str, count: int, may_sleep: bool) -> None:
        """Run `count` programs; surplus ones are put to sleep if they can be and `may_sleep`, else stopped."""
        ...

    def stop_asleep(self, key: str, count: int) -> None:
        """Stop `count` of the sleeping programs."""
        ...


class MemberState:
    """The state of one member."""

    __slots__ = ("asked_s", "busy", "granted", "in_flight", "kept", "queued", "rule", "since_s", "used_s", "wait", "waited_from_s", "wanted")  # fmt: skip  # noqa: E501

    def __init__(self, rule: MemberRule) -> None:
        self.rule = rule
        self.wanted = 0  # programs that its load, minimum or schedule calls for
        self.kept = 0  # programs wanted without a request
        self.granted = 0  # programs that it may run
        self.in_flight = 0
        self.busy = 0  # programs with background work
        self.queued = 0
        self.since_s = NEVER  # when the next request in its queue arrived
        self.asked_s = NEVER  # when an operator requested it, until it has been loaded
        self.used_s = 0.0
        self.wait: Wait | None = None  # the reason for its waiting, while it has a claim
        self.waited_from_s = 0.0  # when it began to wait


class BudgetGroup:
    """One group; `programs` runs its programs."""

    def __init__(self, rule: GroupRule, programs: Programs, now: Now) -> None:
        self.rule = rule
        self.members: dict[str, MemberState] = {}
        self.former: dict[str, MemberRule] = {}  # revisions that have left the group, while they have programs
        self.swaps_total = 0  # grants for which another program was evicted
        self.eviction_totals: dict[Eviction, int] = dict.fromkeys(Eviction, 0)
        self.waited_s_total = 0.0  # time that all members together have waited for their turns
        self.waits_total = 0
        self.timeline = Timeline()
        self._policy = rule.policy()
        self._programs = programs
        self._now = now
        self._planning = False
        self._is_changed = False
        self._evicted = 0  # evictions since the last grant

    # --- inputs ---

    def configure(self, rule: GroupRule, members: dict[str, MemberState]) -> None:
        """Replace the rule; `members` are the states of present members, here or in another group, and new ones."""
        for key in self.members:
            if key not in members:
                self.former[key] = self.rule.members[key]
        for key in members:
            self.former.pop(key, None)
        if (rule.resources, rule.exclusive) != (self.rule.resources, self.rule.exclusive):
            self.former = {key: _reordered(former, self.rule, rule) for key, former in self.former.items()}
        self.rule = rule
        self.members = members
        for key, state in members.items():
            state.rule = rule.members[key]
        self._policy = rule.policy()

    def load(self, load: Load) -> None:
        """Record the present load of a member; plan again if that changes its claim or its use."""
        state = self.members[load.key]
        now_s = self._now()
        before = (state.in_flight > 0, state.since_s)
        state.in_flight, state.queued = load.in_flight, load.queued
        if load.in_flight or load.queued:
            state.used_s = now_s
        if not load.queued:
            state.since_s = NEVER
        elif load.oldest_s > 0.0:
            state.since_s = load.oldest_s
        elif state.since_s == NEVER:
            state.since_s = now_s  # its body is still arriving
        if before != (state.in_flight > 0, state.since_s):
            self.plan()

    def busy(self, key: str, count: int) -> None:
        """Record how many programs of the member do background work, which counts like a request."""
        state = self.members[key]
        if count:
            state.used_s = self._now()
        if (count > 0) != (state.busy > 0):
            state.busy = count
            self.plan()
        state.busy = count

    def set_desired(self, key: str, count: int) -> None:
        """Set how many programs are wanted."""
        self.members[key].wanted = count
        self.plan()

    def keep(self, key: str, count: int) -> None:
        """Set how many programs a minimum, a schedule, a preload or an operator calls for, without a request."""
        self.members[key].kept = count
        self.plan()

    def load_for_operator(self, key: str) -> None:
        """Load the member because an operator asks for it; that counts like a request which arrives now."""
        state = self.members[key]
        if state.granted == 0 and state.asked_s == NEVER:
            state.asked_s = self._now()
        self.plan()

    def unload(self, key: str) -> None:
        """Take back the grant of a member: an operator has stopped its programs.

        Queued requests claim one again with the next load; the last load may include a request that has ended since.
        """
        state = self.members[key]
        state.asked_s = NEVER
        state.queued = 0
        state.since_s = NEVER
        state.granted = 0
        self._programs.grant(key, 0, False)
        self.plan()

    def has_claims(self) -> bool:
        """Return True if a member waits for its turn."""
        return any(state.wait is not None for state in self.members.values())

    def has_former(self) -> bool:
        """Return True if revisions that have left the group still have programs."""
        self._held_by_former()  # forgets revisions without programs
        return bool(self.former)

    def record_in_timeline(self, key: str) -> None:
        """Record the present states of the revision's programs in the timeline."""
        self.timeline.record(key, self._programs.counts(key, self.rule.name), self._now())

    # --- planning ---

    def plan(self) -> None:
        """Apply the policy's plans until one changes nothing. While programs are held, no plan could take effect."""
        self._is_changed = True
        if self._planning or self._programs.is_frozen:
            return
        self._planning = True
        try:
            for _ in range(PLANS_AT_ONCE_MAX):  # the next tick does the rest
                if not self._is_changed:
                    return
                self._is_changed = False
                self._apply(self._policy.plan(self.view()))
        finally:
            self._planning = False

    def view(self) -> View:
        """Return the input of the policy."""
        members = tuple(self._revision_state(key, state) for key, state in self.members.items())
        return View(self._now(), self.rule.budget, members, self.rule.exclusive, self._held_by_former())

    def holdings(self) -> dict[str, tuple[int, int, int]]:
        """Return the running, leaving and sleeping programs of each revision that has any, including former members."""
        held = {}
        for key in (*self.members, *self.former):
            counts = self._programs.counts(key, self.rule.name)
            state = self.members.get(key)
            running = counts.started if state is None else max(state.granted, counts.started)
            leaving = counts.leaving + counts.stopping_asleep
            if running or leaving or counts.sleeping:
                held[key] = (running, leaving, counts.sleeping)
        return held

    def used(self) -> tuple[int, ...]:
        """Return the amounts that running, starting, leaving and sleeping programs hold, by resource."""
        total = list(self._held_by_former()) or [0] * len(self.rule.budget)
        for key, state in self.members.items():
            counts = self._programs.counts(key, self.rule.name)
            for resource, held in enumerate(_held(state.rule, max(state.granted, counts.started), counts)):
                total[resource] += held
        return tuple(total)

    # --- within ---

    def _revision_state(self, key: str, state: MemberState) -> RevisionState:
        """Return the state of a member for the policy; an operator's request ends once a program is ready."""
        counts = self._programs.counts(key, self.rule.name)
        if counts.ready:
            state.asked_s = NEVER
        rule = state.rule
        floor = max(rule.min, 1 if rule.pinned and state.granted else 0)
        return RevisionState(
            key,
            rule.needs,
            rule.asleep,
            state.granted,
            counts.started,
            counts.ready,
            counts.leaving,
            counts.falling_asleep,
            counts.sleeping,
            counts.stopping_asleep,
            state.wanted if state.asked_s == NEVER else max(state.wanted, 1),
            floor,
            state.kept,
            rule.most,
            state.in_flight > 0 or state.busy > 0,
            min(state.since_s, state.asked_s),
            state.used_s,
            counts.start_s,
            counts.wake_s,
            counts.may_start,
        )

    def _held_by_former(self) -> tuple[int, ...]:
        """Return the amounts that former members hold, by resource; forget those without programs. Empty: none."""
        if not self.former:
            return ()
        total = [0] * len(self.rule.budget)
        for key, rule in list(self.former.items()):
            counts = self._programs.counts(key, self.rule.name)
            held = _held(rule, counts.started, counts)
            if not any((counts.started, counts.leaving, counts.sleeping, counts.stopping_asleep)):
                del self.former[key]
            for resource, amount in enumerate(held):
                total[resource] += amount
        if total:
            return tuple(total)
        return (1,) if self.former else ()  # an exclusive group has no budget: any amount shows that programs are left

    def _apply(self, plan: Plan) -> None:
        """Carry out a plan: stop sleeping programs, lower grants, and raise grants, in this order."""
        now_s = self._now()
        for eviction in plan.evictions.values():
            self.eviction_totals[eviction] += 1
        self._note_waits(plan, now_s)
        lowered = {key: count for key, count in plan.grants.items() if count < self.members[key].granted}
        raised = {key: count for key, count in plan.grants.items() if count > self.members[key].granted}
        self._evicted += sum(key in plan.evictions for key in lowered)
        if raised and self._evicted:
            self.swaps_total += 1
            self._evicted = 0
        if plan.grants or plan.stop_asleep:
            self._is_changed = True
        for key, count in plan.stop_asleep.items():
            self._programs.stop_asleep(key, count)
        for grants in (lowered, raised):
            for key, count in grants.items():
                self.members[key].granted = count
                self._programs.grant(key, count, key not in plan.no_sleep)
                self.record_in_timeline(key)

    def _note_waits(self, plan: Plan, now_s: float) -> None:
        """Record the reason for which each member waits, and how long those that no longer wait have waited."""
        for key, state in self.members.items():
            wait = plan.waits.get(key)
            if wait is not None and state.wait is None:
                state.waited_from_s = now_s
            elif wait is None and state.wait is not None:
                self.waited_s_total += now_s - state.waited_from_s
                self.waits_total += 1
            state.wait = wait


def _held(rule: MemberRule, running: int, counts: ProgramCounts) -> list[int]:
    """Return the amounts that the programs of a revision hold, by resource, if `running` of them run or start."""
    asleep = counts.sleeping + counts.stopping_asleep
    at_rest = rule.asleep or (0,) * len(rule.needs)
    return [(running + counts.leaving) * need + asleep * rest for need, rest in zip(rule.needs, at_rest)]


def _reordered(rule: MemberRule, before: GroupRule, after: GroupRule) -> MemberRule:
    """Return the member's rule with its amounts in the order of the resources of `after`."""
    if before.exclusive:  # its needs are unknown: it has to end before anything else is loaded
        return MemberRule(after.budget, None if rule.asleep is None else after.budget)

    def moved(amounts: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(before.resources, amounts))
        return tuple(known.get(resource, 0) for resource in after.resources)

    return MemberRule(moved(rule.needs), None if rule.asleep is None else moved(rule.asleep))
