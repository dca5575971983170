"""A template keeps its number while anything of its group lives."""

from __future__ import annotations

import socket
import subprocess
import sys

from activator.workers.fork_server import Template

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_group_has_ended_with_its_last_process() -> None:
    own, others = socket.socketpair()
    with own, others:
        process = subprocess.Popen(SLEEPS, process_group=0)
        worker = subprocess.Popen(SLEEPS, process_group=process.pid)
        template = Template(process.pid, own)
        ended: list[int] = []
        template.ended = ended.append
        try:
            assert not template.has_ended()
            template.kill()
            template.wait()
            assert not template.has_ended() and ended == []
        finally:
            worker.kill()
            worker.wait()
        assert template.has_ended() and template.has_ended()
        assert ended == [process.pid], "told once"
        process.wait()
