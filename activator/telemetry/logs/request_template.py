"""Knative's request log: lines from a Go text/template, limited to the constructs that request logs use.

    {{.Request.Method}}   {{js .Request.UserAgent}}   {{index .Request.Header "X-Name"}}   {{.Response.Latency}}

Rules
  1. An action is a field, `index` of a header, or `js` before either; any other is refused with an error that names it.
  2. `js` escapes as Go's does, except for the apostrophe, which is escaped as in JSON, so that the line remains JSON.
  3. Fields that Knative's activator never sets (pods' addresses) are empty; the trace id is set. RemoteAddr has no
     port.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.trace_context import trace_id_of
from activator.data_plane.streams import ClientStream
from activator.telemetry.logs.fields import header_of, printable, shown_target, status_of, without_zone
from activator.telemetry.logs.json_line import seconds

_ACTION: Final = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_FIELD: Final = re.compile(
    r'(?P<js>js\s+)?(?:\.(?P<name>[A-Za-z.]+)|\(?index\s+\.Request\.Header\s+"(?P<header>[^"]+)"\)?)'
)
_JS_ESCAPED: Final = str.maketrans({
    "\\": "\\\\", '"': '\\"', "'": "\\u0027", "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D",
})  # fmt: skip

# The fields that Knative logs if the request log is enabled without a template.
KNATIVE_FIELDS: Final = (
    ("requestMethod", '"{{.Request.Method}}"'),
    ("requestUrl", '"{{js .Request.RequestURI}}"'),
    ("requestSize", '"{{.Request.ContentLength}}"'),
    ("status", "{{.Response.Code}}"),
    ("responseSize", '"{{.Response.Size}}"'),
    ("userAgent", '"{{js .Request.UserAgent}}"'),
    ("remoteIp", '"{{js .Request.RemoteAddr}}"'),
    ("serverIp", '"{{.Revision.PodIP}}"'),
    ("referer", '"{{js .Request.Referer}}"'),
    ("latency", '"{{.Response.Latency}}s"'),
    ("protocol", '"{{.Request.Proto}}"'),
)

Read = Callable[[Exchange, ClientStream], str]


class RequestTemplateError(ValueError):
    """A template is not valid; the text is the reason."""


class RequestTemplate:
    """A parsed template."""

    def __init__(self, text: str) -> None:
        """Parse a template. Raises RequestTemplateError."""
        self._pieces: list[str | Read] = []
        end = 0
        for action in _ACTION.finditer(text):
            self._pieces.extend((text[end : action.start()], _reader_of(action.group(1))))
            end = action.end()
        rest = text[end:]
        if "{{" in rest:
            raise RequestTemplateError("an action that does not end")
        self._pieces.append(rest.rstrip("\n"))
        fixed = "".join(piece for piece in self._pieces if isinstance(piece, str))
        if not fixed.isprintable():
            raise RequestTemplateError("more than one line")

    def line(self, exchange: Exchange, client: ClientStream) -> str:
        """Return the line of a request that has ended, without the line end."""
        return "".join([piece if isinstance(piece, str) else piece(exchange, client) for piece in self._pieces])


def knative_template() -> str:
    """Return Knative's default template."""
    request = ", ".join(f'"{name}": {value}' for name, value in KNATIVE_FIELDS)
    return f'{{"httpRequest": {{{request}}}, "traceId": "{{{{.TraceID}}}}"}}'


def _reader_of(action: str) -> Read:
    """Return the function that reads the value of an action. Raises RequestTemplateError."""
    match = _FIELD.fullmatch(action)
    if match is None:
        raise RequestTemplateError(f"{{{{{action}}}}} is no field, header or js of one")
    name, header = match["name"], match["header"]
    if header is not None:
        read = _header(header)
    elif name in _FIELDS:
        read = _FIELDS[name]
    else:
        raise RequestTemplateError(f".{name} is none of {', '.join(_FIELDS)}")
    if not match["js"]:
        return read
    return lambda exchange, client: read(exchange, client).translate(_JS_ESCAPED)


def _header(name: str) -> Read:
    """Return the function that reads a header field."""
    start = f"\r\n{name.lower()}:".encode()

    def read(exchange: Exchange, client: ClientStream) -> str:
        block = exchange.head.headers.block
        return printable(header_of(block, start))

    return read


def _revision(index: int) -> Read:
    return lambda exchange, client: exchange.revision_key().partition("/")[index]


def _trace_id(exchange: Exchange, client: ClientStream) -> str:
    return trace_id_of(exchange.head.traceparent.partition(b":")[2].strip(b" \t"))


def _empty(exchange: Exchange, client: ClientStream) -> str:
    return ""


_GO_PROTOCOLS: Final = {"HTTP/2": "HTTP/2.0"}  # the spelling of Go's net/http
_FIELDS: Final[dict[str, Read]] = {
    "Request.Method": lambda exchange, client: printable(exchange.head.method),
    "Request.Host": lambda exchange, client: printable(exchange.head.authority),
    "Request.RequestURI": lambda exchange, client: shown_target(exchange.head.target),
    "Request.URL": lambda exchange, client: shown_target(exchange.head.target),
    "Request.URL.Path": lambda exchange, client: printable(exchange.head.target.partition(b"?")[0]),
    "Request.ContentLength": lambda exchange, client: str(_length(exchange)),
    "Request.Proto": lambda exchange, client: _GO_PROTOCOLS.get(client.protocol(), client.protocol()),
    "Request.RemoteAddr": lambda exchange, client: without_zone(client.client_ip()),
    "Request.UserAgent": _header("User-Agent"),
    "Request.Referer": _header("Referer"),
    "Response.Code": lambda exchange, client: str(status_of(exchange)),
    "Response.Size": lambda exchange, client: str(int(exchange.response_bytes)),
    "Response.Latency": lambda exchange, client: seconds(exchange.done_s - exchange.arrived_s),
    "Revision.Name": _revision(2),
    "Revision.Namespace": _revision(0),
    "Revision.Service": lambda exchange, client: "" if (spec := exchange.spec()) is None else spec.knative.service,
    "Revision.Configuration": lambda exchange, client: (
        "" if (spec := exchange.spec()) is None else spec.knative.configuration
    ),
    "Revision.PodName": _empty,
    "Revision.PodIP": _empty,
    "TraceID": _trace_id,
}


def _length(exchange: Exchange) -> int:
    """Return the length as Go's ContentLength: 0 without a body, -1 if it is unknown."""
    head = exchange.head
    return head.content_length if head.has_body else max(head.content_length, 0)
