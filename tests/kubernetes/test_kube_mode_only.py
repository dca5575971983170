"""What Kubernetes needs is imported where a cluster is spoken to, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.sources import ROOT


def test_a_local_run_does_not_import_it() -> None:
    code = """
        import sys
        import activator.app, activator.cli
        cluster = ("kubernetes_asyncio", "activator.kubernetes")
        print([name for name in sys.modules if name.startswith(cluster)])
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
