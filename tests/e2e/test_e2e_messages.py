"""Requests and answers in every framing: what goes through the activator is what would have gone without it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, CutShortError, chunked, request
from tests.e2e.origin import FRAMING, HOP_BY_HOP, digest, origin, pattern
from tests.e2e.pair import Pair, paired
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import configured, eventually, resident_bytes

MIB = 1 << 20


@pytest.fixture(scope="module")
def pair(run_shared_activator: RunActivator) -> Iterator[Pair]:
    with paired(origin, run_shared_activator) as pair:
        yield pair


FIELDS = (
    "User-Agent: e2e\r\nX-Two: 1\r\nx-two: 2\r\nX-Empty:\r\nCookie: a=b; c=d\r\nAccept: */*;q=0.1, x/y\r\n"
    "X-Latin: caf\u00e9 \t inside\r\nAuthorization: Basic eA==\r\n"
    "Connection: X-Hop\r\nX-Hop: for one hop\r\nKeep-Alive: timeout=1\r\nTE: trailers\r\n"
)
BODY = pattern(200_000)
INTERNAL = (
    "Knative-Serving-Revision: r\r\nknative_serving_namespace: n\r\nK-Original-Host: h\r\nActivator-Priority: 9\r\n"
    "X-Forwarded: for=1\r\nX_Forwarded_For: 1.1.1.1\r\nK-Mine: 1\r\nActual: 2\r\n"
)
FORWARDED = {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"}
METHODS_WITH_BODY = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
TARGETS = ["/echo?a=b&c=%20d", "/chunked", "/close", "/http10", "/status/204", "/status/304", "/bytes/100000"]


def requests() -> Iterator[tuple[str, bytes]]:
    for target in TARGETS:
        for method in ("GET", "HEAD", "OPTIONS", "DELETE"):
            yield f"{method} {target}", fields_of(method, target) + b"\r\n"
        for method in METHODS_WITH_BODY:
            start = fields_of(method, target)
            yield f"{method} {target} length", start + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
            yield f"{method} {target} empty", start + b"Content-Length: 0\r\n\r\n"
            pieces = [BODY[:1], BODY[1:70_000], BODY[70_000:]]
            yield (
                f"{method} {target} chunked",
                start + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*pieces, trailers="X-Check: 1\r\nX-Two: 2\r\n"),
            )


def fields_of(method: str, target: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: a.test:80\r\n{FIELDS}".encode("latin-1")


def comparable(answer: Answer, method: str) -> tuple[object, ...]:
    """An answer without what belongs to one hop; a length is end to end where it is all that a HEAD tells."""
    dropped = HOP_BY_HOP | (set() if method == "HEAD" else FRAMING)
    headers = [field for field in answer.headers if field[0] not in dropped]
    return answer.status, answer.phrase, headers, answer.body, answer.trailers


@pytest.mark.parametrize(("name", "data"), list(requests()), ids=[name for name, _ in requests()])
def test_through_is_as_direct(pair: Pair, name: str, data: bytes) -> None:
    method = name.partition(" ")[0]
    with Client(pair.pod.address) as direct, Client(pair.activator.address) as through:
        without = comparable(direct.ask(data), method)
        first = through.ask(data)
        assert comparable(first, method) == without
        if "close" not in first.all("connection"):
            assert comparable(through.ask(data), method) == without, "again on the same connection"


# --- versions, connections ------------------------------------------------------------------------------------------


def test_an_http_1_0_client(pair: Pair) -> None:
    """No chunks for it; its connection closes unless it asks for the contrary and the end can be told otherwise."""
    for target, size in (("/bytes/1000", 1000), ("/chunked", 0), ("/close", 0)):
        with Client(pair.activator.address) as client:
            client.send(f"GET {target} HTTP/1.0\r\n\r\n".encode())
            head = client.head()
            assert head.status == 200
            assert head.all("transfer-encoding") == []
            client.body(head)
            assert len(head.body) == size
            assert client.is_closed()
    with Client(pair.activator.address) as client:
        for _ in range(3):
            answer = client.ask(b"GET /bytes/10 HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n")
            assert answer.header("connection").lower() == "keep-alive"
            assert answer.body == pattern(10)
        client.send(
            b"POST /chunked HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
        )
        answer = client.answer()
        assert answer.framing == "close"
        assert answer.body == b"hello"


def test_connections_are_kept_and_closed_as_asked(pair: Pair) -> None:
    with Client(pair.activator.address) as client:
        for _ in range(5):
            assert client.ask(request("/echo")).status == 200
        answer = client.ask(request("/echo", headers="Connection: close\r\n"))
        assert answer.status == 200
        assert answer.header("connection") == "close"
        assert client.is_closed()


def test_pods_connections_are_reused(pair: Pair) -> None:
    before = pair.pod.connections
    with Client(pair.activator.address) as client:
        client.ask(request("/echo"))
    for _ in range(10):
        with Client(pair.activator.address) as client:
            assert client.ask(request("/echo")).status == 200
    assert pair.pod.connections <= before + 1


def test_100_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    """All in one segment, slow and fast, with and without bodies."""
    sent = []
    for number in range(100):
        if number % 10 == 0:
            sent.append(request(f"/slow/0.01/echo?{number}"))
        elif number % 3 == 0:
            sent.append(request(f"/echo?{number}", "POST", body=b"x" * number))
        elif number % 7 == 0:
            sent.append(request(f"/echo?{number}", "PUT", headers="Transfer-Encoding: chunked\r\n") + chunked(b"abc"))
        else:
            sent.append(request(f"/echo?{number}"))
    with Client(pair.activator.address) as client:
        client.send(b"".join(sent))
        for number in range(100):
            shown = json.loads(client.answer().body)
            assert shown["line"].split(" ")[1].endswith(f"echo?{number}")
            assert shown["size"] == (
                number if sent[number].startswith(b"POST") else 3 * sent[number].startswith(b"PUT")
            )
        assert client.ask(request("/echo")).status == 200


def test_bodies_byte_by_byte(pair: Pair) -> None:
    data = request("/chunked", "POST", headers="Transfer-Encoding: chunked\r\n") + chunked(b"hel", b"lo")
    with Client(pair.activator.address) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            client.send(bytes([byte]))
        assert client.answer().body == b"hello"


def test_expect_100_continue_with_curl(pair: Pair, need_program: Callable[[str], str], tmp_path: Path) -> None:
    """curl waits with the body until the pod's 100 has come through."""
    body = tmp_path / "body"
    body.write_bytes(BODY)
    command = [need_program("curl"), "-sSi", "--expect100-timeout", "30", "-H", "Expect: 100-continue", "-X", "POST"]
    command += ["--data-binary", f"@{body}", "-H", "Content-Type: x/y", f"http://{pair.activator.address}/echo"]
    started_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert time.monotonic() - started_s < 20
    assert done.stdout.startswith(b"HTTP/1.1 100 ")
    shown = json.loads(done.stdout[done.stdout.rindex(b"\r\n\r\n") :])
    assert (shown["size"], shown["body"]) == (len(BODY), digest(BODY))


