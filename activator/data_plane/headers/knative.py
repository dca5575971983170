"""Conventions of Knative's components in HTTP: probes, revision headers, queue-proxy's fields, error texts.

Rules
  1. The activator answers probes itself, whatever their path and method, before any routing.
  2. A forwarded request has the pod's address in Host and the client's Host in K-Original-Host, which queue-proxy
     restores. It is marked as proxied, so that queue-proxy and autoscaler count it once.
  3. A refusal has the status and text of Knative's activator, but no address of a pod.
  4. Fields named in `Connection` are read and not forwarded: probes and revisions are searched in all received fields.
  5. Nothing here depends on the HTTP version.

Sources: knative.dev/serving cmd/activator/main.go, pkg/activator/handler, knative.dev/networking pkg/http (v1.23).
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from activator.codec.http1.fields import end_of_line
from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.headers.edits import HeadEdits, addition, removal
from activator.data_plane.refusals import PHRASES, refusal_text
from activator.runtime.child_name import private_service
from activator.runtime.reasons import Reason

NAMESPACE_HEADER: Final = b"knative-serving-namespace"
REVISION_HEADER: Final = b"knative-serving-revision"
PROBE_HEADER: Final = b"k-network-probe"
HASH_HEADER: Final = b"k-network-hash"
KUBELET_HEADER: Final = b"k-kubelet-probe"
ORIGINAL_HOST_HEADER: Final = b"k-original-host"
PROXY_HEADER: Final = b"k-proxy-request"

_FOR_ACTIVATOR: Final = removal(frozenset({NAMESPACE_HEADER, REVISION_HEADER, HASH_HEADER, PROXY_HEADER}))
_WITHOUT_ORIGINAL: Final = removal(frozenset({ORIGINAL_HOST_HEADER}))
_PROXIED: Final = addition(b"K-Proxy-Request", b"activator")
_PASSES_THROUGH: Final = addition(b"K-Passthrough-Lb", b"true")
_H: Final = 0x68
_K: Final = 0x6B
_U: Final = 0x75
_TEXT: Final = (b"Content-Type", b"text/plain; charset=utf-8")
_NO_SNIFFING: Final = (b"X-Content-Type-Options", b"nosniff")

_TIMED_OUT: Final = frozenset(
    {Reason.QUEUE_TIMEOUT, Reason.FIRST_BYTE_TIMEOUT, Reason.IDLE_TIMEOUT, Reason.TOTAL_TIMEOUT}
)
_FULL: Final = frozenset({Reason.QUEUE_FULL, Reason.HELD_BYTES_FULL, Reason.HELD_REQUESTS_FULL})
_NAMES_A_POD: Final = frozenset({Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT})  # their detail is its address


@final
class OwnAnswer:
    """The activator's own response to a probe."""

    def __init__(self, status: int, body: bytes, headers: Headers) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    def head(self) -> ResponseHead:
        fields = Fields.from_pairs(self.headers)
        return ResponseHead(self.status, PHRASES.get(self.status, b""), fields, len(self.body), True)


@final
class KnativeFields:
    """The Knative fields of one request head."""

    def __init__(self) -> None:
        self.answer: OwnAnswer | None = None  # set for a probe
        self.host: bytes = b""  # the client's Host, unmodified
        self.is_probe: bool = False  # it may be a probe
        self.has_original: bool = False  # an earlier proxy has set K-Original-Host to a host
        self._namespace: bytes | None = None  # None: no such field, also of the next one
        self._revision: bytes | None = None
        self._has_original_field: bool = False  # K-Original-Host is present, possibly empty

    def key(self) -> str:
        """Return namespace/name of the named revision; "" unless both are present."""
        if not self._namespace or not self._revision:
            return ""
        return (self._namespace + b"/" + self._revision).decode("latin-1")

    def record(self, name: bytes, value: bytes) -> None:
        """Record a line, with its name in lower case.

        Of several fields with one name the first counts, as in Knative: a component that reads another one than its
        neighbours can be bypassed. An empty first field counts as absent.
        """
        if name == NAMESPACE_HEADER:
            if self._namespace is None:
                self._namespace = value.strip(b" \t")
        elif name == REVISION_HEADER:
            if self._revision is None:
                self._revision = value.strip(b" \t")
        elif name == ORIGINAL_HOST_HEADER:
            if not self._has_original_field:
                self._has_original_field = True
                self.has_original = bool(value.strip(b" \t"))
        elif name in (PROBE_HEADER, KUBELET_HEADER):
            self.is_probe = True

    def edit(self, edits: HeadEdits) -> None:
        """Remove the fields for the activator, and set the host that the client requested."""
        edits.add(_FOR_ACTIVATOR)
        if not self.has_original:
            if self._has_original_field:
                edits.add(_WITHOUT_ORIGINAL)
            edits.append(b"K-Original-Host", self.host)
        edits.add(_PROXIED)


