"""`POST /pods`, where pods report themselves, on its own listener, which the file must name.

Rules
  1. Except on loopback, a token is required (`Authorization: Bearer …`), and the configuration is refused without one.
     On loopback without a token, only pods that no other source lists can be reported.
  2. A page of another site cannot report anything: the body must be declared as JSON, and a request with an Origin is
     refused.
  3. A body is one report or a list of them, at most PUSH_REPORTS_MAX. An invalid body is refused as a whole, with the
     mistake in one line.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Final

import msgspec
from aiohttp import web

from activator.config.model.pods import Push
from activator.control_plane.sources.push.intake import PushIntake, Report, ReportOutcome
from activator.runtime.errors import StartError
from activator.runtime.secret_text import FILE, read_secret
from activator.runtime.sockets import address_of, bind
from activator.runtime.units import MIB

PUSH_BODY_BYTES_MAX: Final = MIB
PUSH_REPORTS_MAX: Final = 1_000  # in one request

_DECODER: Final = msgspec.json.Decoder(Report | list[Report])
_STATUS: Final = {
    ReportOutcome.APPLIED: 200,
    ReportOutcome.SUPERSEDED: 200,
    ReportOutcome.WAITING: 202,
    ReportOutcome.BAD_ADDRESS: 400,
    ReportOutcome.FOREIGN_ADDRESS: 403,
    ReportOutcome.OWN_ADDRESS: 403,
    ReportOutcome.FOREIGN_POD: 403,
    ReportOutcome.UNKNOWN_REVISION: 404,
    ReportOutcome.UNKNOWN_POD: 404,
    ReportOutcome.REFUSED: 409,
    ReportOutcome.OTHER_ADDRESS: 409,
    ReportOutcome.NOT_VALIDATED: 409,
    ReportOutcome.FAILED: 500,
    ReportOutcome.BUSY: 503,
}


def read_token(push: Push) -> str:
    """Return the token that reports must carry; empty: none. Raise StartError."""
    if push.token_file:
        return read_secret(FILE + push.token_file, "push")
    return read_secret(push.token, "push.token")


class PushServer:
    """The HTTP server, aiohttp on its own listener."""

    def __init__(self, intake: PushIntake, token: str) -> None:
        self._intake = intake
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._runner: web.AppRunner | None = None

    async def start(self, address: str) -> str:
        """Bind and serve; return the bound address. Raise StartError."""
        try:
            sock = bind(address)
        except StartError as error:
            raise StartError(f"push listener: {error} (`push.listen` in the file)") from error
        application = web.Application(client_max_size=PUSH_BODY_BYTES_MAX)
        application.add_routes([web.post("/pods", self._pods)])
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()
        return address_of(sock)

    async def close(self) -> None:
        """Stop at once; clients that wait for an answer are disconnected."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _pods(self, request: web.Request) -> web.Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            body = _DECODER.decode(await request.read())
        except msgspec.DecodeError as error:
            return _problem(400, f"not a report or a list of reports: {error}")
        reports = body if isinstance(body, list) else [body]
        if len(reports) > PUSH_REPORTS_MAX:
            return _problem(413, f"{len(reports)} reports at once, expected at most {PUSH_REPORTS_MAX}")
        peer = request.remote or ""
        verdicts = await asyncio.gather(*(self._intake.receive(report, peer) for report in reports))
        answers = [{"pod": report.pod, "outcome": verdict.value} for report, verdict in zip(reports, verdicts)]
        if isinstance(body, list):
            return _json(200, answers)
        return _json(_STATUS[verdicts[0]], answers[0])

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Origin") is not None:
            return _problem(403, "a request with an Origin (from a browser) is refused")
        if self._authorization:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._authorization):
                return _problem(401, "the token is missing or wrong (Authorization: Bearer …)")
        if request.content_type != "application/json":
            return _problem(415, "expected Content-Type: application/json")
        return None


def _json(status: int, content: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(content), content_type="application/json")


def _problem(status: int, problem: str) -> web.Response:
    return _json(status, {"error": problem})
