"""Which real API server the tests may use, if any.

ACTIVATOR_TEST_KUBECONFIG names the configuration of one; otherwise a control plane is started where its programs are on
PATH, once for all tests of a run.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.kube.control_plane import ControlPlane, missing_programs

NAMED = os.environ.get("ACTIVATOR_TEST_KUBECONFIG", "")
IS_THERE = bool(NAMED) or not missing_programs()
WHY_NOT = (
    f"there is no API server: ACTIVATOR_TEST_KUBECONFIG names none, and {', '.join(missing_programs())} not on PATH"
)
POD_NETWORK = "198.18.0.0/15"  # reserved for tests of networks (RFC 2544); the API takes no pods on 127.0.0.0/8


@cache
def own_control_plane() -> ControlPlane:
    """Of this process; ended with it."""
    folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
    plane = ControlPlane(folder)

    def end() -> None:
        plane.close()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    plane.start()
    return plane


def kubeconfig() -> str:
    return NAMED or own_control_plane().kubeconfig


@cache
def why_no_pod_network() -> str:
    """Makes the addresses of pods ones of this machine; empty: they are."""
    done = subprocess.run(
        ["ip", "route", "replace", "local", POD_NETWORK, "dev", "lo"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"pods need addresses of {POD_NETWORK}: {done.stderr.strip()}"
