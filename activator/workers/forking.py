"""The parent's end of the fork server, which is started, and restarted when it ends or does not reply."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from typing import Final, Protocol

from activator.workers.fork_server import EXITED, FORKED, REPLY, REQUEST, Zygote

log = logging.getLogger("activator")

RETRY_S: Final = 1.0  # delay before the fork server is started again after a failed start
GROUP_CHECK_S: Final = 5.0  # interval of the check for workers of a zygote that has ended


class ForkListener(Protocol):
    """The recipient of the reports of the fork server. `number` is that of the worker."""

    def forked(self, number: int, process: int, pidfd: int) -> None:
        """Take the process of a worker; the listener owns the descriptor from then on."""
        ...

    def not_forked(self, number: int, reason: str) -> None:
        """Give up a worker that could not be forked."""
        ...

    def exited(self, number: int, process: int, how: str) -> None:
        """Log how a worker has failed. Its end itself is reported by its pidfd."""
        ...

    def forks_lost(self) -> None:
        """Give up the workers whose forks were not reported: the fork server has ended."""
        ...


class Forking:
    """The fork server. `environment` is that of the workers; `zygote` is the first server, if it exists already."""

    def __init__(self, listener: ForkListener, environment: dict[str, str], zygote: Zygote | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._environment = environment
        self._zygote = zygote
        self._process: subprocess.Popen[bytes] | Zygote | None = None
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Start the fork server. Raises OSError."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            self._process = zygote
            self._connect(zygote.socket)
            return
        own, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "activator.workers.fork_server", str(other_end.fileno())],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # signals that a terminal sends to its group are forwarded by the parent
            )
        self._connect(own)

    def fork(self, number: int, sock: socket.socket) -> None:
        """Fork a worker, which gets this socket. Raises OSError."""
        if self._socket is None:
            raise OSError(errno.EPIPE, "the process that starts workers is not there")
        socket.send_fds(self._socket, [REQUEST.pack(number)], [sock.fileno()])

    def restart(self) -> None:
        """Kill a fork server that does not reply, so that it is started again. Its workers continue."""
        if self._process is not None:
            self._process.kill()

    def abandon(self) -> None:
        """Kill the fork server, whose workers continue with a later process of the activator."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the fork server."""
        self._disconnect()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        if isinstance(self._process, Zygote):
            self._process.has_ended()

    def _connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop.add_reader(sock.fileno(), self._readable)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, REPLY.size, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._lost()
            return
        kind, number, process, status = REPLY.unpack(data)
        if kind == FORKED and descriptors:
            self._listener.forked(number, process, descriptors[0])
        elif kind == EXITED:
            if status != 0:
                self._listener.exited(number, process, how_it_ended(status))
        else:  # without a pidfd a worker's end would not be noticed; a worker whose wire is closed ends by itself
            self._listener.not_forked(number, os.strerror(status or errno.EMFILE))

    def _lost(self) -> None:
        """Start the fork server again after its end, and report that its pending forks are lost."""
        log.error("the process that starts workers has ended, and is started again")
        self._disconnect()
        assert self._process is not None
        self._process.kill()  # its socket is closed already, so the next line does not wait
        self._process.wait()
        if isinstance(self._process, Zygote):
            self._check_group(self._process)
        try:
            self.start()
        except OSError as error:
            log.error("the process that starts workers cannot be started, again in %g s: %s", RETRY_S, error)
            self._loop.call_later(RETRY_S, self._start_again)
        self._listener.forks_lost()

    def _check_group(self, zygote: Zygote) -> None:
        """Keep the ID of the group until all its workers have ended: it is the only way to find and end them."""
        if not zygote.has_ended():
            self._loop.call_later(GROUP_CHECK_S, self._check_group, zygote)

    def _start_again(self) -> None:
        if self._socket is None:
            try:
                self.start()
            except OSError as error:
                log.error("the process that starts workers cannot be started, again in %g s: %s", RETRY_S, error)
                self._loop.call_later(RETRY_S, self._start_again)


def how_it_ended(status: int) -> str:
    """Return a status of `waitpid` in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in {one.value for one in signal.Signals} else f"signal {number}"
        return f"was ended by {name}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
