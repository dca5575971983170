"""The owner's record of one quota: its usage, the open requests, and the levels that other members have acknowledged.

Rules
  1. Before an admission is sent, each other member of the view must have acknowledged everything that was taken, except
     for one of SLACK_PARTS parts of the limit; until then the reply is held. A new owner adds that part to the highest
     level that a member has received, so that it counts at least what its predecessor had taken.
  2. Amounts of held replies do not drain before these are sent; otherwise they could be sent as a burst.
  3. A member that acknowledges nothing for ACK_MAX_S is ignored until it does.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, final

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.bucket import Bucket
from activator.data_plane.quotas.messages import Level

SLACK_PARTS: Final = 16  # parts of a limit; one of them may be taken without an acknowledgement
ACK_MAX_S: Final = 3.0  # longer than the silence after which a replica leaves the view
CONCURRENCY_RETRY_S: Final = 1.0  # Retry-After; the ends of requests cannot be predicted

ADMITTED: Final = ""
CONCURRENCY: Final = "concurrency"
REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
UNKNOWN: Final = "unknown"  # the owner has not decided in time
LIMITS: Final = (CONCURRENCY, REQUESTS, TOKENS, UNKNOWN)


class Decision(NamedTuple):
    """A decision about one request. The fields are those of `QuotaDecision`."""

    limit: str
    wait_s: float
    requests_left: int
    requests_full_s: float
    tokens_left: int
    tokens_full_s: float


class Held(NamedTuple):
    """A reply to `member` that is sent when the other members have acknowledged these amounts.

    `decision`: the admission of the request; None: its release was counted. `has_reserved`: the request has reserved
    its amounts for this reply, with these `tokens`.
    """

    member: int
    number: int
    decision: Decision | None
    has_reserved: bool
    tokens: int
    requests_taken: float
    tokens_taken: float
    since_s: float


@final
class Ledger:
    """The record of one quota. `needs_query`: the query to which all members must reply before it begins."""

    def __init__(self, spec: QuotaSpec, needs_query: int) -> None:
        self.spec = spec
        self.requests: Bucket | None = _bucket(spec.requests, spec.requests_period_s, None, 0.0)
        self.tokens: Bucket | None = _bucket(spec.tokens, spec.tokens_period_s, None, 0.0)
        self.needs_query = needs_query
        self.since: int = 0  # the epoch in which it began to grant; 0: it has not begun
        self.levels: list[Level] = []  # from members, before it begins
        self.open: dict[int, dict[int, int]] = {}  # the admitted requests of other members, with their tokens
        self.waiting: dict[tuple[int, int], int] = {}  # undecided requests by member and number, with their tokens
        self.held: deque[Held] = deque()
        self._held: set[tuple[int, int]] = set()  # their members and numbers
        self._free_s: dict[tuple[int, int], float] = {}  # when the reserved tokens of a request have drained
        self._acknowledged: dict[int, tuple[float, float]] = {}  # the amounts that each member has acknowledged
        self._sent: tuple[float, float] = (-1.0, -1.0)  # the amounts in the last `QuotaLevel`
        self._unresponsive: set[int] = set()

    def configure(self, spec: QuotaSpec, now_s: float) -> None:
        """Apply other limits and keep the usage."""
        self.spec = spec
        self.requests = _bucket(spec.requests, spec.requests_period_s, self.requests, now_s)
        self.tokens = _bucket(spec.tokens, spec.tokens_period_s, self.tokens, now_s)

    # --- decisions ---

    def decide(self, tokens: int, own_open: int, now_s: float) -> Decision:
        """Reserve the amounts of a request, or reject it. `own_open`: the number of the owner's own admitted requests.

        After ADMITTED the caller calls `commit` or `hold`.
        """
        spec, bucket, budget = self.spec, self.requests, self.tokens
        if spec.concurrency and own_open + sum(len(one) for one in self.open.values()) >= spec.concurrency:
            return self.figures(CONCURRENCY, CONCURRENCY_RETRY_S, now_s)
        if bucket is not None:
            wait_s = bucket.wait_s(1.0, now_s)
            if wait_s > 0.0:
                return self.figures(REQUESTS, wait_s, now_s)
        if budget is not None:
            wait_s = budget.wait_s(tokens, now_s)
            if wait_s > 0.0:
                return self.figures(TOKENS, wait_s, now_s)
            budget.reserve(tokens)
        if bucket is not None:
            bucket.reserve(1.0)
        return self.figures(ADMITTED, 0.0, now_s)

    def figures(self, limit: str, wait_s: float, now_s: float) -> Decision:
        """Return a decision with the current figures."""
        requests_left = tokens_left = 0
        requests_full_s = tokens_full_s = 0.0
        if self.requests is not None:
            requests_left, requests_full_s = self.requests.left(now_s), self.requests.full_s(now_s)
        if self.tokens is not None:
            tokens_left, tokens_full_s = self.tokens.left(now_s), self.tokens.full_s(now_s)
        return Decision(limit, wait_s, requests_left, requests_full_s, tokens_left, tokens_full_s)

    def settle(self, member: int, number: int, change: int, now_s: float) -> None:
        """Count the tokens of an ended request that differ from the reserved ones.

        A reservation at a former owner is not refunded, because it may have drained.
        """
        budget = self.tokens
        free_s = self._free_s.pop((member, number), 0.0)
        if budget is not None and change > 0:
            budget.add(change, now_s)
        elif budget is not None and change < 0:
            budget.refund(-change, free_s, now_s)

    # --- levels ---

    def level(self, now_s: float, is_exact: bool = False) -> Level:
        """Return the usage."""
        requests = 0.0 if self.requests is None else self.requests.used(now_s)
        tokens = 0.0 if self.tokens is None else self.tokens.used(now_s)
        return Level(self.since, requests, tokens, is_exact)

    def begin(self, since: int, now_s: float) -> None:
        """Begin to grant in the epoch `since`, with the level of the last owner and the amounts settled until now."""
        last = max([one.since for one in self.levels], default=0)
        levels = [one for one in self.levels if one.since == last]
        exact = [one for one in levels if one.is_exact]
        requests = max([one.requests for one in exact or levels], default=0.0)
        tokens = max([one.tokens for one in exact or levels], default=0.0)
        for bucket, used in ((self.requests, requests), (self.tokens, tokens)):
            if bucket is not None and levels:
                bucket.add(used if exact else used + _slack(bucket), now_s)
        self.levels.clear()
        self.since = since

    # --- acknowledgements ---

    def taken(self) -> tuple[float, float]:
        """Return the amounts taken since the beginning, which never decrease."""
        requests, tokens = self.requests, self.tokens
        return (0.0 if requests is None else requests.taken, 0.0 if tokens is None else tokens.taken)

    def is_acknowledged(self, members: frozenset[int], taken: tuple[float, float]) -> bool:
        """Return True if each of these members has acknowledged `taken` but the slack; False before it begins."""
        if self.since == 0:
            return False
        requests, tokens = taken[0] - _slack(self.requests), taken[1] - _slack(self.tokens)
        for member in members:
            noted = self._acknowledged.get(member)
            if (noted is None or noted[0] < requests or noted[1] < tokens) and member not in self._unresponsive:
                return False
        return True

    def must_report(self, is_held: bool) -> bool:
        """Return True if a `QuotaLevel` is due. `is_held`: replies wait for its acknowledgement."""
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
        """Handle the acknowledgement of a member."""
        self._acknowledged[member] = (requests_taken, tokens_taken)
        self._unresponsive.discard(member)

    def commit(self, member: int, number: int, tokens: int, now_s: float) -> None:
        """Let the reserved amounts of a request drain from now on."""
        if self.requests is not None:
            self.requests.commit(1.0, now_s)
        if self.tokens is not None:
            self._free_s[member, number] = self.tokens.commit(tokens, now_s)

    def hold(
        self, member: int, number: int, decision: Decision | None, has_reserved: bool, tokens: int, now_s: float
    ) -> None:
        """Hold a reply."""
        self.held.append(Held(member, number, decision, has_reserved, tokens, *self.taken(), now_s))
        self._held.add((member, number))

    def is_held(self, member: int, number: int) -> bool:
        """Return True if a reply about this request is held."""
        return (member, number) in self._held

    def next_acknowledged(self, members: frozenset[int], now_s: float) -> Held | None:
        """Remove and return the next reply that can be sent; None if there is none."""
        held = self.held
        if not held or not self.is_acknowledged(members, (held[0].requests_taken, held[0].tokens_taken)):
            return None
        one = held.popleft()
        self._held.discard((one.member, one.number))
        self._commit_held(one, now_s)
        return one

    def _commit_held(self, one: Held, now_s: float) -> None:
        if one.has_reserved:
            self.commit(one.member, one.number, one.tokens, now_s)

    def find_unresponsive(self, members: frozenset[int], now_s: float) -> None:
        """Ignore members that have not acknowledged the oldest held reply in time."""
        held = self.held
        if held and now_s - held[0].since_s >= ACK_MAX_S:
            taken = (held[0].requests_taken, held[0].tokens_taken)
            self._unresponsive.update([one for one in members if not self.is_acknowledged(frozenset([one]), taken)])

    # --- members ---

    def forget_requests(self, member: int, now_s: float) -> None:
        """Drop the undecided requests and the held replies of a member, which sends its requests again."""
        for asked in [asked for asked in self.waiting if asked[0] == member]:
            del self.waiting[asked]
        if any(one.member == member for one in self.held):
            for one in self.held:
                if one.member == member:
                    self._commit_held(one, now_s)
            self.held = deque([one for one in self.held if one.member != member])
            self._held = {(one.member, one.number) for one in self.held}

    def ended(self, member: int, now_s: float) -> None:
        """Forget a member that has ended."""
        self.forget_requests(member, now_s)
        for number in self.open.pop(member, {}):
            self._free_s.pop((member, number), None)
        self._acknowledged.pop(member, None)
        self._unresponsive.discard(member)


def _slack(bucket: Bucket | None) -> float:
    return 0.0 if bucket is None else float(bucket.limit // SLACK_PARTS)


def _bucket(limit: int, period_s: float, before: Bucket | None, now_s: float) -> Bucket | None:
    if limit == 0:
        return None
    if before is None:
        return Bucket(limit, period_s)
    before.change(limit, period_s, now_s)
    return before
