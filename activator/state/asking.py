"""One question to one pod: does it answer, and is it who we take it for?

Rules
  1. "Ready" has to mean that a real exchange on the data port worked. What counts as an answer says `ProbeSpec`: the
     port accepts, a path answers 2xx or 3xx, or Knative's queue-proxy says that the program behind it is ready.
  2. Nothing here raises for what a network or a pod does. Part of the control side: ordinary asyncio waits, each within
     a timeout.
  3. A pod that is spoken to over TLS is asked over TLS, but for a bare port.
"""

from __future__ import annotations

import asyncio
import functools
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from activator.config import (
    PROBE_ANSWER_BYTES_MAX,
    PROBE_HTTP,
    PROBE_QUEUE_PROXY,
    PROBE_TCP,
    TLS_CONTEXTS_MAX,
    PodTls,
    ProbeSpec,
)
from activator.message import Fields, Headers, RequestHead, ResponseHead
from activator.wire.response import ResponseParser, ResponseSink
from activator.wire.serialise import request_bytes

if TYPE_CHECKING:
    import ssl

_READ_BYTES: Final = 16 * 1024

# Knative's: queue-proxy knows its callers by these, and answers nobody else on this path.
_QUEUE_PATH: Final = "/healthz"
_QUEUE_HEADERS: Final = ((b"User-Agent", b"Knative-Activator-Probe"), (b"K-Network-Probe", b"queue"))
_QUEUE_ANSWER: Final = b"queue"
_HTTP_HEADERS: Final = ((b"User-Agent", b"activator-probe"),)


class Ask(Enum):
    """What came of asking a pod once."""

    ANSWERED = "answered"
    REFUSED = "refused"  # known at once: no connection, or an answer that is none
    SILENT = "silent"  # not within the timeout


class Question(msgspec.Struct, frozen=True):
    """Whom to ask, and how."""

    address: str  # canonical ip:port
    probe: ProbeSpec = ProbeSpec()
    tls: PodTls | None = None
    identity: str = ""  # whom it should say it is, where the probe asks for that
    revision: str = ""  # namespace/name
    hurried: bool = False  # requests wait for it


def split_address(address: str) -> tuple[str, int]:
    """`10.0.0.1:80` and `[::1]:80` taken apart."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def answers(address: str, http_get: str, timeout_s: float) -> bool:
    """Whether the pod takes a connection, and answers `http_get` well if that is not empty."""
    probe = ProbeSpec(PROBE_HTTP, http_get) if http_get else ProbeSpec()
    return await ask(Question(address, probe), timeout_s) is Ask.ANSWERED


async def ask(question: Question, timeout_s: float) -> Ask:
    """Ask the pod once."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            host, port = split_address(question.address)
            if question.probe.kind == PROBE_TCP:
                _, writer = await asyncio.open_connection(host, port)
                return Ask.ANSWERED
            context = _context(question.tls)
            name = _server_name(question.tls, host)
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            writer.write(request_bytes(probe_head(question.probe, question.address)))
            return await _read(reader, question)
    except TimeoutError as error:
        # The kernel's own is an answer of the network's, and has an errno; ours has none.
        return Ask.SILENT if error.errno is None else Ask.REFUSED
    except OSError:
        return Ask.REFUSED
    finally:
        if writer is not None:
            writer.transport.abort()  # nothing is owed to it: no waiting for what it still says


def probe_head(probe: ProbeSpec, address: str, keep_alive: bool = False) -> RequestHead:
    """The request that asks; `keep_alive`: others are to follow it on its connection."""
    is_queue = probe.kind == PROBE_QUEUE_PROXY
    host = (probe.host or address).encode()
    headers: Headers = [(b"Host", host), *(_QUEUE_HEADERS if is_queue else _HTTP_HEADERS)]
    if not is_queue and not keep_alive:
        headers.append((b"Connection", b"close"))
    headers.extend((name.encode(), value.encode()) for name, value in probe.headers)
    path = probe.path or (_QUEUE_PATH if is_queue else "/")
    return RequestHead(b"GET", path.encode(), host, Fields.from_pairs(headers), -1, False)


def names(head: ResponseHead, header: str, identity: str) -> bool:
    """Whether an answer's header says that it comes from this identity."""
    return head.headers.get(header.lower().encode()) == identity.encode()


class _Answer(ResponseSink):
    """The head, and as much of the body as may matter."""

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


async def _read(reader: asyncio.StreamReader, question: Question) -> Ask:
    answer = _Answer()
    parser = ResponseParser(answer)
    parser.expect(False)
    is_queue = question.probe.kind == PROBE_QUEUE_PROXY
    while answer.head is None or (is_queue and not answer.complete and len(answer.body) < PROBE_ANSWER_BYTES_MAX):
        data = await reader.read(_READ_BYTES)
        if (parser.feed(data) if data else parser.feed_eof()) is not None:
            return Ask.REFUSED
        if not data:
            break
    return Ask.ANSWERED if _is_good(answer, question) else Ask.REFUSED


def _is_good(answer: _Answer, question: Question) -> bool:
    probe = question.probe
    head = answer.head
    if head is None:
        return False
    if probe.identity_header and not names(head, probe.identity_header, question.identity):
        return False
    if probe.kind == PROBE_QUEUE_PROXY:
        return head.status == 200 and answer.body == _QUEUE_ANSWER
    return 200 <= head.status < 400


@functools.lru_cache(maxsize=TLS_CONTEXTS_MAX)  # in a cluster, one for each namespace
def _made_context(tls: PodTls) -> ssl.SSLContext:
    from activator.certificates import pod_context  # ssl: only where pods are spoken to over TLS

    return pod_context(tls)


def _context(tls: PodTls | None) -> ssl.SSLContext | None:
    return None if tls is None else _made_context(tls)


def _server_name(tls: PodTls | None, host: str) -> str | None:
    return None if tls is None else tls.server_name or host