def test_a_cut_answer_without_framing_ends_in_a_reset(run_activator: RunActivator) -> None:
    """An HTTP/1.0 client knows the end of a body by the end of the connection: only a reset tells it was cut."""

    def dies(side: PodSide) -> None:
        side.request()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        side.wait()

    with ScriptedPod(dies) as pod:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}]))
        with Client(activator.address) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert client.head().framing == "close"
            assert client.read(5) == b"hello"
            pod.go_on()
            with pytest.raises(CutShortError):
                client.rest()


@pytest.mark.parametrize("behind", [b"", request("/never", "POST", body=b"b" * 200_000)], ids=["", "and more behind"])
@pytest.mark.parametrize("size", [400_000, 12 * MIB])
def test_a_cut_answer_takes_nothing_from_the_one_before(run_activator: RunActivator, size: int, behind: bytes) -> None:
    """Its client has not read it yet; of the cut one it gets what there was, and then the end."""

    def dies_at_the_second(side: PodSide) -> None:
        side.request()
        side.answer(b"w" * size)
        side.request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")

    with ScriptedPod(dies_at_the_second) as pod:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}]))
        with Client(activator.address, receive_buffer=65_536) as client:
            client.send(request("/whole") + request("/cut") + behind)
            whole = client.head()
            if size < MIB:
                eventually(lambda: activator.revision("a")["failed"] == {"pod_closed": 1})
            for _ in range(0, size, 65_536):
                whole.body += client.read(min(65_536, size - len(whole.body)))
                time.sleep(0.001)  # the last of it is still on its way when the second is cut
            assert whole.body == b"w" * size
            assert client.head().status == 200
            assert client.read(3) == b"hel"
            assert client.is_closed()
        eventually(lambda: activator.revision("a")["failed"] == {"pod_closed": 1})


def test_what_a_pod_has_said_before_it_dies_arrives(run_activator: RunActivator) -> None:
    """Also where it dies in the same moment: a stream of tokens is worth something without its end."""

    def dies(side: PodSide) -> None:
        side.request()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    with ScriptedPod(dies) as pod:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}]))
        for _ in range(20):
            with Client(activator.address) as client:
                client.send(request())
                assert client.head().framing == "chunked"
                assert client.read(10) == b"5\r\nhello\r\n"
                assert client.is_closed()


