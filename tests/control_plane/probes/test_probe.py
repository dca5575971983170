"""What counts as an answer: over real sockets, pods that say this and that, and Knative's queue-proxy as it behaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Self

import pytest

from activator.config.model.pods import PodTls
from activator.config.specs import ProbeSpec
from activator.control_plane.probes.probe import ProbeOutcome, ProbeRequest, probe_once

LONG_S = 30.0  # never waited for

Answering = Callable[[bytes], bytes | None]  # from a request's head to the bytes of the answer; None: silence


class Pod:
    """Answers what the test says, and remembers what it was asked."""

    def __init__(self, answering: Answering) -> None:
        self.heads: list[bytes] = []
        self.asked = asyncio.Event()
        self._answering = answering
        self.writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        for _ in range(20):
            await asyncio.sleep(0)  # who was let in last is to be known here, too
        self._server.close()
        self.hang_up()
        await asyncio.gather(*self._serving)

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            self.asked.set()
            answer = self._answering(head)
            if answer is not None:
                writer.write(answer)
            await reader.read()
        writer.close()


def saying(answer: bytes) -> Answering:
    return lambda head: answer


def queue_proxy(ready: bool, draining: bool = False) -> Answering:
    """Knative's queue-proxy, as far as the probe can tell."""

    def answering(head: bytes) -> bytes:
        lines = head.lower().split(b"\r\n")
        if lines[0] != b"get /healthz http/1.1" or b"user-agent: knative-activator-probe" not in lines:
            return response(404, b"")
        if b"k-network-probe: queue" not in lines:
            return response(400, b"unexpected probe header value")
        if draining:
            return response(503, b"shutting down")
        return response(200, b"queue") if ready else response(503, b"")

    return answering


