"""When to ask queue-proxy: not before the program behind it listens, as far as that can be seen from outside.

queue-proxy looks every 50 ms whether its program is ready, from the first question on until it is, and lets all
questions that come meanwhile wait (knative.dev/serving pkg/queue/readiness/probe.go). An early question is answered up
to 50 ms late, and asking again does not help. A question that comes just after the program began to listen is answered
at once, unless another client has asked too early: a kubelet does, as soon as the container runs.

Rules
  1. A pod whose requests wait gets a TCP probe first, on the program's own port; when that opens, queue-proxy is asked
     in the same moment. Only queue-proxy's answer counts, but for rule 4: the port only shows when to ask.
  2. Whether a program's port can be seen from outside is learnt with the first start of a revision: a pod that is ready
     and has it open shows it. Before that, and where it is hidden (it listens on the loopback interface only, or a
     policy drops packets), a question waits TCP_PROBE_UNKNOWN_S at the most, or not at all. Where it has been seen, the
     question waits for it, TCP_PROBE_TRUST_S at the most: then queue-proxy is asked all the same.
  3. A pod whose requests do not wait gets none. Where many are, the steps grow with their number, as those of the
     questions do: two hundred revisions that wait for minutes must not cost the requests of the others a core.
  4. Where queue-proxy itself only checks that this port takes connections (`ProbeSpec.port_suffices`), its answer is
     awaited for TCP_PROBE_PROOF_S only: if it lets the question hang until its next look, the port has shown the same.
     That counts only of a port that was closed while queue-proxy's took connections, and has opened since: a mesh that
     takes every connection in its pods' place shows no such difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Final

from activator.control_plane.probes.probe import (
    PROBE_HURRIED_LONG_S,
    PROBE_HURRIED_LONG_STEP_S,
    PROBES_HURRIED_MAX,
    Ask,
    Question,
    ask,
)
from activator.runtime.clock import Now
from activator.runtime.sockets import split_address
from activator.runtime.tasks import pause

TCP_PROBE_STEP_S: Final = 0.003  # between two looks whether a program listens, while requests wait for it
TCP_PROBE_STEP_SHARE: Final = 0.02  # … and so much of the time since the first …
TCP_PROBE_STEP_MAX_S: Final = 0.02  # … up to this
TCP_PROBE_UNKNOWN_S: Final = 0.025  # how long queue-proxy is not asked where it is not known whether that can be seen …
TCP_PROBE_TRUST_S: Final = 5.0  # … and where it can
TCP_PROBE_PROOF_S: Final = 0.004  # queue-proxy's answer is awaited so long where the port itself has shown the same
TCP_PROBED_REVISIONS_MAX: Final = 10_000  # of which it is remembered

Connects = Callable[[str, int], Awaitable[bool | None]]

_SILENT_S: Final = 0.05  # a port that does not answer for so long is not to be seen


class Sight(Enum):
    """What is known of the port of a revision's program."""

    UNKNOWN = "unknown"
    SEEN = "seen"  # it has opened before queue-proxy said that the program was ready
    HIDDEN = "hidden"  # queue-proxy said so while it was closed


