"""Takes pods' reports about themselves: each is judged, checked by a probe of the pod if necessary, and applied.

Rules
  1. A pod reports only itself: the address in its report is the peer's, or in a network that the file names. A report
     cannot move a listed pod to another address.
  2. A pod that no source lists and that reports "ready" is probed before it gets a slot; a bounded number at once. The
     result counts for the probed identity and address, and only if no newer report has arrived.
  3. Each report is answered with its outcome: once, within PUSH_ANSWER_S.
  4. `state/health.py` defines how long a report counts, and how long a pod may stay that only reports itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Final, Literal

import msgspec

from activator.control_plane.probes.probe import PROBE_TIMEOUT_S, ProbeOutcome, ProbeRequest, probe_once
from activator.control_plane.state.model import Model
from activator.control_plane.state.records import PodRecord
from activator.control_plane.state.worker import ChangeOutcome
from activator.messages import PUSH, Change, ObservedPod, PodStatus

PUSH_ANSWER_S: Final = 10.0  # after which a report is answered with "waiting"
PUSH_VALIDATIONS_MAX: Final = 32  # concurrent probes of pods that report "ready"
PUSH_WAITING_MAX: Final = 2_000  # such pods, including those that wait for a probe

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_STATUS: Final = {
    "starting": PodStatus.PENDING,
    "ready": PodStatus.READY,
    "not_ready": PodStatus.NOT_READY,
    "draining": PodStatus.DRAINING,
}


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The report of one pod about itself."""

    revision: str
    pod: str  # its identity, as a source lists it
    address: str  # ip:port
    state: Literal["starting", "ready", "not_ready", "draining"]
    namespace: str = "default"


class ReportOutcome(Enum):
    """The outcome of a report."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"  # there is a newer report about the pod
    REFUSED = "refused"  # it is not valid in the pod's state
    UNKNOWN_REVISION = "unknown_revision"
    UNKNOWN_POD = "unknown_pod"  # an unknown pod that is draining or not ready
    FOREIGN_ADDRESS = "foreign_address"  # not the peer's
    OWN_ADDRESS = "own_address"  # a port of this program
    FOREIGN_POD = "foreign_pod"  # another source lists it, and the reports have no token
    BAD_ADDRESS = "bad_address"
    OTHER_ADDRESS = "other_address"  # the pod is listed at another address
    NOT_VALIDATED = "not_validated"  # it reports "ready" and does not answer
    BUSY = "busy"  # too many probes
    FAILED = "failed"  # an internal error
    WAITING = "waiting"  # accepted; the revision is parked after an internal error


_VERDICTS: Final = {
    ChangeOutcome.APPLIED: ReportOutcome.APPLIED,
    ChangeOutcome.SUPERSEDED: ReportOutcome.SUPERSEDED,
    ChangeOutcome.REFUSED: ReportOutcome.REFUSED,
    ChangeOutcome.SET_ASIDE: ReportOutcome.FAILED,
    ChangeOutcome.SHUT_DOWN: ReportOutcome.FAILED,
}


def parse_ip(text: str) -> Address | None:
    """Return the IP address, an IPv4-mapped IPv6 one as IPv4; None if it is not an IP address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or (None if address.scope_id else address)
    return address


