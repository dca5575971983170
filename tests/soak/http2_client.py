"""The client of the endurance test that speaks HTTP/2, in a thread of its own.

Rules
  1. A connection that cannot be used has an outcome too: it was refused, cut, hung or ended with an error.
  2. What a GOAWAY without an error leaves out was not processed (RFC 9113, 6.8): it is counted, and no failure. A door
     that does nothing else has no success, which the ledger judges.
"""

from __future__ import annotations

import random
import threading
from typing import Final

from tests.e2e.handover_clients import next_id
from tests.http2.raw_client import CLOSED, MAX_WINDOW, Code, Ending, Event, RawClient, code_name, data_frame
from tests.soak.attempts import Attempt, Target, WrongError
from tests.soak.executions import ONCE
from tests.soak.ledger import CUT, HANG, Ledger

NOT_PROCESSED: Final = "left out by GOAWAY"
NONE_PROCESSED: Final = "left out by GOAWAY of last stream 0"


class Http2Client:
    """Streams, one after the other, on connections that are kept for some of them; until `stopped`."""

    def __init__(
        self,
        ledger: Ledger,
        target: Target,
        pause_s: float,
        chance: random.Random,
        stopped: threading.Event,
        request_s: float,
    ) -> None:
        self._request_s = request_s
        self._ledger = ledger
        self._target = target
        self._pause_s = pause_s
        self._chance = chance
        self._stopped = stopped

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._streams_on_one():
                    self._stopped.wait(0.1)
        except Exception as error:
            name = threading.current_thread().name
            self._ledger.violate(f"the client {name} has not ended as it should: {error!r}"[:1_000])

    def _streams_on_one(self) -> bool:
        """Some requests on one connection; False if it could not be used."""
        target = self._target
        host, _, port = target.address.rpartition(":")
        attempt = Attempt("HTTP/2 handshake", target, next_id("http2-handshake"))
        try:
            client = RawClient(host, int(port), path="/plain/0", authority=target.host, patience_s=self._request_s)
        except OSError as error:
            self._ledger.record(attempt.outcome(error))
            return False
        with client:
            if not self._handshake(client, attempt):
                return False
            for number in range(self._chance.randrange(1, 60)):
                if client.goaway is not None or client.closed or self._stopped.is_set():
                    break
                self._stream(client, 1 + 2 * number)
                self._stopped.wait(self._chance.uniform(0.0, 2.0 * self._pause_s))
                client.drain()
            if (code := _goaway_code(client)) != Code.NO_ERROR:
                self._ledger.violate(f"GOAWAY {code_name(code)} of {target.revision} at the {target.door}")
        return True

    def _handshake(self, client: RawClient, attempt: Attempt) -> bool:
        """True if requests may be sent. A GOAWAY without an error comes of a process that is ending."""
        attempt.port = client.socket.getsockname()[1]
        error: Exception | None = None
        try:
            client.handshake()
        except AssertionError:  # the connection has ended, or nothing came
            error = WrongError(CUT if client.closed else HANG)
        attempt.heard = bool(client.settings)
        if (code := _goaway_code(client)) != Code.NO_ERROR:
            error = WrongError(f"GOAWAY {code_name(code)}")
        elif client.goaway is not None:
            self._count(attempt, client)
            return False
        self._ledger.record(attempt.outcome(error))
        return error is None

    def _stream(self, client: RawClient, stream: int) -> None:
        """One request. One that a GOAWAY without an error leaves out was not processed, and is none."""
        chance, target = self._chance, self._target
        once = chance.random() < 0.4
        name = next_id(ONCE + "http2" if once else "http2")
        attempt = Attempt("HTTP/2", target, name)
        attempt.port = client.socket.getsockname()[1]
        attempt.heard = True
        error: Exception | None = None
        try:
            client.request(stream, "POST" if once else "GET", [("x-id", name)], end=not once)
            if once:
                client.send(data_frame(stream, b"x" * chance.choice((1, 300, 10_000)), end=True))
            end = client.until_end_of(stream)
            _check_stream(client, stream, end)
        except Exception as raised:
            error = raised
        if error is not None and _last_stream(client) < stream and _goaway_code(client) == Code.NO_ERROR:
            self._count(attempt, client)
        else:
            self._ledger.record(attempt.outcome(error))
        client.heads.clear()
        client.bodies.clear()

    def _count(self, attempt: Attempt, client: RawClient) -> None:
        """Count what a GOAWAY has left out."""
        result = NOT_PROCESSED if _last_stream(client) else NONE_PROCESSED
        self._ledger.count(attempt.kind, attempt.target.door, attempt.target.revision, result)


def _last_stream(client: RawClient) -> int:
    """The last stream that the other side will have processed."""
    return MAX_WINDOW if client.goaway is None else int.from_bytes(client.goaway.payload[:4], "big") & MAX_WINDOW


def _goaway_code(client: RawClient) -> int:
    """The error code that the other side ends the connection with."""
    return Code.NO_ERROR if client.goaway is None else client.goaway.code


def _check_stream(client: RawClient, stream: int, end: Event) -> None:
    """Raise WrongError unless a stream has ended with a whole response."""
    if isinstance(end, Ending):
        raise WrongError(CUT if end is CLOSED else HANG)
    fields = dict(client.heads[stream][-1]) if stream in client.heads else {}
    if not end.ends_stream:
        raise WrongError(f"reset with {end.code}, {fields}")
    if fields.get(":status") != "200":
        raise WrongError(f"{fields.get(':status')} {fields.get('activator-reason', '')}".strip())
    if client.bodies.get(stream, 0) != int(fields["content-length"]):
        raise WrongError(f"{client.bodies.get(stream, 0)} bytes, {fields}")
