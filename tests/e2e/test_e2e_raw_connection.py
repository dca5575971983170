"""The ends of a conversation in these tests say what happened to them, whatever the kernel calls it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.raw_connection import RawConnection


@contextlib.contextmanager
def connected() -> Iterator[tuple[RawConnection, RawConnection]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = RawConnection(socket.create_connection(listener.getsockname()))
        other = RawConnection(listener.accept()[0])
        try:
            yield one, other
        finally:
            one.close()
            other.close()


def test_an_end_of_sending_leaves_the_other_direction() -> None:
    with connected() as (one, other):
        one.end_sending()
        assert other.is_closed()
        other.send(b"x")
        assert one.socket.recv(1) == b"x"


def test_an_end_of_sending_after_a_reset_is_a_connection_error() -> None:
    with connected() as (one, other):
        other.reset()
        with contextlib.suppress(ConnectionError):
            one.socket.recv(1)  # takes the reset itself away: what is left is a socket that is "not connected"
        with pytest.raises(ConnectionResetError):
            one.end_sending()
