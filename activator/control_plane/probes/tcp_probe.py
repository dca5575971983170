"""Probes queue-proxy not before the program behind it listens, as far as the program's port can be probed.

From the first probe on, queue-proxy checks every 50 ms whether its program is ready, and holds all probes until
it is (knative.dev/serving pkg/queue/readiness/probe.go). An early probe is answered up to 50 ms late, and a second
one does not help. A probe that arrives just after the program began to listen is answered at once, unless another
client has asked too early: a kubelet does, as soon as the container runs.

Rules
  1. A pod for which requests wait gets a TCP probe first, on the program's own port; when that opens, queue-proxy is
     asked at once. Only queue-proxy's answer counts, except for rule 4: the port only shows when to ask.
  2. Whether a program's port can be probed is learned in the first start of a revision: it can if it is open when a pod
     is ready. Before that is known, a probe waits at most TCP_PROBE_UNKNOWN_S for the port. If the port is hidden
     (the program listens only on the loopback interface, or a policy drops packets), it does not wait. If the port has
     been seen, it waits at most TCP_PROBE_TRUST_S, and then queue-proxy is asked anyway.
  3. A pod for which no requests wait gets no TCP probe. With many pods the steps grow with their number, as those of
     other probes do: 200 revisions that wait for minutes must not use a core.
  4. If queue-proxy itself only checks that this port accepts connections (`ProbeSpec.port_suffices`), its answer is
     awaited for only TCP_PROBE_PROOF_S: if it holds the probe until its next check, the port has proven the same.
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
    ProbeOutcome,
    ProbeRequest,
    probe_once,
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


class PortVisibility(Enum):
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
            await _wait_writable(sock, silent_s)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return False if error == errno.ECONNREFUSED else None
        return _has_peer(sock)


async def _wait_writable(sock: socket.socket, limit_s: float) -> None:
    """Wait until the connection is made or refused, for `limit_s` at most."""
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
    """Return True if the socket is connected; None: it is not connected yet."""
    try:
        sock.getpeername()
    except OSError:
        return None
    return True


def _program_address(request: ProbeRequest) -> tuple[str, int]:
    host, _ = split_address(request.address)
    return host, request.probe.port


class TcpProber:
    """Probes a pod as `probe_once` does, but the program's own port before queue-proxy where that helps."""

    def __init__(
        self,
        now: Now,
        probe_pod: Callable[[ProbeRequest, float], Coroutine[None, None, ProbeOutcome]] = probe_once,
        probe_port: Connects = connects,
        wait: Callable[[float], Coroutine[None, None, None]] = pause,
    ) -> None:
        self._now = now
        self._probe_pod = probe_pod
        self._probe_port = probe_port
        self._wait = wait
        self._visibilities: dict[str, PortVisibility] = {}  # by revision
        self._since_s: dict[str, float] = {}  # by pod, `identity@address`: time of the first probe of its port
        self._probing: set[str] = set()  # addresses whose ports are being probed
        self._in_flight: dict[str, int] = {}  # by address: probes under way to queue-proxy
        self._distinct_ports: set[str] = set()  # pods whose program's port was closed while queue-proxy's was open
        self.tcp_probes_total = 0

    async def probe(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        """Probe once, the program's port before queue-proxy; REFUSED while that port can be probed and is closed."""
        port = request.probe.port
        visibility = self._visibilities.get(request.revision, PortVisibility.UNKNOWN)
        if not port or not request.expedited or visibility is PortVisibility.HIDDEN:
            return await self._probe_pod(request, timeout_s)
        seen = visibility is PortVisibility.SEEN
        pod = f"{request.identity}@{request.address}"
        since_s = self._first_probe_s(pod)
        if request.address in self._probing:
            return ProbeOutcome.REFUSED  # the other probe of this pod probes the port
        # While queue-proxy holds another probe, this one can only probe the port.
        waits_long = seen or (request.probe.port_suffices and request.address in self._in_flight)
        limit_s = min(TCP_PROBE_TRUST_S if waits_long else TCP_PROBE_UNKNOWN_S, timeout_s)
        self._probing.add(request.address)
        try:
            opened = await self._wait_until_open(request, pod, since_s, limit_s)
        finally:
            self._probing.discard(request.address)
        if opened is False and waits_long and self._now() - since_s < TCP_PROBE_TRUST_S:
            return ProbeOutcome.REFUSED  # the next probe probes again
        proven = opened is True and pod in self._distinct_ports
        self._distinct_ports.discard(pod)
        outcome = await self._probe_queue_proxy(request, timeout_s, proven)
        if outcome is ProbeOutcome.ANSWERED:
            self._since_s.pop(pod, None)
            if not opened:
                opened = await self._probe_port(*_program_address(request))
            self._remember_visibility(request.revision, PortVisibility.SEEN if opened else PortVisibility.HIDDEN)
        return outcome

    async def _probe_queue_proxy(self, request: ProbeRequest, timeout_s: float, proven: bool) -> ProbeOutcome:
        """Return queue-proxy's answer, or, if the port has proven the program ready, ANSWERED after a moment."""
        address = request.address
        self._in_flight[address] = self._in_flight.get(address, 0) + 1
        try:
            if not proven:
                return await self._probe_pod(request, timeout_s)
            return await self._probe_for_a_moment(request, timeout_s)
        finally:
            self._in_flight[address] -= 1
            if not self._in_flight[address]:
                del self._in_flight[address]

    async def _probe_for_a_moment(self, request: ProbeRequest, timeout_s: float) -> ProbeOutcome:
        """Return queue-proxy's answer if it comes within TCP_PROBE_PROOF_S; otherwise ANSWERED."""
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self._probe_pod(request, timeout_s), name="one probe")
            moment = group.create_task(self._wait(TCP_PROBE_PROOF_S), name="moment")
            await asyncio.wait((probing, moment), return_when=asyncio.FIRST_COMPLETED)
            outcome = probing.result() if probing.done() else ProbeOutcome.ANSWERED
            probing.cancel()
            moment.cancel()
        return outcome

    async def _wait_until_open(self, request: ProbeRequest, pod: str, since_s: float, limit_s: float) -> bool | None:
        """Probe the port until it opens, for `limit_s`; return the last result. The steps grow with the time waited."""
        ends_s = self._now() + limit_s
        host, port = _program_address(request)
        while True:
            self.tcp_probes_total += 1
            opened = await self._probe_port(host, port)
            if opened is False and request.probe.port_suffices and pod not in self._distinct_ports:
                await self._note_if_distinct(request, pod)
            if opened is not False or self._now() >= ends_s:
                return opened
            await self._wait(self._step_s(self._now() - since_s))

    def _step_s(self, waited_s: float) -> float:
        """Return the pause until the next probe of a port, in seconds."""
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

    async def _note_if_distinct(self, request: ProbeRequest, pod: str) -> None:
        """Note the pod if the program's port is closed after queue-proxy's port has accepted a connection."""
        if not await self._probe_port(*split_address(request.address)):
            return
        if await self._probe_port(*_program_address(request)) is False:
            if len(self._distinct_ports) >= TCP_PROBED_REVISIONS_MAX:  # entries of pods that never answered
                self._distinct_ports.clear()
            self._distinct_ports.add(pod)

    def _remember_visibility(self, revision: str, visibility: PortVisibility) -> None:
        if len(self._visibilities) >= TCP_PROBED_REVISIONS_MAX:
            self._visibilities.clear()
        self._visibilities[revision] = visibility
