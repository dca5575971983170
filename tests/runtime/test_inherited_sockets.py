"""Listening sockets that a former process of the activator has left."""

from __future__ import annotations

import os
import socket

from activator.runtime import sockets


def test_the_other_process_never_blocks_in_accept() -> None:
    """Both have one open file, with one flag; `socket.dup` sets it to what its object says."""
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        theirs.setblocking(False)
        address = sockets.address_of(theirs)
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        assert ours.gettimeout() is None
        sockets.inherit([(address, [ours])])
        (taken,) = sockets.inherited(address)
        with taken, taken.dup():
            assert not os.get_blocking(theirs.fileno())
