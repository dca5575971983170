"""The time to ask queue-proxy: not before the program behind it listens, as far as its port can be probed.

From the first question on, queue-proxy checks every 50 ms whether its program is ready, and holds all questions until
it is (knative.dev/serving pkg/queue/readiness/probe.go). An early question is answered up to 50 ms late, and a second
one does not help. A question that arrives just after the program began to listen is answered at once, unless another
client has asked too early: a kubelet does, as soon as the container runs.

Rules
  1. A pod for which requests wait gets a TCP probe first, on the program's own port; when that opens, queue-proxy is
     asked at once. Only queue-proxy's answer counts, except for rule 4: the port only shows when to ask.
  2. Whether a program's port can be probed is learned in the first start of a revision: it can if it is open when a pod
     is ready. Before that is known, a question waits at most TCP_PROBE_UNKNOWN_S for the port. If the port is hidden
     (the program listens only on the loopback interface, or a policy drops packets), it does not wait. If the port has
     been seen, it waits at most TCP_PROBE_TRUST_S, and then queue-proxy is asked anyway.
  3. A pod for which no requests wait gets no TCP probe. With many pods the steps grow with their number, as those of
     the questions do: 200 revisions that wait for minutes must not use a core.
  4. If queue-proxy itself only checks that this port accepts connections (`ProbeSpec.port_suffices`), its answer is
     awaited for only TCP_PROBE_PROOF_S: if it holds the question until its next check, the port has proven the same.
     This requires that the port was closed while queue-proxy's port accepted, and has opened since: a mesh that accepts
     every connection for its pods does not show that difference.
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
    PROBE_EXPEDITED_LONG_S,
    PROBE_EXPEDITED_LONG_STEP_S,
    PROBES_EXPEDITED_MAX,
    Ask,
    Question,
    ask,
)
from activator.runtime.clock import Now
from activator.runtime.sockets import split_address
from activator.runtime.tasks import pause

# Steps between two probes of a program's port while requests wait: a share of the time since the first, within bounds.
TCP_PROBE_STEP_S: Final = 0.003
TCP_PROBE_STEP_SHARE: Final = 0.02
TCP_PROBE_STEP_MAX_S: Final = 0.02
# How long queue-proxy is not asked while the port is closed: if it is unknown whether the port can be probed, and if
# it can be probed.
TCP_PROBE_UNKNOWN_S: Final = 0.025
TCP_PROBE_TRUST_S: Final = 5.0
TCP_PROBE_PROOF_S: Final = 0.004  # how long queue-proxy's answer is awaited if the port has proven the same
TCP_PROBED_REVISIONS_MAX: Final = 10_000  # entries of each table below

Connects = Callable[[str, int], Awaitable[bool | None]]

_SILENT_S: Final = 0.05  # a port without an answer for this time counts as hidden


class Sight(Enum):
    """The knowledge about the port of a revision's program."""

    UNKNOWN = "unknown"
    SEEN = "seen"  # it opened before queue-proxy reported the program ready
    HIDDEN = "hidden"  # it was closed when queue-proxy reported the program ready


async def connects(host: str, port: int, silent_s: float = _SILENT_S) -> bool | None:
    """Return whether a program listens at this IP address; None: unknown.

    The socket's own state decides, whatever the loop has noticed by then: if a late loop counted as a silent port, the
    port of a revision could be classified as hidden, and would not be probed again.
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
        with contextlib.suppress(TimeoutError):  # the caller checks the socket itself
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
    """Probes the program's own port before queue-proxy, if the program's readiness is only that its port is open."""

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
        self._since_s: dict[str, float] = {}  # by pod, `identity@address`: time of the first probe of its port
        self._probing: set[str] = set()  # addresses whose ports are being probed
        self._asking: dict[str, int] = {}  # by address: questions under way to queue-proxy
        self._apart: set[str] = set()  # pods whose program's port was closed while queue-proxy's was open
        self.tcp_probes_total = 0

    async def ask(self, question: Question, timeout_s: float) -> Ask:
        """Ask once; REFUSED while the program's port can be probed and is closed."""
        port = question.probe.port
        sight = self._sights.get(question.revision, Sight.UNKNOWN)
        if not port or not question.expedited or sight is Sight.HIDDEN:
            return await self._ask_pod(question, timeout_s)
        seen = sight is Sight.SEEN
        pod = f"{question.identity}@{question.address}"
        since_s = self._first_probe_s(pod)
        if question.address in self._probing:
            return Ask.REFUSED  # the other question of this pod probes the port
        # While queue-proxy holds another question, this one can only probe the port.
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
        """Return queue-proxy's answer, or, if the port has proven the program ready, ANSWERED after a moment."""
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
        """Probe in steps that grow with the time since the first: a delay of 2 % of a start does not matter."""
        ends_s = self._now() + limit_s
        host, port = _program_of(question)
        while True:
            self.tcp_probes_total += 1
            opened = await self._probe_port(host, port)
            if opened is False and question.probe.port_suffices and pod not in self._apart:
                await self._note_apart(question, pod)
            if opened is not False or self._now() >= ends_s:
                return opened
            await self._wait(self._step_s(self._now() - since_s))

    def _step_s(self, waited_s: float) -> float:
        step_s = min(max(TCP_PROBE_STEP_S, TCP_PROBE_STEP_SHARE * waited_s), TCP_PROBE_STEP_MAX_S)
        if waited_s >= PROBE_EXPEDITED_LONG_S:
            step_s = PROBE_EXPEDITED_LONG_STEP_S
        return step_s * max(1.0, len(self._probing) / PROBES_EXPEDITED_MAX)

    def _first_probe_s(self, pod: str) -> float:
        """Return when the port of this pod was probed first; another pod at its address starts from now."""
        since_s = self._since_s.get(pod)
        if since_s is None:
            if len(self._since_s) >= TCP_PROBED_REVISIONS_MAX:  # entries of pods that never answered
                self._since_s.clear()
            since_s = self._since_s[pod] = self._now()
        return since_s

    async def _note_apart(self, question: Question, pod: str) -> None:
        """Note whether the program's port is closed after queue-proxy's has accepted a connection."""
        if not await self._probe_port(*split_address(question.address)):
            return
        if await self._probe_port(*_program_of(question)) is False:
            if len(self._apart) >= TCP_PROBED_REVISIONS_MAX:  # entries of pods that never answered
                self._apart.clear()
            self._apart.add(pod)

    def _remember(self, revision: str, sight: Sight) -> None:
        if len(self._sights) >= TCP_PROBED_REVISIONS_MAX:
            self._sights.clear()
        self._sights[revision] = sight
