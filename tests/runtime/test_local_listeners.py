"""What the kernel says of ports on this machine, compared with connections to them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from activator.runtime.local_listeners import LOOPBACK_4, LOOPBACK_6, Listening, is_loopback, listening


def listener(stack: ExitStack, host: str, backlog: int = 5, only_6: bool = False) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = stack.enter_context(socket.socket(family))
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_6)
    sock.bind((host, 0))
    sock.listen(backlog)
    port: int = sock.getsockname()[1]
    return port


def connects(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        return sock.connect_ex((host, port)) == 0


@pytest.mark.parametrize(
    ("bound", "only_6"),
    [
        ("127.0.0.1", False),
        ("127.0.0.9", False),
        ("0.0.0.0", False),
        ("::1", False),
        ("::", False),
        ("::", True),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_the_kernel_says_what_a_connection_would_show(bound: str, only_6: bool) -> None:
    with ExitStack() as stack:
        try:
            port = listener(stack, bound, only_6=only_6)
        except OSError as error:
            pytest.skip(f"this machine has no such address: {error}")
        for host in ("127.0.0.1", "127.0.0.9", "::1"):
            said = listening(host, port)
            if said is None:
                pytest.skip("this kernel does not tell")
            assert (said is Listening.YES) is connects(host, port), host
    assert listening(LOOPBACK_4, port) is listening(LOOPBACK_6, port) is Listening.NO


def test_a_connection_that_is_no_listener_is_none() -> None:
    with ExitStack() as stack:
        port = listener(stack, LOOPBACK_4)
        client = stack.enter_context(socket.create_connection((LOOPBACK_4, port)))
        assert listening(LOOPBACK_4, client.getsockname()[1]) in {Listening.NO, None}


def test_a_full_queue() -> None:
    with ExitStack() as stack:
        port = listener(stack, LOOPBACK_4, backlog=1)
        if listening(LOOPBACK_4, port) is None:
            pytest.skip("this kernel does not tell")
        stack.enter_context(socket.create_connection((LOOPBACK_4, port)))
        assert listening(LOOPBACK_4, port) is Listening.YES
        stack.enter_context(socket.create_connection((LOOPBACK_4, port)))
        assert listening(LOOPBACK_4, port) is Listening.FULL


def test_which_addresses_are_this_machines() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "::")] == [
        True,
        True,
        True,
        False,
        False,
    ]
