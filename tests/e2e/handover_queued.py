"""Requests that wait in the queue during an upgrade, sent by different protocols."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from h2.connection import ConnectionInputs, ConnectionState

from tests.e2e.handover_clients import head, next_id
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Answer, Client
from tests.e2e.test_e2e_tls import trusting


def http2_over_tls() -> ssl.SSLContext:
    context = trusting()
    context.set_alpn_protocols(["h2"])
    return context


class PatientHttp2Client(Http2Client):
    """Continues after GOAWAY with the streams that it covers (RFC 9113, section 6.8), unlike the `h2` package."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(address, tls=tls)
        going = (ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY)
        machine: Any = self.h2.state_machine
        machine._transitions = {**machine._transitions, going: (None, ConnectionState.CLIENT_OPEN)}


class QueuedRequests:
    """Requests that wait in the queue, by different protocols; each is read when the test asks for it."""

    def __init__(self, stack: ExitStack) -> None:
        self.ids: list[str] = []
        self.answers: list[Callable[[], tuple[int, bytes]]] = []
        self._stack = stack

    def http1(self, address: str, body: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        client = self._stack.enter_context(Client(address))
        if tls is not None:
            client.secure(tls, "localhost")
        fields = f"Content-Length: {len(body)}\r\n" if body else ""
        client.send(head("/plain/0.01", self._next(), "POST" if body else "GET", fields=fields) + body)

        def answer() -> tuple[int, bytes]:
            found: Answer = client.answer()
            return found.status, found.body

        self.answers.append(answer)

    def http2(self, address: str, body: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        client = self._stack.enter_context(PatientHttp2Client(address, tls=tls))
        number = client.start("/plain/0.01", headers=[("x-id", self._next())], body=body or None)

        def answer() -> tuple[int, bytes]:
            found = client.answer(number)
            return found.status, found.body

        self.answers.append(answer)

    def _next(self) -> str:
        self.ids.append(next_id("queued"))
        return self.ids[-1]
