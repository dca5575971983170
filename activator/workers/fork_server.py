"""The zygote of all workers: a process that has loaded the program, and forks.

A fork takes a few milliseconds and shares the memory of the loaded program. The parent itself must not fork once it has
a loop and threads, so the zygote is forked from it before (`fork_zygote`), and shares what both have loaded by
then. A zygote that ends is replaced by a new program, `python -m activator.workers.fork_server DESCRIPTOR`.

Rules
  1. It has one thread and no event loop, so that a fork copies nothing that is in use.
  2. A request is a worker's number with a socket, which the worker gets. The reply has the process and its pidfd; a
     second reply reports how the process ended.
  3. When the parent ends, so does this process. A worker notices that by itself.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

REQUEST: Final = struct.Struct("=Q")  # a worker's number
REPLY: Final = struct.Struct("=BQii")  # FORKED, EXITED or FAILED; the worker's number; its process; its exit status
FORKED: Final = 1
EXITED: Final = 2
FAILED: Final = 3  # fork(2) failed: the process is 0, and the status an errno

IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # sent to all; the parent decides


def main() -> int:
    """Serve until the parent ends, and return the exit code."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    parent.set_inheritable(False)
    _load()
    return _serve(parent)


class Zygote:
    """The parent's handle of a fork server that was forked, not started as a program.

    `process` is its PID, and the ID of the process group that it and its workers form. `ended(process)` is called when
    all processes of the group have ended, so that the system may reuse the ID.
    """

    def __init__(self, process: int, sock: socket.socket) -> None:
        self.process = process
        self.socket = sock
        self.ended: Callable[[int], None] | None = None
        self._is_reaped = False  # the fork server itself has ended; its workers may live

    def kill(self) -> None:
        """Send SIGKILL to the fork server, but not to its workers."""
        if not self._is_reaped:
            os.kill(self.process, signal.SIGKILL)

    def wait(self) -> None:
        """Return when the process has ended."""
        if not self._is_reaped:
            with suppress(ChildProcessError):  # it has been reaped as an orphan of process 1
                os.waitpid(self.process, 0)
            self._is_reaped = True

    def has_ended(self) -> bool:
        """Return True if the fork server has ended with all its workers; call `ended` the first time."""
        if not self._is_reaped:
            return False
        try:
            os.killpg(self.process, 0)
        except ProcessLookupError:
            if self.ended is not None:
                self.ended(self.process)
                self.ended = None
            return True
        return False


def fork_zygote() -> Zygote:
    """Fork a zygote.

    This process must have one thread, no event loop, and no descriptors except those that it was started with.
    """
    _load()
    own, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()  # signals that a terminal sends to its group are forwarded by the parent
            _close_all_but(other_end.fileno())
            code = _serve(other_end)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    other_end.close()
    return Zygote(child, own)


def _load() -> None:
    """Load the program, and prepare its memory to be shared."""
    from activator.runtime.memory import FreedMemory
    from activator.workers import process

    process.load()
    gc.collect()
    gc.freeze()  # the collector would write to each page of the loaded objects, which would unshare it
    FreedMemory().give_back()  # freed memory: each process would write to it, and unshare it


def _close_all_but(descriptor: int) -> None:
    """Close all descriptors except this one, standard output and standard error; standard input is /dev/null."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))


def _serve(parent: socket.socket) -> int:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return ForkServer(parent).run()


class ForkServer:
    """The loop of the zygote. `parent` is a socket of the type SOCK_SEQPACKET."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._numbers: dict[int, int] = {}  # workers by process
        self._waking, self._wakeup = socket.socketpair()
        self._waking.setblocking(False)
        self._wakeup.setblocking(False)

    def run(self) -> int:
        """Serve until the parent ends, and return the exit code."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._parent, selectors.EVENT_READ)
        selector.register(self._waking, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._waking:
                        self._waking.recv(4096)
                        self._reap()
                    elif not self._serve_request(selector):
                        return 0
        except (BrokenPipeError, ConnectionResetError):
            return 0

    def _serve_request(self, selector: selectors.BaseSelector) -> bool:
        """Process one request of the parent. Return False if the parent has ended."""
        data, descriptors, _, _ = socket.recv_fds(self._parent, REQUEST.size, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        try:
            child = os.fork()
        except OSError as error:
            os.close(descriptors[0])
            self._parent.send(REPLY.pack(FAILED, number, 0, error.errno or 0))
            return True
        if child == 0:
            self._become_worker(selector, descriptors[0])
        os.close(descriptors[0])
        self._numbers[child] = number
        descriptor = os.pidfd_open(child)
        socket.send_fds(self._parent, [REPLY.pack(FORKED, number, child, 0)], [descriptor])
        os.close(descriptor)
        return True

    def _become_worker(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Run the worker in the forked process, and exit."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for sock in (self._parent, self._waking, self._wakeup):
                sock.close()
            from activator.workers import process

            code = process.main(descriptor)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def _reap(self) -> None:
        """Report the workers that have ended."""
        while self._numbers:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            number = self._numbers.pop(child, 0)
            self._parent.send(REPLY.pack(EXITED, number, child, status))


if __name__ == "__main__":
    sys.exit(main())
