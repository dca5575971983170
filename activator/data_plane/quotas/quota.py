"""The quota of one user in one data plane, and its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from activator.config.specs import QuotaSpec
from activator.data_plane.quotas.ledger import ADMITTED, Ledger
from activator.data_plane.quotas.messages import Decision
from activator.data_plane.users import Admission


@final
class AdmissionRequest(Admission):
    """One request that needs admission. `decision`: None until it is made; then `decided` is called, if it is set."""

    def __init__(self, quota: Quota, number: int, tokens: int, asked_s: float) -> None:
        super().__init__()
        self.quota = quota
        self.number = number
        self.tokens = tokens  # reserved for the request
        self.prompt_tokens: int = 0  # the part of `tokens` for its prompt
        self.asked_s = asked_s
        self.decision: Decision | None = None
        self.decided: Callable[[], None] | None = None

    def set_decision(self, decision: Decision) -> None:
        """Set the decision, and call `decided`."""
        self.decision = decision
        if self.decided is not None:
            self.decided()


@final
class Quota:
    """The quota of one user, and this member's requests."""

    def __init__(self, name: str, spec: QuotaSpec) -> None:
        self.name = name
        self.key = key_of(name)
        self.spec = spec
        self.is_dropped: bool = False  # a reload has removed the limits, and requests are still open
        self.ledger: Ledger | None = None  # set at the owner
        self.owner: int = 0  # the member that decides
        self.asking: dict[int, AdmissionRequest] = {}  # undecided requests, by number
        self.open: dict[int, int] = {}  # admitted requests that have not ended, with their reserved tokens
        self.settling: dict[int, int] = {}  # excess tokens of ended requests that the owner has not counted yet
        self.rejected: dict[str, int] = {}  # numbers of rejected requests, by the limit that rejected them
        self.exhausted_until_s: float = 0.0  # until then the owner rejects any request

    def apply_decision(self, asked: AdmissionRequest, decision: Decision) -> None:
        """Set the decision on a request; count it if it is a rejection."""
        if decision.limit != ADMITTED:
            self.rejected[decision.limit] = self.rejected.get(decision.limit, 0) + 1
        asked.set_decision(decision)


def key_of(name: str) -> str:
    """Return the key of the quota of this user, which is not the name of any revision."""
    return f"user {name}"
