"""Requests that start no pod and do not count as activity, such as probes of monitors (`no_wake`)."""

from __future__ import annotations

from typing import final

from activator.codec.message import RequestHead, ResponseHead
from activator.config.specs import QuietSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.refusals import PHRASES, refusal_head
from activator.runtime.reasons import Reason


@final
class _Rule:
    """One entry of `no_wake`, with its strings as bytes."""

    def __init__(self, spec: QuietSpec) -> None:
        self.path: bytes = spec.path.encode()
        self.methods: frozenset[bytes] = frozenset([method.encode() for method in spec.methods])
        self.user_agent: bytes = spec.user_agent.lower().encode()
        self.status: int = spec.status

    def matches(self, head: RequestHead) -> bool:
        if self.methods and head.method not in self.methods:
            return False
        if not head.target.startswith(self.path):
            return False
        if self.user_agent:
            agent = head.headers.get(b"user-agent")
            return agent is not None and agent.lower().startswith(self.user_agent)
        return True


@final
class NoWake(Filter):
    """The filter that makes requests of a rule quiet, and responds to them while no pod is ready."""

    def __init__(self, key: str, rules: tuple[QuietSpec, ...]) -> None:
        self._name = key.removeprefix("default/")
        self._rules: list[_Rule] = [_Rule(rule) for rule in rules]

    def on_routed(self, request: Exchange) -> None:
        if self._rule_status(request.head) != 0:
            request.is_quiet = True

    def on_request(self, request: Exchange) -> None:
        throttler = request.throttler
        if request.is_quiet and throttler is not None and throttler.table.capacity == 0:
            status = self._rule_status(request.head)
            body = f"no pod of {self._name} is ready, and this request starts none\n".encode()
            fields = refusal_head(Reason.ASLEEP, body, 0).headers
            request.reason = Reason.ASLEEP
            request.respond(ResponseHead(status, PHRASES.get(status, b""), fields, len(body), True), body)

    def _rule_status(self, head: RequestHead) -> int:
        """Return the status of the first rule that matches, for a response while no pod is ready; 0 if none matches."""
        for rule in self._rules:
            if rule.matches(head):
                return rule.status
        return 0