# --- much -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_10_mb_up_and_down(pair: Pair, framing: str) -> None:
    body = pattern(10 * MIB)
    connection = http.client.HTTPConnection(pair.activator.host, pair.activator.port, timeout=60)
    try:
        if framing == "length":
            connection.request("POST", "/echo", body)
        else:
            pieces = (body[start : start + 77_777] for start in range(0, len(body), 77_777))
            connection.request("POST", "/echo", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        shown = json.loads(connection.getresponse().read())
        assert (shown["size"], shown["body"]) == (len(body), digest(body))
        if framing == "length":
            connection.request("GET", f"/bytes/{len(body)}")
        else:
            connection.request("POST", "/chunked", body)
        assert digest(connection.getresponse().read()) == digest(body)
    finally:
        connection.close()


SIZE = 64 * MIB
BOUND = 24 * MIB  # of the activator's memory, with what the allocator keeps


def settled(figure: Callable[[], int]) -> int:
    """The value of a figure once it has not changed for a while."""
    last, since_s = figure(), time.monotonic()
    while time.monotonic() - since_s < 0.5:
        time.sleep(0.02)
        now = figure()
        if now != last:
            last, since_s = now, time.monotonic()
    return last


class Flow:
    """A pod's script that sends, or takes, SIZE bytes and counts them."""

    def __init__(self) -> None:
        self.bytes = 0

    def send(self, side: PodSide) -> None:
        side.request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        while self.bytes < SIZE:
            side.send(b"x" * 65_536)
            self.bytes += 65_536

    def take(self, side: PodSide) -> None:
        side.head()
        side.wait()
        while self.bytes < SIZE:
            side.read(65_536)
            self.bytes += 65_536
        side.answer()


def test_a_client_that_reads_slowly_holds_up_its_pod_not_the_memory(run_activator: RunActivator) -> None:
    flow = Flow()
    with paired(flow.send, run_activator) as (_, activator):
        activator.ask("/metrics")  # the first connection loads the server of the admin port
        before = resident_bytes(activator.process.pid)
        with Client(activator.address, receive_buffer=65_536) as client:
            client.send(request())
            head = client.head()
            assert settled(lambda: flow.bytes) < SIZE, "the pod is held up"
            assert resident_bytes(activator.process.pid) - before < BOUND
            client.body(head)
            assert len(head.body) == SIZE
        assert resident_bytes(activator.process.pid) - before < BOUND


@pytest.mark.parametrize("when", ["slow pod", "no pod yet"])
def test_a_pod_that_reads_slowly_holds_up_its_client_not_the_memory(run_activator: RunActivator, when: str) -> None:
    """So does one that is not there yet: of a held request's body only the beginning is read."""
    flow = Flow()
    with ScriptedPod(flow.take) as pod:
        address = pod.address
        if when == "no pod yet":
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{sock.getsockname()[1]}"
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [address]}]))
        activator.ask("/metrics")  # the first connection loads the server of the admin port
        before = resident_bytes(activator.process.pid)
        sent = 0

        def upload(client: Client) -> None:
            nonlocal sent
            client.send(request(method="POST", headers=f"Content-Length: {SIZE}\r\n"))
            for _ in range(SIZE // 65_536):
                client.send(b"x" * 65_536)
                sent += 65_536

        with Client(activator.address) as client, ExitStack() as stack:
            thread = threading.Thread(target=upload, args=(client,))
            thread.start()
            eventually(lambda: sent > 0)
            assert settled(lambda: sent) < SIZE, "the client is held up"
            assert resident_bytes(activator.process.pid) - before < BOUND
            if when == "no pod yet":
                stack.enter_context(ScriptedPod(flow.take, int(address.rpartition(":")[2]))).go_on()
            pod.go_on()
            assert client.answer().status == 200
            thread.join()
        assert flow.bytes == SIZE
        assert resident_bytes(activator.process.pid) - before < BOUND


def test_names_that_only_we_and_knative_give_a_meaning_reach_no_pod(run_activator: RunActivator) -> None:
    """And those that are for us still count: here the time that a request may wait."""

    def slowly(side: PodSide) -> None:
        while True:
            if side.request().target == "/slow":
                side.wait()
            side.answer()

    with ScriptedPod(slowly) as pod:
        revision = {
            "name": "app",
            "hosts": ["*"],
            "pods": [pod.address],
            "container_concurrency": 1,
            "queue": {"request_timeout": True},
        }
        activator = run_activator(configured([revision], forwarded={"request_id": False}))
        activator.wait_ready_pods("app")
        with Client(activator.address) as client:
            assert client.ask(request("/", headers=INTERNAL + "X-Request-Id: mine 1\r\n")).status == 200
        (one,) = pod.requests
        names = {name.lower().replace("_", "-") for name, _ in one.headers}
        assert names == {"host", "k-mine", "actual", "x-request-id", *FORWARDED}
        assert one.all("x-request-id") == ["mine 1"] and one.all("x-forwarded-for") == ["127.0.0.1"]
        pod_is_busy = Client(activator.address)
        pod_is_busy.send(request("/slow"))
        eventually(lambda: len(pod.requests) == 2)
        with Client(activator.address) as client:
            answer = client.ask(request("/", headers="Activator-Queue-Timeout: 200ms\r\n"))
            assert (answer.status, answer.reason) == (504, "queue_timeout")
        pod.go_on()
        assert pod_is_busy.answer().status == 200
        pod_is_busy.close()