def parse_address(text: str) -> tuple[Address, str] | None:
    """Return the IP address of `ip:port` and the canonical text; None if it is invalid."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    ip = parse_ip(host[1:-1] if bracketed else host)
    if not colon or ip is None or bracketed != (":" in host) or not (port.isascii() and port.isdecimal()):
        return None
    if len(port) > 5 or not 0 < int(port) < 65_536:
        return None
    return ip, f"[{ip}]:{int(port)}" if ip.version == 6 else f"{ip}:{int(port)}"


class PushIntake:
    """Accepts reports. `submit_with_outcome` is the state worker's; `model` is read only; `probe_pod` probes once.

    `takes_listed`: reports may be about pods that another source lists; `is_own`: an address is a port of this program.
    """

    def __init__(
        self,
        submit_with_outcome: Callable[[Change], asyncio.Future[ChangeOutcome]],
        model: Model,
        networks: tuple[Network, ...],
        probe_pod: Callable[[ProbeRequest, float], Coroutine[None, None, ProbeOutcome]] = probe_once,
        answer_within_s: float = PUSH_ANSWER_S,
        takes_listed: bool = True,
        is_own: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self._takes_listed = takes_listed
        self._is_own = is_own
        self._answer_within_s = answer_within_s
        self._submit_with_outcome = submit_with_outcome
        self._model = model
        self._networks = networks
        self._probe_pod = probe_pod
        self._probe_limit = asyncio.Semaphore(PUSH_VALIDATIONS_MAX)
        # The last report of each pod with a running validation, and the number of its validations.
        self._newest: dict[tuple[str, str], Report] = {}
        self._validations: Counter[tuple[str, str]] = Counter()
        self._waiting: int = 0
        self.verdict_totals: dict[ReportOutcome, int] = {}
        self.validation_totals: dict[ProbeOutcome, int] = {}

    async def receive(self, report: Report, peer: str) -> ReportOutcome:
        """Validate and apply one report that came from the IP address `peer`."""
        verdict = await self._check_and_submit(report, peer)
        self.verdict_totals[verdict] = self.verdict_totals.get(verdict, 0) + 1
        return verdict

    async def _check_and_submit(self, report: Report, peer: str) -> ReportOutcome:
        """Check a report, by a probe of the pod if necessary, and submit it if it is valid; return the outcome."""
        parsed = parse_address(report.address)
        if parsed is None:
            return ReportOutcome.BAD_ADDRESS
        ip, address = parsed
        if ip != parse_ip(peer) and not any(ip in network for network in self._networks):
            return ReportOutcome.FOREIGN_ADDRESS
        if self._is_own(address):
            return ReportOutcome.OWN_ADDRESS
        key = f"{report.namespace}/{report.revision}"
        revision = self._model.revisions.get(key)
        if revision is None:
            return ReportOutcome.UNKNOWN_REVISION
        known = revision.pods.get(report.pod)
        if known is not None and known.is_listed():
            if not self._takes_listed:
                return ReportOutcome.FOREIGN_POD
            if known.address != address:
                return ReportOutcome.OTHER_ADDRESS
        if known is None and report.state in {"not_ready", "draining"}:
            return ReportOutcome.UNKNOWN_POD
        pod = (key, report.pod)
        if pod in self._newest:
            self._newest[pod] = report  # a running validation of the pod then finds that it is outdated
        if report.state == "ready" and _needs_probe(known, address):
            spec = revision.spec
            request = ProbeRequest(address, spec.probing.probe, spec.connection.tls, report.pod)
            verdict = await self._validate(pod, report, request)
            if verdict is not None:
                return verdict
        return await self._submit(ObservedPod(key, PUSH, report.pod, address, _STATUS[report.state]))

    async def _submit(self, change: ObservedPod) -> ReportOutcome:
        future = self._submit_with_outcome(change)
        done, _ = await asyncio.wait({future}, timeout=self._answer_within_s)
        return _VERDICTS[future.result()] if done else ReportOutcome.WAITING

    async def _validate(self, pod: tuple[str, str], report: Report, request: ProbeRequest) -> ReportOutcome | None:
        """Probe the pod; return None if it has answered and its report is still the newest."""
        if self._waiting >= PUSH_WAITING_MAX:
            return ReportOutcome.BUSY
        self._waiting += 1
        self._validations[pod] += 1
        self._newest[pod] = report
        try:
            async with self._probe_limit:
                if self._newest.get(pod) is not report:
                    return ReportOutcome.SUPERSEDED
                outcome = await self._probe_pod(request, PROBE_TIMEOUT_S)
            self.validation_totals[outcome] = self.validation_totals.get(outcome, 0) + 1
            if self._newest.get(pod) is not report:
                return ReportOutcome.SUPERSEDED
            return None if outcome is ProbeOutcome.ANSWERED else ReportOutcome.NOT_VALIDATED
        finally:
            self._waiting -= 1
            self._validations[pod] -= 1
            if not self._validations[pod]:
                del self._validations[pod], self._newest[pod]


def _needs_probe(known: PodRecord | None, address: str) -> bool:
    if known is None or known.address != address:
        return True
    return not known.is_listed() and known.claims.get(PUSH) is not PodStatus.READY
