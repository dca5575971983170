"""Many requests that look for their revision in one call, for the benchmarks.

The loops are plain Python, so each time contains the calls into compiled code, which the proxy does not pay.
"""

from __future__ import annotations

from activator.codec.json_field import FieldScan
from activator.codec.message import RequestHead
from activator.data_plane.exchange import ClientStream
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.rules import NEEDS_MODEL, Question
from activator.data_plane.throttle.revision import RevisionThrottler


class RoutingDrill:
    """The same request again and again; `found` is its revision."""

    def __init__(self, router: Router, head: RequestHead, model: str) -> None:
        self._router = router
        self._head = head
        self._model = model
        self._client = ClientStream()
        self.found: RevisionThrottler | None = None

    def by_host(self, times: int) -> None:
        """As a request whose host leads to one revision."""
        for _ in range(times):
            self.found = self._router.resolve(self._head)

    def by_rules(self, times: int) -> None:
        """As one whose host has rules, with a body that says `model`."""
        for _ in range(times):
            self.found = self._router.resolve(self._head)
            rules = self._router.rules_of(self._head.authority)
            assert rules is not None and self.found is None
            question = Question(self._head)
            question.read_path(rules)
            if rules.decide(question) == NEEDS_MODEL:
                question.model_known = question.has_model = True
                question.model = self._model
                rules.decide(question)
            rule = question.target
            if rule is not None:
                self.found = rule.pick(self._head, self._client)

    def scan(self, body: bytes, bytes_max: int, times: int) -> None:
        """Look for the model in a body that is here whole."""
        for _ in range(times):
            FieldScan("model", bytes_max).feed(body)
