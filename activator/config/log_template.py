"""The fields of a line of the access log, and the templates of users: `{method} {target} {status}`.

A template is plain text with field names in braces; `{{` and `}}` stand for braces. Other parts of Python's format
language are rejected: attributes and widths.
"""

from __future__ import annotations

from string import Formatter
from typing import Final

FIELDS: Final[dict[str, str]] = {
    "time": "the time of the end of the request, in UTC, RFC 3339, to the millisecond",
    "client": "the address of the client, forwarded ones only from trusted proxies",
    "method": "of the request",
    "host": "the host of the request",
    "target": "path and query",
    "protocol": "the protocol of the client: `HTTP/1.0`, `HTTP/1.1`, `HTTP/2`",
    "user": "the name of the user (`keys`)",
    "status": "the status of the response; 499: the client left before there was one; of a gRPC call that is refused, "
    "the HTTP status of its reason",
    "grpc_status": "of a gRPC call, the name of its status: the pod's, or that of a refusal",
    "reason": "the word in Activator-Reason, if the response is not that of the pod",
    "namespace": "of the revision",
    "revision": "its name",
    "pod": "the last pod of the request",
    "address": "of that pod",
    "pod_protocol": "the protocol of the connection to the pod: `HTTP/1.1`, `HTTP/2`",
    "first_revision": "namespace/name of the revision that was asked for, if another one took the request (`fallback`)",
    "retries": "the number of pods that failed before",
    "request_bytes": "of the request's body",
    "response_bytes": "of the body of the pod that was passed on",
    "duration_s": "from arrival to end",
    "first_byte_s": "from arrival to the head of the pod's answer",
    "wait_s": "in the queue, until a slot was granted",
    "connect_s": "from the slot to a connection",
    "cold": "whether it waited for a start from zero",
    "start_s": "of that: until there was a pod",
    "ready_s": "of that: until it was ready",
    "prompt_tokens": "of the prompt, as the pod reported them (`record.tokens`)",
    "completion_tokens": "of the answer",
    "cached_tokens": "the part of the prompt that was not processed again",
    "first_token_s": "from arrival to the first event of an event stream",
    "tokens_per_s": "after that event",
    "request_id": "X-Request-Id, as it was sent to the pod",
    "trace_id": "of the header traceparent",
    "user_agent": "as the client sent it",
    "referer": "as the client sent it",
}


KNATIVE: Final = "knative"  # Knative's default template, by name
REQUEST_TEMPLATE: Final = "go:"  # prefix of a template in Knative's syntax, which only a cluster can configure


class TemplateError(ValueError):
    """An invalid template. The text names the expected form, for messages "found …, expected TEXT"."""


def template_fields(template: str) -> list[str]:
    """Return the fields of a template, in order. Raises TemplateError."""
    if not template.isprintable():
        raise TemplateError("one line of printable characters")
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise TemplateError(f"names of fields in braces, and {{{{ for a brace itself ({error})") from error
    fields = []
    for _, name, width, conversion in pieces:
        if name is None:
            continue
        if name not in FIELDS or width or conversion:
            raise TemplateError(f"fields out of {', '.join(FIELDS)}")
        fields.append(name)
    if not fields:
        raise TemplateError("json, common, knative, or a template with at least one field in braces, such as {status}")
    return fields
