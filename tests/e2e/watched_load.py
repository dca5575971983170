"""Clients and pods in one process and one loop: what knows when a request waits, and when a slot is free.

    with WatchedLoad(pods=[Pods(4, 1, 0.005)]) as load:
        load.begin([Clients(addresses, 24)])
        figures = load.phase()          # of the time since `begin`, or since the last call

A process of its own, so that it shares no interpreter with the test; commands and answers are lines of JSON. It speaks
raw HTTP over epoll: a request costs it some 30 us, for both of its ends.

Rules
  1. Each request carries a number, by which the pod says when it came. Its *wait* is the time from when it was sent.
  2. A request is at a pod until its answer is written, or its connection has ended. The end of a connection may be in
     the kernel's queue while the next request is read from another one; before a pod says that it has too many, it
     looks.
  3. *Idle* is the longest time for which one request waited while one slot was free: it is looked at when all that has
     come so far was read, so a moment in which this process did not run is nobody's fault.
  4. A connection that ends while its request has no answer is `cut`, one that is refused is `refused`, each with the
     time and the member; whether that may be is for the test to say.
"""

from __future__ import annotations

import errno
import heapq
import json
import random
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REDIAL_S: Final = 0.02  # after a connection was refused
SHOWN: Final = 20  # of a kind of failures


class Pods(NamedTuple):
    """Of one revision: how many, the requests that each may have, and the mean time that one takes."""

    total: int
    limit: int
    takes_s: float


class Clients(NamedTuple):
    """Of one revision: so many connections, at the addresses in turn. Each asks again as soon as it has its answer."""

    addresses: Sequence[str]
    total: int
    host: str


class Figures(msgspec.Struct):
    """Of one phase and one revision. Times are in seconds, `at_s` by the machine's monotonic clock."""

    seconds: float = 0.0
    good: int = 0
    most: int = 0  # requests at one pod at one time
    overshoots: int = 0  # requests that came to a pod that had its limit
    p50_wait_s: float = 0.0
    p99_wait_s: float = 0.0
    longest_wait_s: float = 0.0
    idle_s: float = 0.0
    late_s: float = 0.0  # by how much this process itself was late at most: what the machine did in its place
    cut: list[tuple[float, int]] = []  # when, and which address
    refused: list[tuple[float, int]] = []
    other: list[str] = []  # answers that are no 200
    other_count: int = 0


# --- the test's side ------------------------------------------------------------------------------------------------


class WatchedLoad:
    """The process. One `Clients` for each `Pods`."""

    def __init__(self, pods: Sequence[Pods]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.watched_load", json.dumps(pods)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.addresses: list[list[str]] = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10.0)

    def begin(self, clients: Sequence[Clients]) -> None:
        """Again, after `end`."""
        self._do("begin", clients)

    def takes(self, takes_s: float) -> None:
        """The mean time of a request at a pod from now on."""
        self._do("takes", takes_s)

    def good(self) -> int:
        """Of all revisions, since this phase has begun."""
        found: int = self._do("good", None)
        return found

    def phase(self) -> list[Figures]:
        """Of each revision; another phase begins."""
        return msgspec.convert(self._do("phase", None), list[Figures])

    def end(self) -> list[Figures]:
        """What is under way is answered, and nothing more is asked."""
        return msgspec.convert(self._do("end", None), list[Figures])

    def _do(self, command: str, argument: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, argument]).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the load has ended"
        return json.loads(line)


