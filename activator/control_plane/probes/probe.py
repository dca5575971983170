"""Probe one pod once, and check its identity.

Rules
  1. A pod is ready only if a real exchange on the data port has succeeded. `ProbeSpec` defines what counts as an
     answer: the port accepts, a path answers 2xx or 3xx, or Knative's queue-proxy reports that the program behind it is
     ready.
  2. Failures of a network or a pod are returned, not raised. This is part of the control plane: ordinary asyncio waits,
     each with a timeout.
  3. For a port on this machine the kernel is asked whether a program listens there; no connection is made.
  4. A pod that gets its requests over TLS is probed over TLS, except for a TCP probe.
"""

from __future__ import annotations

import asyncio
import functools
import os
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from activator.codec.http1.lenient import LenientResponseParser
from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.http1.serialise import request_bytes
from activator.codec.message import Headers, ResponseHead
from activator.codec.probe_request import names_identity, probe_head
from activator.codec.proxy_protocol import header
from activator.config.model.pods import PROBE_GRPC, PROBE_QUEUE_PROXY, PROBE_TCP, PodTls
from activator.config.specs import ProbeSpec
from activator.control_plane.probes.grpc_health import check_request, problem_with
from activator.control_plane.probes.http2_exchange import exchange
from activator.runtime.certificates import TLS_CONTEXTS_MAX
from activator.runtime.local_listeners import LOOPBACK_4, LOOPBACK_6, Listening, is_loopback, listening
from activator.runtime.sockets import join_address, split_address
from activator.runtime.streams import open_stream
from activator.runtime.unix_listeners import listening_at

if TYPE_CHECKING:
    import ssl

PROBE_TIMEOUT_S: Final = 1.0
PROBE_ANSWER_BYTES_MAX: Final = 64  # bodies are cut to this length
PROBES_EXPEDITED_MAX: Final = 16  # pods of one revision that are expedited at once while requests wait
# The interval of expedited probing after requests have waited for a long time.
PROBE_EXPEDITED_LONG_S: Final = 60.0
PROBE_EXPEDITED_LONG_STEP_S: Final = 0.1

PROBE_TRY_S: Final = 0.25  # interval of connections to a local port for which the kernel shows no listener
PROBES_TRIED_MAX: Final = 10_000  # addresses for which the time of the last such connection is kept

_tried_s: Final[dict[str, float]] = {}  # by address: when such a connection was last tried

_READ_BYTES: Final = 16 * 1024

_QUEUE_ANSWER: Final = b"queue"  # the answer of queue-proxy when the program behind it is ready


class ProbeOutcome(Enum):
    """The outcome of one probe."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the connection was refused, or the response was not acceptable
    SILENT = "silent"  # no answer within the timeout


class ProbeRequest(msgspec.Struct, frozen=True):
    """The pod to probe, and how."""

    address: str  # canonical ip:port, or unix:/path
    probe: ProbeSpec = ProbeSpec()
    tls: PodTls | None = None
    identity: str = ""  # the identity that it should report, if the probe requires one
    revision: str = ""  # namespace/name
    expedited: bool = False  # requests wait for it
    causes: list[str] = []  # why it did not answer, the newest last; `probe_once` appends to it


async def probe_once(request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
    """Probe the pod once."""
    writer: asyncio.StreamWriter | None = None
    step = "connecting"
    host, port = split_address(request.address)
    try:
        async with asyncio.timeout(timeout_s):
            if request.probe.kind == PROBE_TCP:
                outcome = _outcome_by_kernel(request, host, port)
                if outcome is not None:
                    return outcome
                _, writer = await open_stream(request.address)
                return ProbeOutcome.ANSWERED
            http2 = request.probe.kind == PROBE_GRPC or request.probe.http2
            context = _context(request.tls, http2)
            name = _server_name(request.tls, host)
            reader, writer = await open_stream(request.address, context, name)
            step = "answering the probe"
            if request.probe.proxy_protocol:
                writer.write(header(request.probe.proxy_protocol, None))
            if http2:
                return await _probe_over_http2(reader, writer, request)
            writer.write(request_bytes(probe_head(request.probe, request.address)))
            return await _read_answer(reader, request)
    except TimeoutError as error:
        # The kernel's own timeout is an answer of the network, and has an errno; ours has none.
        if error.errno is None:
            request.causes.append(f"{step} took longer than {timeout_s:g} s")
            return ProbeOutcome.SILENT
        request.causes.append(_error_text(error))
        return ProbeOutcome.REFUSED
    except OSError as error:
        request.causes.append(_error_text(error) + _listens_elsewhere(host, port))
        return ProbeOutcome.REFUSED
    finally:
        if writer is not None:
            writer.transport.abort()  # the rest of the answer is not needed


async def _probe_over_http2(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: ProbeRequest
) -> ProbeOutcome:
    """Send one request over HTTP/2, or a health check of gRPC; return the outcome."""
    probe = request.probe
    secure = request.tls is not None
    if probe.kind == PROBE_GRPC:
        head, message = check_request(request.address, probe.service)
        problem = problem_with(await exchange(reader, writer, head, message, secure, PROBE_ANSWER_BYTES_MAX))
    else:
        head = probe_head(probe, request.address, keep_alive=True)
        answer = await exchange(reader, writer, head, b"", secure, PROBE_ANSWER_BYTES_MAX)
        received = _Answer()
        received.head = answer.head
        problem = ""
        if not _is_good(received, request):
            status = "nothing" if answer.head is None else str(answer.head.status)
            problem = answer.problem or f"it answered the probe with {status}"
    if problem:
        request.causes.append(problem)
    return ProbeOutcome.REFUSED if problem else ProbeOutcome.ANSWERED


def _outcome_by_kernel(request: ProbeRequest, host: str, port: int) -> ProbeOutcome | None:
    """Return the outcome that the kernel shows, as the program may accept only one connection; None: it shows none."""
    state = _listening(host, port)
    if state is Listening.YES:
        return ProbeOutcome.ANSWERED
    if state is Listening.FULL:
        request.causes.append("it takes no more connections for now")
        return ProbeOutcome.REFUSED
    if state is Listening.NO and not _is_try_due(request.address):
        request.causes.append("connection refused" + _listens_elsewhere(host, port))
        return ProbeOutcome.REFUSED
    return None


def _listening(host: str, port: int) -> Listening | None:
    """Return the kernel's answer; None if it does not know, or the address is not local."""
    if host.startswith("/"):
        return listening_at(host)
    return listening(host, port) if is_loopback(host) else None


