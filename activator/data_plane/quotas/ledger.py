"""The owner's record of one quota: its usage, the open requests, and the levels that other members have acknowledged.

Rules
  1. Before an admission is sent, each other member of the view must have acknowledged everything that was taken, except
     for the *slack*, one of SLACK_PARTS parts of the limit; until then the reply is held. A new owner adds the slack to
     the highest level that a member has received, so that it counts at least what its predecessor had taken.
  2. Amounts of held replies do not drain before these are sent; otherwise they could be sent as a burst.
  3. A member that acknowledges nothing for ACK_MAX_S is ignored until it does.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.bucket import Bucket
from activator.data_plane.quotas.messages import Decision, Level

SLACK_PARTS: Final = 16  # parts of a limit; one of them may be taken without an acknowledgement
ACK_MAX_S: Final = 3.0  # longer than the silence after which a replica leaves the view
CONCURRENCY_RETRY_S: Final = 1.0  # Retry-After; the ends of requests cannot be predicted

ADMITTED: Final = ""
CONCURRENCY: Final = "concurrency"
REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
UNKNOWN: Final = "unknown"  # the owner has not decided in time
LIMITS: Final = (CONCURRENCY, REQUESTS, TOKENS, UNKNOWN)


class HeldReply(NamedTuple):
    """A reply to `member` that is sent when the other members have acknowledged these amounts.

    `decision`: the admission of the request; None: its release was counted. `requests`, `tokens`: the amounts that the
    request has reserved and that are not committed.
    """

    member: int
    number: int
    decision: Decision | None
    requests: float
    tokens: float
    requests_taken: float
    tokens_taken: float
    since_s: float


@final
class Ledger:
    """The record of one quota. `needs_query`: the query to which all members must reply before it begins."""

    def __init__(self, spec: QuotaSpec, needs_query: int) -> None:
        self.spec = spec
        self.requests = Bucket(spec.requests, spec.requests_period_s)
        self.tokens = Bucket(spec.tokens, spec.tokens_period_s)
        self.needs_query = needs_query
        self.since: int = 0  # the epoch in which it began to grant; 0: it has not begun
        self.levels: list[Level] = []  # from members, before it begins
        self.open: dict[int, dict[int, int]] = {}  # the admitted requests of other members, with their tokens
        self.waiting: dict[tuple[int, int], int] = {}  # undecided requests by member and number, with their tokens
        self.held: dict[tuple[int, int], HeldReply] = {}  # by member and number, the oldest first
        self._drained_s: dict[tuple[int, int], float] = {}  # when the reserved tokens of a request have drained
        self._acknowledged: dict[int, tuple[float, float]] = {}  # the amounts that each member has acknowledged
        self._sent: tuple[float, float] = (-1.0, -1.0)  # the amounts in the last `QuotaLevel`
        self._unresponsive: set[int] = set()  # members that are ignored (rule 3)

    def configure(self, spec: QuotaSpec, now_s: float) -> None:
        """Apply other limits and keep the usage."""
        self.spec = spec
        self.requests.change(spec.requests, spec.requests_period_s, now_s)
        self.tokens.change(spec.tokens, spec.tokens_period_s, now_s)

    # --- decisions ---

    def decide(self, tokens: int, own_open: int, now_s: float) -> Decision:
        """Reserve the amounts of a request (`amounts`), or reject it. `own_open`: the owner's own admitted requests.

        After ADMITTED the caller calls `commit` or `hold_reply`.
        """
        if self._is_at_concurrency_limit(own_open):
            return self.decision_of(CONCURRENCY, CONCURRENCY_RETRY_S, now_s)
        requests, reserved_tokens = self.amounts(tokens)
        wait_s = self.requests.wait_s(requests, now_s)
        if wait_s > 0.0:
            return self.decision_of(REQUESTS, wait_s, now_s)
        wait_s = self.tokens.wait_s(reserved_tokens, now_s)
        if wait_s > 0.0:
            return self.decision_of(TOKENS, wait_s, now_s)
        self.requests.reserve(requests)
        self.tokens.reserve(reserved_tokens)
        return self.decision_of(ADMITTED, 0.0, now_s)

    def amounts(self, tokens: int) -> tuple[float, float]:
        """Return the requests and tokens that a request reserves; 0.0 without such a limit."""
        return (1.0 if self.spec.requests else 0.0, float(tokens) if self.spec.tokens else 0.0)

    def is_exhausted(self, own_open: int, now_s: float) -> bool:
        """Return True if any request would be rejected now."""
        requests, tokens = self.amounts(1)
        return (
            self._is_at_concurrency_limit(own_open)
            or self.requests.wait_s(requests, now_s) > 0.0
            or self.tokens.wait_s(tokens, now_s) > 0.0
        )

    def _is_at_concurrency_limit(self, own_open: int) -> bool:
        limit = self.spec.concurrency
        return limit > 0 and own_open + sum(len(requests) for requests in self.open.values()) >= limit

    def decision_of(self, limit: str, wait_s: float, now_s: float) -> Decision:
        """Return a decision with the current figures."""
        requests, tokens = self.requests, self.tokens
        return Decision(
            limit,
            wait_s,
            requests.remaining(now_s),
            requests.full_s(now_s),
            tokens.remaining(now_s),
            tokens.full_s(now_s),
        )

    def adjust_tokens(self, member: int, number: int, change: int, now_s: float) -> None:
        """Count the tokens of an ended request that differ from the reserved ones.

        A reservation at a former owner is not refunded, because it may have drained.
        """
        held = self.held.get((member, number))
        if held is not None:
            self._commit_held(held, now_s)
            self.held[member, number] = held._replace(requests=0.0, tokens=0.0)
        drained_s = self._drained_s.pop((member, number), 0.0)
        if change > 0:
            self.tokens.add(change, now_s)
        elif change < 0:
            self.tokens.refund(-change, drained_s, now_s)

    # --- levels ---

    def level(self, now_s: float, is_exact: bool = False) -> Level:
        """Return the usage as of now."""
        return Level(self.since, self.requests.used(now_s), self.tokens.used(now_s), is_exact)

    def begin(self, since: int, now_s: float) -> None:
        """Begin to grant in the epoch `since`, with the level of the last owner and the amounts settled until now."""
        last = max([level.since for level in self.levels], default=0)
        levels = [level for level in self.levels if level.since == last]
        exact = [level for level in levels if level.is_exact]
        chosen = exact if exact and last else levels  # without an earlier owner, the highest level counts
        slack = 0.0 if exact else 1.0
        if levels:
            self.requests.add(max(level.requests for level in chosen) + slack * _slack(self.requests), now_s)
            self.tokens.add(max(level.tokens for level in chosen) + slack * _slack(self.tokens), now_s)
        self.levels.clear()
        self.since = since

    # --- acknowledgements ---

    def taken(self) -> tuple[float, float]:
        """Return the amounts taken since the beginning, which never decrease."""
        return (self.requests.taken, self.tokens.taken)

    def is_acknowledged(self, members: frozenset[int], taken: tuple[float, float]) -> bool:
        """Return True if each of these members has acknowledged `taken` but the slack; False before it begins."""
        if self.since == 0:
            return False
        requests, tokens = taken[0] - _slack(self.requests), taken[1] - _slack(self.tokens)
        for member in members:
            acknowledged = self._acknowledged.get(member)
            if (
                acknowledged is None or acknowledged[0] < requests or acknowledged[1] < tokens
            ) and member not in self._unresponsive:
                return False
        return True

    def claim_report(self, is_held: bool) -> bool:
        """Return True if a `QuotaLevel` is due, and count it as sent. `is_held`: replies wait for it."""
        taken, sent = self.taken(), self._sent
        if self.since == 0:
            due = False
        elif is_held:
            due = taken[0] > sent[0] or taken[1] > sent[1]
        else:
            due = taken[0] - sent[0] > _slack(self.requests) / 2 or taken[1] - sent[1] > _slack(self.tokens) / 2
        if due:
            self._sent = taken
        return due

    def acknowledged(self, member: int, requests_taken: float, tokens_taken: float) -> None:
        """Record the amounts that a member has acknowledged; it is no longer ignored."""
        self._acknowledged[member] = (requests_taken, tokens_taken)
        self._unresponsive.discard(member)

    def commit(self, member: int, number: int, requests: float, tokens: float, now_s: float) -> None:
        """Let the reserved amounts of a request drain from now on."""
        self.requests.commit(requests, now_s)
        drained_s = self.tokens.commit(tokens, now_s)
        if tokens > 0.0:
            self._drained_s[member, number] = drained_s

    def hold_reply(
        self, member: int, number: int, decision: Decision | None, requests: float, tokens: float, now_s: float
    ) -> None:
        """Hold a reply until the amounts taken so far are acknowledged; replace an earlier reply to the request."""
        former = self.held.pop((member, number), None)
        if former is not None:
            self._commit_held(former, now_s)
        self.held[member, number] = HeldReply(member, number, decision, requests, tokens, *self.taken(), now_s)

    def next_acknowledged(self, members: frozenset[int], now_s: float) -> HeldReply | None:
        """Remove and return the next reply that can be sent; None if there is none."""
        first = self._first_held()
        if first is None or not self.is_acknowledged(members, (first.requests_taken, first.tokens_taken)):
            return None
        del self.held[first.member, first.number]
        self._commit_held(first, now_s)
        return first

    def _first_held(self) -> HeldReply | None:
        return next(iter(self.held.values())) if self.held else None

    def _commit_held(self, held: HeldReply, now_s: float) -> None:
        if held.requests > 0.0 or held.tokens > 0.0:
            self.commit(held.member, held.number, held.requests, held.tokens, now_s)

    def ignore_unresponsive(self, members: frozenset[int], now_s: float) -> None:
        """Ignore members that have not acknowledged the oldest held reply in time."""
        first = self._first_held()
        if first is not None and now_s - first.since_s >= ACK_MAX_S:
            taken = (first.requests_taken, first.tokens_taken)
            self._unresponsive.update(
                [member for member in members if not self.is_acknowledged(frozenset([member]), taken)]
            )

    # --- members ---

    def forget_undecided(self, member: int, now_s: float) -> None:
        """Drop the undecided requests and the held replies of a member, which sends its requests again."""
        for key in [key for key in self.waiting if key[0] == member]:
            del self.waiting[key]
        for key in [key for key in self.held if key[0] == member]:
            self._commit_held(self.held.pop(key), now_s)

    def set_open(self, member: int, requests: dict[int, int]) -> None:
        """Replace the admitted requests of a member. `requests`: by number, with their tokens."""
        for number in self.open.pop(member, {}):
            if number not in requests:
                self._drained_s.pop((member, number), None)
        if requests:
            self.open[member] = requests

    def forget_member(self, member: int, now_s: float) -> None:
        """Forget a member that has ended."""
        self.forget_undecided(member, now_s)
        self.set_open(member, {})
        self._acknowledged.pop(member, None)
        self._unresponsive.discard(member)


def _slack(bucket: Bucket) -> float:
    """Return the amount that may be taken without an acknowledgement."""
    return float(bucket.limit // SLACK_PARTS)