def response(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    """On asyncio's own loop in any case: its calls for sockets lean on the order of its callbacks."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(scenario())


def test_a_port_that_accepts_is_an_answer_and_a_closed_one_is_known_at_once() -> None:
    async def scenario() -> None:
        async with Pod(saying(b"")) as pod:
            assert await probe_once(ProbeRequest(pod.address), LONG_S) is ProbeOutcome.ANSWERED
            assert await probe_once(ProbeRequest(pod.address), LONG_S) is ProbeOutcome.ANSWERED
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening
            assert await probe_once(ProbeRequest(f"127.0.0.1:{taken.getsockname()[1]}"), LONG_S) is ProbeOutcome.REFUSED

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (response(200, b""), ProbeOutcome.ANSWERED),
        (response(302, b"", b"Location: /\r\n"), ProbeOutcome.ANSWERED),
        (
            b"HTTP/1.1 103 Early Hints\r\n\r\n" + response(204, b"").replace(b"Content-Length: 0\r\n", b""),
            ProbeOutcome.ANSWERED,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", ProbeOutcome.ANSWERED),  # nobody waits for the body
        (response(404, b""), ProbeOutcome.REFUSED),
        (response(503, b""), ProbeOutcome.REFUSED),
        (b"SSH-2.0-x\r\n", ProbeOutcome.REFUSED),
    ],
)
def test_a_path_that_is_asked_for(answer: bytes, found: ProbeOutcome) -> None:
    async def scenario() -> None:
        async with Pod(saying(answer)) as pod:
            probe = ProbeSpec("http", "/up?a=b", "pod.test", (("X-Key", "secret"),))
            assert await probe_once(ProbeRequest(pod.address, probe), LONG_S) is found
            (head,) = pod.heads
            assert head.startswith(b"GET /up?a=b HTTP/1.1\r\nHost: pod.test\r\n")
            assert b"\r\nX-Key: secret\r\n" in head
            assert await probe_once(ProbeRequest(pod.address, ProbeSpec("http", "/")), LONG_S) is found
            assert pod.heads[1].startswith(b"GET / HTTP/1.1\r\nHost: %b\r\n" % pod.address.encode())

    run(scenario)


def test_a_pod_that_closes_has_answered_nothing_and_one_that_says_nothing_is_silent() -> None:
    async def scenario() -> None:
        async with Pod(lambda head: None) as pod:
            for kind in ("http", "queue-proxy"):
                assert await probe_once(ProbeRequest(pod.address, ProbeSpec(kind)), 0.05) is ProbeOutcome.SILENT
        for half in (b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nque"):
            pod = Pod(saying(half))
            async with pod:
                asking = asyncio.ensure_future(probe_once(ProbeRequest(pod.address, ProbeSpec("queue-proxy")), LONG_S))
                await pod.asked.wait()
                await asyncio.sleep(0)
                pod.hang_up()
                assert await asking is ProbeOutcome.REFUSED

    run(scenario)


def test_queue_proxy_knows_the_probe_and_is_believed_when_it_says_queue() -> None:
    async def scenario() -> None:
        request = ProbeSpec("queue-proxy")
        for answering, found in (
            (queue_proxy(ready=True), ProbeOutcome.ANSWERED),
            (queue_proxy(ready=False), ProbeOutcome.REFUSED),
            (queue_proxy(ready=True, draining=True), ProbeOutcome.REFUSED),
            (saying(response(200, b"queued")), ProbeOutcome.REFUSED),
            (saying(response(200, b"")), ProbeOutcome.REFUSED),
            (saying(response(201, b"queue")), ProbeOutcome.REFUSED),
            (saying(response(200, b"queue" * 1000)), ProbeOutcome.REFUSED),
            (
                saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nqueue\r\n0\r\n\r\n"),
                ProbeOutcome.ANSWERED,
            ),
        ):
            async with Pod(answering) as pod:
                assert await probe_once(ProbeRequest(pod.address, request), LONG_S) is found
                (head,) = pod.heads
                assert b"\r\nHost: %b\r\n" % pod.address.encode() in head

    run(scenario)


def test_an_answer_in_pieces_is_waited_for() -> None:
    async def scenario() -> None:
        pod = Pod(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nqu"))
        async with pod:
            asking = asyncio.ensure_future(probe_once(ProbeRequest(pod.address, ProbeSpec("queue-proxy")), LONG_S))
            await pod.asked.wait()
            await asyncio.sleep(0.005)
            assert not asking.done()
            pod.writers[0].write(b"eue")
            assert await asking is ProbeOutcome.ANSWERED

    run(scenario)


def test_a_pod_that_says_it_is_another_has_not_answered() -> None:
    async def scenario() -> None:
        probe = ProbeSpec("http", "/", identity_header="X-Pod")
        async with Pod(saying(response(200, b"", b"x-pod: uid-1\r\n"))) as pod:
            assert await probe_once(ProbeRequest(pod.address, probe, None, "uid-1"), LONG_S) is ProbeOutcome.ANSWERED
            assert await probe_once(ProbeRequest(pod.address, probe, None, "uid-2"), LONG_S) is ProbeOutcome.REFUSED
        async with Pod(saying(response(200, b""))) as pod:
            assert await probe_once(ProbeRequest(pod.address, probe, None, "uid-1"), LONG_S) is ProbeOutcome.REFUSED

    run(scenario)


def test_files_that_have_gone_are_no_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pod(saying(response(200, b""))) as pod:
            tls = PodTls(ca=str(tmp_path / "gone.pem"))
            assert await probe_once(ProbeRequest(pod.address, ProbeSpec("http"), tls), LONG_S) is ProbeOutcome.REFUSED

    run(scenario)


def test_the_cause_of_a_failed_handshake_is_that_of_tls() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def talks_in_the_clear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 ready\r\n" * 20)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        async with await asyncio.start_server(talks_in_the_clear, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            request = ProbeRequest(f"{host}:{port}", ProbeSpec("http"), PodTls())
            assert await probe_once(request, LONG_S) is ProbeOutcome.REFUSED
            (cause,) = request.causes
            assert cause.startswith("TLS: ") and "not permitted" not in cause
            await ended.wait()

    run(scenario)
