"""The selection of one request's revision among the rules of its host, and the edits of the request that follow.

Rules
  1. The body is inspected only if a rule depends on it: its first SCAN_BYTES_MAX bytes, for at most SCAN_TIMEOUT_S. A
     body with a content coding is not inspected, nor is a stream whose pod may have to send first (gRPC).
  2. A request that matches no rule because its model cannot be determined gets a 400, any other a 404.
  3. If an alias selected the revision and `rewrite_model` is set, the model in the body is replaced before the
     revision's budget counts the body. Content-Length is adjusted, and digests of the body are removed.
"""

from __future__ import annotations

import json
from typing import Final, final

from activator.codec.json_field import BEYOND, FOUND, PENDING, FieldScan
from activator.codec.message import RequestHead, ResponseHead
from activator.data_plane.buffering import is_request_streamed
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.proxy.model_guard import DIGESTS, MODEL, SCAN_BYTES_MAX, is_alias, is_identity, model_of
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.proxy.rules import NEEDS_MODEL, HostRules, RouteQuery
from activator.data_plane.refusals import json_head
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.users import Access
from activator.runtime.errors import one_line
from activator.runtime.reasons import Reason
from activator.runtime.url_path import without_segments

SCAN_TIMEOUT_S: Final = 30.0  # how long a client may take to send the scanned bytes

_SHOWN_MAX: Final = 100  # characters of a client's text in a refusal
_READS: Final = frozenset({b"GET", b"HEAD"})


@final
class Selection:
    """The selection of one request's revision.

    `bytes_max`: how much of a body may be held before the revision is known. `edits`: receives the edits for the pod.
    """

    def __init__(self, rules: HostRules, head: RequestHead, edits: HeadEdits, bytes_max: int) -> None:
        self._bytes_max = min(bytes_max, SCAN_BYTES_MAX)
        self._rules = rules
        self._head = head
        self._edits = edits
        self._query = RouteQuery(head)
        self._query.read_path(rules)
        self._scan: FieldScan | None = None
        self.reason: Reason = Reason.NO_ROUTE
        self.detail: str = ""

    def list_of_models(self, access: Access | None, now_s: float) -> tuple[ResponseHead, bytes] | None:
        """Return the list of models that the request may use, if it asks for that list."""
        if self._head.method not in _READS:
            return None
        listed = self._rules.lists(access).get(self._query.path)
        if listed is None:
            return None
        body = listed.body(now_s)
        return json_head(len(body)), body

    def begin_scan_if_needed(self, body: RequestBody | None, is_whole: bool) -> bool:
        """Search with the part of the request that has arrived; return True if more of its body is needed."""
        query = self._query
        if query.refusal:
            return False
        head = self._head
        if body is None or is_request_streamed(head) or not is_identity(head):
            query.model_known = True
        if self._rules.decide(query) != NEEDS_MODEL:
            return False
        self._scan = FieldScan(MODEL, self._bytes_max)
        if body is not None:
            for piece in body.pieces():
                self._scan.feed(piece)
        if is_whole:
            self._scan.finish()
        return not self.is_decided()

    def scan_until_decided(self, data: bytes) -> bool:
        """Scan the next piece of the body; return True if no more is needed."""
        scan = self._scan
        if scan is not None:
            scan.feed(data)
        return self.is_decided()

    def finish(self) -> None:
        """End the scan with the body."""
        if self._scan is not None:
            self._scan.finish()

    def is_decided(self) -> bool:
        """Return True if no more of the body is needed."""
        return self._scan is None or self._scan.state != PENDING

    def replace_rules(self, rules: HostRules) -> None:
        """Replace the rules, which may have changed while the body arrived."""
        self._rules = rules
        self._query.read_path(rules)

    def select_revision(self, client: ClientStream) -> RevisionThrottler | None:
        """Return the revision, and edit the path for its pods; without one, return None, set `reason` and `detail`."""
        query = self._query
        if query.refusal:
            self.reason = Reason.BAD_REQUEST
            self.detail = query.refusal
            return None
        scan = self._scan
        if scan is not None:
            query.model_known = True
            query.has_model = scan.state == FOUND
            query.model = scan.value
            self._rules.decide(query)
        rule = query.target
        if rule is None:
            self._explain_refusal(scan)
            return None
        throttler = rule.pick(self._head, client)
        self._set_target(throttler)
        return throttler

    def rewrite_model(self, throttler: RevisionThrottler, body: RequestBody | None) -> bool:
        """Replace an alias in the body with the pod's name of the model, if there is one.

        Return False if the budget has no room.
        """
        routing = throttler.routing
        scan = self._scan
        if body is None or scan is None or scan.state != FOUND or not is_alias(routing, scan.value):
            return True
        name = json.dumps(routing.rewrite_model).encode()
        if not body.replace(scan.start, scan.end, name):
            return False
        length = self._head.content_length
        if length >= 0:
            self._edits.set_content_length(length + len(name) - (scan.end - scan.start))
        self._edits.remove(DIGESTS)
        return True

    def model_for_pod(self, throttler: RevisionThrottler) -> str:
        """Return the model that the pod receives; empty if no model selected the revision."""
        return model_of(throttler.routing, self._scan)

    # --- within ---

    def _explain_refusal(self, scan: FieldScan | None) -> None:
        """Set `reason` and `detail` of a request that matches no rule."""
        query = self._query
        if scan is not None and scan.state == FOUND:
            self.detail = f', model "{_shown(scan.value)}"'
        elif query.lacks_model and self._head.has_body:
            self.reason = Reason.BAD_REQUEST
            where = f"the first {self._bytes_max} bytes of the body" if _is_beyond(scan) else "the body"
            self.detail = f"the revision is chosen by `{MODEL}`, and {where} has no such text in its outermost object"
            return
        path = _shown(query.path.decode("latin-1"))
        self.detail = f"{self._head.authority.decode('latin-1')}{path}{self.detail}"

    def _set_target(self, throttler: RevisionThrottler) -> None:
        """Set the path that the pod receives."""
        query = self._query
        head = self._head
        match = throttler.routing.match
        target = head.target
        path = query.sent
        is_changed = path != b""
        mark = target.find(b"?")
        if not is_changed:
            path = target if mark < 0 else target[:mark]
        prefix = match.path.encode("latin-1")
        if match.strip_path and prefix and (query.path == prefix or query.path.startswith(prefix + b"/")):
            path = without_segments(path, prefix.count(b"/"))
            stripped = head.headers.get(b"x-forwarded-prefix") or b""  # set by a trusted proxy before this one
            self._edits.set(b"X-Forwarded-Prefix", stripped.rstrip(b"/") + prefix)
            is_changed = True
        if is_changed:
            self._edits.set_target(path if mark < 0 else path + target[mark:])


def _is_beyond(scan: FieldScan | None) -> bool:
    return scan is not None and scan.state == BEYOND


def _shown(text: str) -> str:
    return one_line(text[:_SHOWN_MAX])