# --- the process ----------------------------------------------------------------------------------------------------


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Loop:
    """epoll, and what is due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.stopped = False
        self.late_s = 0.0

    def add(self, file: HasFileno, ready: Callable[[], None], to_write: bool = False) -> None:
        self._ready[file.fileno()] = ready
        self._epoll.register(file.fileno(), select.EPOLLOUT if to_write else select.EPOLLIN)

    def reads(self, sock: socket.socket, ready: Callable[[], None]) -> None:
        """From now on, in place of writing."""
        self._ready[sock.fileno()] = ready
        self._epoll.modify(sock.fileno(), select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        del self._ready[sock.fileno()]
        self._epoll.unregister(sock.fileno())

    def at(self, time_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._order), happens))

    def run(self, look: Callable[[float], None]) -> None:
        """`look(time)` when all that had come by this time was read."""
        due = self._due
        while not self.stopped:
            wait_s = min(max(due[0][0] - time.monotonic(), 0.0), 0.02) if due else 0.02
            self._read(self._epoll.poll(wait_s))
            now_s = time.monotonic()
            self._read(self._epoll.poll(0.0))
            look(now_s)
            if due:
                self.late_s = max(self.late_s, now_s - due[0][0])
            while due and due[0][0] <= now_s:
                heapq.heappop(due)[2]()

    def _read(self, events: list[tuple[int, int]]) -> None:
        for descriptor, _ in events:
            ready = self._ready.get(descriptor)
            if ready is not None:  # it was removed by one before it
                ready()


class Revision:
    """Its pods, its clients, and the figures of the present phase."""

    def __init__(self, loop: Loop, pods: Pods, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.limit = pods.limit
        self.takes_s = pods.takes_s
        self.pods = [Pod(self) for _ in range(pods.total)]
        self.clients: list[Client] = []
        self.waiting: dict[int, Client] = {}  # by number, in the order in which they were sent
        self.ends = False
        self._host = ""
        self._numbers = count(1)
        self._new_phase()

    def _new_phase(self) -> None:
        self.figures = Figures()
        self.began_s = time.monotonic()
        self.waits_s: list[float] = []

    def taken(self) -> Figures:
        figures, waits_s = self.figures, sorted(self.waits_s)
        figures.seconds = time.monotonic() - self.began_s
        figures.late_s = self.loop.late_s
        if waits_s:
            figures.p50_wait_s = waits_s[len(waits_s) // 2]
            figures.p99_wait_s = waits_s[len(waits_s) * 99 // 100]
            figures.longest_wait_s = waits_s[-1]
        self._new_phase()
        return figures

    def begin(self, clients: Clients) -> None:
        self._host, self.ends = clients.host, False
        self.clients.clear()
        for number in range(clients.total):
            member = number % len(clients.addresses)
            self.clients.append(Client(self, member, clients.addresses[member]))

    def next_of(self, client: Client) -> None:
        """It has nothing to do."""
        if self.ends:
            client.close()
        else:
            client.ask()

    def request(self) -> tuple[int, bytes]:
        """The number of the next one, and its bytes."""
        number = next(self._numbers)
        return number, b"GET /%d HTTP/1.1\r\nHost: %b\r\n\r\n" % (number, self._host.encode())

    def arrived(self, number: int, now_s: float) -> None:
        client = self.waiting.pop(number, None)
        if client is not None:
            self.waits_s.append(now_s - client.asked_s)

    def look(self, now_s: float) -> None:
        """Does the request that has waited for longest wait while a slot is free?"""
        if not self.waiting:
            return
        asked_s = next(iter(self.waiting.values())).asked_s
        free_s = min((pod.free_since_s[0] for pod in self.pods if pod.free_since_s), default=now_s)
        idle_s = now_s - max(free_s, asked_s)
        if idle_s > self.figures.idle_s:
            self.figures.idle_s = idle_s

    def other(self, answer: bytes) -> None:
        self.figures.other_count += 1
        if len(self.figures.other) < SHOWN:
            self.figures.other.append(answer[:400].decode("latin-1"))


class Pod:
    """A listening socket, and the connections that have a request."""

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._requests: dict[PodConnection, None] = {}
        self.free_since_s = deque([time.monotonic()] * revision.limit)  # of each slot; the longest first
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._socket.setblocking(False)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        revision.loop.add(self._socket, self._accept)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            PodConnection(self._revision, self, sock)

    def came(self, connection: PodConnection, number: int) -> None:
        now_s = time.monotonic()
        revision = self._revision
        if len(self._requests) >= revision.limit:
            for other in [other for other in self._requests if other.has_ended()]:
                self.left(other)
        self._requests[connection] = None
        if self.free_since_s:
            self.free_since_s.popleft()
        figures = revision.figures
        figures.most = max(figures.most, len(self._requests))
        figures.overshoots += len(self._requests) > revision.limit
        revision.arrived(number, now_s)

    def left(self, connection: PodConnection) -> None:
        if connection in self._requests:
            del self._requests[connection]
            if len(self._requests) < self._revision.limit:
                self.free_since_s.append(time.monotonic())


class PodConnection:
    def __init__(self, revision: Revision, pod: Pod, sock: socket.socket) -> None:
        self._revision = revision
        self._pod = pod
        self._socket = sock
        self._data = b""
        self._is_open = True
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        revision.loop.add(sock, self._read)

    def has_ended(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _read(self) -> None:
        try:
            data = self._socket.recv(16_384)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        self._data += data
        if self._data.endswith(b"\r\n\r\n"):
            number = int(self._data[5 : self._data.index(b" ", 5)])
            self._data = b""
            self._pod.came(self, number)
            takes_s = self._revision.takes_s * self._revision.chance.uniform(0.5, 1.5)
            self._revision.loop.at(time.monotonic() + takes_s, self._answer)

    def _answer(self) -> None:
        if self._is_open:
            self._pod.left(self)
            try:
                self._socket.send(ANSWER)
            except OSError:
                self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._pod.left(self)
            self._revision.loop.remove(self._socket)
            self._socket.close()


class Client:
    """One connection, and the next one when that has ended."""

    def __init__(self, revision: Revision, member: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._revision = revision
        self.member = member
        self._address = (host, int(port))
        self._number = 0  # of the request under way
        self.asked_s = 0.0
        self._data = b""
        self._socket: socket.socket | None = None
        self._dial()

    def ask(self) -> None:
        """It has a connection, and nothing is under way."""
        assert self._socket is not None
        self._number, data = self._revision.request()
        self.asked_s = time.monotonic()
        self._revision.waiting[self._number] = self
        try:
            self._socket.send(data)
        except OSError:
            self._lost()

    def close(self) -> None:
        if self._socket is not None:
            self._revision.loop.remove(self._socket)
            self._socket.close()
            self._socket = None

    @property
    def is_closed(self) -> bool:
        return self._socket is None

    def _dial(self) -> None:
        if self._revision.ends:
            return
        sock = self._socket = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect_ex(self._address)
        self._revision.loop.add(sock, self._connected, to_write=True)

    def _connected(self) -> None:
        assert self._socket is not None
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            assert error in {errno.ECONNREFUSED, errno.ECONNRESET}, errno.errorcode[error]
            self._revision.figures.refused.append((time.monotonic(), self.member))
            self.close()
            self._revision.loop.at(time.monotonic() + REDIAL_S, self._dial)
            return
        self._revision.loop.reads(self._socket, self._read)
        self._revision.next_of(self)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(16_384)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        answer, self._data = self._data, b""
        self._revision.waiting.pop(self._number, None)  # an answer that is not of a pod
        self._number = 0
        if answer.startswith(b"HTTP/1.1 200 "):
            self._revision.figures.good += 1
        else:
            self._revision.other(answer)
        self._revision.next_of(self)

    def _lost(self) -> None:
        self.close()
        self._data = b""
        revision = self._revision
        if self._number:
            revision.waiting.pop(self._number, None)
            self._number = 0
            revision.figures.cut.append((time.monotonic(), self.member))
        self._dial()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise AssertionError(f"an answer without a length: {head!r}")


class Commands:
    """Of the test, from standard input."""

    def __init__(self, loop: Loop, revisions: list[Revision]) -> None:
        self._loop = loop
        self._revisions = revisions
        self._stdin = sys.stdin.buffer

    def read(self) -> None:
        line = self._stdin.readline()
        if not line:
            self._loop.stopped = True
            return
        command, argument = json.loads(line)
        commands: dict[str, Callable[[Any], None]] = {
            "begin": self._begin,
            "takes": self._takes,
            "good": lambda _: self.say(sum(revision.figures.good for revision in self._revisions)),
            "phase": lambda _: self._say_figures(),
            "end": lambda _: self._stop(),
        }
        commands[command](argument)

    def _begin(self, clients: list[Any]) -> None:
        for revision, of_it in zip(self._revisions, clients, strict=True):
            revision.begin(Clients(*of_it))
        self.say(None)

    def _takes(self, takes_s: float) -> None:
        for revision in self._revisions:
            revision.takes_s = takes_s
        self.say(None)

    def _stop(self) -> None:
        for revision in self._revisions:
            revision.ends = True
        self._end()

    def _end(self) -> None:
        if all(client.is_closed for revision in self._revisions for client in revision.clients):
            self._say_figures()
        else:
            self._loop.at(time.monotonic() + 0.01, self._end)

    def _say_figures(self) -> None:
        self.say([msgspec.to_builtins(revision.taken()) for revision in self._revisions])
        self._loop.late_s = 0.0

    def say(self, answer: object) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    loop = Loop()
    chance = random.Random(1)
    revisions = [Revision(loop, Pods(*pods), chance) for pods in json.loads(sys.argv[1])]
    commands = Commands(loop, revisions)
    commands.say([[pod.address for pod in revision.pods] for revision in revisions])
    loop.add(sys.stdin, commands.read)

    def look(now_s: float) -> None:
        for revision in revisions:
            revision.look(now_s)

    loop.run(look)


if __name__ == "__main__":
    main()
