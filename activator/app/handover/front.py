"""The first process of a chain of upgrades, once its requests have ended: it stays for the program that has started it.

A shell, a container or a supervisor other than systemd knows one process. It forwards signals to the process that
serves, waits for orphans, and ends with the exit code of that process. If it is killed, that process drains and ends.
It runs as a program of its own that imports only the standard library: `front.py DESCRIPTOR PROCESS SIGNALS`. The
descriptor is a socket, from which it reads lines, each with the PID of the process that serves from then on. SIGNALS is
a pipe with the numbers of the signals that came while it began, one byte each.
"""

import os
import select
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
UNKNOWN = 1  # the exit code if the process that served is no child of this one, which thus cannot know its exit code
READ_BYTES = 4_096


def main(descriptor: int, process: int, signals: int) -> int:
    """Forward signals to the process that serves, until it ends. Return its exit code."""
    waking, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # the program that this one replaces has blocked them
    forward_all(process, earlier(signals))
    rest = b""
    while True:
        pidfd = opened(process)
        if pidfd < 0:
            return ended(process)
        poll = select.poll()  # select(2) takes no descriptors above 1023
        for watched in (pidfd, descriptor, waking.fileno()):
            poll.register(watched, select.POLLIN)
        readable = [ready for ready, _ in poll.poll()]
        os.close(pidfd)
        if descriptor in readable:
            *lines, rest = (rest + os.read(descriptor, READ_BYTES)).split(b"\n")
            if lines:
                process = int(lines[-1])
                continue
        if waking.fileno() in readable:
            forward_all(process, waking.recv(READ_BYTES))
            reap_all_but(process)
        if pidfd in readable:
            return ended(process)


def opened(process: int) -> int:
    """Return a pidfd of the process; -1 if it has ended and was waited for."""
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        return -1


def earlier(signals: int) -> bytes:
    """Return the signal numbers in the pipe, and close it."""
    os.set_blocking(signals, False)
    try:
        return os.read(signals, READ_BYTES)
    except BlockingIOError:
        return b""
    finally:
        os.close(signals)


def forward_all(process: int, numbers: bytes) -> None:
    """Send the process those of the signals that are in FORWARDED."""
    for number in numbers:
        if number in FORWARDED:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass  # it has just ended


def ended(process: int) -> int:
    """Return the exit code of a process that has ended; 128 and the number of a signal, as shells do."""
    try:
        _, status = os.waitpid(process, 0)
    except ChildProcessError:
        return UNKNOWN
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def reap_all_but(process: int) -> None:
    """Wait for the children that have ended, and leave the serving process to `ended`."""
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if child is None or child.si_pid == process:
            return
        os.waitpid(child.si_pid, os.WNOHANG)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
