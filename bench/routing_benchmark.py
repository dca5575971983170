"""Loops that resolve the revision of many requests in one call, for the benchmarks.

The loops are plain Python, so each time includes the calls into compiled code, which the proxy itself does not need.
"""

from __future__ import annotations

from activator.codec.json_field import FieldScan
from activator.codec.message import RequestHead
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.rules import NEEDS_MODEL, RouteQuery
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler


class RoutingBenchmark:
    """Resolves the same request repeatedly; `found` is its revision."""

    def __init__(self, router: Router, head: RequestHead, model: str) -> None:
        self._router = router
        self._head = head
        self._model = model
        self._client = ClientStream()
        self.found: RevisionThrottler | None = None

    def by_host(self, times: int) -> None:
        """Resolve a request whose host has one revision."""
        for _ in range(times):
            self.found = self._router.resolve(self._head)

    def by_rules(self, times: int) -> None:
        """Resolve a request whose host has rules, with a body that contains `model`."""
        for _ in range(times):
            self.found = self._router.resolve(self._head)
            rules = self._router.rules_of(self._head.authority)
            assert rules is not None and self.found is None
            query = RouteQuery(self._head)
            query.read_path(rules)
            if rules.decide(query) == NEEDS_MODEL:
                query.model_known = query.has_model = True
                query.model = self._model
                rules.decide(query)
            rule = query.target
            if rule is not None:
                self.found = rule.pick(self._head, self._client)

    def scan(self, body: bytes, bytes_max: int, times: int) -> None:
        """Search for the model in a complete body."""
        for _ in range(times):
            FieldScan("model", bytes_max).feed(body)
