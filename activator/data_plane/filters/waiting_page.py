"""The page that a browser is shown while no pod of its revision is ready (`waiting_page`). It reloads itself.

All values from outside are escaped.
"""

from __future__ import annotations

from html import escape
from math import ceil
from string import Template
from typing import Final, final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.config.specs import WaitingPageSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.filters.start_request import start_request_for
from activator.data_plane.refusals import PHRASES, POSITION_HEADER
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason

PAGE_TYPE: Final = b"text/html; charset=utf-8"
MISSED_REFRESHES: Final = 3  # a browser that misses this many reloads has closed the page
CLOSED_AFTER_S: Final = 5.0  # added to that time, because browsers delay reloads in the background

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

# With a position in the tab order, so that it can be scrolled by keyboard.
_OUTPUT: Final = '<pre class="output" tabindex="0" role="log" aria-label="Last output of the program">{}</pre>\n'


@final
class PageTemplate:
    """The page template of one revision."""

    def __init__(self, key: str, spec: WaitingPageSpec) -> None:
        self._name = key.removeprefix("default/")
        self._refresh_s: float = spec.refresh_s
        self._shows_output: bool = spec.output
        self._template = Template(spec.template or _PAGE)

    def page(
        self, waited_s: float, usual_s: float, waiting: int, output: tuple[str, ...] = ()
    ) -> tuple[ResponseHead, bytes]:
        """Return the page.

        `waited_s`: duration of the start so far; `usual_s`: that of the last start, 0.0 if unknown; `output`: the last
        lines of the program.
        """
        values = {
            "name": escape(self._name),
            "waited": f"{waited_s:.0f}",
            "expected": f" of about {ceil(usual_s)} s" if usual_s > 0.0 else "",
            "waiting": str(waiting),
            "output": _OUTPUT.format(escape("\n".join(output))) if output and self._shows_output else "",
        }
        body = self._template.safe_substitute(values).encode()
        seconds = str(max(ceil(self._refresh_s), 1)).encode()
        headers: Headers = [
            (b"Content-Type", PAGE_TYPE),
            (b"Activator-Reason", Reason.STARTING.value.encode()),
            (b"Cache-Control", b"no-store"),
            (POSITION_HEADER, str(waiting).encode()),
            (b"Refresh", f"{self._refresh_s:g}".encode()),
            (b"Retry-After", seconds),
        ]
        return ResponseHead(503, PHRASES[503], Fields.from_pairs(headers), len(body), True), body


@final
class WaitingPage(Filter):
    """The filter that shows browsers the page while no pod is ready; a start request waits on their behalf."""

    def __init__(self, key: str, spec: WaitingPageSpec, wheel: TimingWheel, now: Now) -> None:
        self._page = PageTemplate(key, spec)
        self._open_s = MISSED_REFRESHES * spec.refresh_s + CLOSED_AFTER_S  # how long a page counts as open
        self._wheel = wheel
        self._now = now

    def on_request(self, request: Exchange) -> None:
        throttler = request.throttler
        if throttler is None or throttler.table.capacity != 0 or request.is_detached or request.upgrade:
            return
        if not wants_page(request.head):
            return
        start_request = start_request_for(request, throttler, self._wheel)
        if start_request is None:
            return
        now_s = self._now()
        start_request.wait_until(now_s + self._open_s)
        request.reason = Reason.STARTING
        waited_s, usual_s = throttler.queue.start_progress(now_s)
        request.respond(
            *self._page.page(waited_s, usual_s, throttler.queue.waiting(), throttler.queue.start_observers.output)
        )


def wants_page(head: RequestHead) -> bool:
    """Return True for the navigation of a browser, which displays the response."""
    if head.method != b"GET" or head.has_body:
        return False
    mode = head.headers.get(b"sec-fetch-mode")
    if mode is not None and mode != b"navigate":
        return False
    accept = head.headers.get(b"accept")
    return accept is not None and b"text/html" in accept