def _is_try_due(address: str) -> bool:
    """Return True, and note the time, if a connection is due although the kernel shows no listener at the address.

    A packet filter may redirect it. Connections are rare, because a program that takes only one and begins to listen
    just after the kernel was asked would lose it.
    """
    now_s = asyncio.get_running_loop().time()
    if now_s - _tried_s.get(address, -PROBE_TRY_S) < PROBE_TRY_S:
        return False
    if len(_tried_s) >= PROBES_TRIED_MAX:
        _tried_s.clear()
    _tried_s[address] = now_s
    return True


def _listens_elsewhere(host: str, port: int) -> str:
    """Return a hint if a program listens on the other loopback address; otherwise an empty text."""
    other = LOOPBACK_4 if host == LOOPBACK_6 else LOOPBACK_6
    if is_loopback(host) and listening(other, port) in {Listening.YES, Listening.FULL}:
        return f" (it listens on {join_address(other, port)} only)"
    return ""


class _Answer(ResponseSink):
    """The head of an answer, and the beginning of its body."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.complete = False

    def interim_head(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.head = head

    def response_body(self, data: bytes) -> None:
        self.body = (self.body + data)[:PROBE_ANSWER_BYTES_MAX]

    def response_end(self, trailers: Headers) -> None:
        self.complete = True


async def _read_answer(reader: asyncio.StreamReader, request: ProbeRequest) -> ProbeOutcome:
    """Read an answer over HTTP/1 until its outcome is certain; return that."""
    answer = _Answer()
    parser: ResponseParser = LenientResponseParser(answer) if request.probe.lenient else ResponseParser(answer)
    parser.expect(False)
    is_queue = request.probe.kind == PROBE_QUEUE_PROXY
    while answer.head is None or (is_queue and not answer.complete and len(answer.body) < PROBE_ANSWER_BYTES_MAX):
        data = await reader.read(_READ_BYTES)
        error = parser.feed(data) if data else parser.feed_eof()
        if error is not None:
            request.causes.append(error.detail or "it closed the connection")
            return ProbeOutcome.REFUSED
        if not data:
            break
    if _is_good(answer, request):
        return ProbeOutcome.ANSWERED
    status = "nothing" if answer.head is None else str(answer.head.status)
    request.causes.append(f"it answered the probe with {status}")
    return ProbeOutcome.REFUSED


def _error_text(error: OSError) -> str:
    """Return the kernel's error text, or that of TLS."""
    if type(error).__module__ == "ssl":  # its numbers are not errno values; ssl is imported only if TLS is used
        return f"TLS: {getattr(error, 'verify_message', '') or getattr(error, 'reason', '') or error}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _is_good(answer: _Answer, request: ProbeRequest) -> bool:
    """Return True if the answer shows that the pod is ready, and has the required identity."""
    probe = request.probe
    head = answer.head
    if head is None:
        return False
    if probe.identity_header and not names_identity(head, probe.identity_header, request.identity):
        return False
    if probe.kind == PROBE_QUEUE_PROXY:
        return head.status == 200 and answer.body == _QUEUE_ANSWER
    return 200 <= head.status < 400


@functools.lru_cache(maxsize=TLS_CONTEXTS_MAX)  # in a cluster, one per namespace
def _cached_context(tls: PodTls, protocol: str) -> ssl.SSLContext:
    from activator.runtime.certificates import pod_context  # ssl is imported only where pods use TLS

    return pod_context(tls, [protocol])


def _context(tls: PodTls | None, http2: bool) -> ssl.SSLContext | None:
    return None if tls is None else _cached_context(tls, "h2" if http2 else "http/1.1")


def _server_name(tls: PodTls | None, host: str) -> str | None:
    """Return the name that the certificate has to have; None without TLS."""
    return None if tls is None else tls.server_name or ("localhost" if host.startswith("/") else host)
