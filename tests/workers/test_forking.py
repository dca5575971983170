"""A zygote keeps its number while anything of its group lives."""

from __future__ import annotations

import socket
import subprocess
import sys

from activator.workers.fork_server import Zygote

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_group_has_ended_with_its_last_process() -> None:
    own, others = socket.socketpair()
    with own, others:
        process = subprocess.Popen(SLEEPS, process_group=0)
        worker = subprocess.Popen(SLEEPS, process_group=process.pid)
        zygote = Zygote(process.pid, own)
        ended: list[int] = []
        zygote.ended = ended.append
        try:
            assert not zygote.has_ended()
            zygote.kill()
            zygote.wait()
            assert not zygote.has_ended() and ended == []
        finally:
            worker.kill()
            worker.wait()
        assert zygote.has_ended() and zygote.has_ended()
        assert ended == [process.pid], "told once"
        process.wait()