@final
class KnativeDialect:
    """Knative's HTTP conventions, with the settings of one program.

    `unhealthy(path)` returns why the program cannot serve, for a kubelet probe with this target; "" if it can.
    `cluster_domain`: of names such as `revision.namespace.svc.cluster.local`. `passes_through`: pods are reached by
    their address through a mesh, with the revision's private service in Host (enable-mesh-pod-addressability).
    """

    def __init__(self, unhealthy: Callable[[bytes], str], cluster_domain: str, passes_through: bool = False) -> None:
        self._unhealthy = unhealthy
        self._domain = cluster_domain.encode()
        self.passes_through: bool = passes_through
        self.probes_total: int = 0

    def fields_of(self, head: RequestHead) -> KnativeFields:
        """Return the Knative fields of a request head, after one pass over it.

        All relevant names begin with K, except Host and the kubelet's User-Agent; other lines cost a check of their
        first letter.
        """
        fields = KnativeFields()
        fields.host = head.authority
        block = head.headers.block
        stop: i64 = len(block)
        pos: i64 = 2
        while pos < stop:
            end = end_of_line(block, pos, stop)
            if end < 0:
                end = stop
            first: i64 = block[pos] | 0x20
            if first == _K:
                name, _, value = block[pos:end].partition(b":")
                fields.record(name.lower(), value)
            elif first == _H and block[pos : pos + 5].lower() == b"host:":
                fields.host = block[pos + 5 : end].strip(b" \t")
            elif first == _U and block.find(b"kube-probe/", pos, end) > 0:
                fields.is_probe = True
            pos = end + 2
        if head.named:
            _read_named(head.named, fields)
        if fields.is_probe:
            fields.answer = self._answer(head)
            if fields.answer is not None:
                self.probes_total += 1
        return fields

    def _answer(self, head: RequestHead) -> OwnAnswer | None:
        """Return the response to a probe; None if it is not a probe after all."""
        agent = head.received(b"user-agent")
        if head.received(KUBELET_HEADER) or (agent is not None and agent.startswith(b"kube-probe/")):
            unhealthy = self._unhealthy(head.target)
            return _failure(500, unhealthy) if unhealthy else OwnAnswer(200, b"", [])
        probe = head.received(PROBE_HEADER)
        if not probe:
            return None
        if probe == b"probe":
            probe_hash = head.received(HASH_HEADER)
            if not probe_hash:
                return _failure(400, 'a probe request must contain a non-empty "K-Network-Hash" header')
            return OwnAnswer(200, b"", [(b"K-Network-Hash", probe_hash)])
        if probe == b"activator":
            return OwnAnswer(200, b"activator", [_TEXT])
        # Go escapes a quotation mark as &#34; and an apostrophe as &#39;.
        escaped = html.escape(probe.decode("latin-1")).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
        return _failure(400, f'unexpected probe header value: "{escaped}"')

    # --- to pods ---

    def edit(self, edits: HeadEdits, address: str, key: str) -> None:
        """Set the Host that the pod at `address` requires; `key` is that of the revision."""
        if not self.passes_through:
            edits.set_host(address.encode())
            return
        namespace, _, name = key.partition("/")
        edits.set_host(f"{private_service(name)}.{namespace}".encode())
        edits.add(_PASSES_THROUGH)

    # --- refusals ---

    def refusal_text(self, reason: Reason, detail: str, head: RequestHead) -> bytes:
        """Return the body of a refusal: the text of Knative's activator, if it has one."""
        if reason is Reason.NO_ROUTE:
            name = self._name_of(head)
            return b'Error getting active endpoint: revision.serving.knative.dev "%b" not found\n' % name
        if reason in _TIMED_OUT:
            return b"activator request timeout"
        if reason in _FULL:
            return b"pending request queue full\n"
        return refusal_text(reason, "" if reason in _NAMES_A_POD else detail)

    def _name_of(self, head: RequestHead) -> bytes:
        """Return the name of the requested revision, or b"" if it is unknown."""
        name = head.received(REVISION_HEADER)
        if name and head.received(NAMESPACE_HEADER):
            return name
        host = head.authority.partition(b":")[0].split(b".", 3)
        if len(host) == 4 and host[2] == b"svc" and host[3] == self._domain:
            return host[0]
        return b""


def _read_named(block: bytes, fields: KnativeFields) -> None:
    """Record the fields that `Connection` names (RFC 9110 7.6.1), except the host for the pod."""
    for line in block.split(b"\r\n"):
        name, _, value = line.partition(b":")
        lowered = name.lower()
        if lowered == b"user-agent":
            fields.is_probe = fields.is_probe or b"kube-probe/" in value
        elif lowered != ORIGINAL_HOST_HEADER:
            fields.record(lowered, value)


def _failure(status: int, text: str) -> OwnAnswer:
    """Return an error response in the format of Go's http.Error."""
    return OwnAnswer(status, text.encode("utf-8", "replace") + b"\n", [_TEXT, _NO_SNIFFING])
