"""What /proc says of processes that live, have ended, and end while it is read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from activator.control_plane.sources.process.reaper import living
from activator.runtime.process_stat import PARENT, STARTED, STATE, stat_fields
from tests.conftest import DEEP

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc here")


def test_of_this_process() -> None:
    fields = stat_fields(os.getpid())
    assert (fields[STATE], int(fields[PARENT])) == (b"R", os.getppid())
    assert int(fields[STARTED]) > 0


def test_a_name_with_brackets_and_blanks() -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) R 1 (b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert int(stat_fields(child.pid)[PARENT]) == os.getpid()


def test_of_a_process_that_has_gone() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        stat_fields(child.pid)


def test_processes_that_end_while_they_are_read() -> None:
    """The kernel may return a part of the line."""
    stop = threading.Event()

    def begin_and_end() -> None:
        while not stop.is_set():
            os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)

    threads = [threading.Thread(target=begin_and_end) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200 if DEEP else 50):
            assert living({os.getpgid(0)}, b"no such mark") is not None
    finally:
        stop.set()
        for thread in threads:
            thread.join()
