"""The replies of the owner of quotas, which wait until the other members have acknowledged the taken amounts."""

from __future__ import annotations

from typing import final

from activator.data_plane.quotas.ledger import ADMITTED, Ledger
from activator.data_plane.quotas.links import Links
from activator.data_plane.quotas.messages import Decision, QuotaDecision, QuotaLevel, QuotaReleaseAck
from activator.data_plane.quotas.quota import Quota
from activator.runtime.clock import Now


@final
class Replies:
    """The replies of this data plane to requests for quotas that it owns."""

    def __init__(self, links: Links, now: Now) -> None:
        self._links = links
        self._now = now

    def send_when_acknowledged(
        self,
        quota: Quota,
        ledger: Ledger,
        member: int,
        number: int,
        decision: Decision | None,
        requests: float = 0.0,
        tokens: float = 0.0,
    ) -> None:
        """Reply to a member: at once with a rejection, else when the others have acknowledged the taken amounts.

        `decision`: None acknowledges a release. `requests`, `tokens`: the amounts reserved for the request.
        """
        if decision is not None and decision.limit != ADMITTED:
            self._reply(quota, member, number, decision)
            return
        if ledger.held or not ledger.is_acknowledged(self._links.others, ledger.taken()):
            ledger.hold_reply(member, number, decision, requests, tokens, self._now())
        else:
            if requests > 0.0 or tokens > 0.0:
                ledger.commit(member, number, requests, tokens, self._now())
            self._reply(quota, member, number, decision)
        if self._links.others and ledger.claim_report(len(ledger.held) > 0):
            self.report_level(quota, ledger, self._links.others)

    def send_acknowledged(self, quota: Quota, ledger: Ledger) -> None:
        """Send the held replies whose amounts have been acknowledged."""
        now_s = self._now()
        held = ledger.next_acknowledged(self._links.others, now_s)
        while held is not None:
            self._reply(quota, held.member, held.number, held.decision)
            held = ledger.next_acknowledged(self._links.others, now_s)
        if self._links.others and ledger.claim_report(len(ledger.held) > 0):
            self.report_level(quota, ledger, self._links.others)

    def _reply(self, quota: Quota, member: int, number: int, decision: Decision | None) -> None:
        """Send a reply, or set the decision on a request of this member."""
        if member == self._links.number:
            asked = quota.asking.pop(number, None)
            if asked is not None and decision is not None:
                quota.apply_decision(asked, decision)
        elif decision is None:
            self._links.send(member, QuotaReleaseAck(self._links.epoch, quota.key, number))
        else:
            self._links.send(member, QuotaDecision(self._links.epoch, quota.key, number, decision))

    def report_level(self, quota: Quota, ledger: Ledger, members: frozenset[int]) -> None:
        """Send the usage of a quota to these members."""
        message = QuotaLevel(self._links.epoch, quota.key, ledger.level(self._now()), *ledger.taken())
        for member in members:
            self._links.send(member, message)
