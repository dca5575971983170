"""A port that only root may open: the message says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

BIND = """
import encodings.idna, os
from activator.runtime.errors import StartError
from activator.runtime.sockets import bind
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    bind("127.0.0.1:80")
except StartError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="it gives up the rights of root")
def test_a_privileged_port_says_what_to_do() -> None:
    first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not first.exists() or int(first.read_text("ascii")) <= 80:
        pytest.skip("every port is free for all here")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", BIND], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == (
        "cannot listen on 127.0.0.1:80: ports below 1024 are root's; use another, such as 8080, or let `activator "
        "install-service` open it by systemd\n"
    )
