"""ab, ApacheBench: an HTTP/1.0 client that is not ours."""

from __future__ import annotations

import re
import subprocess


def ab(program: str, url: str, count: int, *words: str, timeout_s: float = 120.0) -> str:
    """What it prints of so many requests, none of which failed."""
    done = subprocess.run(
        [program, "-q", "-n", str(count), *words, url],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"Complete requests:\s+{count}\b", done.stdout), done.stdout
    assert re.search(r"Failed requests:\s+0\b", done.stdout), done.stdout
    return done.stdout
