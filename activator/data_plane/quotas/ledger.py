"""The owner's record of one quota: what is used, by whose requests, and what the other members know about it.

Rules
  1. A decision that takes something is told only when each other member of the view knows all that was taken before but
     a small part (SLACK_PARTS). Until then it is held. So an owner that takes over from one that ended counts at least
     what that one has taken: what a member knows, and that part.
     What is told later counts as taken then.
  2. A member that does not note anything for NOTE_MAX_S is not waited for until it does.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, final

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.bucket import Bucket
from activator.data_plane.quotas.messages import Level

SLACK_PARTS: Final = 16  # of a limit, one part may be taken without being known elsewhere
NOTE_MAX_S: Final = 3.0  # longer than the silence after which a replica leaves the view
CONCURRENCY_RETRY_S: Final = 1.0  # nobody knows when a request will end

ADMITTED: Final = ""
CONCURRENCY: Final = "concurrency"
REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
UNKNOWN: Final = "unknown"  # nobody could be asked
LIMITS: Final = (CONCURRENCY, REQUESTS, TOKENS, UNKNOWN)


class Decision(NamedTuple):
    """A decision about one request. The fields are those of `QuotaReply`."""

    limit: str
    wait_s: float
    requests_left: int
    requests_full_s: float
    tokens_left: int
    tokens_full_s: float


class Held(NamedTuple):
    """Something that is told to `member` once the others know that these amounts were taken.

    `decision`: that about the request; None: its end has been counted. `has_taken`: the request has taken its amounts
    for it, with these `tokens`.
    """

    member: int
    number: int
    decision: Decision | None
    has_taken: bool
    tokens: int
    requests_taken: float
    tokens_taken: float
    since_s: float


@final
class Ledger:
    """The record of one quota. `needs_call`: the call to which all members must have replied before it begins."""

    def __init__(self, spec: QuotaSpec, needs_call: int) -> None:
        self.spec = spec
        self.requests: Bucket | None = _bucket(spec.requests, spec.requests_period_s, None, 0.0)
        self.tokens: Bucket | None = _bucket(spec.tokens, spec.tokens_period_s, None, 0.0)
        self.needs_call = needs_call
        self.since: int = 0  # the epoch in which it began to grant; 0: it has not begun
        self.levels: list[Level] = []  # from members, before it begins
        self.open: dict[int, dict[int, int]] = {}  # the admitted requests of other members, with their tokens
        self.waiting: dict[tuple[int, int], int] = {}  # requests that nobody has decided on, with their tokens
        self.held: deque[Held] = deque()
        self._held: set[tuple[int, int]] = set()  # their members and numbers
        self._free_s: dict[tuple[int, int], float] = {}  # when the reserved tokens of a request are free again
        self._noted: dict[int, tuple[float, float]] = {}  # what each member knows to be taken
        self._sent: tuple[float, float] = (-1.0, -1.0)  # the amounts in the last `QuotaLevel`
        self._lagging: set[int] = set()

    def configure(self, spec: QuotaSpec, now_s: float) -> None:
        """Apply other limits; what is used stays used."""
        self.spec = spec
        self.requests = _bucket(spec.requests, spec.requests_period_s, self.requests, now_s)
        self.tokens = _bucket(spec.tokens, spec.tokens_period_s, self.tokens, now_s)

    # --- decisions ---

    def decide(self, tokens: int, own_open: int, now_s: float) -> Decision:
        """Take what a request needs if nothing refuses it. `own_open`: the owner's own admitted requests.

        After ADMITTED, `told` or `hold` must be called.
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
            budget.take(tokens)
        if bucket is not None:
            bucket.take(1.0)
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

        A former owner's reservation is not given back, because it may be free again.
        """
        budget = self.tokens
        free_s = self._free_s.pop((member, number), 0.0)
        if budget is not None and change > 0:
            budget.add(change, now_s)
        elif budget is not None and change < 0:
            budget.give_back(-change, free_s, now_s)

    # --- what is used ---

    def level(self, now_s: float, is_exact: bool = False) -> Level:
        """Return what is used."""
        requests = 0.0 if self.requests is None else self.requests.used(now_s)
        tokens = 0.0 if self.tokens is None else self.tokens.used(now_s)
        return Level(self.since, requests, tokens, is_exact)

    def begin(self, since: int, now_s: float) -> None:
        """Begin to grant, in the epoch `since`: the use by the last owner adds to what was settled until now."""
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

    # --- what others know ---

    def taken(self) -> tuple[float, float]:
        """Return everything that was ever taken."""
        requests, tokens = self.requests, self.tokens
        return (0.0 if requests is None else requests.taken, 0.0 if tokens is None else tokens.taken)

    def is_known(self, members: frozenset[int], taken: tuple[float, float]) -> bool:
        """Return True if each of these members knows all of `taken` but the slack; False before it begins."""
        if self.since == 0:
            return False
        requests, tokens = taken[0] - _slack(self.requests), taken[1] - _slack(self.tokens)
        for member in members:
            noted = self._noted.get(member)
            if (noted is None or noted[0] < requests or noted[1] < tokens) and member not in self._lagging:
                return False
        return True

    def must_tell(self, is_held: bool) -> bool:
        """Return True if a `QuotaLevel` is to be sent now. `is_held`: something waits for it."""
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

    def noted(self, member: int, requests_taken: float, tokens_taken: float) -> None:
        """Handle what a member knows now."""
        self._noted[member] = (requests_taken, tokens_taken)
        self._lagging.discard(member)

    def told(self, member: int, number: int, tokens: int, now_s: float) -> None:
        """Let what an admitted request has taken become free from now on."""
        if self.requests is not None:
            self.requests.told(1.0, now_s)
        if self.tokens is not None:
            self._free_s[member, number] = self.tokens.told(tokens, now_s)

    def hold(
        self, member: int, number: int, decision: Decision | None, has_taken: bool, tokens: int, now_s: float
    ) -> None:
        """Tell a member something later."""
        self.held.append(Held(member, number, decision, has_taken, tokens, *self.taken(), now_s))
        self._held.add((member, number))

    def is_held(self, member: int, number: int) -> bool:
        """Return True if this member is told something about this request later."""
        return (member, number) in self._held

    def next_known(self, members: frozenset[int], now_s: float) -> Held | None:
        """Remove and return the next thing that can be told; None if there is none."""
        held = self.held
        if not held or not self.is_known(members, (held[0].requests_taken, held[0].tokens_taken)):
            return None
        one = held.popleft()
        self._held.discard((one.member, one.number))
        self._let_go(one, now_s)
        return one

    def _let_go(self, one: Held, now_s: float) -> None:
        if one.has_taken:
            self.told(one.member, one.number, one.tokens, now_s)

    def find_lagging(self, members: frozenset[int], now_s: float) -> None:
        """Stop waiting for members that have been waited for too long."""
        held = self.held
        if held and now_s - held[0].since_s >= NOTE_MAX_S:
            taken = (held[0].requests_taken, held[0].tokens_taken)
            self._lagging.update([one for one in members if not self.is_known(frozenset([one]), taken)])

    # --- members ---

    def forget_asks(self, member: int, now_s: float) -> None:
        """Forget the undecided and the untold requests of a member, which asks again; what they took stays taken."""
        for asked in [asked for asked in self.waiting if asked[0] == member]:
            del self.waiting[asked]
        if any(one.member == member for one in self.held):
            for one in self.held:
                if one.member == member:
                    self._let_go(one, now_s)
            self.held = deque([one for one in self.held if one.member != member])
            self._held = {(one.member, one.number) for one in self.held}

    def ended(self, member: int, now_s: float) -> None:
        """Forget a member that has ended."""
        self.forget_asks(member, now_s)
        for number in self.open.pop(member, {}):
            self._free_s.pop((member, number), None)
        self._noted.pop(member, None)
        self._lagging.discard(member)


def _slack(bucket: Bucket | None) -> float:
    return 0.0 if bucket is None else float(bucket.limit // SLACK_PARTS)


def _bucket(limit: int, period_s: float, before: Bucket | None, now_s: float) -> Bucket | None:
    if limit == 0:
        return None
    if before is None:
        return Bucket(limit, period_s)
    before.change(limit, period_s, now_s)
    return before
