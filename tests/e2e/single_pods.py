"""Pods that judge their proxy: many servers in one thread, each of which must never have more than it may.

Rules
  1. A request is being worked on from its head until its answer, or until its connection is closed by the proxy.
     Whether it is closed is asked of the kernel: the pod's own loop may hear of a new request before it hears of the
     end of an old one that came first.
  2. What was broken is kept in `violations`; `served` has the targets each pod answered, in order.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.e2e.running import PATIENCE_S, eventually

_ESTABLISHED = 1


class _Connection(asyncio.Protocol):
    def __init__(self, pod: JudgingPod) -> None:
        self._pod = pod
        self._buffer = b""
        self.target = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._pod.connections.add(self)
        if self._pod.listener is None:
            transport.abort()  # accepted in the moment in which the pod died

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        if rest or self.target:
            self._pod.violations.append("a request before the last was answered")
        self._buffer = b""
        self.target = head.split(b" ", 2)[1].decode()
        self._pod.begins(self)
        if self.target == self._pod.hold:
            self._pod.held.append(self)
        else:
            self._timer = asyncio.get_running_loop().call_later(self._pod.service_s, self.answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pod.connections.discard(self)
        self._pod.working.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def is_open(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        try:
            state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return False
        return state[0] == _ESTABLISHED

    def answer(self) -> None:
        self._timer = None
        self._pod.working.discard(self)
        if not self.is_open():
            return
        self._pod.served.append(self.target)
        self.target = ""
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")


class JudgingPod:
    """One of them. `limit`: how many requests it may have at a time."""

    def __init__(self, service_s: float, limit: int) -> None:
        self.service_s = service_s
        self.limit = limit
        self.connections: set[_Connection] = set()
        self.working: set[_Connection] = set()
        self.served: list[str] = []
        self.violations: list[str] = []
        self.most = 0
        self.hold = ""  # the target that is not answered before `let_go`
        self.held: list[_Connection] = []
        self.port = 0
        self.listener: socket.socket | None = None
        self._accepting: set[asyncio.Task[object]] = set()

    def begins(self, connection: _Connection) -> None:
        self.working = {one for one in self.working if one.is_open()}
        self.working.add(connection)
        self.most = max(self.most, len(self.working))
        if len(self.working) > self.limit:
            self.violations.append(f"{len(self.working)} at a time: {sorted(one.target for one in self.working)}")

    def listen(self) -> None:
        listener = self.listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(1024)
        self.port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        # Not asyncio's server: one that is closed in this very moment would leave what it has accepted open.
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        task: asyncio.Task[object] = loop.create_task(loop.connect_accepted_socket(lambda: _Connection(self), sock))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def die(self) -> None:
        """As a process that is killed: no listener, every connection reset."""
        if self.listener is not None:
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()
            self.listener = None
        for connection in list(self.connections):
            connection.transport.abort()


class SinglePods:
    """Use as a context; what its methods do happens in the pods' own thread."""

    def __init__(self, count: int, service_s: float, limit: int = 1) -> None:
        self.pods = [JudgingPod(service_s, limit) for _ in range(count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for pod in self.pods:
            self._call(_as_coroutine(pod.listen))
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods:
            self._call(_as_coroutine(pod.die))
        eventually(lambda: not any(pod.connections for pod in self.pods), "the ends of the connections")
        self._call(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{pod.port}" for pod in self.pods]

    def kill(self, place: int) -> None:
        self._call(_as_coroutine(self.pods[place].die))

    def revive(self, place: int) -> None:
        """On the same port, as a new incarnation would."""
        self._call(_as_coroutine(self.pods[place].listen))

    def let_go(self, place: int) -> None:
        """Answer what is held."""
        held, self.pods[place].held = self.pods[place].held, []
        for connection in held:
            self._call(_as_coroutine(connection.answer))

    def violations(self) -> list[str]:
        return [one for pod in self.pods for one in pod.violations]

    async def _settle(self) -> None:
        """Let everything end that is under way in the loop: what was accepted last, what was told to close."""
        this = asyncio.current_task()
        while others := [task for task in asyncio.all_tasks() if task is not this]:
            await asyncio.wait(others)
        await asyncio.sleep(0.01)

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)


async def _as_coroutine(function: Callable[[], None]) -> None:
    function()
