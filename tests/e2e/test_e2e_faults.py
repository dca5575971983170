"""What pods do wrong, one row each: what the client hears, why, whether it was tried again, and that the slot is free.

All rows share one activator; each has a revision and a scripted pod of its own, with `container_concurrency: 1`, so
that a slot that is not given back is noticed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, CutShortError, request
from tests.e2e.pods import PodSide, Script, ScriptedPod, close_all, replies, serve
from tests.e2e.running import Activator, configured, eventually

SHORT = "1s"  # pods that do something first have to be done with it by then, also where the core is taken
UPLOAD = b"u" * 4_000_000
HALF_UPLOAD = request(method="POST", headers=f"Content-Length: {2 * len(UPLOAD)}\r\n") + UPLOAD
HEAD_10 = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
HEAD_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"
HEAD_CLOSE = b"HTTP/1.0 200 OK\r\n\r\n"
POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"


# --- scripts --------------------------------------------------------------------------------------------------------


def before_reading(then: Script) -> Script:
    """The request lies unread, so closing sends a reset."""
    return then


def after(sent: bytes, then: Script) -> Script:
    """Read the request, send this; once the client has it (if it is a head), do that."""

    def script(side: PodSide) -> None:
        side.request()
        side.send(sent)
        if b"\r\n\r\n" in sent:
            side.wait()
        then(side)

    return script


def close(side: PodSide) -> None:
    side.close()


def reset(side: PodSide) -> None:
    side.reset()


def stall(side: PodSide) -> None:
    side.stall()


def trickle(side: PodSide) -> None:
    """A chunk every 50 ms, without end."""
    side.request()
    side.send(HEAD_CHUNKED)
    while True:
        side.send(b"1\r\nx\r\n")
        time.sleep(0.05)


def head_only(side: PodSide) -> None:
    """Reads the head, never the body."""
    side.head()
    side.stall()


def early_answer(side: PodSide) -> None:
    """Has seen enough after the head."""
    side.head()
    side.answer(b"too much", "Connection: close\r\n", "413 Content Too Large")
    side.drain()


def early_answer_kept(side: PodSide) -> None:
    """The same, but as if the connection could be used again: it cannot, half a request is in it."""
    side.head()
    side.answer(b"too much", "", "413 Content Too Large")
    side.drain()


# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    name: str
    script: Script
    status: int
    reason: str = ""  # of the answer; of a cut answer: what is counted
    body: bytes | None = None  # None: not looked at
    cut: bool = False  # the head comes, its body does not end
    sent: bytes = field(default_factory=request)
    timeouts: dict[str, str] = field(default_factory=dict)
    requests: int = 1  # that the pod has seen: 1 means that nothing was tried again
    interim: tuple[int, ...] = ()
    deaf: bool = False  # reads nothing, so it cannot hear that the connection has been closed behind unread data


GET, POST = request(), request(method="POST")
FIRST, IDLE, TOTAL = {"first_byte": SHORT}, {"idle": SHORT}, {"total": "2s"}

BROKEN = [
    Row("closes with the request unread", before_reading(close), 502, "pod_closed", requests=0),
    Row("resets with the request unread", before_reading(reset), 502, "pod_closed", requests=0),
    Row("closes without an answer", after(b"", close), 502, "pod_closed"),
    Row("resets without an answer", after(b"", reset), 502, "pod_closed"),
    Row("closes without an answer to POST", after(b"", close), 502, "pod_closed", sent=POST),
    Row("closes in the status line", after(b"HTTP/1.1 20", close), 502, "pod_closed"),
    Row("closes in the head", after(b"HTTP/1.1 200 OK\r\nContent-Le", close), 502, "pod_closed"),
    Row("resets in the head", after(b"HTTP/1.1 200 OK\r\nContent-Le", reset), 502, "pod_closed"),
    Row("closes after a 103", after(b"HTTP/1.1 103 Early Hints\r\n", close), 502, "pod_closed"),
    Row("closes in a body of known length", after(HEAD_10 + b"hello", close), 200, "pod_closed", cut=True),
    Row("resets in a body of known length", after(HEAD_10 + b"hello", reset), 200, "pod_closed", cut=True),
    Row("closes in a chunk", after(HEAD_CHUNKED + b"5\r\nhel", close), 200, "pod_closed", cut=True),
    Row("closes between chunks", after(HEAD_CHUNKED + b"5\r\nhello\r\n", close), 200, "pod_closed", cut=True),
    Row(
        "closes before the last CRLF", after(HEAD_CHUNKED + b"5\r\nhello\r\n0\r\n", close), 200, "pod_closed", cut=True
    ),
    Row("resets in a body without a length", after(HEAD_CLOSE + b"hello", reset), 200, "pod_closed", cut=True),
]

STALLING = [
    Row("stalls with the request unread", stall, 504, "first_byte_timeout", requests=0, timeouts=FIRST),
    Row("stalls without an answer", after(b"", stall), 504, "first_byte_timeout", timeouts=FIRST),
    Row("stalls in the head", after(b"HTTP/1.1 200 OK\r\nX", stall), 504, "first_byte_timeout", timeouts=FIRST),
    Row("stalls, idle limit", after(b"", stall), 504, "idle_timeout", timeouts=IDLE),
    Row("stalls, total limit", after(b"", stall), 504, "total_timeout", timeouts=TOTAL),
    Row("stalls after the head", after(HEAD_10, stall), 200, "idle_timeout", cut=True, timeouts=IDLE),
    Row("stalls in the body", after(HEAD_10 + b"hello", stall), 200, "idle_timeout", cut=True, timeouts=IDLE),
    Row("trickles without end", trickle, 200, "total_timeout", cut=True, timeouts={**TOTAL, **FIRST, **IDLE}),
    Row(
        "does not read the body",
        head_only,
        504,
        "first_byte_timeout",
        sent=request(method="POST", body=UPLOAD),
        timeouts=FIRST,
        deaf=True,
    ),
]

NOT_HTTP = [
    Row(f"not HTTP: {name}", after(data, stall), 502, "bad_response")
    for name, data in {
        "garbage": b"\x00\x01\xfe garbage\r\n",
        "a line of text": b"hello\r\n",
        "HTTP/0.9": b"HTTP/0.9 200 OK\r\n",
        "HTTP/2.0": b"HTTP/2.0 200 OK\r\n",
        "status 099": b"HTTP/1.1 099 No\r\n",
        "status 1000": b"HTTP/1.1 1000 No\r\n",
        "status not a number": b"HTTP/1.1 abc No\r\n",
        "a space before a colon": b"HTTP/1.1 200 OK\r\nX : y\r\n",
        "a folded line": b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\nA: b\r\n",
        "NUL in a value": b"HTTP/1.1 200 OK\r\nX: \x00\r\n",
        "bare LF": b"HTTP/1.1 200 OK\nX: y\n",
        "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
    }.items()
]


def whole(data: bytes) -> Script:
    """A complete head at once, then nothing: it is judged by then."""

    def script(side: PodSide) -> None:
        side.request()
        side.send(data)
        side.stall()

    return script


FRAMING = [
    Row(f"framing: {name}", whole(data), 502, "bad_response")
    for name, data in {
        "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "length -1": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "101 unasked": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "a head of 70 KB": b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        "300 fields": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    }.items()
]

UNUSUAL = [
    Row("17 interim answers", whole(INTERIM * 17), 502, "bad_response", interim=(103,) * 16),
    Row("a body longer than said", replies(HEAD_10 + b"0123456789abc"), 200, body=b"0123456789"),
    Row("ends with the connection", replies(HEAD_CLOSE + b"hello"), 200, body=b"hello"),
    Row("103, then 200", replies(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + POISON), 200, interim=(103,)),
    Row("100 unasked, then 200", replies(b"HTTP/1.1 100 Continue\r\n\r\n" + POISON), 200, interim=(100,)),
    Row("early answer, closing", early_answer, 413, body=b"too much", sent=HALF_UPLOAD),
    Row("early answer, keeping", early_answer_kept, 413, body=b"too much", sent=HALF_UPLOAD),
    Row("204 with a length", replies(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"), 204, body=b""),
    Row("304 with a length", replies(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"), 304, body=b""),
    Row("HEAD with a body", replies(HEAD_10 + b"0123456789"), 200, body=b"", sent=request(method="HEAD")),
    Row("no reason phrase", replies(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), 200, body=b""),
]

ROWS = [*BROKEN, *STALLING, *NOT_HTTP, *FRAMING, *UNUSUAL]


def kept(first: Script) -> Script:
    """`first` on the first connection, an ordinary pod on all others."""

    def script(side: PodSide) -> None:
        (first if side.number == 0 else serve)(side)

    return script


def closes_on_second(end: Script) -> Script:
    """Answers one request and keeps the connection, and ends it as soon as the next has come."""

    def script(side: PodSide) -> None:
        side.request()
        side.answer()
        side.request()
        end(side)

    return kept(script)


def poisons_at_once(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine" + POISON)
    side.stall()


def poisons_later(side: PodSide) -> None:
    side.request()
    side.answer()
    side.wait()
    side.send(POISON)
    assert side.is_closed()


def closes_when_idle(side: PodSide) -> None:
    side.request()
    side.answer()
    side.wait()


KEPT = {
    "close": closes_on_second(close),
    "reset": closes_on_second(reset),
    "poison-at-once": kept(poisons_at_once),
    "poison-later": kept(poisons_later),
    "idle-close": kept(closes_when_idle),
}


class Bench:
    """The activator of this module and its pods by the name of their revision."""

    def __init__(self, activator: Activator, pods: dict[str, ScriptedPod]) -> None:
        self.activator = activator
        self.pods = pods


@pytest.fixture(scope="module")
def bench(run_shared_activator: RunActivator) -> Iterator[Bench]:
    pods: dict[str, ScriptedPod] = {}
    revisions = []
    try:
        for number, row in enumerate(ROWS):
            pods[f"row{number}"] = ScriptedPod(row.script)
            revisions.append(revision_of(f"row{number}", pods[f"row{number}"], row.timeouts))
        for name, script in KEPT.items():
            for method in ("GET", "POST"):
                pods[f"{name}-{method}"] = ScriptedPod(script)
                revisions.append(revision_of(f"{name}-{method}", pods[f"{name}-{method}"], {}))
        yield Bench(run_shared_activator(configured(revisions)), pods)
    finally:
        close_all(pods.values())


def revision_of(name: str, pod: ScriptedPod, timeouts: dict[str, str]) -> dict[str, object]:
    return {
        "name": name,
        "hosts": [f"{name.lower()}.test"],
        "container_concurrency": 1,
        "timeouts": timeouts,
        "pods": [pod.address],
    }


@pytest.mark.parametrize(("number", "row"), list(enumerate(ROWS)), ids=[row.name for row in ROWS])
def test_fault(bench: Bench, number: int, row: Row) -> None:
    name = f"row{number}"
    pod = bench.pods[name]
    bench.activator.wait_ready_pods(name)
    sent = row.sent.replace(b"a.test", f"{name}.test".encode())
    method = sent.split(b" ")[0].decode()
    with Client(bench.activator.address) as client:
        client.send(sent)
        answer = client.head()
        pod.go_on()
        if row.cut:
            with pytest.raises(CutShortError):
                client.body(answer, method)
        else:
            client.body(answer, method)
        check(row, answer)
    bench.activator.wait_idle(name)
    shown = bench.activator.revision(name)
    assert shown["failed"] == ({row.reason: 1} if row.reason else {})
    assert len(pod.requests) == row.requests
    assert pod.connections == 1
    if row.status != 304 and not row.deaf:
        pod.wait_open(0)


def check(row: Row, answer: Answer) -> None:
    assert answer.status == row.status, answer
    assert tuple(answer.interim) == row.interim
    if row.cut:
        assert answer.reason == ""
    else:
        assert answer.reason == row.reason
    if row.body is not None:
        assert answer.body == row.body


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_kept_connection_that_closes_as_the_next_request_goes_out(bench: Bench, end: str, method: str) -> None:
    """GET is sent again on a new connection, POST may have been processed and is not."""
    name = f"{end}-{method}"
    pod = bench.pods[name]
    bench.activator.wait_ready_pods(name)
    with Client(bench.activator.address) as client:
        assert client.ask(request(method=method, host=f"{name.lower()}.test")).status == 200
        answer = client.ask(request(method=method, host=f"{name.lower()}.test"))
    seen = [(one.connection, one.method) for one in pod.requests]
    if method == "GET":
        assert answer.status == 200
        assert seen == [(0, method), (0, method), (1, method)]
    else:
        assert (answer.status, answer.reason) == (502, "pod_closed")
        assert seen == [(0, method), (0, method)]
    bench.activator.wait_idle(name)


@pytest.mark.parametrize("kind", ["poison-at-once", "poison-later", "idle-close"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_kept_connection_that_must_not_be_used_again(bench: Bench, kind: str, method: str) -> None:
    """Bytes that nobody asked for are nobody's answer; a connection closed while idle costs nobody anything."""
    name = f"{kind}-{method}"
    pod = bench.pods[name]
    bench.activator.wait_ready_pods(name)
    data = request(method=method, host=f"{name.lower()}.test")
    with Client(bench.activator.address) as client:
        first = client.ask(data)
        assert (first.status, first.body) == (200, b"fine")
        pod.go_on()
        pod.wait_open(0)
        eventually(lambda: bench.activator.slots(name)[0]["connections"]["idle"] == 0)
        for _ in range(3):
            answer = client.ask(data)
            assert (answer.status, answer.body) == (200, pod.address.encode())
    assert [one.connection for one in pod.requests] == [0, 1, 1, 1]


def test_a_pod_that_refuses(run_activator: RunActivator) -> None:
    """Nothing was sent: the request waits for a pod, until its time in line is over or the pod is back."""
    pod = ScriptedPod(serve)
    brief = {"name": "brief", "hosts": ["brief.test"], "queue": {"timeout": "1s"}, "pods": [pod.address]}
    patient = {"name": "patient", "hosts": ["patient.test"], "queue": {"timeout": "60s"}, "pods": [pod.address]}
    activator = run_activator(configured([brief, patient]))
    activator.wait_ready_pods("brief")
    activator.wait_ready_pods("patient")
    pod.close()
    with Client(activator.address) as client:
        answer = client.ask(request(method="POST", host="brief.test"))
        assert (answer.status, answer.reason) == (504, "queue_timeout")
        assert activator.slots("brief")[0]["state"] == "quarantined"
        client.send(request(method="POST", host="patient.test"))
        with ScriptedPod(serve, pod.port) as back:
            assert client.answer().body.decode() == back.address
    assert activator.revision("brief")["failed"] == {"queue_timeout": 1}
    assert activator.revision("patient")["failed"] == {}