async def connects(host: str, port: int, silent_s: float = _SILENT_S) -> bool | None:
    """Whether a program listens at this IP address; None: that is not known.

    The kernel has the last word, whatever the loop has seen by then: if a late loop counted as a silent port, a
    revision could be taken for one whose port is hidden, and would not be probed again.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setblocking(False)
        try:
            error = sock.connect_ex((host, port))
        except OSError:  # not an address
            return None
        if error == errno.EINPROGRESS:
            await _writable(sock, silent_s)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return False if error == errno.ECONNREFUSED else None
        return _has_peer(sock)


async def _writable(sock: socket.socket, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(sock, writable.set)
    try:
        with contextlib.suppress(TimeoutError):  # the caller looks at the socket itself
            async with asyncio.timeout(limit_s):
                await writable.wait()
    finally:
        loop.remove_writer(sock)


def _has_peer(sock: socket.socket) -> bool | None:
    try:
        sock.getpeername()
    except OSError:
        return None
    return True


def _program_of(question: Question) -> tuple[str, int]:
    host, _ = split_address(question.address)
    return host, question.probe.port


class TcpProber:
    """`ask` as the prober's, with a probe_port before it where that is worthwhile."""

    def __init__(
        self,
        now: Now,
        ask_pod: Callable[[Question, float], Coroutine[None, None, Ask]] = ask,
        probe_port: Connects = connects,
        wait: Callable[[float], Coroutine[None, None, None]] = pause,
    ) -> None:
        self._now = now
        self._ask_pod = ask_pod
        self._probe_port = probe_port
        self._wait = wait
        self._sights: dict[str, Sight] = {}  # by revision
        self._since_s: dict[str, float] = {}  # by pod, `identity@address`: when its port was probed first
        self._probing: set[str] = set()  # addresses
        self._asking: dict[str, int] = {}  # by address: questions at queue-proxy
        self._apart: set[str] = set()  # pods whose program's port was closed while queue-proxy's was open
        self.tcp_probes_total = 0

    async def ask(self, question: Question, timeout_s: float) -> Ask:
        """One question; REFUSED while the program's port is known to open and has not."""
        port = question.probe.port
        sight = self._sights.get(question.revision, Sight.UNKNOWN)
        if not port or not question.hurried or sight is Sight.HIDDEN:
            return await self._ask_pod(question, timeout_s)
        seen = sight is Sight.SEEN
        pod = f"{question.identity}@{question.address}"
        since_s = self._first_probe_s(pod)
        if question.address in self._probing:
            return Ask.REFUSED  # the question beside this one probes the port
        # While a question hangs at queue-proxy, this one can only probe the port.
        patient = seen or (question.probe.port_suffices and question.address in self._asking)
        limit_s = min(TCP_PROBE_TRUST_S if patient else TCP_PROBE_UNKNOWN_S, timeout_s)
        self._probing.add(question.address)
        try:
            opened = await self._wait_until_open(question, pod, since_s, limit_s)
        finally:
            self._probing.discard(question.address)
        if opened is False and patient and self._now() - since_s < TCP_PROBE_TRUST_S:
            return Ask.REFUSED  # the next question probes again
        proven = opened is True and pod in self._apart
        self._apart.discard(pod)
        found = await self._ask_queue_proxy(question, timeout_s, proven)
        if found is Ask.ANSWERED:
            self._since_s.pop(pod, None)
            if not opened:
                opened = await self._probe_port(*_program_of(question))
            self._remember(question.revision, Sight.SEEN if opened else Sight.HIDDEN)
        return found

    async def _ask_queue_proxy(self, question: Question, timeout_s: float, proven: bool) -> Ask:
        """Its answer; or, where the port has shown that the program is ready, what would be its answer."""
        address = question.address
        self._asking[address] = self._asking.get(address, 0) + 1
        try:
            if not proven:
                return await self._ask_pod(question, timeout_s)
            return await self._ask_for_a_moment(question, timeout_s)
        finally:
            self._asking[address] -= 1
            if not self._asking[address]:
                del self._asking[address]

    async def _ask_for_a_moment(self, question: Question, timeout_s: float) -> Ask:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask_pod(question, timeout_s), name="question")
            moment = group.create_task(self._wait(TCP_PROBE_PROOF_S), name="moment")
            await asyncio.wait((asking, moment), return_when=asyncio.FIRST_COMPLETED)
            found = asking.result() if asking.done() else Ask.ANSWERED
            asking.cancel()
            moment.cancel()
        return found

    async def _wait_until_open(self, question: Question, pod: str, since_s: float, limit_s: float) -> bool | None:
        """In steps that grow with the time since the first: a delay of a fiftieth of a start does not matter."""
        ends_s = self._now() + limit_s
        host, port = _program_of(question)
        while True:
            self.tcp_probes_total += 1
            opened = await self._probe_port(host, port)
            if opened is False and question.probe.port_suffices and pod not in self._apart:
                await self._look_whether_apart(question, pod)
            if opened is not False or self._now() >= ends_s:
                return opened
            await self._wait(self._step_s(self._now() - since_s))

    def _step_s(self, waited_s: float) -> float:
        step_s = min(max(TCP_PROBE_STEP_S, TCP_PROBE_STEP_SHARE * waited_s), TCP_PROBE_STEP_MAX_S)
        if waited_s >= PROBE_HURRIED_LONG_S:
            step_s = PROBE_HURRIED_LONG_STEP_S
        return step_s * max(1.0, len(self._probing) / PROBES_HURRIED_MAX)

    def _first_probe_s(self, pod: str) -> float:
        """When the port of this pod was probed first, if only now; another pod at its address begins anew."""
        since_s = self._since_s.get(pod)
        if since_s is None:
            if len(self._since_s) >= TCP_PROBED_REVISIONS_MAX:  # of pods that have gone without an answer
                self._since_s.clear()
            since_s = self._since_s[pod] = self._now()
        return since_s

    async def _look_whether_apart(self, question: Question, pod: str) -> None:
        """Note it if the program's port is closed after queue-proxy's has taken a connection."""
        if not await self._probe_port(*split_address(question.address)):
            return
        if await self._probe_port(*_program_of(question)) is False:
            if len(self._apart) >= TCP_PROBED_REVISIONS_MAX:  # of pods that have gone without an answer
                self._apart.clear()
            self._apart.add(pod)

    def _remember(self, revision: str, sight: Sight) -> None:
        if len(self._sights) >= TCP_PROBED_REVISIONS_MAX:
            self._sights.clear()
        self._sights[revision] = sight
