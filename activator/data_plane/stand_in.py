"""What the activator answers in the place of a revision: to probes that wake nothing, to browsers that come while no
pod is ready, and instead of a refusal.

Rules
  1. Only a revision whose file asks for it has one; others pay for a look at None.
  2. Nothing here changes what a request is owed: a page is shown only where the request would have to wait for a pod,
     a fallback only where it would have been refused.
  3. What comes from outside gets into a page escaped.
"""

from __future__ import annotations

from html import escape
from math import ceil
from string import Template
from typing import Final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.config.specs import AsyncSpec, ProgressSpec, QuietSpec, RevisionSpec
from activator.data_plane.refusals import PHRASES, refusal_head
from activator.runtime.reasons import Reason, Substitute

PAGE_TYPE: Final = b"text/html; charset=utf-8"
POSITION_HEADER: Final = b"Activator-Queue-Position"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Starting $name</title>
<style>
:root { color-scheme: light dark; }
body { display: grid; font: 16px/1.6 system-ui, sans-serif; margin: 0; min-height: 100vh; place-items: center; }
main { max-width: min(30rem, 100vw - 2rem); padding: 1rem; text-align: center; }
.output { /* the last line is the one that is seen first */
  border: 1px solid; border-radius: 4px; display: flex; flex-direction: column-reverse; font-size: 0.8125rem;
  line-height: 1.4; max-height: 24rem; overflow: auto; overflow-wrap: anywhere; padding: 0.5rem; text-align: start;
  white-space: pre-wrap;
}
</style>
</head>
<body>
<main>
<h1>Starting $name</h1>
<p role="status">$waited s so far$expected. $waiting waiting.</p>
$output<p>This page loads itself again.</p>
</main>
</body>
</html>
"""

# With a place in the order of the Tab key, so that one can scroll it without a mouse.
_OUTPUT: Final = '<pre class="output" tabindex="0" role="log" aria-label="Last output of the program">{}</pre>\n'


class _Quiet:
    """One entry of `no_wake`, as bytes."""

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
            said = head.headers.get(b"user-agent")
            return said is not None and said.lower().startswith(self.user_agent)
        return True


class StandIn:
    """Of one revision."""

    def __init__(self, spec: RevisionSpec) -> None:
        self._name = spec.key.removeprefix("default/")
        self._quiet: list[_Quiet] = [_Quiet(rule) for rule in spec.no_wake]
        self.has_page: bool = spec.waiting_page_refresh_s > 0.0
        self.refresh_s: float = spec.waiting_page_refresh_s
        self.shows_output: bool = spec.waiting_page_output
        self._template = Template(spec.waiting_page or _PAGE)
        self.quiet_tunnels_s: float = spec.quiet_tunnels_s
        self.quiet_streams_s: float = spec.quiet_streams_s
        self.progress: ProgressSpec | None = spec.progress
        self.respond_async: AsyncSpec | None = spec.respond_async
        self._fallback: bytes = spec.fallback_body.encode()
        self._fallback_type: bytes = spec.fallback_type.encode()
        self.fallback_revision: str = spec.fallback_revision
        self.falls_back_while_starting: bool = spec.fallback_while_starting
        self._redirect: bytes = spec.fallback_redirect.encode()

    # --- probes and monitors ---

    def is_quiet(self, head: RequestHead) -> bool:
        """The request wakes nothing, and is no activity."""
        return self._quiet_status(head) != 0

    def asleep(self, head: RequestHead) -> tuple[ResponseHead, bytes]:
        """The answer to a quiet request while no pod is ready."""
        body = f"no pod of {self._name} is ready, and this request starts none\n".encode()
        status = self._quiet_status(head)
        fields = refusal_head(Reason.ASLEEP, body, 0).headers
        return ResponseHead(status, PHRASES.get(status, b""), fields, len(body), True), body

    def _quiet_status(self, head: RequestHead) -> int:
        for rule in self._quiet:
            if rule.matches(head):
                return rule.status
        return 0

    # --- browsers ---

    def wants_page(self, head: RequestHead) -> bool:
        """It is the navigation of a browser, which shows what it is sent."""
        if not self.has_page or head.method != b"GET" or head.has_body:
            return False
        mode = head.headers.get(b"sec-fetch-mode")
        if mode is not None and mode != b"navigate":
            return False
        accept = head.headers.get(b"accept")
        return accept is not None and b"text/html" in accept

    def page(
        self, waited_s: float, usual_s: float, waiting: int, output: tuple[str, ...] = ()
    ) -> tuple[ResponseHead, bytes]:
        """`waited_s`: the start has taken so long; `usual_s`: the last one took so long, 0.0: not known; `output`: the
        last lines of the program, where they may be shown.
        """
        values = {
            "name": escape(self._name),
            "waited": f"{waited_s:.0f}",
            "expected": f" of about {ceil(usual_s)} s" if usual_s > 0.0 else "",
            "waiting": str(waiting),
            "output": _OUTPUT.format(escape("\n".join(output))) if output and self.shows_output else "",
        }
        body = self._template.safe_substitute(values).encode()
        seconds = str(max(ceil(self.refresh_s), 1)).encode()
        headers: Headers = [
            (b"Content-Type", PAGE_TYPE),
            (b"Activator-Reason", Reason.STARTING.value.encode()),
            (b"Cache-Control", b"no-store"),
            (POSITION_HEADER, str(waiting).encode()),
            (b"Refresh", f"{self.refresh_s:g}".encode()),
            (b"Retry-After", seconds),
        ]
        return ResponseHead(503, PHRASES[503], Fields.from_pairs(headers), len(body), True), body

    # --- failures ---

    def fallback(self, reason: Reason, head: RequestHead, retry_after_s: int) -> tuple[ResponseHead, bytes] | None:
        """In the place of the refusal; None: the refusal it is."""
        if not reason.substitute & Substitute.RESPONSE:
            return None
        if self._redirect:
            if head.method != b"GET" and head.method != b"HEAD":
                return None
            headers: Headers = [
                (b"Location", self._redirect),
                (b"Activator-Reason", reason.value.encode()),
                (b"Cache-Control", b"no-store"),
            ]
            return ResponseHead(302, PHRASES[302], Fields.from_pairs(headers), 0, True), b""
        if not self._fallback:
            return None
        headers = [
            (b"Content-Type", self._fallback_type),
            (b"Activator-Reason", reason.value.encode()),
            (b"Cache-Control", b"no-store"),
        ]
        if retry_after_s > 0:
            headers.append((b"Retry-After", str(retry_after_s).encode()))
        status = reason.status
        made = ResponseHead(status, PHRASES.get(status, b""), Fields.from_pairs(headers), len(self._fallback), True)
        return made, self._fallback


def stand_in_of(spec: RevisionSpec) -> StandIn | None:
    """None: the revision wants none."""
    wants_one = (
        spec.no_wake
        or spec.waiting_page_refresh_s > 0.0
        or spec.fallback_body
        or spec.fallback_redirect
        or spec.fallback_revision
        or spec.respond_async is not None
        or spec.progress is not None
        or spec.quiet_tunnels_s > 0.0
        or spec.quiet_streams_s > 0.0
    )
    return StandIn(spec) if wants_one else None
