"""The quotas of all users in one data plane, shared with the other data planes.

Rules
  1. In each view a quota has one owner (ownership/view.py), which alone decides on requests. Other members send it one
     message for each request. A single data plane owns all quotas.
  2. A new owner queries all other members of its view, and begins to grant when they have replied (`QuotaState`) and
     all former members have ended or replied. It counts the open requests of all members, and begins with the highest
     level that one of them has received (`Ledger.begin`).
  3. An owner that remains the owner continues to grant.
  4. A request without a decision after ASK_MAX_S is rejected (`UNKNOWN`). Requests are sent again only after a query:
     over a new link, in a new view, and when the owner learns of the user. So each has one reply.
  5. Amounts in lost messages count as used: a limit may be reached early, but is not exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from activator.config.specs import UserSpec
from activator.data_plane.ownership.view import View
from activator.data_plane.quotas.ledger import ADMITTED, LIMITS, REQUESTS, UNKNOWN, Ledger
from activator.data_plane.quotas.levels import Levels
from activator.data_plane.quotas.links import ALONE, Links
from activator.data_plane.quotas.messages import (
    Decision,
    OwnQuota,
    QuotaDecision,
    QuotaLevel,
    QuotaLevelAck,
    QuotaMessage,
    QuotaQuery,
    QuotaRelease,
    QuotaReleaseAck,
    QuotaRequest,
    QuotaState,
)
from activator.data_plane.quotas.quota import AdmissionRequest, Quota, key_of
from activator.data_plane.quotas.replies import Replies
from activator.runtime.clock import Now

ASK_MAX_S: Final = 5.0
ASKS_MAX: Final = 10_000  # undecided requests of one user; further ones are refused

UNDECIDED: Final = Decision(UNKNOWN, 1.0, 0, 0.0, 0, 0.0)


@final
class _Member:
    """Another data plane, and the link to it."""

    def __init__(self) -> None:
        self.is_linked: bool = False
        self.replied: int = 0  # the last query that it replied to
        self.queried: int = 0  # the epoch of its last query over this link
        self.early: QuotaQuery | None = None  # its query in a later view than the present one


@final
class Quotas:
    """The quotas of the users of one data plane."""

    def __init__(self, now: Now) -> None:
        self.quotas: dict[str, Quota] = {}  # by key
        self._now = now
        self._links = Links()
        self._replies = Replies(self._links, now)
        self._view: View | None = None  # None: there is one data plane
        self._members: dict[int, _Member] = {}
        self._levels = Levels(now)
        self._numbers: int = 0  # number of the last request
        self._queries: int = 0  # number of the last query
        self._may_grant: bool = True
        self._has_view: bool = False  # a view has been adopted
        self._has_users: bool = False  # `set_users` has been called

    # --- users ---

    def set_users(self, users: Iterable[UserSpec]) -> None:
        """Apply the quotas of these users and keep their usage."""
        specs = {key_of(user.name): user for user in users if user.quota is not None}
        for key in [key for key in self.quotas if key not in specs]:
            self._remove_limits(self.quotas[key])
        is_new = False
        for key, user in specs.items():
            assert user.quota is not None
            quota = self.quotas.get(key)
            if quota is not None and quota.is_dropped:
                quota.is_dropped = False
                is_new = is_new or quota.ledger is not None
            if quota is None:
                quota = self.quotas[key] = Quota(user.name, user.quota)
                self._levels.add_quota(key, user.used, self._has_users)
                self._apply_owner(quota)
                is_new = is_new or quota.ledger is not None
            elif quota.spec != user.quota:
                quota.spec = user.quota
                if quota.ledger is not None:
                    quota.ledger.configure(user.quota, self._now())
        self._has_users = True
        if is_new:
            self._query_all()
        self._begin_where_replied()

    def find(self, name: str) -> Quota | None:
        """Return the quota of the user with this name; None without limits."""
        quota = self.quotas.get(key_of(name))
        return None if quota is None or quota.is_dropped else quota

    def usage(self) -> dict[str, tuple[float, float]]:
        """Return the usage of the quotas that this member owns, in requests and tokens, by the name of the user."""
        now_s = self._now()
        used: dict[str, tuple[float, float]] = {}
        for quota in self.quotas.values():
            ledger = quota.ledger
            if ledger is not None and ledger.since:
                level = ledger.level(now_s)
                used[quota.name] = (level.requests, level.tokens)
        return used

    def rejections(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of rejected requests for each of LIMITS, by the name of the user."""
        return {quota.name: tuple([quota.rejected.get(limit, 0) for limit in LIMITS]) for quota in self.quotas.values()}

    # --- requests ---

    def ask(self, quota: Quota, tokens: int) -> AdmissionRequest:
        """Ask for the admission of a request, for which `tokens` are reserved; it may be decided at once."""
        self._numbers += 1
        now_s = self._now()
        if quota.spec.tokens:
            tokens = min(tokens, quota.spec.tokens)  # otherwise it could never be admitted
        asked = AdmissionRequest(quota, self._numbers, tokens if quota.spec.tokens else 0, now_s)
        if len(quota.asking) >= ASKS_MAX:
            quota.apply_decision(asked, UNDECIDED)
            return asked
        quota.asking[asked.number] = asked
        if quota.ledger is not None:
            self._request_received(quota, quota.ledger, self._links.number, asked.number, asked.tokens)
        else:
            self._send_request(quota, asked)
        return asked

    def end(self, asked: AdmissionRequest, tokens: int) -> None:
        """End a request, whatever the decision was, and release it at the owner. `tokens`: those that it has used."""
        quota, number = asked.quota, asked.number
        was_open = quota.open.pop(number, None) is not None
        was_asking = quota.asking.pop(number, None) is not None
        if not was_open and not was_asking:
            return
        ledger = quota.ledger
        change = tokens - asked.tokens if quota.spec.tokens else 0
        if ledger is None:
            if change > 0:
                quota.settling[number] = change
            if self._is_queried_by(quota.owner):
                self._links.send(quota.owner, QuotaRelease(self._links.epoch, quota.key, number, change))
        elif was_open:
            ledger.adjust_tokens(self._links.number, number, change, self._now())
            self._replies.send_acknowledged(quota, ledger)
        else:
            ledger.waiting.pop((self._links.number, number), None)
        self._forget_if_unused(quota)

    def is_exhausted(self, quota: Quota) -> bool:
        """Return True if any request of this user would be rejected now, as far as this member knows."""
        ledger = quota.ledger
        if ledger is not None:
            return ledger.since != 0 and ledger.is_exhausted(len(quota.open), self._now())
        return self._now() < quota.exhausted_until_s

    # --- members ---

    def join(self, number: int, send: Callable[[int, QuotaMessage], None]) -> None:
        """Become one of several data planes. `send(member, message)` sends over a link.

        A data plane that has owned all quotas decides nothing until a view names their owners.
        """
        assert number == ALONE or not self.quotas, "its own requests have that number"
        self._links.number = number
        self._links.send = send
        self._view = View(0, ())

    def allow_grants(self, allowed: bool) -> None:
        """Allow or forbid decisions of this owner; if they are allowed, decide on the requests that wait."""
        self._may_grant = allowed
        for quota in self.quotas.values():
            self._decide_waiting(quota)

    def adopt(self, view: View) -> None:
        """Apply a view, unless it is older than the present one."""
        if self._view is None or view.epoch <= self._view.epoch:
            return
        before, self._view = self._links.others, view
        self._links.epoch = view.epoch
        numbers = [member.number for member in view.members]
        self._links.others = frozenset(numbers) - {self._links.number}
        for number in self._links.others:
            self._members.setdefault(number, _Member())
        for number in {*before, *self._members}:
            if not view.may_live(number) and (number in before or not self._members[number].is_linked):
                self._forget_member(number)
        if not view.is_next and view.follows and self._has_view:
            # There may have been other owners, whose levels were not received. Without `follows`, that is accepted.
            self._levels.clear()
        self._has_view = True
        for quota in self.quotas.values():
            self._apply_owner(quota)
        self._query_all()
        for number, member in self._members.items():
            early, member.early = member.early, None
            if early is not None:
                self._reply_to_query(number, member, early)
        self._begin_where_replied()
        for quota in self.quotas.values():
            if quota.ledger is not None:
                self._replies.send_acknowledged(quota, quota.ledger)

    def linked(self, number: int) -> None:
        """Record a new link, before any message, and query its member if the member is in the view."""
        member = self._members.setdefault(number, _Member())
        member.is_linked = True
        if number in self._links.others:
            self._query_and_report(number)

    def unlinked(self, number: int) -> None:
        """Handle the end of the link to a member: messages in transit are lost, and it sends its requests again."""
        member = self._members.get(number)
        if member is None:
            return
        member.is_linked, member.replied, member.queried, member.early = False, 0, 0, None
        for ledger in self._ledgers():
            ledger.forget_undecided(number, self._now())

    def receive(self, sender: int, message: QuotaMessage) -> None:
        """Handle a message of a member over its present link."""
        member = self._members.get(sender)
        if member is None or not member.is_linked:
            return
        if isinstance(message, QuotaQuery):
            self._reply_to_query(sender, member, message)
        elif isinstance(message, QuotaLevel):
            self._level_reported(sender, message)
        elif message.epoch != self._links.epoch:
            return  # a message from another view
        elif isinstance(message, QuotaDecision):
            self._decision_received(sender, message)
        elif isinstance(message, QuotaReleaseAck):
            quota = self.quotas.get(message.key)
            if quota is not None:
                quota.settling.pop(message.number, None)
                self._forget_if_unused(quota)
        elif isinstance(message, QuotaState):
            self._state_received(sender, member, message)
        else:
            quota = self.quotas.get(message.key)
            ledger = None if quota is None else quota.ledger
            if quota is None or ledger is None:
                return
            if isinstance(message, QuotaRequest):
                if not quota.is_dropped:  # otherwise the sender is queried when the limits are back
                    self._request_received(quota, ledger, sender, message.number, message.tokens)
            elif isinstance(message, QuotaRelease):
                self._released(quota, ledger, sender, message)
            elif isinstance(message, QuotaLevelAck):
                ledger.acknowledged(sender, message.requests_taken, message.tokens_taken)
                self._replies.send_acknowledged(quota, ledger)

    def tick(self) -> None:
        """Reject requests without a decision, and ignore members that acknowledge nothing; called periodically."""
        now_s = self._now()
        for quota in list(self.quotas.values()):
            for asked in list(quota.asking.values()):
                if now_s - asked.asked_s >= ASK_MAX_S:
                    self.end(asked, 0)
                    quota.apply_decision(asked, UNDECIDED)
            if quota.ledger is not None and quota.ledger.held:
                quota.ledger.ignore_unresponsive(self._links.others, now_s)
                self._replies.send_acknowledged(quota, quota.ledger)

    # --- as the owner ---

    def _request_received(self, quota: Quota, ledger: Ledger, member: int, number: int, tokens: int) -> None:
        """Decide on a request of this member or another one, now or later."""
        admitted = quota.open if member == self._links.number else ledger.open.get(member)
        if admitted is not None and number in admitted:  # sent again; the reply is held or was lost
            if (member, number) not in ledger.held:
                self._replies.send_when_acknowledged(
                    quota, ledger, member, number, ledger.decision_of(ADMITTED, 0.0, self._now())
                )
        elif self._must_wait(ledger):
            ledger.waiting.setdefault((member, number), tokens)
        else:
            self._decide_now(quota, ledger, member, number, tokens)

    def _must_wait(self, ledger: Ledger) -> bool:
        return ledger.since == 0 or not self._may_grant

    def _decide_now(self, quota: Quota, ledger: Ledger, member: int, number: int, tokens: int) -> None:
        decision = ledger.decide(tokens, len(quota.open), self._now())
        if decision.limit == ADMITTED:
            admitted = quota.open if member == self._links.number else ledger.open.setdefault(member, {})
            admitted[number] = tokens
        amounts = ledger.amounts(tokens)  # reserved only if it is admitted
        self._replies.send_when_acknowledged(quota, ledger, member, number, decision, amounts[0], amounts[1])

    def _decide_waiting(self, quota: Quota) -> None:
        """Decide on the requests that wait, in their order."""
        ledger = quota.ledger
        while ledger is not None and ledger.waiting and not self._must_wait(ledger):
            member, number = asked = next(iter(ledger.waiting))
            self._request_received(quota, ledger, member, number, ledger.waiting.pop(asked))

    def _released(self, quota: Quota, ledger: Ledger, member: int, message: QuotaRelease) -> None:
        reserved = ledger.open.get(member, {}).pop(message.number, None)
        if reserved is None:
            ledger.waiting.pop((member, message.number), None)
        else:
            ledger.adjust_tokens(member, message.number, message.change, self._now())
        if message.change > 0:
            self._replies.send_when_acknowledged(quota, ledger, member, message.number, None)

    def _state_received(self, sender: int, member: _Member, message: QuotaState) -> None:
        """Replace the record of a member by its state."""
        member.replied = message.call
        states = {state.key: state for state in message.quotas}
        now_s = self._now()
        for key, reported in states.items():
            if key not in self.quotas and reported.level is not None:
                self._levels.remember(key, reported.level)
        for quota in self.quotas.values():
            ledger = quota.ledger
            if ledger is None:
                continue
            state = states.get(quota.key)
            recorded = ledger.open.get(sender)
            ledger.forget_undecided(sender, now_s)
            if state is None:
                ledger.set_open(sender, {})
                continue
            if state.level is not None and ledger.since == 0:
                ledger.levels.append(state.level)
            open_requests = dict(state.open)
            if recorded is not None:
                # This owner has admitted these requests, and the reply is held or was lost. The member sends them
                # again after its state; if they were not open, they would be decided and counted a second time.
                open_requests.update({request: recorded[request] for request in state.asked if request in recorded})
            for request, change in state.settled:
                if recorded is None or request in recorded:
                    ledger.adjust_tokens(sender, request, change, now_s)
                self._replies.send_when_acknowledged(quota, ledger, sender, request, None)
            ledger.set_open(sender, open_requests)
        self._begin_where_replied()

    def _begin_where_replied(self) -> None:
        """Begin to grant quotas for which all members have sent their state."""
        view = self._view
        others: set[int] | None = set()
        if view is not None:
            others = view.members_to_register(self._links.number, self._members)
        if others is None:
            return
        replied = min([self._members[other].replied if other in self._members else 0 for other in others], default=-1)
        now_s = self._now()
        for quota in self.quotas.values():
            ledger = quota.ledger
            if ledger is None or ledger.since or (others and replied < ledger.needs_query):
                continue
            if view is not None and not view.has(self._links.number):
                continue
            level = self._levels.level_of(quota.key, quota.spec)
            if level is not None:
                ledger.levels.append(level)
            self._levels.known.pop(quota.key, None)
            ledger.begin(max(self._links.epoch, 1), now_s)
            self._replies.report_level(quota, ledger, self._links.others)
            self._replies.send_acknowledged(quota, ledger)
            self._decide_waiting(quota)

    # --- as another member ---

    def _reply_to_query(self, sender: int, member: _Member, message: QuotaQuery) -> None:
        """Send an owner the state of its quotas, and the undecided requests."""
        epoch = self._links.epoch
        if message.epoch > epoch:
            member.early = message
            return
        if message.epoch < epoch:
            return  # the sender queries again in this view
        member.queried = epoch
        quotas = [quota for quota in self.quotas.values() if quota.owner == sender]
        states = [self._own_state(quota) for quota in quotas]
        view = self._view
        for key, known in self._levels.known.items():  # levels of users that this member does not have yet
            if key not in self.quotas and view is not None and view.owner_of(key) == sender:
                states.append(OwnQuota(key, known[0], (), (), ()))
        self._links.send(sender, QuotaState(epoch, message.call, tuple(states)))
        for quota in quotas:
            for asked in quota.asking.values():
                self._send_request(quota, asked)

    def _own_state(self, quota: Quota) -> OwnQuota:
        """Return the state of a quota at this member, for its owner."""
        level = self._levels.level_of(quota.key, quota.spec)
        return OwnQuota(quota.key, level, tuple(quota.open.items()), tuple(quota.asking), tuple(quota.settling.items()))

    def _level_reported(self, sender: int, message: QuotaLevel) -> None:
        if self._levels.remember(message.key, message.level):
            self._links.send(
                sender, QuotaLevelAck(message.epoch, message.key, message.requests_taken, message.tokens_taken)
            )

    def _decision_received(self, sender: int, message: QuotaDecision) -> None:
        quota = self.quotas.get(message.key)
        if quota is None or quota.owner != sender:
            return
        asked = quota.asking.pop(message.number, None)
        if asked is None:
            return  # it has ended, and its release was sent
        decision = message.decision
        if decision.limit == ADMITTED:
            quota.open[message.number] = asked.tokens
        elif decision.limit == REQUESTS:
            quota.exhausted_until_s = self._now() + decision.wait_s
        quota.apply_decision(asked, decision)

    def _send_request(self, quota: Quota, asked: AdmissionRequest) -> None:
        if self._is_queried_by(quota.owner):
            self._links.send(quota.owner, QuotaRequest(self._links.epoch, quota.key, asked.number, asked.tokens))

    # --- within ---

    def _ledgers(self) -> list[Ledger]:
        return [quota.ledger for quota in self.quotas.values() if quota.ledger is not None]

    def _is_queried_by(self, owner: int) -> bool:
        """Return True if the owner has queried this member in the present view, so that requests may be sent to it."""
        member = self._members.get(owner)
        return member is not None and member.queried == self._links.epoch and member.queried != 0

    def _query_all(self) -> None:
        """Query the state of all members, if this member owns a quota."""
        self._queries += 1
        for number in self._links.others:
            self._query_and_report(number)

    def _query_and_report(self, number: int) -> None:
        """Query the state of a member, and report the levels of the quotas that this member grants."""
        if not self._members[number].is_linked or not self._ledgers():
            return
        self._links.send(number, QuotaQuery(self._links.epoch, self._queries))
        for quota in self.quotas.values():
            if quota.ledger is not None and quota.ledger.since:
                self._replies.report_level(quota, quota.ledger, frozenset([number]))

    def _apply_owner(self, quota: Quota) -> None:
        """Set the owner of a quota by the present view, and create, keep or drop its ledger accordingly."""
        view = self._view
        quota.owner = self._links.number if view is None else view.owner_of(quota.key)
        ledger = quota.ledger
        is_continued = view is None or view.follows
        if quota.owner == self._links.number and ledger is not None and (is_continued or not ledger.since):
            return
        if ledger is not None:
            if ledger.since:
                self._levels.remember(quota.key, ledger.level(self._now(), is_continued))
            quota.ledger = None
        if quota.owner == self._links.number:
            ledger = quota.ledger = Ledger(quota.spec, self._queries + 1)
            for number, change in quota.settling.items():
                ledger.adjust_tokens(self._links.number, number, change, self._now())
            quota.settling.clear()
            for number, asked in quota.asking.items():
                ledger.waiting[(self._links.number, number)] = asked.tokens

    def _forget_member(self, number: int) -> None:
        """Forget a member that has ended."""
        self._levels.owner_ended()
        self._members.pop(number, None)
        for ledger in self._ledgers():
            ledger.forget_member(number, self._now())

    def _remove_limits(self, quota: Quota) -> None:
        """Remove the limits of a user, and admit its undecided requests; open ones are counted until they end."""
        if quota.is_dropped:
            return
        quota.is_dropped = True
        for asked in list(quota.asking.values()):
            self.end(asked, 0)
            asked.set_decision(Decision(ADMITTED, 0.0, 0, 0.0, 0, 0.0))
        self._forget_if_unused(quota)

    def _forget_if_unused(self, quota: Quota) -> None:
        """Remove a dropped quota once it has no requests, and remember its level."""
        if not quota.is_dropped or quota.open or quota.asking or quota.settling:
            return
        ledger = quota.ledger
        if ledger is not None and ledger.since:
            self._levels.remember(quota.key, ledger.level(self._now(), True))
        self.quotas.pop(quota.key, None)
