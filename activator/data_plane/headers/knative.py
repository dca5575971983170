"""What Knative's components send each other in HTTP beside the requests themselves.

Rules
  1. A probe is answered by the activator itself, whatever its path and method, before any revision is looked for.
  2. A request leaves with the pod's address in Host and the client's own in K-Original-Host, which queue-proxy puts
     back; and marked as proxied, so that queue-proxy and autoscaler count it once.
  3. A refusal has the status and the text that Knative's activator gives, but names no pod's address.
  4. What `Connection` names is read, and not passed on: probes and revisions are looked for in all that was received.
  5. Nothing here belongs to a protocol version.

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

_FOR_US: Final = removal(frozenset({NAMESPACE_HEADER, REVISION_HEADER, HASH_HEADER, PROXY_HEADER}))
_NO_ORIGINAL: Final = removal(frozenset({ORIGINAL_HOST_HEADER}))
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
_NAMES_A_POD: Final = frozenset({Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT})  # the detail is its address


@final
class OwnAnswer:
    """What a probe is answered with."""

    def __init__(self, status: int, body: bytes, headers: Headers) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    def head(self) -> ResponseHead:
        fields = Fields.from_pairs(self.headers)
        return ResponseHead(self.status, PHRASES.get(self.status, b""), fields, len(self.body), True)


@final
class Seen:
    """What one request's head says."""

    def __init__(self) -> None:
        self.answer: OwnAnswer | None = None  # it is a probe
        self.host: bytes = b""  # the client's, as it is spelt
        self.is_probe: bool = False  # perhaps
        self.has_original: bool = False  # a proxy before us has said which host was asked for
        self._namespace: bytes | None = None
        self._revision: bytes | None = None
        self._original: bool = False  # there was such a field, perhaps an empty one

    def key(self) -> str:
        """namespace/name of the revision that it names; empty where not both are there."""
        if not self._namespace or not self._revision:
            return ""
        return (self._namespace + b"/" + self._revision).decode("latin-1")

    def take(self, name: bytes, value: bytes) -> None:
        """Note a line, its name lowered.

        Of several fields of one name the first counts, as with Go's parts: a component that reads another one than its
        neighbours can be bypassed. An empty first field is as if there were none.
        """
        if name == NAMESPACE_HEADER:
            if self._namespace is None:
                self._namespace = value.strip(b" \t")
        elif name == REVISION_HEADER:
            if self._revision is None:
                self._revision = value.strip(b" \t")
        elif name == ORIGINAL_HOST_HEADER:
            if not self._original:
                self._original = True
                self.has_original = bool(value.strip(b" \t"))
        elif name in (PROBE_HEADER, KUBELET_HEADER):
            self.is_probe = True

    def edit(self, edits: HeadEdits) -> None:
        """Leave out what is for us, and name the host that the client asked for."""
        edits.add(_FOR_US)
        if not self.has_original:
            if self._original:
                edits.add(_NO_ORIGINAL)
            edits.append(b"K-Original-Host", self.host)
        edits.add(_PROXIED)


@final
class KnativeDialect:
    """`unhealthy(path)` says why the program is not able to serve, for a kubelet that asks with this target; empty:
    it is able.

    `cluster_domain`: of names such as `revision.namespace.svc.cluster.local`. `passes_through`: pods are reached by
    their address through a mesh, with the revision's private service in Host (enable-mesh-pod-addressability).
    """

    def __init__(self, unhealthy: Callable[[bytes], str], cluster_domain: str, passes_through: bool = False) -> None:
        self._unhealthy = unhealthy
        self._domain = cluster_domain.encode()
        self.passes_through: bool = passes_through
        self.probes_total: int = 0

    def look(self, head: RequestHead) -> Seen:
        """Return what the request's head says to us, after one pass over it.

        All names that matter begin with a K, except Host and the kubelet's User-Agent: the other lines cost a look at
        their first letter.
        """
        seen = Seen()
        seen.host = head.authority
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
                seen.take(name.lower(), value)
            elif first == _H and block[pos : pos + 5].lower() == b"host:":
                seen.host = block[pos + 5 : end].strip(b" \t")
            elif first == _U and block.find(b"kube-probe/", pos, end) > 0:
                seen.is_probe = True
            pos = end + 2
        if head.named:
            _look_at_named(head.named, seen)
        if seen.is_probe:
            seen.answer = self._answer(head)
            if seen.answer is not None:
                self.probes_total += 1
        return seen

    def _answer(self, head: RequestHead) -> OwnAnswer | None:
        """The answer to a probe; None where it is none after all."""
        agent = head.received(b"user-agent")
        if head.received(KUBELET_HEADER) or (agent is not None and agent.startswith(b"kube-probe/")):
            unhealthy = self._unhealthy(head.target)
            return _failure(500, unhealthy) if unhealthy else OwnAnswer(200, b"", [])
        probe = head.received(PROBE_HEADER)
        if not probe:
            return None
        if probe == b"probe":
            known = head.received(HASH_HEADER)
            if not known:
                return _failure(400, 'a probe request must contain a non-empty "K-Network-Hash" header')
            return OwnAnswer(200, b"", [(b"K-Network-Hash", known)])
        if probe == b"activator":
            return OwnAnswer(200, b"activator", [_TEXT])
        # Go escapes a quotation mark as &#34; and an apostrophe as &#39;.
        escaped = html.escape(probe.decode("latin-1")).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
        return _failure(400, f'unexpected probe header value: "{escaped}"')

    # --- to pods ---

    def edit(self, edits: HeadEdits, address: str, key: str) -> None:
        """Name the host that is right for the pod at `address`; `key` is the revision's."""
        if not self.passes_through:
            edits.set_host(address.encode())
            return
        namespace, _, name = key.partition("/")
        edits.set_host(f"{private_service(name)}.{namespace}".encode())
        edits.add(_PASSES_THROUGH)

    # --- refusals ---

    def refusal_text(self, reason: Reason, detail: str, head: RequestHead) -> bytes:
        """The body of the program's own answer: what Knative's activator says, where it says anything."""
        if reason is Reason.NO_ROUTE:
            name = self._name_of(head)
            return b'Error getting active endpoint: revision.serving.knative.dev "%b" not found\n' % name
        if reason in _TIMED_OUT:
            return b"activator request timeout"
        if reason in _FULL:
            return b"pending request queue full\n"
        return refusal_text(reason, "" if reason in _NAMES_A_POD else detail)

    def _name_of(self, head: RequestHead) -> bytes:
        """The revision that was asked for, as far as that is known."""
        name = head.received(REVISION_HEADER)
        if name and head.received(NAMESPACE_HEADER):
            return name
        host = head.authority.partition(b":")[0].split(b".", 3)
        if len(host) == 4 and host[2] == b"svc" and host[3] == self._domain:
            return host[0]
        return b""


def _look_at_named(block: bytes, seen: Seen) -> None:
    """What the sender meant for us alone (RFC 9110 7.6.1) counts as well, but for the host that the pod receives."""
    for line in block.split(b"\r\n"):
        name, _, value = line.partition(b":")
        lowered = name.lower()
        if lowered == b"user-agent":
            seen.is_probe = seen.is_probe or b"kube-probe/" in value
        elif lowered != ORIGINAL_HOST_HEADER:
            seen.take(lowered, value)


def _failure(status: int, text: str) -> OwnAnswer:
    """As Go's http.Error writes it."""
    return OwnAnswer(status, text.encode("utf-8", "replace") + b"\n", [_TEXT, _NO_SNIFFING])
