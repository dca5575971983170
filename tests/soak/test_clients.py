"""The clients of the endurance test end, and what they could not do is a result."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import tests.soak.__main__ as soak
from tests.e2e.handover_clients import Background
from tests.e2e.running import eventually
from tests.e2e.test_e2e_members import free_ports
from tests.http2.raw_client import SETTINGS_ACK, Code, goaway_frame, settings_frame
from tests.soak.attempts import Target
from tests.soak.clients import Crowd
from tests.soak.http2_client import NONE_PROCESSED
from tests.soak.ledger import CUT, HANG, LEFT, OK, REFUSED, Ledger
from tests.soak.world import World

STREAM_S = (0.1, 0.2)
KINDS = ("events", "websocket", "upload", "chunked upload", "download", "slow download")


def nobody(name: str) -> frozenset[int]:
    return frozenset()


def target(port: int, folder: Path) -> Target:
    return Target("activator", f"127.0.0.1:{port}", "app", folder / "record-app")


@contextmanager
def server(greeting: bytes = b"", closes: bool = True) -> Iterator[int]:
    """The port of a server that greets each client, and then closes or says nothing more."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    stack.callback(client.close)
                    with contextlib.suppress(OSError):  # it may have left
                        client.sendall(greeting)
                    if closes:
                        client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def http2_results(port: int, folder: Path, kind: str = "HTTP/2 handshake") -> Ledger:
    """What a client that speaks HTTP/2 tells of a door where it does not succeed, with one result of this kind."""
    ledger = Ledger(nobody)
    with Background() as background:
        crowd = Crowd(ledger, background, 1, STREAM_S)
        crowd.http2(target(port, folder), 1, 0.01)
        eventually(lambda: any(one == kind for one, _ in list(ledger.results)))
        crowd.stop()
    return ledger


# --- HTTP/2 ---


def test_a_connection_of_http2_that_is_cut_or_refused_is_a_failure(tmp_path: Path) -> None:
    with server() as port:
        ledger = http2_results(port, tmp_path)
    assert set(ledger.results) == {("HTTP/2 handshake", CUT)} and ledger.violation_count == ledger.total
    ledger = http2_results(port, tmp_path)
    assert set(ledger.results) == {("HTTP/2 handshake", REFUSED)} and ledger.violation_count == ledger.total


@pytest.mark.parametrize("shakes_hands", [True, False])
def test_a_door_that_processes_no_stream_is_found(tmp_path: Path, shakes_hands: bool) -> None:
    last = (SETTINGS_ACK, goaway_frame()) if shakes_hands else (goaway_frame(), SETTINGS_ACK)
    with server(settings_frame() + b"".join(last)) as port:
        ledger = http2_results(port, tmp_path, "HTTP/2" if shakes_hands else "HTTP/2 handshake")
    assert {result for _, result in ledger.results} - {OK} == {NONE_PROCESSED}
    assert ledger.violations == []
    ledger.judge_successes()
    assert ledger.violations == ["no request succeeded of kind 'HTTP/2' to app at the activator"]


def test_a_goaway_with_an_error_is_a_failure(tmp_path: Path) -> None:
    with server(settings_frame() + SETTINGS_ACK + goaway_frame(0, Code.INTERNAL_ERROR)) as port:
        ledger = http2_results(port, tmp_path, "HTTP/2")
    assert ledger.results["HTTP/2", CUT] and "GOAWAY INTERNAL_ERROR of app at the activator" in ledger.violations


# --- what hangs ---


def test_an_exchange_that_hangs_is_found(tmp_path: Path) -> None:
    ledger = Ledger(nobody)
    expected = {*KINDS, "kept", "fresh", "HTTP/2 handshake"}
    with server(closes=False) as port, Background() as background:
        crowd = Crowd(ledger, background, 1, STREAM_S, request_s=0.2)
        door = target(port, tmp_path)
        crowd.shorts(door, 1, 0.1)
        crowd.shorts(door, 1, 0.1, fresh=True)
        crowd.http2(door, 1, 0.1)
        for kind in KINDS:
            crowd.streams(door, kind)
        eventually(lambda: {kind for kind, _ in list(ledger.results)} == expected, "each kind has a result")
        crowd.stop()
    assert set(ledger.results) == {(kind, HANG) for kind in expected}
    assert ledger.violation_count == ledger.total


def test_a_client_that_does_not_end_is_found(tmp_path: Path) -> None:
    ledger, over = Ledger(nobody), threading.Event()
    began_s = time.monotonic()

    async def fails() -> None:
        raise ValueError("a client's own fault")

    with Background() as background:
        crowd = Crowd(ledger, background, 1, STREAM_S, request_s=0.1, end_s=0.1)
        crowd._start("kept", target(1, tmp_path), asyncio.sleep(60.0))
        crowd._start("fresh", target(1, tmp_path), fails())
        crowd._threads.append(threading.Thread(target=over.wait, name="http2-0", daemon=True))
        crowd._threads[-1].start()
        crowd.stop()
        over.set()
    assert time.monotonic() - began_s < 20.0
    assert ledger.violation_count == 3
    for words, name in zip(ledger.violations, ("kept of app", "own fault", "http2-0"), strict=True):
        assert name in words


def test_an_error_between_the_phases_leaves_no_client(tmp_path: Path) -> None:
    ledger = Ledger(nobody)
    (port,) = free_ports(1)

    with Background() as background:
        crowd = Crowd(ledger, background, 1, STREAM_S)
        crowd.http2(target(port, tmp_path), 1, 0.01)
        machine = SimpleNamespace(try_upgrade=lambda: SimpleNamespace(code=0))
        world = SimpleNamespace(machine=machine, ledger=ledger, crowd=lambda number: crowd)
        with pytest.raises(ValueError, match="non-negative"):  # of time.sleep
            soak._samples(cast("World", world), 1, -1.0)
    assert not [one for one in threading.enumerate() if one.name.startswith("http2-")]


# --- clients that leave ---


def test_only_a_client_that_was_connected_has_left(tmp_path: Path) -> None:
    ledger = Ledger(nobody)
    (port,) = free_ports(1)
    with Background() as background:
        for kind, result in (("refused", "not connected"), ("accepted", LEFT)):
            with server() if kind == "accepted" else contextlib.nullcontext(port) as door:
                crowd = Crowd(ledger, background, 1, STREAM_S)
                crowd.streams(target(door, tmp_path), "leaves")
                eventually(lambda result=result: ledger.results["leaves", result])  # type: ignore[misc]
                crowd.stop()
            ledger.judge_successes()
            assert ledger.violation_count == 1, "only before one has left"
